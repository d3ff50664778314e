"""Nemesis: each fault is measured at its start and its end, faults add up, and nothing is left broken."""

from __future__ import annotations

import random
from collections.abc import Collection
from functools import partial
from typing import Any, cast

import attrs
import pytest
import trio

from jepsen.history import INFO, NEMESIS
from jepsen.hosts.base import CUT, KILL, PAUSE, Hosts, HostsError, Link, all_links
from jepsen.nemesis import field, membership, network, process
from jepsen.nemesis.field import Fault, Field, Kind, Proof, until
from jepsen.nemesis.grudges import GRUDGES
from jepsen.nemesis.membership import LeaveJoin
from jepsen.nemesis.network import Delay, Loss, Partition, partition
from jepsen.nemesis.packages import NEEDS_LOG
from jepsen.nemesis.process import DISKS, Kill, Pause, RollingRestart
from jepsen.nemesis.runner import Nemesis
from jepsen.nemesis.schedule import Step
from jepsen.recorder import Recorder


@attrs.define(eq=False)
class PaperHosts:
    """Hosts without processes: what was ordered is so, unless `lies` names it. Clients find nodes that are up."""

    nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4", "n5")
    password: str = ""
    capabilities: frozenset[str] = frozenset({CUT, KILL, PAUSE})
    # Of each link, as shaped, but for the one that lies.
    delay_ms: float = 0.0
    loss: float = 0.0
    lies: frozenset[str] = frozenset()
    silent: frozenset[Link] = frozenset()
    dead: set[str] = attrs.Factory(set)
    stopped: set[str] = attrs.Factory(set)
    # What a node answers when it is to save a file, and how long that takes it.
    saved: bytes = b"+OK"
    save_s: float = 0.0
    # The ids that CLUSTER NODES lists; every node says that it is the first.
    ids: list[str] = attrs.Factory(lambda: ["id-1", "id-2"])
    port: int = 0

    async def fill_disk(self, _node: str) -> None:
        self.saved = b"+OK" if "disk" in self.lies else b"-ERR No space left on device"

    async def slow_fsync(self, _node: str, delay_ms: float) -> None:
        self.save_s = 0.0 if "disk" in self.lies else delay_ms / 1_000

    async def fail_fsync(self, _node: str) -> None:
        self.saved = b"+OK" if "disk" in self.lies else b"-ERR Input/output error"

    async def free_disk(self, _node: str) -> None:
        if "heal" not in self.lies:
            self.saved, self.save_s = b"+OK", 0.0

    async def mend_fsync(self, node: str) -> None:
        await self.free_disk(node)

    async def cut(self, links: Collection[Link]) -> None:
        if "raise" in self.lies and links:
            raise HostsError("no cable to cut")
        self.silent = frozenset() if "cut" in self.lies else frozenset(links)

    async def probe(self) -> frozenset[Link]:
        return frozenset() if "probe" in self.lies else all_links(self.nodes) - self.silent

    async def shape(
        self,
        links: Collection[Link],
        *,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss: float = 0,
    ) -> None:
        if links or "heal" not in self.lies:
            self.delay_ms, self.loss = delay_ms + jitter_ms, loss

    async def times_ms(self) -> dict[Link, float]:
        fast = ("n1", "n2") if "shape" in self.lies else None
        return {link: self.delay_ms * (link != fast) for link in await self.probe()}

    async def lost(self) -> int:
        return int(self.loss * 100) if "shape" not in self.lies else 0

    async def kill(self, node: str) -> None:
        if "kill" not in self.lies:
            self.dead.add(node)

    async def start(self, node: str) -> None:
        if "start" in self.lies:
            raise HostsError(f"{node} ended: torn log")
        self.dead.discard(node)

    async def pause(self, node: str) -> None:
        self.stopped.add(node)

    async def resume(self, node: str) -> None:
        self.stopped.discard(node)

    def is_alive(self, node: str) -> bool:
        return node not in self.dead

    async def open(self, node: str) -> trio.SocketStream:
        if node in self.dead:
            raise ConnectionRefusedError(node)
        if node in self.stopped:
            await trio.sleep_forever()
        return await trio.open_tcp_stream("127.0.0.1", self.port)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't so at once is not waited for."""
    for module in (process, network, field):
        monkeypatch.setattr(module, "until", lambda probe, _within_s=0.0: until(probe, 0.0))


INFO_TEXT = b"cluster_reachable_nodes:4\r\ncluster_safe_to_stop:0\r\n"


async def pong(hosts: PaperHosts, stream: trio.SocketStream) -> None:
    """A node that sees everybody, is never safe to stop, and else answers +PONG."""
    async for words in stream:
        answer = b"+PONG\r\n"
        if b"INFO" in words:
            answer = bulk(INFO_TEXT)
        elif b"MYID" in words:
            answer = bulk(hosts.ids[0].encode())
        elif b"NODES" in words:
            answer = bulk("\n".join(hosts.ids).encode())
        elif b"FORGET" in words:
            hosts.ids = [each for each in hosts.ids if each.encode() not in words]
        elif b"LEAVING" in words:
            answer = b"+OK\r\n"
        elif b"SAVECONFIG" in words:
            await trio.sleep(hosts.save_s)
            answer = hosts.saved + b"\r\n"
        await stream.send_all(answer)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


@attrs.define(eq=False)
class Stage:
    """Paper hosts, a nemesis on them, and what it wrote."""

    hosts: PaperHosts
    nemesis: Nemesis

    @classmethod
    async def built(cls, nursery: trio.Nursery, kinds: list[Kind], **lies: Any) -> Stage:
        hosts = PaperHosts(**lies)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, partial(pong, hosts), [listener])
        hosts.port = listener.socket.getsockname()[1]
        needs_log = any(kind.name in NEEDS_LOG for kind in kinds)
        field = Field(cast(Hosts, hosts), random.Random(1), is_logged=needs_log)
        return cls(hosts, Nemesis(field, Recorder(), kinds))

    def told(self) -> list[tuple[str, bool | None]]:
        """f and proof of each event, in order."""
        history = self.nemesis.recorder.history
        assert all((op.process, op.type) == (NEMESIS, INFO) for op in history)
        return [(op.f, op.value.get("proven")) for op in history]


@pytest.mark.parametrize(
    "kind",
    [*map(partition, GRUDGES), Kill(), Pause(), Delay(), Loss(), *DISKS],
    ids=lambda kind: kind.name,
)
async def test_a_fault_is_proven_at_both_ends(kind: Kind, nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [kind])
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    assert stage.told() == [("start", None), ("start", True), ("stop", None), ("stop", True)]
    assert (stage.hosts.silent, stage.hosts.dead, stage.hosts.stopped) == (
        frozenset(),
        set(),
        set(),
    )


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        (partition("bridge"), "cut"),
        (partition("bridge"), "probe"),
        (Kill(), "kill"),
        (Delay(), "shape"),
        (Loss(), "shape"),
        *((disk, "disk") for disk in DISKS),
    ],
)
async def test_a_fault_that_is_not_there_is_not_proven(
    kind: Kind, lie: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    stage = await Stage.built(nursery, [kind], lies=frozenset({lie}))
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    assert stage.told()[1] == ("start", False)


@pytest.mark.parametrize("kind", [Delay(), Loss(), *DISKS], ids=lambda kind: kind.name)
async def test_what_stays_broken_is_not_proven_mended(
    kind: Kind, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    stage = await Stage.built(nursery, [kind], lies=frozenset({"heal"}))
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    assert [proven for _, proven in stage.told()] == [None, True, None, False]


async def test_a_cut_link_needs_no_time_to_be_slow(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [Delay()], lies=frozenset({"shape"}))
    await stage.nemesis.field.cut(99, [("n1", "n2")])
    await stage.nemesis.begin(Delay())
    proof = stage.nemesis.recorder.history[-1].value["proof"]
    assert proof == {"asked": 19, "silent": 19, "how": "links timed"}


async def test_a_host_that_fails_makes_an_unproven_fault_and_a_trouble(
    nursery: trio.Nursery,
) -> None:
    stage = await Stage.built(nursery, [partition("bridge")], lies=frozenset({"raise"}))
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    assert stage.told()[1] == ("start", False)
    assert stage.nemesis.troubles == ["bridge: HostsError: no cable to cut"]


async def test_what_goes_wrong_while_a_fault_stands_leaves_its_end_unproven(
    nursery: trio.Nursery,
) -> None:
    @attrs.frozen
    class Torn(Partition):
        async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:  # noqa: A002
            raise HostsError("the cable burns")

    stage = await Stage.built(nursery, [Torn("bridge", GRUDGES["bridge"])])
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    assert [proven for _, proven in stage.told()] == [None, True, None, False]
    last = stage.nemesis.recorder.history[-1].value
    assert last["proof"]["how"] == "bridge: HostsError: the cable burns"


async def test_each_kill_of_a_rolling_restart_is_a_fault_of_its_own(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [RollingRestart()])
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    history = stage.nemesis.recorder.history
    told = [(op.f, op.value.get("kind", "")) for op in history if "proven" in op.value]
    one = [("start", "kill"), ("stop", "kill"), ("views", "")]
    assert told == [("start", "rolling-restart"), *one, *one, ("stop", "rolling-restart")]
    assert all(op.value["proven"] for op in history if "proven" in op.value)
    outer, *kills = (op.value for op in history if op.f == "start" and "proven" in op.value)
    assert outer["nodes"] == outer["wipes"] == []
    assert [kill["wipes"] for kill in kills] == [[node] for node in outer["params"]["order"]]
    assert not stage.nemesis.field.down


async def test_a_rolling_restart_that_kills_nobody_is_not_proven(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [RollingRestart()], lies=frozenset({"kill"}))
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    kills = [op for op in stage.nemesis.recorder.history if op.value.get("kind") == "kill"]
    starts = [op.value["proven"] for op in kills if op.f == "start" and "proven" in op.value]
    assert starts == [False, False]


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_restart_in_turn_without_full_views_between_is_a_doubt_unless_others_are_out(
    is_cut: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REJOIN_S", 0.01)
    # each node reaches four, as it says, and one of three can't
    stage = await Stage.built(nursery, [RollingRestart()], nodes=("n1", "n2", "n3"))
    if is_cut:
        await stage.nemesis.field.cut(99, [("n1", "n2")])
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    views = [proven for f, proven in stage.told() if f == "views"]
    assert views == [False, False]
    assert stage.told()[-1] == ("stop", is_cut)


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_node_that_never_may_leave_is_a_doubt_unless_others_are_out(
    is_cut: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LEAVE_S", 0.01)
    stage = await Stage.built(nursery, [LeaveJoin()])
    if is_cut:
        await stage.nemesis.field.cut(99, [("n1", "n2")])
    active = await stage.nemesis.begin(LeaveJoin())
    assert active is not None
    await stage.nemesis._hold(active, 0.01)
    assert bool(stage.nemesis.troubles) is not is_cut


async def test_leaving_is_told_before_it_is_asked_for_and_proven_by_the_answer(
    nursery: trio.Nursery,
) -> None:
    stage = await Stage.built(nursery, [LeaveJoin()])
    await stage.nemesis.begin(LeaveJoin())
    # what answers +OK to the question doesn't leave
    assert stage.told() == [("start", None), ("leave", None), ("leave", False), ("start", False)]


async def test_two_cuts_add_up_and_each_takes_back_its_own(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [])
    field = stage.nemesis.field
    await field.cut(1, [("n1", "n2"), ("n1", "n3")])
    await field.cut(2, [("n1", "n2")])
    assert stage.hosts.silent == {("n1", "n2"), ("n1", "n3")}
    await field.uncut(1)
    assert stage.hosts.silent == {("n1", "n2")}
    assert await field.prove_carrying([("n1", "n2"), ("n1", "n3")]) == Proof(1, 1, "links probed")


async def test_mend_leaves_nothing_broken(nursery: trio.Nursery) -> None:
    kinds: list[Kind] = [partition("partition-one"), Kill(), Pause()]
    stage = await Stage.built(nursery, kinds)
    for kind in kinds:
        assert await stage.nemesis.begin(kind) is not None
    stage.hosts.dead.add("n5")
    assert stage.hosts.silent
    assert stage.hosts.stopped
    await stage.nemesis.mend()
    assert (stage.hosts.silent, stage.hosts.dead, stage.hosts.stopped) == (
        frozenset(),
        set(),
        set(),
    )
    assert not stage.nemesis.active


async def test_a_node_that_does_not_start_is_the_servers_fault(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [Kill()], lies=frozenset({"start"}))
    await stage.nemesis.run([Step(0.0, (0,), 0.01)], 60.0)
    await stage.nemesis.mend()
    (node,) = stage.hosts.dead
    assert stage.told()[-1] == ("stop", False)
    assert stage.nemesis.field.broken == {node: f"{node} ended: torn log"}
    stage.hosts.lies = frozenset()
    await stage.nemesis.mend()
    assert not stage.nemesis.field.broken
    assert not stage.nemesis.field.down


async def test_kills_spare_a_majority_and_count_as_wipes_without_a_log(
    nursery: trio.Nursery,
) -> None:
    stage = await Stage.built(nursery, [])
    field = stage.nemesis.field
    fault = Kill().draw(field)
    assert fault is not None
    assert fault.wipes == fault.nodes
    field.is_logged = True
    fault = Kill().draw(field)
    assert fault is not None
    assert fault.wipes == ()
    field.down.update(dict.fromkeys(("n1", "n2", "n3")))
    assert Kill().draw(field) is None


async def test_no_step_begins_after_the_end(nursery: trio.Nursery) -> None:
    stage = await Stage.built(nursery, [partition("bridge")])
    await stage.nemesis.run([Step(0.05, (0,), 0.01)], 0.0)
    assert stage.told() == []


def test_a_fault_has_what_the_checkers_read() -> None:
    fault = Fault("kill", nodes=("n1",), wipes=("n1",), params={"a": 1})
    assert fault.as_value(3) == {
        "id": 3,
        "kind": "kill",
        "links": [],
        "nodes": ["n1"],
        "params": {"a": 1},
        "wipes": ["n1"],
    }
    assert isinstance(partition("one-way"), Partition)
    assert "one-way" in partition("one-way").needs


class Ending:
    """Notes in what order its faults end; its node may be gone."""

    name = "ending"
    needs: frozenset[str] = frozenset()

    def __init__(self, ended: list[int], *, leaves: bool) -> None:
        self.ended, self.leaves = ended, leaves

    def draw(self, field: Field) -> Fault | None:
        return Fault(self.name, nodes=("n3",) if self.leaves else ("n1",))

    async def begin(self, field: Field, id_: int, fault: Fault) -> Proof:
        if self.leaves:
            field.gone["n3"] = None
        return Proof(1, 1, "")

    async def hold(self, field: Field, id_: int, fault: Fault, seconds: float) -> None:
        pass

    async def end(self, field: Field, id_: int, fault: Fault) -> Proof:
        self.ended.append(id_)
        if self.leaves:
            field.gone.pop("n3")
        return Proof(1, 1, "")


async def test_the_last_fault_ends_first_but_a_join_behind_all() -> None:
    ended: list[int] = []
    kinds = [Ending(ended, leaves=leaves) for leaves in (False, True, False)]
    field = Field(cast(Hosts, PaperHosts()), random.Random(1))
    nemesis = Nemesis(field, Recorder(), kinds)
    for kind in kinds:
        await nemesis.begin(kind)
    await nemesis.mend()
    assert ended == [3, 1, 2]
