"""Any work, any failure, a crash in any operation of the disk: what was promised is there after the start, and nothing
that never was."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.aof.world import Crash, MemoryDisk, Node

IDS = [b"D-%d" % number for number in range(6)]
NOTHING = (None, None, 0)

steps = st.one_of(
    st.tuples(
        st.sampled_from(["add", "dispatch", "done", "settled", "gone", "page", "out"]),
        st.sampled_from(IDS),
    ),
    st.tuples(st.sampled_from(["turn", "sync", "compact", "rewrite", "pause"]), st.none()),
    st.tuples(st.sampled_from(["turn", "sync", "compact"]), st.none()),
    st.tuples(
        st.sampled_from(["no room", "append error", "truncate error", "sync error"]),
        st.integers(0, 200),
    ),
    st.tuples(st.just("mend"), st.none()),
)
lives = st.lists(
    st.tuples(st.lists(steps, max_size=40), st.integers(0, 60), st.booleans()),
    min_size=1,
    max_size=4,
)


@attrs.define(eq=False)
class Promises:
    """For each id the states that a start may find: the last promised one, and every later one."""

    allowed: dict[bytes, list[Any]] = attrs.Factory(dict)
    pauses: list[int] = attrs.Factory(lambda: [0])

    def seen(self, node: Node) -> None:
        """The engine is in this state: a crash may leave it."""
        for id_ in IDS:
            states = self.allowed.setdefault(id_, [NOTHING])
            states.append(facts_of(node, id_))
        self.pauses.append(node.engine.pause)

    def kept(self, node: Node) -> None:
        """This state is promised: nothing older may come back."""
        self.allowed = {id_: [facts_of(node, id_)] for id_ in IDS}
        self.pauses = [node.engine.pause]

    def check(self, node: Node) -> None:
        for id_ in IDS:
            assert facts_of(node, id_) in self.allowed.get(id_, [NOTHING]), id_
        assert node.engine.pause in self.pauses
        for entry in node.engine.entries.values():
            if entry.body is not None:
                assert entry.place is not None
                assert node.store.read(entry.place) == entry.body


def facts_of(node: Node, id_: bytes) -> tuple[object, ...]:
    entry = node.engine.entries.get(id_)
    return NOTHING if entry is None else entry.facts


def work(node: Node, step: str, what: Any, count: int) -> None:
    """One thing that happens in the engine."""
    engine = node.engine
    entry = engine.entries.get(what) if isinstance(what, bytes) else None
    is_job = entry is not None and entry.kind == "job"
    if step == "add" and entry is None:
        engine.add(what, b"body of " + what * int(what[2:]))
    elif step == "dispatch" and is_job:
        engine.dispatch(what)
    elif step == "out" and is_job:
        engine.take_out(what)
    elif step in ("done", "settled") and entry is not None:
        engine.end(what, step)
    elif step == "gone" and entry is not None:
        engine.forget(what)
    elif step == "page" and is_job and entry is not None and entry.place is not None:
        entry.is_paged = True
    elif step == "pause":
        engine.set_pause(count)


def act(node: Node, step: str, what: Any, promises: Promises, is_power: bool) -> None:
    """One thing that the owner does; failures are met as an owner meets them: again, later."""
    disk = node.disk
    try:
        match step:
            case "turn":
                node.turn()
                if not is_power:
                    promises.kept(node)
            case "sync":
                node.turn()
                node.sync()
                promises.kept(node)
            case "compact":
                node.turn()
                node.compact()
            case "rewrite":
                node.compaction.begin_rewrite()
            case "no room":
                disk.room = what
            case "append error":
                disk.append_errors = 1
            case "truncate error":
                disk.truncate_errors = disk.append_errors = 1
            case "sync error":
                disk.sync_errors = 1
            case "mend":
                disk.mend()
    except OSError:
        pass


def live(node: Node, script: list[tuple[str, Any]], promises: Promises, is_power: bool) -> None:
    for count, (step, what) in enumerate(script):
        work(node, step, what, count)
        promises.seen(node)
        act(node, step, what, promises, is_power)


def run(seed: int, plan: list[tuple[list[tuple[str, Any]], int, bool]]) -> None:
    disk = MemoryDisk(random.Random(seed))
    node, promises = Node(disk, segment_bytes=200), Promises()
    for script, crash_in, is_power in plan:
        is_armed = crash_in < 40
        if is_armed:
            disk.crash_in = crash_in
        with contextlib.suppress(Crash):
            live(node, script, promises, is_power)
        findings = node.lose_power() if is_power else node.kill()
        promises.check(node)
        assert findings.is_intact, findings
        promises.kept(node)
    newest = max(disk.segments())
    node.compaction.begin_rewrite()
    node.compact_all()
    assert min(disk.segments()) > newest
    node.kill()
    promises.check(node)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**16), lives)
def test_after_any_crash_the_promised_state_is_there(seed: int, plan: Any) -> None:
    run(seed, plan)


@pytest.mark.parametrize("is_power", [False, True])
def test_a_crash_at_each_operation_of_a_compaction_loses_nothing(is_power: bool) -> None:
    script: list[tuple[str, Any]] = []
    for id_ in IDS:
        script += [("add", id_), ("sync", None), ("dispatch", id_), ("sync", None)]
    script += [("gone", IDS[0]), ("done", IDS[1]), ("sync", None)]
    script += [("compact", None)] * 12
    crashes = 0
    for crash_in in range(200):
        for seed in range(5 if is_power else 1):
            disk = MemoryDisk(random.Random(seed))
            node, promises = Node(disk, segment_bytes=200), Promises()
            disk.crash_in = crash_in
            try:
                live(node, script, promises, is_power)
            except Crash:
                crashes += 1
            findings = node.lose_power() if is_power else node.kill()
            promises.check(node)
            assert findings.is_intact
        if disk.changes < crash_in:
            break
    assert crashes > 50


@pytest.mark.parametrize("seed", range(40))
def test_long_random_lives(seed: int) -> None:
    dice = random.Random(seed)
    words = ["add", "dispatch", "done", "settled", "gone", "page", "out"]
    plan = []
    for _ in range(6):
        script: list[tuple[str, Any]] = []
        for _ in range(dice.randrange(150)):
            roll = dice.random()
            if roll < 0.5:
                script.append((dice.choice(words), dice.choice(IDS)))
            elif roll < 0.95:
                script.append((dice.choice(["turn", "sync", "compact", "compact", "pause"]), None))
            else:
                fault = dice.choice(["no room", "append error", "truncate error", "sync error"])
                script += [
                    (fault, dice.randrange(200)),
                    ("turn", None),
                    ("sync", None),
                    ("mend", None),
                ]
        plan.append((script, dice.randrange(200), dice.random() < 0.5))
    run(seed, plan)
