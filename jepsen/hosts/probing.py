"""Probing: what this machine can do, each tried for real on something small; nothing of it stays.

Every probe is asked once a process. It is synchronous: it runs before a cluster is there.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from jepsen.hosts import cleaning, clocks, namespaces, netns, nft
from jepsen.hosts.base import make_prefix

_COMMAND_S: Final = 20.0
_WAIT_S: Final = 5.0
_HEAR_S: Final = 0.4


@attrs.frozen
class Finding:
    """What a probe found: whether the thing works, and a word on how that showed, or what is missing."""

    is_there: bool
    detail: str


class MissingError(Exception):
    """The thing doesn't work; str() tells why."""


def _probe(work: Callable[[], str]) -> Callable[[], Finding]:
    """Ask once; what a probe returns is the detail of a success."""

    @functools.cache
    @functools.wraps(work)
    def ask() -> Finding:
        try:
            return Finding(is_there=True, detail=work())
        except (MissingError, OSError) as error:
            return Finding(is_there=False, detail=str(error))

    return ask


@_probe
def can_proxy() -> str:
    """A socket on loopback; the proxy needs no more."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(b"-")
        accepted, _ = server.accept()
        with accepted:
            if accepted.recv(1) != b"-":
                raise MissingError("loopback carries nothing")
    return "loopback carries bytes"


@_probe
def can_network() -> str:
    """Namespaces, veth, a bridge, and a socket of ours in each end."""
    with _two_hosts() as (_, ends):
        if not _hears(ends, 0, 1):
            raise MissingError("a datagram between two namespaces didn't arrive")
    return "2 namespaces, 1 bridge; a datagram arrives"


@_probe
def can_cut() -> str:
    """Verdicts on frames of a bridge, one direction alone."""
    with _two_hosts() as (switch, ends):
        _nft(switch, nft.table(nft.FAMILY_BRIDGE))
        _nft(switch, nft.verdicts(nft.FAMILY_BRIDGE, [(ends[0][1], ends[1][1])]))
        there, back = _hears(ends, 0, 1), _hears(ends, 1, 0)
        if there or not back:
            raise MissingError(
                f"a cut of one direction: that one carries {there}, the other {back}"
            )
        _nft(switch, nft.verdicts(nft.FAMILY_BRIDGE, []))
        if not _hears(ends, 0, 1):
            raise MissingError("a healed link stays silent")
    return "one direction silent, the other not; healed"


@_probe
def can_lose() -> str:
    """nft's numgen drops about as many datagrams as asked for."""
    with _two_hosts() as (switch, ends):
        _nft(switch, nft.table(nft.FAMILY_BRIDGE))
        pair = (ends[0][1], ends[1][1])
        _nft(switch, nft.verdicts(nft.FAMILY_BRIDGE, [], [pair], 0.5))
        got = _count(ends, 0, 1, 200)
    if not 50 <= got <= 150:
        raise MissingError(f"loss of 0.5 let {got} of 200 through")
    return f"loss of 0.5 lets {got} of 200 through"


@_probe
def can_reset() -> str:
    """`ss --kill` aborts a live connection."""
    _need("ss")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted:
                _run("ss", "--kill", "--tcp", "--no-header", "dst", f"127.0.0.1:{port}")
                client.settimeout(_WAIT_S)
                try:
                    client.recv(1)
                except ConnectionError:
                    return "a live connection aborts"
                except TimeoutError:
                    pass
    raise MissingError("ss --kill leaves connections alone (CONFIG_INET_DIAG_DESTROY)")


@_probe
def can_netem() -> str:
    """tc's netem, the usual way to delay packets."""
    with _two_hosts() as (switch, _):
        _run("tc", "-n", switch, "qdisc", "add", "dev", _ENDS[0], "root", "netem", "delay", "5ms")
    return "delays packets (unused: the proxy delays)"


@_probe
def can_mount() -> str:
    """A small disk in memory that gets full."""
    if os.geteuid() != 0:
        raise MissingError("mounting needs root")
    with _owned() as prefix, tempfile.TemporaryDirectory(prefix=f"{prefix}-") as name:
        _run("mount", "-t", "tmpfs", "-o", "size=64k", prefix, name)
        try:
            (Path(name) / "much").write_bytes(bytes(1 << 20))
        except OSError as error:
            return f"tmpfs of 64 KiB: {error.strerror}"
        finally:
            _run("umount", name)
    raise MissingError("1 MiB fits into a tmpfs of 64 KiB")


_TELL_CLOCKS: Final = """\
import sys, time
for line in sys.stdin: print(time.time(), time.monotonic(), flush=True)
"""


@_probe
def can_fake_clock() -> str:
    """libfaketime moves a live process's wall clock, and not its monotonic one."""
    library = clocks.find_library()
    if library is None:
        raise MissingError("no libfaketime")
    with _owned() as prefix, tempfile.TemporaryDirectory(prefix=f"{prefix}-") as name:
        control = Path(name) / "clock"
        clocks.set_offset(control, 0)
        environment = {**os.environ, **clocks.environment(library, control)}
        with subprocess.Popen(
            [sys.executable, "-c", _TELL_CLOCKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as process:
            before = _two_clocks(process)
            clocks.set_offset(control, 300)
            after = _two_clocks(process)
            process.kill()
    wall, steady = after[0] - before[0], after[1] - before[1]
    if not 290 < wall < 310 + steady or steady > 60:
        raise MissingError(f"a jump of 300 s: wall clock {wall:+.1f} s, monotonic {steady:+.1f} s")
    return f"a jump of 300 s: wall clock {wall:+.1f} s, monotonic {steady:+.1f} s"


@_probe
def can_trace() -> str:
    """strace makes a child's fsync fail."""
    _need("strace")
    with _owned() as prefix, tempfile.NamedTemporaryFile(prefix=f"{prefix}-") as file:
        code = f"import os; os.fsync(os.open({file.name!r}, os.O_RDWR))"
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"]
        child = ["sleep", str(_WAIT_S)]
        done = _finish(*command, sys.executable, "-c", code)
        if b"Errno 5" not in done.stderr:
            raise MissingError(
                f"an injected EIO didn't show: {done.stderr.decode()[-200:].strip()}"
            )
        with subprocess.Popen(child) as sleeper:
            try:
                _hold(sleeper.pid)
            finally:
                sleeper.kill()
    return "EIO injected; a running process held and let go"


@_probe
def can_docker() -> str:
    """A docker engine answers, compose is there, and what enters containers and cuts them: root and nft."""
    if os.geteuid() != 0:
        raise MissingError("entering containers needs root")
    _need("docker", "nsenter", "nft")
    version = _run("docker", "version", "--format", "{{.Server.Version}}").strip()
    if _finish("docker", "compose", "version").returncode == 0:
        return f"engine {version}, compose v2"
    _need("docker-compose")
    return f"engine {version}, docker-compose"


@_probe
def can_enter() -> str:
    """This process may enter namespaces: root."""
    if os.geteuid() != 0:
        raise MissingError(f"uid {os.geteuid()}, not root")
    return "root"


def _need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise MissingError(f"no {tool}")


def _finish(*command: str, text: str = "") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, input=text.encode(), capture_output=True, check=False, timeout=_COMMAND_S
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"{' '.join(command)} hangs") from None


def _run(*command: str, text: str = "") -> str:
    done = _finish(*command, text=text)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise MissingError(f"{command[0]}: {said[0] if said else f'exit {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def _two_clocks(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    if process.stdin is None or process.stdout is None:
        raise MissingError("no pipes")
    process.stdin.write(b"\n")
    process.stdin.flush()
    words = process.stdout.readline().split()
    if len(words) != 2:
        raise MissingError("a process under libfaketime ends at once")
    return float(words[0]), float(words[1])


def _hold(pid: int) -> None:
    """Attach to a running process and let it go again."""
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(pid)], stderr=subprocess.DEVNULL
    ) as holder:
        deadline = time.monotonic() + _WAIT_S
        is_held = False
        while not is_held and time.monotonic() < deadline and holder.poll() is None:
            status = Path(f"/proc/{pid}/status").read_text()
            is_held = "TracerPid:\t0\n" not in status
            time.sleep(0.01)
        holder.send_signal(signal.SIGTERM)
    if not is_held:
        raise MissingError("strace may not attach to a running process")


@contextmanager
def _owned() -> Iterator[str]:
    """A prefix for what a probe makes; what of it outlives a probe that broke off goes with the interpreter."""
    prefix = make_prefix()
    cleaning.guard(prefix)
    yield prefix
    cleaning.release(prefix)


_ENDS: Final = ("n1", "n2")
Ends = Sequence[tuple[socket.socket, str]]  # (a bound UDP socket, its address)


@contextmanager
def _two_hosts() -> Iterator[tuple[str, Ends]]:
    """Two namespaces joined by a bridge in a third: the name of that one, and a socket in each of the two."""
    if os.geteuid() != 0:
        raise MissingError("namespaces need root")
    _need("ip", "nft")
    with _owned() as prefix:
        switch, hosts = f"{prefix}-switch", [f"{prefix}-{end}" for end in _ENDS]
        ends: list[tuple[socket.socket, str]] = []
        try:
            names = "".join(f"netns add {name}\n" for name in (switch, *hosts))
            _run("ip", "-batch", "-", text=names)
            _run("ip", "-n", switch, "-batch", "-", text=netns.switch_batch(prefix, _ENDS))
            addresses = netns.plan_addresses(_ENDS)
            for end, name in zip(_ENDS, hosts, strict=True):
                address = addresses[end]
                _run("ip", "-n", name, "-batch", "-", text=netns.member_batch(address))
                sock = namespaces.make_socket(namespaces.named(name), socket.SOCK_DGRAM)
                sock.bind((address, namespaces.PROBE_PORT))
                ends.append((sock, address))
            yield switch, ends
        finally:
            for sock, _ in ends:
                sock.close()
            for name in (switch, *hosts):
                _finish("ip", "netns", "delete", name)


def _nft(namespace: str, script: str) -> None:
    _run("ip", "netns", "exec", namespace, "nft", "-f", "-", text=script)


def _hears(ends: Ends, source: int, target: int) -> bool:
    """One of a few datagrams arrives."""
    deadline = time.monotonic() + _HEAR_S
    while time.monotonic() < deadline:
        if _count(ends, source, target, 1):
            return True
    return False


def _count(ends: Ends, source: int, target: int, number: int) -> int:
    """How many of so many datagrams arrive."""
    for _ in range(number):
        ends[source][0].sendto(b"probe", (ends[target][1], namespaces.PROBE_PORT))
    time.sleep(0.05)
    got = 0
    while True:
        try:
            ends[target][0].recv(64)
        except OSError:
            return got
        got += 1
