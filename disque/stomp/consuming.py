"""Consuming: the queues that one connection has subscribed to, what it was handed and hasn't acknowledged.

A subscription that the core has let in asks it for as many jobs as its prefetch leaves room for, and waits in line with
all other consumers. What the client holds has a lease: renewed while the connection lives if the producer fixed no
time, else over after that time: then the job belongs to somebody else, and its place is free again.
"""

from __future__ import annotations

import enum
from itertools import islice

import attrs

from disque.core import commands as cmd
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Delivery, Failure, Reply
from disque.stomp.destinations import Queue, cost_of
from disque.stomp.frames import Version, carried_lines, escape
from disque.stomp.outbox import IDS_MAX, Outbox, Then, ignore
from disque.stomp.sending import is_renewable

FETCH_MAX = 16  # jobs asked for at a time: other consumers of the queue have their turn in between
# After the core refused fetches (a node that leaves, a log that can't be written): one is tried, then two, four ...
AGAIN_MS = 1_000
STEP_BACK_MS = 200  # before a time is over; sessions are looked at every 100 ms
LATE_MAX = 1_000  # deliveries whose time is over that are remembered, so that a late ACK counts


class AckMode(enum.Enum):
    """When a message counts as consumed."""

    AUTO = b"auto"  # once it has been sent
    CLIENT = b"client"  # by an ACK of it or (from 1.1 on) of a later one
    INDIVIDUAL = b"client-individual"


@attrs.define(eq=False, weakref_slot=False)
class Subscription:
    """One subscription of a queue. There may be a million that wait: what a message needs is made when one comes.

    Called with the reply to its fetch.
    """

    id: bytes
    queue: bytes
    mode: AckMode
    prefetch: int
    consumer: Consumer
    is_nameless: bool  # the client gave it no id (1.0)
    is_temporary: bool
    held: dict[JobId, Held] | None = None  # unacknowledged, in order of delivery; None: nothing
    head: bytes = b""  # of its MESSAGE frames, up to what a job adds
    fetch: ClientId | None = None  # the GETJOB under way
    is_begun: bool = False  # the core has let it in
    is_over: bool = False

    @property
    def cost(self) -> int:
        """Bytes that it takes."""
        return cost_of(self.id, self.queue)

    def __call__(self, reply: Reply) -> None:
        self.consumer.fetched(self, reply)


@attrs.define(eq=False)
class Held:
    """One delivery that the client hasn't acknowledged."""

    id: JobId
    subscription: Subscription
    retry_ms: int
    is_renewed: bool
    due_at: int | None  # ms; when to renew its lease, or to let go of it; None: it has none


class Consumer:
    """All subscriptions of queues of one connection; `now_ms` is set by the session before each call."""

    def __init__(self, outbox: Outbox) -> None:
        self.now_ms = 0
        self.version = Version.V10
        self.frame_end = b"\0"
        self.subscriptions: dict[bytes, Subscription] = {}
        self.kept_bytes = 0  # what all subscriptions take
        self._outbox = outbox
        self._held: dict[JobId, Held] = {}
        self._late: dict[JobId, None] = {}
        self._look_at: int | None = None  # ms; none of what is held is due before
        self._unsent: list[Held] = []  # of automatic mode, not yet known to be sent
        self._resting: dict[bytes, Subscription] = {}  # that don't fetch now, in that order
        self._again_at: int | None = None  # ms; when to try some of them
        self._tries = 1  # how many
        self._roomy: dict[bytes, Subscription] = {}  # that may fetch again, see `settle_up`
        self._done: list[JobId] = []  # acknowledged, not yet said to the core
        self._is_closing = False

    # Beginning and ending

    def subscribe(self, subscription: Subscription, then: Then) -> None:
        """Begin to fetch if the core lets it; what it says, a Failure perhaps, is for `then`."""
        self.subscriptions[subscription.id] = subscription
        self.kept_bytes += subscription.cost

        def answered(reply: Reply) -> None:
            subscription.is_begun = not isinstance(reply, Failure)
            if subscription.is_over:
                self._leave(subscription)
            elif not subscription.is_begun:
                self._drop(subscription.id)
            then(reply)
            self._fill(subscription)

        self._outbox.ask(cmd.Attend(subscription.queue, 1), answered)

    def unsubscribe(self, id_: bytes) -> None:
        """End a subscription; what it holds goes back into the queue at once, by age."""
        self._end(self._drop(id_))

    def _end(self, subscription: Subscription) -> None:
        subscription.is_over = True
        self._resting.pop(subscription.id, None)
        self._leave(subscription)
        if subscription.fetch is not None:
            self._outbox.take_back(subscription.fetch)
        given_back = list(subscription.held or ())
        for id_job in given_back:
            self._let_go(id_job)
        self._give_back(subscription, given_back)

    def _drop(self, id_: bytes) -> Subscription:
        subscription = self.subscriptions.pop(id_)
        self.kept_bytes -= subscription.cost
        return subscription

    def _leave(self, subscription: Subscription) -> None:
        if subscription.is_begun:
            self._ask(cmd.Attend(subscription.queue, -1))

    def close_one(self) -> bool:
        """The connection has ended: all goes back, a subscription at a time; False if none is left."""
        if not self._is_closing:
            self._is_closing = True
            self.settle_up()
        if not self.subscriptions:
            return False
        _, subscription = self.subscriptions.popitem()
        self._end(subscription)
        return True

    def _give_back(self, subscription: Subscription, ids: list[JobId]) -> None:
        if not subscription.is_temporary:
            self._outbox.ask_all(cmd.Enqueue, ids, ignore, is_owed=False)

    def _ask(self, command: cmd.Command) -> None:
        self._outbox.ask(command, ignore, is_owed=False)

    # Fetching

    def _fill(self, subscription: Subscription) -> None:
        """Ask for jobs if there is room for some and nothing is under way."""
        room = subscription.prefetch - len(subscription.held or ())
        if room <= 0 or subscription.fetch is not None or subscription.id in self._resting:
            return
        if subscription.is_over or self._is_closing or not subscription.is_begun:
            return
        command = cmd.GetJob(
            (subscription.queue,), 0, min(room, FETCH_MAX), with_counters=True, is_admitted=True
        )
        subscription.fetch = self._outbox.ask(command, subscription, is_owed=False)

    def fetched(self, subscription: Subscription, reply: Reply) -> None:
        """A fetch was answered: hand the jobs to the client, and fetch on."""
        subscription.fetch = None
        deliveries = reply if isinstance(reply, list) else []
        jobs = [each for each in deliveries if isinstance(each, Delivery)]
        if subscription.is_over or self._is_closing:
            self._give_back(subscription, [JobId(job.id) for job in jobs])
            return
        for job in jobs:
            self._deliver(subscription, job)
        if isinstance(reply, Failure):
            self._rest(subscription)
            self._again_at = self.now_ms + AGAIN_MS
            self._tries = 1
        self._fill(subscription)

    def _deliver(self, subscription: Subscription, job: Delivery) -> None:
        self._outbox.data.append(self._message(subscription, job))
        id_ = JobId(job.id)
        self._let_go(id_)  # handed to another subscription here before, whose time is over
        self._late.pop(id_, None)
        held = Held(id_, subscription, job.retry_ms, is_renewable(job.headers), None)
        self._held[id_] = held
        if subscription.held is None:
            subscription.held = {}
        subscription.held[id_] = held
        self._book(held)
        if subscription.mode is AckMode.AUTO:
            self._unsent.append(held)

    def _message(self, subscription: Subscription, job: Delivery) -> bytes:
        assert isinstance(job.body, bytes), "the broker has read it"
        lines = b"message-id:%b\n" % job.id
        if self.version >= Version.V12 and subscription.mode is not AckMode.AUTO:
            lines += b"ack:%b\n" % job.id
        if job.nacks or job.additional:
            lines += b"redelivered:true\nnacks:%d\nadditional-deliveries:%d\n" % (
                job.nacks or 0,
                job.additional or 0,
            )
        if job.headers:
            lines += carried_lines(job.headers, self.version)
        body = job.body
        if not subscription.head:
            subscription.head = message_head(subscription, self.version)
        head = b"%b%bcontent-length:%d\n\n" % (subscription.head, lines, len(body))
        return b"%b%b%b" % (head, body, self.frame_end)

    def flushed(self) -> None:
        """All that was said has been sent: messages of automatic mode are consumed."""
        unsent, self._unsent = self._unsent, []
        ids = [each.id for each in unsent if self._held.get(each.id) is each]
        self.acknowledge(ids)
        self.settle_up()

    # Acknowledging

    def meant(self, id_: bytes, *, is_cumulative: bool) -> list[JobId]:
        """The deliveries that an ACK or NACK is about, oldest first; none if the id isn't one that is held."""
        held = self._held.get(JobId(id_))
        if held is None:
            return [JobId(id_)] if JobId(id_) in self._late else []
        if not is_cumulative or held.subscription.mode is not AckMode.CLIENT:
            return [held.id]
        ids: list[JobId] = []
        for each in held.subscription.held or ():
            ids.append(each)
            if each == held.id:
                break
        return ids

    def acknowledge(self, ids: list[JobId]) -> None:
        """These are done; the core hears of all of them together in `settle_up`."""
        self._done += ids
        self.release(ids)

    def release(self, ids: list[JobId]) -> None:
        """Hold these no longer: there is room for others."""
        for id_ in ids:
            self._late.pop(id_, None)
            subscription = self._let_go(id_)
            if subscription is not None:
                self._roomy[subscription.id] = subscription

    def settle_up(self) -> None:
        """The input at hand is done: one command for all that was acknowledged, and fetches where there is room."""
        if self._done:
            self._outbox.ask_all(cmd.AckJob, self._done, ignore, is_owed=False)
            self._done = []
        if self._roomy:
            roomy, self._roomy = self._roomy, {}
            for subscription in roomy.values():
                self._fill(subscription)

    def _let_go(self, id_: JobId) -> Subscription | None:
        held = self._held.pop(id_, None)
        if held is None:
            return None
        subscription = held.subscription
        assert subscription.held is not None, f"{id_!r} is held by nobody"
        del subscription.held[id_]
        if not subscription.held:
            subscription.held = None
        return subscription

    # Time

    def _book(self, held: Held) -> None:
        if held.retry_ms:
            half_ms = held.retry_ms // 2
            wait_ms = half_ms if held.is_renewed else held.retry_ms - min(half_ms, STEP_BACK_MS)
            held.due_at = self.now_ms + wait_ms
            self._look_at = min(
                held.due_at, held.due_at if self._look_at is None else self._look_at
            )

    @property
    def due_at(self) -> int | None:
        """ms; when `due` should be called, None: not before something else happens."""
        times = [at for at in (self._look_at, self._again_at) if at is not None]
        return min(times, default=None)

    def due(self) -> None:
        """Renew leases, let go of what has been held too long, and fetch again where that was to wait.

        All that is held is looked at, which is bounded by prefetch, and rarely: at most twice in a lease.
        """
        renewed: list[JobId] = []
        if self._look_at is not None and self._look_at <= self.now_ms:
            for held in list(self._held.values()):
                if held.due_at is None or held.due_at > self.now_ms:
                    continue
                if held.is_renewed:
                    renewed.append(held.id)
                    self._book(held)
                else:
                    self._time_is_over(held)
                    self._step_back(held.subscription)
            times = [each.due_at for each in self._held.values() if each.due_at is not None]
            self._look_at = min(times, default=None)
        for first in range(0, len(renewed), IDS_MAX):
            command = cmd.Renew(tuple(renewed[first : first + IDS_MAX]))
            self._outbox.ask(command, self._renewed, is_owed=False)
        if self._again_at is not None and self._again_at <= self.now_ms:
            self._try_again()
        self.settle_up()

    def _rest(self, subscription: Subscription) -> None:
        """It doesn't fetch for a while."""
        self._resting[subscription.id] = subscription
        if self._again_at is None:
            self._again_at = self.now_ms + AGAIN_MS

    def _try_again(self) -> None:
        """Some of those that rest, not all: who is refused once more tells the others to wait."""
        for id_ in list(islice(self._resting, self._tries)):
            self._roomy[id_] = self._resting.pop(id_)
        self._tries *= 2
        self._again_at = self.now_ms + AGAIN_MS if self._resting else None

    def _time_is_over(self, held: Held) -> None:
        self._let_go(held.id)
        self._late[held.id] = None
        if len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]
        self._roomy[held.subscription.id] = held.subscription

    def _step_back(self, subscription: Subscription) -> None:
        """Its client may hang: others come first, those of other nodes, too, whom a node serves after its own."""
        if subscription.fetch is not None:
            self._outbox.take_back(subscription.fetch)
            subscription.fetch = None
        self._rest(subscription)

    def _renewed(self, reply: Reply) -> None:
        """Those that couldn't be renewed are done, or somebody else's: their places are free."""
        gone = (
            [JobId(each) for each in reply if isinstance(each, bytes)]
            if isinstance(reply, list)
            else []
        )
        for id_ in gone:
            if id_ in self._held:
                self._time_is_over(self._held[id_])
        self.settle_up()


def message_head(subscription: Subscription, version: Version) -> bytes:
    """The beginning of all MESSAGE frames of a subscription; 1.0 has subscriptions without an id."""
    head = b"MESSAGE\n"
    if not subscription.is_nameless:
        head += b"subscription:%b\n" % escape(subscription.id, version)
    destination = Queue(subscription.queue, subscription.is_temporary).text
    return head + b"destination:%b\n" % escape(destination, version)
