"""The agenda against a naive model: never early, never late, never lost, near or far."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core.agenda import Agenda
from disque.core.sleeper import UNBOOKED, Sleeper

BUCKET_MS = 8_192
DAY_MS = 86_400_000
START = 1_700_000_000_000


def due(agenda: Agenda, now_ms: int) -> list[Sleeper]:
    """All that is due, in the order in which it wakes."""
    found: list[Sleeper] = []
    while (item := agenda.pop_due(now_ms)) is not None:
        assert item.wake_at == UNBOOKED
        found.append(item)
    return found


offsets = st.one_of(
    st.integers(0, 5),
    st.integers(0, 3 * BUCKET_MS),
    st.sampled_from([BUCKET_MS - 1, BUCKET_MS, BUCKET_MS + 1, DAY_MS, 365 * DAY_MS]),
)
numbered = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("book"), numbered, offsets),
        st.tuples(st.just("cancel"), numbered, st.just(0)),
        st.tuples(st.just("advance"), st.just(0), offsets),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_agenda_equals_a_plain_list_of_bookings(plan: list[tuple[str, int, int]]) -> None:
    agenda, now = Agenda(), START
    items = [Sleeper() for _ in range(6)]
    model: dict[int, int] = {}
    for what, number, offset in plan:
        if what == "book":
            agenda.book(items[number], now + offset)
            model[number] = now + offset
        elif what == "cancel":
            agenda.cancel(items[number])
            model.pop(number, None)
        else:
            now += offset
            woken = due(agenda, now)
            expected = sorted((at, n) for n, at in model.items() if at <= now)
            numbers = [items.index(item) for item in woken]
            assert sorted((model[n], n) for n in numbers) == expected
            times = [model[n] for n in numbers]
            assert times == sorted(times), "woken out of order"
            model = {n: at for n, at in model.items() if at > now}
        assert {n: i.wake_at for n, i in enumerate(items) if i.wake_at != UNBOOKED} == model
        first = agenda.next_at()
        assert (first is None) == (not model)
        assert first is None or first <= min(model.values()), "the owner would sleep too long"


@settings(max_examples=100, deadline=None)
@given(st.lists(offsets, min_size=1, max_size=20))
def test_owner_who_sleeps_until_next_at_wakes_each_item_on_the_millisecond(plan: list[int]) -> None:
    agenda = Agenda()
    items = {Sleeper(): START + offset for offset in plan}
    for item, booked in items.items():
        agenda.book(item, booked)
    now, turns = START, 0
    while (at := agenda.next_at()) is not None:
        now, turns = max(now, at), turns + 1
        for woken in due(agenda, now):
            assert items.pop(woken) == now
    assert not items
    assert turns <= 2 * len(plan) + 1, "idle wake-ups beyond one a bucket"


def test_items_of_one_millisecond_wake_in_order_of_booking() -> None:
    agenda = Agenda()
    items = [Sleeper() for _ in range(5)]
    agenda.pop_due(START)
    for item in items:
        agenda.book(item, START + 10)
    assert due(agenda, START + 10) == items


def test_booking_again_replaces_the_booking() -> None:
    agenda, item = Agenda(), Sleeper()
    agenda.pop_due(START)
    for at in (5, 9, 5, DAY_MS, 7):
        agenda.book(item, START + at)
    assert due(agenda, START + 6) == []
    assert due(agenda, START + 2 * DAY_MS) == [item]


def test_booking_in_the_past_wakes_at_once() -> None:
    agenda, item = Agenda(), Sleeper()
    agenda.pop_due(START)
    agenda.book(item, START - DAY_MS)
    assert due(agenda, START) == [item]


def test_cancel_of_what_isnt_booked_is_nothing() -> None:
    agenda, item = Agenda(), Sleeper()
    agenda.cancel(item)
    agenda.book(item, START)
    agenda.cancel(item)
    agenda.cancel(item)
    assert agenda.next_at() is None
    assert due(agenda, START + DAY_MS) == []


def test_far_timers_that_are_cancelled_leave_nothing_behind() -> None:
    agenda = Agenda()
    agenda.pop_due(START)
    items = [Sleeper() for _ in range(1_000)]
    for n, item in enumerate(items):
        agenda.book(item, START + DAY_MS + n * 1_000)
    for item in items:
        agenda.cancel(item)
    assert agenda.next_at() is None
    assert (agenda._near, agenda._far, agenda._far_heap) == ([], {}, [])


def test_a_large_bucket_opens_in_bounded_steps_and_nothing_is_lost_meanwhile() -> None:
    agenda = Agenda()
    agenda.pop_due(START)
    items = [Sleeper() for _ in range(12_000)]
    for item in items:
        agenda.book(item, START + DAY_MS)
    now = START + DAY_MS
    first = agenda.pop_due(now)
    assert len(agenda._near) <= 5_000
    waiting = [item for item in items if item is not first]
    for item in waiting[::3]:  # in the heap or not yet
        agenda.cancel(item)
    for item in waiting[1::3]:
        agenda.book(item, now + 1)
    for item in waiting[2::3]:
        agenda.book(item, now + DAY_MS)
    woken: list[Sleeper] = []
    for at, expected in ((now, []), (now + 1, waiting[1::3]), (now + DAY_MS, waiting[2::3])):
        while (first_at := agenda.next_at()) is not None and first_at <= at:
            before = len(agenda._near)
            item = agenda.pop_due(at)
            assert len(agenda._near) <= before + 5_000
            woken += [] if item is None else [item]
        assert sorted(map(id, woken)) == sorted(map(id, expected))
        woken.clear()
    assert agenda.next_at() is None


def test_timers_that_were_booked_anew_are_thrown_out_in_bounded_steps_and_none_is_lost() -> None:
    agenda = Agenda()
    agenda.pop_due(START)
    items = [Sleeper() for _ in range(12_000)]
    for item in items:
        agenda.book(item, START + 5)
    last = Sleeper()
    agenda.book(last, START + 5)
    for item in items:
        agenda.book(item, START + 6)
    woken: list[Sleeper] = []
    now, looks = START + 5, 0
    while (at := agenda.next_at()) is not None and at <= START + 6:
        now = max(now, at)
        before = len(agenda._near)
        item = agenda.pop_due(now)
        assert before - len(agenda._near) <= 1_001
        woken += [] if item is None else [item]
        looks += 1
    assert woken == [last, *items]
    assert looks <= len(woken) + 13
