"""Mutation: from inputs that make sense to inputs that nearly do; Hypothesis draws, and makes failures small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

EDITS_MAX: Final = 6
_ODD: Final = (
    b"", b"\0", b"\xff" * 4, b"\r\n", b"\n", b"-1", b"0", b"9999999999999999999", b"\x7f\xff\xff\xff", b"\xc3\x28",
    b"\x90", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81" * 40,
)  # fmt: skip

Edit = tuple[Callable[[bytes, int, bytes], bytes], int, bytes]


def mutated(seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """One of the seeds, or several in a row, with a few edits; or words in a row; or any bytes."""
    pieces = st.sampled_from([*words, *_ODD])
    edits = st.lists(
        st.tuples(st.sampled_from(_EDITS), st.integers(0, 1 << 12), pieces | st.binary(max_size=8)),
        max_size=EDITS_MAX,
    )
    sound = st.lists(st.sampled_from(seeds), min_size=1, max_size=3).map(b"".join)
    rows = st.lists(pieces, max_size=30).map(b"".join)
    return st.one_of(st.builds(_edit, sound, edits), st.builds(_edit, rows, edits), st.binary())


def _edit(data: bytes, edits: Sequence[Edit]) -> bytes:
    for act, at, piece in edits:
        data = act(data, at % (len(data) + 1), piece)
    return data


def _insert(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at:]


def _overwrite(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + len(piece) :]


def _flip(data: bytes, at: int, piece: bytes) -> bytes:
    bit = 1 << (len(piece) % 8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if at < len(data) else data


def _cut(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at]


def _drop(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + data[at + 1 + len(piece) :]


def _double(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + data[max(0, at - 20) :]


_EDITS: Final = (_insert, _overwrite, _flip, _cut, _drop, _double)
