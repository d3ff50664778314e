"""Golden histories that are valid: one for each shape of a workload, and each legal misfortune."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen import checkers
from jepsen.checkers import verdict
from jepsen.history import FAIL, INFO
from tests.unit.jepsen.telling import NODES, PREFIXES, Story, Tale, run_of, unknown


def nothing(tale: Tale) -> None:
    pass


def late_duplicate_in_a_cut(tale: Tale) -> None:
    tale.add(1, 11_500)
    tale.get([1], 11_600)
    tale.ack([1], 14_000)
    tale.get([1], 14_500, "n4")
    tale.ack([1], 14_600, "n4")


def redelivered_after_retry(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.get([1], 27_105, "n3")
    tale.ack([1], 27_200, "n2")


def given_back(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("nack", [1], 25_200, "n5")
    tale.get([1], 25_300, "n3")
    tale.order("working", [1], 26_000, "n3")
    tale.order("nack", [1], 26_500, delay=3)
    tale.get([1], 29_520, "n3")
    tale.ack([1], 29_600)


def kept_by_working(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("working", [1], 26_600)
    tale.get([1], 28_700, "n3")
    tale.ack([1], 28_800)


def lost_with_all_its_copies(tale: Tale) -> None:
    tale.add(1, 20_000, "n1")
    tale.kill(20_100, 21_000, "n1", "n2")


def lost_where_a_node_was_asked_once(tale: Tale) -> None:
    """It may have been on its way to a node that had just been asked."""
    tale.add(1, 20_000, "n1")
    for n in range(9):
        tale.get([], 27_500 + 200 * n, NODES[n % 5])
    tale.kill(40_000, 41_000, "n1", "n2")


def lost_with_its_only_copy(tale: Tale) -> None:
    tale.add(1, 20_000, "n1", replicate=1)
    tale.kill(20_100, 21_000, "n1")


def lost_by_a_default_replicate_in_a_minority(tale: Tale) -> None:
    tale.add(1, 14_000, "n1", replicate=0)
    tale.kill(15_100, 16_000, "n1", "n2")


def lost_with_the_log(tale: Tale) -> dict[str, Any]:
    tale.add(1, 20_000, "n1", replicate=1)
    tale.fault(20_100, 21_000, "power-loss", nodes=["n1"])
    return {"log": True, "fsync": "everysec"}


def lost_by_damaged_disks(tale: Tale) -> dict[str, Any]:
    tale.add(1, 20_000, "n1", replicate=2)
    tale.fault(20_100, 21_000, "truncate", damaged=["n1", "n4"], wipes=[])
    return {"log": True, "fsync": "always"}


def many_once(tale: Tale) -> None:
    """So many that few are none."""
    for v in range(500, 520):
        tale.whole(v, 31_000 + v, retry=0, replicate=1)


def once_and_in_doubt(tale: Tale) -> None:
    """Kept where it was when a cut came on its way; in an answer that was lost."""
    many_once(tale)
    tale.add(1, 13_000, retry=0, replicate=1)
    tale.look(69_000, {"n1": [1]}, phase="end", queued={})
    tale.add(2, 30_000, retry=0, replicate=1)
    tale.get([], 30_100, outcome=INFO, error="timeout", took=700)


def once_for_a_client_that_had_gone(tale: Tale) -> None:
    """Its GETJOB lay before a stopped node, which read it when it went on."""
    many_once(tale)
    tale.fault(40_000, 46_000, "pause", nodes=["n1"])
    tale.get([], 41_000, outcome=INFO, error="timeout", took=700)
    tale.add(1, 44_000, "n2", retry=0, replicate=1)


def once_on_a_node_that_died(tale: Tale) -> None:
    many_once(tale)
    tale.add(1, 38_000, retry=0, replicate=1)
    tale.kill(40_000, 41_000, "n4")


def once_and_in_a_long_queue(tale: Tale) -> None:
    """Its node died long after, but had never had an empty queue."""
    many_once(tale)
    tale.add(1, 33_000, retry=0, replicate=1)
    for node in NODES[1:]:
        tale.get([], 46_000, node)
    tale.kill(50_000, 51_000, "n1")


def in_doubt_under_an_id_that_nobody_heard(tale: Tale) -> None:
    unknown = {"outcome": INFO, "error": "NOREPL", "job": f"D-{PREFIXES['n1']}-{1:024x}-05a0"}
    tale.add(1, 13_000, retry=0, replicate=1, **unknown)
    tale.look(69_000, {"n1": [1]}, phase="end", queued={})


def delayed(tale: Tale) -> None:
    tale.add(1, 25_000, delay=2)
    tale.get([1], 27_010, "n2")
    tale.ack([1], 27_100)
    tale.add(2, 25_000, delay=20)
    tale.order("enqueue", [2], 26_000, "n2")
    tale.get([2], 26_100)
    tale.ack([2], 26_200)


def expired(tale: Tale) -> None:
    tale.add(1, 25_000, ttl=3)
    tale.add(2, 25_000, ttl=3)
    tale.get([2], 26_000)
    tale.look(27_000, {"n1": [1, 2], "n3": [1, 2]})


def buried_on_both_sides(tale: Tale) -> None:
    tale.add(1, 11_000, limit=1, dead="dead", replicate=3)
    tale.get([1], 12_500)
    tale.get([1], 13_000, "n4")
    tale.get([1], 20_000, queue="dead")
    tale.ack([1], 20_100)


def queued_at_two_nodes_at_once(tale: Tale) -> None:
    """An ENQUEUE and a NACK cross: each queues a copy without asking, and both are handed out before that is known."""
    tale.add(1, 25_000, limit=2)
    tale.get([1], 25_100)
    tale.order("enqueue", [1], 25_200, "n2")
    tale.order("nack", [1], 25_210, "n3")
    tale.get([1], 25_230, "n2")
    tale.get([1], 25_240, "n3")
    tale.ack([1], 25_300, "n2")


def revived(tale: Tale) -> None:
    tale.add(1, 25_000, limit=1)
    tale.get([1], 25_100)
    tale.get([1], 27_200, queue="dead-letters")
    tale.order("revive", [1], 27_300)
    tale.get([1], 27_400)
    tale.ack([1], 27_500)


def ended_by_clients(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.order("deljob", [1], 25_100)
    tale.add(2, 25_000)
    tale.order("cancel", [2], 25_200, "n3")
    tale.add(3, 25_000)
    tale.order("fastack", [3], 25_300, outcome=INFO, error="timeout")
    tale.order("fastack", [3], 25_400)
    tale.add(4, 25_000, "n2", queue="other")
    tale.purge(26_000, "other")


def missed_by_purges(tale: Tale) -> None:
    """Added shortly before one, in a cut, or with RETRY 0, which may have been on its way; or handed out soon after."""
    tale.add(1, 13_000)
    tale.add(2, 27_000)
    tale.add(3, 25_000, retry=0, replicate=1)
    tale.add(4, 25_000, queue="other")
    tale.add(5, 20_000)
    tale.purge(31_000)
    tale.purge(31_000, "other")
    tale.get([5], 31_100)
    tale.get([5], 37_000)
    tale.get([1, 2, 3], 37_000, "n4")
    tale.ack([1, 2, 3, 5], 37_200)


def unknown_and_refused(tale: Tale) -> None:
    tale.add(1, 13_000, "n1", replicate=3, outcome=INFO, error="NOREPL Not enough reachable nodes")
    tale.add(2, 13_000, "n4", replicate=2, outcome=INFO, error="timeout", took=1000)
    tale.get([2], 16_000, "n3")
    tale.ack([2], 16_100)
    tale.add(3, 13_000, "n3", outcome=FAIL, error="refused")


def replicated(tale: Tale) -> None:
    tale.add(1, 25_000, replicate=3)
    tale.look(26_000, {"n1": [1], "n3": [1], "n5": [1]})
    tale.get([1], 26_500)
    tale.ack([1], 26_600)


def acked_by_a_wiped_node(tale: Tale) -> None:
    tale.add(1, 20_000)
    tale.get([1], 20_100)
    tale.ack([1], 20_200, "n3")
    tale.kill(20_210, 21_000, "n3")
    tale.get([1], 29_000, "n2")
    tale.ack([1], 29_100, "n2")


def in_order(tale: Tale) -> None:
    for v in range(5):
        tale.add(v, 25_000 + 10 * v, queue="fifo", process=1)
    tale.get([0, 1], 25_100, queue="fifo", process=2)
    tale.get([2, 3, 4], 25_120, queue="fifo", process=2)
    tale.ack([0, 1, 2, 3, 4], 25_200)


def overtaken_by_higher_priority(tale: Tale) -> None:
    tale.add(0, 25_000, queue="fifo")
    tale.add(1, 25_010, queue="fifo", priority=9)
    tale.get([1, 0], 25_100, queue="fifo")
    tale.ack([0, 1], 25_300)


def in_no_certain_order(tale: Tale) -> None:
    """Added at the same time; handed out at the same time; taken in a row, and the answers cross."""
    tale.add(0, 25_000, queue="fifo", took=20)
    tale.add(1, 25_010, queue="fifo")
    tale.get([1], 25_030, queue="fifo")
    tale.get([0], 25_040, queue="fifo")
    tale.add(2, 26_000, queue="fifo")
    tale.add(3, 26_010, queue="fifo")
    tale.get([2], 26_020, queue="fifo", took=30)
    tale.get([3], 26_025, queue="fifo")
    tale.ack([0, 1, 2, 3], 26_100)


def overtaken_while_it_may_have_been_away(tale: Tale) -> None:
    """Another node was asked shortly before; it waits for its DELAY; a lost answer may have had it."""
    tale.get([], 24_000, "n2", queue="moved")
    tale.add(0, 25_000, queue="moved")
    tale.add(1, 25_010, queue="moved")
    tale.get([1, 0], 25_100, queue="moved")
    tale.add(2, 26_000, queue="delayed", delay=1)
    tale.add(3, 26_010, queue="delayed")
    tale.get([3], 26_100, queue="delayed")
    tale.get([2], 27_100, queue="delayed")
    tale.add(4, 30_000, queue="taken")
    tale.get([], 30_006, queue="taken", outcome=INFO, error="timeout")
    tale.add(5, 30_010, queue="taken")
    tale.get([5], 30_100, queue="taken")
    tale.get([4], 32_010, queue="taken")
    tale.ack([0, 1, 2, 3, 4, 5], 32_100)


def overtaken_near_a_cut(tale: Tale) -> None:
    tale.add(0, 16_000, queue="fifo")
    tale.add(1, 16_010, queue="fifo")
    tale.get([1, 0], 16_100, queue="fifo")
    tale.ack([0, 1], 16_200)


def a_node_leaves(tale: Tale) -> None:
    tale.add(1, 20_000, "n2")
    tale.nemesis("leave", 21_000, {"target": "n2", "proven": True})
    tale.look(22_000, {"n4": [1]}, members={"n2": []})
    tale.nemesis("join", 25_000, {"target": "n2", "proven": True})
    tale.get([1], 30_500)
    tale.ack([1], 30_600)


def gone_with_the_last_who_stayed(tale: Tale) -> None:
    """Four of five leave: two copies were promised, and one is all that there can be."""
    tale.add(1, 20_000, "n1", replicate=2)
    for number, node in enumerate(NODES[:4]):
        tale.nemesis("leave", 21_000 + number, {"target": node, "proven": True})
    tale.kill(24_000, 25_000, "n5")
    for number, node in enumerate(NODES[:4]):
        tale.nemesis("join", 26_000 + number, {"target": node, "proven": True})


def purged_while_a_worker_had_it(tale: Tale) -> None:
    """Nobody who asks later gets it, and nobody should."""
    tale.add(1, 20_000, queue="p", retry=1)
    tale.get([1], 20_100, queue="p")
    tale.purge(20_500, "p")
    for at in (40_000, 46_000, 52_000):
        tale.get([], at, queue="p")


def a_node_is_away(tale: Tale) -> None:
    """A full disk of snapshots during a cut: views differ, as they may."""
    halves = {node: ["n1", "n2"] if node in ("n1", "n2") else ["n3", "n4", "n5"] for node in NODES}
    tale.look(14_000, members=halves)
    tale.look(16_000, members=halves)


def on_its_way_when_first_asked(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([], 38_000, "n3", took=500)
    tale.get([], 39_000, "n3", took=500)
    tale.get([1], 40_000)
    tale.ack([1], 40_100)


def held_back_by_a_cut(tale: Tale) -> None:
    """Two full rounds lack it, then the heal brings a copy that a link kept."""
    tale.cut(30_000, 40_000, ["n1"])
    tale.add(1, 30_100, "n2")
    tale.get([1], 30_200, "n2")
    tale.ack([1], 30_300, "n2")
    halves = {node: [node] if node == "n1" else ["n2", "n3", "n4", "n5"] for node in NODES}
    tale.look(36_000, members=halves)
    tale.look(38_000, members=halves)
    tale.get([1], 40_200, "n1")


def once_acked_elsewhere(tale: Tale) -> None:
    """An ack of a RETRY 0 job is worth nothing where it never was: its spent copy stays."""
    tale.add(1, 25_000, retry=0, replicate=1)
    tale.get([1], 25_100)
    tale.ack([1], 25_200, "n3", count=0)
    tale.look(35_000, {"n1": [1]}, queued={})
    tale.look(69_000, {"n1": [1]}, phase="end", queued={})


def acked_where_it_moved_to_later(tale: Tale) -> None:
    """The ack of a RETRY 0 job came to its taker before the job did: nobody remembers it."""
    tale.add(1, 25_000, retry=0, replicate=1)
    tale.ack([1], 25_200, "n3", count=0)
    tale.get([1], 34_000, "n3")
    tale.ack([1], 34_100, "n3")


def given_up_or_refused(tale: Tale) -> dict[str, Any]:
    tale.nemesis("leave", 12_500, {"target": "n2", "proven": True})
    tale.nemesis("join", 14_000, {"target": "n2", "proven": True})
    for v in range(5):
        tale.add(v, 13_000 + v, replicate=1, outcome=INFO, error="cancelled")
        tale.add(10 + v, 13_000 + v, "n3", replicate=1, outcome=FAIL, error="OOM full")
        tale.add(50 + v, 25_000 + v, outcome=INFO, error="NOREPL Timeout")
        tale.get([], 13_000 + v, "n2", outcome=FAIL, error="LEAVING this node")
        tale.add(20 + v, 13_000 + v, replicate=3, outcome=FAIL, error="NOREPL", is_async=True)
        tale.add(30 + v, 25_000 + v, replicate=6, outcome=FAIL, error="NOREPL")
        tale.get([], 13_000 + v, outcome=INFO, error="cancelled")
    return {"is_external": True}


def refused_by_full_disks(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    tale.fault(32_000, 36_000, "fail-fsync", nodes=["n2", "n3"])
    for v in range(3):
        tale.add(v, 23_000 + v, "n1", replicate=1, outcome=FAIL, error="MISCONF no space")
        tale.get([], 33_000 + v, "n3", outcome=FAIL, error="MISCONF fsync")


def held_while_the_disk_was_full(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    for v in range(2):
        tale.add(v, 22_100 + v, "n1", replicate=1, outcome=INFO, error="timeout", took=2_500)
        tale.add(10 + v, 22_200 + v, "n1", replicate=1, outcome=FAIL, error="MISCONF no space")


def gone_with_nodes_that_were_wiped_after_the_last_look(tale: Tale) -> None:
    tale.add(1, 69_000)
    tale.look(70_000, {"n1": [1], "n3": [1]})
    tale.kill(71_000, 72_000, "n1", "n3")


def gone_with_the_node_that_its_node_left_it_to(tale: Tale) -> None:
    tale.add(1, 25_000, "n1", replicate=1)
    tale.nemesis("leave", 26_000, {"target": "n1", "proven": True})
    tale.look(27_000, {"n4": [1]}, members={"n1": []})
    tale.nemesis("join", 28_000, {"target": "n1", "proven": True})
    tale.get([1], 33_500, "n4")
    tale.kill(34_000, 35_000, "n4")


def emptied_in_time(tale: Tale) -> None:
    """Acked copies for less than 5 s after the last ack; what nobody ended isn't late, whenever it goes."""
    tale.add(2, 48_000, replicate=1, ttl=11)
    tale.get([2], 48_010)
    tale.whole(1, 50_000)
    counts = {"n1": 2, "n3": 1}
    tale.look(55_000, {"n1": [2]}, phase="drain", registered=counts, acked={"n1": 1, "n3": 1})
    tale.look(58_000, {"n1": [2]}, phase="drain")


def handed_out_before_the_add_was_answered(tale: Tale) -> None:
    """REPLICATE 3 with one peer in reach: that one offered it after RETRY, and so it is over and ok."""
    tale.add(1, 12_500, "n1", replicate=3, retry=1, took=1_200)
    tale.get([1], 13_600, "n2")
    tale.ack([1], 13_650, "n2")
    tale.add(2, 12_500, "n1", replicate=3, retry=1, took=1_200)
    tale.get([2], 13_400, "n2", took=400)
    tale.ack([2], 13_900, "n2")


VALID: list[Story] = [
    handed_out_before_the_add_was_answered,
    refused_by_full_disks,
    held_while_the_disk_was_full,
    gone_with_nodes_that_were_wiped_after_the_last_look,
    gone_with_the_node_that_its_node_left_it_to,
    emptied_in_time,
    on_its_way_when_first_asked,
    held_back_by_a_cut,
    once_acked_elsewhere,
    acked_where_it_moved_to_later,
    given_up_or_refused,
    nothing,
    late_duplicate_in_a_cut,
    redelivered_after_retry,
    given_back,
    kept_by_working,
    lost_with_all_its_copies,
    lost_where_a_node_was_asked_once,
    lost_with_its_only_copy,
    lost_by_a_default_replicate_in_a_minority,
    lost_with_the_log,
    lost_by_damaged_disks,
    once_and_in_doubt,
    once_for_a_client_that_had_gone,
    once_on_a_node_that_died,
    once_and_in_a_long_queue,
    in_doubt_under_an_id_that_nobody_heard,
    delayed,
    expired,
    buried_on_both_sides,
    queued_at_two_nodes_at_once,
    revived,
    ended_by_clients,
    missed_by_purges,
    unknown_and_refused,
    replicated,
    acked_by_a_wiped_node,
    in_order,
    overtaken_by_higher_priority,
    in_no_certain_order,
    overtaken_while_it_may_have_been_away,
    overtaken_near_a_cut,
    a_node_leaves,
    purged_while_a_worker_had_it,
    gone_with_the_last_who_stayed,
    a_node_is_away,
]


@pytest.mark.parametrize("story", VALID, ids=lambda story: story.__name__)
def test_valid_history_is_valid(story: Story) -> None:
    run = run_of(story)
    results = checkers.check(run)
    assert [each for result in results for each in result.findings] == []
    assert unknown(run) == set()
    assert verdict(results) is True
