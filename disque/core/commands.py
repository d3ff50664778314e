"""The commands about jobs and queues, as values; `parsing` makes them of a client's arguments.

Times are ms here, whatever unit the client used. What only the shell can answer (PING, INFO, CLUSTER ...) isn't here.
"""

from __future__ import annotations

from collections.abc import Mapping

from disque.core.jobid import JobId
from disque.core.topics import Topic
from disque.core.value import value

REPLICATE_MAX = 65_535  # copies of a job; Disque's
TTL_DEFAULT_MS = 86_400_000  # one day; Disque's
DURATION_MAX_MS = 10**15  # longer times are cut to this, 31,700 years: sums stay exact (W-30)

PRIORITY_DEFAULT = 4  # of 0 to 9, high first

NO_HEADERS: Mapping[bytes, bytes] = {}


@value
class AddJob:
    """`timeout_ms` 0 waits for ever; None: the client left it out."""

    queue: bytes
    body: bytes
    timeout_ms: int
    replicate: int | None = None
    delay_ms: int = 0
    retry_ms: int | None = None
    ttl_ms: int = TTL_DEFAULT_MS
    maxlen: int | None = None
    is_async: bool = False
    priority: int = PRIORITY_DEFAULT
    max_deliveries: int | None = None
    dead_queue: bytes | None = None
    headers: Mapping[bytes, bytes] = NO_HEADERS


@value
class GetJob:
    """`queues` has no duplicates; `timeout_ms` 0 waits for ever.

    `is_admitted`: for a subscription that Attend has let in; no limit stands against it any more.
    """

    queues: tuple[bytes, ...]
    timeout_ms: int = 0
    count: int = 1
    is_nohang: bool = False
    with_counters: bool = False
    is_admitted: bool = False


@value
class AckJob:
    """Settle jobs: they are done, everywhere."""

    ids: tuple[JobId, ...]


@value
class FastAck:
    """Settle jobs without waiting for the other holders."""

    ids: tuple[JobId, ...]


@value
class DelJob:
    """Drop this node's copies."""

    ids: tuple[JobId, ...]


@value
class Enqueue:
    """Queue jobs at once."""

    ids: tuple[JobId, ...]


@value
class Nack:
    """Give jobs back: queue them again, counted."""

    ids: tuple[JobId, ...]
    delay_ms: int = 0


@value
class Dequeue:
    """Take jobs out of their queue."""

    ids: tuple[JobId, ...]


@value
class Working:
    """Ask for more time before a job is queued again."""

    id: JobId


@value
class Show:
    """Tell all about a job."""

    id: JobId


@value
class QLen:
    """Count a queue's jobs here."""

    queue: bytes


@value
class Revive:
    """Put dead letters back into their own queues."""

    ids: tuple[JobId, ...]


@value
class CancelJob:
    """End jobs everywhere; `timeout_ms` None: cluster-ask-timeout, 0: until all answered or failed (as below)."""

    ids: tuple[JobId, ...]
    timeout_ms: int | None = None


@value
class WaitJob:
    """Wait until no id is pending; `timeout_ms` 0 waits for ever."""

    ids: tuple[JobId, ...]
    timeout_ms: int = 0


@value
class QStat:
    """Tell about a queue here, or (is_global) about the queue in the cluster."""

    queue: bytes
    is_global: bool = False
    timeout_ms: int | None = None


@value
class GlobalQLen:
    """Count the queued jobs of all nodes."""

    queue: bytes
    timeout_ms: int | None = None
    with_nodes: bool = False


@value
class QPurge:
    """Cancel all jobs of a queue, everywhere, once. `is_final`: nobody needs the queue any more."""

    queue: bytes
    timeout_ms: int | None = None
    is_final: bool = False


@value
class QPeek:
    """Show jobs of a queue without touching them, after `skip`; a negative count: the newest first."""

    queue: bytes
    count: int
    skip: int = 0


@value
class QScan:
    """Walk over the queues; `count` is None for all at once (BUSYLOOP)."""

    cursor: int = 0
    count: int | None = 100
    length_min: int | None = None
    length_max: int | None = None
    import_rate_min: int | None = None
    is_full: bool = False  # what is told of a queue, not its name alone


@value
class JScan:
    """Walk over the jobs; `states` empty: all; `count` is None for all at once (BUSYLOOP)."""

    cursor: int = 0
    count: int | None = 100
    queue: bytes | None = None
    states: tuple[bytes, ...] = ()
    is_full: bool = False


@value
class Pause:
    """Set a queue's pause flags (1 in, 2 out) here or (is_cluster) for the cluster; None only asks."""

    queue: bytes
    flags: int | None
    is_cluster: bool = False


@value
class Publish:
    """Give a message to all who have subscribed to its channel; headers as those of a job."""

    channel: bytes
    body: bytes
    headers: Mapping[bytes, bytes] = NO_HEADERS


@value
class Subscribe:
    """A connection, under an id of its own, wants what is published to these topics: replies of that id."""

    subscriber: int
    topics: tuple[Topic, ...]


@value
class Unsubscribe:
    """A connection no longer wants these; `topics` None: any of channels or (is_pattern) of patterns."""

    subscriber: int
    topics: tuple[Topic, ...] | None
    is_pattern: bool = False


@value
class NumSub:
    """Count the subscriptions of channels, patterns not included."""

    channels: tuple[bytes, ...]


@value
class CountReached:
    """Count the subscriptions that a message to this channel would reach."""

    channel: bytes


@value
class Attend:
    """One subscription more (1) or less (-1) of a queue by a front end that subscribes.

    It is counted, and its place among those that wait is its own until it ends, or there is none and it fails.
    """

    queue: bytes
    change: int


@value
class CountAttending:
    """Count the subscriptions of a queue on all nodes."""

    queue: bytes


@value
class Renew:
    """Keep jobs leased whose RETRY is the default one: who was handed them is alive. Answers the ids not known here."""

    ids: tuple[JobId, ...]


@value
class FlushAll:
    """DEBUG FLUSHALL: forget all jobs and queues of this node."""


Command = (
    AddJob
    | GetJob
    | AckJob
    | FastAck
    | DelJob
    | Enqueue
    | Nack
    | Dequeue
    | Working
    | Show
    | QLen
    | QStat
    | Revive
    | CancelJob
    | WaitJob
    | GlobalQLen
    | QPurge
    | QPeek
    | QScan
    | JScan
    | Pause
    | Publish
    | Subscribe
    | Unsubscribe
    | NumSub
    | CountReached
    | Attend
    | CountAttending
    | Renew
    | FlushAll
)
