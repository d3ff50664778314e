"""Bugs of the log: what the simulator must find when its nodes keep one. See bugs.py for how they are written."""

from __future__ import annotations

from typing import Any

from disque.aof import format as fmt
from disque.aof.disk import LogError
from disque.aof.replay import Replay
from disque.aof.store import Store
from disque.core import restoring
from disque.core.delivery import book
from disque.core.state import State
from tests.sim.storing import Storing, Turn


def log_after_reply(storing: Storing, turn: Turn) -> None:
    """Everything leaves, then it is stored."""
    records, turn.unwritten = turn.unwritten, []
    storing._done(turn)
    if storing.node.is_alive and records:
        storing.log.write(records)
        storing.node.world.watch.durability.stored(storing.node, records)


_dispatch = restoring._dispatch


def reload_requeues(state: State, id_: Any, count: Any) -> None:
    """A replayed dispatch of RETRY 0 is only counted."""
    job = state.jobs.get(id_)
    if job is None or job.is_done or job.retry_ms:
        _dispatch(state, id_, count)
    else:
        job.dispatches = {**job.dispatches, state.self_id: count}
        book(state, job)


_tear = Replay._tear


def torn_tail_stops(replay: Replay, segment: int, start: int, data: bytes, found: fmt.Scan) -> Any:
    """A start with a torn tail fails."""
    if start < len(data):
        raise LogError(f"segment {segment} ends in the middle of a record")
    return _tear(replay, segment, start, data, found)


def torn_record_accepted(data: fmt.Buffer, start: int, seed: int, offsets: Any) -> int:
    """What has a length and fits is a record, whatever its CRC."""
    offset = start
    while (size := fmt.size_at(data, offset)) > fmt.HEAD_BYTES and offset + size <= len(data):
        offsets.append(offset)
        offset += size
    return offset


_retire = Store.retire


def deleted_before_sync(store: Store, first: int) -> None:
    """Segments that were compacted go at once: the copies aren't on the disk yet."""
    _retire(store, first)
    for segment in [each for each in store.sizes if each < first]:
        store.disk.delete(segment)
        store.total_bytes -= store.sizes.pop(segment)
        for known in (store._dirty, store._unclaimed, store._cut_before):
            known.pop(segment, None)
    store.disk.sync_folder()
