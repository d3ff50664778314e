"""Frames of STOMP 1.0, 1.1 and 1.2: a client's bytes in, frames out, and back, whatever way the network cut them.

It knows the grammar and its limits, nothing of destinations or of what a command means. The one idea: only the
version differs, and only in how a header is spelt; where a frame ends is the same in all three. Sources: the three
specifications at stomp.github.io; what brokers got wrong: reference, ocamlmq-stomp.md.

Taken though no specification asks for it: CRLF as the end of a line in every version, any number of line ends between
frames, and a newline or none after the NUL.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

import attrs

from disque.core.value import value
from disque.errors import LimitError, ProtocolError, TlsError

_LF, _CR = 10, 13
_NO_HEADERS: Mapping[bytes, bytes] = {}
_HEAD_BYTES_A_TAKE = 64 << 10  # some 10 ms: others have their turn
_NO_LINE_END: Final = re.compile(rb"[^\r\n]")
# Never escaped, and what follows may be of another version
_OPENING: Final = (b"CONNECT", b"STOMP")


class Version(enum.IntEnum):
    """What both sides agreed on; UNKNOWN before CONNECT, when headers are taken as they are."""

    UNKNOWN = 0
    V10 = 10
    V11 = 11
    V12 = 12

    @property
    def text(self) -> bytes:
        """As the protocol spells it."""
        return b"%d.%d" % divmod(self, 10)


class FrameError(ProtocolError):
    """Bytes that are no frame: say so in an ERROR frame, then close; there is no way to find the next one."""


@value
class Frame:
    """One frame; of a header that is repeated the first one counts."""

    command: bytes
    headers: Mapping[bytes, bytes] = _NO_HEADERS
    body: bytes = b""


@attrs.frozen
class FrameLimits:
    """What one frame may cost before it is refused."""

    head_bytes_max: int = 64 << 10  # command and headers; as a header line of RESP
    headers_max: int = 256  # a job's headers are kept in memory and sent to each holder
    body_bytes_max: int = 512 << 20  # as RESP's
    body_bytes_first: int = 64 << 10  # before CONNECT has been accepted


class Decoder:
    """Feed it what was read, take what is complete.

    Set `version` as soon as CONNECT has been answered: `take` never goes beyond a CONNECT frame. Once `error` is set
    nothing more will come. What is kept is one unfinished frame and what the owner fed beyond it: he stops reading
    while `pending_bytes` is large.
    """

    __slots__ = (
        "_body_at",
        "_data",
        "_head",
        "_head_bytes_left",
        "_left",
        "_position",
        "_scanned",
        "error",
        "limits",
        "version",
    )

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self.version = Version.UNKNOWN
        self.error: ProtocolError | None = None
        self.limits = limits or FrameLimits()  # may be replaced at any time
        self._data = bytearray()
        self._position = 0  # of the frame in progress
        self._scanned = 0  # no end of the part in progress lies before this
        # The frame whose head has been read:
        self._head: Frame | None = None
        self._head_bytes_left = 0  # that this take() still reads
        self._body_at = 0
        self._left = -1  # bytes of the body, -1: up to the next NUL

    @property
    def has_more(self) -> bool:
        """Never: a frame has few parts."""
        return False

    @property
    def pending_bytes(self) -> int:
        """Bytes that were fed and haven't come out as frames."""
        return len(self._data) - self._position

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add what was read."""
        if self.error is None:
            self._data += data

    def take(self, count_max: int = 1_000) -> list[Frame]:
        """The next complete frames, none if there are none yet.

        A call that finds an error after some frames gives those and sets `error`; one that finds nothing else raises
        it (FrameError, LimitError, TlsError).
        """
        frames: list[Frame] = []
        self._head_bytes_left = _HEAD_BYTES_A_TAKE
        if self.error is None:
            try:
                while len(frames) < count_max and (frame := self._next()) is not None:
                    frames.append(frame)
                    if frame.command in _OPENING or self._head_bytes_left <= 0:
                        break
            except ProtocolError as error:
                self.error = error
                self._data = bytearray()
                self._position = 0
            if self._position:
                del self._data[: self._position]
                self._body_at -= self._position
                self._scanned = max(0, self._scanned - self._position)
                self._position = 0
        if self.error is not None and not frames:
            raise self.error
        return frames

    def _next(self) -> Frame | None:
        if self._head is None:
            self._skip_line_ends()
            if not self._take_head():
                return None
        head = self._head
        assert head is not None
        end = self._body_end()
        if end < 0:
            return None
        with memoryview(self._data) as data:
            body = bytes(data[self._body_at : end])
        self._position = self._scanned = end + 1
        self._head = None
        return Frame(head.command, head.headers, body) if body else head

    def _skip_line_ends(self) -> None:
        found = _NO_LINE_END.search(self._data, self._position)
        self._position = len(self._data) if found is None else found.start()
        self._scanned = max(self._scanned, self._position)

    def _take_head(self) -> bool:
        """Find the blank line and read what is before it; False if it isn't there yet."""
        data, start = self._data, self._position
        at = data.find(b"\n", self._scanned)
        while at >= 0:
            after = data[at + 1 : at + 3]
            if after[:1] == b"\n" or after == b"\r\n":
                break
            if not after or after == b"\r":  # what follows hasn't come
                self._scanned = at
                at = -1
            else:
                at = data.find(b"\n", at + 1)
        else:
            self._scanned = max(self._scanned, len(data) - 2, start)
        most, end = self.limits.head_bytes_max, at if at >= 0 else len(data)
        # Of two faults the first one counts, however the bytes came
        if data.find(b"\0", start, min(end, start + most + 1)) >= 0:
            if data.startswith(TlsError.HELLO, start):
                raise TlsError
            raise FrameError("a NUL before the blank line that ends the headers")
        if end - start > most:
            raise FrameError(f"command and headers take more than {most} bytes")
        if at < 0:
            return False
        self._head = self._parse(bytes(data[start:at]))
        self._head_bytes_left -= at - start
        self._body_at = at + (2 if data[at + 1] == _LF else 3)
        self._scanned = self._body_at
        self._left = self._content_length(self._head)
        return True

    def _parse(self, head: bytes) -> Frame:
        lines = head.split(b"\n")
        if b"\r" in head:
            lines = [line.removesuffix(b"\r") for line in lines]
        command = lines[0]
        if len(lines) - 1 > self.limits.headers_max:
            raise FrameError(f"{len(lines) - 1} headers, the limit is {self.limits.headers_max}")
        version = Version.UNKNOWN if command in _OPENING else self.version
        is_escaped = version > Version.V10 and b"\\" in head
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, colon, text = line.partition(b":")
            if not colon or not name:
                raise FrameError(f"not a header: {shown(line)}")
            if version is Version.V10:
                name, text = name.strip(), text.strip()
            elif is_escaped:
                name, text = unescape(name, version), unescape(text, version)
            headers.setdefault(name, text)
        return Frame(command, headers)

    def _content_length(self, head: Frame) -> int:
        text = head.headers.get(b"content-length")
        if text is None:
            return -1
        digits = text.strip()
        if not digits.isdigit() or len(digits) > 18:
            raise FrameError(f"content-length must be a number of bytes, got {shown(text)}")
        if int(digits) > self._body_max:
            raise self._too_long()
        return int(digits)

    @property
    def _body_max(self) -> int:
        limits = self.limits
        return (
            limits.body_bytes_max
            if self.version
            else min(limits.body_bytes_first, limits.body_bytes_max)
        )

    def _too_long(self) -> LimitError:
        is_full = self._body_max == self.limits.body_bytes_max
        name = "body-max" if is_full else "the limit before CONNECT"
        return LimitError(f"the body takes more than {self._body_max} bytes ({name})")

    def _body_end(self) -> int:
        """Where the NUL after the body is; -1 if it hasn't come."""
        data = self._data
        if self._left >= 0:
            end = self._body_at + self._left
            if end >= len(data):
                return -1
            if data[end]:
                raise FrameError(f"no NUL after the {self._left} bytes of the body")
            return end
        end = data.find(b"\0", self._scanned)
        self._scanned = len(data)
        if (end if end >= 0 else len(data)) - self._body_at > self._body_max:
            raise self._too_long()
        return end


_ESCAPES: Final[Mapping[Version, Mapping[bytes, bytes]]] = {
    Version.V11: {b"\\n": b"\n", b"\\c": b":", b"\\\\": b"\\"},
    Version.V12: {b"\\r": b"\r", b"\\n": b"\n", b"\\c": b":", b"\\\\": b"\\"},
}
_ESCAPED = re.compile(rb"\\.?", re.DOTALL)
# What must be spelt otherwise, and the same for what no spelling exists: that becomes a space, lest a header makes two.
_SPELLINGS: Final[Mapping[Version, tuple[re.Pattern[bytes], Mapping[bytes, bytes]]]] = {
    Version.UNKNOWN: (re.compile(rb"[\r\n\0]"), {}),
    Version.V10: (re.compile(rb"[\r\n\0]"), {}),
    Version.V11: (re.compile(rb"[\\:\r\n\0]"), {b"\\": b"\\\\", b":": b"\\c", b"\n": b"\\n"}),
    Version.V12: (
        re.compile(rb"[\\:\r\n\0]"),
        {b"\\": b"\\\\", b":": b"\\c", b"\n": b"\\n", b"\r": b"\\r"},
    ),
}


def unescape(text: bytes, version: Version) -> bytes:
    """A header's name or value as it was meant; FrameError for an escape that the version (1.1, 1.2) doesn't know."""
    known = _ESCAPES[version]

    def meant(match: re.Match[bytes]) -> bytes:
        if match[0] not in known:
            raise FrameError(f"unknown escape {shown(match[0])} in a header")
        return known[match[0]]

    return _ESCAPED.sub(meant, text)


def escape(text: bytes, version: Version) -> bytes:
    """A header's name or value as that version spells it; a character that it can't spell becomes a space."""
    pattern, spellings = _SPELLINGS[version]
    return pattern.sub(lambda match: spellings.get(match[0], b" "), text)


# What a MESSAGE says itself: said once more by whoever added a job, it would make another frame of this one
_OF_MESSAGES: Final = frozenset(
    b"destination content-length message-id subscription ack redelivered nacks additional-deliveries".split()
)


def carried_lines(headers: Mapping[bytes, bytes], version: Version) -> bytes:
    """Headers that a job brings, each on its line; without those that a client could take for the frame's own."""
    return header_lines({k: v for k, v in headers.items() if _is_carried(k)}, version)


def _is_carried(name: bytes) -> bool:
    # 1.0 can't spell a colon, and its clients trim
    word = name.partition(b":")[0].strip(b" \t\r\n\0").lower()
    return bool(word) and word not in _OF_MESSAGES


def header_lines(headers: Mapping[bytes, bytes], version: Version) -> bytes:
    """Headers, each on its line."""
    return b"".join(
        [b"%b:%b\n" % (escape(k, version), escape(v, version)) for k, v in headers.items()]
    )


def encode(frame: Frame, version: Version) -> bytes:
    """A frame's bytes with its NUL; a body gets its content-length if the headers don't have it.

    CONNECT and CONNECTED aren't escaped in any version.
    """
    is_bare = frame.command in (*_OPENING, b"CONNECTED")
    lines = header_lines(frame.headers, Version.UNKNOWN if is_bare else version)
    if frame.body and b"content-length" not in frame.headers:
        lines += b"content-length:%d\n" % len(frame.body)
    return b"%b\n%b\n%b\0" % (frame.command, lines, frame.body)


def shown(raw: bytes) -> str:
    """What was wrong, for a message: not too long, and printable."""
    text = raw[:80].decode("utf-8", "replace")
    return repr(text if len(raw) <= 80 else text + "...")
