"""Records on disk: only whole and undamaged ones of this very segment are believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.aof import format as fmt
from disque.core.ready import Record

SEED = fmt.seed_of(7, 12345)
RECORDS = [
    Record(
        "job", (b"D-1", (b"q", 5, {b"k": b"v"}), b"body" * 9, ("node",), {"node": (1, 2)}, None)
    ),
    Record("dispatch", (b"D-1", 3)),
    Record("gone", (b"D-1",)),
    Record("end", ()),
]


def framed(record: Record, seed: int = SEED) -> bytes:
    payload = fmt.encode(record)
    return fmt.head(payload, seed) + payload


def segment(*records: Record, seed: int = SEED) -> bytes:
    return fmt.MAGIC + b"".join([framed(each, seed) for each in records])


def read(data: bytes, seed: int = SEED) -> tuple[list[Record], list[tuple[int, int]]]:
    found = fmt.scan(data, seed)
    records = [fmt.record_at(data, offset) for offset in found.offsets]
    return records, [(damage.start, damage.end) for damage in found.damages]


def test_records_come_back_as_they_were() -> None:
    assert read(segment(*RECORDS)) == (RECORDS, [])


fields = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: (
        st.lists(inner).map(tuple) | st.dictionaries(st.binary() | st.text(max_size=5), inner)
    ),
)


@given(st.lists(st.lists(fields, max_size=20).map(tuple), max_size=5))
def test_any_fields_come_back(rows: list[tuple[object, ...]]) -> None:
    records = [Record("kind", row) for row in rows]
    assert read(segment(*records)) == (records, [])


def test_a_prefix_gives_the_whole_records_in_it_and_one_torn_end() -> None:
    data = segment(*RECORDS)
    ends = [len(segment(*RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    for cut in range(len(data) + 1):
        whole = [end for end in ends if end <= cut]
        expected = RECORDS[: max(len(whole) - 1, 0)]
        good = whole[-1] if whole else 0
        assert read(data[:cut]) == (expected, [(good, cut)] if good < cut else [])


def test_a_flipped_bit_costs_the_record_that_it_is_in_and_no_other() -> None:
    data = segment(*RECORDS)
    bounds = [len(segment(*RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    for bit in range(len(fmt.MAGIC) * 8, len(data) * 8):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        index = next(i for i, end in enumerate(bounds[1:]) if bit // 8 < end)
        records, damages = read(bytes(bad))
        assert records == RECORDS[:index] + RECORDS[index + 1 :]
        assert damages == [(bounds[index], bounds[index + 1])]


@pytest.mark.parametrize("bit", range(64))
def test_a_damaged_magic_costs_itself(bit: int) -> None:
    bad = bytearray(segment(*RECORDS))
    bad[bit // 8] ^= 1 << bit % 8
    assert read(bytes(bad)) == (RECORDS, [(0, 8)])


@pytest.mark.parametrize("other", [fmt.seed_of(8, 12345), fmt.seed_of(7, 12346)])
def test_records_of_another_segment_or_log_are_never_believed(other: int) -> None:
    data = segment(RECORDS[0]) + framed(RECORDS[1], other) + framed(RECORDS[2])
    records, damages = read(data)
    assert records == [RECORDS[0], RECORDS[2]]
    assert len(damages) == 1


def test_a_body_that_holds_a_record_doesnt_speak_while_the_length_is_right() -> None:
    """Were the salt known, the length of the damaged record still leads over its body."""
    planted = Record("job", (b"D-2", framed(Record("flush", ()))))
    bad = bytearray(segment(planted, *RECORDS))
    bad[len(fmt.MAGIC) + fmt.HEAD_BYTES + 6] ^= 1
    assert read(bytes(bad))[0] == RECORDS


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_garbage_between_records_is_stepped_over(before: bytes, between: bytes) -> None:
    data = fmt.MAGIC + before + framed(RECORDS[0]) + between + framed(RECORDS[1])
    records, damages = read(data)
    assert records == RECORDS[:2]
    assert sum([end - start for start, end in damages]) == len(before) + len(between)


def test_zeros_are_no_records() -> None:
    data = segment(*RECORDS)
    assert read(data + bytes(50)) == (RECORDS, [(len(data), len(data) + 50)])


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x90", b"\x91\x05", b"\xa3job", b"\x91\xa1x\x00"]
)
def test_a_payload_that_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        fmt.decode(payload)


def test_ids_in_damaged_bytes_can_be_guessed() -> None:
    data = b"\x00\x01" + fmt.encode(RECORDS[0])[:30] + fmt.encode(RECORDS[1])
    assert fmt.job_ids(data) == [b"D-1"]
