"""Each check of the simulator can fail: a planted violation is found, and its harmless neighbour isn't."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disque.core.commands import AddJob
from tests.sim import checks
from tests.sim.checks import NONE, Copy
from tests.sim.ledger import Ledger, Life, body_of, value_of

JOB = b"D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"


def life(**changes: Any) -> Life:
    command = AddJob(
        b"q", body_of(1, 0), 0, retry_ms=changes.pop("retry_ms", 1000), delay_ms=500, ttl_ms=60_000
    )
    made = Life(value=1, command=command, node=0, added_at=1000, id=JOB)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def copy(kind: str, **facts: Any) -> Copy:
    return Copy(kind, **facts)


def test_s1_finds_a_done_entry_that_lives_again() -> None:
    assert checks.s1_done_stays_done(JOB, copy("done"), copy("queued"))
    assert checks.s1_done_stays_done(JOB, copy("tombstone"), copy("active"))
    assert not checks.s1_done_stays_done(JOB, copy("done"), copy("tombstone"))
    assert not checks.s1_done_stays_done(JOB, NONE, copy("active"))


def test_s2_finds_a_told_node_that_never_stored_the_end() -> None:
    assert checks.s2_told_is_true(JOB, ["a", "b"], ["a"], [])
    assert not checks.s2_told_is_true(JOB, ["a", "b"], ["a"], ["b"])


def test_s3_finds_life_after_settlement() -> None:
    assert checks.s3_settled_is_over(JOB, 5, "delivered", is_excused=False)
    assert not checks.s3_settled_is_over(JOB, 5, "delivered", is_excused=True)
    assert not checks.s3_settled_is_over(JOB, None, "delivered", is_excused=False)


def test_s4_finds_a_copy_sent_to_nobody_s_holder() -> None:
    assert checks.s4_receiver_is_holder(JOB, ["a", "b"], ["c"], "ReplJob")
    assert not checks.s4_receiver_is_holder(JOB, ["a", "b"], ["b"], "ReplJob")


def test_s5_finds_a_second_dispatch_of_retry_0() -> None:
    assert checks.s5_at_most_once(JOB, 0, 2)
    assert not checks.s5_at_most_once(JOB, 0, 1)
    assert not checks.s5_at_most_once(JOB, 1000, 2)


def test_s5_finds_two_owners() -> None:
    two = {"n0": copy("queued"), "n1": copy("active")}
    assert checks.s5_one_owner(JOB, two)
    assert not checks.s5_one_owner(JOB, two | {"n1": copy("moving")})
    assert not checks.s5_one_owner(JOB, two | {"n1": copy("active", is_spent=True)})


def test_s6_finds_a_confirmed_job_that_nobody_has() -> None:
    slack = 10
    assert checks.s6_some_copy_lives(life(ok_at=1100), [], 2000, slack)
    assert not checks.s6_some_copy_lives(life(ok_at=1100), ["n1"], 2000, slack)
    assert not checks.s6_some_copy_lives(life(), [], 2000, slack)
    assert not checks.s6_some_copy_lives(life(ok_at=1100, lost_at=1500), [], 2000, slack)
    assert not checks.s6_some_copy_lives(life(ok_at=1100, knew={0: 1200}), [], 2000, slack)
    assert not checks.s6_some_copy_lives(life(ok_at=1100), [], 61_000, slack)
    assert not checks.s6_some_copy_lives(
        life(ok_at=1100, orders=[(1200, "deljob", 0)]), [], 2000, slack
    )


def test_s7_finds_too_few_copies_behind_an_ok() -> None:
    assert checks.s7_copies_at_reply(JOB, 2, ["n0"], [])
    assert not checks.s7_copies_at_reply(JOB, 2, ["n0", "n1"], [])
    assert not checks.s7_copies_at_reply(JOB, 2, ["n0"], ["n1"])
    assert checks.s7_copies_at_reply(JOB, 2, ["n0"], ["n0"])


def test_s8_finds_ok_and_norepl_for_one_job() -> None:
    assert checks.s8_no_contradiction(JOB, 1100, is_norepl=True)
    assert not checks.s8_no_contradiction(JOB, None, is_norepl=True)
    assert not checks.s8_no_contradiction(JOB, 1100, is_norepl=False)


def test_s9_finds_a_queued_copy_that_may_not_be() -> None:
    assert checks.s9_may_be_queued(JOB, copy("queued", not_before=11), 10)
    assert checks.s9_may_be_queued(JOB, copy("queued", lease_end=11), 10)
    assert checks.s9_may_be_queued(JOB, copy("queued", is_spent=True), 10)
    assert not checks.s9_may_be_queued(JOB, copy("queued", lease_end=10, not_before=10), 10)
    assert not checks.s9_may_be_queued(JOB, copy("active", lease_end=11), 10)


def test_s10_finds_an_early_and_a_late_dispatch() -> None:
    assert checks.s10_not_early(JOB, life(), 1499)
    assert not checks.s10_not_early(JOB, life(), 1500)
    assert not checks.s10_not_early(JOB, life(orders=[(1200, "enqueue", 0)]), 1499)
    assert checks.s10_not_late(JOB, life(), 61_011, 10)
    assert not checks.s10_not_late(JOB, life(), 61_010, 10)


def test_s11_finds_a_long_lease_and_a_rising_expiry() -> None:
    assert checks.s11_lease_is_bounded(JOB, copy("active", lease_end=1111, retry_ms=1000), 110)
    assert not checks.s11_lease_is_bounded(JOB, copy("active", lease_end=1110, retry_ms=1000), 110)
    assert checks.s11_expiry_falls(JOB, copy("active", expires_at=5), copy("active", expires_at=6))
    assert not checks.s11_expiry_falls(
        JOB, copy("active", expires_at=6), copy("active", expires_at=5)
    )


def test_s11_finds_a_copy_that_outlives_its_ttl() -> None:
    most = 61_000 + 10
    assert checks.s11_expiry_is_kept(JOB, copy("active", expires_at=most + 1), life(), 0, 10)
    assert not checks.s11_expiry_is_kept(JOB, copy("active", expires_at=most), life(), 0, 10)
    assert not checks.s11_expiry_is_kept(JOB, copy("done", expires_at=most + 1), life(), 0, 10)


def test_s12_finds_a_forgotten_node_that_is_known_again() -> None:
    assert checks.s12_forgotten_stay({"a", "b"}, {"a"})
    assert not checks.s12_forgotten_stay({"a"}, {"a", "b"})


def test_b28_finds_live_jobs_of_a_node_that_comes_back() -> None:
    assert checks.b28_comes_back_empty([JOB])
    assert not checks.b28_comes_back_empty([])


def test_m19_finds_a_job_that_nobody_cancelled() -> None:
    slack = 10
    assert checks.m19_cancelled_by_order(life(), [], slack)
    assert checks.m19_cancelled_by_order(life(), [989], slack)
    assert not checks.m19_cancelled_by_order(life(), [990], slack)
    assert not checks.m19_cancelled_by_order(life(orders=[(1200, "cancel", 0)]), [], slack)


def test_q9_finds_counters_above_the_truth() -> None:
    counted = copy("active", dispatches={"a": 1, "b": 1}, nacks={"a": 1})
    assert checks.q9_counters_are_true(JOB, counted, 1, 1)
    assert checks.q9_counters_are_true(JOB, counted, 2, 0)
    assert not checks.q9_counters_are_true(JOB, counted, 2, 1)


def test_b3_finds_two_that_repair_at_once_more_than_now_and_then() -> None:
    assert checks.b3_one_leads(JOB, "n0", "n1", checks.AT_ONCE_MAX + 1)
    assert not checks.b3_one_leads(JOB, "n0", "n1", checks.AT_ONCE_MAX)


@pytest.mark.parametrize(
    "change",
    [
        {"holders": ("a",)},
        {"dispatches": {"a": 1}},
        {"nacks": {}},
        {"burials": 0},
    ],
)
def test_s12_finds_a_fact_that_fell(change: dict[str, Any]) -> None:
    before = copy("active", holders=("a", "b"), dispatches={"a": 2}, nacks={"b": 1}, burials=1)
    assert checks.s12_facts_rise(JOB, before, attrs.evolve(before, **change))
    assert not checks.s12_facts_rise(JOB, before, before)


def test_s12_finds_told_and_reason_that_fell() -> None:
    before = copy("done", holders=("a", "b"), told=("a", "b"), reason=5)
    assert checks.s12_facts_rise(JOB, before, attrs.evolve(before, told=("a",)))
    assert checks.s12_facts_rise(JOB, before, attrs.evolve(before, reason=1))
    assert not checks.s12_facts_rise(JOB, before, copy("tombstone"))


def test_s14_finds_the_body_of_a_done_job() -> None:
    assert checks.s14_done_frees_body(JOB, copy("done", has_body=True))
    assert not checks.s14_done_frees_body(JOB, copy("active", has_body=True))


def test_s15_finds_a_claim_that_is_not_stored() -> None:
    assert checks.s15_claims_are_stored(JOB, "GotJob", ["done"], ["job"])
    assert not checks.s15_claims_are_stored(JOB, "GotAck", ["settled"], ["done", "settled"])


def test_a_second_delivery_in_calm_weather_is_found() -> None:
    assert checks.calm_delivered_once(JOB, 5000, 5899, life())
    assert not checks.calm_delivered_once(JOB, 5000, 5900, life())
    assert not checks.calm_delivered_once(JOB, None, 5100, life())
    assert not checks.calm_delivered_once(JOB, 5000, 5100, life(orders=[(5050, "nack", 0)]))
    assert not checks.calm_delivered_once(JOB, 5000, 5100, life(retry_ms=0))


def test_q8_finds_the_last_copy_at_a_node_that_left() -> None:
    assert checks.q8_safe_means_safe(JOB, copy("active"), "n0", was_safe=True)
    assert not checks.q8_safe_means_safe(JOB, copy("active"), "n0", was_safe=False)


def test_s13_finds_a_delivery_over_the_limit() -> None:
    limited = life()
    limited.command = attrs.evolve(limited.command, max_deliveries=2)
    assert checks.s13_limit_holds(JOB, limited, 2, 3)
    assert not checks.s13_limit_holds(JOB, limited, 2, 2)
    assert not checks.s13_limit_holds(JOB, life(), 0, 3)


def test_q4_finds_a_job_that_repair_left_short() -> None:
    def found(willing: int, copies: dict[str, Copy], now: int = 2000) -> checks.Found:
        return checks.q4_copies_made_again(life(), now, willing, copies, 4000)

    queued = copy("queued", replicate=2, retry_ms=1000)
    one_short = {"n0": queued, "n1": copy("done")}
    assert found(2, one_short)
    assert found(2, one_short, 56_999)
    assert not found(2, one_short, 57_000), "for its last 4 s no copy is made"
    assert not found(1, one_short)
    assert not found(2, {"n0": queued, "n1": attrs.evolve(queued, kind="active")})
    assert not found(2, {"n0": copy("queued", replicate=1, retry_ms=0)})


def test_an_answer_that_never_comes_is_found() -> None:
    assert checks.answered_in_time(None, "get", 701, 500, 200)
    assert not checks.answered_in_time(None, "get", 700, 500, 200)


def test_q1_finds_what_is_left() -> None:
    found = checks.q1_over_is_forgotten("n0", {"marks": [JOB], "dummies": []})
    assert [(each.rule, each.job) for each in found] == [("Q1", JOB)]


def test_q2_finds_holders_that_disagree() -> None:
    one = copy("active", holders=("a", "b"), dispatches={"a": 1}, retry_ms=1000)
    assert checks.q2_holders_agree(JOB, {"n0": one, "n1": attrs.evolve(one, holders=("a",))})
    assert checks.q2_holders_agree(JOB, {"n0": one, "n1": attrs.evolve(one, dispatches={})})
    assert not checks.q2_holders_agree(JOB, {"n0": one, "n1": attrs.evolve(one, kind="queued")})


def test_q3_finds_two_queued_copies() -> None:
    assert checks.q3_one_queued(JOB, {"n0": copy("queued"), "n1": copy("queued")})
    assert not checks.q3_one_queued(JOB, {"n0": copy("queued"), "n1": copy("active")})


def test_q5_finds_chatter() -> None:
    assert checks.q5_quiet(11, 10, 1000)
    assert not checks.q5_quiet(10, 10, 1000)


def test_q6_finds_a_lost_job() -> None:
    assert checks.q6_not_lost(life(ok_at=1100), 9000)
    assert not checks.q6_not_lost(life(ok_at=1100, deliveries=[(1200, 0)]), 9000)
    assert not checks.q6_not_lost(life(ok_at=1100, lost_at=1200), 9000)
    assert not checks.q6_not_lost(life(ok_at=1100, knew={1: 1200}), 9000)
    assert not checks.q6_not_lost(life(), 9000)
    assert checks.q6_not_lost(life(ok_at=1100, wiped={1: 1200}), 9000)
    assert not checks.q6_not_lost(life(ok_at=1100, wiped={1: 1200}, retry_ms=0), 9000)
    assert checks.q6_not_lost(life(ok_at=1100, retry_ms=0), 9000)
    assert not checks.q6_not_lost(life(ok_at=1100, retry_ms=0), 9000, is_in_doubt=True)


def test_q10_finds_a_delivery_long_after_the_end() -> None:
    assert checks.q10_no_late_delivery(life(done_at={1: 5000}), 6001, 1000)
    assert not checks.q10_no_late_delivery(life(done_at={1: 5000}), 6000, 1000)
    assert not checks.q10_no_late_delivery(life(), 6001, 1000)


def test_the_ledger_finds_a_life_by_its_body() -> None:
    ledger = Ledger()
    made = ledger.add(AddJob(b"q", body_of(7, 3), 0), 0, 0)
    assert ledger.learn(JOB, None) is None
    assert ledger.learn(JOB, body_of(7, 3)) is made
    assert ledger.learn(JOB, None) is made
    assert value_of(b"no value") == -1
