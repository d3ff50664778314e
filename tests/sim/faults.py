"""Faults: carries out the plan's timed faults, counts them, and takes all of them back at the end.

Kinds: split (a group against the rest), oneway, link, flap, reset, crash (and restart after a while), torn (a crash
between two effects of one turn), leave (the node says that it leaves and stops when that is safe, or earlier), clock (a
wall-clock jump: felt at the next start only, since time is monotonic within a process), slow, forget (a node crashes
for good and is forgotten), join (a new node starts and meets one), gone (a client disconnects while it waits), pause (a
queue is paused for the cluster, then set free), purge (all jobs of a queue are cancelled), whisper (peers say strange
things, see whispers).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from disque.core import messages as msg
from disque.core.jobid import JobId
from tests.sim.plan import CUTS, Fault
from tests.sim.whispers import whisper

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.world import World


class Nemesis:
    """What is broken now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self.forgotten: list[int] = []  # nodes that stay down for good
        self._leaving: list[int] = []
        self._paused: list[bytes] = []
        self._stamp = 1
        self._whispers_until = 0
        self._active = 0
        self._calm_from: int | None = 0

    @property
    def calm_since(self) -> int | None:
        """Since when nothing at all is wrong and all links have had time to come back; None if something is."""
        world = self.world
        if self._calm_from is None or world.profile.chaos.is_any:  # a lost word may tell much later
            return None
        since = self._calm_from + 3 * world.profile.node_timeout_ms + 3000
        return since if since < world.now else None

    def _enter(self) -> None:
        self._active += 1
        self._calm_from = None

    def _leave_one(self) -> None:
        self._active -= 1
        if not self._active:
            self._calm_from = self.world.now

    def begin(self) -> None:
        """Book the whole plan, from now on."""
        start = self.world.now
        for fault in self.world.profile.faults:
            self.world.at(start + fault.at, lambda fault=fault: self._strike(fault))

    def finish(self) -> None:
        """Heal: no cut, no chaos, nobody slow, leaving or down, but those that were forgotten."""
        self.is_over = True
        self.world.story.add(self.world.now, "heal", "all")
        self.world.network.heal_all()
        for queue in dict.fromkeys(self._paused):
            self._tell_all(self._pause_message(queue, 0))
        for node in self.world.nodes:
            node.slow_ms = 0
            node.effects_left = None
            node.snare = ""
            if node.index in self._leaving and node.is_alive:
                self._set_leaving(node, False)
            if not node.is_alive and node.life and node.index not in self.forgotten:
                node.start()
                self._set_leaving(node, False)
        for node in self.world.nodes[self.world.profile.nodes :]:
            if node.is_alive:  # whom it was to meet may be gone for good
                self._meet_somebody(node)

    def _strike(self, fault: Fault) -> None:
        if self.is_over:
            return
        if fault.kind in CUTS:
            self._cut(fault)
        else:
            self._HANDLERS[fault.kind](self, fault)

    def _note(self, fault: Fault, text: str) -> None:
        self.counts[fault.kind] += 1
        self._enter()
        if fault.kind not in ("leave", "forget"):  # after these a node stays away
            self.world.at(self.world.now + max(1, fault.span), self._leave_one)
        self.world.story.add(self.world.now, "fault", fault.kind, (), text)

    def _later(self, fault: Fault, action: object) -> None:
        def act() -> None:
            if not self.is_over:
                action()  # type: ignore[operator]

        self.world.at(self.world.now + max(1, fault.span), act)

    # Cuts

    def _pairs(self, fault: Fault) -> list[tuple[int, int]]:
        everyone = range(len(self.world.nodes))
        if fault.kind == "oneway":
            return [(fault.nodes[0], fault.nodes[1])]
        if fault.kind in ("link", "flap"):
            a, b = fault.nodes
            return [(a, b), (b, a)]
        rest = [node for node in everyone if node not in fault.nodes]
        return [pair for a in fault.nodes for b in rest for pair in ((a, b), (b, a))]

    def _cut(self, fault: Fault) -> None:
        pairs = self._pairs(fault)
        self._note(fault, f"{fault.nodes} {fault.mode} for {fault.span} ms")
        self.world.network.cut(pairs, fault.mode)
        if fault.kind == "flap":
            self._flap(fault, pairs, self.world.now + fault.span, is_cut=True)
        else:
            self._later(fault, lambda: self._heal(fault, pairs))

    def _heal(self, fault: Fault, pairs: list[tuple[int, int]]) -> None:
        self.world.story.add(self.world.now, "heal", fault.kind, (), f"{fault.nodes}")
        self.world.network.heal(pairs, fault.mode)

    def _flap(self, fault: Fault, pairs: list[tuple[int, int]], end: int, *, is_cut: bool) -> None:
        def toggle() -> None:
            if self.is_over:
                return
            if is_cut:
                self.world.network.heal(pairs, fault.mode)
                if self.world.now >= end:
                    self.world.story.add(self.world.now, "heal", fault.kind, (), f"{fault.nodes}")
                    return
            else:
                self.world.network.cut(pairs, fault.mode)
            self._flap(fault, pairs, end, is_cut=not is_cut)

        self.world.at(self.world.now + fault.n, toggle)

    # Others

    def _reset(self, fault: Fault) -> None:
        self._note(fault, f"connections between {fault.nodes}")
        self.world.network.reset_between(*fault.nodes)

    def _crash(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if node.is_alive:
            self._note(fault, f"{node.name} ({fault.mode}), back after {fault.span} ms")
            node.crash(is_silent=fault.mode == "power")
            self._later(fault, lambda: self._restart(node))

    def _torn(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if node.is_alive:
            when = f"about to send {fault.mode}" if fault.mode else f"after {fault.n} effects"
            self._note(fault, f"{node.name} will crash {when}, back after {fault.span} ms")
            node.effects_left = None if fault.mode else fault.n
            node.snare = fault.mode
            node.back_after_ms = max(1, fault.span)

    def torn(self, node: Node) -> None:
        """A node has crashed in the middle of a turn: it comes back in its time."""
        self._enter()

        def back() -> None:
            if not self.is_over:
                self._restart(node)
            self._leave_one()

        self.world.at(self.world.now + node.back_after_ms, back)

    def _restart(self, node: Node) -> None:
        if not node.is_alive and node.index not in self.forgotten:
            node.start()
            self.world.story.add(
                self.world.now, "fault", "restart", (), f"{node.name} boot {node.identity.boot}"
            )

    def _leave(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if not node.is_alive or self._leaving:
            return
        self._note(
            fault,
            f"{node.name} leaves, stops when it is safe" + ("" if fault.n else " or patience ends"),
        )
        self._leaving.append(node.index)
        self._set_leaving(node, True)
        self._stop_when_safe(node, node.life, None if fault.n else self.world.now + 3 * fault.span)

    def _stop_when_safe(self, node: Node, life: int, until: int | None) -> None:
        """Look now and then whether the node says that it may go."""

        def look() -> None:
            if self.is_over or not node.is_alive or node.life != life:
                return
            is_safe = node.broker.engine.is_safe_to_stop()
            if is_safe or (until is not None and self.world.now >= until):
                self.counts["left" if is_safe else "stopped"] += 1
                self.world.story.add(
                    self.world.now, "fault", "stop", (), f"{node.name} safe={is_safe}"
                )
                node.crash(is_silent=False, was_safe=is_safe)
            else:
                self._stop_when_safe(node, life, until)

        self.world.at(self.world.now + 200, look)

    def _set_leaving(self, node: Node, is_leaving: bool) -> None:
        node.turn_with(lambda: node.broker.set_leaving(is_leaving))

    def _clock(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        self._note(fault, f"wall clock of {node.name} jumps by {fault.n} ms")
        node.wall_off += fault.n

    def _slow(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        self._note(fault, f"{node.name} takes {fault.n} ms a turn for {fault.span} ms")
        node.slow_ms = fault.n

        def recover() -> None:
            node.slow_ms = 0

        self._later(fault, recover)

    def _forget(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if not node.is_alive:
            return
        self._note(fault, f"{node.name} crashes for good, is forgotten after {fault.span} ms")
        self.forgotten.append(node.index)
        node.crash(is_silent=fault.mode == "power")
        self._later(fault, lambda: self.tell_forget(node))

    def _join(self, fault: Fault) -> None:
        """A machine that was never there before starts and is told of one member."""
        spare = next((node for node in self.world.nodes if not node.life), None)
        if spare is not None and self._a_member() is not None:
            spare.start()
            self._note(fault, f"{spare.name} starts")
            self._meet_somebody(spare)

    def _a_member(self) -> Node | None:
        members = self.world.nodes[: self.world.profile.nodes]
        return next((node for node in members if node.is_alive), None)

    def _meet_somebody(self, newcomer: Node) -> None:
        known = self._a_member()
        if known is not None:
            newcomer.turn_with(
                lambda: newcomer.broker.meet(known.host, known.bus_port, is_sticky=True)
            )

    def tell_forget(self, gone: Node) -> None:
        """FORGET at every living node that knows the dead one."""
        for node in self.world.nodes:
            if node.is_alive:
                node.turn_with(lambda node=node: self._forget_at(node, gone))

    def _forget_at(self, node: Node, gone: Node) -> None:
        if gone.id in node.broker.membership.view().members:
            node.broker.forget(gone.id, everywhere=True)

    def _gone(self, fault: Fault, tries: int = 50) -> None:
        waiting = [client for client in self.world.clients if client.operation is not None]
        if waiting:
            client = waiting[fault.at % len(waiting)]
            self._note(fault, client.name)
            client.give_up(client.operation, "gone")
        elif tries and not self.is_over:
            self.world.at(self.world.now + 20, lambda: self._gone(fault, tries - 1))

    # Orders that other issues give commands to; here a peer's messages bring them

    def _tell_all(self, message: msg.Message) -> None:
        """Every living node hears it from another one."""
        nodes = [node for node in self.world.nodes if node.is_alive]
        for target, speaker in zip(nodes, [*nodes[1:], *nodes[:1]], strict=True):
            if speaker is not target:
                target.turn_with(
                    lambda target=target, speaker=speaker: target.broker.engine.receive(
                        speaker.id, speaker.identity.boot, message
                    )
                )

    def _pause_message(self, queue: bytes, flags: int) -> msg.Pause:
        self._stamp += 1
        return msg.Pause(queue, self._stamp, self.world.nodes[0].id, flags)

    def _pause(self, fault: Fault) -> None:
        queue = b"q%d" % (fault.at % self.world.profile.queues)
        self._note(fault, f"{queue!r} flags {fault.n} for {fault.span} ms")
        self._paused.append(queue)
        self._tell_all(self._pause_message(queue, fault.n))
        self._later(fault, lambda: self._tell_all(self._pause_message(queue, 0)))

    def _purge(self, fault: Fault) -> None:
        queue = b"q%d" % (fault.at % self.world.profile.queues)
        speaker = self.world.nodes[fault.nodes[0]]
        if speaker.is_alive:
            self._note(fault, f"{queue!r}")
            self._stamp += 1
            self._tell_all(msg.Purge(speaker.id, speaker.identity.boot, self._stamp, queue))

    def _whisper(self, fault: Fault) -> None:
        self._note(fault, f"{fault.n} times in {fault.span} ms")
        dice = self.world.streams[f"whisper {fault.at}"]
        self._whispers_until = max(self._whispers_until, self.world.now + fault.span)
        for _ in range(fault.n):
            at = self.world.now + dice.randrange(max(1, fault.span))
            self.world.at(at, lambda: self._whisper_once(dice))

    def tempt(self, node: Node, job: bytes) -> None:
        """A copy has come into a state that doesn't last: while there are whispers, one comes at once."""
        if self.world.now < self._whispers_until and not self.is_over:
            dice = self.world.streams["tempt"]
            self.world.at(self.world.now, lambda: self._whisper_about(node, JobId(job), dice))

    def _whisper_about(self, node: Node, job: JobId, dice: random.Random) -> None:
        if node.is_alive:
            whisper(self.world, node, dice, job)

    def _whisper_once(self, dice: random.Random) -> None:
        target = dice.choice(self.world.nodes)
        if target.is_alive and not self.is_over:
            whisper(self.world, target, dice)

    _HANDLERS = {
        "pause": _pause,
        "purge": _purge,
        "whisper": _whisper,
        "reset": _reset,
        "crash": _crash,
        "torn": _torn,
        "leave": _leave,
        "clock": _clock,
        "slow": _slow,
        "forget": _forget,
        "join": _join,
        "gone": _gone,
    }
