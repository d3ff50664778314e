"""The same commands however the bytes are cut; errors in Disque's words, and no others."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disque.errors import ProtocolError
from disque.resp import decoder as decoder_module
from disque.resp.decoder import ARGUMENTS_A_TAKE, LINE_BYTES_MAX, BufferLimitError, Decoder
from tests.unit.resp.work import Work, with_counted_bytes

ADDJOB = [b"ADDJOB", b"q", b"body", b"0"]


def spell(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def run(
    pieces: list[bytes], *, count_max: int = 10_000, bulk_bytes_max: int = 512 << 20
) -> tuple[list[list[bytes]], str | None]:
    """Feed piece by piece, taking all after each; the commands, and the error that ended it."""
    decoder = Decoder(bulk_bytes_max=bulk_bytes_max)
    commands: list[list[bytes]] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (batch := decoder.take(count_max)) or decoder.has_more:
                commands += batch
    except ProtocolError as error:
        return commands, str(error)
    return commands, None


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces; the places are taken modulo its length."""
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(marks)]


words = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"", b"\r\n", b"*1\r\n", b"a\r\n$3\r\nb", b"x" * 1500, b"y" * 40_000]),
    ),
    min_size=1,
    max_size=70,
)
inline = st.lists(st.sampled_from([b"PING", b"a", b"*x", b"0"]), min_size=1, max_size=4).map(
    lambda ws: (b" ".join([b"I", *ws]) + b"\r\n", [[b"I", *ws]])
)
items = st.one_of(
    words.map(lambda ws: (spell(ws), [ws])),
    inline,
    st.sampled_from([(b"\r\n", []), (b"\n", []), (b"*0\r\n", []), (b"*-1\r\n", [])]),
    st.just((b"*2\r\n$1\r\naxy$0\r\n\r\n", [[b"a", b""]])),  # any two bytes end an argument
)
places = st.lists(st.integers(min_value=0, max_value=1 << 20), max_size=12)


@given(st.lists(items, max_size=12), places, st.integers(1, 5))
def test_any_cut_of_a_stream_gives_the_same_commands(
    stream: list[tuple[bytes, list[list[bytes]]]], where: list[int], count_max: int
) -> None:
    data = b"".join(piece for piece, _ in stream)
    expected = [command for _, commands in stream for command in commands]
    assert run([data]) == (expected, None)
    assert run(cut(data, where)) == (expected, None)
    assert run(cut(data, where), count_max=count_max) == (expected, None)


@given(st.lists(words, min_size=1, max_size=3).map(lambda c: b"".join(map(spell, c))))
def test_bytes_that_come_one_at_a_time_give_the_same_commands(data: bytes) -> None:
    data = data[:3000]
    assert run([data[at : at + 1] for at in range(len(data))]) == run([data])


protocolish = st.lists(
    st.sampled_from(
        [b"*", b"$", b"\r\n", b"\r", b"\n", b"1", b"2", b"-", b"a", b'"', b"'", b" ", b"\0"]
    )
    | st.binary(max_size=3)
).map(b"".join)


@given(protocolish, places)
@example(b"*1\r\nx\r\n", [])
@example(b"*1\r\n$\r\n", [3])
def test_junk_raises_protocol_errors_alone_and_alike_for_all_cuts(
    junk: bytes, where: list[int]
) -> None:
    assert run(cut(junk, where)) == run([junk])


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (
            b"*1048577\r\n",
            "invalid multibulk length: 1048577 arguments, arguments-max is 1048576",
        ),
        (b"*9223372036854775808\r\n", "invalid multibulk length"),
        (b"*" + b"9" * 5000 + b"\r\n", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n\r\n", "expected '$', got '\r'"),
        (b"*1\r\n\xff\r\n", "expected '$', got '\udcff'"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (
            b"*1\r\n$536870913\r\n",
            "invalid bulk length: 536870913 bytes, body-max is 536870912",
        ),
        (b"*1\r\n$1e3\r\n", "invalid bulk length"),
        (b"*1\r\n$ 1\r\n", "invalid bulk length"),
        (b'ECHO "a\r\n', "unbalanced quotes in request"),
        (b'ECHO "a"b\r\n', "unbalanced quotes in request"),
        (b"a" * (LINE_BYTES_MAX + 1), "too big inline request"),
        (b"*" + b"1" * LINE_BYTES_MAX, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * LINE_BYTES_MAX, "too big bulk count string"),
    ],
)
def test_each_protocol_error_has_disques_text(stream: bytes, text: str) -> None:
    assert run([stream]) == ([], f"Protocol error: {text}")


def test_limits_themselves_are_allowed() -> None:
    line = b"a" * (LINE_BYTES_MAX - 1)
    assert run([line + b"\r", b"\n"]) == ([[line]], None)
    assert run([b"*1048576\r\n"]) == ([], None)
    assert run([b"*1\r\n$536870912\r\n"]) == ([], None)


def test_commands_before_an_error_are_given_first() -> None:
    decoder = Decoder()
    decoder.feed(spell(ADDJOB) * 2 + b"PING\r\n*1\r\nx\r\n" + spell(ADDJOB))
    assert decoder.take() == [ADDJOB, ADDJOB, [b"PING"]]
    assert str(decoder.error) == "Protocol error: expected '$', got 'x'"
    with pytest.raises(ProtocolError, match="expected") as raised:
        decoder.take()
    assert raised.value is decoder.error
    decoder.feed(spell(ADDJOB))  # harmless: the connection is being closed
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize("size", [6, 2000, 50_000])
def test_the_bulk_limit_holds_on_every_path(size: int) -> None:
    stream = spell([b"x" * size])
    assert run([stream], bulk_bytes_max=size) == ([[b"x" * size]], None)
    text = f"Protocol error: invalid bulk length: {size} bytes, body-max is {size - 1}"
    assert run([stream], bulk_bytes_max=size - 1) == ([], text)


def test_pending_bytes_counts_what_has_not_come_out() -> None:
    stream = spell([b"ADDJOB", b"q", b"b" * 100_000, b"0"])
    for end in (0, 3, 20, 50, 50_000, 100_030, len(stream) - 1):
        decoder = Decoder()
        decoder.feed(stream[:end])
        assert decoder.pending_bytes == end
        assert decoder.take() == []
        assert 0 <= end - decoder.pending_bytes <= 60  # headers already read aren't kept
        decoder.feed(memoryview(stream)[end:])
        assert decoder.take() == [[b"ADDJOB", b"q", b"b" * 100_000, b"0"]]
        assert decoder.pending_bytes == 0


def test_more_than_the_buffer_limit_ends_the_connection() -> None:
    decoder = Decoder(buffer_bytes_max=1000)
    decoder.feed(b"*2\r\n$1\r\na\r\n$900\r\n" + b"x" * 800)
    assert decoder.take() == []
    with pytest.raises(BufferLimitError, match=r"\d+ bytes pending, the limit is 1000"):
        decoder.feed(b"x" * 300)
    assert decoder.pending_bytes == 0


def test_a_single_read_is_bounded_as_many_are() -> None:
    decoder = Decoder(buffer_bytes_max=1000)
    with pytest.raises(BufferLimitError, match="1001 bytes pending, the limit is 1000"):
        decoder.feed(b"x" * 1001)
    assert decoder.pending_bytes == 0


def test_a_client_that_is_not_taken_from_keeps_its_input_as_bytes() -> None:
    decoder = Decoder()
    for _ in range(1000):
        decoder.feed(spell(ADDJOB))
    assert decoder.pending_bytes == 1000 * len(spell(ADDJOB))
    assert decoder.take(600) == [ADDJOB] * 600
    decoder.feed(bytearray(spell(ADDJOB)))
    assert decoder.take(600) == [ADDJOB] * 401
    assert decoder.pending_bytes == 0


def test_what_was_fed_as_bytearray_may_change_afterwards() -> None:
    decoder = Decoder()
    buffer = bytearray(spell(ADDJOB))
    decoder.feed(buffer)
    buffer[:] = b"x" * len(buffer)
    assert decoder.take() == [ADDJOB]


def _work(stream: bytes, step: int) -> int:
    """Bytes copied, split and looked through to take a stream that comes in such pieces."""
    work, count = Work(), 0
    counted = with_counted_bytes(decoder_module, work).Decoder()
    work.units = 0
    for at in range(0, len(stream), step):
        counted.feed(stream[at : at + step])
        while batch := counted.take():
            count += len(batch)
    assert count
    return work.units


@pytest.mark.parametrize(
    ("small", "factor", "step"),
    [
        (spell([b"x" * (1 << 20)]), 8, 8192),  # a large body
        (spell([b"ab"] * 5_000), 8, 4096),  # many arguments
        (spell([b"a\r\n" * 20]) * 500, 16, 1 << 20),  # bodies that split() can't handle
        (b"*0\r\nPING\r\n" * 3_000, 8, 1 << 20),  # odd forms in one long backlog
        (b"*1\r\n$1\r\nxyz" * 3_000, 8, 1 << 20),  # CRLF never where split() looks for it
    ],
    ids=["body", "arguments", "crlf", "odd", "unaligned"],
)
def test_work_grows_with_the_bytes_not_with_their_square(
    small: bytes, factor: int, step: int
) -> None:
    if small.startswith(b"*5000"):
        large = spell([b"ab"] * 5_000 * factor)
    elif small.startswith(b"*1\r\n$1048576"):
        large = spell([b"x" * (factor << 20)])
    else:
        large = small * factor
    assert _work(large, step) < 1.5 * factor * _work(small, step)  # quadratic: factor times as much


@pytest.mark.parametrize("last", [b"a", b"\r\n", b"x" * 40_000])
def test_a_command_of_very_many_arguments_is_taken_in_several_calls(last: bytes) -> None:
    words = [last] * (2 * ARGUMENTS_A_TAKE + 1)
    decoder = Decoder()
    decoder.feed(spell(words) + spell(ADDJOB))
    calls = []
    while not calls or decoder.has_more:
        calls.append(decoder.take())
    assert [len(commands) for commands in calls] == [0, 0, 2]
    assert calls[-1] == [words, ADDJOB]
    assert decoder.take() == []
    assert run([spell(words)[:-1], b"\n"]) == ([words], None)


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \n", b"*0\r\n", b"*-1\r\n"])
def test_empty_commands_hold_up_nobody(empty: bytes) -> None:
    decoder = Decoder()
    decoder.feed(empty * 20_000 + b"PING\n")
    calls = 0
    while not (taken := decoder.take()):
        assert decoder.has_more
        calls += 1
    assert taken == [[b"PING"]]
    assert calls >= 20_000 // ARGUMENTS_A_TAKE
    assert decoder.take() == []
    assert not decoder.has_more


@pytest.mark.parametrize("word", [b"x" * 60_000, b"\\x41" * 15_000, b" " * 60_000])
def test_long_lines_with_quotes_are_taken_one_at_a_time(word: bytes) -> None:
    decoder = Decoder()
    decoder.feed(b'a "%b"\n' % word * 16)
    sizes = []
    while taken := decoder.take():
        sizes.append(len(taken))
    assert sizes == [1] * 16


@pytest.mark.parametrize("size", [10, 40_000])
def test_an_argument_counts_once_its_line_end_has_come(size: int) -> None:
    stream = spell([b"a", b"x" * size])
    decoder = Decoder()
    for piece in (stream[:-2], stream[-2:-1]):
        decoder.feed(piece)
        assert decoder.take() == []
    decoder.feed(stream[-1:])
    assert decoder.take() == [[b"a", b"x" * size]]


def test_limits_that_shrink_hold_for_a_command_like_the_one_before() -> None:
    decoder = Decoder()
    decoder.feed(spell(ADDJOB))
    assert decoder.take() == [ADDJOB]
    longest = max(map(len, ADDJOB))
    decoder.set_limits(bulk_bytes_max=longest - 1, arguments_max=len(ADDJOB))
    decoder.feed(spell(ADDJOB))
    with pytest.raises(ProtocolError, match=f"{longest} bytes, body-max is {longest - 1}"):
        decoder.take()


@pytest.mark.parametrize(
    "odd",
    [
        spell([b"ADDJOB", b"q", b"body", b"1"]),
        spell([b"ADDJOB", b"r", b"body", b"0"]),
        spell([b"ADDJOB", b"q", b"longer body", b"1"]),
        spell([*ADDJOB, b"x"]),
        spell(ADDJOB).replace(b"$4", b"$04"),
        spell(ADDJOB).replace(b"$4", b"$3"),
        spell(ADDJOB)[:-1] + b"\r",
        spell(ADDJOB)[:-4],
        b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$-1\r\n",
    ],
)
def test_what_is_nearly_like_a_pattern_is_read_as_it_is(odd: bytes) -> None:
    expected, error = run([odd])
    assert run([spell(ADDJOB), spell(ADDJOB), spell(ADDJOB) + odd]) == (
        [ADDJOB] * 3 + expected,
        error,
    )


def test_limits_hold_for_commands_of_a_pattern() -> None:
    decoder = Decoder(bulk_bytes_max=50)
    for _ in range(3):
        decoder.feed(spell(ADDJOB))
        assert decoder.take() == [ADDJOB]
    decoder.set_limits(bulk_bytes_max=50, arguments_max=3)
    decoder.feed(spell(ADDJOB))
    with pytest.raises(ProtocolError, match="4 arguments, arguments-max is 3"):
        decoder.take()
    stream = spell(ADDJOB) * 2 + spell([b"ADDJOB", b"q", b"b" * 51, b"0"])
    text = "Protocol error: invalid bulk length: 51 bytes, body-max is 50"
    assert run([spell(ADDJOB), stream], bulk_bytes_max=50) == ([ADDJOB] * 3, text)


def test_a_length_that_lies_is_found_out_behind_a_command_that_was_like_it() -> None:
    ping, lie = b"*1\r\n$4\r\nPING\r\n", b"*1\r\n$3\r\nPING\r\n"
    # As in C, two bytes behind a body are skipped unseen
    assert run([ping, lie]) == ([[b"PING"], [b"PIN"]], None)
    assert run([lie, ping]) == ([[b"PIN"], [b"PING"]], None)


# What patterns are made of: commands that differ in one word of any length, now and then in another one or in a lie
_varied = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r\n", b"b\r\n$1\r\n0", b"x" * 99, b"y" * 1_100]),
)
_like = st.builds(
    lambda name, queue, body: spell([name, queue, body, b"0", b"RETRY", b"1"]),
    st.sampled_from([b"ADDJOB", b"addjob", b"ACKJOB"]),
    st.sampled_from([b"q", b"queue", b"q" * 60]),
    _varied,
)
_lie = st.builds(
    lambda body, length: (
        b"*4\r\n$6\r\nADDJOB\r\n$1\r\nq\r\n$%b\r\n%b\r\n$1\r\n0\r\n" % (length, body)
    ),
    _varied,
    st.sampled_from([b"1", b"01", b"+1", b"-1", b"12", b"99", b"1100"]),
)


@given(st.lists(_like | _lie | st.sampled_from([b"PING\r\n", b"*0\r\n"]), max_size=14), places)
def test_commands_like_those_before_them_are_read_as_any_others(
    stream: list[bytes], where: list[int]
) -> None:
    data = b"".join(stream)
    reference = run([data[at : at + 1] for at in range(len(data))])
    assert run([data]) == reference
    assert run(cut(data, where)) == reference
    assert run(stream) == reference


def test_what_is_the_same_in_commands_has_the_same_words() -> None:
    stream = b"".join(spell([b"ADDJOB", b"queue", b"body" * size, b"0"]) for size in range(5, 9))
    decoder = Decoder()
    taken = []
    for _ in range(3):
        decoder.feed(stream)
        taken += decoder.take()
    assert [len(command[2]) for command in taken] == [20, 24, 28, 32] * 3
    assert len({id(command[1]) for command in taken[-4:]}) == 1
    assert len({id(command[2]) for command in taken[-4:]}) == 4


def test_a_pattern_is_found_after_commands_that_had_none() -> None:
    decoder = Decoder()
    for number in range(200):
        words = [b"ADDJOB", b"q%d" % number, b"a longer body", b"0"]
        decoder.feed(spell(words))
        assert decoder.take() == [words]
    assert not decoder._patterns
    for _ in range(2 * 64 + 2):
        decoder.feed(spell(ADDJOB))
        assert decoder.take() == [ADDJOB]
    assert decoder._patterns


def test_patterns_are_few_and_small() -> None:
    decoder = Decoder()
    for number in range(100):
        decoder.feed(
            spell([b"PUBLISH", b"%d" % number, b"x" * 100]) * 2 + spell([b"%d" % number, b"x"]) * 2
        )
        decoder.feed(spell([b"q" * 300, b"x" * 301]) + spell([b"x"] * 200))
        decoder.take()
        decoder.take()
    assert len(decoder._seen) <= 4
    assert len(decoder._patterns) <= 4
    kept = [word for words in decoder._seen.values() for word in words]
    assert sum(map(len, kept)) < 1_024
    assert len(kept) <= 4 * 32
