"""Faults: carries out the plan's timed faults, counts them, and takes all of them back at the end.

Kinds: split (a group against the rest), oneway, link, flap, reset, crash (and restart after a while), torn (a crash
between two effects of one turn), leave (the node says that it leaves and stops when that is safe, or earlier), clock (a
wall-clock jump: felt at the next start only, since time is monotonic within a process), slow, forget (a node crashes
for good and is forgotten), join (a new node starts and meets one), gone (a client disconnects while it waits), pause (a
queue is paused for the cluster, then set free), purge (all jobs of a queue are cancelled), whisper (peers say strange
things, see whispers), exile (the others forget a living node; later it is met again and comes back under a new id),
disk (of a node with a log: it is full, or fails).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from cluster.nodeid import NodeId
from disque.core import messages as msg
from disque.core.jobid import JobId
from tests.sim.plan import CUTS, Fault
from tests.sim.whispers import whisper

# What the history calls the kinds that just go on for their span; the others tell it more exactly themselves
_OPEN = {each: each for each in ("reset", "clock", "slow", "join", "whisper")}
# There "pause" is a stopped process, and "join" what a node does that was out
_OPEN |= {"pause": "queue-pause", "join": "newcomer", "disk": "disk-full"}

if TYPE_CHECKING:
    from cluster.nodeid import NodeId
    from tests.sim.node import Node
    from tests.sim.world import World


class Nemesis:
    """What is broken now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self.forgotten: list[int] = []  # nodes that stay down for good
        self.forgotten_ids: list[NodeId] = []  # ids that no node may list any more
        self._exiled: list[int] = []  # nodes that were forgotten alive and haven't come back
        self._leaving: list[int] = []
        self._paused: list[bytes] = []
        self._stamp = 1
        self._whispers_until = 0
        self._numbers: dict[int, int] = {}  # dead nodes -> their fault in the history
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

    def _lost_by(self, node: Node) -> list[str]:
        """Who lost something in the crash that ends."""
        crashes = self.world.watch.crashes
        is_lossy = node.log is not None and bool(crashes) and crashes[-1][1] == node.index
        return [node.name] if is_lossy else []

    def _leave_one(self) -> None:
        self._active -= 1
        if not self._active:
            self._calm_from = self.world.now

    def begin(self) -> None:
        """Book the whole plan, from now on."""
        start = self.world.now
        if self.world.profile.chaos.is_any:
            self.world.history.began("loss", [])
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
            if node.log is not None:
                node.log.disk.mend()
            if node.index in self._leaving and node.is_alive:
                self.world.history.member("leave", node, wipes=False)
                self.world.history.member("join", node, wipes=False)
                self._set_leaving(node, False)
            if not node.is_alive and node.life and node.index not in self.forgotten:
                node.start()
                if node.log is not None:
                    number = self._numbers.get(node.index, 0)
                    self.world.history.ended(number, self._lost_by(node))
                self._set_leaving(node, False)
        for node in self.world.nodes[self.world.profile.nodes :]:
            if node.is_alive:  # whom it was to meet may be gone for good
                self._meet_somebody(node)
        self.all_called_back()
        # Where a word was lost and the link stood, two may go on not knowing of each other: nobody walks
        self.world.history.all_ended(but="loss")

    def _strike(self, fault: Fault) -> None:
        if self.is_over:
            return
        if fault.kind in CUTS:
            self._cut(fault)
        else:
            self._HANDLERS[fault.kind](self, fault)

    def _note(self, fault: Fault, text: str) -> None:
        """A fault begins."""
        self.counts[fault.kind] += 1
        self._enter()
        if fault.kind not in ("leave", "forget", "exile"):  # after these a node stays away
            self.world.at(self.world.now + max(1, fault.span), self._leave_one)
        if fault.kind in _OPEN:
            number = self.world.history.began(_OPEN[fault.kind], self._names(fault))
            # What it has set off goes on for a while
            ending = self.world.now + max(1, fault.span) + 1000
            self.world.at(ending, lambda: self.world.history.ended(number))
        self.world.story.add(self.world.now, "fault", fault.kind, (), text)

    def _names(self, fault: Fault) -> list[str]:
        return [self.world.nodes[index].name for index in fault.nodes]

    def _down(self, node: Node, *, wipes: bool = True) -> None:
        """The node is dead from now on, till it starts again."""
        wiped = [node.name] if wipes and not self.world.profile.log else []
        self._numbers[node.index] = self.world.history.began("crash", [node.name], wipes=wiped)

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
        names = [(self.world.nodes[a].name, self.world.nodes[b].name) for a, b in pairs]
        number = self.world.history.began(fault.kind, [], names)
        self.world.network.cut(pairs, fault.mode)
        if fault.kind == "flap":
            self._flap(fault, pairs, self.world.now + fault.span, is_cut=True)
            ending = self.world.now + fault.span + 2 * fault.n
            self.world.at(ending, lambda: self.world.history.ended(number))
        else:
            self._later(fault, lambda: self._heal(fault, pairs, number))

    def _heal(self, fault: Fault, pairs: list[tuple[int, int]], number: int) -> None:
        self.world.story.add(self.world.now, "heal", fault.kind, (), f"{fault.nodes}")
        self.world.network.heal(pairs, fault.mode)
        self.world.history.ended(number)

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
            self._down(node)
            node.crash(is_silent=fault.mode == "power")
            self._later(fault, lambda: self._restart(node))

    def _torn(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if node.is_alive:
            when = f"about to send {fault.mode}" if fault.mode else f"after {fault.n} effects"
            self._note(fault, f"{node.name} will crash {when}, back after {fault.span} ms")
            node.effects_left = None if fault.mode else fault.n
            node.snare = fault.mode
            node.is_power = node.log is not None and fault.span % 2 == 0
            node.back_after_ms = max(1, fault.span)

    def torn(self, node: Node) -> None:
        """A node has crashed in the middle of a turn: it comes back in its time."""
        self._enter()
        self._down(node)

        def back() -> None:
            if not self.is_over:
                self._restart(node)
            self._leave_one()

        self.world.at(self.world.now + node.back_after_ms, back)

    def _restart(self, node: Node) -> None:
        if not node.is_alive and node.index not in self.forgotten:
            node.start()
            self.world.history.ended(self._numbers.get(node.index, 0), self._lost_by(node))
            self.world.story.add(
                self.world.now, "fault", "restart", (), f"{node.name} boot {node.identity.boot}"
            )

    def _disk(self, fault: Fault) -> None:
        """A node's disk fails, is full for a while, or the process ends in the middle of one of its changes."""
        node = self.world.nodes[fault.nodes[0]]
        if not node.is_alive or node.log is None:
            return
        self._note(fault, f"{node.name}: {fault.mode} {fault.n}, {fault.span} ms")
        log, disk = node.log, node.log.disk
        if fault.mode == "full":
            disk.room = fault.n
            disk.is_short = fault.span % 2 == 0
        elif fault.mode == "cut":
            disk.append_errors, disk.truncate_errors = fault.n, 1
        elif fault.mode == "sync":
            disk.sync_errors = 1 + fault.n // 3
        elif fault.mode == "crash":
            disk.crash_in = fault.n
            node.is_power = fault.span % 2 == 0
            node.back_after_ms = max(1, fault.span)
        else:
            log.wants_rewrite = True
        if fault.mode != "crash":
            self.world.at(self.world.now + max(1, fault.span), disk.mend)

    def _leave(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if not node.is_alive or self._leaving:
            return
        self._note(
            fault,
            f"{node.name} leaves, stops when it is safe" + ("" if fault.n else " or patience ends"),
        )
        self._leaving.append(node.index)
        self.world.history.member("leave", node, wipes=False, is_begun=True)
        self._set_leaving(node, True)
        self._stop_when_safe(node, node.life, None if fault.n else self.world.now + 3 * fault.span)

    def _stop_when_safe(self, node: Node, life: int, until: int | None) -> None:
        """Look now and then whether the node says that it may go."""

        def look() -> None:
            if self.is_over or not node.is_alive or node.life != life:
                return
            is_safe = node.broker.is_safe_to_stop()
            if is_safe or (until is not None and self.world.now >= until):
                self.counts["left" if is_safe else "stopped"] += 1
                self.world.story.add(
                    self.world.now, "fault", "stop", (), f"{node.name} safe={is_safe}"
                )
                self._down(node, wipes=not is_safe)
                self.world.history.member("leave", node, wipes=False)
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
        self._down(node)
        node.crash(is_silent=fault.mode == "power")
        self._later(fault, lambda: self.tell_forget(node))

    def _join(self, fault: Fault) -> None:
        """A machine that was never there before starts and is told of one member."""
        spare = next((node for node in self.world.nodes if not node.life), None)
        if spare is not None and self._a_member() is not None:
            spare.start()
            self.world.history.member("join", spare, wipes=False)
            self._note(fault, f"{spare.name} starts")
            self._meet_somebody(spare)

    def _a_member(self, but: Node | None = None) -> Node | None:
        members = self.world.nodes[: self.world.profile.nodes]
        at_home = [
            n for n in members if n.is_alive and n.index not in self._exiled and n is not but
        ]
        return at_home[0] if at_home else None

    def _meet_somebody(self, newcomer: Node) -> None:
        known = self._a_member()
        if known is not None:
            newcomer.turn_with(
                lambda: newcomer.broker.meet(known.host, known.bus_port, is_sticky=True)
            )

    def tell_forget(self, gone: Node, *, tell_all: bool = True) -> None:
        """FORGET at every living node, or at one, from which the others hear it."""
        self.world.history.member("forget", gone, wipes=True)
        self._forget_id(gone.id, tell_all=tell_all)

    def _forget_id(self, gone: NodeId, *, tell_all: bool) -> None:
        if gone not in self.forgotten_ids:
            self.forgotten_ids.append(gone)
        others = [node for node in self.world.nodes if node.is_alive and node.id != gone]
        for node in others if tell_all else others[:1]:
            node.turn_with(lambda node=node: self._forget_at(node, gone))

    def _forget_at(self, node: Node, gone: NodeId) -> None:
        if gone in node.broker.membership.view().members and gone != node.id:
            node.broker.forget(gone, everywhere=True)

    def tell_forget_again(self) -> None:
        """FORGET where it hasn't been heard."""
        dead = [self.world.nodes[index].id for index in self.forgotten]
        for gone in dict.fromkeys([*dead, *self.forgotten_ids]):
            self._forget_id(gone, tell_all=True)

    def _exile(self, fault: Fault) -> None:
        node = self.world.nodes[fault.nodes[0]]
        if not node.is_alive or node.index in self._leaving or self.forgotten:
            return
        self._note(fault, f"{node.name} is forgotten alive, met again after {fault.span} ms")
        self._exiled.append(node.index)
        self.tell_forget(node, tell_all=False)
        self._later(fault, lambda: self.call_back(node))

    def call_back(self, node: Node) -> None:
        """MEET by hand at a node that was forgotten, till it has come back."""
        if node.index in self._exiled and node.is_alive:
            node.turn_with(lambda: self._meet_again(node))
            self.world.at(self.world.now + 500, lambda: self.call_back(node))

    def _meet_again(self, node: Node) -> None:
        known = self._a_member(but=node)
        if known is None:
            return
        node.broker.meet(known.host, known.bus_port)

    def called_back(self, node: Node) -> None:
        """A MEET from whichever side has brought it back under a new id, in this turn."""
        self._exiled.remove(node.index)
        self.world.watch.came_back(node)
        self.world.history.member("join", node, wipes=True)

    def all_called_back(self) -> None:
        """Nobody stays in exile."""
        for index in list(self._exiled):
            node = self.world.nodes[index]
            if node.is_alive:
                self.call_back(node)
            else:
                self._exiled.remove(index)

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
        """Every living node hears it from another one, be that down by now."""
        born = [node for node in self.world.nodes if node.life]
        for target in [node for node in born if node.is_alive]:
            at = born.index(target)
            for speaker in [*born[at + 1 :], *born[:at]][:1]:
                target.turn_with(
                    lambda target=target, speaker=speaker: target.broker.hear(
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
            self.world.watch.purged(queue)
            self.world.history.ordered("purge", speaker, {"queue": queue.decode()})
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
        "disk": _disk,
        "crash": _crash,
        "torn": _torn,
        "leave": _leave,
        "clock": _clock,
        "slow": _slow,
        "forget": _forget,
        "join": _join,
        "exile": _exile,
        "gone": _gone,
    }
