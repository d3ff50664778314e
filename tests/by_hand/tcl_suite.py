"""Disque's own Tcl suite against our server.

`python -m tests.by_hand.tcl_suite CHECKOUT [ROUNDS [PORT]]` takes a checkout of Disque (its `tests/` is
copied to a temporary folder; nothing in it is changed, nothing of it is kept), puts our server at
`src/disque-server`, runs it, counts the `OK` lines and prints what else was said. tclsh must be
there. About 160 s a round. The suite exits 0 on failed assertions, so the count decides: 132 of 132.
PORT is where it looks for free ports, 25000 by itself: two runs at a time would take each other's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.system.nodes import ROOT

WANTED = 132
DEFAULT_PORT = 25_000
ROUND_S = 900.0


def main(checkout: Path, rounds: int, port: int) -> int:
    """Run the suite so often; 0 if every round was complete."""
    complete = 0
    for number in range(1, rounds + 1):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            prepare(checkout, Path(folder), port)
            try:
                output = run(Path(folder))
            finally:
                end_leftovers(Path(folder))
        output = re.sub(r"\x1b\[[\d;]*m", "", output)  # colours
        passed = len(re.findall(r"\bOK$", output, re.M))
        complete += passed == WANTED
        for line in output.splitlines():
            if re.search(r"FAILED|ERROR|WARNING|Timeout|\[err\]|assertion", line, re.I):
                print(line)
        print(
            f"round {number}: {passed} of {WANTED} OK in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if passed != WANTED:
            print("\n".join(output.splitlines()[-40:]), flush=True)
    return 0 if complete == rounds else 1


def prepare(checkout: Path, folder: Path, port: int) -> None:
    """A tree in which the suite finds itself and our server."""
    shutil.copytree(checkout / "tests", folder / "tests")
    (folder / "tests" / "cluster" / "tmp").mkdir(exist_ok=True)
    harness = folder / "tests" / "instances.tcl"
    harness.write_text(harness.read_text().replace(str(DEFAULT_PORT), str(port)))
    wrapper = folder / "src" / "disque-server"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\nexec "{sys.executable}" -m disque.server.main "$@"\n'
    )
    wrapper.chmod(0o755)


def run(folder: Path) -> str:
    """What the suite prints."""
    words = ["tclsh", "tests/cluster/run.tcl"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=ROUND_S, check=False
    )
    return done.stdout + done.stderr


def end_leftovers(folder: Path) -> None:
    """The suite forgets servers that it restarted if it ends early; they stand in its folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(process / "cwd").readlink().is_relative_to(folder.resolve()):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # not ours, or gone


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    sys.exit(main(Path(sys.argv[1]), *numbers, *(1, DEFAULT_PORT)[len(numbers) :]))
