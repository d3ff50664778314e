"""Commands: runs a tool of the system (ip, nft, docker ...) to its end, with text in and text out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from jepsen.hosts.base import HostsError


async def run(
    *command: str,
    text: str = "",
    timeout_s: float = 60.0,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What the command wrote; `text` is its input. HostsError with its complaint if it failed, or took too long."""
    try:
        with trio.fail_after(timeout_s):
            done = await trio.run_process(
                list(command),
                stdin=text.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=folder,
                env=environment,
            )
    except OSError as error:
        raise HostsError(f"{command[0]}: {error.strerror}") from None
    except trio.TooSlowError:
        raise HostsError(f"{' '.join(command)}: not done within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise HostsError(_complaint(command, done))
    return done.stdout.decode(errors="replace")


def _complaint(command: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode(errors="replace").strip() or "no word of it"
    return f"{' '.join(command)}: exit {done.returncode}: {said[-2000:]}"
