"""The tool `disque` as tests run it: in this process where that will do, else as a process of its own."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import attrs

from disque.cli import entry
from tests.system.nodes import ROOT, WAIT_S

if TYPE_CHECKING:
    import pytest

    from tests.system.nodes import Node

TOOL = (sys.executable, "-m", "disque.cli.entry")


@attrs.frozen
class Done:
    """What a call left behind."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    def json(self) -> Any:
        """Standard output as one value of JSON."""
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        """Standard output as a value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Tool:
    """Calls `disque -p PORT ...` in this process; neither input nor output is a terminal."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capture

    def __call__(self, node: Node, *words: str, stdin: bytes = b"") -> Done:
        """Run it to its end; an exception that escapes fails the test."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        status = entry.main(["-p", str(node.port), *words])
        out, err = self._capture.readouterr()
        assert b"Traceback" not in err, err.decode()
        return Done(status, out, err.decode())

    def ok(self, node: Node, *words: str, stdin: bytes = b"") -> Done:
        """As a call; it must succeed."""
        done = self(node, *words, stdin=stdin)
        assert done.status == 0, done
        return done


def clean_environment(**more: str) -> dict[str, str]:
    """This process' environment without what the tool heeds."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DISQUE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "DISQUE_HISTORY": "", **more}


def spawn(*words: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start `disque WORDS` as a process with pipes and nothing to read; it hears Ctrl-C even if we are deaf to it."""
    more.setdefault("preexec_fn", hear_interrupts)
    return subprocess.Popen(
        [*TOOL, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        **more,
    )


def hear_interrupts() -> None:
    """What a shell starts in the background comes with SIGINT ignored, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_terminal() -> None:
    """So that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    hear_interrupts()


class Terminal:
    """The tool on a pseudo-terminal of 40 lines and 120 columns."""

    def __init__(self, node: Node, *words: str, **environment: str) -> None:
        self._side, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._process = subprocess.Popen(
            [*TOOL, "-p", str(node.port), *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1", **environment),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self._seen = ""

    def wait_for(self, pattern: str) -> str:
        """Read until what came since the last match has this, escape sequences removed; returns it."""
        deadline = time.monotonic() + WAIT_S
        text = ""
        while (left := deadline - time.monotonic()) > 0:
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]", "", self._seen)
            if re.search(pattern, text):
                self._seen = ""
                return text
            if select.select([self._side], [], [], left)[0]:
                self._seen += os.read(self._side, 65_536).decode()
        raise AssertionError(f"{pattern!r} didn't come; seen: {text!r}")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._side, text.encode())

    def end(self) -> int:
        """Wait for the end; the exit status."""
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        """End it if it runs, and the terminal."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(WAIT_S)
        os.close(self._side)
