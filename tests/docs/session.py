"""Session: runs the blocks of one page in their order, as a reader would who follows it from top to bottom.

    console          lines after `$ ` are typed (`> ` continues one), what follows must be what is shown
    console fails    the same, and the last command's exit status isn't 0
    console stays    one command that is left running until the page ends, once it has shown what follows
    python           runs, with what earlier blocks of the page have defined
    python NAME      becomes a file
    pycon            a doctest
    conf             a configuration file that the server understands; with a NAME, also a file

`...` in what is shown stands for anything in a line, and alone for any lines. The ports that pages tell, and the port
that commands take when none is told, are moved to free ones (see Ports). Commands see a terminal of 100 columns without
colours.
"""

from __future__ import annotations

import contextlib
import doctest
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from disque.client import Client
from disque.server.config import Config
from disque.server.configfile import read_content
from tests.system.nodes import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.docs.pages import Block

RUN_S = 30.0  # for any one command, on a machine that may be busy
COMMANDS = {
    "disque": "disque.cli.entry",
    "disque-server": "disque.server.main",
    "disque-check-aof": "disque.aof.check",
}
_COLUMNS, _LINES = 100, 50
_DONE = re.compile(r"<end of command: (\d+)>\n")
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@attrs.frozen
class Ports:
    """Where the pages' ports are in this run: 7711 to 7719 with bus and page, and STOMP's 61613 to 61619."""

    first: int

    @classmethod
    def free(cls) -> Ports:
        """Nine in a row, of which each is free, and so is its bus port."""
        for _ in range(100):
            first = free_port()
            if first < 21_900 and all(_is_free(first + at) for at in range(9)):
                return cls(first)
        raise AssertionError("no nine free ports in a row")

    def of(self, told: int) -> int:
        """The port that is used in place of one that a page tells."""
        return told + (self.first - 7711 if told < 61_000 else self.first - 20_000)

    def moved(self, text: str) -> str:
        """A text with its ports replaced."""
        pattern = r"(?<![\d.])(?:1?771[1-9]|871[1-9]|6161[3-9])(?!\d)"
        return re.sub(pattern, lambda told: str(self.of(int(told[0]))), text)


def _is_free(port: int) -> bool:
    try:
        for each in (port, port + 1_000, port + 10_000):
            with socket.socket() as probe:
                probe.bind(("", each))
    except OSError:
        return False
    return True


class Terminal:
    """A program whose output is a terminal that is read here; its input is a pipe."""

    def __init__(self, words: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        size = struct.pack("HHHH", _LINES, _COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._raw = b""

    @property
    def shown(self) -> str:
        """What it has shown and nobody has taken."""
        return self._raw.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Give it input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def read_until(self, is_enough: Callable[[str], bool]) -> str:
        """What it has shown, once that is enough; AssertionError with it if that never comes."""
        deadline = time.monotonic() + RUN_S
        while not is_enough(self.shown):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {RUN_S:g} s; shown so far:\n{self.shown}"
            if select.select([self._master], [], [], left)[0]:
                self._read()
        return self.shown

    def take(self) -> None:
        """Forget what was shown."""
        self._raw = b""

    def begin_end(self) -> None:
        """SIGTERM to its process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for that, reading what it still says; SIGKILL to its group if it doesn't end."""
        with contextlib.suppress(AssertionError):
            self.read_until(lambda _: False)
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)

    def _read(self) -> None:
        try:
            raw = os.read(self._master, 1 << 16)
        except OSError:
            # The terminal's way to say that nobody writes to it any more
            raw = b""
        assert raw, f"it has ended; shown so far:\n{self.shown}"
        self._raw += raw


class Session:
    """One page that is run, in a folder of its own."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        self.folder = folder
        self.ports = ports
        self.names: dict[str, Any] = {"__name__": "page"}
        self._environment = environment_of(folder, ports)
        self._shell: Terminal | None = None
        self._staying: list[Terminal] = []

    def run(self, block: Block) -> None:
        """Run a block; AssertionError, or what its code raises, says what isn't as the page says."""
        text = self.ports.moved(block.text)
        match block.language, block.words:
            case "console", ():
                self._console(block, text, fails=False)
            case "console", ("fails",):
                self._console(block, text, fails=True)
            case "console", ("stays",):
                self._stay(block, text)
            case "python", ():
                exec(compile("\n" * block.line + text, block.page, "exec"), self.names)
            case "pycon", ():
                self._doctest(block, text)
            case "python", (name,):
                (self.folder / name).write_text(text)
            case "conf", names:
                read_content(Config(), text.encode(), Path(str(block)))
                for name in names:
                    (self.folder / name).write_text(text)
            case _:
                raise AssertionError(f"{block}: it isn't said how to run this")

    def end(self) -> None:
        """End what stays, and what Python code has left open."""
        for name in self.names.values():
            if isinstance(name, Client):
                name.close()
        terminals = [*self._staying, *([self._shell] if self._shell else [])]
        for each in terminals:
            each.begin_end()
        for each in terminals:
            each.end()

    def _console(self, block: Block, text: str, *, fails: bool) -> None:
        if self._shell is None:
            self._shell = Terminal(
                ["bash", "--noprofile", "--norc"], self.folder, self._environment
            )
        steps = typed(text)
        for command, expected in steps:
            # A file of its own keeps the shell's input ours.
            (self.folder / ".command").write_text(command)
            self._shell.type('. ./.command </dev/null; printf "<end of command: %s>\\n" "$?"\n')
            shown = self._shell.read_until(lambda shown: _DONE.search(shown) is not None)
            self._shell.take()
            found = _DONE.search(shown)
            assert found is not None
            shown = shown[: found.start()].removesuffix("\n") + "\n" if found.start() else ""
            assert is_as_told(shown, expected), complaint(block, command, expected, shown)
            should_fail = fails and command == steps[-1][0]
            assert (int(found[1]) != 0) == should_fail, (
                f"{block}: $ {command}exit status {found[1]}:\n{shown}"
            )

    def _stay(self, block: Block, text: str) -> None:
        ((command, expected),) = typed(text)
        terminal = Terminal(
            ["bash", "--noprofile", "--norc", "-c", f"exec {command}"],
            self.folder,
            self._environment,
        )
        self._staying.append(terminal)
        try:
            terminal.read_until(lambda shown: is_as_told(shown, f"{expected}...\n"))
        except AssertionError as error:
            raise AssertionError(complaint(block, command, expected, str(error))) from None

    def _doctest(self, block: Block, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(
            text, self.names, str(block), block.page, block.line
        )
        said: list[str] = []
        results = doctest.DocTestRunner(optionflags=_OPTIONS).run(
            test, out=said.append, clear_globs=False
        )
        self.names.update(test.globs)
        assert results.failed == 0, "".join(said)


def typed(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what should be shown after it."""
    steps: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            steps.append((line[2:], ""))
        elif line.startswith("> ") and steps and not steps[-1][1]:
            steps[-1] = (steps[-1][0] + line[2:], "")
        else:
            assert steps, f"a console block begins with $, not with {line!r}"
            steps[-1] = (steps[-1][0], steps[-1][1] + line)
    return steps


def is_as_told(shown: str, expected: str) -> bool:
    """True if this is what a page says, however many blanks there are; `...` is explained above."""
    parts = []
    for line in expected.rstrip("\n").split("\n") if expected else []:
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            words = [re.escape(word) for word in line.rstrip().split("...")]
            pattern = r"[^\n]*".join(words) + r"[^\S\n]*\n"
            parts.append(re.sub(r"(?:\\ )+", " +", pattern))
    return re.fullmatch("".join(parts), shown) is not None


def complaint(block: Block, command: str, expected: str, shown: str) -> str:
    """What a page says and what is, one below the other."""
    return f"{block}: $ {command}--- told\n{expected}--- shown\n{shown}---"


def environment_of(folder: Path, ports: Ports) -> dict[str, str]:
    """What commands of a page see: our commands without an installation, and the first node as the tool's own."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, module in COMMANDS.items():
        program = programs / name
        program.write_text(
            f'#!/bin/sh\n[ "$1" = local ] && shift && set -- local --port {ports.first} "$@"\n'
            f'exec "{sys.executable}" -m {module} "$@"\n'
        )
        program.chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DISQUE_")}
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(ROOT),
        "DISQUE_URL": f"disque://127.0.0.1:{ports.of(7711)}",
        "DISQUE_PORT": str(ports.first),
        "DISQUE_HISTORY": "",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": str(_COLUMNS),
        "LINES": str(_LINES),
    }
