"""Decoder: a client's bytes in, commands out, whatever way the network cut them.

It knows the framing of reference 0.1 and its limits, nothing of sockets or of what a command
means. The one idea: a window of the buffer is split at CRLF in one call, and a command whose parts
agree with their announced lengths is taken from that list by slicing. Only what doesn't fit that
mould (half a command, CRLF inside a body, inline, errors) and what is long goes through the exact
path, byte for byte. All paths accept the same language.

A connection says the same again and again. Of a command that came twice but for its longest word a *pattern* is kept,
and the next one is compared with that in one go: nothing is split, and what is the same has the words of the first.

What is kept for an unfinished command is bounded by `buffer_bytes_max`. A large body isn't joined
until it is whole, so it is copied once, whatever the sizes of the reads.
"""

from __future__ import annotations

from typing import TypeVar

from disque.errors import LimitError, ProtocolError, TlsError
from disque.resp.inline import split_words

_Known = TypeVar("_Known")

BULK_BYTES_MAX = 512 << 20  # one argument, so the true limit of a job's body; Disque's
BUFFER_BYTES_MAX = 1 << 30  # all that one connection may have pending; Disque's
LINE_BYTES_MAX = 64 << 10  # an inline command, or a header line; Disque's
MULTIBULK_COUNT_MAX = 1 << 20  # arguments of a command; Disque's
COMMANDS_A_TAKE = 10_000  # commands of one take(): bounds the memory of a long backlog
# Taken the exact way, 2 us each: others have their turn amid a long command
ARGUMENTS_A_TAKE = 5_000

_WINDOW_BYTES = 256 << 10  # split at a time: bounds what a command outside the mould costs
_WINDOW_BYTES_WARY = 8 << 10  # ... after such commands came
_LONG_BYTES = 4 << 10  # longer commands are taken the exact way, which skips bodies unseen
_LARGE_BODY_BYTES = 32 << 10  # from here on, a body is collected in pieces
_PIECE_BYTES_MIN = 16 << 10  # smaller reads are put together: an object costs 40 bytes
_DETOUR_MAX = 64  # commands taken the exact way before the fast one is tried again
_ARGUMENTS_MAX = 1_024  # of a command of the fast path
_INLINE_BYTES_AN_ARGUMENT = 8  # of a line: quotes take as long
_PATTERNS_MAX = 4  # of a connection
_PATTERN_WORDS_MAX = 32
_PATTERN_BYTES_MAX = 256  # of the words that stay the same
_KEY_BYTES = 16  # of a command, that tell its pattern: `*6 $6 ADDJOB` with the line ends
_UNLIKE_MAX = 64  # commands (pipelined: reads) from one look for a pattern to the next
_HEADER_BYTES_MAX = 24
_SHORT_BYTES = 1_024  # lengths whose header is at hand

_NO_COUNT = "Protocol error: invalid multibulk length"  # Disque's texts
_NO_LENGTH = "Protocol error: invalid bulk length"
_STAR = ord("*")
_COUNTS = {b"*%d" % count: count for count in range(1, _ARGUMENTS_MAX + 1)}


class BufferLimitError(ProtocolError):
    """A connection has more pending than it may: close it without a reply, and log that."""


class _BulkHeaders(dict[int, bytes]):
    """Length -> canonical header; long ones are spelled at each use."""

    __slots__ = ()

    def __missing__(self, length: int) -> bytes:
        return b"$%d" % length


class _Pattern:
    """Commands that differ in one word: where it is, and all bytes around it."""

    __slots__ = ("head", "lead", "length", "tail", "varied", "words")

    def __init__(self, words: list[bytes], varied: int) -> None:
        """`words` with an empty one where they differ."""
        spelled = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self.words = words
        self.varied = varied
        self.lead = b"*%d\r\n%b$" % (len(words), b"".join(spelled[:varied]))
        self.tail = b"\r\n" + b"".join(spelled[varied + 1 :])
        # Of the last one: `lead` with the length behind it
        self.head = self.lead + b"0\r\n"
        self.length = 0


_header_of = _BulkHeaders((length, b"$%d" % length) for length in range(_SHORT_BYTES)).__getitem__


class Decoder:
    """Feed it what was read, take what is complete.

    feed() and take() may be called in any rhythm: a connection whose client is blocked is fed and
    not taken from, and its input stays raw bytes, counted in `pending_bytes`. Once `error` is set,
    nothing more will come: reply with it after the commands that came before it, then close.
    """

    __slots__ = (
        "_allowance",
        "_arguments",
        "_arguments_max",
        "_body",
        "_body_left",
        "_buffer_max",
        "_bulk",
        "_bulk_max",
        "_data",
        "_detour",
        "_detour_length",
        "_fed",
        "_fed_bytes",
        "_headers",
        "_held_bytes",
        "_is_before_auth",
        "_left",
        "_lengths",
        "_needed",
        "_patterns",
        "_position",
        "_seen",
        "_to_pass",
        "_trailer",
        "_unlike",
        "error",
        "has_more",
        "pending_bytes",
    )

    def __init__(
        self,
        *,
        bulk_bytes_max: int = BULK_BYTES_MAX,
        arguments_max: int = MULTIBULK_COUNT_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.error: ProtocolError | None = None
        self.has_more = False  # the last take() ended amid a long command, not for want of bytes
        # that were fed and haven't come out as commands, half a command included
        self.pending_bytes = 0
        self._allowance = 0  # of ARGUMENTS_A_TAKE, what this take() has left
        # Of the last command's arguments: those of a connection are alike
        self._lengths: list[int] = []
        self._headers: list[bytes] = []
        self._unlike = 0  # commands to let pass before a pattern is looked for again
        self._to_pass = 0
        # By the first bytes of a command: the words of the last one but the longest, and the pattern
        self._seen: dict[bytes, list[bytes]] = {}
        self._patterns: dict[bytes, _Pattern] = {}
        self.set_limits(bulk_bytes_max=bulk_bytes_max, arguments_max=arguments_max)
        self._buffer_max = buffer_bytes_max
        self._data = b""  # being parsed, from _position on
        self._position = 0
        self._fed: list[bytes | bytearray] = []  # not looked at yet
        self._fed_bytes = 0
        self._needed = 0  # parsing again makes no sense before so many bytes are at hand
        # The multibulk command in progress:
        self._left = 0  # arguments that aren't complete
        self._arguments: list[bytes] = []
        self._bulk = -1  # length of the argument in progress, -1 before its header
        self._body: list[bytes | bytearray] = []  # pieces of a large argument
        self._body_left = 0  # bytes still to come of it
        self._trailer = 0  # bytes of the CRLF after it, still to come
        self._held_bytes = 0  # in _arguments and _body
        self._detour = 0  # commands to take the exact way
        self._detour_length = 1

    def set_limits(
        self, *, bulk_bytes_max: int, arguments_max: int, is_before_auth: bool = False
    ) -> None:
        """What one argument may take, and how many a command may have, from the next header on.

        `is_before_auth`: these aren't what `body-max` and `arguments-max` say, and errors don't name them so.
        """
        self._bulk_max = bulk_bytes_max
        self._arguments_max = arguments_max
        self._is_before_auth = is_before_auth
        self._seen, self._patterns = {}, {}

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what was read; BufferLimitError if more than `buffer_bytes_max` would be pending."""
        if self.error is not None:
            return
        size = len(data)
        is_first = not (self.pending_bytes or self._left)
        if is_first and isinstance(data, bytes) and size <= self._buffer_max:
            self._data, self._position = data, 0  # nothing comes before it
            self.pending_bytes = size
            return
        self.pending_bytes += size
        if self.pending_bytes > self._buffer_max:
            text = f"{self.pending_bytes} bytes pending, the limit is {self._buffer_max}"
            self._fail(BufferLimitError(text))
            raise BufferLimitError(text)
        self._fed_bytes += size
        _add_piece(self._fed, data if isinstance(data, bytes) else bytes(data))

    def take(self, count_max: int = COMMANDS_A_TAKE) -> list[list[bytes]]:
        """Give the next complete commands, at most `count_max`; none if there are none yet.

        An empty list means: feed more first, or just call again if `has_more`. A call that finds an error after some
        commands gives those and sets `error`; one that finds nothing else raises it (ProtocolError).
        """
        commands: list[list[bytes]] = []
        if self.error is None:
            try:
                self._parse(commands, count_max)
                rest = len(self._data) - self._position
                self.pending_bytes = rest + self._fed_bytes + self._held_bytes
            except ProtocolError as error:
                self._fail(error)
        if self.error is not None and not commands:
            raise self.error
        return commands

    def _fail(self, error: ProtocolError) -> None:
        self.error = error
        self.pending_bytes = 0
        self._data, self._position = b"", 0
        self._fed, self._fed_bytes = [], 0
        self._arguments, self._body, self._held_bytes = [], [], 0

    def _parse(self, commands: list[list[bytes]], count_max: int) -> None:
        self._allowance, self.has_more = ARGUMENTS_A_TAKE, False
        while len(commands) < count_max:
            if self._left == 0 and self._patterns:
                self._take_alike(commands, count_max)
                if len(commands) >= count_max:
                    return
            if self._left == 0 and self._position < len(self._data):
                if self._detour:
                    self._detour -= 1
                elif self._data[self._position] == _STAR:
                    self._take_canonical(commands, count_max)
                    if len(commands) >= count_max:
                        return
            is_out = self._left == 0 and self._position >= len(self._data)
            if is_out and not self._fed:
                self._data, self._position = b"", 0
                return
            if is_out or not self._take_exactly(commands):
                if self.has_more or not self._refill():
                    return

    def _refill(self) -> bool:
        """Put what was fed after what is left over; False if nothing new can be parsed yet."""
        if self._body_left:
            self._collect_body()
        rest = len(self._data) - self._position
        if not self._fed or rest + self._fed_bytes < self._needed:
            if self._position:  # let go of what is done
                self._data, self._position = self._data[self._position :], 0
            return False
        if rest or len(self._fed) > 1 or not isinstance(self._fed[0], bytes):
            self._data = b"".join((self._data[self._position :], *self._fed))
        else:
            self._data = self._fed[0]
        self._position = 0
        self._fed, self._fed_bytes, self._needed = [], 0, 0
        return True

    # By pattern

    def _take_alike(self, commands: list[list[bytes]], count_max: int) -> None:
        """Take commands while they are like some before them and whole."""
        data, position, patterns = self._data, self._position, self._patterns
        while len(commands) < count_max:
            pattern = patterns.get(data[position : position + _KEY_BYTES])
            if pattern is None:
                break
            start, length = position + len(pattern.head), pattern.length
            if data[position:start] != pattern.head:
                at = position + len(pattern.lead)
                end = data.find(b"\r\n", at, at + _HEADER_BYTES_MAX)
                if end < 0 or data[position:at] != pattern.lead:
                    break
                read = _integer(data[at:end])
                if read is None or not 0 <= read <= self._bulk_max:
                    break
                start, length = end + 2, read
                pattern.head, pattern.length = data[position:start], length
            end = start + length
            position_after = end + len(pattern.tail)
            if data[end:position_after] != pattern.tail:
                break
            words = pattern.words.copy()
            words[pattern.varied] = data[start:end]
            commands.append(words)
            position = position_after
        self._position = position

    def _learn(self, key: bytes, words: list[bytes]) -> None:
        """Keep the pattern of a command if the last one of this key had the same."""
        if self._to_pass or not 1 < len(words) <= _PATTERN_WORDS_MAX:
            self._to_pass -= self._to_pass > 0
            return
        lengths = list(map(len, words))
        longest = max(lengths[1:])
        if sum(lengths) - longest > _PATTERN_BYTES_MAX:
            return
        varied = lengths.index(longest, 1)
        same = words.copy()
        same[varied] = b""
        if self._seen.get(key) != same:
            _put(self._seen, key, same)
            self._to_pass, self._unlike = self._unlike, min(2 * self._unlike + 1, _UNLIKE_MAX)
            return
        self._unlike = 0
        if key not in self._patterns or self._patterns[key].words != same:
            _put(self._patterns, key, _Pattern(same, varied))

    # The fast path

    def _take_canonical(self, commands: list[list[bytes]], count_max: int) -> None:
        """Take multibulk commands in the form all clients send, until one isn't so or isn't whole.

        Where the exact path is the better one (long bodies, odd forms), a detour is set: the number
        of commands that will go that way.
        """
        data, position, already = self._data, self._position, len(commands)
        window_bytes = _WINDOW_BYTES if self._detour_length == 1 else _WINDOW_BYTES_WARY
        window_bytes = min(window_bytes, count_max * _LONG_BYTES)
        seen = position
        while position < len(data) and len(commands) < count_max:
            is_all = len(data) - position <= window_bytes
            if position == 0 and is_all:
                window = data
            else:
                window = data[position : position + window_bytes]
            parts = window.split(b"\r\n")
            seen = position + len(window)
            at = self._take_parts(parts, commands, count_max)
            if at == len(parts) - 1 and not parts[at]:
                position += len(window)
            else:
                position += sum(map(len, parts[:at])) + 2 * at
                if is_all or self._detour or at == 0:
                    break
        taken = len(commands) - already
        if taken:
            start = self._position
            self._learn(data[start : start + _KEY_BYTES], commands[already])
        if len(commands) < count_max and seen - self._position > _LONG_BYTES * (taken + 1):
            self._detour = _DETOUR_MAX
        self._position = position

    def _take_parts(self, parts: list[bytes], commands: list[list[bytes]], count_max: int) -> int:
        """Take the commands at the head of `parts`; return the index of the first part left."""
        at, last, arguments_max = 0, len(parts) - 1, self._arguments_max
        is_odd = False
        last_lengths, headers = self._lengths, self._headers
        while len(commands) < count_max:
            count = _COUNTS.get(parts[at])
            if count is None or count > arguments_max:
                is_odd = at < last
                break
            end = at + 2 * count + 1
            if end > last:
                break
            arguments = parts[at + 2 : end : 2]
            lengths = list(map(len, arguments))
            if lengths != last_lengths:
                last_lengths, headers = lengths, list(map(_header_of, lengths))
            is_odd = parts[at + 1 : end : 2] != headers or max(lengths) > self._bulk_max
            if is_odd:
                break
            commands.append(arguments)
            at = end
        if len(last_lengths) <= _PATTERN_WORDS_MAX:
            self._lengths, self._headers = last_lengths, headers
        if is_odd:
            self._detour = self._detour_length
            self._detour_length = min(2 * self._detour_length, _DETOUR_MAX)
        elif at:
            self._detour_length = max(self._detour_length // 2, 1)
        return at

    # The exact path

    def _take_exactly(self, commands: list[list[bytes]]) -> bool:
        """Take one command, or what there is of it; False if the buffer holds no more of use."""
        if self._left == 0:
            if self._position >= len(self._data):
                return False
            if self._allowance <= 0:
                self.has_more = True
                return False
            self._allowance -= 2  # empty ones cost, too, and give nothing
            if self._data[self._position] != _STAR:
                return self._take_inline(commands)
            line = self._header("mbulk")
            if line is None:
                return False
            count = _integer(line[1:])
            if count is None:
                raise ProtocolError(_NO_COUNT)
            if count > self._arguments_max:
                name = "the limit before AUTH" if self._is_before_auth else "arguments-max"
                raise LimitError(f"{_NO_COUNT}: {count} arguments, {name} is {self._arguments_max}")
            if count <= 0:
                return True
            self._left = count
        while self._left:
            if self._allowance <= 0:
                self.has_more = True
                return False
            self._allowance -= 1
            if not self._take_argument():
                return False
        commands.append(self._arguments)
        self._arguments, self._held_bytes = [], 0
        return True

    def _take_argument(self) -> bool:
        """Move one step on in a multibulk command; False if that needs more bytes."""
        if self._trailer:
            skipped = min(self._trailer, len(self._data) - self._position)
            self._trailer -= skipped
            self._position += skipped
            if self._trailer:
                return False
            self._left -= 1
            return True
        if self._body_left:
            return False
        if self._bulk < 0:
            line = self._header("bulk")
            if line is None:
                return False
            if line[:1] != b"$":
                got = line[:1].decode("utf-8", "surrogateescape") or "\r"
                raise ProtocolError(f"Protocol error: expected '$', got '{got}'")
            bulk = _integer(line[1:])
            if bulk is None or bulk < 0:
                raise ProtocolError(_NO_LENGTH)
            if bulk > self._bulk_max:
                name = "the limit before AUTH" if self._is_before_auth else "body-max"
                raise LimitError(f"{_NO_LENGTH}: {bulk} bytes, {name} is {self._bulk_max}")
            self._bulk = bulk
        start, end = self._position, self._position + self._bulk
        if end + 2 <= len(self._data):
            self._position = end + 2
            self._arguments.append(self._data[start:end])
            self._held_bytes += self._bulk
            self._bulk = -1
            self._left -= 1
        elif self._bulk >= _LARGE_BODY_BYTES:
            self._begin_body()
        else:
            self._needed = self._bulk + 2
            return False
        return True

    def _begin_body(self) -> None:
        """Collect a large argument apart from the buffer."""
        piece = self._data[self._position : self._position + self._bulk]
        self._position += len(piece)
        self._body = [piece]
        self._body_left = self._bulk - len(piece)
        self._held_bytes += len(piece)
        if not self._body_left:
            self._finish_body()

    def _collect_body(self) -> None:
        """Move what was fed to the large argument in progress, up to its end; _data is empty."""
        for index, piece in enumerate(self._fed):
            wanted = piece[: self._body_left] if len(piece) > self._body_left else piece
            _add_piece(self._body, wanted)
            self._body_left -= len(wanted)
            self._fed_bytes -= len(wanted)
            self._held_bytes += len(wanted)
            if not self._body_left:
                rest = piece[len(wanted) :]
                self._fed[: index + 1] = [rest] if rest else []
                self._finish_body()
                return
        self._fed.clear()

    def _finish_body(self) -> None:
        self._arguments.append(b"".join(self._body))
        self._body = []
        self._bulk = -1
        self._trailer = 2

    def _header(self, what: str) -> bytes | None:
        """The header line at the position, without its end; None if it isn't whole.

        As in C, any byte may follow the CR.
        """
        start = self._position
        end = self._data.find(b"\r", start, start + LINE_BYTES_MAX + 1)
        if end < 0:
            if len(self._data) - start > LINE_BYTES_MAX:
                raise ProtocolError(f"Protocol error: too big {what} count string")
            return None
        if end + 2 > len(self._data):
            return None
        self._position = end + 2
        return self._data[start:end]

    def _take_inline(self, commands: list[list[bytes]]) -> bool:
        start = self._position
        if self._data.startswith(TlsError.HELLO, start):
            raise TlsError
        end = self._data.find(b"\n", start, start + LINE_BYTES_MAX + 1)
        if end < 0:
            if len(self._data) - start > LINE_BYTES_MAX:
                raise ProtocolError("Protocol error: too big inline request")
            return False
        self._position = end + 1
        self._allowance -= (end - start) // _INLINE_BYTES_AN_ARGUMENT
        if end > start and self._data[end - 1] == 13:
            end -= 1
        try:
            words = split_words(self._data[start:end])
        except ValueError:
            raise ProtocolError("Protocol error: unbalanced quotes in request") from None
        if arguments := [word for word in words if word]:  # Disque drops empty ones
            commands.append(arguments)
        return True


def _put(known: dict[bytes, _Known], key: bytes, value: _Known) -> None:
    """Keep few: which ones go doesn't matter much."""
    if len(known) >= _PATTERNS_MAX and key not in known:
        known.clear()
    known[key] = value


def _add_piece(pieces: list[bytes | bytearray], data: bytes | bytearray) -> None:
    """Append to a list that will be joined; small pieces are put together."""
    if not pieces or len(data) >= _PIECE_BYTES_MIN:
        pieces.append(data)
    elif isinstance(pieces[-1], bytearray) and len(pieces[-1]) < _PIECE_BYTES_MIN:
        pieces[-1] += data
    else:
        pieces.append(bytearray(data))


def _integer(digits: bytes) -> int | None:
    """A header's number in canonical form, as C's `string2ll`; None for all else."""
    unsigned = digits[1:] if digits[:1] == b"-" else digits
    if digits == b"0":
        return 0
    if not unsigned.isdigit() or unsigned[:1] == b"0" or len(unsigned) > 19:
        return None
    number = int(digits)
    return number if -(1 << 63) <= number < 1 << 63 else None
