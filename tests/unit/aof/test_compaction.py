"""Compaction: what lives moves on, what is dead goes, the log stays small, and no deletion goes before its creation."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disque.aof.replay import Replay
from disque.core.ready import BASE_KINDS, Record
from tests.unit.aof.world import Crash, MemoryDisk, Node

SEGMENT_BYTES = 4_000


def records(disk: MemoryDisk) -> list[tuple[Record, int]]:
    """Everything in the log, with its segment."""
    replay = Replay(disk, is_dry=True)
    return [(placed[0], placed[1]) for batch in replay.run() for placed in batch]


def churn(node: Node, turns: int, *, live: int, dice: random.Random) -> list[tuple[int, int]]:
    """Jobs come and go around a number of live ones; returns log and live bytes after each turn."""
    sizes = []
    ids: list[bytes] = []
    for turn in range(turns):
        before = node.store.total_bytes
        for number in range(4):
            id_ = b"D-%d-%d" % (turn, number)
            node.engine.add(id_, bytes(dice.randrange(50, 200)))
            ids.append(id_)
            if len(ids) > live:
                node.engine.forget(ids.pop(dice.randrange(len(ids)) if dice.random() < 0.5 else 0))
        node.turn()
        written = node.store.total_bytes - before
        if not turn % 5:
            node.sync()
        node.compact(2 * written)
        sizes.append((node.store.total_bytes, node.engine.live_bytes()))
    return sizes


@pytest.mark.parametrize("live", [100, 400])
@pytest.mark.parametrize("seed", range(3))
def test_under_churn_the_log_stays_below_2_5_times_its_live_bytes_and_two_segments(
    seed: int, live: int
) -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    sizes = churn(node, 1_500, live=live, dice=random.Random(seed))
    worst = max([total - 2.5 * alive - 2 * SEGMENT_BYTES for total, alive in sizes])
    assert worst <= 0
    assert max([total for total, _ in sizes]) > 1.5 * sizes[-1][1], "the bound was never tried"
    facts = node.engine.facts()
    node.kill()
    assert node.engine.facts() == facts


def test_a_byte_written_costs_about_one_byte_copied() -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    written = 0
    before = node.store.total_bytes
    sizes = churn(node, 1_500, live=300, dice=random.Random(1))
    written = 1_500 * 4 * 190
    assert node.compaction.copied_bytes < 1.3 * written
    assert sizes[-1][0] > before


def test_old_live_bytes_with_all_garbage_behind_them_are_the_worst_and_hold() -> None:
    """As many bytes that never die as live at all, then churn that dies at once."""
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    for number in range(300):
        node.engine.add(b"old-%d" % number, bytes(140))
        node.turn()
    alive = node.engine.live_bytes()
    worst = 0
    for turn in range(3_000):
        before = node.store.total_bytes
        id_ = b"D-%d" % turn
        node.engine.add(id_, bytes(140))
        node.turn()
        node.engine.forget(id_)
        node.turn()
        node.compact(2 * (node.store.total_bytes - before))
        worst = max(worst, node.store.total_bytes)
    assert worst <= 2.5 * alive + 2 * SEGMENT_BYTES
    assert len(node.engine.entries) == 300


def test_one_job_of_a_day_never_pins_the_log() -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    node.add(b"old", b"of a day")
    churn(node, 400, live=20, dice=random.Random(1))
    assert node.disk.segments()[0] > 20
    assert node.engine.segment_of(b"old") >= node.disk.segments()[0]
    node.kill()
    assert node.engine.entries[b"old"].body == b"of a day"


@pytest.mark.parametrize("seed", range(5))
def test_a_deletion_is_never_dropped_while_an_older_segment_holds_the_creation(seed: int) -> None:
    """M24, on the disk after each step: each base record of an unknown id has its end behind it."""
    dice = random.Random(seed)
    node = Node(policy="everysec", segment_bytes=600)
    ids: list[bytes] = []
    for turn in range(120):
        id_ = b"D-%d" % turn
        node.engine.add(id_, bytes(dice.randrange(60)))
        ids.append(id_)
        if len(ids) > 5:
            node.engine.forget(ids.pop(dice.randrange(len(ids))))
        node.turn()
        node.compact(dice.randrange(1, 300))
        alive: dict[bytes, None] = {}
        for record, _ in records(node.disk):
            assert record.id is not None
            if record.kind in BASE_KINDS:
                alive[record.id] = None
            elif record.kind == "gone":
                alive.pop(record.id, None)
        assert sorted(alive) == sorted(node.engine.entries)


def test_each_segment_says_what_the_node_knows_apart_from_jobs() -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    node.engine.set_pause(7)
    churn(node, 300, live=20, dice=random.Random(1))
    assert node.disk.segments()[0] > 1
    node.kill()
    assert node.engine.pause == 7


def test_damage_in_the_oldest_segment_doesnt_stop_compaction_nor_cost_what_memory_has() -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    for number in range(100):
        node.add(b"D-%d" % number, bytes(100))
    place = node.engine.entries[b"D-3"].place
    assert place is not None
    node.disk.flip(place.segment, place.offset + 40)
    node.compaction.begin()
    node.compact_all()
    assert "damage in segment 1 at" in node.store.take_notes()[0]
    assert node.disk.segments()[0] == 2
    facts = node.engine.facts()
    assert len(facts) == 100
    assert node.kill().is_intact
    assert node.engine.facts() == facts


def test_a_paged_body_that_rotted_is_the_only_one_that_is_lost() -> None:
    node = Node(policy="everysec", segment_bytes=SEGMENT_BYTES)
    for number in range(100):
        node.add(b"D-%d" % number, bytes(100))
    for entry in node.engine.entries.values():
        entry.is_paged = True
    place = node.engine.entries[b"D-3"].place
    assert place is not None
    node.disk.flip(place.segment, place.offset + 40)
    node.compaction.begin()
    node.compact_all()
    node.kill()
    assert sorted(node.engine.entries) == sorted([b"D-%d" % n for n in range(100) if n != 3])


def test_a_base_and_what_follows_it_are_never_torn_apart() -> None:
    """A job said again without its "out" would pass for all that is known of it, and the older record goes."""
    node = Node(segment_bytes=10_000)
    node.add(b"D-1")
    node.engine.take_out(b"D-1")
    node.turn()
    node.sync()
    facts = node.engine.facts()
    node.compaction.begin_rewrite()
    node.compaction.step(1_000)
    segment = node.store.active
    for cut in range(node.disk.size(segment) + 1):
        disk = node.disk.copy()
        disk.truncate(segment, cut)
        after = Node(disk, segment_bytes=10_000)
        assert after.engine.facts() == facts
        after.compaction.begin_rewrite()
        after.compact_all()
        after.kill()
        assert after.engine.facts() == facts


def test_damage_never_parts_a_base_from_what_follows_it() -> None:
    node = Node(policy="everysec", segment_bytes=10_000)
    node.add(b"D-1")
    node.engine.take_out(b"D-1")
    node.turn()
    node.sync()
    node.compaction.begin_rewrite()
    start = node.disk.size(node.store.active)
    node.compaction.step(1_000)
    end = node.disk.size(node.store.active)
    node.engine.add(b"D-2", b"body")
    node.turn()
    assert node.disk.segments() == [1, 2]
    for offset in range(start, end):
        disk = node.disk.copy()
        disk.flip(node.store.active, offset)
        after = Node(disk, policy="everysec", segment_bytes=10_000)
        after.compaction.begin()
        after.compact_all()
        after.kill()
        assert after.engine.facts() == node.engine.facts()


def test_a_rewrite_leaves_only_what_lives() -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    for number in range(200):
        node.add(b"D-%d" % number, bytes(100))
    for number in range(190):
        node.engine.forget(b"D-%d" % number)
    node.turn()
    newest = node.store.active
    node.compaction.begin_rewrite()
    assert node.compaction.is_running
    node.compact_all()
    assert node.disk.segments() == [newest + 1]
    assert [record.kind for record, _ in records(node.disk)] == ["job"] * 10


def test_what_happens_during_a_rewrite_is_not_lost() -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    for number in range(50):
        node.add(b"D-%d" % number, bytes(100))
    node.compaction.begin_rewrite()
    for number in range(50):
        node.compaction.step(100)
        node.engine.forget(b"D-%d" % number)
        node.add(b"E-%d" % number, b"new")
    node.compact_all()
    facts = node.engine.facts()
    assert list(facts) == sorted([b"E-%d" % n for n in range(50)])
    node.kill()
    assert node.engine.facts() == facts


def test_a_step_is_bounded() -> None:
    node = Node(segment_bytes=10_000)
    for number in range(200):
        node.add(b"D-%d" % number, bytes(100))
    node.compaction.begin_rewrite()
    before = node.store.total_bytes
    node.compaction.step(1_000)
    assert 500 < node.store.total_bytes - before < 2_000


def test_no_room_for_a_step_loses_nothing_and_it_goes_on_with_room() -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    for number in range(100):
        node.add(b"D-%d" % number, bytes(100))
    facts = node.engine.facts()
    node.compaction.begin()
    for room in range(0, 3_000, 100):
        node.disk.room = room
        with pytest.raises(OSError):
            node.compaction.step(10_000)
    node.disk.mend()
    node.turn()
    node.add(b"E-1")
    assert node.disk.segments()[0] == 1, "what it holds isn't said yet"
    node.compact_all()
    assert node.disk.segments()[0] == 2
    facts = node.engine.facts()
    node.kill()
    assert node.engine.facts() == facts


def test_a_deletion_that_fails_is_tried_again_in_order() -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    for number in range(100):
        node.add(b"D-%d" % number, bytes(100))
    node.compaction.begin_rewrite()
    while node.compaction.is_saying:
        node.compaction.step(1_000)
    job = node.store.begin_sync()
    assert job is not None
    segments = node.disk.segments()
    job.doomed = (99, *job.doomed)
    with pytest.raises(OSError):
        job.run(node.disk)
    node.store.sync_failed(job)
    assert node.disk.segments() == segments
    assert not node.store.is_spoilt
    node.sync()
    assert node.disk.segments()[0] > segments[1]


@pytest.mark.parametrize("seed", range(30))
def test_no_deletion_outlives_power_loss_while_an_older_one_is_lost(seed: int) -> None:
    """Else the creation is back, and what took it away is gone (M24)."""
    node = Node(MemoryDisk(random.Random(seed)), segment_bytes=150)
    for number in range(4):
        node.add(b"D-%d" % number, bytes(60))
    for number in range(4):
        node.engine.forget(b"D-%d" % number)
        node.turn()
        node.sync()
    node.compaction.begin_rewrite()
    while node.compaction.is_saying:
        node.compaction.step(1_000)
    node.disk.crash_in = 3 + seed % 10
    with contextlib.suppress(Crash):
        node.sync()
    node.lose_power()
    assert node.engine.facts() == {}


@pytest.mark.parametrize(
    ("percentage", "min_bytes", "is_wanted"),
    [(100, 0, True), (0, 0, False), (100, 10**6, False), (900, 0, False)],
)
def test_auto_aof_rewrite_settings_decide(percentage: int, min_bytes: int, is_wanted: bool) -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    for number in range(200):
        node.add(b"D-%d" % number, bytes(100))
    for number in range(150):
        node.engine.forget(b"D-%d" % number)
    node.turn()
    assert node.compaction.wants(percentage, min_bytes) == is_wanted


def test_segments_of_many_restarts_are_taken_together() -> None:
    node = Node(segment_bytes=SEGMENT_BYTES)
    node.add(b"D-1")
    for _ in range(60):
        node.kill()
        node.compact()
        node.compact_all()
    assert len(node.disk.segments()) < 25
    assert list(node.engine.entries) == [b"D-1"]


jobs = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["add", "dispatch", "done", "gone"])),
    max_size=150,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(30, 500), st.integers(200, 900))
def test_any_work_with_any_pace_replays_to_the_same(
    work: Any, budget: int, segment_bytes: int
) -> None:
    node = Node(policy="everysec", segment_bytes=segment_bytes)
    for number, what in work:
        id_ = b"D-%d" % number
        entry = node.engine.entries.get(id_)
        if what == "add" and entry is None:
            node.engine.add(id_, bytes(number * 10))
        elif what == "dispatch" and entry is not None and entry.kind == "job":
            node.engine.dispatch(id_)
        elif what == "done" and entry is not None:
            node.engine.end(id_, "done")
        elif what == "gone" and entry is not None:
            node.engine.forget(id_)
        node.turn()
        node.compact(budget)
    facts = node.engine.facts()
    node.kill()
    assert node.engine.facts() == facts
