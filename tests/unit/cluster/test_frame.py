"""Frames: cut anywhere, joined anyhow, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import RemoteProtocolError
from cluster.frame import FrameDecoder, encode_frame, join_frames


def drain(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


def test_length_is_four_bytes_big_endian():
    assert encode_frame(b"abc") == b"\x00\x00\x00\x03abc"


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 20), min_size=1))
def test_bodies_survive_any_cut(bodies, cuts):
    stream = join_frames(bodies)
    assert stream == b"".join(map(encode_frame, bodies))
    decoder = FrameDecoder(50)
    found = []
    position = step = 0
    while position < len(stream):
        size = cuts[step % len(cuts)]
        decoder.feed(stream[position : position + size])
        found += drain(decoder)
        position += size
        step += 1
    assert found == bodies


def test_length_over_the_limit_is_refused_before_its_body_comes():
    decoder = FrameDecoder(4096)
    decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(RemoteProtocolError, match="4294967295 bytes announced, at most 4096"):
        decoder.next_frame()


def test_limit_can_be_raised_between_two_frames_of_one_read():
    decoder = FrameDecoder(4)
    decoder.feed(join_frames([b"1234", b"12345"]))
    assert decoder.next_frame() == b"1234"
    decoder.bytes_max = 5
    assert decoder.next_frame() == b"12345"
