"""Watch: what makes a run doubtful though no promise is broken: a harness that stood still, servers that stopped.

On a busy machine everything slows down as a fault would make it, the harness, too; such spans are told to the checkers.
A server that is late while the harness is in time has no excuse.
"""

from __future__ import annotations

import re
import time
from typing import Final

import attrs
import trio

from jepsen.nemesis.field import Field
from jepsen.recorder import Recorder

LOOK_S: Final = 0.05
LAG_S: Final = 0.25
EXIT_LINES: Final = 5
# What stands before each line of a traceback in a group of exceptions: all of a nursery's are.
GUTTER: Final = re.compile(r"^ *[+|] ")
TRACE: Final = re.compile(
    r"(Exception Group )?Traceback|Fatal Python error|AssertionError|.*\b(unhandled|critical|warning bug)\b",
    re.I,
)
TRACES_MAX: Final = 20


@attrs.define(eq=False)
class Watch:
    """Spans (ns) in which the harness lagged above LAG_S, and exits that no fault asked for."""

    recorder: Recorder
    field: Field
    lags: list[tuple[int, int]] = attrs.Factory(list)
    exits: list[str] = attrs.Factory(list)
    _seen_dead: dict[str, None] = attrs.Factory(dict)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            began = time.monotonic()
            await trio.sleep(LOOK_S)
            late_s = time.monotonic() - began - LOOK_S
            if late_s > LAG_S:
                now = self.recorder.now_ns()
                self.lags.append((max(0, now - int((late_s + LOOK_S) * 1e9)), now))
            self.look()

    def look(self) -> None:
        """Note servers that ended unasked, once each."""
        for node in self.field.nodes:
            if self.field.hosts.is_alive(node):
                self._seen_dead.pop(node, None)
            elif node not in self.field.down and node not in self._seen_dead:
                self._seen_dead[node] = None
                last = self.field.hosts.log_text(node).strip().splitlines()[-EXIT_LINES:]
                self.exits.append(f"{node}: ended unasked; its last words: {' / '.join(last)}")

    def tracebacks(self) -> list[str]:
        """Lines of server logs that tell of a bug, with the line after a traceback's end."""
        found: list[str] = []
        for node in self.field.nodes:
            text = self.field.hosts.log_text(node)
            lines = [GUTTER.sub("", line) for line in text.splitlines()]
            for number, line in enumerate(lines):
                if TRACE.match(line):
                    after = [each for each in lines[number + 1 : number + 60] if each[:1].strip()]
                    found.append(f"{node}: {line} {after[0] if after else ''}".rstrip())
        return found[:TRACES_MAX]
