"""Dramatiq over a cluster.

    import dramatiq
    from disque.integrations.dramatiq import DisqueBroker

    dramatiq.set_broker(DisqueBroker("disque://:password@a:7711;disque://b:7711"))

A message is a job until it is acknowledged. While its worker lives its lease is renewed; when the worker dies it comes
back after `retry` seconds. Delays are the broker's, but for the last second, which a worker waits. Messages that
fail for good are kept in the queue `NAME.XQ` for a week.
"""

from __future__ import annotations

# mypy: disallow-untyped-calls=False
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis, dq_name, q_name, xq_name
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message

from disque.client import Client, OutcomeUnknownError, UnreachableError
from disque.client.leases import Leases

if TYPE_CHECKING:
    from dramatiq.middleware import Middleware

    from disque.client import Job

# A message waits as long as it must; Disque's own default, a day, would lose those of a long weekend.
TTL_S: Final = 365 * 86_400
DEAD_TTL_S: Final = 7 * 86_400
JOIN_POLL_S: Final = 0.05


class DisqueBroker(Broker):
    """A Dramatiq broker; `url` and `options` are those of `disque.client.Client`."""

    def __init__(
        self,
        url: str = "disque://127.0.0.1:7711",
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        retry: int = 60,
        **options: Any,
    ) -> None:
        """`namespace` and a colon stand before the names of the queues; `retry` is in whole seconds."""
        if not isinstance(retry, int) or retry < 1:
            raise ValueError(f"retry must be whole seconds, 1 or more, got {retry!r}")
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.client = Client(url, **options)
        self.leases = Leases(self.client)
        self.retry = retry
        self._namespace = namespace

    def name_of(self, queue_name: str) -> str:
        """A queue's name in the cluster."""
        return f"{self._namespace}:{queue_name}" if self._namespace else queue_name

    def close(self) -> None:
        """End the connections."""
        self.leases.close()
        self.client.close()

    def declare_queue(self, queue_name: str) -> None:
        """Make a queue and its delay queue known to this broker; the cluster needs no such thing."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)
        self.delay_queues.add(dq_name(queue_name))
        self.emit_after("declare_delay_queue", dq_name(queue_name))

    def get_declared_queues(self) -> set[str]:
        """The names of the queues, without delay queues."""
        return self.queues.copy()

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Add a message, to be run after `delay` ms; if in doubt whether that was done, it is done again.

        QueueNotFound if its queue isn't declared; ConnectionClosed if no node can be asked.
        """
        if q_name(message.queue_name) not in self.queues:
            raise QueueNotFound(message.queue_name)
        whole_s = 0
        if delay is not None:
            whole_s = max(0, delay) // 1000
            message = message.copy(
                queue_name=dq_name(message.queue_name), options={"eta": current_millis() + delay}
            )
        self.logger.debug("Enqueueing %r on %r.", message.message_id, message.queue_name)
        self.emit_before("enqueue", message, delay)
        self._add(message.queue_name, message.encode(), TTL_S + whole_s, whole_s)
        self.emit_after("enqueue", message, delay)
        return message

    def bury(self, queue_name: str, body: bytes) -> None:
        """Keep a message that has failed for good."""
        self._add(xq_name(queue_name), body, DEAD_TTL_S, 0)

    def _add(self, queue_name: str, body: bytes, ttl: int, delay: int) -> None:
        queue = self.name_of(queue_name)
        with _connection_errors():
            self.client.add_job(
                queue, body, retry=self.retry, ttl=ttl, delay=delay, may_repeat=True
            )

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Messages of a queue: at most `prefetch` that aren't acknowledged, None after `timeout` ms without one."""
        if q_name(queue_name) not in self.queues:
            raise QueueNotFound(queue_name)
        return DisqueConsumer(self, queue_name, prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Drop what waits, and what is being worked on."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with _connection_errors():
            for name in (queue_name, dq_name(queue_name)):
                self.client.qpurge(self.name_of(name))

    def flush_all(self) -> None:
        """Flush every declared queue."""
        for queue_name in sorted(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until nothing of a queue waits, is delayed or worked on. QueueJoinTimeout after `timeout` ms."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        names = (self.name_of(queue_name), self.name_of(dq_name(queue_name)))
        before: list[tuple[int, int]] = []
        # One that moves from queue to queue while they are asked is seen by what came in meanwhile.
        while (now := [self._count(name) for name in names]) != before or any(
            [left for left, _ in now]
        ):
            before = now
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_POLL_S)

    def _count(self, name: str) -> tuple[int, int]:
        """Messages that a queue of the cluster has in whatever state, and those that ever came."""
        with _connection_errors():
            stats = self.client.global_qstat(name)
        if stats is None:
            return 0, 0
        return stats.length + stats.delivered + stats.delayed, stats.jobs_in


class DisqueMessage(MessageProxy):
    """A message, and the job that it lies in."""

    def __init__(self, message: Message[Any], job: Job) -> None:
        super().__init__(message)
        self.job = job
        self.is_buried = False


class DisqueConsumer(Consumer):
    """The messages of one queue. One thread iterates; any thread may acknowledge."""

    def __init__(self, broker: DisqueBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self._broker = broker
        self._client = broker.client
        self._queue = broker.name_of(queue_name)
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._timeout_s = timeout / 1000
        self._arrived: deque[Job] = deque()
        # Jobs that were handed on and aren't settled yet.
        self._held: set[str] = set()
        self._settled = threading.Condition()

    def ack(self, message: MessageProxy) -> None:
        """The message is done."""
        self._settle(message, self._client.ack_job)

    def nack(self, message: MessageProxy) -> None:
        """The message has failed for good: it is buried first, so that nothing is lost in between."""
        message = _ours(message)
        if not message.is_buried:
            with _connection_errors():
                self._broker.bury(self._queue_name, message.job.body)
            message.is_buried = True
        self.ack(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back that nobody has begun."""
        for message in messages:
            self._broker.leases.release(_ours(message).job.id)
            self._settle(message, self._client.enqueue)

    def _settle(self, message: MessageProxy, command: Any) -> None:
        job = _ours(message).job
        with _connection_errors():
            command(job)
        self._broker.leases.drop(job.id)
        with self._settled:
            self._held.discard(job.id)
            self._settled.notify()

    def __next__(self) -> MessageProxy | None:
        """The next message; None if there is none, or no room, for a while."""
        if not self._arrived:
            self._fetch()
        if not self._arrived:
            return None
        job = self._arrived.popleft()
        try:
            message = Message.decode(job.body)
        except DecodeError:
            self._broker.logger.exception("Job %s is no message: buried.", job.id)
            self.nack(DisqueMessage(_NOTHING, job))
            return None
        self._held.add(job.id)
        return DisqueMessage(message, job)

    def _fetch(self) -> None:
        with self._settled:
            self._settled.wait_for(lambda: len(self._held) < self._prefetch, self._timeout_s)
            room = self._prefetch - len(self._held)
        if room < 1:
            return
        with _connection_errors():
            jobs = self._client.get_jobs(self._queue, timeout=self._timeout_s, count=room)
        for job in jobs:
            # One that comes while it is held here had lost its lease: it is worked on all the same, once.
            if job.id not in self._broker.leases:
                self._arrived.append(job)
            self._broker.leases.hold(job.id)

    def close(self) -> None:
        """Give back what nobody has seen, and what waited for its time: after an error Dramatiq forgets that."""
        back = [job.id for job in self._arrived]
        self._arrived.clear()
        if self._queue_name == dq_name(self._queue_name):
            back += sorted(self._held)
            self._held.clear()
        if back:
            self._broker.leases.release(*back)
            with _connection_errors():
                self._client.enqueue(*back)


_NOTHING: Final[Message[Any]] = Message(
    queue_name="", actor_name="", args=(), kwargs={}, options={}
)


def _ours(message: MessageProxy) -> DisqueMessage:
    if not isinstance(message, DisqueMessage):
        raise TypeError(f"a message of this consumer is wanted, got {message!r}")
    return message


@contextmanager
def _connection_errors() -> Iterator[None]:
    """No node, or a doubtful answer: what Dramatiq knows to try again."""
    try:
        yield
    except (UnreachableError, OutcomeUnknownError) as error:
        raise ConnectionClosed(str(error)) from error
