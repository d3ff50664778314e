"""The one timer structure: who wants to be woken when.

A near heap and far buckets, a two-level timing wheel (Varghese and Lauck, 1987). Most timers of a job queue are far off
(expiry in a day) and cancelled long before: those lie in buckets of about eight seconds, where booking and cancelling
take constant time and leave nothing behind. A bucket moves into the heap when its time comes; only there may a
cancelled entry linger, at most for the length of a bucket.
"""

from __future__ import annotations

import heapq
from typing import Protocol

_BUCKET_BITS = 13  # 8,192 ms


class Sleeper(Protocol):
    """Whatever can be booked; `wake_at` (ms, None = not booked) belongs to the agenda."""

    wake_at: int | None


class Agenda:
    """Timers in ms. An item has at most one booking; booking again replaces it."""

    def __init__(self) -> None:
        self._near: list[tuple[int, int, Sleeper]] = []
        self._near_until = 0  # bookings in buckets below this number go to the heap
        self._far: dict[int, dict[Sleeper, None]] = {}
        self._far_heap: list[int] = []  # numbers of the buckets that exist
        self._count = 0  # makes heap entries unique, in order of booking

    def book(self, item: Sleeper, at: int) -> None:
        """Wake `item` at `at` ms, instead of whenever it was booked for."""
        before = item.wake_at
        if before == at:
            return
        if before is not None:
            items = self._far.get(before >> _BUCKET_BITS)
            if items is not None:
                items.pop(item, None)
        item.wake_at = at
        bucket = at >> _BUCKET_BITS
        if bucket < self._near_until:
            self._count += 1
            heapq.heappush(self._near, (at, self._count, item))
            return
        items = self._far.get(bucket)
        if items is None:
            items = self._far[bucket] = {}
            heapq.heappush(self._far_heap, bucket)
        items[item] = None

    def cancel(self, item: Sleeper) -> None:
        """Forget the booking of `item`, if it has one."""
        before = item.wake_at
        if before is not None:
            items = self._far.get(before >> _BUCKET_BITS)
            if items is not None:
                items.pop(item, None)
            item.wake_at = None

    def next_at(self) -> int | None:
        """ms of the first booking, None if there is none; for a far one the start of its bucket, which is earlier."""
        while self._near and self._near[0][2].wake_at != self._near[0][0]:
            heapq.heappop(self._near)  # cancelled or booked anew
        if self._near:
            return self._near[0][0]
        while self._far_heap and not self._far[self._far_heap[0]]:
            del self._far[heapq.heappop(self._far_heap)]
        return self._far_heap[0] << _BUCKET_BITS if self._far_heap else None

    def pop_due(self, now_ms: int) -> Sleeper | None:
        """The next item whose time has come, its booking removed; None if nothing is due."""
        now_bucket = now_ms >> _BUCKET_BITS
        while self._far_heap and self._far_heap[0] <= now_bucket:
            self._open_bucket()
        self._near_until = max(self._near_until, now_bucket + 1)
        at = self.next_at()
        if at is None or at > now_ms:
            return None
        _, _, item = heapq.heappop(self._near)
        item.wake_at = None
        return item

    def _open_bucket(self) -> None:
        items = self._far.pop(heapq.heappop(self._far_heap))
        for item in items:
            assert item.wake_at is not None
            self._count += 1
            self._near.append((item.wake_at, self._count, item))
        heapq.heapify(self._near)
