"""Workers: clients that carry out what a workload wants, paced together, and write what they saw into the history.

A worker is bound to one node, where it adds and gets; acks may go elsewhere. An outcome that is unknown retires its
process number, as Jepsen's do: the worker goes on as the number plus the concurrency.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from functools import partial
from typing import Final

import attrs
import trio

from jepsen import commands
from jepsen.history import FAIL, INFO, INVOKE, OK
from jepsen.hosts.base import Hosts
from jepsen.recorder import Recorder
from jepsen.resp import REFUSED, Client, ReplyError, Trouble
from jepsen.workloads.base import Completed, Intent, View, Workload

# A node that refuses is not asked again at once.
REFUSED_S: Final = 0.2
# How far the pace may fall behind and catch up.
BURST_S: Final = 0.5


@attrs.define(eq=False)
class Session:
    """One process of the history: connections to nodes, made when first used, and a number that retires."""

    hosts: Hosts
    recorder: Recorder
    run: str
    process: int
    concurrency: int
    _clients: dict[str, Client] = attrs.Factory(dict)

    async def perform(self, intent: Intent) -> Completed:
        """Carry out one operation and record both of its ends; whatever happens is a completion, but for Cancelled."""
        client = self._clients.get(intent.node)
        if client is None:
            opener = partial(self.hosts.open, intent.node)
            client = self._clients[intent.node] = Client(opener, self.hosts.password)
        self.recorder.add(self.process, INVOKE, intent.f, intent.value, node=intent.node)
        done = Completed(INFO, intent.value, "cancelled")
        try:
            done = await self._ask(client, intent)
        finally:
            self.recorder.add(
                self.process, done.type, intent.f, done.value, node=intent.node, error=done.error
            )
            if done.type == INFO:
                self.process += self.concurrency
        return done

    def close(self) -> None:
        """Drop all connections."""
        for client in self._clients.values():
            client.close()

    async def _ask(self, client: Client, intent: Intent) -> Completed:
        f, value = intent.f, intent.value
        try:
            reply = await client.call(
                *commands.words_of(f, value, self.run),
                timeout_s=commands.timeout_ms(f, value) / 1_000,
            )
        except ReplyError as error:
            return Completed(commands.outcome_of_error(f, str(error)), value, str(error))
        except Trouble as trouble:
            return Completed(commands.outcome_of_trouble(trouble), value, trouble.kind)
        return Completed(OK, {**value, **commands.result_of(f, reply, self.run)})


@attrs.define(eq=False)
class Crew:
    """All workers of a run. `rate_hz` is what they begin together a second, acks not counted; `is_open` ends them."""

    hosts: Hosts
    recorder: Recorder
    workload: Workload
    run: str
    concurrency: int
    rate_hz: float
    seed: int
    is_open: bool = True
    _next_slot_s: float = 0.0
    _later: list[tuple[float, int, Intent]] = attrs.Factory(list)
    _planned: int = 0

    async def work(self) -> None:
        """Run all workers until `close`; returns when the last operation is over."""
        async with trio.open_nursery() as nursery:
            for number in range(self.concurrency):
                nursery.start_soon(self._worker, number)

    def close(self) -> None:
        """Begin nothing new; what is planned for later is dropped."""
        self.is_open = False
        self._later.clear()

    async def _worker(self, number: int) -> None:
        nodes = self.hosts.nodes
        node = nodes[number % len(nodes)]
        dice = random.Random(f"{self.seed} worker {number}")
        session = Session(self.hosts, self.recorder, self.run, number, self.concurrency)
        try:
            while self.is_open:
                await self._wait_slot()
                if self.is_open:
                    view = View(node, self.recorder.now_s())
                    await self._carry_out(
                        session, dice, view, self._due() or self.workload.next(dice, view)
                    )
        finally:
            session.close()

    async def _carry_out(
        self, session: Session, dice: random.Random, view: View, first: Intent
    ) -> None:
        """An operation and all that follows from it at once."""
        at_once = deque([first])
        while at_once:
            intent = at_once.popleft()
            done = await session.perform(intent)
            view = attrs.evolve(view, now_s=self.recorder.now_s())
            for planned in self.workload.heard(dice, view, intent, done):
                if planned.after_s > 0:
                    self._planned += 1
                    entry = (view.now_s + planned.after_s, self._planned, planned.intent)
                    heapq.heappush(self._later, entry)
                else:
                    at_once.append(planned.intent)
            if done.type == FAIL and done.error == REFUSED:
                await trio.sleep(REFUSED_S)

    async def _wait_slot(self) -> None:
        now = self.recorder.now_s()
        self._next_slot_s = max(self._next_slot_s, now - BURST_S) + 1 / self.rate_hz
        await trio.sleep(max(0.0, self._next_slot_s - now))

    def _due(self) -> Intent | None:
        if self._later and self._later[0][0] <= self.recorder.now_s():
            return heapq.heappop(self._later)[2]
        return None
