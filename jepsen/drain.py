"""Drain: after the last heal, get and ack everything, and stop only when silence proves that nothing is left.

It must outlast RETRY: a job that was handed out and never acked comes back only after it (Disque issue 92). So the
quiet window is the longest RETRY, the time of an exchange between nodes, and a second.
"""

from __future__ import annotations

import random
from typing import Any, Final

import attrs
import trio

from jepsen.hosts.base import Hosts
from jepsen.observer import Observer, views_agree
from jepsen.recorder import Recorder
from jepsen.workers import Session
from jepsen.workloads.base import Intent, View, get, order

EXCHANGE_S: Final = 2.0
VIEWS_S: Final = 20.0
SETTLE_S: Final = 15.0
GET_MS: Final = 500
COUNT_MAX: Final = 16


@attrs.frozen
class Drained:
    """How it ended: `is_complete` by silence, or else by the time limit; seconds of each part."""

    is_complete: bool
    views_s: float | None  # None: they never agreed
    took_s: float
    settled_s: float | None  # None: something stayed registered, or a node was silent


@attrs.define(eq=False)
class Drain:
    """Empties a whole cluster. `nodes` are those that are asked: all, or the core. `process` numbers the consumers."""

    hosts: Hosts
    recorder: Recorder
    observer: Observer
    nodes: tuple[str, ...]
    queues: tuple[str, ...]
    run: str
    process: int
    retry_max_s: int
    limit_s: float = 300.0
    leaves_delivered: bool = False  # RETRY 0: what was handed out and not acked stays until its TTL
    # the others are dead for ever, and their share of the acks waits for them
    is_core: bool = False
    _began_s: float = 0.0
    _last_delivery_s: float = 0.0
    _is_over: bool = False

    async def run_all(self) -> Drained:
        """Wait for one view, drain, wait until nothing is registered."""
        views_s = await self._wait_views()
        began = self._began_s = self._last_delivery_s = self.recorder.now_s()
        async with trio.open_nursery() as nursery:
            for place, node in enumerate(self.nodes):
                nursery.start_soon(self._consume, node, self.process + place)
            is_complete = await self._wait_silence(began)
            self._is_over = True
        took_s = self.recorder.now_s() - began
        settled_s = await self._wait_settled()
        return Drained(is_complete, views_s, took_s, settled_s)

    async def _wait_views(self) -> float | None:
        began = self.recorder.now_s()
        while self.recorder.now_s() < began + VIEWS_S:
            if views_agree(
                await self.observer.round("healed", self.nodes), self.nodes, is_core=self.is_core
            ):
                return self.recorder.now_s() - began
            await trio.sleep(0.25)
        return None

    async def _consume(self, node: str, process: int) -> None:
        dice = random.Random(0)
        session = Session(self.hosts, self.recorder, self.run, process, len(self.nodes))
        try:
            while not self._is_over:
                wanted = get(dice, View(node, 0), self.queues, timeout_ms=GET_MS)
                intent = Intent("get", node, {**wanted.value, "count": COUNT_MAX})
                done = await session.perform(intent)
                if done.jobs:
                    self._last_delivery_s = self.recorder.now_s()
                    await session.perform(order("ack", node, done.jobs))
                elif done.error:
                    await trio.sleep(0.2)
        finally:
            session.close()

    def hurry(self, limit_s: float) -> None:
        """End by then at the latest, counted from now."""
        passed_s = self.recorder.now_s() - self._began_s if self._began_s else 0.0
        self.limit_s = min(self.limit_s, passed_s + limit_s)

    async def _wait_silence(self, began_s: float) -> bool:
        quiet_s = self.retry_max_s + EXCHANGE_S + 1.0
        while self.recorder.now_s() < began_s + self.limit_s:
            await trio.sleep(1.0)
            snapshots = await self.observer.round("drain", self.nodes)
            is_empty = len(snapshots) == len(self.nodes) and not self.unfinished(snapshots)
            if is_empty and self.recorder.now_s() - self._last_delivery_s >= quiet_s:
                return True
        return False

    async def _wait_settled(self) -> float | None:
        began = self.recorder.now_s()
        while True:
            snapshots = await self.observer.round("end", self.nodes)
            registered = sum(each["registered"] for each in snapshots.values())
            if len(snapshots) == len(self.nodes) and not registered:
                return self.recorder.now_s() - began
            if self.recorder.now_s() > began + SETTLE_S or self.leaves_delivered or self.is_core:
                return None
            await trio.sleep(0.5)

    def unfinished(self, snapshots: dict[str, dict[str, Any]]) -> int:
        """Copies that somebody may still have to get.

        A RETRY 0 job that was handed out, or whose fate a crash left in doubt, is never offered again: only what is
        queued or will be counts.
        """
        looks = snapshots.values()
        if self.leaves_delivered:
            return sum(each["queued"] + each["delayed"] for each in looks)
        return sum(max(0, each["registered"] - each["acked"]) for each in looks)
