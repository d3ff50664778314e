"""Run: one test from the first process to the verdict: set up, clients and faults, mend, drain, judge, report.

Phases in the history: setup, main, final (healed, clients go on), drain, end. The first Ctrl-C ends the main phase, and
everything after it goes on in short; the second one ends the harness.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from jepsen import report, store
from jepsen.checkers import check
from jepsen.checkers.base import Meta, Result, Run, verdict
from jepsen.checkers.stats import IN_FAULTS
from jepsen.drain import Drain, Drained
from jepsen.history import INFO, NEMESIS
from jepsen.hosts.base import Hosts, HostsError
from jepsen.hosts.choosing import make_hosts
from jepsen.live import Live
from jepsen.nemesis.field import Fault, Field, Kind
from jepsen.nemesis.membership import forget
from jepsen.nemesis.packages import choose
from jepsen.nemesis.process import kill
from jepsen.nemesis.runner import Nemesis
from jepsen.nemesis.schedule import plan
from jepsen.observer import Observer
from jepsen.options import OptionError, Options
from jepsen.recorder import Recorder
from jepsen.watch import Watch
from jepsen.workers import Crew
from jepsen.workloads import LEAVES_DELIVERED, Params, Workload, make

TICK_S: Final = 2.0
AFTER_HEAL_S: Final = 5.0
# A run that was stopped, or that is broken anyway, isn't waited for.
SHORT_DRAIN_S: Final = 30.0
# What a run of so many seconds, or more, at this rate has to show is asked whole; of a shorter one as much less.
DEMANDING_S: Final = 45.0
DEMANDING_HZ: Final = 60.0


@attrs.frozen
class Outcome:
    """The end of a test: `valid` True, False, None (unknown); `is_stopped`: somebody wants no more of it."""

    name: str
    valid: bool | None
    results: tuple[Result, ...] = ()
    folder: str = ""
    took_s: float = 0.0
    is_stopped: bool = False


@attrs.define(eq=False)
class Test:
    """One test under way. `say` prints a line."""

    options: Options
    workload: Workload
    hosts: Hosts
    kinds: Sequence[Kind]
    folder: store.RunFolder
    say: Callable[[str], None]
    recorder: Recorder = attrs.Factory(Recorder)
    is_stopped: bool = False
    main_scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    drain: Drain | None = None
    drained: Drained | None = None
    abandoned: tuple[str, ...] = ()
    live: Live = attrs.field(init=False)
    field: Field = attrs.field(init=False)
    nemesis: Nemesis = attrs.field(init=False)
    observer: Observer = attrs.field(init=False)
    watch: Watch = attrs.field(init=False)
    crew: Crew = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        options = self.options
        self.live = Live(self.say, self.recorder.now_s)
        self.recorder.sinks += [self.folder.append, self.live.hear]
        self.field = Field(
            self.hosts,
            options.dice("nemesis"),
            is_logged=options.is_logged,
            timeout_s=options.node_timeout_ms / 1_000,
            say=lambda line: self.live.event("note", line),
        )
        self.nemesis = Nemesis(self.field, self.recorder, self.kinds, self.live.fault)
        self.watch = Watch(self.recorder, self.field)
        self.observer = Observer(self.hosts, self.recorder)
        self.crew = Crew(
            self.hosts,
            self.recorder,
            self.workload,
            run=f"{options.seed:x}",
            concurrency=options.clients,
            rate_hz=options.rate,
            seed=options.seed,
        )

    async def go(self) -> None:
        """Everything between set-up and teardown."""
        self.phase("setup")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._heed_signal)
            await self.observer.round("start")
            self.phase("main")
            async with trio.open_nursery() as observing:
                observing.start_soon(self.observer.run)
                await self._main()
                observing.cancel_scope.cancel()
            await self._finish()
            nursery.cancel_scope.cancel()
        self.observer.close()

    async def _main(self) -> None:
        """Clients and faults; then all is mended, and clients go on for a moment."""
        options = self.options
        timers_s = (options.node_timeout_ms / 1_000, float(self.workload.retry_max_s))
        steps = plan(
            options.dice("schedule"),
            len(self.kinds),
            options.time_limit,
            wanted_interval_s=options.nemesis_interval,
            stable_s=options.nemesis_stable_period,
            timers_s=timers_s,
        )
        async with trio.open_nursery() as working:
            working.start_soon(self.crew.work)
            with trio.CancelScope() as self.main_scope:
                end_s = self.recorder.now_s() + options.time_limit
                await self.nemesis.run(steps, end_s)
                await trio.sleep(max(0.0, end_s - self.recorder.now_s()))
            self.phase("final")
            await self.nemesis.mend()
            if not self.is_stopped:
                await trio.sleep(min(AFTER_HEAL_S, options.time_limit / 10))
            self.crew.close()

    async def _finish(self) -> None:
        """Drain, or give up a part of the nodes first and drain the rest."""
        options, nodes = self.options, self.hosts.nodes
        if options.final == "core":
            nodes = await self._abandon()
        nodes = tuple(node for node in nodes if node not in self.field.broken)
        self.phase("drain")
        is_short = self.is_stopped or bool(self.field.broken)
        self.drain = Drain(
            self.hosts,
            self.recorder,
            self.observer,
            nodes,
            self.workload.queues,
            run=self.crew.run,
            process=1_000_000,
            retry_max_s=self.workload.retry_max_s,
            limit_s=SHORT_DRAIN_S if is_short else options.final_time_limit,
            leaves_delivered=self.workload.name in LEAVES_DELIVERED,
            is_core=len(nodes) < len(self.hosts.nodes),
        )
        self.drained = await self.drain.run_all()
        self.live.event("drain", describe(self.drained))
        self.phase("end")

    async def _abandon(self) -> tuple[str, ...]:
        """Kill the smaller half for ever and tell the larger one so, which must still deliver and end all it has."""
        nodes, field = self.hosts.nodes, self.field
        self.abandoned = tuple(
            sorted(self.options.dice("core").sample(nodes, (len(nodes) - 1) // 2))
        )
        live = [node for node in self.abandoned if node not in field.broken]
        ids = {node: await field.id_of(node) for node in live}
        fault = Fault("kill-abandoned", nodes=self.abandoned, wipes=self.abandoned)
        proof = await kill(field, self.abandoned)
        self.recorder.add(NEMESIS, INFO, "start", {**fault.as_value(0), **proof.as_value()})
        self.live.fault("start", fault, proof)
        for node, node_id in ids.items():
            field.tell("forget", node, None)
            # Who isn't forgotten has to hear of each ack: nothing would drain while the core waits for the dead.
            field.tell("forget", node, await forget(field, node_id, field.fit_nodes()))
        return tuple(node for node in nodes if node not in self.abandoned)

    async def _heed_signal(self) -> None:
        """The first one: end the main phase or shorten the drain. The next one is the interpreter's."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                self.is_stopped = True
                self.live.event("note", "stopping: heal, drain, check; once more to give up")
                self.main_scope.cancel()
                if self.drain is not None:
                    self.drain.hurry(SHORT_DRAIN_S)
                return

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.live.tick()
            # A history of a million events is no garbage, and looking through it would stop the harness for a second.
            gc.freeze()

    def _broken(self) -> list[str]:
        return [f"{node}: does not start: {text}" for node, text in self.field.broken.items()]

    def phase(self, name: str) -> None:
        """Note where we are."""
        self.recorder.add(NEMESIS, INFO, "phase", {"name": name})

    def meta(self) -> Meta:
        """What the checkers have to know beside the events."""
        options = self.options
        return Meta(
            name=options.name,
            workload=options.workload,
            nemesis=options.nemesis_name,
            nodes=self.hosts.nodes,
            concurrency=options.clients,
            log=options.is_logged,
            fsync=options.aof if options.is_logged else "",
            seed=options.seed,
            bounds={"node_timeout_ms": options.node_timeout_ms},
            tracebacks=self.watch.tracebacks(),
            exits=(*self.watch.exits, *self._broken()),
            drained=self.drained.is_complete if self.drained else None,
            is_stopped=self.is_stopped,
            lags=self.watch.lags,
            demands={} if self.is_stopped else demands(self.workload, options, bool(self.kinds)),
            abandoned=self.abandoned,
            is_external="--maxmemory" in self.workload.flags,
        )


def demands(workload: Workload, options: Options, has_faults: bool) -> dict[str, int]:
    """The least counts that show that this run isn't vacuous."""
    share = 1.0
    if options.time_limit < DEMANDING_S:
        share = min(1.0, options.time_limit * options.rate / (DEMANDING_S * DEMANDING_HZ))
    return {
        name: max(1, int(least * share))
        for name, least in workload.demands.items()
        if has_faults or name != IN_FAULTS
    }


async def run_test(options: Options, say: Callable[[str], None]) -> Outcome:
    """One test and its verdict. Raises NoNemesisError and OptionError for what this machine can't do."""
    began = time.monotonic()
    workload, kinds = prepare(options)
    folder = store.open_run(options.store, options.name, {"options": options.as_json()})
    say = both(say, folder.log)
    hosts = make_hosts(options.hosts, options.host_options(workload.flags, folder.folder))
    test = Test(options, workload, hosts, kinds, folder, say)
    for line in headline(test):
        say(line)
    try:
        await hosts.setup()
        say(f"setup   {len(hosts.nodes)} up, 1 view   {time.monotonic() - began:.1f} s")
        test.recorder.restart_clock()
        # for who judges what is left of a harness that was killed
        folder.update_test({"meta": attrs.asdict(test.meta())})
        await test.go()
        if options.leave_running:
            await _wait_ctrl_c(hosts, say)
    finally:
        meta = test.meta()
        folder.update_test({"meta": attrs.asdict(meta)})
        with trio.CancelScope(shield=True):
            await hosts.teardown()
    results = judge(Run(meta, test.recorder.history), folder, say)
    folder.close()
    took_s = time.monotonic() - began
    return Outcome(
        options.name,
        verdict(results),
        tuple(results),
        str(folder.folder),
        took_s,
        is_stopped=test.is_stopped,
    )


def both(say: Callable[[str], None], log: Callable[[str], None]) -> Callable[[str], None]:
    """What is said is in the log, too."""

    def say_both(line: str) -> None:
        say(line)
        log(line)

    return say_both


def prepare(options: Options) -> tuple[Workload, tuple[Kind, ...]]:
    """The workload and the faults of a test; raises for what can't be done here."""
    nodes = options.host_options(()).nodes
    workload = make(options.workload, Params(nodes, options.replicate, options.retry, options.ttl))
    try:
        hosts = make_hosts(options.hosts, options.host_options(workload.flags))
    except HostsError as error:
        raise OptionError(f"--hosts {options.hosts}: {error}") from error
    capabilities = hosts.capabilities
    kinds = choose(
        options.nemesis_name, capabilities, count=options.nodes, is_logged=options.is_logged
    )
    return workload, kinds


def judge(run: Run, folder: store.RunFolder, say: Callable[[str], None]) -> list[Result]:
    """Check, write the results and the report, and print the summary."""
    began = time.monotonic()
    results = check(run)
    took_s = time.monotonic() - began
    folder.write_results(run, results)
    page = report.write(run, results, folder.folder)
    say(report.summary(results, report=page, took_s=took_s))
    return results


def headline(test: Test) -> list[str]:
    """The first lines: what is tested, with what."""
    options = test.options
    asked = (
        f"W={options.replicate or 'mixed'} RETRY<={test.workload.retry_max_s}s AOF={options.aof}"
    )
    kinds = " ".join(kind.name for kind in test.kinds) or "no faults"
    sizes = f"{options.nodes} nodes  {options.clients} clients  {options.rate:g} op/s"
    return [
        f"jepsen  {options.workload} x {options.nemesis_name}   {sizes}",
        f"        {asked}  seed {options.seed:#x}",
        f"hosts   {test.hosts.name}: {' '.join(sorted(test.hosts.capabilities))}",
        f"faults  {kinds}",
        f"store   {test.folder.folder}",
    ]


def describe(drained: Drained) -> str:
    """How the drain ended, in a line."""
    views = "never" if drained.views_s is None else f"after {drained.views_s:.1f} s"
    end = "quiet" if drained.is_complete else "ENDED BY ITS TIME LIMIT"
    settled = (
        "not seen to be 0" if drained.settled_s is None else f"0 after {drained.settled_s:.1f} s"
    )
    return f"views agree {views}; {end}, {drained.took_s:.1f} s; registered {settled}"


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome for machines."""
    return {
        "name": outcome.name,
        "valid": outcome.valid,
        "folder": outcome.folder,
        "took_s": round(outcome.took_s, 1),
        "checkers": {each.checker: each.valid for each in outcome.results},
    }


async def _wait_ctrl_c(hosts: Hosts, say: Callable[[str], None]) -> None:
    """Keep the cluster for a look at it, until Ctrl-C."""
    for node in hosts.nodes:
        host, port = hosts.address(node)
        say(f"{node}  {host} {port}")
    say("the cluster goes on until Ctrl-C")
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
