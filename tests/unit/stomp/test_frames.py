"""Frames: the grammar of three versions, any split, any junk, and every limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.errors import LimitError, TlsError
from disque.stomp.frames import (
    Decoder,
    Frame,
    FrameError,
    FrameLimits,
    Version,
    encode,
    escape,
    unescape,
)

VERSIONS = [Version.V10, Version.V11, Version.V12]
# What a header of each version can say: 1.0 has no escapes, 1.1 none for CR.
SAYABLE = {
    Version.V10: st.binary(max_size=20).map(
        lambda raw: raw.translate(None, b"\r\n:\0").strip() or b"x"
    ),
    Version.V11: st.binary(min_size=1, max_size=20).map(
        lambda raw: raw.translate(None, b"\r\0") or b"x"
    ),
    Version.V12: st.binary(min_size=1, max_size=20).map(
        lambda raw: raw.translate(None, b"\0") or b"x"
    ),
}
COMMANDS = st.sampled_from([b"SEND", b"ACK", b"MESSAGE", b"SUBSCRIBE"])


def frames_of(version: Version) -> st.SearchStrategy[Frame]:
    headers = st.dictionaries(
        SAYABLE[version].filter(lambda name: name != b"content-length"),
        SAYABLE[version],
        max_size=5,
    )
    return st.builds(Frame, COMMANDS, headers, st.binary(max_size=60))


def decoder(version: Version = Version.V12, **limits: int) -> Decoder:
    made = Decoder(FrameLimits(**limits))
    made.version = version
    return made


def decode(data: bytes, version: Version = Version.V12) -> list[Frame]:
    made = decoder(version)
    made.feed(data)
    return made.take()


def without_length(frame: Frame) -> Frame:
    headers = {k: v for k, v in frame.headers.items() if k != b"content-length"}
    return Frame(frame.command, headers, frame.body)


@given(st.data(), st.sampled_from(VERSIONS))
def test_what_is_encoded_is_decoded_however_it_is_split(
    data: st.DataObject, version: Version
) -> None:
    frames = data.draw(st.lists(frames_of(version), max_size=4))
    between = data.draw(
        st.lists(st.sampled_from([b"", b"\n", b"\r\n", b"\n\n\n"]), min_size=4, max_size=4)
    )
    wire = b"".join(encode(f, version) + e for f, e in zip(frames, between, strict=False))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    made = decoder(version)
    taken: list[Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        made.feed(wire[start:end])
        taken += made.take(data.draw(st.integers(1, 3)))
    while more := made.take():
        taken += more
    assert [without_length(each) for each in taken] == frames
    made.take()
    assert made.pending_bytes == 0


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from([Version.UNKNOWN, *VERSIONS]))
def test_junk_is_frames_or_one_error_whatever_the_split(
    pieces: list[bytes], version: Version
) -> None:
    whole, cut = decoder(version), decoder(version)
    whole.feed(b"".join(pieces))
    outcomes = []
    for made, fed in ((whole, [b""]), (cut, pieces)):
        taken: list[Frame] = []
        error = ""
        for piece in fed:
            if made.error is None:
                made.feed(piece)
                try:
                    while more := made.take():
                        taken += more
                        made.version = version
                except FrameError as complaint:
                    error = str(complaint)
        outcomes.append((taken, error))
    assert outcomes[0] == outcomes[1]


HEADED = st.text("SEND\n\r\0:\\rnct a0123-length", max_size=60).map(str.encode)


@given(HEADED, st.integers(0, 60), st.sampled_from(VERSIONS))
def test_junk_of_the_grammars_own_letters_too(data: bytes, cut: int, version: Version) -> None:
    test_junk_is_frames_or_one_error_whatever_the_split.hypothesis.inner_test(  # type: ignore[attr-defined]
        [data[:cut], data[cut:]], version
    )


def test_byte_by_byte() -> None:
    wire = b"\r\n\nSEND\r\ndestination:/queue/a\\cb\r\ncontent-length:3\r\n\r\na\0b\0\n\nACK\nid:1\n\n\0\n"
    made = decoder()
    taken = []
    for index in range(len(wire)):
        made.feed(wire[index : index + 1])
        taken += made.take()
    assert taken == [
        Frame(b"SEND", {b"destination": b"/queue/a:b", b"content-length": b"3"}, b"a\0b"),
        Frame(b"ACK", {b"id": b"1"}),
    ]
    assert made.pending_bytes == 0


def test_a_body_without_length_ends_at_the_first_nul() -> None:
    assert decode(b"SEND\nd:q\n\nbody\nmore\0\n") == [Frame(b"SEND", {b"d": b"q"}, b"body\nmore")]


def test_a_body_with_length_may_have_nuls() -> None:
    assert decode(b"SEND\ncontent-length:2\n\n\0\0\0")[0].body == b"\0\0"


def test_of_a_repeated_header_the_first_counts() -> None:
    assert decode(b"ACK\nid:1\nid:2\n\n\0")[0].headers == {b"id": b"1"}


def test_only_1_0_trims() -> None:
    wire = b"ACK\n id : 1 \n\n\0"
    assert decode(wire, Version.V10)[0].headers == {b"id": b"1"}
    assert decode(wire, Version.V11)[0].headers == {b" id ": b" 1 "}
    assert decode(wire, Version.V12)[0].headers == {b" id ": b" 1 "}


def test_only_1_2_knows_an_escaped_cr() -> None:
    wire = b"ACK\nid:a\\r\\n\\c\\\\\n\n\0"
    assert decode(wire, Version.V12)[0].headers == {b"id": b"a\r\n:\\"}
    assert decode(wire, Version.V10)[0].headers == {b"id": b"a\\r\\n\\c\\\\"}
    with pytest.raises(FrameError, match=r"unknown escape '\\\\r'"):
        decode(wire, Version.V11)


@pytest.mark.parametrize("version", [Version.V11, Version.V12])
@pytest.mark.parametrize("raw", [rb"\t", rb"end\\\\"[:-1], rb"\x"])
def test_an_unknown_escape_is_fatal(raw: bytes, version: Version) -> None:
    with pytest.raises(FrameError, match="unknown escape"):
        unescape(raw, version)


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
def test_what_opens_a_connection_is_never_unescaped_and_ends_a_take(command: bytes) -> None:
    made = decoder(Version.V12)
    made.feed(command + b"\npasscode:a\\cb:c\n\n\0ACK\nid:\\c\n\n\0")
    assert made.take() == [Frame(command, {b"passcode": b"a\\cb:c"})]
    made.version = Version.V11
    assert made.take() == [Frame(b"ACK", {b"id": b":"})]


def test_connected_is_never_escaped() -> None:
    frame = Frame(b"CONNECTED", {b"server": b"a:b\\"})
    assert encode(frame, Version.V12) == b"CONNECTED\nserver:a:b\\\n\n\0"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_header_never_becomes_two(version: Version) -> None:
    wire = encode(Frame(b"MESSAGE", {b"a": b"1\r\nb:2\0"}), version)
    assert wire.count(b"\n") == 3
    assert wire.count(b"\0") == 1
    assert b"b" not in decode(wire, version)[0].headers


def test_what_has_no_spelling_becomes_a_space() -> None:
    assert [escape(b"a\rb\nc:", each) for each in VERSIONS] == [
        b"a b c:",
        b"a b\\nc\\c",
        b"a\\rb\\nc\\c",
    ]


WRONG = [
    (b"SEND\nno colon\n\n\0", "not a header: 'no colon'"),
    (b"SEND\n:empty name\n\n\0", "not a header"),
    (b"SEND\ncontent-length:x\n\n\0", "content-length must be a number of bytes, got 'x'"),
    (b"SEND\ncontent-length:-1\n\n\0", "content-length must be"),
    (b"SEND\ncontent-length:1\n\nab\0", "no NUL after the 1 bytes of the body"),
    (b"SEND\0\n\n", "a NUL before the blank line"),
    (b"SEND\nx:y\n\0", "a NUL before the blank line"),
]


@pytest.mark.parametrize(("wire", "text"), WRONG)
def test_what_is_no_frame_is_told(wire: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        decode(wire)


def test_tls_is_known_as_such() -> None:
    made = decoder()
    made.feed(b"\x16\x03\x01")
    assert made.take() == []
    made.feed(b"\x02\x00")
    with pytest.raises(TlsError):
        made.take()


def test_frames_before_an_error_come_first() -> None:
    made = decoder()
    made.feed(b"ACK\nid:1\n\n\0bad\0\n\nACK\nid:2\n\n\0")
    assert made.take() == [Frame(b"ACK", {b"id": b"1"})]
    assert made.error is not None
    with pytest.raises(FrameError):
        made.take()


def test_limits() -> None:
    made = decoder(head_bytes_max=20)
    made.feed(b"SEND\nx:" + b"y" * 13 + b"\n\n\0")
    assert len(made.take()) == 1
    made.feed(b"SEND\nx:" + b"y" * 14)
    with pytest.raises(FrameError, match="more than 20 bytes"):
        made.take()
    made = decoder(headers_max=2)
    made.feed(b"ACK\na:1\nb:2\nc:3\n\n\0")
    with pytest.raises(FrameError, match="3 headers, the limit is 2"):
        made.take()
    for wire in (b"SEND\n\n12345", b"SEND\ncontent-length:5\n\n"):
        made = decoder(body_bytes_max=4)
        made.feed(wire)
        with pytest.raises(LimitError, match=r"the body takes more than 4 bytes \(body-max\)"):
            made.take()


def test_before_connect_bodies_are_small() -> None:
    made = Decoder(FrameLimits(body_bytes_first=4))
    made.feed(b"SEND\ncontent-length:5\n\n")
    with pytest.raises(LimitError, match=r"more than 4 bytes \(the limit before CONNECT\)"):
        made.take()


def test_a_large_body_in_small_pieces_takes_linear_time() -> None:
    made = decoder()
    made.feed(b"SEND\n\n")
    piece = b"x" * 4096
    for _ in range(4096):
        made.feed(piece)
        assert made.take() == []
    made.feed(b"\0")
    (frame,) = made.take()
    assert len(frame.body) == 4096 * 4096


def test_long_heads_are_taken_a_few_at_a_time() -> None:
    made = decoder()
    made.feed(b"SEND\n%b:x\n\n\0" % (b"\\n" * 30_000) * 10)
    sizes = []
    while taken := made.take():
        sizes.append(len(taken))
    assert sizes == [2] * 5
