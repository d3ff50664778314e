"""A queue's sorted pages against a sorted list; its import rate against the reference's formula."""

from __future__ import annotations

import random
from typing import Never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core.job import Job, JobState
from disque.core.jobid import JobId
from disque.core.jobqueue import PAUSE_IN, PAUSE_OUT, JobQueue, SortedPages, place_of
from tests.unit.core.builders import spec

NOW = 1_700_000_000_000


def job(priority: int, ctime: int) -> Job:
    """The same place, the same job."""
    id_ = JobId(b"D-%d-%d" % (priority, ctime))
    made = Job(id_, _specs[priority], ctime, b"", JobState.QUEUED, 0)
    return _made.setdefault((priority, ctime), made)


_specs = [spec(priority=priority) for priority in range(10)]
_made: dict[tuple[int, int], Job] = {}
jobs = st.builds(job, st.integers(0, 9), st.integers(0, 50))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "pop"]), jobs), max_size=60))
def test_pages_equal_a_sorted_list(plan: list[tuple[str, Job]]) -> None:
    pages = SortedPages()
    model: list[Job] = []
    for what, one in plan:
        if what == "add" and one not in model:
            pages.add(one)
            model = sorted([*model, one], key=place_of)
        elif what == "remove":
            if one in model:
                pages.remove(one)
                model.remove(one)
            else:
                with pytest.raises(KeyError):
                    pages.remove(one)
        elif what == "pop" and model:
            assert pages.first() is model[0]
            pages.remove(model.pop(0))
        assert list(pages) == model
        assert list(pages.behind(0, is_reversed=True)) == model[::-1]
        assert len(pages) == len(model)


def test_jobs_in_the_order_of_their_making_fill_pages_that_are_taken_from_either_end() -> None:
    pages, model = SortedPages(), [job(4, n) for n in range(2_000)]
    for one in model:
        pages.add(one)
    for one in (*model[:700], *model[:1_300:-1]):
        pages.remove(one)
    assert list(pages) == model[700:1_301]
    high, late = job(9, 0), job(4, 5_000)
    for one in (high, late):
        pages.add(one)
    assert list(pages) == [high, *model[700:1_301], late]
    with pytest.raises(KeyError):
        pages.remove(model[0])


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_keys_cross_many_pages(seed: int) -> None:
    dice = random.Random(seed)
    pages, model = SortedPages(), [job(dice.randrange(10), n) for n in range(3_000)]
    dice.shuffle(model)
    for one in model:
        pages.add(one)
    model.sort(key=place_of)
    assert list(pages) == model
    for one in dice.sample(model, 2_000):
        pages.remove(one)
        model.remove(one)
    assert list(pages) == model
    for at in (0, 1, 499, 998, 999):
        assert list(pages.starting_at(place_of(model[at]))) == model[at:]
        assert list(pages.behind(at)) == model[at:]
        assert list(pages.behind(at, is_reversed=True)) == model[::-1][at:]
    assert list(pages.behind(1_000)) == []
    assert list(pages.starting_at((10, 0, JobId(b"")))) == []
    for one in model[:500]:
        assert pages.first() is one
        pages.remove(one)
    assert list(pages.behind(0, is_reversed=True)) == model[:499:-1]


@pytest.mark.patches
def test_what_is_skipped_is_not_walked_over() -> None:
    class Untouched(list[Job]):
        def __iter__(self) -> Never:
            raise AssertionError("walked over")

        __reversed__ = __iter__

    pages = SortedPages()
    for number in range(2_000):
        pages.add(job(4, number))
    assert len(pages._pages) > 4
    pages._pages[2:-2] = map(Untouched, pages._pages[2:-2])
    assert next(pages.behind(1_999)) == job(4, 1_999)
    assert next(pages.behind(1_999, is_reversed=True)) == job(4, 0)


def test_high_priority_first_then_age_then_id() -> None:
    pages = SortedPages()
    for one in (job(4, 3), job(9, 8), job(4, 1), job(0, 0)):
        pages.add(one)
    assert list(pages) == [job(9, 8), job(4, 1), job(4, 3), job(0, 0)]


def test_jobs_from_a_place_between_two_of_them() -> None:
    pages = SortedPages()
    assert list(pages.starting_at((0, 0, JobId(b"")))) == []
    for one in (job(4, 3), job(9, 8), job(0, 0)):
        pages.add(one)
    assert list(pages.starting_at((1, 0, JobId(b"")))) == [job(4, 3), job(0, 0)]


def test_an_empty_queue_has_no_first_job() -> None:
    assert SortedPages().first() is None


def queue_that_imported(at: list[int]) -> JobQueue:
    """A queue made at NOW, with an import at each of these ms after it."""
    queue = JobQueue(b"q", created_at=NOW, accessed_at=NOW)
    for ms in at:
        queue.open_exchange().count_import(NOW + ms, bucket_ms=1_000)
    return queue


# Reference 5.5: two buckets of a second; ceil((previous + current) x 1000 / max(50, now - start of the previous)).
@pytest.mark.parametrize(
    ("imports", "now_ms", "rate"),
    [
        ([], 0, 0),
        ([0], 0, 20),  # 1 job, divisor at least 50 ms
        ([0], 50, 20),
        ([0], 100, 10),
        ([0] * 10, 100, 100),
        ([0], 1_000, 1),
        ([0], 1_500, 1),  # rounded up
        ([0] * 10, 5_000, 2),
        ([0] * 10, 5_001, 0),  # silence of more than 5 s
        ([0, 0, 0, 1_000], 1_000, 4),  # still the first bucket at exactly 1 s
        ([0, 0, 0, 1_001], 1_001, 4),  # a new one: ceil(4 x 1000 / 1001)
        ([0] * 100 + [1_001, 2_002], 2_002, 2),  # of the third bucket, the first is forgotten
    ],
)
def test_import_rate(imports: list[int], now_ms: int, rate: int) -> None:
    queue = queue_that_imported(imports)
    assert queue.import_rate(NOW + now_ms, window_ms=5_000, divisor_min_ms=50) == rate


def test_clients_wait_in_the_order_of_their_coming() -> None:
    queue = JobQueue(b"q", created_at=NOW, accessed_at=NOW)
    model: dict[int, None] = {}
    dice = random.Random(1)
    for _ in range(500):
        client = dice.randrange(4)
        if dice.random() < 0.5:
            queue.block(client)
            model[client] = None
        else:
            queue.unblock(client)
            model.pop(client, None)
        assert list(queue.blocked) == list(model)
        assert (len(queue.blocked), 2 in queue.blocked) == (len(model), 2 in model)


def test_a_queue_without_jobs_keeps_nothing_for_them() -> None:
    queue, other = [JobQueue(b"q", created_at=NOW, accessed_at=NOW) for _ in range(2)]
    queue.add(job(4, 1))
    queue.shrink()
    assert (len(queue), len(other)) == (1, 0)
    queue.jobs.remove(job(4, 1))
    queue.shrink()
    assert queue.jobs is other.jobs


def test_pauses_of_the_node_and_of_the_cluster_add_up() -> None:
    queue = JobQueue(b"q", created_at=NOW, accessed_at=NOW)
    assert (queue.is_paused_in, queue.is_paused_out, queue.pause_flags) == (False, False, 0)
    queue.pause, queue.cluster_pause = PAUSE_IN, PAUSE_OUT
    assert (queue.is_paused_in, queue.is_paused_out, queue.pause_flags) == (True, True, 3)
    queue.pause = 0
    assert (queue.is_paused_in, queue.is_paused_out) == (False, True)
