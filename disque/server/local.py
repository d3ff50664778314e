"""Local: some nodes on this machine that know each other, for a first look (`make run`).

It starts `disque-server` processes, shows the first steps, and ends them, and nothing else, with itself. It knows the
server only by its command line and its port.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from disque.server.directives import PAGE_PORT_OFFSET
from disque.server.page import missing_packages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

START_S = 15.0  # until all nodes answer and reach each other
STOP_S = 10.0  # after SIGTERM, before SIGKILL
POLL_S = 0.05
ERROR_CHARS_MAX = 2_000  # of what a node said on standard error


@attrs.define(eq=False)
class LocalNode:
    """One node that runs."""

    port: int
    words: Sequence[str]
    process: subprocess.Popen[bytes]
    error_path: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the nodes until Ctrl-C; returns the exit status."""
    options = _options(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    nodes: list[LocalNode] = []
    try:
        ports = range(options.port, options.port + options.nodes)
        for port in ports:
            _check_free(port)
        for port in ports:
            nodes.append(_start(options, port))  # noqa: PERF401 - those that run must be known at each
        _wait_ready(nodes)
        _say(first_steps(ports, options.dir))
        _watch(nodes)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        _end(nodes)
    return 0


def first_steps(ports: Sequence[int], folder: Path) -> str:
    """What a newcomer may type now; without redis-cli, Python does it."""
    a, b, c = (ports[index % len(ports)] for index in range(3))
    steps = (
        (a, 'ADDJOB hello "my first job" 5000'),
        (b, "GETJOB FROM hello"),
        (c, "ACKJOB <the id that GETJOB showed>"),
        (a, "INFO jobs"),
    )
    count = f"{len(ports)} nodes run and know each other" if len(ports) > 1 else "1 node runs"
    lines = [f"{count}: 127.0.0.1, ports {', '.join(map(str, ports))}. Their files: {folder}/"]
    lines += ["Add a job on one node, get it on another, acknowledge it on a third:", ""]
    has_redis_cli = shutil.which("redis-cli") is not None
    lines += [f"  {_spell(port, command, has_redis_cli)}" for port, command in steps]
    if not missing_packages():
        lines += ["", f"See them all on a page: http://127.0.0.1:{a + PAGE_PORT_OFFSET}/"]
    return "\n".join([*lines, "", "Ctrl-C ends all nodes."]) + "\n"


def _spell(port: int, command: str, has_redis_cli: bool) -> str:
    if has_redis_cli:
        return f"redis-cli -p {port} {command}"
    script = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {port})); "
        f"s.sendall(b'{command}\\r\\n'); print(s.recv(65536).decode())"
    )
    quoted = script.replace("\\", "\\\\").replace('"', '\\"')
    return f'python3 -c "{quoted}"'


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m disque.server.local",
        description="Run some nodes on this machine that know each other.",
    )
    parser.add_argument("--port", type=int, default=7711, help="of the first node (7711)")
    parser.add_argument("--nodes", type=int, default=3, help="how many (3)")
    parser.add_argument(
        "--dir", type=Path, default=Path("data"), help="folder of their files (data)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.nodes <= 100:
        parser.error(f"--nodes must be between 1 and 100, got {options.nodes}")
    if not 1 <= options.port <= 55_535 - options.nodes:
        parser.error(f"--port must be between 1 and {55_535 - options.nodes}, got {options.port}")
    return options


def _check_free(port: int) -> None:
    """SystemExit if something answers at a port already: its answers would be taken for those of our node."""
    if _ask(port, b"PING\r\n"):
        raise SystemExit(
            f"port {port} is in use: do the nodes of another run still work? (--port chooses others)"
        )


def _start(options: argparse.Namespace, port: int) -> LocalNode:
    folder = Path(options.dir).absolute() / str(port)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--dir: {folder} can't be made: {error.strerror}") from None
    words = [sys.executable, "-m", "disque.server.main", "--port", str(port), "--dir", str(folder)]
    words += ["--bind", "127.0.0.1", "--logfile", str(folder / "node.log")]
    if port != options.port:
        words += ["--cluster-join", f"127.0.0.1:{options.port}"]
    error_path = folder / "error.log"
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("DISQUE_")
    }
    with error_path.open("wb") as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment
        )
    return LocalNode(port, words, process, error_path)


def _wait_ready(nodes: Sequence[LocalNode]) -> None:
    """Until each node answers and reaches the others; SystemExit with what a node said if one ends."""
    deadline = time.monotonic() + START_S
    wanted = f"cluster_reachable_nodes:{len(nodes) - 1}\r\n".encode()
    for node in nodes:
        while wanted not in _ask(node.port, b"CLUSTER INFO\r\n"):
            _check_running(node)
            if time.monotonic() > deadline:
                raise SystemExit(f"node {node.port} isn't ready after {START_S:g} s")
            time.sleep(POLL_S)


def _ask(port: int, command: bytes) -> bytes:
    """What a node says first; empty if it doesn't answer yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(command)
            return sock.recv(65_536)
    except OSError:
        return b""


def _check_running(node: LocalNode) -> None:
    if node.process.poll() is not None:
        raise SystemExit(_last_words(node))


def _last_words(node: LocalNode) -> str:
    said = node.error_path.read_text(errors="replace")[-ERROR_CHARS_MAX:].strip()
    return said or f"node {node.port} ended with status {node.process.returncode}"


def _watch(nodes: Sequence[LocalNode]) -> None:
    """For ever, or until the last node has ended: then SystemExit with its last words.

    One that ends before is told, and the others go on: to kill one is what a newcomer tries.
    """
    running = list(nodes)
    while True:
        for node in [each for each in running if each.process.poll() is not None]:
            running.remove(node)
            if not running:
                raise SystemExit(_last_words(node))
            _say(f"\n{_last_words(node)}; the others go on. To start it again:\n\n")
            _say(f"  {shlex.join(node.words)}\n")
        time.sleep(0.5)


def _end(nodes: Sequence[LocalNode]) -> None:
    """SIGTERM to the nodes that run; SIGKILL to those that don't heed it."""
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    deadline = time.monotonic() + STOP_S
    for node in nodes:
        try:
            node.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(0)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
