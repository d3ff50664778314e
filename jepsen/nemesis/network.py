"""Network: faults of links: cut by a grudge, flapping, slow, lossy, reset."""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: A002, ARG002

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from jepsen.hosts.base import CUT, DELAY, LOSS, ONE_WAY, RESET, all_links
from jepsen.nemesis.field import Fault, Field, Proof, until
from jepsen.nemesis.grudges import GRUDGES, Grudge

FLAP_S: Final = (0.05, 0.9)
RESET_S: Final = (0.1, 1.0)
TIMES_S: Final = 6.0


@attrs.frozen
class Partition:
    """Links fall silent by a grudge."""

    name: str
    grudge: Grudge
    needs: frozenset[str] = frozenset({CUT})

    def draw(self, field: Field) -> Fault | None:
        """By the grudge, among all nodes, up or down."""
        return Fault(self.name, self.grudge(field.nodes, field.dice))

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Cut."""
        await field.cut(id, fault.links)
        return await field.prove_silent(fault.links)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Heal."""
        await field.uncut(id)
        return await field.prove_carrying(fault.links)


@attrs.frozen
class Flapping:
    """A grudge that comes and goes every 50-900 ms, a new one each time or the same."""

    name: str = "flapping"
    needs: frozenset[str] = frozenset({CUT})

    def draw(self, field: Field) -> Fault | None:
        """One grudge for the whole time."""
        name = field.dice.choice(
            ("partition-random-halves", "partition-one", "one-way", "three-way")
        )
        grudge = GRUDGES[name] if len(field.nodes) >= 3 else GRUDGES["partition-one"]
        return Fault(self.name, grudge(field.nodes, field.dice), params={"grudge": name})

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """The first cut, which is measured."""
        await field.cut(id, fault.links)
        return await field.prove_silent(fault.links)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Heal and cut by turns."""
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(field.dice.uniform(*FLAP_S))
                await field.uncut(id)
                await trio.sleep(field.dice.uniform(*FLAP_S))
                await field.cut(id, fault.links)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Heal for good."""
        await field.uncut(id)
        return await field.prove_carrying(fault.links)


@attrs.frozen
class Delay:
    """All links are slow: 20-250 ms with jitter. Proven by the time that bytes take on each that isn't cut."""

    name: str = "delay"
    needs: frozenset[str] = frozenset({DELAY})

    def draw(self, field: Field) -> Fault | None:
        """How slow."""
        delay_ms = field.dice.choice((20, 50, 100, 200))
        params = {"delay_ms": delay_ms, "jitter_ms": delay_ms // 4}
        return Fault(self.name, nodes=field.nodes, params=params)

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Slow them down."""
        await field.hosts.shape(
            all_links(field.nodes),
            delay_ms=fault.params["delay_ms"],
            jitter_ms=fault.params["jitter_ms"],
        )
        delay_ms = fault.params["delay_ms"]
        return await prove_times(field, lambda ms: ms >= delay_ms)

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Fast again."""
        await field.hosts.shape(())
        delay_ms = fault.params["delay_ms"]
        return await prove_times(field, lambda ms: ms < delay_ms)


@attrs.frozen
class Loss:
    """10-50 % of packets are lost on all links; TCP repeats them. Proven by those that the filter counts."""

    name: str = "loss"
    needs: frozenset[str] = frozenset({LOSS})

    def draw(self, field: Field) -> Fault | None:
        """How much."""
        return Fault(
            self.name, nodes=field.nodes, params={"loss": field.dice.choice((0.1, 0.2, 0.3, 0.5))}
        )

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Lose them, and probe all links until some were lost."""
        await field.hosts.shape(all_links(field.nodes), loss=fault.params["loss"])
        lost = 0
        for _ in range(5):
            await field.hosts.probe()
            lost = await field.hosts.lost()
            if lost:
                break
        return Proof(1, int(lost > 0), f"{lost} packets lost")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """No more loss: all links carry, and the filter counts nothing lost."""
        await field.hosts.shape(())
        proof = await field.prove_carrying(all_links(field.nodes))
        lost = await field.hosts.lost()
        return proof if not lost else Proof(1, 0, f"{lost} packets lost")


@attrs.frozen
class Reset:
    """Bus connections of some nodes are aborted again and again. Proven by a view that lost a peer for a moment."""

    name: str = "reset"
    needs: frozenset[str] = frozenset({RESET})

    def draw(self, field: Field) -> Fault | None:
        """Whose connections."""
        fit = field.fit_nodes()
        if len(fit) < 2:
            return None
        hit = field.dice.sample(fit, field.dice.randint(1, len(fit) - 1))
        return Fault(self.name, nodes=tuple(hit))

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """The first reset, and what the nodes noticed of it."""
        for _ in range(5):
            before = await self._links_seen(field, fault)
            await field.hosts.reset(self._links(field, fault))
            if await self._links_seen(field, fault) < before:
                return Proof(1, 1, "a node's view lost a peer")
        return Proof(1, 0, "no view lost a peer")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """More of it."""
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(field.dice.uniform(*RESET_S))
                await field.hosts.reset(self._links(field, fault))

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Nothing is left broken."""
        return await field.prove_carrying(self._links(field, fault))

    def _links(self, field: Field, fault: Fault) -> list[tuple[str, str]]:
        hit = set(fault.nodes)
        return sorted(link for link in all_links(field.nodes) if not hit.isdisjoint(link))

    async def _links_seen(self, field: Field, fault: Fault) -> int:
        infos = [await field.cluster_info(node) for node in fault.nodes]
        return sum(int(info.get("cluster_reachable_nodes", 0)) for info in infos)


async def prove_times(field: Field, is_right: Callable[[float], bool]) -> Proof:
    """Each link that isn't cut is timed (ms) until it was right once, or time is up."""
    asked = all_links(field.nodes) - set(field.cut_links())
    wrong = set(asked)

    async def are_right() -> bool:
        times_ms = await field.hosts.times_ms()
        wrong.difference_update(link for link, ms in times_ms.items() if is_right(ms))
        return not wrong

    await until(are_right, TIMES_S)
    return Proof(len(asked), len(asked) - len(wrong), "links timed")


def partition(name: str) -> Partition:
    """The partition of this grudge."""
    needs = {CUT, ONE_WAY} if name in {"one-way", "asym-ring"} else {CUT}
    return Partition(name, GRUDGES[name], frozenset(needs))
