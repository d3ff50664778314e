"""One job: the transition table is complete, a lease counts unless covered, deliveries are counted by node."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from disque.core.job import TRANSITIONS, Burials, Event, Job, JobState, Reason
from tests.unit.core.builders import DAY_MS, NOW, A, B, C, job_id, spec

W, ACTIVE, Q, MOVING, DONE = JobState


def job(state: JobState = ACTIVE, **changes: object) -> Job:
    made = Job(id=job_id(), spec=spec(), ctime=1, body=b"", state=state, expires_at=NOW + DAY_MS)
    return attrs.evolve(made, **changes)  # type: ignore[arg-type]


# Written down from merge-rules (M4, M10, M20, B6, B7), not from the table: all that may happen to a copy.
ALLOWED = {
    (W, Event.REPLICATED): ACTIVE,  # enough copies, or somebody has worked on it (B7.3)
    (ACTIVE, Event.QUEUE): Q,
    (Q, Event.DISPATCH): ACTIVE,  # leased
    (Q, Event.UNQUEUE): ACTIVE,
    (ACTIVE, Event.MOVE): MOVING,  # RETRY 0 out of its queue, then on its way
    (MOVING, Event.RETURN): ACTIVE,  # the receiver said no
    (W, Event.FINISH): DONE,
    (ACTIVE, Event.FINISH): DONE,
    (Q, Event.FINISH): DONE,
    (MOVING, Event.FINISH): DONE,
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", JobState)
def test_every_state_and_event_is_in_the_table_or_our_bug(state: JobState, event: Event) -> None:
    one = job(state)
    if (state, event) in ALLOWED:
        one.move(event)
        assert one.state is ALLOWED[state, event]
    else:
        with pytest.raises(AssertionError, match=f"{event.name} in {state.name}"):
            one.move(event)
        assert one.state is state


def test_table_has_nothing_more() -> None:
    assert dict(TRANSITIONS) == ALLOWED


def test_done_absorbs() -> None:
    assert not [event for state, event in TRANSITIONS if state is DONE]
    assert {s for s, e in TRANSITIONS if e is Event.FINISH} == set(JobState) - {DONE}


def test_every_state_can_be_reached_from_a_new_job() -> None:
    def reachable(state: JobState, seen: list[JobState]) -> Iterator[JobState]:
        for (before, _), after in TRANSITIONS.items():
            if before is state and after not in seen:
                seen.append(after)
                yield after
                yield from reachable(after, seen)

    assert {W, *reachable(W, [W])} == set(JobState)


def test_reasons_rank_as_m4_says() -> None:
    ranked = [Reason.NOREPL, Reason.CANCELLED, Reason.FAST_ACKED, Reason.DEAD_ACKED, Reason.ACKED]
    assert sorted(Reason) == ranked


@pytest.mark.parametrize(
    ("leases", "covered", "end"),
    [
        ({}, {}, 0),
        ({A: (5, 100)}, {}, 100),
        ({A: (5, 100)}, {A: 4}, 100),
        ({A: (5, 100)}, {A: 5}, 0),  # M9: a NACK covers the stamp
        ({A: (5, 100)}, {B: 5}, 100),
        ({A: (5, 100), B: (9, 70)}, {A: 5}, 70),
        ({A: (5, 100), B: (9, 70), C: (1, 300)}, {C: 7}, 100),
        ({A: (0, 100)}, {}, 100),  # stamp 0 isn't covered by nothing
    ],
)
def test_effective_lease_is_the_last_end_that_isnt_covered(
    leases: dict[str, tuple[int, int]], covered: dict[str, int], end: int
) -> None:
    assert job(leases=leases, covered=covered).lease_end() == end


@pytest.mark.parametrize(
    ("dispatches", "nacks", "additional"),
    [
        ({}, {}, 0),
        ({A: 1}, {}, 0),
        ({A: 1, B: 1}, {}, 1),
        ({A: 2, B: 2}, {C: 1}, 2),
        ({A: 1}, {A: 3}, 0),  # never negative
    ],
)
def test_additional_deliveries_is_what_neither_first_nor_nack_explains(
    dispatches: dict[str, int], nacks: dict[str, int], additional: int
) -> None:
    one = job(dispatches=dispatches, nacks=nacks)
    assert one.additional_deliveries == additional
    assert one.nack_count == sum(nacks.values())


@pytest.mark.parametrize(
    ("count", "queue"), [(0, b"q"), (1, b"dead-letters"), (2, b"q"), (3, b"dead-letters")]
)
def test_effective_queue_is_the_dead_queue_while_the_burial_count_is_odd(
    count: int, queue: bytes
) -> None:
    one = job(burials=Burials(count, 1, 0, NOW))
    assert (one.queue, one.is_dead) == (queue, queue != b"q")


def test_a_done_entry_without_holders_is_a_dummy() -> None:
    assert job(DONE).is_dummy
    assert not job(DONE, holders=(A,)).is_dummy
    assert not job(ACTIVE).is_dummy


def test_a_bare_done_entry_has_no_spec_to_ask_for() -> None:
    with pytest.raises(AssertionError, match="bare done entry"):
        _ = job(DONE, spec=None).retry_ms
