"""What the tests of Kombu's transport share: a consumer that keeps what it gets, and Celery's event loop in small."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import pytest
from kombu.asynchronous import Hub

import disque.kombu_transport
from tests.system.nodes import Node, wait_until

SOON_S = 10.0
# How long it is waited for what must not come.
NEVER_S = 0.3
disque.kombu_transport.register()


def url_of(*nodes: Node, password: str = "") -> str:
    secret = f":{password}@" if password else ""
    return ";".join([f"disque://{secret}127.0.0.1:{node.port}" for node in nodes])


class Reader:
    """A consumer that keeps what it gets."""

    def __init__(
        self,
        connection: kombu.Connection,
        *queues: kombu.Queue | str,
        prefetch: int = 0,
        no_ack: bool = False,
    ) -> None:
        self.connection = connection
        self.messages: list[kombu.Message] = []
        channel = connection.channel()
        bound = [kombu.Queue(each) if isinstance(each, str) else each for each in queues]
        self.consumer = channel.Consumer(
            bound, on_message=self.messages.append, no_ack=no_ack, auto_declare=True
        )
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def read(self, count: int) -> list[Any]:
        """The bodies of the next `count` messages; AssertionError if they don't come soon."""
        deadline = time.monotonic() + SOON_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"only {len(self.messages)} of {count} messages"
            try:
                self.connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue
        return [message.payload for message in self.messages]

    def read_nothing(self, seconds: float = NEVER_S) -> None:
        """AssertionError if something comes."""
        before = len(self.messages)
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=seconds)
        assert len(self.messages) == before


def publish(connection: kombu.Connection, queue: str, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        for body in bodies:
            channel.Producer().publish(body, routing_key=queue, **options)


def stats(node: Node, queue: str) -> dict[str, int]:
    """QSTAT GLOBAL."""
    flat = node.call("QSTAT", queue, "GLOBAL") or []
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def wait_gone(node: Node, queue: str) -> None:
    """Wait until no node has a copy of any job of a queue."""
    wait_until(f"nothing of {queue}", lambda: stats(node, queue).get("copies", 0) == 0)


def passing(name: str, exchange: kombu.Exchange, routing_key: str = "") -> kombu.Queue:
    return kombu.Queue(name, exchange, routing_key, durable=False, auto_delete=True)


def size(connection: kombu.Connection, queue: str) -> int:
    """What a passive declaration counts."""
    with connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


@contextmanager
def hub_of(connection: kombu.Connection) -> Iterator[Hub]:
    """An event loop as Celery's worker has one."""
    hub = Hub()
    connection.connect()
    connection.transport.register_with_event_loop(connection.connection, hub)
    try:
        yield hub
    finally:
        hub.close()


def spin(hub: Hub, until: Callable[[], bool]) -> None:
    """Run the loop until something holds; AssertionError if that isn't soon."""
    hub.call_repeatedly(0.05, lambda: None)
    deadline = time.monotonic() + SOON_S
    while not until():
        assert time.monotonic() < deadline
        hub.run_once()


def done(reader: Reader) -> list[Any]:
    """What came, acknowledged."""
    for message in reader.messages:
        if not message.acknowledged:
            message.ack()
    return [message.payload for message in reader.messages]
