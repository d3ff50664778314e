"""Checkers beside the golden histories: what is unknown, what is counted, and where a rule bends."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from jepsen import checkers
from jepsen.checkers import loss, verdict
from jepsen.history import FAIL, INFO, OK
from tests.unit.jepsen.telling import MS, NODES, Story, Tale, found, judge, run_of, unknown, usual
from tests.unit.jepsen.test_golden_anomalies import twice_at_most_once
from tests.unit.jepsen.test_golden_valid import (
    late_duplicate_in_a_cut,
    lost_with_all_its_copies,
    nothing,
    once_and_in_doubt,
    unknown_and_refused,
)


def unproven(tale: Tale) -> None:
    tale.fault(30_000, 31_000, "pause", nodes=["n1"], proven=False)


def unproven_heal(tale: Tale) -> None:
    tale.fault(30_000, 31_000, "pause", nodes=["n1"], heal_proven=False)


def too_little(tale: Tale) -> dict[str, Any]:
    return {"demands": {"deliveries_in_faults": 100}}


def test_a_run_that_was_cut_short_is_unknown() -> None:
    run = run_of(nothing, drained=None)
    assert found(run) == set()
    assert unknown(run) == {"health", "stats"}


def drain_by_time(tale: Tale) -> dict[str, Any]:
    return {"drained": False}


UNKNOWN: list[tuple[Story, str]] = [
    (unproven, "nothing proves that it was there"),
    (unproven_heal, "nothing proves that it was healed"),
    (too_little, "deliveries_in_faults is 3, 100 asked"),
    (drain_by_time, "the drain ended by its time limit"),
]


@pytest.mark.parametrize(("story", "note"), UNKNOWN, ids=[s.__name__ for s, _ in UNKNOWN])
def test_what_shows_nothing_is_unknown(story: Story, note: str) -> None:
    run = run_of(story)
    assert found(run) == set()
    assert unknown(run) == {"stats"}
    assert any(note in each for each in judge(run)["stats"].notes)


def test_nemesis_that_did_nothing_is_unknown() -> None:
    tale = Tale()
    tale.whole(1, 1_000)
    assert any("did nothing" in each for each in judge(tale.run(nemesis="kill"))["stats"].notes)


def test_each_kind_of_fault_that_was_asked_for_has_to_come() -> None:
    def kinds(tale: Tale) -> dict[str, Any]:
        tale.fault(30_000, 31_000, "pause", nodes=["n1"])
        return {"nemesis": "partition-halves,pause,kill"}

    assert judge(run_of(kinds))["stats"].notes == ("nemesis kill did nothing",)
    assert judge(run_of(kinds, nemesis="mixed"))["stats"].valid


@pytest.mark.parametrize(
    ("place", "note"), [(0, "time goes backwards"), (100, "events are missing")]
)
def test_a_history_that_lost_events_or_its_order_is_unknown(place: int, note: str) -> None:
    run = run_of(nothing)
    if place:
        del run.ops[place]
    else:
        run.ops[place] = attrs.evolve(run.ops[place], time=run.ops[-1].time)
    assert any(note in each for each in judge(run)["stats"].notes)


def test_ends_that_had_no_time_to_settle_show_nothing() -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 1_000, node)
    tale.look(3_000)
    assert judge(tale.run())["ack-respected"].valid is None
    tale.look(8_000)
    assert judge(tale.run())["ack-respected"].valid is True


def test_missing_jobs_of_an_undrained_run_are_unknown() -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 1_000, node)
    tale.add(9, 1_000, replicate=1)
    run = tale.run(drained=None)
    assert unknown(run) == {"ack-respected", "loss", "health", "stats"}
    tale.look(5_000)
    # a full look at all nodes, and it is nowhere
    assert found(tale.run(drained=None)) == {("loss", "lost")}


def test_left_jobs_that_were_looked_at_too_early_are_unknown() -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 1_000, node)
    tale.look(2_000, phase="end", acked={"n1": 1})
    assert unknown(tale.run()) == {"ack-respected", "drain-to-zero"}


@pytest.mark.parametrize("silent", [("n3",), NODES])
def test_a_node_that_never_said_what_was_left_makes_a_run_unknown(silent: tuple[str, ...]) -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 1_000, node)
    tale.look(20_000, phase="end", silent=silent)
    run = tale.run()
    assert unknown(run) == {"drain-to-zero"}
    assert judge(run)["drain-to-zero"].notes == (f"{', '.join(silent)} never said what was left",)
    assert unknown(tale.run(abandoned=silent)) == set()


def test_a_checker_that_breaks_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_index: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(loss, "check", broken)
    results = judge(run_of(twice_at_most_once))
    assert results["loss"].valid is None
    assert "planted" in results["loss"].notes[0]
    assert results["at-most-once"].valid is False


def test_false_beats_unknown_beats_true() -> None:
    def of(*values: bool | None) -> bool | None:
        return verdict(checkers.Result("c", each, "") for each in values)

    assert of() is True
    assert of(True, None) is None
    assert of(None, False, True) is False


# Numbers


def numbers(story: Story, checker: str) -> dict[str, Any]:
    return dict(judge(run_of(story))[checker].numbers)


def test_duplicates_are_split_by_class() -> None:
    def story(tale: Tale) -> None:
        late_duplicate_in_a_cut(tale)
        tale.add(2, 25_000)
        tale.get([2], 25_100)
        tale.get([2], 27_200)
        tale.order("nack", [2], 27_300)
        tale.get([2], 27_400)
        tale.ack([2], 27_500)
        tale.add(4, 25_000)
        tale.get([4], 25_100)
        tale.get([4], 25_200)
        tale.ack([4], 25_300)
        tale.add(3, 13_000)
        tale.get([3], 13_100)
        tale.get([3], 13_200, "n4")
        tale.ack([3], 13_300)

    counts = numbers(story, "accounting")
    assert {k: n for k, n in counts.items() if k.startswith("duplicated_")} == {
        "duplicated_after_ack": 1,
        "duplicated_after_nack": 1,
        "duplicated_after_retry": 1,
        "duplicated_in_calm": 1,
        "duplicated_in_faults": 1,
    }


def test_accounting_counts_what_is_unknown_and_recovered() -> None:
    counts = numbers(unknown_and_refused, "accounting")
    names = ("attempted", "acknowledged", "refused", "unknown", "received", "recovered")
    assert [counts[name] for name in names] == [15, 12, 1, 2, 13, 1]


def test_excuses_are_told() -> None:
    loss = judge(run_of(lost_with_all_its_copies))["loss"]
    assert loss.numbers["excused"] == 1
    assert loss.notes == ("1 excused by E3: as many nodes lost their data as it had copies",)


@pytest.mark.parametrize(("many", "valid"), [(3, True), (4, None)])
def test_a_run_in_which_faults_excuse_much_loss_is_unknown(many: int, valid: bool | None) -> None:
    def story(tale: Tale) -> None:
        for v in range(many):
            tale.add(v, 20_000, "n1")
        tale.kill(20_100, 21_000, "n1", "n2")

    assert judge(run_of(story))["loss"].valid is valid


@pytest.mark.parametrize(
    ("name", "at"), [("lost_prefix", 20_000), ("lost_middle", 20_300), ("lost_postfix", 20_600)]
)
def test_losses_are_classed_within_their_producer(name: str, at: int) -> None:
    def story(tale: Tale) -> None:
        tale.add(1, at, process=7)
        for v, when in ((2, 20_100), (3, 20_500)):
            tale.whole(v, when, process=7)

    assert numbers(story, "loss")[name] == 1


def test_acks_on_other_nodes_and_deliveries_in_faults_are_counted() -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 13_000)
        tale.get([1], 13_100)
        tale.ack([1], 13_200, "n2")

    counts = numbers(story, "stats")
    assert (counts["acks_elsewhere"], counts["deliveries_in_faults"]) == (1, 4)


def test_latency_is_told_by_phase() -> None:
    counts = numbers(nothing, "latency")
    assert counts["add_faulty_ms"]["p50"] == 5.0
    assert counts["delivery_healthy_ms"]["p100"] == 20.0
    assert counts["heals"] == 1


# Where the rules bend


def known_holders_wiped(tale: Tale) -> None:
    """REPLICATE left out: three were to be had, but only one node ever had it, the others were short of memory."""
    tale.add(1, 20_000, "n1", replicate=0)
    tale.look(20_500, {"n1": [1]})
    tale.kill(21_000, 22_000, "n1")


def held_by_peers_alone(tale: Tale) -> dict[str, Any]:
    tale.add(1, 20_000, "n1", replicate=1)
    tale.kill(21_000, 22_000, "n4")
    return {"is_external": True}


def taken_by_a_lost_answer(tale: Tale) -> None:
    """Long not offered, but a GETJOB that was never answered may have had it; another was put off by NACK DELAY."""
    tale.add(1, 25_000)
    tale.get([], 26_000, outcome=INFO, error="eof")
    tale.add(2, 25_000)
    tale.get([2], 25_100)
    tale.order("nack", [2], 25_200, delay=20)
    for at in (37_000, 41_000):
        tale.get([], at, "n3", took=500)
    tale.get([1], 43_000)
    tale.get([2], 45_210)
    tale.ack([1, 2], 46_100)


def crossed_by_another_nack(tale: Tale) -> None:
    tale.add(1, 25_000)
    tale.get([1], 25_100)
    tale.order("nack", [1], 25_200, delay=5)
    tale.order("nack", [1], 27_000)
    tale.get([1], 27_100)
    tale.ack([1], 27_200)


def revived_with_a_new_life(tale: Tale) -> None:
    tale.add(1, 25_000, limit=1, ttl=5)
    tale.get([1], 25_100)
    tale.get([1], 27_200, queue="dead-letters")
    tale.order("revive", [1], 29_900)
    tale.get([1], 34_000)
    tale.ack([1], 34_100)


def ended_as_the_round_ends(tale: Tale) -> None:
    """An ack that is sent in the instant of the last look may have come before it."""
    tale.add(1, 25_000, replicate=3)
    tale.look(27_000, {"n1": [1], "n2": [1]})
    tale.ack([1], 27_004.5)


@pytest.mark.parametrize(
    "story",
    [
        ended_as_the_round_ends,
        known_holders_wiped,
        held_by_peers_alone,
        taken_by_a_lost_answer,
        crossed_by_another_nack,
        revived_with_a_new_life,
    ],
    ids=lambda story: story.__name__,
)
def test_what_is_legal_is_no_finding(story: Story) -> None:
    assert found(run_of(story)) == set()


def test_a_holder_that_was_not_wiped_excuses_nothing() -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 20_000, "n1", replicate=0)
        tale.look(20_500, {"n1": [1], "n3": [1]})
        tale.kill(21_000, 22_000, "n1")

    assert found(run_of(story)) == {("loss", "lost")}


def test_node_that_left_is_asked_for_no_copy() -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 20_000, "n2")
        tale.nemesis("leave", 21_000, {"target": "n2", "proven": True})
        tale.nemesis("join", 25_000, {"target": "n2", "proven": True})

    # never seen on the node that left: an ordinary loss
    assert found(run_of(story)) == {("loss", "lost")}


def test_forget_told_by_two_events_is_one_fault_and_wipes() -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 20_000, "n2", replicate=1)
        tale.nemesis("forget", 21_000, {"target": "n2"})
        tale.nemesis("forget", 21_500, {"target": "n2"})

    run = run_of(story)
    assert judge(run)["stats"].numbers["faults"] == 2
    assert judge(run)["loss"].numbers["excused"] == 1


def test_missing_at_most_once_of_an_undrained_run_is_unknown() -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 25_000, retry=0, replicate=1)

    assert "at-most-once" in unknown(run_of(story, drained=None))


def test_at_most_once_tells_its_excuses() -> None:
    result = judge(run_of(once_and_in_doubt))["at-most-once"]
    assert result.numbers == {"jobs": 22, "delivered": 20, "excused": 2}
    codes = sorted(note.partition(":")[0] for note in result.notes)
    assert codes == ["1 excused by E10", "1 excused by E9"]


def test_an_at_most_once_run_that_excuses_much_is_unknown() -> None:
    def story(tale: Tale) -> None:
        for v in range(10):
            tale.add(v, 25_000, retry=0, replicate=1)
            if v < lost_from:
                tale.get([v], 25_100)
                tale.ack([v], 25_200)
        tale.kill(26_000, 27_000, "n1")

    lost_from = 8
    assert unknown(run_of(story)) == set()
    lost_from = 7
    assert unknown(run_of(story)) == {"at-most-once"}


def test_faults_in_which_no_call_can_be_judged_are_unknown() -> None:
    tale = Tale()
    usual(tale)
    run = tale.run(lags=((11_000 * MS, 16_000 * MS),))
    assert "availability" in unknown(run)
    dark = Tale()
    dark.fault(30_000, 31_000, "mass-restart", nodes=list(NODES))
    dark.add(1, 30_500, replicate=1, outcome=INFO, error="refused")
    assert "availability" not in judge(dark.run())


def test_a_harness_that_stood_still_for_long_makes_a_run_unknown() -> None:
    def lags(count: int) -> dict[str, Any]:
        # of 68 s; two reports of one span count once
        spans = [((40_000 + each) * MS, (41_000 + each) * MS) for each in range(0, count, 10)]
        return {"lags": (*spans, *spans)}

    assert unknown(run_of(nothing, **lags(2_300))) == set()
    run = run_of(nothing, **lags(2_600))
    assert unknown(run) == {"stats"}
    assert judge(run)["stats"].numbers["lag_ms"] == 3_590


def test_convergence_without_a_look_in_a_calm_is_unknown() -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 10_900, node)
    tale.cut(10_000, 12_000, ["n1"])
    tale.look(12_500)
    assert unknown(tale.run()) == {"ack-respected", "convergence"}


@pytest.mark.parametrize(
    ("meta", "is_unknown"),
    [({"demands": None}, True), ({"demands": None, "is_simulated": True}, False), ({}, False)],
)
def test_a_run_of_which_nobody_said_what_it_has_to_show_is_unknown(
    meta: dict[str, Any], is_unknown: bool
) -> None:
    assert ("stats" in unknown(run_of(nothing, **meta))) is is_unknown


@pytest.mark.parametrize("shown", [False, True])
def test_copies_full_nodes_and_order_are_asked_of_those_that_are_there_for_them(
    shown: bool,
) -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 25_000, replicate=3)
        if shown:
            tale.look(26_000, {"n1": [1], "n3": [1], "n5": [1]})
        tale.get([1], 26_500)
        tale.ack([1], 26_600)
        tale.add(2, 27_000, outcome=FAIL, error="OOM full" if shown else "ERR")

        tale.add(3, 40_000, queue="fifo", outcome=OK if shown else INFO)
        tale.get([3], 40_100, queue="fifo")
        tale.ack([3], 40_200)

    demands = {"copies_counted": 1, "refused_full": 1, "judged_in_order": 1}
    run = run_of(story, demands=demands)
    assert ("stats" in unknown(run)) is not shown


@pytest.mark.parametrize(
    ("kind", "nodes", "is_asked"),
    [
        ("mass-restart", NODES, False),
        ("mass-restart", NODES[1:], True),
        ("rolling-restart", NODES, True),
        ("disk-full", NODES, True),
    ],
)
def test_deliveries_in_faults_are_asked_where_a_node_is_left(
    kind: str, nodes: tuple[str, ...], is_asked: bool
) -> None:
    tale = Tale()
    for number, node in enumerate(NODES):
        tale.whole(number, 1_000, node)
    tale.fault(5_000, 9_000, kind, nodes=list(nodes))
    demands = {"deliveries_in_faults": 100, "acks_elsewhere": 20}
    notes = judge(tale.run(demands=demands))["stats"].notes
    assert ("deliveries_in_faults is 0, 100 asked" in notes) is is_asked
    assert "acks_elsewhere is 0, 20 asked" in notes


def test_tombstones_may_stay_where_a_holder_was_wiped() -> None:
    def grown_to(count: int) -> Story:
        def story(tale: Tale) -> None:
            tale.kill(20_000, 21_000, "n4")
            tale.look(69_000, phase="end", bytes={"n2": count})

        return story

    # twelve jobs, 300 bytes each, and the slack
    assert found(run_of(grown_to(12 * 300 + 4096))) == set()
    assert found(run_of(grown_to(12 * 300 + 4097))) == {("drain-to-zero", "leak")}


@pytest.mark.parametrize(
    ("retry", "reply", "ids", "is_leftover"),
    [
        (0, INFO, ["05a0"], False),
        (0, INFO, ["05a0", "05a2"], True),
        (0, INFO, ["05a1"], True),
        (2, INFO, ["05a0"], True),
        (0, FAIL, ["05a0"], True),
        (0, OK, ["05a0"], True),
    ],
)
def test_a_nameless_leftover_needs_an_addjob_that_may_have_made_it(
    retry: int, reply: str, ids: list[str], is_leftover: bool
) -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 25_000, retry=retry, replicate=1, outcome=reply)
        if reply == OK:
            tale.get([1], 25_100)
            tale.ack([1], 25_200)
        left = {100 + number: f"D-000000a0-{'x' * 24}-{end}" for number, end in enumerate(ids)}
        tale.ids |= left
        tale.look(69_000, {"n1": list(left)}, phase="end", queued={})

    kinds = found(run_of(story))
    assert (("drain-to-zero", "leftover") in kinds) is is_leftover


def test_idle_node_and_call_that_never_succeeds_are_told() -> None:
    tale = Tale(nodes=("n1", "n2"))
    tale.add(1, 1_000, outcome=INFO, error="timeout")
    assert judge(tale.run())["stats"].notes == (
        "no add ever succeeded",
        "no call at n1 ever succeeded",
        "no call at n2 ever succeeded",
    )
    assert judge(Tale().run(is_simulated=True))["stats"].valid is True


@pytest.mark.parametrize("f", ["nack", "working", "revive", "cancel", "deljob", "fastack"])
def test_a_kind_of_call_that_never_succeeds_makes_a_run_unknown(f: str) -> None:
    def story(tale: Tale) -> None:
        tale.add(1, 25_000)
        tale.get([1], 25_100)
        tale.order(f, [1], 25_200, outcome=FAIL, error="ERR no")
        tale.ack([1], 25_300)

    run = run_of(story)
    assert unknown(run) == {"stats"}
    assert f"no {f} ever succeeded" in judge(run)["stats"].notes


def test_meta_survives_json() -> None:
    meta = run_of(nothing, lags=((1, 2),), abandoned=("n5",), bounds={"facts_ms": 1}).meta
    fields = json.loads(json.dumps(attrs.asdict(meta)))
    assert checkers.Meta.from_json({**fields, "color": "red"}) == meta
