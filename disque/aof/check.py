"""disque-check-aof [--fix] [--dump] FILE|DIR: what is in a log, where it is damaged, what mending it would cost.

A look changes nothing, and may be taken while a server runs (the end may then seem torn: a write was under way).
--fix does what a server does at its start: keeps damaged bytes aside, cuts them out, cuts a torn tail.
Exit status: 0 clean or mended, 1 damaged, 2 it can't be looked at.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from disque.aof.disk import LogError
from disque.aof.files import FileDisk, kernel_boot_id
from disque.aof.replay import Findings, Placed, Replay
from disque.core.ready import Record

CLEAN, DAMAGED, UNUSABLE = 0, 1, 2
_SEGMENT = re.compile(r"(\d+)-[0-9a-f]{8}\.log")
# What a record makes of its id; None: nothing is left of it.
_STATES: Mapping[str, str | None] = {
    "job": "live",
    "move": "moving",
    "returned": "live",
    "done": "done",
    "settled": "settled",
    "gone": None,
}


def main(arguments: list[str] | None = None) -> int:
    """The console script; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="disque-check-aof", description="Look at a log of disque-server, and mend it."
    )
    parser.add_argument(
        "--fix", action="store_true", help="keep damaged bytes aside in files, and cut them out"
    )
    parser.add_argument("--dump", action="store_true", help="show each record as a line of JSON")
    parser.add_argument("path", metavar="FILE|DIR", type=Path, help="a segment, or the whole log")
    options = parser.parse_args(arguments)
    try:
        return check(options.path, fix=options.fix, dump=options.dump, say=_say)
    except BrokenPipeError:
        return UNUSABLE
    except (LogError, OSError) as error:
        sys.stderr.write(f"disque-check-aof: {error}\n")
        return UNUSABLE


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def check(path: Path, *, fix: bool, dump: bool, say: Callable[[str], None]) -> int:
    """Look at a segment or a whole log, line by line to `say`; returns the exit status. LogError, OSError."""
    findings, table = _look(path, fix=fix, dump=say if dump else None)
    for line in _report(findings, table, fix=fix):
        say(line)
    if fix:
        findings, _ = _look(path, fix=False, dump=None)
    return DAMAGED if findings.lost or findings.torn_bytes or findings.missing else CLEAN


def _look(path: Path, *, fix: bool, dump: Callable[[str], None] | None) -> tuple[Findings, _Table]:
    disk = _open(path, fix=fix)
    try:
        table, replay = _Table(), Replay(disk, kernel_boot_id=kernel_boot_id(), is_dry=not fix)
        for batch in replay.run():
            for placed in batch:
                table.take(placed[0])
                if dump is not None:
                    dump(_as_json(placed))
        return replay.findings, table
    finally:
        disk.close()


def _open(path: Path, *, fix: bool) -> FileDisk:
    if path.is_dir():
        disk = FileDisk(path, is_locked=fix)
        if not disk.segments():
            disk.close()
            logs = [str(each) for each in sorted(path.glob("*.aof")) if each.is_dir()]
            hint = f"; did you mean {' or '.join(logs)}?" if logs else ""
            raise LogError(f"{path} holds no segment of a log (00000001-5f3a2b1c.log){hint}")
        return disk
    match = _SEGMENT.fullmatch(path.name)
    if not path.exists() or match is None:
        raise LogError(
            f"{path} is no segment of a log: those are called like 00000001-5f3a2b1c.log, the name is part "
            "of their checksums"
            if path.exists()
            else f"{path} doesn't exist"
        )
    return FileDisk(path.parent, is_locked=fix, only=int(match[1]))


class _Table:
    """Which ids there are and in which state, as a replay would leave them."""

    def __init__(self) -> None:
        self.states: dict[bytes, str] = {}

    def take(self, record: Record) -> None:
        id_ = record.id
        if record.kind == "flush":
            self.states.clear()
        if id_ is None or record.kind not in _STATES:
            return
        state = _STATES[record.kind]
        is_base = record.kind in ("job", "done", "settled")
        if state is None:
            self.states.pop(id_, None)
        elif is_base or id_ in self.states:
            self.states[id_] = state


def _report(findings: Findings, table: _Table, *, fix: bool) -> list[str]:
    counts = Counter(table.states.values())
    kinds = ", ".join([f"{counts[state]} {state}" for state in sorted(counts)]) or "none"
    lines = [
        f"records: {findings.records} in {findings.total_bytes} bytes",
        f"jobs: {kinds}",
        f"last life: node {findings.node_id or 'unknown'}, boot {findings.boot}, "
        + ("ended cleanly" if findings.is_ended else "not ended"),
    ]
    if not findings.is_complete:
        lines.append(
            "incomplete: " + ("switched off" if findings.is_off else "a rewrite was under way")
        )
    lines += [f"missing: segment {segment}" for segment in findings.missing]
    for lost in findings.lost:
        kept = f", kept in {lost.file}" if lost.file else ""
        lines.append(f"damage: segment {lost.segment} at {lost.offset}, {lost.size} bytes{kept}")
    if findings.torn_at is not None:
        segment, offset = findings.torn_at
        done = ", cut" if fix else ""
        lines.append(f"torn end: segment {segment} at {offset}, {findings.torn_bytes} bytes{done}")
    lines += [f"note: {note}" for note in findings.notes]
    dropped = [id_ for id_ in findings.lost_ids if id_ not in table.states]
    if findings.lost or findings.torn_bytes:
        word = "a fix dropped" if fix else "a fix would drop"
        lines.append(f"{word} {len(dropped)} jobs whose ids can still be read")
        lines += [f"  {id_.decode('ascii', 'backslashreplace')}" for id_ in dropped[:100]]
    return lines


def _as_json(placed: Placed) -> str:
    record, segment, offset, size = placed
    return json.dumps(
        {
            "segment": segment,
            "offset": offset,
            "bytes": size,
            "kind": record.kind,
            "fields": _plain(record.fields),
        }
    )


def _plain(field: object) -> object:
    """Bytes as text, with backslashes for what is none."""
    if isinstance(field, bytes):
        return field.decode("utf-8", "backslashreplace")
    if isinstance(field, tuple | list):
        return [_plain(each) for each in field]
    if isinstance(field, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in field.items()}
    return field


if __name__ == "__main__":
    sys.exit(main())
