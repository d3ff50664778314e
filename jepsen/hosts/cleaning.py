"""Cleaning: finds and removes what runs leave behind (processes, namespaces, mounts, containers, folders) by its name.

The names of all that a run creates begin with its prefix, `dqj-<pid of the harness>-<of its pid namespace><random>`;
processes carry it in their environment. So a run that is under way is told from one that died. Everything here is
synchronous and asks no trio: it must work at the exit of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from jepsen.hosts.base import NAME_PREFIX, pid_space

MARK: Final = "JEPSEN_PREFIX"  # this variable of a process names the run that it belongs to
_PREFIX: Final = re.compile(rf"{NAME_PREFIX}-(\d+)-([0-9a-f]{{4}})[0-9a-f]{{4}}(?![0-9a-z])")
_NAMESPACES: Final = Path("/run/netns")
_GONE_S: Final = 5.0
_COMMAND_S: Final = 60.0


@attrs.frozen
class Leftovers:
    """What one prefix names."""

    prefix: str
    processes: tuple[int, ...] = ()
    namespaces: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    # docker's own words, such as ("container", id)
    containers: tuple[tuple[str, str], ...] = ()
    folders: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return any((self.processes, self.namespaces, self.mounts, self.containers, self.folders))

    def describe(self) -> str:
        """One line for people."""
        kinds = {
            "processes": self.processes,
            "namespaces": self.namespaces,
            "mounts": self.mounts,
            "things of docker": self.containers,
            "folders": self.folders,
        }
        told = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items() if found)
        return f"{self.prefix}: {told or 'nothing'}"


def scratch_folder(prefix: str) -> Path:
    """Where a run keeps files that nobody asked to keep."""
    return Path(tempfile.gettempdir()) / prefix


def is_active(prefix: str) -> bool:
    """The harness process that made this prefix still runs, or can't be seen: its pid is of another namespace."""
    match = _PREFIX.fullmatch(prefix)
    if match is None:
        return False
    return match[2] != pid_space() or Path(f"/proc/{match[1]}").exists()


def find(*, with_docker: bool = True) -> list[Leftovers]:
    """What all runs have on this machine now, active ones too, in order of prefix."""
    processes = _by_prefix(_marked_processes())
    namespaces = _by_prefix((name, name) for name in _names(_NAMESPACES))
    mounts = _by_prefix(_mounts())
    containers = _by_prefix(_docker_things() if with_docker else ())
    temporary = Path(tempfile.gettempdir())
    folders = _by_prefix((name, name) for name in _names(temporary))
    found = sorted({*processes, *namespaces, *mounts, *containers, *folders})
    return [
        Leftovers(
            prefix,
            tuple(int(pid) for pid in processes.get(prefix, ())),
            tuple(namespaces.get(prefix, ())),
            tuple(mounts.get(prefix, ())),
            tuple(
                (kind, name)
                for kind, _, name in (w.partition(" ") for w in containers.get(prefix, ()))
            ),
            tuple(temporary / name for name in folders.get(prefix, ())),
        )
        for prefix in found
    ]


def sweep() -> list[Leftovers]:
    """As `clean`, but without asking docker: quick enough for the start of every run."""
    return clean(with_docker=False)


def clean(*, everything: bool = False, with_docker: bool = True) -> list[Leftovers]:
    """Remove what dead runs left, with `everything` what active ones have too; gives what was found."""
    left = find(with_docker=with_docker)
    found = [each for each in left if everything or not is_active(each.prefix)]
    for each in found:
        remove(each)
    return found


def remove_run(prefix: str, *, with_docker: bool = False) -> None:
    """Remove all that one run has, active or not; nothing to do is fine."""
    for each in find(with_docker=with_docker):
        if each.prefix == prefix:
            remove(each)


def remove(found: Leftovers) -> None:
    """Remove these; what is gone meanwhile is fine."""
    _end(found.processes, found.prefix)
    for kind, name in found.containers:
        force = ["--force"] if kind != "network" else []
        _run(["docker", kind, "rm", *force, name])
    for point in sorted(found.mounts, reverse=True):
        _run(["umount", "--lazy", point])
    for name in found.namespaces:
        _run(["ip", "netns", "delete", name])
    for folder in found.folders:
        shutil.rmtree(folder, ignore_errors=True)


_guarded: dict[str, bool] = {}


def guard(prefix: str, *, with_docker: bool = False) -> None:
    """Remove this run's things when the interpreter ends, unless `release` comes first.

    SIGTERM is taken for Ctrl-C from now on: the interpreter ends in order then.
    """
    if not _guarded:
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # so does a shell start what it puts behind
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    _guarded[prefix] = with_docker


def release(prefix: str) -> None:
    """This run has removed its things itself."""
    _guarded.pop(prefix, None)


def _at_exit() -> None:
    for prefix, with_docker in list(_guarded.items()):
        with contextlib.suppress(OSError):
            remove_run(prefix, with_docker=with_docker)


def _by_prefix(things: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(text that may begin with a prefix, thing) as prefix -> things."""
    sorted_out: dict[str, list[str]] = {}
    for text, thing in things:
        if match := _PREFIX.match(text):
            sorted_out.setdefault(match[0], []).append(thing)
    return sorted_out


def _names(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if each.name.startswith(NAME_PREFIX))
    except OSError:
        return []


def _marked_processes() -> Iterator[tuple[str, str]]:
    """(the mark, pid) of processes that have one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            yield _mark(int(folder.name)), folder.name


def _mark(pid: int) -> str:
    """The prefix that a process carries; "" if it has none, or is gone."""
    mark = f"{MARK}=".encode()
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = (each for each in variables if each.startswith(mark))
    return next(found, b"").removeprefix(mark).decode(errors="replace")


def _mounts() -> Iterator[tuple[str, str]]:
    """(label, place) of what is mounted; the label is the prefix of the run."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        label, place, _ = line.split(" ", 2)
        yield label, place.encode().decode("unicode_escape")


def _docker_things() -> Iterator[tuple[str, str]]:
    """(name, "kind id") of containers, networks, volumes and images that carry a prefix."""
    if shutil.which("docker") is None or _run(["docker", "info"]) is None:
        return
    listings = {
        "container": ["ps", "-a", "--format", "{{.Names}} {{.ID}}"],
        "network": ["network", "ls", "--format", "{{.Name}} {{.ID}}"],
        "volume": ["volume", "ls", "--format", "{{.Name}} {{.Name}}"],
        "image": ["images", "--format", "{{.Repository}} {{.Repository}}:{{.Tag}}"],
    }
    for kind, words in listings.items():
        for line in (_run(["docker", *words]) or "").splitlines():
            name, _, ident = line.partition(" ")
            yield name, f"{kind} {ident}"


def _end(pids: Sequence[int], prefix: str) -> None:
    """SIGKILL those that still carry this prefix, and wait until they are gone.

    A while has passed since they were found: a pid may be somebody else's now, but a handle never is.
    """
    ended = []
    for pid in pids:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if _mark(pid) == prefix:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    ended.append(pid)
            finally:
                os.close(handle)
    deadline = time.monotonic() + _GONE_S
    while any(_runs(pid) for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """It exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _run(command: Sequence[str]) -> str | None:
    """The output of a command, None if it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
