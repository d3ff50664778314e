"""Store: one append a turn, failures leave nothing behind that is believed, failed syncs are written again."""

from __future__ import annotations

import pytest

from disque.aof.store import Life, Store
from disque.core.ready import Paged, Record
from tests.unit.aof.world import NODE, FakeEngine, MemoryDisk, Node

ONE = Record("job", (b"D-1", (b"queue",), b"body", 0))


def bodies(node: Node) -> dict[bytes, bytes | None]:
    """What the places that the engine was told give."""
    return {
        id_: node.store.read(entry.place)
        for id_, entry in node.engine.entries.items()
        if entry.place is not None
    }


def test_a_turn_is_one_append() -> None:
    node = Node(segment_bytes=10_000)
    before = node.disk.appends
    for number in range(5):
        node.engine.add(b"D-%d" % number, b"body")
    node.turn()
    assert node.disk.appends == before + 1


def test_a_turn_that_begins_a_segment_is_one_append() -> None:
    node = Node(segment_bytes=1)
    before = node.disk.appends
    node.engine.add(b"D-1", b"body")
    node.turn()
    assert node.disk.appends == before + 1
    assert node.disk.segments() == [1, 2]


def test_nothing_to_say_is_nothing_written() -> None:
    node = Node(segment_bytes=10_000)
    node.turn()
    node.sync()
    before = node.disk.changes
    node.turn()
    node.sync()
    assert node.disk.changes == before


def test_bodies_are_read_back_from_where_they_were_placed() -> None:
    node = Node()
    for number in range(20):
        node.add(b"D-%d" % number, b"body %d" % number)
    assert bodies(node) == {b"D-%d" % n: b"body %d" % n for n in range(20)}


def test_a_paged_body_is_said_again_with_its_bytes() -> None:
    node = Node()
    node.add(b"D-1", b"precious")
    node.engine.entries[b"D-1"].is_paged = True
    node.compaction.begin_rewrite()
    node.compact_all()
    assert bodies(node) == {b"D-1": b"precious"}
    node.kill()
    assert node.engine.entries[b"D-1"].body == b"precious"


def test_a_damaged_body_is_none_and_noted() -> None:
    node = Node()
    node.add(b"D-1", b"precious")
    place = node.engine.entries[b"D-1"].place
    assert place is not None
    node.disk.flip(place.segment, place.offset + place.size - 1)
    assert node.store.read(place) is None
    assert node.store.unreadable == 1
    assert "can't be read" in node.store.take_notes()[0]
    assert node.store.take_notes() == []
    assert node.store.read(Paged(99, 0, 10)) is None


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_no_room_at_any_byte_then_room_gives_exactly_what_was_acknowledged(
    policy: str, is_short: bool
) -> None:
    for room in range(90):
        node = Node(policy=policy, segment_bytes=10_000)
        node.add(b"D-0")
        node.disk.room, node.disk.is_short = room, is_short
        size = node.disk.size(node.store.active)
        node.engine.add(b"D-1", b"body")
        node.engine.dispatch(b"D-0")
        try:
            node.turn()
        except OSError:
            assert node.disk.size(node.store.active) == size
            crashed = Node(node.disk.copy(), policy=policy)
            assert list(crashed.engine.entries) == [b"D-0"]
            node.disk.mend()
            node.turn()
        facts = node.engine.facts()
        node.sync()
        node.kill()
        assert node.engine.facts() == facts
        assert node.findings.is_intact


def test_no_room_for_a_new_segment_is_tried_again() -> None:
    node = Node(segment_bytes=1)
    for room in (0, 1, 50, 150):
        node.disk.room = room
        node.engine.add(b"D-%d" % room, b"x" * 100)
        with pytest.raises(OSError):
            node.turn()
    node.disk.mend()
    node.turn()
    node.sync()
    facts = node.engine.facts()
    assert len(facts) == 4
    assert node.kill().is_intact
    assert node.engine.facts() == facts


@pytest.mark.parametrize("segment_bytes", [1, 10_000])
def test_a_segment_that_cant_be_cut_back_is_closed_and_a_new_one_begun(segment_bytes: int) -> None:
    node = Node(segment_bytes=segment_bytes)
    node.add(b"D-0")
    node.disk.append_errors = node.disk.truncate_errors = 1
    node.engine.add(b"D-1", b"x" * 100)
    with pytest.raises(OSError):
        node.turn()
    assert "can't be cut back" in node.store.take_notes()[0]
    node.add(b"D-2")
    facts = node.engine.facts()
    assert list(facts) == [b"D-0", b"D-1", b"D-2"]
    findings = node.kill()
    assert node.engine.facts() == facts
    assert (findings.why_not_intact, findings.lost, findings.torn_bytes) == ("", [], 0)


def test_a_failed_sync_is_written_again_and_only_a_good_one_counts() -> None:
    node = Node(segment_bytes=10_000)
    node.add(b"D-0")
    node.engine.add(b"D-1", b"body")
    node.turn()
    node.disk.sync_errors = 1
    with pytest.raises(OSError):
        node.sync()
    assert node.store.is_spoilt
    assert node.store.begin_sync() is None
    node.engine.add(b"D-2", b"body")
    node.turn()
    node.sync()
    assert node.disk.segments() == [1, 2]
    assert [node.engine.segment_of(id_) for id_ in (b"D-0", b"D-1", b"D-2")] == [1, 2, 2]
    facts = node.engine.facts()
    for _ in range(20):
        findings = node.lose_power()
        assert node.engine.facts() == facts
        assert findings.is_intact


def test_what_came_while_a_sync_failed_is_written_again_too() -> None:
    node = Node(segment_bytes=10_000)
    node.engine.add(b"D-1", b"body")
    node.turn()
    job = node.store.begin_sync()
    assert job is not None
    assert node.store.begin_sync() is None
    node.engine.add(b"D-2", b"body")
    node.turn()
    node.disk.sync_errors = 1
    with pytest.raises(OSError):
        job.run(node.disk)
    node.store.sync_failed(job)
    node.turn()
    assert [node.engine.segment_of(id_) for id_ in (b"D-1", b"D-2")] == [2, 2]


def test_what_came_while_a_sync_ran_is_owed_to_the_next() -> None:
    node = Node(segment_bytes=10_000)
    node.engine.add(b"D-1", b"body")
    node.turn()
    job = node.store.begin_sync()
    assert job is not None
    node.engine.add(b"D-2", b"body")
    node.turn()
    job.run(node.disk)
    node.store.synced(job)
    assert node.store.is_dirty
    assert node.store.unsynced_bytes > 0
    node.sync()
    assert not node.store.is_dirty
    assert node.store.unsynced_bytes == 0


def test_a_closed_segment_asks_for_its_sync() -> None:
    node = Node(policy="no", segment_bytes=300)
    assert not node.store.needs_sync
    while len(node.disk.segments()) < 2:
        node.engine.add(b"D-%d" % len(node.engine.entries), b"body")
        node.turn()
    assert node.store.needs_sync
    node.sync()
    assert not node.store.needs_sync


def test_a_large_body_is_packed_like_any_other() -> None:
    node = Node()
    node.add(b"D-1", b"x" * (3 << 20))
    node.kill()
    assert node.engine.entries[b"D-1"].body == b"x" * (3 << 20)


def test_nothing_is_written_before_the_first_write() -> None:
    disk = MemoryDisk()
    engine = FakeEngine()
    life = Life(NODE, 1, 1, "kernel", "no")
    store = Store(disk, life, is_complete=True, node_records=engine.node_records)
    assert (disk.segments(), store.begin_sync(), store.is_dirty) == ([], None, False)
    assert store.write([ONE])[0][:2] == (b"D-1", 1)
