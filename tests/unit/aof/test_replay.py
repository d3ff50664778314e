"""Replay: what damage costs, and when a node may call its store unbroken."""

from __future__ import annotations

import random

import pytest

from disque.aof import format as fmt
from disque.aof.disk import LogError
from disque.aof.replay import Replay
from disque.core.ready import Record
from tests.unit.aof.world import KERNEL, MemoryDisk, Node


def filled(jobs: int = 8, *, segment_bytes: int = 10_000, policy: str = "always") -> Node:
    node = Node(policy=policy, segment_bytes=segment_bytes)
    for number in range(jobs):
        node.add(b"D-%d" % number)
    return node


def last_record(node: Node) -> tuple[int, int]:
    """Offset and size of the newest job's record."""
    place = list(node.engine.entries.values())[-1].place
    assert place is not None
    return place.offset, place.size


def damage(node: Node, number: int = 3) -> None:
    """One bit of a job's record rots."""
    place = node.engine.entries[b"D-%d" % number].place
    assert place is not None
    node.disk.flip(place.segment, place.offset + place.size - 5)


def restarted(node: Node, disk: MemoryDisk, kernel: str = KERNEL) -> Node:
    """Another life over this disk, with node's boots."""
    after = Node.__new__(Node)
    after.disk, after.policy, after.segment_bytes = disk, node.policy, node.segment_bytes
    after.kernel, after.boot, after.since = kernel, node.boot, node.since
    after.start()
    return after


def test_a_tail_cut_at_every_byte_costs_the_last_record_and_is_named() -> None:
    node = filled()
    offset, size = last_record(node)
    for cut in range(size):
        disk = node.disk.copy()
        disk.truncate(1, offset + cut)
        after = restarted(node, disk)
        assert len(after.engine.entries) == 7
        assert after.findings.torn_bytes == cut
        assert after.findings.torn_at == ((1, offset) if cut else None)
        assert after.findings.is_intact
        assert disk.size(1) == offset
        assert restarted(after, disk).findings.torn_bytes == 0


def test_a_turn_counts_whole_or_not_at_all() -> None:
    node = filled()
    facts, size = node.engine.facts(), node.disk.size(1)
    node.engine.dispatch(b"D-1")
    node.engine.end(b"D-2", "done")
    node.engine.add(b"E-1", b"body")
    node.turn()
    for cut in range(size, node.disk.size(1)):
        disk = node.disk.copy()
        disk.truncate(1, cut)
        after = restarted(node, disk)
        assert after.engine.facts() == facts
        assert after.findings.is_intact
    assert restarted(node, node.disk).engine.facts() == node.engine.facts()


def test_a_failed_sync_of_a_killed_process_is_made_good_by_the_next_life() -> None:
    """To the kernel those pages are clean: the next process's sync would succeed, and the disk have nothing."""
    node = filled()
    node.disk.sync_errors = 1
    with pytest.raises(OSError):
        node.add(b"E-1")
    node.kill()
    facts = node.engine.facts()
    assert b"E-1" in facts
    for _ in range(10):
        assert node.lose_power().is_intact
        assert node.engine.facts() == facts


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 500])
def test_a_tail_of_zeros_is_torn_after_power_loss_and_damage_after_none(zeros: int) -> None:
    node = filled()
    disk = node.disk.copy()
    disk.append(1, bytes(zeros))
    assert restarted(node, disk.copy(), "kernel-2").findings.is_intact
    after = restarted(node, disk)
    assert len(after.engine.entries) == 8
    assert after.findings.torn_bytes == zeros
    if zeros >= fmt.HEAD_BYTES:
        assert after.findings.why_not_intact == "the last record is damaged"


def test_a_flipped_bit_in_the_last_record_of_a_killed_process_is_never_called_intact() -> None:
    node = filled()
    offset, size = last_record(node)
    for bit in range(size * 8):
        disk = node.disk.copy()
        disk.flip(1, offset + bit // 8, bit % 8)
        after = restarted(node, disk)
        assert len(after.engine.entries) == 7
        assert not after.findings.is_intact, bit
        assert list(after.findings.lost_ids) in ([b"D-7"], []) or bit // 8 in range(8, 24)


def test_damage_in_the_middle_costs_one_record_is_kept_aside_and_told_once() -> None:
    node = filled()
    for number in range(7):
        place = node.engine.entries[b"D-%d" % number].place
        assert place is not None
        for bit in range(place.size * 8):
            disk = node.disk.copy()
            disk.flip(1, place.offset + bit // 8, bit % 8)
            bad = disk.read(1, place.offset, place.size)
            after = restarted(node, disk)
            assert len(after.engine.entries) == 7
            assert b"D-%d" % number not in after.engine.entries
            assert after.findings.why_not_intact == "the log was damaged"
            assert after.since == after.boot
            (lost,) = after.findings.lost
            assert (lost.segment, lost.offset, lost.size) == (1, place.offset, place.size)
            assert disk.aside == {lost.file: bad}
        again = restarted(after, disk)
        assert (again.findings.lost, again.findings.is_intact) == ([], True)
        assert again.since == after.boot


def test_places_hold_after_damage_was_cut_out() -> None:
    node = filled()
    damage(node)
    after = restarted(node, node.disk)
    assert len(after.engine.entries) == 7
    for entry in after.engine.entries.values():
        assert entry.place is not None
        assert after.store.read(entry.place) == b"body"


def test_damage_that_cant_be_kept_aside_stays_and_is_told_again() -> None:
    node = filled()
    damage(node)
    for _ in range(2):
        node.disk.aside_errors = 1
        after = restarted(node, node.disk)
        assert len(after.engine.entries) == 7
        assert [lost.file for lost in after.findings.lost] == [""]


def test_a_missing_segment_is_damage() -> None:
    node = filled(30, segment_bytes=300)
    assert len(node.disk.segments()) > 4
    del node.disk.files[3]
    after = restarted(node, node.disk)
    assert after.findings.missing == [3]
    assert after.findings.why_not_intact == "segments are missing: [3]"
    assert 0 < len(after.engine.entries) < 30


def test_a_missing_first_segment_is_damage() -> None:
    node = filled(30, segment_bytes=300)
    del node.disk.files[1]
    after = restarted(node, node.disk)
    assert after.findings.missing == [1]
    assert restarted(after, node.disk).findings.is_intact, "the start before has judged it"


def test_an_older_segment_that_lost_its_end_at_a_record_is_damage() -> None:
    node = filled(30, segment_bytes=300)
    places = [entry.place for entry in node.engine.entries.values()]
    last = [place for place in places if place is not None and place.segment == 2][-1]
    node.disk.truncate(2, last.offset)
    after = restarted(node, node.disk)
    assert len(after.engine.entries) == 29
    assert "bytes are missing" in after.findings.notes[0]
    assert after.findings.why_not_intact == "the log was damaged"
    assert restarted(after, node.disk).findings.is_intact, "the start before has judged it"


def test_a_segment_that_cant_be_read_costs_itself() -> None:
    node = filled(30, segment_bytes=300)
    lost = [id_ for id_, entry in node.engine.entries.items() if entry.segment == 2]
    node.disk.read_errors[2] = None
    replay = Replay(node.disk, kernel_boot_id=KERNEL, stored_boot=1, is_dry=True)
    ids = [record.id for batch in replay.run() for record, _, _, _ in batch]
    assert ids == [id_ for id_ in node.engine.entries if id_ not in lost]
    assert not replay.findings.is_intact


def test_a_dry_replay_changes_nothing() -> None:
    node = filled()
    damage(node)
    node.disk.append(1, b"torn")
    before = node.disk.changes, bytes(node.disk.files[1].data)
    replay = Replay(node.disk, is_dry=True)
    list(replay.run())
    assert (node.disk.changes, bytes(node.disk.files[1].data)) == before
    assert (len(replay.findings.lost), replay.findings.torn_bytes) == (1, 4)


def test_a_torn_tail_can_be_refused() -> None:
    node = filled()
    node.disk.append(1, b"torn")
    with pytest.raises(LogError, match=r"segment 1 at .* 4 bytes"):
        list(Replay(node.disk, may_cut=False).run())


def test_a_later_format_is_refused() -> None:
    disk = MemoryDisk()
    disk.create(1)
    payload = fmt.encode(Record("segment", (1, "a" * 40, fmt.VERSION + 1, 1, True, ())))
    disk.append(1, fmt.MAGIC + fmt.head(payload, fmt.seed_of(1, disk.salt(1))) + payload)
    with pytest.raises(LogError, match="format version 2"):
        list(Replay(disk).run())


def test_records_come_in_small_batches_with_progress() -> None:
    node = filled(0)
    for number in range(1_200):
        node.engine.add(b"D-%d" % number, b"body")
    node.turn()
    replay = Replay(node.disk)
    sizes, read = [], []
    for batch in replay.run():
        sizes.append(len(batch))
        read.append(replay.findings.read_bytes)
    assert sizes == [500, 500, 200]
    assert read == sorted(read)
    assert read[-1] == replay.findings.total_bytes == node.disk.size(1)


# Intact or not


def test_no_log_is_not_intact() -> None:
    assert Node().findings.why_not_intact == "there was no log"


@pytest.mark.parametrize(
    ("policy", "kernel", "is_ended", "is_intact"),
    [
        ("always", KERNEL, False, True),
        ("everysec", KERNEL, False, True),
        ("no", KERNEL, False, True),
        ("always", "kernel-2", False, True),
        ("everysec", "kernel-2", False, False),
        ("no", "kernel-2", False, False),
        ("everysec", "kernel-2", True, True),
        ("no", "kernel-2", True, True),
    ],
)
def test_a_life_is_unbroken_after_a_kill_a_clean_end_or_always(
    policy: str, kernel: str, is_ended: bool, is_intact: bool
) -> None:
    node = filled(policy=policy)
    if is_ended:
        node.stop()
    after = restarted(node, node.disk, kernel)
    assert after.findings.is_intact == is_intact
    assert after.since == (node.since if is_intact else after.boot)


def test_always_counts_only_if_it_was_so_all_along() -> None:
    node = filled(30, segment_bytes=300)
    node.store.set_policy("everysec")
    node.add(b"D-x")
    node.store.set_policy("always")
    node.add(b"D-y")
    while node.disk.segments()[0] < 5:
        node.disk.delete(node.disk.segments()[0])
    after = restarted(node, node.disk, "kernel-2")
    assert (
        "appendfsync other than always" in after.findings.why_not_intact or after.findings.missing
    )


def test_a_policy_of_before_is_remembered_by_each_new_segment() -> None:
    node = filled(3, segment_bytes=300)
    node.store.set_policy("everysec")
    for number in range(10):
        node.add(b"E-%d" % number)
    node.store.set_policy("always")
    node.add(b"D-y")
    assert restarted(node, node.disk, "kernel-2").findings.why_not_intact == (
        "the machine went down with appendfsync other than always"
    )


def test_a_life_without_the_log_breaks_it() -> None:
    node = filled()
    node.boot += 1
    assert "isn't in the log" in restarted(node, node.disk).findings.why_not_intact


def test_a_boot_that_only_the_log_knows_breaks_nothing() -> None:
    """A crash after the log had the new boot, and before nodes.conf had it."""
    node = filled()
    node.boot -= 1
    assert restarted(node, node.disk).findings.is_intact


def test_a_log_that_was_switched_off_is_not_intact() -> None:
    node = filled()
    node.store.write_end("off")
    findings = restarted(node, node.disk).findings
    assert (findings.is_off, findings.why_not_intact) == (True, "the log was switched off")


def test_a_log_switched_on_is_intact_once_all_was_said() -> None:
    node = filled()
    node.store.write_end("off")
    node.store.write([])
    node.compaction.begin_rewrite()
    assert restarted(node, node.disk.copy()).findings.why_not_intact == "the log was switched off"
    node.compact_all()
    after = restarted(node, node.disk)
    assert after.findings.is_intact
    assert after.engine.facts() == node.engine.facts()


def test_what_was_queued_comes_back_after_a_clean_end_only() -> None:
    node = filled()
    node.stop([b"D-3", b"D-1"])
    after = restarted(node, node.disk)
    assert after.findings.queued == [b"D-3", b"D-1"]
    assert after.findings.is_ended
    assert restarted(after, node.disk).findings.queued is None


def test_a_hole_in_what_no_sync_covered_is_harmless_under_always_after_power_loss() -> None:
    node = filled()
    size = node.disk.size(1)
    for number in range(3):
        node.engine.add(b"E-%d" % number, b"body")
    node.turn()
    node.disk.flip(1, size + 30)
    after = restarted(node, node.disk.copy(), "kernel-2")
    assert after.findings.is_intact
    assert {b"D-%d" % n for n in range(8)} <= set(after.engine.entries)
    assert restarted(after, after.disk, "kernel-3").findings.is_intact
    assert not restarted(node, node.disk).findings.is_intact


def test_a_hole_in_what_was_synced_is_damage_whatever_the_policy() -> None:
    node = filled()
    damage(node)
    assert not restarted(node, node.disk, "kernel-2").findings.is_intact


@pytest.mark.parametrize("seed", range(60))
def test_power_loss_under_always_costs_nothing_that_was_synced(seed: int) -> None:
    node = Node(MemoryDisk(random.Random(seed)), segment_bytes=300)
    for life in range(3):
        for number in range(10):
            node.add(b"D-%d-%d" % (life, number))
        kept = dict(node.engine.entries)
        for number in range(5):
            node.engine.add(b"E-%d-%d" % (life, number), b"unsynced")
            if number % 2:
                node.turn()
        findings = node.lose_power()
        assert findings.is_intact, findings
        assert set(kept) <= set(node.engine.entries)
