"""Golden histories with one anomaly each: every kind of finding of every checker, in a run that is valid otherwise.

Exactly its finding is expected, by checker and kind.
"""

from __future__ import annotations

from typing import Any

import pytest

from jepsen import checkers
from jepsen.checkers import verdict
from jepsen.history import FAIL, INFO
from tests.unit.jepsen.telling import NODES, Story, Tale, found, judge, run_of
from tests.unit.jepsen.test_golden_valid import many_once


def unexpected_value(tale: Tale) -> None:
    tale.get([77], 20_000)


def foreign_body(tale: Tale) -> None:
    tale.get([-1], 20_000)


def phantom(tale: Tale) -> None:
    tale.add(1, 20_000, outcome=FAIL, error="refused")
    tale.get([1], 20_100)
    tale.ack([1], 20_200)


def mislabelled(tale: Tale) -> None:
    tale.add(1, 20_000)
    tale.get([1], 20_100, ids={1: "D-000000a0-another-05a1"})
    tale.ack([1], 20_200)


def misrouted(tale: Tale) -> None:
    tale.add(1, 20_000)
    tale.get([1], 20_100, from_queue="elsewhere")
    tale.ack([1], 20_200)


def plainly_lost(tale: Tale) -> None:
    tale.add(1, 13_000, "n1")


def lost_though_one_copy_was_left(tale: Tale) -> None:
    tale.add(1, 20_000, "n1", replicate=3)
    tale.kill(20_100, 21_000, "n1", "n2")


def lost_though_its_node_was_never_wiped(tale: Tale) -> None:
    tale.add(1, 20_000, "n1", replicate=2)
    tale.kill(20_100, 21_000, "n4", "n5")


def lost_though_the_kill_came_before(tale: Tale) -> None:
    tale.kill(18_000, 19_000, "n1", "n2")
    tale.add(1, 25_000, "n1", replicate=1)


def lost_though_the_log_was_on(tale: Tale) -> dict[str, Any]:
    tale.add(1, 20_000, "n1", replicate=1)
    tale.fault(20_100, 21_000, "kill", nodes=["n1"])
    return {"log": True, "fsync": "everysec"}


def lost_though_synced(tale: Tale) -> dict[str, Any]:
    tale.add(1, 17_000, "n1", replicate=1)
    tale.fault(20_100, 21_000, "power-loss", nodes=["n1"])
    return {"log": True, "fsync": "everysec"}


def lost_by_a_purge_that_came_before(tale: Tale) -> None:
    tale.purge(18_000)
    tale.add(1, 25_000)


def stuck(tale: Tale) -> dict[str, Any]:
    tale.add(1, 20_000)
    tale.look(70_000, {"n1": [1], "n3": [1]})
    return {}


def never_offered_again(tale: Tale) -> None:
    tale.add(1, 20_000)
    tale.get([1], 20_100)


def stuck_though_another_was_wiped(tale: Tale) -> None:
    tale.add(1, 69_000)
    tale.look(70_000, {"n1": [1], "n3": [1]})
    tale.kill(71_000, 72_000, "n1", "n4")


def never_offered_again_by_the_node_that_it_was_left_to(tale: Tale) -> None:
    tale.add(1, 25_000, "n1", replicate=1)
    tale.nemesis("leave", 26_000, {"target": "n1", "proven": True})
    tale.look(27_000, {"n4": [1]}, members={"n1": []})
    tale.nemesis("join", 28_000, {"target": "n1", "proven": True})
    tale.get([1], 33_500, "n4")


def never_offered_again_though_its_node_left_before(tale: Tale) -> None:
    """It joined again before the job was added, so that it still has its copy."""
    tale.nemesis("leave", 22_000, {"target": "n1", "proven": True})
    tale.nemesis("join", 23_000, {"target": "n1", "proven": True})
    tale.add(1, 25_000, "n1", replicate=1)
    tale.get([1], 33_500, "n4")
    tale.kill(34_000, 35_000, "n4")


def twice_at_most_once(tale: Tale) -> None:
    tale.add(1, 13_000, retry=0, replicate=1)
    tale.get([1], 13_100)
    tale.get([1], 13_200, "n4")
    tale.ack([1], 13_300)


def dropped_at_most_once(tale: Tale) -> None:
    tale.add(1, 25_000, retry=0, replicate=1)


def dropped_at_most_once_in_a_cut(tale: Tale) -> None:
    """Nobody died, so that it should be somewhere."""
    tale.add(1, 13_000, retry=0, replicate=1)


def dropped_at_most_once_long_before_a_kill(tale: Tale) -> None:
    tale.add(1, 25_000, retry=0, replicate=1)
    for node in NODES:
        tale.get([], 31_000, node)
    tale.kill(40_000, 41_000, "n1")


def dropped_at_most_once_beside_a_lost_answer(tale: Tale) -> None:
    """It had one job at most."""
    for v in range(2):
        tale.add(v, 25_000, retry=0, replicate=1)
    tale.get([], 25_100, outcome=INFO, error="timeout", took=700)
    many_once(tale)


def after_the_ack(tale: Tale) -> None:
    tale.add(1, 11_500)
    tale.get([1], 11_600)
    tale.ack([1], 14_000)
    tale.get([1], 20_500, "n4")


def after_the_ack_of_its_owner(tale: Tale) -> None:
    """RETRY 0, acked before anybody got it, where it was."""
    tale.add(1, 25_000, retry=0, replicate=1)
    tale.ack([1], 25_200)
    tale.get([1], 33_000, "n4")


def after_the_cancel(tale: Tale) -> None:
    tale.add(1, 13_000)
    tale.order("cancel", [1], 14_000)
    tale.get([1], 20_500, "n4")


def after_the_fastack(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.order("fastack", [1], 25_100)
    tale.get([1], 30_500, "n4")


def after_the_purge(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.purge(31_000)
    tale.get([1], 36_100, "n4")
    tale.ack([1], 36_200)


def back_from_nowhere(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_020)
    tale.ack([1], 25_040)
    tale.look(26_000)
    tale.look(27_000)
    # before ends have to be known everywhere, so that nothing else is wrong about it
    tale.look(28_000, {"n3": [1]})


def delivered_from_nowhere(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_020)
    tale.ack([1], 25_040)
    tale.look(26_000)
    tale.look(27_000)
    tale.get([1], 28_000)


def back_with_a_restart(tale: Tale) -> None:
    """Neither link nor stopped node kept it: it was in a log. Its ack was taken by the node that was killed."""
    tale.add(1, 25_000)
    tale.get([1], 25_020)
    tale.ack([1], 25_040)
    tale.look(26_000)
    tale.look(27_000)
    tale.kill(28_000, 30_000, "n1")
    tale.get([1], 30_100, "n1")


def views_differ(tale: Tale) -> None:
    tale.look(18_500, members={"n2": ["n1", "n2"]})


def failing_after_the_heal(tale: Tale) -> None:
    tale.look(18_500, failing={"n2": ["n4"]})


def end_unheard(tale: Tale) -> None:
    tale.add(1, 11_500)
    tale.get([1], 11_600)
    tale.ack([1], 14_000)
    tale.look(20_500, {"n4": [1]})


def leftover(tale: Tale) -> None:
    tale.look(69_000, phase="end", acked={"n2": 3})


def queued_at_most_once(tale: Tale) -> None:
    tale.add(1, 13_000, retry=0, replicate=1)
    tale.look(69_000, {"n1": [1]}, phase="end")


def emptied_late(tale: Tale) -> None:
    tale.whole(1, 50_000)
    tale.look(56_000, phase="drain", registered={"n1": 1, "n3": 1}, acked={"n1": 1, "n3": 1})


def emptied_late_at_the_end(tale: Tale) -> None:
    tale.whole(1, 60_500)
    tale.look(67_000, phase="end", registered={"n3": 1}, acked={"n3": 1})


def left_with_the_last_copy_after_the_last_look(tale: Tale) -> None:
    tale.add(1, 69_000, "n2", replicate=1)
    tale.look(70_000, {"n2": [1]})
    tale.nemesis("leave", 71_000, {"target": "n2", "proven": True})


def leak(tale: Tale) -> None:
    tale.look(69_000, phase="end", bytes={"n2": 100_000})


def impossible_replicate(tale: Tale) -> None:
    tale.add(1, 13_000, "n1", replicate=3)
    tale.get([1], 13_100)
    tale.ack([1], 13_200)


def impossible_replicate_for_a_waiting_consumer(tale: Tale) -> None:
    tale.add(1, 13_000, "n1", replicate=3)
    tale.get([1], 12_800, "n2", took=210)
    tale.ack([1], 13_200)


def too_few_copies(tale: Tale) -> None:
    tale.add(1, 25_000, replicate=3)
    tale.look(26_000, {"n1": [1], "n3": [1]})
    tale.get([1], 26_500)
    tale.ack([1], 26_600)


def before_its_delay(tale: Tale) -> None:
    tale.add(1, 13_000, delay=5)
    tale.get([1], 17_000)
    tale.ack([1], 17_100)


def before_the_delay_of_a_nack(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("nack", [1], 25_200, delay=5)
    tale.get([1], 28_000)
    tale.ack([1], 28_100)


def within_the_lease(tale: Tale) -> None:
    tale.add(1, 25_000, retry=10)
    tale.get([1], 25_100)
    tale.get([1], 26_100, "n2")
    tale.ack([1], 26_200)


def in_spite_of_working(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("working", [1], 26_200)
    tale.get([1], 27_300, "n2")
    tale.ack([1], 27_400)


def lost_before_its_holders_died(tale: Tale) -> None:
    """All nodes had nothing, twice, in a long calm: what came after took nothing."""
    tale.add(1, 20_000, "n1")
    for n in range(10):
        tale.get([], 27_500 + 200 * n, NODES[n % 5])
    tale.kill(40_000, 41_000, "n1", "n2")


def not_offered_for_long(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([], 36_000, took=500)
    tale.get([], 39_600, "n2", took=500)
    tale.get([1], 42_000)
    tale.ack([1], 42_100)


def not_offered_again_for_long(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.get([], 38_000, "n3", took=500)
    tale.get([], 41_600, "n2", took=500)
    tale.get([1], 43_000)
    tale.ack([1], 43_100)


def not_offered_for_long_before_an_answer_was_lost(tale: Tale) -> None:
    """Who was asked after all that can't have had it meanwhile."""
    not_offered_for_long(tale)
    tale.get([], 50_000, "n4", outcome=INFO, error="timeout", took=700)


def not_offered_after_a_nack(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("nack", [1], 25_200, delay=2)
    tale.get([], 38_000, "n3", took=500)
    tale.get([], 41_600, "n2", took=500)
    tale.get([1], 43_000)
    tale.ack([1], 43_100)


def after_its_ttl(tale: Tale) -> None:
    tale.add(1, 25_000, ttl=3)
    tale.get([1], 31_100)
    tale.ack([1], 31_200)


def kept_after_its_ttl(tale: Tale) -> None:
    tale.add(1, 25_000, ttl=3)
    tale.look(37_000, {"n2": [1]})


def over_the_limit(tale: Tale) -> None:
    tale.add(1, 25_000, limit=2, dead="dead")
    for again in range(3):
        tale.get([1], 25_100 + 2100 * again)
    tale.ack([1], 35_000)


def over_the_limit_on_two_sides(tale: Tale) -> None:
    tale.add(1, 10_000, limit=1, dead="dead", replicate=3)
    tale.get([1], 12_200)
    tale.get([1], 12_300, "n4")
    tale.get([1], 14_500, "n4")
    tale.ack([1], 14_600)


def buried_early(tale: Tale) -> None:
    tale.add(1, 25_000, limit=3, dead="dead")
    tale.get([1], 25_100)
    tale.get([1], 27_200, queue="dead")
    tale.ack([1], 27_300)


def two_letters(tale: Tale) -> None:
    tale.add(1, 25_000, limit=1, dead="dead")
    tale.get([1], 25_100)
    tale.get([1], 27_200, queue="dead")
    tale.get([1], 27_300, "n4", queue="dead")
    tale.ack([1], 27_400)


def repeated_id(tale: Tale) -> None:
    first = tale.add(1, 25_000)
    tale.get([1], 25_050)
    tale.ack([1], 25_100)
    tale.add(2, 26_000, job=first, retry=0, replicate=1)
    tale.get([], 26_100, outcome=INFO, error="timeout")


def foreign_id(tale: Tale) -> None:
    tale.whole(1, 25_000, "n2", job="D-000000a0-made-by-n1")


def left_with_the_last_copy(tale: Tale) -> None:
    tale.add(1, 20_000, "n2")
    tale.look(20_500, {"n2": [1]})
    tale.nemesis("leave", 21_000, {"target": "n2", "proven": True})
    tale.nemesis("join", 25_000, {"target": "n2", "proven": True})


def unavailable(tale: Tale) -> None:
    for v in range(2):
        tale.add(v, 13_000 + 10 * v, "n1", replicate=1, outcome=INFO, error="timeout", took=500)


def unavailable_at_one_node_in_one_of_many_faults(tale: Tale) -> None:
    for v in range(300):
        tale.whole(v, 12_100 + 9 * v, "n1", replicate=1)
    tale.cut(21_000, 22_000, ["n3"])
    for v in range(300, 302):
        tale.add(v, 21_100 + v, "n2", replicate=1, outcome=INFO, error="timeout", took=500)


def refused_without_reason(error: str) -> Story:
    def story(tale: Tale) -> None:
        for v in range(2):
            tale.add(v, 13_000 + v, "n1", replicate=1, outcome=FAIL, error=error)

    story.__name__ = f"refused_with_{error.partition(' ')[0]}"
    return story


def refused_in_calm(tale: Tale) -> None:
    for v in range(2):
        tale.add(v, 20_500, outcome=FAIL, error="ERR Internal error creating the job")


def refused_though_another_disk_was_full(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    for v in range(2):
        tale.add(v, 23_000 + v, "n2", replicate=1, outcome=FAIL, error="MISCONF no space")


def refused_long_after_the_disk_was_full(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    tale.cut(31_100, 33_000, ["n4"])
    for v in range(2):
        tale.add(v, 31_500 + v, "n1", replicate=1, outcome=FAIL, error="MISCONF no space")


def silent_while_the_disk_was_full(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    for v in range(2):
        tale.add(v, 23_000 + v, "n1", replicate=1, outcome=INFO, error="timeout", took=500)


def silent_after_refusals_of_a_full_disk(tale: Tale) -> None:
    tale.fault(22_000, 26_000, "disk-full", nodes=["n1"])
    tale.add(9, 22_100, "n1", replicate=1, outcome=FAIL, error="MISCONF no space")
    for v in range(2):
        tale.add(v, 22_200 + v, "n1", replicate=1, outcome=INFO, error="timeout", took=2_500)
        tale.add(10 + v, 22_300 + v, "n1", replicate=1, outcome=FAIL, error="MISCONF no space")


def slow_gets(tale: Tale) -> None:
    for again in range(2):
        tale.get([], 13_000 + 10 * again, "n1", timeout=100, took=1_500)


def not_recovered(tale: Tale) -> None:
    for v in range(2):
        tale.add(v, 20_500, outcome=INFO, error="NOREPL Not enough reachable nodes")


def slow_in_calm(tale: Tale) -> None:
    for v in range(2):
        tale.add(v, 20_500, took=2_400)
        tale.get([v], 23_000)
        tale.ack([v], 23_100)


def out_of_order(tale: Tale) -> None:
    for v in range(3):
        tale.add(v, 25_000 + 10 * v, queue="fifo", process=1)
    tale.get([0, 2, 1], 25_100, queue="fifo", process=2)
    tale.ack([0, 1, 2], 25_200)


def overtaken_among_many(tale: Tale) -> None:
    """Three add at one node, three get there; the second value comes after the third had been handed out."""
    for v in range(3):
        tale.add(v, 25_000 + 10 * v, queue="fifo", process=v)
    for n, v in enumerate((0, 2, 1)):
        tale.get([v], 25_100 + 10 * n, queue="fifo", process=10 + v)
    tale.get([], 25_200, "n3", queue="fifo")
    tale.ack([0, 1, 2], 25_300)


def overtaken_by_one_of_its_priority(tale: Tale) -> None:
    tale.add(0, 25_000, queue="fifo", priority=5)
    tale.add(1, 25_010, queue="fifo", priority=5)
    tale.add(2, 25_020, queue="fifo", priority=9)
    tale.get([2, 1, 0], 25_100, queue="fifo")
    tale.ack([0, 1, 2], 25_300)


def traceback(tale: Tale) -> dict[str, Any]:
    return {"tracebacks": ("n1: Traceback (most recent call last)",)}


def crashed(tale: Tale) -> dict[str, Any]:
    return {"exits": ("n1: exit code 1",)}


INVALID: list[tuple[Story, str, str]] = [
    (unexpected_value, "accounting", "unexpected"),
    (foreign_body, "accounting", "unexpected"),
    (phantom, "accounting", "phantom"),
    (mislabelled, "accounting", "mislabelled"),
    (misrouted, "accounting", "misrouted"),
    (plainly_lost, "loss", "lost"),
    (lost_though_one_copy_was_left, "loss", "lost"),
    (lost_though_its_node_was_never_wiped, "loss", "lost"),
    (lost_though_the_kill_came_before, "loss", "lost"),
    (lost_before_its_holders_died, "loss", "lost"),
    (lost_though_the_log_was_on, "loss", "lost"),
    (lost_though_synced, "loss", "lost"),
    (lost_by_a_purge_that_came_before, "loss", "lost"),
    (stuck, "loss", "stuck"),
    (never_offered_again, "loss", "unfinished"),
    (stuck_though_another_was_wiped, "loss", "stuck"),
    (never_offered_again_by_the_node_that_it_was_left_to, "loss", "unfinished"),
    (never_offered_again_though_its_node_left_before, "loss", "unfinished"),
    (twice_at_most_once, "at-most-once", "delivered-twice"),
    (dropped_at_most_once, "at-most-once", "dropped"),
    (dropped_at_most_once_in_a_cut, "at-most-once", "dropped"),
    (dropped_at_most_once_long_before_a_kill, "at-most-once", "dropped"),
    (dropped_at_most_once_beside_a_lost_answer, "at-most-once", "dropped"),
    (after_the_ack, "ack-respected", "delivered-late"),
    (after_the_ack_of_its_owner, "ack-respected", "delivered-late"),
    (after_the_cancel, "ack-respected", "delivered-late"),
    (after_the_fastack, "ack-respected", "delivered-late"),
    (after_the_purge, "ack-respected", "purged"),
    (back_from_nowhere, "no-resurrection", "resurrected"),
    (delivered_from_nowhere, "no-resurrection", "resurrected"),
    (back_with_a_restart, "no-resurrection", "resurrected"),
    (views_differ, "convergence", "views-differ"),
    (failing_after_the_heal, "convergence", "failing"),
    (end_unheard, "convergence", "end-unheard"),
    (leftover, "drain-to-zero", "leftover"),
    (queued_at_most_once, "drain-to-zero", "leftover"),
    (emptied_late, "drain-to-zero", "late"),
    (emptied_late_at_the_end, "drain-to-zero", "late"),
    (leak, "drain-to-zero", "leak"),
    (impossible_replicate, "replication", "impossible"),
    (impossible_replicate_for_a_waiting_consumer, "replication", "impossible"),
    (too_few_copies, "replication", "too-few-copies"),
    (before_its_delay, "delay", "early"),
    (before_the_delay_of_a_nack, "delay", "early-after-nack"),
    (within_the_lease, "retry-lease", "early-redelivery"),
    (in_spite_of_working, "retry-lease", "working-ignored"),
    (not_offered_for_long, "retry-lease", "late"),
    (not_offered_for_long_before_an_answer_was_lost, "retry-lease", "late"),
    (not_offered_again_for_long, "retry-lease", "late"),
    (not_offered_after_a_nack, "retry-lease", "late"),
    (after_its_ttl, "ttl", "delivered-expired"),
    (kept_after_its_ttl, "ttl", "kept-expired"),
    (over_the_limit, "dead-letter", "over-limit"),
    (over_the_limit_on_two_sides, "dead-letter", "over-limit"),
    (buried_early, "dead-letter", "buried-early"),
    (two_letters, "dead-letter", "two-letters"),
    (repeated_id, "unique-ids", "repeated"),
    (foreign_id, "unique-ids", "foreign"),
    (left_with_the_last_copy, "leaving", "left-with"),
    (left_with_the_last_copy_after_the_last_look, "leaving", "left-with"),
    *[
        (refused_without_reason(error), "availability", "add-unavailable")
        for error in ("ERR Internal error", "OOM full", "LEAVING this node", "PAUSED queue")
    ],
    (refused_in_calm, "latency", "not-recovered"),
    (refused_though_another_disk_was_full, "availability", "add-unavailable"),
    (refused_long_after_the_disk_was_full, "availability", "add-unavailable"),
    (silent_while_the_disk_was_full, "availability", "add-unavailable"),
    (silent_after_refusals_of_a_full_disk, "availability", "add-unavailable"),
    (unavailable, "availability", "add-unavailable"),
    (unavailable_at_one_node_in_one_of_many_faults, "availability", "add-unavailable"),
    (slow_gets, "availability", "get-unavailable"),
    (not_recovered, "latency", "not-recovered"),
    (slow_in_calm, "latency", "not-recovered"),
    (out_of_order, "order", "out-of-order"),
    (overtaken_among_many, "order", "out-of-order"),
    (overtaken_by_one_of_its_priority, "order", "out-of-order"),
    (traceback, "health", "traceback"),
    (crashed, "health", "exit"),
]


@pytest.mark.parametrize(
    ("story", "checker", "kind"), INVALID, ids=[s.__name__ for s, _, _ in INVALID]
)
def test_anomaly_is_found_and_nothing_else(story: Story, checker: str, kind: str) -> None:
    run = run_of(story)
    assert found(run) == {(checker, kind)}
    results = judge(run)
    assert results[checker].valid is False
    assert verdict(results.values()) is False


def test_every_checker_has_an_anomaly() -> None:
    # stats never finds anything: it is valid or unknown
    assert {checker for _, checker, _ in INVALID} == set(checkers.CLAIMS) - {"stats"}
