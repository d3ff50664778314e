"""Process: faults of nodes: killed, paused, restarted, a wrong clock, a bad disk.

Without a log a kill takes a node's jobs with it; `wipes` tells the checkers, and kinds that kill spare so many nodes
that most jobs keep a holder.
"""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: A002, ARG002

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from jepsen.hosts.base import CLOCK, DISK_FULL, FSYNC, KILL, PAUSE
from jepsen.nemesis.field import Fault, Field, Proof, until
from jepsen.resp import ReplyError, Trouble

REJOIN_S: Final = 10.0
JUMP_S_MAX: Final = 288.0
SAVE_S: Final = 2.0
# An answer may be held while the log can't be written; the next one isn't.
DISK_S: Final = 8.0
# What a node says of a bad disk.
ERRORS: Final = {"disk-full": "No space left", "fail-fsync": "Input/output error"}


async def kill(field: Field, nodes: Sequence[str]) -> Proof:
    """SIGKILL these nodes; proven by processes that are gone and refuse clients."""
    for node in nodes:
        field.down[node] = None
        field.paused.pop(node, None)
        await field.hosts.kill(node)
    dead = [not field.hosts.is_alive(node) and not await field.answers(node) for node in nodes]
    return Proof(len(nodes), sum(dead), "no process, no PING answered")


async def start(field: Field, nodes: Sequence[str]) -> Proof:
    """Start these nodes; proven by answers."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(field.start, node)
    up = [node for node in nodes if node not in field.broken]
    answered = [await until(lambda node=node: field.answers(node)) for node in up]  # type: ignore[misc]
    return Proof(len(nodes), sum(answered), "PING answered")


@attrs.frozen
class Kill:
    """kill -9 of `count` nodes, started again at the end."""

    name: str = "kill"
    count: int = 1
    needs: frozenset[str] = frozenset({KILL})

    def draw(self, field: Field) -> Fault | None:
        """Nodes that are up, but never the last ones."""
        fit = field.fit_nodes()
        if len(fit) <= max(self.count, len(field.nodes) // 2):
            return None
        hit = tuple(field.dice.sample(fit, self.count))
        return Fault(self.name, nodes=hit, wipes=() if field.is_logged else hit)

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Kill."""
        return await kill(field, fault.nodes)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Restart."""
        return await start(field, fault.nodes)


@attrs.frozen
class Pause:
    """SIGSTOP of one or two nodes: their sockets stay open, nothing answers."""

    name: str = "pause"
    needs: frozenset[str] = frozenset({PAUSE})

    def draw(self, field: Field) -> Fault | None:
        """One or two nodes that are up."""
        fit = field.fit_nodes()
        if len(fit) < 2:
            return None
        return Fault(
            self.name,
            nodes=tuple(field.dice.sample(fit, min(field.dice.randint(1, 2), len(fit) - 1))),
        )

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Stop; proven by PINGs that get no answer."""
        for node in fault.nodes:
            field.paused[node] = None
            await field.hosts.pause(node)
        silent = [
            field.hosts.is_alive(node) and not await field.answers(node) for node in fault.nodes
        ]
        return Proof(len(fault.nodes), sum(silent), "alive, no PING answered")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Go on."""
        for node in fault.nodes:
            await field.hosts.resume(node)
            field.paused.pop(node, None)
        answered = [await until(lambda node=node: field.answers(node)) for node in fault.nodes]  # type: ignore[misc]
        return Proof(len(fault.nodes), sum(answered), "PING answered")


@attrs.frozen
class RollingRestart:
    """One node after the other is killed, started, and given time to be in every view again, which is told of each.

    Each kill is a fault of its own within this one: proven, and down and wiped is only who was killed, while it was.
    Without a log only two of them, or no copy would be left of anything.
    """

    name: str = "rolling-restart"
    needs: frozenset[str] = frozenset({KILL})

    def draw(self, field: Field) -> Fault | None:
        """In which order."""
        if len(field.fit_nodes()) < len(field.nodes):
            return None
        count = len(field.nodes) if field.is_logged else 2
        order = field.dice.sample(list(field.nodes), min(count, len(field.nodes)))
        return Fault(self.name, params={"order": order})

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """The first one is nobody else's to break, from now on."""
        field.down[fault.params["order"][0]] = None
        return Proof(0, 0, "each kill is a fault of its own")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """One by one."""
        order = fault.params["order"]
        each_s = min(seconds / len(order), field.timeout_s * 1.5)
        late: list[str] = []
        for node in order:
            hit = (node,)
            one = Fault("kill", nodes=hit, wipes=() if field.is_logged else hit)
            await field.within(Kill(), one, each_s)
            is_full = await field.wait_full_view(field.fit_nodes(), REJOIN_S)
            field.tell("views", node, is_full)
            if not is_full:
                late.append(node)
        if late:
            field.complain(f"not in every view {REJOIN_S:.0f} s after their start: {late}")

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """All of them answer."""
        return await start(field, fault.params["order"])


@attrs.frozen
class MassRestart:
    """All nodes are killed at once and started again. Without a log nothing survives, and nothing may come back."""

    name: str = "mass-restart"
    needs: frozenset[str] = frozenset({KILL})

    def draw(self, field: Field) -> Fault | None:
        """All."""
        fit = tuple(field.fit_nodes())
        return Fault(self.name, nodes=fit, wipes=() if field.is_logged else fit) if fit else None

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Kill all."""
        return await kill(field, fault.nodes)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """A short darkness."""
        await trio.sleep(min(seconds, 2.0))

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Start all."""
        return await start(field, fault.nodes)


@attrs.frozen
class Clock:
    """The wall clocks of some nodes jump by up to 288 s, either way; proven by their TIME."""

    name: str = "clock"
    needs: frozenset[str] = frozenset({CLOCK})

    def draw(self, field: Field) -> Fault | None:
        """Who and how far, exponentially drawn."""
        fit = field.fit_nodes()
        if not fit:
            return None
        hit = field.dice.sample(fit, field.dice.randint(1, len(fit)))
        jumps = {
            node: round(field.dice.choice((-1, 1)) * JUMP_S_MAX ** field.dice.uniform(0.3, 1.0), 1)
            for node in hit
        }
        return Fault(self.name, nodes=tuple(hit), params={"seconds": jumps})

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Jump."""
        jumps = fault.params["seconds"]
        for node in fault.nodes:
            await field.hosts.jump_clock(node, jumps[node])
        return await self._prove(field, jumps)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Jump back."""
        for node in fault.nodes:
            await field.hosts.jump_clock(node, 0)
        return await self._prove(field, dict.fromkeys(fault.nodes, 0.0))

    async def _prove(self, field: Field, wanted: dict[str, float]) -> Proof:
        async def is_off(node: str) -> bool:
            seconds, micros = await field.call(node, "TIME")
            off = int(seconds) + int(micros) / 1e6 - time.time()
            return abs(off - wanted[node]) < 1.5

        right = [await until(lambda node=node: is_off(node)) for node in wanted]  # type: ignore[misc]
        return Proof(len(wanted), sum(right), "TIME asked")


@attrs.frozen
class Disk:
    """A disk that is full, or whose fsync is slow or fails. `name` says which."""

    name: str
    needs: frozenset[str]

    def draw(self, field: Field) -> Fault | None:
        """One node with a log."""
        fit = field.fit_nodes()
        if not fit or not field.is_logged:
            return None
        params = {"delay_ms": 300} if self.name == "slow-fsync" else {}
        return Fault(self.name, nodes=(field.dice.choice(fit),), params=params)

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Spoil it; proven by a file that the node can't write now, or only slowly."""
        (node,) = fault.nodes
        if self.name == "disk-full":
            await field.hosts.fill_disk(node)
        elif self.name == "slow-fsync":
            await field.hosts.slow_fsync(node, fault.params["delay_ms"])
        else:
            await field.hosts.fail_fsync(node)

        async def is_spoiled() -> bool:
            taken_s, error = await save(field, node)
            if self.name == "slow-fsync":
                return not error and taken_s >= fault.params["delay_ms"] / 1_000
            return ERRORS[self.name] in error

        return Proof(1, int(await until(is_spoiled, DISK_S)), "CLUSTER SAVECONFIG asked")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Mend it; a node that stopped over it is started again. Proven by a file that it can write as before."""
        (node,) = fault.nodes
        if self.name == "disk-full":
            await field.hosts.free_disk(node)
        else:
            await field.hosts.mend_fsync(node)
        if not field.hosts.is_alive(node):
            await field.start(node)

        async def is_mended() -> bool:
            taken_s, error = await save(field, node)
            return not error and taken_s < fault.params.get("delay_ms", SAVE_S * 1_000) / 1_000

        return Proof(1, int(await until(is_mended, DISK_S)), "CLUSTER SAVECONFIG asked")


async def save(field: Field, node: str) -> tuple[float, str]:
    """Let a node write and sync its node table: how long it took, and what was wrong ("": nothing)."""
    began, error = trio.current_time(), ""
    try:
        await field.call(node, "CLUSTER", "SAVECONFIG", timeout_s=SAVE_S)
    except (ReplyError, Trouble) as raised:
        error = str(raised) or "no answer"
    return trio.current_time() - began, error


DISKS: Final = (
    Disk("disk-full", frozenset({DISK_FULL})),
    Disk("slow-fsync", frozenset({FSYNC})),
    Disk("fail-fsync", frozenset({FSYNC})),
)
