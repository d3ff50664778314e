"""Channel: what Kombu asks of a broker, in the broker's commands.

A message is a job from ADDJOB to ACKJOB: it never leaves the broker before it is acknowledged, and while this process
lives its lease is renewed. Messages for queues that end with their process are none (see `ear`).
"""

from __future__ import annotations

# mypy: disallow-untyped-calls=False
# ruff: noqa: ARG002 -- the signatures are Kombu's
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.scheduling import cycle_by_name

from disque.errors import DisqueError
from disque.kombu_transport.bindings import Binding, queues_for
from disque.kombu_transport.ear import topic_of
from disque.kombu_transport.endpoint import whole_s
from disque.kombu_transport.envelope import Terms, job_options, to_body, to_message, utc_now
from disque.kombu_transport.fetch import Fetch

if TYPE_CHECKING:
    from disque.client import Job

# Jobs that are asked for at a time: other consumers of the queue have their turn in between.
FETCH_MAX: Final = 16
# How long a basic_get looks for a job that lies at another node.
GET_S: Final = 1.0
_JOB: Final = "D-"

_log = logging.getLogger(__name__)


@attrs.frozen
class Declared:
    """What a queue was declared as."""

    ends_with_us: bool
    arguments: Mapping[str, Any]


class QoS(virtual.QoS):
    """What a channel has delivered and nobody has acknowledged. Acks may come from any thread, and after the end."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._transport = channel.connection

    def ack(self, delivery_tag: str) -> None:
        """The message is done."""
        super().ack(delivery_tag)
        if delivery_tag.startswith(_JOB):
            self._transport.leases.drop(delivery_tag)
            self._transport.ask(lambda client: client.ack_job(delivery_tag))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """The message isn't wanted: by nobody, or (`requeue`) not here."""
        if not requeue:
            self.ack(delivery_tag)
            return
        message = self._delivered.get(delivery_tag)
        super().ack(delivery_tag)
        if delivery_tag.startswith(_JOB):
            self._transport.leases.release(delivery_tag)
            self._transport.ask(lambda client: client.nack_job(delivery_tag))
        elif message is not None:
            self._transport.ear.put_back(message._raw)

    def restore_unacked(self) -> list[Any]:
        """Give back all that isn't acknowledged."""
        self._flush()
        tags = list(self._delivered)
        self._delivered.clear()
        if not self._transport.is_inherited:
            give_back(self._transport, [tag for tag in tags if tag.startswith(_JOB)])
        return []


def give_back(transport: Any, job_ids: list[str]) -> None:
    """Queue jobs again at once, uncounted: nobody has failed. If no node can be asked, their RETRY does it."""
    if job_ids:
        transport.leases.release(*job_ids)
        try:
            transport.ask(lambda client: client.enqueue(*job_ids))
        except DisqueError as error:
            _log.warning("jobs-left-to-their-retry count=%d error=%s", len(job_ids), error)


class Channel(virtual.Channel):
    """A channel; its transport is `connection`. One thread at a time, but for acks."""

    QoS = QoS
    supports_fanout = True
    from_transport_options = (  # type: ignore[assignment]
        *virtual.Channel.from_transport_options,
        "visibility_timeout",
        "message_ttl",
        "replicate",
        "max_deliveries",
        "dead_letters",
        "publish_timeout",
        "queue_order_strategy",
    )
    # Whole seconds after which a message of a worker that died is delivered again (RETRY), and how long one is kept.
    visibility_timeout = 60
    message_ttl = 365 * 86_400
    # Copies before a publish returns, None for the broker's default; deliveries before it is a dead letter.
    replicate: int | None = None
    max_deliveries: int | None = None
    dead_letters: str | None = None
    # Seconds for the copies to be made.
    publish_timeout = 5.0
    # Kombu's: round_robin, priority, sorted.
    queue_order_strategy = "round_robin"

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.terms = Terms(
            retry_s=whole_s("visibility_timeout", self.visibility_timeout),
            ttl_s=whole_s("message_ttl", self.message_ttl),
            replicate=self.replicate,
            max_deliveries=self.max_deliveries,
            dead_letter=self.dead_letters,
        )
        self.fetch = Fetch(connection.broker, connection._unwatch)
        self._arrived: deque[Job] = deque()
        self._order = cycle_by_name(self.queue_order_strategy)()
        self._no_ack: set[str] = set()

    # Publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """A job in each queue that the exchange reaches, and a word to all who listen to it."""
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        for queue in self._lookup(exchange, routing_key):
            self._put(queue, message)
        topic = topic_of(exchange, routing_key or "")
        self.connection.broker.publish(topic, to_body({**message, "published_at": time.time()}))

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        queues = queues_for(self.connection.bindings.of(exchange), routing_key or "")
        fallback = default or self.deadletter_queue
        return queues if queues or fallback is None else [fallback]

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        options = job_options(message, self._terms_of(queue), utc_now())
        self.connection.broker.add_job(
            queue, to_body(message), timeout=self.publish_timeout, **options
        )

    def _terms_of(self, queue: str) -> Terms:
        declared = self.connection.declared.get(queue)
        return self.terms if declared is None else self.terms.of_queue(declared.arguments)

    # Queues and bindings

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Kombu's options as RabbitMQ's arguments: those are what `envelope.Terms` knows."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        ends_with_us = bool(kwargs.get("auto_delete") or kwargs.get("exclusive"))
        self.connection.declared[queue] = Declared(ends_with_us, kwargs.get("arguments") or {})

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        binding = self._binding(exchange, routing_key, queue)
        if self._is_heard(binding):
            self.connection.ear.bind(binding, self._terms_of(queue))
        else:
            self.connection.bindings.add(binding)

    def _binding(self, exchange: str, routing_key: str | None, queue: str) -> Binding:
        return Binding(exchange, self.typeof(exchange).type, routing_key or "", queue)

    def _is_heard(self, binding: Binding) -> bool:
        declared = self.connection.declared.get(binding.queue)
        exchange = self.state.exchanges.get(binding.exchange, {})
        is_passing = binding.kind == "fanout" or not exchange.get("durable", True)
        return is_passing and declared is not None and declared.ends_with_us

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """What is published to the exchange no longer goes to the queue."""
        super().queue_unbind(queue, exchange, routing_key, arguments, **kwargs)
        self._unbind(self._binding(exchange or "", routing_key, queue))

    def _unbind(self, binding: Binding) -> None:
        if binding.queue in self.connection.ear:
            self.connection.ear.unbind(binding)
        else:
            self.connection.bindings.remove(binding)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Drop a queue's messages and bindings."""
        if if_empty and self._size(queue):
            return
        for exchange, routing_key, _ in list(self.state.queue_bindings(queue)):
            self._unbind(self._binding(exchange, routing_key, queue))
        self.state.queue_bindings_delete(queue)
        if queue in self.connection.ear:
            self.connection.ear.forget(queue)
        else:
            self._purge(queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """The exchange reaches no queue any more; the queues stay."""
        self.connection.bindings.remove_all(exchange)
        self.state.exchanges.pop(exchange, None)

    def _size(self, queue: str) -> int:
        if queue in self.connection.ear:
            return int(self.connection.ear.count(queue))
        return int(self.connection.broker.global_qlen(queue).jobs)

    def _purge(self, queue: str) -> int:
        if queue in self.connection.ear:
            return int(self.connection.ear.clear(queue))
        return int(self.connection.broker.qpurge(queue).jobs)

    # Consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[..., Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Messages of this queue go to `callback`, as far as the prefetch allows."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        self._order.update(self._fetched_queues())

    def basic_cancel(self, consumer_tag: str) -> None:
        """No more of them; what had arrived goes back."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or self.connection.is_inherited:
            return
        self._no_ack.discard(queue)
        self._order.update(self._fetched_queues())
        self._keep(self.fetch.stop())
        unwanted = [job for job in self._arrived if job.queue not in self._active_queues]
        self._arrived = deque([job for job in self._arrived if job not in unwanted])
        give_back(self.connection, [job.id for job in unwanted])

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """The next message of a queue, None if it is empty."""
        raw = self.connection.ear.pop(queue)
        if raw is None and queue not in self.connection.ear:
            raw = self._get_job(queue, no_ack)
        if raw is None:
            return None
        message = self.Message(raw, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get_job(self, queue: str, no_ack: bool) -> dict[str, Any] | None:
        """NOHANG looks at one node only: before a queue is taken for empty, all are asked."""
        broker = self.connection.broker
        jobs = broker.get_jobs(queue, timeout=0)
        if not jobs and broker.global_qlen(queue).jobs:
            jobs = broker.get_jobs(queue, timeout=GET_S)
        for job in jobs:
            return self._received(job, no_ack)
        return None

    def _received(self, job: Job, no_ack: bool) -> dict[str, Any]:
        if no_ack:
            self.connection.broker.ack_job(job)
        else:
            self.connection.leases.hold(job.id)
        return to_message(job)

    def _fetched_queues(self) -> list[str]:
        queues = dict.fromkeys(self._active_queues)
        return [queue for queue in queues if queue not in self.connection.ear]

    @property
    def room(self) -> int:
        """How many jobs may still be fetched."""
        if not self._consumers or not self.qos.can_consume():
            return 0
        if "can_consume" in vars(self.qos):
            # Celery's worker_disable_prefetch judges for one message at a time.
            most = 1
        else:
            most = min(self.qos.can_consume_max_estimate() or FETCH_MAX, FETCH_MAX)
        return int(max(0, most - len(self._arrived)))

    @property
    def is_full(self) -> bool:
        """True if it consumes jobs, and has no room."""
        return bool(self._fetched_queues()) and self.room == 0

    def fetch_more(self, timeout: float) -> None:
        """See that a GETJOB is under way if there is room. UnreachableError if no node can be asked."""
        queues = self._order.consume(len(self._order.items))
        self._keep(self.fetch.ask(queues, self.room, timeout))

    def take(self) -> None:
        """Take in what was answered."""
        self._keep(self.fetch.take())

    def _keep(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._order.rotate(job.queue)
            # One that comes while it is held here had lost its lease: it is worked on all the same, once.
            if job.id not in self.connection.leases:
                self._arrived.append(job)
            self.connection.leases.hold(job.id)

    def deliver(self) -> int:
        """Call back for all that has arrived and may be consumed; returns how many."""
        delivered = 0
        while self._arrived and self.qos.can_consume():
            job = self._arrived.popleft()
            message = to_message(job)
            if job.queue in self._no_ack:
                self.connection.leases.drop(job.id)
                self.connection.broker.ack_job(job)
            self.connection._deliver(message, job.queue)
            delivered += 1
        for queue in [each for each in self._active_queues if each in self.connection.ear]:
            while self.qos.can_consume() and (heard := self.connection.ear.pop(queue)) is not None:
                self.connection._deliver(heard, queue)
                delivered += 1
        return delivered

    def close(self) -> None:
        """Cancel the consumers, and give back what isn't acknowledged."""
        connection = self.connection
        try:
            super().close()
        finally:
            self.fetch.close()
            if connection is not None and not connection.is_inherited:
                give_back(connection, [job.id for job in self._arrived])
            self._arrived.clear()
