"""The bank: mutants of the core, each one function with another behaviour, and who must notice.

FAULTS put C Disque's behaviour back for the faults that are one rule (reference 9.1). A mutant replaces the function
wherever the core has bound it: in its module, in modules that imported its name, in tables of handlers. The bank knows
nothing of how a checker runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from cluster.nodeid import NodeId
from disque.core import commands as cmd
from disque.core import copies, delivery, ending, handling
from disque.core import messages as msg
from disque.core.job import Job, JobState, Role
from disque.core.jobid import JobId
from disque.core.jobqueue import Exchange, JobQueue
from disque.core.state import State, next_stamp

UNIT = "tests/unit/core"


@attrs.frozen
class Mutant:
    """`module`.`function` of the core becomes `replacement`; `checks` are ids of the tests that notice."""

    what: str
    module: str
    function: str
    replacement: Callable[..., Any]
    checks: tuple[str, ...]


_collect = ending.collect


def _w1_sizes(state: State, job: Job) -> None:
    """C's collection at an importer, whose own set lacks itself: by sizes it is over at once, and nobody is told."""
    is_importer = not job.id.startswith(b"D-" + state.self_id[:8].encode())
    if is_importer and job.holders and len(job.told) >= len(job.holders) - 1:
        copies.remove(state, job)
    else:
        _collect(state, job)


def _w2_no_new_holders(ours: tuple[NodeId, ...], theirs: Any) -> tuple[NodeId, ...]:
    """Nobody adds the importer to a set of holders."""
    return ours


def _w3_no_look_at_the_end(state: State, peer: NodeId, job: JobId) -> bool:
    """YOURJOBS doesn't look whether the job is acked."""
    if job in state.jobs and state.jobs[job].is_done:
        copies.remove(state, state.jobs[job])
    ending.forget_tombstone(state, job)
    return False


def _w7_one_answer_is_enough(state: State, job: Job, peer: NodeId) -> None:
    """A dummy takes another dummy for an owner, and deletes itself."""
    copies.remove(state, job)


def _w10_one_sided(state: State, peer: NodeId, said: msg.Queued) -> None:
    """Only a QUEUED of the larger node has an effect, and nobody answers one."""
    job = state.jobs.get(said.id)
    if job is None or job.is_done:
        return
    copies.absorb(state, job, said.facts)
    if job.state is JobState.QUEUED and peer > state.self_id:
        delivery.unqueue(state, job)
    if job.state is JobState.ACTIVE:
        job.ask_at = state.now_ms + job.retry_ms
        delivery.book(state, job)


def _w12_from_queueing(state: State, job: Job) -> None:
    """RETRY runs from queueing: for a job without DELAY from its creation."""
    copies.set_role(state, job, Role.DELIVERED)
    queued_at = job.ctime // 1_000_000
    end = max(state.now_ms, queued_at + job.retry_ms)
    job.leases = {**job.leases, state.self_id: (next_stamp(state, job), end)}


def _w13_cluster_size(state: State, command: cmd.AddJob) -> int:
    """A default REPLICATE needs min(3, cluster size) - 1 peers, dead ones counted in that size."""
    return (command.replicate or min(3, state.view.size)) - 1


def _w16_forgotten_stay(state: State, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """FORGET changes no set."""
    return nodes


def _w18_overflow(state: State, queue: JobQueue, exchange: Exchange) -> int:
    """The exponent is never clamped, in 32 bits; the clients' timer looks each 100 ms."""
    if exchange.broadcast_at is None:
        return 0
    delay = (2_000 << max(exchange.broadcast_round - 1, 0)) & 0xFFFF_FFFF
    signed = delay - (1 << 32) if delay >= 1 << 31 else delay
    return exchange.broadcast_at + max(100, min(signed, 30_000))


def _w24_no_state_checks(state: State, id_: JobId) -> int:
    """WORKING on anything that is known succeeds; a queued job leaves its queue, a delayed one is pulled forward."""
    job = state.jobs.get(id_)
    if job is None:
        return handling.WORKING_UNKNOWN
    if job.is_done:
        return handling.WORKING_DONE
    if job.state is JobState.QUEUED:
        job.is_kept_out = not job.retry_ms
        delivery.unqueue(state, job)
    job.not_before = min(job.not_before, state.now_ms + job.retry_ms)
    job.ask_at = state.now_ms + job.retry_ms
    delivery.book(state, job)
    return handling.WORKING_DONE + job.retry_ms // 1_000


def _w32_no_back_off(state: State, job: Job, peer: NodeId) -> None:
    """A replica asks half a second before each RETRY, for as long as the job merely waits."""
    state.asks.pop(job.id, None)
    job.queued_at = peer
    job.ask_at = state.now_ms + max(job.retry_ms - 500, 500)
    delivery.book(state, job)


def _w38_obey(state: State, peer: NodeId, said: msg.DelJob) -> None:
    """DELJOB of a leader by size is obeyed, whoever else is known here."""
    job = state.jobs.get(said.id)
    if job is None:
        return
    if job.state is JobState.QUEUED:
        delivery.unqueue(state, job)
    copies.remove(state, job)


def _tests(file: str, *names: str) -> tuple[str, ...]:
    return tuple([f"{UNIT}/{file}.py::{name}" for name in names])


FAULTS: Mapping[str, Mutant] = MappingProxyType({
    "W-1": Mutant(
        "acks are collected by the sizes of sets", "ending", "collect", _w1_sizes,
        _tests("test_engine_acks", "test_w1_an_importer_acks_and_the_source_hears_of_it"),
    ),
    "W-2": Mutant(
        "the importer is in nobody's set", "merge", "union", _w2_no_new_holders,
        _tests("test_engine_requeue", "test_w2_the_importer_is_known_to_the_other_copies"),
    ),
    "W-3": Mutant(
        "YOURJOBS brings an acked job back", "copies", "answer_end", _w3_no_look_at_the_end,
        _tests("test_engine_acks", "test_w3_nothing_brings_an_acked_job_back")
        + _tests("test_engine_federation", "test_w3_a_job_that_was_acked_while_needjobs_flew_isnt_delivered"),
    ),
    "W-7": Mutant(
        "dummy acks annihilate each other", "ending", "dummy_answered", _w7_one_answer_is_enough,
        _tests("test_engine_acks", "test_w7_two_dummies_dont_delete_each_other_while_a_member_is_missing"),
    ),
    "W-10": Mutant(
        "the tie-break is one-sided", "requeue", "on_queued", _w10_one_sided,
        _tests("test_engine_requeue", "test_w10_of_two_queued_copies_the_first_in_salted_order_stays_whoever_speaks"),
    ),
    "W-12": Mutant(
        "RETRY runs from queueing", "delivery", "_lease", _w12_from_queueing,
        _tests("test_engine_delivery", "test_w12_retry_counts_from_the_hand_out_not_from_queueing"),
    ),
    "W-13": Mutant(
        "a default ADDJOB needs dead nodes", "replication", "_needed_peers", _w13_cluster_size,
        _tests("test_engine_replication", "test_w13_default_replicate_answers_with_one_dead_node_of_two_or_three"),
    ),
    "W-16": Mutant(
        "forgotten nodes are waited for", "state", "members_of", _w16_forgotten_stay,
        _tests(
            "test_engine_acks",
            "test_w16_forget_settles_what_waited_for_the_forgotten_and_its_tombstone_is_long",
        ),
    ),
    "W-18": Mutant(
        "NEEDJOBS' exponent overflows", "federation", "_next_broadcast", _w18_overflow,
        _tests("test_engine_federation", "test_w18_the_broadcast_backs_off_to_30_s_and_never_bursts"),
    ),
    "W-24": Mutant(
        "WORKING checks no state", "handling", "working_here", _w24_no_state_checks,
        _tests(
            "test_engine_requeue",
            "test_w24_working_on_what_is_over_is_an_error[done-answer4]",
            "test_w24_working_is_too_late_after_half_of_the_life",
            "test_w24_working_on_a_queued_retry_0_job_leaves_it_queued",
            "test_w24_working_on_a_delayed_job_never_brings_it_forward",
        ),
    ),
    "W-32": Mutant(
        "WILLQUEUE storms for jobs that merely wait", "requeue", "_leave_to", _w32_no_back_off,
        _tests(
            "test_engine_requeue",
            "test_w32_a_queued_winner_is_asked_ever_more_rarely",
            "test_w32_a_hundred_unconsumed_jobs_make_no_storm",
        ),
    ),
    "W-38": Mutant(
        "DELJOB buries what only the receiver could tell", "acks", "on_del_job", _w38_obey,
        _tests("test_engine_acks", "test_deljob_buries_only_if_our_own_holders_are_told"),
    ),
})  # fmt: skip

__all__ = ["FAULTS", "Mutant"]
