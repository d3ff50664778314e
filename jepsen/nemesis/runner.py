"""Runner: carries out a schedule of faults on a field, and writes each with its proof into the history.

Whatever happens, `mend` leaves a whole cluster behind.
"""

# ruff: noqa: A002

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from jepsen.history import INFO, INVOKE, NEMESIS
from jepsen.hosts.base import HostsError
from jepsen.nemesis.field import Fault, Field, Kind, Proof
from jepsen.nemesis.membership import bring_back
from jepsen.nemesis.schedule import Step
from jepsen.recorder import Recorder
from jepsen.resp import ReplyError, Trouble


@attrs.frozen
class Active:
    """A fault that is on."""

    id: int
    kind: Kind
    fault: Fault


@attrs.define(eq=False)
class Nemesis:
    """The faults of one run. `troubles` are what went wrong in the harness: their faults aren't proven."""

    field: Field
    recorder: Recorder
    kinds: Sequence[Kind]
    told: Callable[[str, Fault, Proof], None] = lambda _word, _fault, _proof: None
    active: dict[int, Active] = attrs.Factory(dict)
    troubles: list[str] = attrs.Factory(list)
    # What went wrong while a fault stood, by its id: its end isn't proven then.
    _spoiled: dict[int, str] = attrs.Factory(dict)
    _next_id: int = 0

    def __attrs_post_init__(self) -> None:
        self.field.tell = self._tell
        self.field.within = self._within

    async def run(self, steps: Sequence[Step], end_s: float) -> None:
        """Go through the steps, each at its time or as soon as the one before is over; begin none after `end_s`."""
        began_s = self.recorder.now_s()
        for step in steps:
            await trio.sleep(max(0.0, began_s + step.at_s - self.recorder.now_s()))
            if self.recorder.now_s() >= end_s:
                return
            begun = []
            for place in step.kinds:
                active = await self.begin(self.kinds[place])
                if active is not None:
                    begun.append(active)
            async with trio.open_nursery() as nursery:
                for active in begun:
                    nursery.start_soon(self._hold, active, step.hold_s)
            await self._end_all(begun)

    async def begin(self, kind: Kind) -> Active | None:
        """Draw a fault and begin it; None if there is nothing to break just now."""
        fault = kind.draw(self.field)
        return None if fault is None else await self._begin(kind, fault)

    async def _begin(self, kind: Kind, fault: Fault) -> Active:
        self._next_id += 1
        active = Active(self._next_id, kind, fault)
        self.active[active.id] = active
        value = fault.as_value(active.id)
        self._write(INVOKE, "start", value)
        proof = await self._prove(kind.begin, active)
        self._write(INFO, "start", {**value, **proof.as_value()})
        self.told("start", fault, proof)
        return active

    async def end(self, active: Active) -> None:
        """End a fault."""
        value = {"id": active.id, "kind": active.fault.kind}
        self._write(INVOKE, "stop", value)
        proof = await self._prove(active.kind.end, active)
        if proof.is_proven and (spoiled := self._spoiled.get(active.id)):
            proof = Proof(1, 0, spoiled)
        self._write(INFO, "stop", {**value, **proof.as_value()})
        self.active.pop(active.id, None)
        self.told("stop", active.fault, proof)

    async def _within(self, kind: Kind, fault: Fault, seconds: float) -> None:
        """A whole fault that is a part of another one, which holds meanwhile."""
        active = await self._begin(kind, fault)
        await self._hold(active, seconds)
        await self.end(active)

    async def _end_all(self, faults: Sequence[Active]) -> None:
        """The last first, but joins behind all: they are proven by full views, and none is full while a cut stands."""
        gone = set(self.field.gone)
        for active in sorted(faults, key=lambda each: (bool(gone & {*each.fault.nodes}), -each.id)):
            await self.end(active)

    async def mend(self) -> None:
        """End what is on and take back all that a fault may have left: cuts, slow links, stopped and absent nodes."""
        await self._end_all(list(self.active.values()))
        field = self.field
        field.cuts.clear()
        await field.hosts.cut(())
        if {"delay", "loss"} & field.hosts.capabilities:
            await field.hosts.shape(())
        for node in list(field.paused):
            await field.hosts.resume(node)
            field.paused.pop(node, None)
        for node in list(field.gone):
            await bring_back(field, node)
        for node in field.nodes:
            if not field.hosts.is_alive(node):
                field.say(f"{node} is down; started again")
                await field.start(node)
            else:
                field.down.pop(node, None)

    async def _hold(self, active: Active, seconds: float) -> None:
        try:
            await active.kind.hold(self.field, active.id, active.fault, seconds)
        except (HostsError, ReplyError, Trouble, OSError) as error:
            self._spoiled[active.id] = self._trouble(active, error)

    async def _prove(self, act: Callable[..., Any], active: Active) -> Proof:
        try:
            proof: Proof = await act(self.field, active.id, active.fault)
        except (HostsError, ReplyError, Trouble, OSError) as error:
            self._trouble(active, error)
            return Proof(1, 0, f"{type(error).__name__}: {error}")
        return proof

    def _trouble(self, active: Active, error: Exception) -> str:
        text = f"{active.fault.kind}: {type(error).__name__}: {error}"
        self.troubles.append(text)
        self.field.say(text)
        return text

    def _tell(self, f: str, target: str, is_proven: bool | None) -> None:
        proven = {} if is_proven is None else {"proven": is_proven}
        self._write(INFO, f, {"target": target, **proven})

    def _write(self, type: str, f: str, value: dict[str, Any]) -> None:
        # As in Jepsen, a fault's beginning and completion are both `info`; the pair is told by its proof.
        self.recorder.add(NEMESIS, INFO if type == INVOKE else type, f, value)
