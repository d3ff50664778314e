"""Store: the files of a run, `store/<test>/<YYYYMMDDTHHMMSS>/`, written so that a crash leaves what can be judged.

While a run goes on, each event is one flushed line of history-full.jsonl, and a copy where it belongs: snapshots.jsonl
for observers, faults.jsonl for the nemesis. What follows from these (Jepsen's view, aligned text, results) is written
at the end, and can be written again by `analyze`. `store/current` points to the run that began last, `store/latest` to
the last one that was judged. The layout is Jepsen's.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TextIO

import attrs

from jepsen import edn
from jepsen.checkers.base import Meta, Result, Run, verdict
from jepsen.history import NEMESIS, OBSERVER, History, Op

ROOT: Final = Path("store")
HISTORY: Final = "history-full.jsonl"
SNAPSHOTS: Final = "snapshots.jsonl"
FAULTS: Final = "faults.jsonl"
TEST: Final = "test.json"
RESULTS: Final = "results.json"
LOG: Final = "jepsen.log"

PROCESS_NAMES: Final = {NEMESIS: "nemesis", OBSERVER: "observer"}
# Columns of one value in history.txt; longer ones are cut, the JSON has all.
TEXT_VALUE_MAX: Final = 200


@attrs.define(eq=False)
class RunFolder:
    """One run's folder, open for writing; one writer at a time, from one thread. Is path-like."""

    folder: Path
    _history: TextIO
    _snapshots: TextIO
    _faults: TextIO

    @classmethod
    def at(cls, folder: Path) -> RunFolder:
        """Open an existing folder; what is appended comes after what is there."""
        streams = (open_lines(folder / name) for name in (HISTORY, SNAPSHOTS, FAULTS))
        return cls(folder, *streams)

    def __fspath__(self) -> str:
        return str(self.folder)

    def path(self, name: str) -> Path:
        """The path of a file in here, "n1/server.log"; the folders above it exist afterwards."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def append(self, op: Op) -> None:
        """Write one event, before anything that follows from it is done."""
        line = op.to_line() + "\n"
        self._history.write(line)
        if op.process == NEMESIS:
            self._faults.write(line)
        elif op.process == OBSERVER:
            self._snapshots.write(line)

    def log(self, line: str) -> None:
        """Add a line to jepsen.log."""
        with self.path(LOG).open("a", encoding="utf-8") as file:
            file.write(line.rstrip("\n") + "\n")

    def update_test(self, fields: Mapping[str, Any]) -> None:
        """Add fields to test.json: options, probe table, "meta" as `attrs.asdict(meta)`."""
        write_json(self.path(TEST), {**read_test(self.folder), **fields})

    def write_results(self, run: Run, results: Sequence[Result]) -> None:
        """Write what follows from the history, and let store/latest point here."""
        self.update_test({"meta": attrs.asdict(run.meta)})
        write_json(self.path(RESULTS), results_as_json(results))
        in_edn = edn.dumps(results_as_json(results))
        self.path("results.edn").write_text(in_edn + "\n", encoding="utf-8")
        edn.write(self.path("history.edn"), run.ops)
        with self.path("history.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{text_line(op)}\n" for op in run.ops)
        point(self.folder.parent.parent / "latest", self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the streams; safe to call again."""
        for stream in (self._history, self._snapshots, self._faults):
            stream.close()


def open_run(root: Path, name: str, test: Mapping[str, Any]) -> RunFolder:
    """Make the folder of a new run, write its test.json, and let store/current point to it.

    `test` is JSON-able: options, "argv", "meta" (`attrs.asdict(meta)`) and what else is known; the environment is
    added. Runs of one second get different folders. Raises OSError when the folder can't be made.
    """
    parent = root / (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "test")
    parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    folder = make_first(parent, stamp)
    run_folder = RunFolder.at(folder)
    run_folder.update_test({"name": name, "started": stamp, **environment(), **test})
    point(root / "current", folder)
    return run_folder


def load(folder: Path) -> Run:
    """The run of a folder, finished or not.

    Raises FileNotFoundError without a history, ValueError for a line that is none of ours.
    """
    meta = Meta.from_json(read_test(folder).get("meta", {}))
    return Run(meta, History.read(folder / HISTORY))


def read_test(folder: Path) -> dict[str, Any]:
    """The fields of a folder's test.json, {} if it has none."""
    return read_json(folder / TEST)


def read_results(folder: Path) -> dict[str, Any]:
    """The fields of a folder's results.json, {} if the run wasn't judged."""
    return read_json(folder / RESULTS)


def run_folders(root: Path) -> list[Path]:
    """All folders of runs below a store, newest first."""
    found = [path.parent for path in root.glob(f"*/*/{TEST}")]
    return sorted(found, key=lambda path: path.name, reverse=True)


def results_as_json(results: Sequence[Result]) -> dict[str, Any]:
    """What results.json holds: the verdict ("valid" true, false or null) and each checker's answer."""
    told = {"valid": verdict(results), "results": [attrs.asdict(each) for each in results]}
    # tuples become lists, keys text, as in the file
    as_json: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return as_json


def text_line(op: Op) -> str:
    """One event as aligned text: seconds, process, type, f, node, value, error."""
    process = PROCESS_NAMES.get(op.process, str(op.process))
    value = json.dumps(dict(op.value), separators=(", ", ": "))
    if len(value) > TEXT_VALUE_MAX:
        value = value[: TEXT_VALUE_MAX - 1] + "…"
    columns = f"{op.time / 1e9:12.6f}  {process:>8}  {op.type:<6}  {op.f:<8}  {op.node:<4}  {value}"
    return f"{columns}  {op.error}".rstrip()


def environment() -> dict[str, Any]:
    """What a reader needs to run it again: commit, kernel, Python, processors."""
    return {
        "commit": commit(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
    }


def commit() -> str:
    """The commit of the tree this file is in, with "+" if it was changed since; "" without git."""
    here = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(
                ["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head + "+" * bool(changed)


def open_lines(path: Path) -> TextIO:
    """A text file to append to, flushed at the end of each line."""
    return path.open("a", buffering=1, encoding="utf-8")


def make_first(parent: Path, stamp: str) -> Path:
    """Make the folder `stamp`, or the first of stamp-2, stamp-3 ... that doesn't exist yet."""
    number = 1
    while True:
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def point(link: Path, folder: Path) -> None:
    """Let a symbolic link point to a folder below its own, at once for all readers."""
    draft = link.with_name(f".{link.name}-{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.resolve().relative_to(link.parent.resolve()), target_is_directory=True)
    draft.replace(link)


def read_json(path: Path) -> dict[str, Any]:
    """The object of a file, {} if there is no file."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return fields


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Replace a file at once, so that a crash leaves the old one or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(fields, indent=2, default=str) + "\n", encoding="utf-8")
    draft.replace(path)
