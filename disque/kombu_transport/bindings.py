"""Bindings: which queues an exchange reaches, known to the whole cluster.

Exchanges are Kombu's idea, not the broker's, and whoever publishes may never have seen who consumes. So each node keeps
the table of each exchange: one job a binding in the queue `_kombu.bindings.EXCHANGE`, which nobody gets. A process that
declares a binding puts it on every node, and looks now and then whether it is missing somewhere (a node that is new, or
came back empty); readers take what any node knows. Others see a new binding within CACHE_S.

A binding that several processes have declared is gone once all of them have unbound it, or ended.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs
from kombu.transport.virtual.exchange import TopicExchange

from disque.client import Address, Client, UnreachableError
from disque.errors import DisqueError

if TYPE_CHECKING:
    from disque.client import Job

QUEUE_PREFIX: Final = "_kombu.bindings."
CACHE_S: Final = 1.0
# How often a process looks whether what it declared is still everywhere.
RENEW_S: Final = 30.0
# A node that couldn't be asked isn't asked again for so long, and is given so long to connect.
AVOID_S: Final = 10.0
CONNECT_S: Final = 1.0
# Bindings of one exchange that are read from a node.
READ_MAX: Final = 10_000
# As good as for ever: ten years.
TTL_S: Final = 315_360_000

_topic = TopicExchange(None)  # type: ignore[no-untyped-call]
_log = logging.getLogger(__name__)


@attrs.frozen
class Binding:
    """What is published to `exchange` with a fitting routing key goes to `queue`; `kind` is the exchange's type."""

    exchange: str
    kind: str
    routing_key: str
    queue: str

    def fits(self, routing_key: str) -> bool:
        """Does a message with this routing key take this way?"""
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            pattern = _topic.key_to_pattern(self.routing_key)  # type: ignore[no-untyped-call]
            return bool(_topic._match(pattern, routing_key))  # type: ignore[no-untyped-call]
        return self.routing_key == routing_key

    def to_body(self) -> bytes:
        """As it lies in the broker."""
        return json.dumps([self.kind, self.routing_key, self.queue]).encode()


def queues_for(bindings: Iterable[Binding], routing_key: str) -> list[str]:
    """The queues that a message reaches, each once."""
    return list(dict.fromkeys([each.queue for each in bindings if each.fits(routing_key)]))


class Bindings:
    """The cluster's bindings, as one process reads and declares them. One thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._own: dict[Binding, None] = {}
        self._read: dict[str, tuple[float, tuple[Binding, ...]]] = {}
        self._nodes: dict[Address, Client] = {}
        self._avoided: dict[Address, float] = {}
        self._renew_at = time.monotonic() + RENEW_S

    def add(self, binding: Binding) -> None:
        """Declare a binding. A DisqueError if no node takes it."""
        if binding not in self._own:
            self._own[binding] = None
            self._read.pop(binding.exchange, None)
            self.of(binding.exchange)

    def remove(self, binding: Binding) -> None:
        """Unbind, on every node that can be reached."""
        self._own.pop(binding, None)
        self._remove(binding.exchange, binding)

    def remove_all(self, exchange: str) -> None:
        """The exchange reaches nothing any more."""
        for binding in [each for each in self._own if each.exchange == exchange]:
            del self._own[binding]
        self._remove(exchange, None)

    def of(self, exchange: str) -> tuple[Binding, ...]:
        """All bindings of an exchange, not older than CACHE_S. UnreachableError if no node can be asked."""
        read_at, bindings = self._read.get(exchange, (-CACHE_S, ()))
        if time.monotonic() - read_at >= CACHE_S:
            bindings = self._gather(exchange)
            self._read[exchange] = time.monotonic(), bindings
        return bindings

    def renew(self) -> None:
        """Put what this process declared where it is missing, if it is time to look; to be called often."""
        if self._own and time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEW_S
            for exchange in dict.fromkeys([each.exchange for each in self._own]):
                try:
                    self._gather(exchange)
                except DisqueError as error:
                    _log.warning("bindings-not-renewed exchange=%s error=%s", exchange, error)

    def close(self) -> None:
        """End the connections to single nodes."""
        for client in self._nodes.values():
            client.close()
        self._nodes.clear()

    def _gather(self, exchange: str) -> tuple[Binding, ...]:
        """Read all nodes; what this process has declared is put where it is missing."""
        own = [each for each in self._own if each.exchange == exchange]
        found = dict.fromkeys(own)
        refusal: DisqueError | None = None
        complete = 0
        for client, jobs in self._tables(exchange):
            there = dict.fromkeys(_bindings_in(exchange, jobs))
            found.update(there)
            try:
                for binding in [each for each in own if each not in there]:
                    _put(client, binding)
                complete += 1
            except DisqueError as error:
                refusal = error
        if refusal is not None and not complete:
            raise refusal
        return tuple(found)

    def _remove(self, exchange: str, binding: Binding | None) -> None:
        self._read.pop(exchange, None)
        for client, jobs in self._tables(exchange):
            unwanted = [job for job in jobs if binding is None or job.body == binding.to_body()]
            if unwanted:
                client.ack_job(*unwanted)

    def _tables(self, exchange: str) -> Iterator[tuple[Client, list[Job]]]:
        """Each node that can be asked, and what lies there. UnreachableError if there is none."""
        troubles: dict[str, str] = {}
        is_anybody_there = False
        for address in self._client.session.addresses:
            if self._avoided.get(address, 0.0) > time.monotonic():
                troubles[str(address)] = "avoided"
                continue
            client = self._node(address)
            try:
                yield client, client.qpeek(QUEUE_PREFIX + exchange, READ_MAX)
                is_anybody_there = True
            except DisqueError as error:
                troubles[str(address)] = str(error)
                self._avoided[address] = time.monotonic() + AVOID_S
        if not is_anybody_there:
            self._avoided.clear()
            raise UnreachableError(troubles)

    def _node(self, address: Address) -> Client:
        if address not in self._nodes:
            alone = self._client.session.endpoint.at(address)
            timeout_s = min(alone.options.connect_timeout, CONNECT_S)
            self._nodes[address] = Client(
                alone, connect_timeout=timeout_s, failover_timeout=timeout_s / 10
            )
        return self._nodes[address]


def _put(client: Client, binding: Binding) -> None:
    queue = QUEUE_PREFIX + binding.exchange
    client.add_job(queue, binding.to_body(), replicate=1, retry=1, ttl=TTL_S, may_repeat=True)


def _bindings_in(exchange: str, jobs: Iterable[Job]) -> Iterator[Binding]:
    for job in jobs:
        try:
            kind, routing_key, queue = json.loads(job.body)
        except (ValueError, TypeError, RecursionError):
            _log.warning("no-binding id=%s queue=%s", job.id, job.queue)
            continue
        yield Binding(exchange, str(kind), str(routing_key), str(queue))
