"""Load: producers and consumers who work while nodes come and go, and what must hold of what they were told."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import attrs

from tests.system.logged import GONE, client_reply
from tests.system.nodes import WAIT_S, Node, Resp

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.define
class Load:
    """Producers and consumers against some nodes, and what they were told; each has a connection of its own."""

    ports: list[int]
    pause_s: float = 0.0  # after each command
    is_over: threading.Event = attrs.Factory(threading.Event)
    added: list[tuple[bytes, str]] = attrs.Factory(list)  # body, id; answered
    delivered: list[bytes] = attrs.Factory(list)
    acked: list[bytes] = attrs.Factory(list)
    threads: list[threading.Thread] = attrs.Factory(list)

    def __enter__(self) -> Load:
        for port in self.ports:
            for work in (self._produce, self._produce_once, self._consume):
                thread = threading.Thread(target=self._work, args=(work, port), daemon=True)
                self.threads.append(thread)
                thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _work(self, work: Callable[[Resp], None], port: int) -> None:
        """Go on over new connections while nodes come and go."""
        while not self.is_over.is_set():
            with contextlib.suppress(*GONE), Resp(port, timeout_s=5) as client:
                while not self.is_over.is_set():
                    work(client)
                    time.sleep(self.pause_s)
            time.sleep(0.02)

    def _add(self, client: Resp, kind: str, *options: str | int) -> None:
        body = f"{kind}-{time.monotonic_ns()}-{threading.get_ident()}".encode()
        reply = client_reply(client, "ADDJOB", kind, body, 2000, *options)
        if isinstance(reply, str):
            self.added.append((body, reply))

    def _produce(self, client: Resp) -> None:
        self._add(client, "many", "RETRY", 1)

    def _produce_once(self, client: Resp) -> None:
        self._add(client, "once", "RETRY", 0, "REPLICATE", 1)

    def _consume(self, client: Resp) -> None:
        found = client_reply(client, "GETJOB", "TIMEOUT", 100, "FROM", "many", "once")
        if not isinstance(found, list):
            return
        for _, id_, body in found:
            self.delivered.append(body)
            if client_reply(client, "ACKJOB", id_) is not None:
                self.acked.append(body)


def drain(nodes: list[Node], load: Load) -> None:
    """Take what is left until nothing comes for longer than a RETRY."""
    quiet_at = time.monotonic() + 5
    while time.monotonic() < quiet_at:
        for node in nodes:
            with node.connect() as client:
                found = client.call("GETJOB", "NOHANG", "COUNT", 100, "FROM", "many", "once")
                for _, id_, body in found or []:
                    load.delivered.append(body)
                    client.call("ACKJOB", id_)
                    quiet_at = time.monotonic() + 3
        time.sleep(0.05)


def check(load: Load, *, acked_before: list[bytes], delivered_before: list[bytes]) -> None:
    """What was answered isn't lost; RETRY 0 comes once; what was acked before the kill never comes again."""
    many = [body for body, _ in load.added if body.startswith(b"many")]
    lost = {*many} - {*load.delivered}
    assert not lost, f"{len(lost)} of {len(many)} lost, such as {sorted(lost)[:3]}"
    once = [body for body in load.delivered if body.startswith(b"once")]
    assert len(once) == len({*once})
    again = {*acked_before} & {*load.delivered[len(delivered_before) :]}
    assert not again, f"{len(again)} acked jobs came again, such as {sorted(again)[:3]}"
