"""Nodes: real disque-server processes on loopback for tests and benchmarks, and a plain RESP
client for them.

All waiting is polling with a deadline; processes end by their own pid only. Ports lie below the
range that the system gives to outgoing connections, so that a bus port isn't taken by chance.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 15.0  # for anything that should happen soon, on a machine that may be busy
_PORTS = range(20_000, 22_000)  # bus ports are 10,000 higher
_dice = random.Random()
T = TypeVar("T")


class ReplyError(Exception):
    """An error reply; str() is the whole line without the minus."""


class Resp:
    """A blocking client that speaks RESP2 and RESP3 as far as our replies need it."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = WAIT_S) -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout_s)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> Resp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self.sock.close()

    def send(self, *words: str | bytes | int) -> None:
        """Send one command and don't read its reply."""
        self.sock.sendall(command_bytes(*words))

    def call(self, *words: str | bytes | int) -> Any:
        """Send one command and return its reply; ReplyError for an error."""
        self.send(*words)
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def error(self, *words: str | bytes | int) -> str:
        """Send one command that must fail; returns the error line."""
        self.send(*words)
        reply = self.read()
        assert isinstance(reply, ReplyError), f"{words} answered {reply!r}"
        return str(reply)

    def read(self) -> Any:
        """One reply; an error is returned, not raised. EOFError at the end of the stream."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(f"connection ended after {line!r}")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"_":
            return None
        if kind == b"$":
            if rest == b"-1":
                return None
            return self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        if kind == b"%":
            return {self.read(): self.read() for _ in range(int(rest))}
        raise AssertionError(f"no RESP: {line!r}")


def command_bytes(*words: str | bytes | int) -> bytes:
    """A command as multibulk."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


_ports_left: list[int] = []


def free_port() -> int:
    """A port that is free together with the one 10,000 above, and none of the last hundreds that were given out."""
    for _ in range(200):
        if not _ports_left:
            _ports_left.extend(_dice.sample(_PORTS, len(_PORTS)))
        port = _ports_left.pop()
        try:
            for each in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("", each))
        except OSError:
            continue
        return port
    raise AssertionError(f"no free pair of ports in {_PORTS}")


def wait_until(
    what: str, probe: Callable[[], T], *, within_s: float = WAIT_S, every_s: float = 0.02
) -> T:
    """Ask `probe` until it gives something true; AssertionError with what it gave last.

    Refused and ended connections count as not yet.
    """
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            found = probe()
        except (OSError, EOFError) as error:
            last = error
        else:
            if found:
                return found
            last = found
        time.sleep(every_s)
    raise AssertionError(f"not within {within_s} s: {what}; last seen: {last!r}")


class Node:
    """One disque-server process; its folder survives stop and start. `root`: where its code lies."""

    def __init__(
        self, folder: Path, *flags: str, port: int | None = None, root: Path = ROOT
    ) -> None:
        self.folder = folder
        self.root = root
        self.port = free_port() if port is None else port
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None
        self.started_in_s = 0.0  # from exec to the first PONG
        folder.mkdir(parents=True, exist_ok=True)

    def command_line(self) -> list[str]:
        """What is executed."""
        words = [sys.executable, "-m", "disque.server.main", "--port", str(self.port)]
        # No page: its default port could be another node's port for clients.
        page = [] if "--http-port" in self.flags else ["--http-port", "0"]
        return [*words, "--dir", str(self.folder), *page, *self.flags]

    def spawn(self, **environment: str) -> None:
        """Start the process and don't wait; output goes to out.log and err.log in the folder."""
        assert self.process is None
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DISQUE_")}
        out, err = (self.folder / "out.log").open("ab"), (self.folder / "err.log").open("ab")
        with out, err:
            self.process = subprocess.Popen(
                self.command_line(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env={**kept, "PYTHONPATH": str(self.root), **environment},
            )

    def start(self, **environment: str) -> Node:
        """Start the process and wait for its first answer."""
        started = time.monotonic()
        self.spawn(**environment)
        wait_until(f"node {self.port} answers; {self.complaints()}", self.answers, every_s=0.005)
        self.started_in_s = time.monotonic() - started
        return self

    def answers(self) -> bool:
        """True once a PING is answered, if by an error; AssertionError if the process ended."""
        assert self.process is not None
        assert self.process.poll() is None, f"exit {self.process.returncode}: {self.complaints()}"
        with Resp(self.port) as client:
            client.send("PING")
            return client.read() is not None

    def complaints(self) -> str:
        """What the process wrote to standard error."""
        path = self.folder / "err.log"
        return path.read_text() if path.exists() else ""

    def log(self) -> str:
        """What the process logged."""
        return (self.folder / "out.log").read_text()

    def connect(self) -> Resp:
        """A new connection to it."""
        return Resp(self.port)

    def call(self, *words: str | bytes | int) -> Any:
        """One command over a connection of its own."""
        with self.connect() as client:
            return client.call(*words)

    def call_error(self, *words: str | bytes | int) -> str:
        """One command that must fail, over a connection of its own; returns the error line."""
        with self.connect() as client:
            return client.error(*words)

    def info(self, section: str) -> dict[str, str]:
        """INFO's or CLUSTER INFO's fields."""
        words = ("CLUSTER", "INFO") if section == "cluster" else ("INFO", section)
        lines = self.call(*words).decode().split("\r\n")
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)
            self.process = None

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(WAIT_S)
        self.process = None
        return status


class Cluster:
    """Some nodes in one folder; leaving the context kills what still runs."""

    def __init__(self, folder: Path, count: int, *flags: str, root: Path = ROOT) -> None:
        self.nodes = [Node(folder / f"node{index}", *flags, root=root) for index in range(count)]

    def __enter__(self) -> Cluster:
        try:
            for node in self.nodes:
                node.spawn()
            for node in self.nodes:
                wait_until(f"node {node.port} answers", node.answers)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill what runs."""
        for node in self.nodes:
            node.kill()

    @contextmanager
    def connections(self) -> Iterator[list[Resp]]:
        """One connection to each node, closed at the end."""
        with ExitStack() as stack:
            yield [stack.enter_context(node.connect()) for node in self.nodes]

    def join(self, host: str = "127.0.0.1") -> Cluster:
        """Let the first node meet the others, and wait for the mesh."""
        for node in self.nodes[1:]:
            assert self.nodes[0].call("CLUSTER", "MEET", host, node.port) == "OK"
        self.wait_mesh()
        return self

    def wait_mesh(self, count: int | None = None) -> None:
        """Wait until each running node reaches all others."""
        running = [node for node in self.nodes if node.process is not None]
        wanted = str((count or len(running)) - 1)
        for node in running:
            wait_until(
                f"node {node.port} reaches {wanted} peers",
                lambda node=node: node.info("cluster")["cluster_reachable_nodes"] == wanted,  # type: ignore[misc]
            )

    def wait_drained(self) -> None:
        """Wait until no running node registers a job."""
        for node in self.nodes:
            if node.process is not None:
                wait_until(
                    f"node {node.port} has no job left",
                    lambda node=node: node.info("jobs")["registered_jobs"] == "0",  # type: ignore[misc]
                )
