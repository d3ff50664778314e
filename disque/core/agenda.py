"""The one timer structure: who wants to be woken when.

A near heap and far buckets, a two-level timing wheel (Varghese and Lauck, 1987). Most timers of a job queue are far off
(expiry in a day) and cancelled long before: those lie in buckets of about eight seconds, where booking and cancelling
take constant time and leave nothing behind: a bucket is a list through the items themselves, since a dict of a million
is looked up in memory that no cache has, and grows in long pauses. A bucket moves into the heap when its time comes, a
large one in bounded steps, during which what isn't there yet may wake late; only there may a cancelled entry linger, at
most for the length of a bucket. Those are thrown out in bounded steps, too: a hundred thousand that were booked anew
may lie in a row.
"""

from __future__ import annotations

import heapq

from disque.core.sleeper import UNBOOKED, Bucket, Sleeper

_BUCKET_BITS = 13  # 8,192 ms
_STEP = 5_000  # bookings that move into the heap at a time: some ms
_CANCELLED_STEP = 1_000  # cancelled ones that leave it between two calls of `next_at`: about one ms


class Agenda:
    """Timers in ms. An item has at most one booking; booking again replaces it."""

    def __init__(self) -> None:
        self._near: list[tuple[int, int, Sleeper]] = []
        self._near_until = 0  # bookings in buckets below this number go to the heap
        self._far: dict[int, Bucket] = {}
        self._far_heap: list[int] = []  # numbers of the buckets that exist
        self._stepped_at = -1  # ms; when buckets were last opened
        self._cancelled_left = _CANCELLED_STEP
        self._count = 0  # makes heap entries unique, in order of booking

    def book(self, item: Sleeper, at: int) -> None:
        """Wake `item` at `at` ms, instead of whenever it was booked for."""
        if item.wake_at == at:
            return
        if item.bucket is not None:
            item.bucket.remove(item)
        item.wake_at = at
        bucket = at >> _BUCKET_BITS
        if bucket < self._near_until:
            self._count += 1
            heapq.heappush(self._near, (at, self._count, item))
            return
        items = self._far.get(bucket)
        if items is None:
            items = self._far[bucket] = Bucket()
            heapq.heappush(self._far_heap, bucket)
        last = items.last
        if last is None:
            items.first = item
        else:
            last.behind = item
            item.ahead = last
        items.last = item
        item.bucket = items

    def cancel(self, item: Sleeper) -> None:
        """Forget the booking of `item`, if it has one."""
        if item.bucket is not None:
            item.bucket.remove(item)
        item.wake_at = UNBOOKED

    def next_at(self) -> int | None:
        """ms of the first booking, None if there is none.

        May be earlier: the start of a far one's bucket, or the time of a cancelled one.
        """
        self._cancelled_left = _CANCELLED_STEP
        while self._far_heap and self._far[self._far_heap[0]].first is None:
            del self._far[heapq.heappop(self._far_heap)]
        near_at = self._near_at()
        if not self._far_heap:
            return near_at
        far_at = self._far_heap[0] << _BUCKET_BITS
        return far_at if near_at is None else min(near_at, far_at)

    def _near_at(self) -> int | None:
        near = self._near
        while near and near[0][2].wake_at != near[0][0] and self._cancelled_left:
            self._cancelled_left -= 1
            heapq.heappop(near)  # cancelled or booked anew
        return near[0][0] if near else None

    def pop_due(self, now_ms: int) -> Sleeper | None:
        """The next item whose time has come, its booking removed; None if nothing is due, or not found yet.

        In the latter case `next_at` has passed: whoever calls again then, as for any time, misses nothing.
        """
        at = self._near_at()
        if now_ms != self._stepped_at or at is None or at > now_ms:
            self._stepped_at = now_ms
            self._open_buckets(now_ms >> _BUCKET_BITS)
            at = self._near_at()
        if at is None or at > now_ms:
            return None
        _, _, item = heapq.heappop(self._near)
        if item.wake_at != at:
            return None
        item.wake_at = UNBOOKED
        return item

    def _open_buckets(self, now_bucket: int) -> None:
        """One bounded step: bookings of buckets whose time has come go into the heap, in order for each ms of it."""
        self._near_until = max(self._near_until, now_bucket + 1)
        left = _STEP
        while left > 0 and self._far_heap and self._far_heap[0] <= now_bucket:
            items = self._far[self._far_heap[0]]
            moved: list[Sleeper] = []
            while len(moved) < left and (last := items.last) is not None:
                items.remove(last)
                moved.append(last)
            left -= max(1, len(moved))
            for item in reversed(moved):
                self._count += 1
                heapq.heappush(self._near, (item.wake_at, self._count, item))
            if items.first is None:
                del self._far[heapq.heappop(self._far_heap)]
