"""Tracing: makes the fsync of a running process slow or failing, by strace's injection; ends when it lets go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import attrs
import trio

from jepsen.hosts.base import HostsError
from jepsen.hosts.cleaning import MARK

_CALLS: Final = "fsync,fdatasync,sync_file_range"
ATTACH_S: Final = 5.0


def slow(delay_ms: float) -> str:
    """An injection that makes each call take so much longer."""
    return f"inject={_CALLS}:delay_exit={round(delay_ms * 1000)}"


def failing() -> str:
    """An injection that makes each call fail with EIO."""
    return f"inject={_CALLS}:error=EIO"


@attrs.define(eq=False)
class Tracer:
    """One strace that holds one process."""

    _process: subprocess.Popen[bytes]

    @classmethod
    async def attach(cls, pid: int, injection: str, prefix: str) -> Tracer:
        """Hold a process, all threads, with this injection, for this run; HostsError if that can't be."""
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={_CALLS}"]
        process = subprocess.Popen(
            [*command, "-e", injection, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: prefix},
            start_new_session=True,
        )
        tracer = cls(process)
        with trio.move_on_after(ATTACH_S):
            while process.poll() is None:
                if is_traced(pid):
                    return tracer
                await trio.sleep(0.01)
        said = await tracer.detach()
        raise HostsError(f"strace can't hold {pid}: {said.decode(errors='replace').strip()}")

    async def detach(self) -> bytes:
        """Let the process go on alone; gives what strace complained of."""
        self._process.terminate()
        with trio.move_on_after(ATTACH_S, shield=True):
            while self._process.poll() is None:
                await trio.sleep(0.01)
        self._process.kill()
        _, said = self._process.communicate()
        return said


@attrs.define(eq=False)
class Tracers:
    """Who is held, by node: one injection at a time; `prefix` is the run's."""

    prefix: str
    _by_node: dict[str, Tracer] = attrs.field(factory=dict, init=False)

    async def hold(self, node: str, pid: int, injection: str) -> None:
        """Hold this process from now on, with this injection alone."""
        await self.release(node)
        self._by_node[node] = await Tracer.attach(pid, injection, self.prefix)

    async def release(self, node: str) -> None:
        """Let it go on alone; nothing if it isn't held."""
        tracer = self._by_node.pop(node, None)
        if tracer is not None:
            await tracer.detach()


def is_traced(pid: int) -> bool:
    """Every thread of the process has a tracer."""
    try:
        states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError:
        return False
    return bool(states) and not any("TracerPid:\t0\n" in state for state in states)
