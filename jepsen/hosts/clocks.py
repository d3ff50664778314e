"""Clocks: a wall clock that can be set wrong for one process, by libfaketime; monotonic time stays true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PLACES: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib*/faketime/libfaketimeMT.so.1",
)


def find_library() -> Path | None:
    """libfaketime for programs with threads, if it is installed."""
    for pattern in _PLACES:
        for found in sorted(Path("/").glob(pattern.lstrip("/"))):
            return found
    return None


def environment(library: Path, control: Path) -> Mapping[str, str]:
    """What a process must be started with so that `control` rules its wall clock."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(control),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Without this Python's threads wait half a second for the interpreter lock (0.9.10, measured).
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def set_offset(control: Path, seconds: float) -> None:
    """The clock that `control` rules is off by so much from now on."""
    fresh = control.with_suffix(".new")
    fresh.write_text(f"{seconds:+.3f}\n")
    fresh.replace(control)
