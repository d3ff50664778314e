"""A queue at one node: its jobs in order, who waits for them, and what it knows of other nodes' need.

Jobs are kept in sorted pages: an insert at the end or a take at the front moves few entries, any other costs a bisect
and a short memmove, and nothing is ever left behind to be swept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

import attrs

from cluster.nodeid import NodeId
from disque.core.job import Job
from disque.core.jobid import JobId
from disque.core.sleeper import Sleeper

_PAGE_MAX = 512  # a page is split in two beyond this

# (9 - priority, ctime, id): high priority first, then age, then id.
Place: TypeAlias = tuple[int, int, JobId]

PAUSE_IN = 1
PAUSE_OUT = 2


def place_of(job: Job) -> Place:
    """Where a job stands in the order of its queue; never changes."""
    spec = job.spec
    assert spec is not None, f"{job.id!r} is a bare done entry"
    return (9 - spec.priority, job.ctime, job.id)


class SortedPages:
    """Jobs in the order of their places, cut into pages."""

    __slots__ = ("_lasts", "_length", "_pages")

    def __init__(self) -> None:
        self._pages: list[list[Job]] = []
        self._lasts: list[Place] = []  # that of the last job of each page but the last one
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Job]:
        for page in self._pages:
            yield from page

    def add(self, job: Job) -> None:
        """Insert a job that isn't there yet."""
        self._length += 1
        pages = self._pages
        if not pages:
            pages.append([job])
            return
        at = len(pages) - 1
        page = pages[at]
        last = page[-1]
        if job.ctime > last.ctime and job.spec is last.spec:  # mostly: its place needn't be made
            page.append(job)
        else:
            place = place_of(job)
            at = bisect_left(self._lasts, place)
            page = pages[at]
            insort(page, job, key=place_of)
        if len(page) > _PAGE_MAX:
            self._split(at)

    def _split(self, at: int) -> None:
        page = self._pages[at]
        half = len(page) // 2
        self._pages.insert(at + 1, page[half:])
        del page[half:]
        self._lasts.insert(at, place_of(page[-1]))

    def remove(self, job: Job) -> None:
        """Take out a job; KeyError if it isn't there."""
        pages = self._pages
        if pages and pages[0][0] is job:
            self._delete(0, 0)
            return
        place = place_of(job)
        at = bisect_left(self._lasts, place)
        page = pages[at] if pages else []
        index = bisect_left(page, place, key=place_of)
        if index == len(page) or page[index] is not job:
            raise KeyError(job.id)
        self._delete(at, index)

    def first(self) -> Job | None:
        """The next job, None if there is none."""
        return self._pages[0][0] if self._pages else None

    def behind(self, skip: int, *, is_reversed: bool = False) -> Iterator[Job]:
        """The jobs behind the first so many, from either end; those are skipped a page at a time."""
        for page in reversed(self._pages) if is_reversed else self._pages:
            if skip < len(page):
                yield from islice(reversed(page) if is_reversed else page, skip, None)
            skip = max(skip - len(page), 0)

    def starting_at(self, place: Place) -> Iterator[Job]:
        """The jobs at this place and behind it, in order."""
        if self._pages:
            at = bisect_left(self._lasts, place)
            page = self._pages[at]
            yield from page[bisect_left(page, place, key=place_of) :]
            yield from chain.from_iterable(self._pages[at + 1 :])

    def take_pages(self) -> dict[int, list[Job]]:
        """If there are several pages, take all of them out; for who gives a million jobs back a page at a time."""
        pages = self._pages
        if len(pages) < 2:
            return {}
        self._pages, self._lasts, self._length = [], [], 0
        return dict(enumerate(pages))

    def _delete(self, at: int, index: int) -> None:
        page = self._pages[at]
        del page[index]
        self._length -= 1
        is_last = at == len(self._lasts)
        if not page:
            del self._pages[at]
            if not is_last:
                del self._lasts[at]
            elif at:
                del self._lasts[at - 1]
        elif index == len(page) and not is_last:
            self._lasts[at] = place_of(page[-1])


_NO_JOBS: Final = SortedPages()  # stays empty: that of all queues that never had a job


@attrs.define(eq=False, weakref_slot=False)
class Exchange:
    """What a node has asked others for, of one queue, what it had from them, and what they want. Times in ms."""

    import_start: int  # start of the running bucket
    import_before_start: int
    import_count: int = 0
    import_before_count: int = 0
    responders: dict[NodeId, int] = attrs.Factory(dict)  # node -> when it last sent jobs
    broadcast_at: int | None = None
    broadcast_round: int = 0
    want_at: int = 0  # when peers were last told that clients wait here
    want_until: int = 0  # till then they remember it, unless something has come
    adhoc_at: int | None = None
    adhoc_round: int = 0

    # Asked by other nodes while there was nothing to give: node -> (jobs wanted, until)
    wanted: dict[NodeId, tuple[int, int]] = attrs.Factory(dict)

    def count_import(self, now_ms: int, *, bucket_ms: int) -> None:
        """One job came from another node."""
        if now_ms - self.import_start > bucket_ms:
            self.import_before_start, self.import_before_count = (
                self.import_start,
                self.import_count,
            )
            self.import_start, self.import_count = now_ms, 0
        self.import_count += 1

    def import_rate(self, now_ms: int, *, window_ms: int, divisor_min_ms: int) -> int:
        """Jobs a second that came from other nodes lately, rounded up; 0 after window_ms of silence."""
        if not self.import_count or now_ms - self.import_start > window_ms:
            return 0
        elapsed = max(divisor_min_ms, now_ms - self.import_before_start)
        return -(-(self.import_before_count + self.import_count) * 1000 // elapsed)


@attrs.define(eq=False, weakref_slot=False)
class JobQueue(Sleeper):
    """Times in ms. Nothing here is a fact of the cluster, except `cluster_pause` with its stamp (M18).

    There may be a million in which nothing happens but that somebody waits: the rest is made when it is needed.
    """

    name: bytes
    created_at: int
    accessed_at: int
    jobs: SortedPages = _NO_JOBS
    jobs_in: int = 0
    jobs_out: int = 0
    pause: int = 0  # PAUSE_IN | PAUSE_OUT, set at this node
    cluster_pause: int = 0  # the same, set for the cluster (M18)
    exchange: Exchange | None = None  # with other nodes, since there was any

    # Clients in GETJOB, first come first served: mostly there is one, and a dict costs as much as all the rest
    _blocked: int | OrderedDict[int, None] | None = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job) -> None:
        """Insert a job that isn't there yet."""
        if self.jobs is _NO_JOBS:
            self.jobs = SortedPages()
        self.jobs.add(job)

    def shrink(self) -> None:
        """Keep nothing for jobs if there are none."""
        if not self.jobs:
            self.jobs = _NO_JOBS

    @property
    def blocked(self) -> Collection[int]:
        """Clients in GETJOB, first come first served."""
        who = self._blocked
        if who is None:
            return ()
        return (who,) if isinstance(who, int) else who

    def block(self, client: int) -> None:
        """One client more waits."""
        who = self._blocked
        if who is None or who == client:
            self._blocked = client
        elif isinstance(who, int):
            self._blocked = OrderedDict.fromkeys((who, client))
        else:
            who[client] = None

    def unblock(self, client: int) -> None:
        """A client waits no longer; nothing if it doesn't."""
        who = self._blocked
        if isinstance(who, dict):
            who.pop(client, None)
            if not who:
                self._blocked = None
        elif who == client:
            self._blocked = None

    def open_exchange(self) -> Exchange:
        """Its dealings with other nodes, which begin now if there were none."""
        if self.exchange is None:
            self.exchange = Exchange(self.created_at, self.created_at)
        return self.exchange

    @property
    def is_wanted(self) -> bool:
        """True if other nodes asked for jobs that weren't there."""
        return self.exchange is not None and bool(self.exchange.wanted)

    @property
    def is_paused_in(self) -> bool:
        """No new jobs."""
        return bool((self.pause | self.cluster_pause) & PAUSE_IN)

    @property
    def is_paused_out(self) -> bool:
        """No deliveries."""
        return bool((self.pause | self.cluster_pause) & PAUSE_OUT)

    @property
    def pause_flags(self) -> int:
        """What is in force: the node's flags and the cluster's together."""
        return self.pause | self.cluster_pause

    def import_rate(self, now_ms: int, *, window_ms: int, divisor_min_ms: int) -> int:
        """Jobs a second that came from other nodes lately; see Exchange."""
        if self.exchange is None:
            return 0
        return self.exchange.import_rate(now_ms, window_ms=window_ms, divisor_min_ms=divisor_min_ms)
