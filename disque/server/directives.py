"""Directives: what a setting is called, how its text is read and shown, whether it may change live.

The kinds know one value each and nothing of files, flags or other settings; `config.Config` is the
list of all directives. A kind's `parse` raises ValueError with what it wants ("must be ...").
Source: reference 1.17.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from cluster.messages import is_host
from disque.core.integers import INT64_MAX, parse_int
from disque.server.acl import User, parse_user

if TYPE_CHECKING:
    from collections.abc import Sequence

BUS_PORT_OFFSET = 10_000  # bus port = client port + this, unless cluster-port says otherwise
PORT_MAX = 65_535
PAGE_PORT_OFFSET = 1_000  # port of the web page = client port + this, unless http-port says other
DEFAULT_PORT = 7711
_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1 << 10,
    "m": 1000**2,
    "mb": 1 << 20,
    "g": 1000**3,
    "gb": 1 << 30,
}
_MEMORY = re.compile(r"(\d{1,19})([a-z]{0,2})")
_INT_MAX = (1 << 31) - 1
_PATH_BYTES_MAX = 4_096  # the system's


class Kind(Protocol):
    """How the words of a directive become a value, and how that is shown."""

    @property
    def words_max(self) -> int:
        """How many words it takes at most; only a kind that takes more than one is split."""

    def parse(self, words: Sequence[str], *, is_live: bool) -> object:
        """The value; `is_live`: said by CONFIG SET. ValueError tells what would be right."""

    def show(self, value: Any) -> str:
        """The value as CONFIG GET shows it."""


@attrs.frozen
class Directive:
    """One setting. `unit` is for people; a secret's value is never shown, not even in errors."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    is_settable: bool = False  # by CONFIG SET
    is_file_only: bool = False  # neither flag nor environment, and not in CONFIG GET
    is_secret: bool = False
    is_masked: bool = False  # not in CONFIG GET either
    # CONFIG SET acts even if the value is the same: what it names may be new
    is_reloaded: bool = False
    is_reread: bool = False  # at SIGHUP, though CONFIG SET doesn't change it

    @property
    def attribute(self) -> str:
        """Its name in Config."""
        return self.name.replace("-", "_")

    def show(self, value: object) -> str:
        """What CONFIG GET says."""
        if self.is_masked:
            return "(set)" if value else ""
        return self.kind.show(value)


@attrs.frozen
class Integer:
    """A decimal number; `live_low` is the least that CONFIG SET takes, if another."""

    low: int = 0
    high: int = _INT_MAX
    live_low: int | None = None
    is_clamped: bool = False
    words_max: int = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> int:
        """The number, or the nearest one allowed if this kind clamps."""
        low = self.live_low if is_live and self.live_low is not None else self.low
        number = parse_int(_raw(words[0]))
        if number is not None and self.is_clamped:
            return max(low, min(number, self.high))
        if number is None or not low <= number <= self.high:
            raise ValueError(f"must be a number between {low} and {self.high}")
        return number

    def show(self, value: int) -> str:
        """The digits."""
        return str(value)


class AutoPort:
    """A port, 0 for none, or `auto`: the server's own choice, which may come to none."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> int | None:
        """The port; None for auto."""
        if words[0].lower() == "auto":
            return None
        try:
            return Integer(0, PORT_MAX).parse(words, is_live=is_live)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from None

    def show(self, value: int | None) -> str:
        """The digits, or auto."""
        return "auto" if value is None else str(value)


@attrs.frozen
class Memory:
    """Bytes: a number with one of b k kb m mb g gb, where k is 1000 and kb 1024."""

    are_units_live: bool = True  # CONFIG SET takes units too
    low: int = 0
    words_max: int = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> int:
        """The number of bytes."""
        match = _MEMORY.fullmatch(words[0].lower())
        if (
            match is None
            or match[2] not in _UNITS
            or not match[1].isascii()
            or (is_live and not self.are_units_live and match[2])
            or int(match[1]) * _UNITS[match[2]] > INT64_MAX
        ):
            raise ValueError("must be a number of bytes, with or without b k kb m mb g gb")
        count = int(match[1]) * _UNITS[match[2]]
        if count < self.low:
            raise ValueError(f"must be at least {self.low} bytes")
        return count

    def show(self, value: int) -> str:
        """Plain bytes."""
        return str(value)


class YesNo:
    """A switch."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> bool:  # noqa: ARG002
        """True for yes."""
        if words[0].lower() not in ("yes", "no"):
            raise ValueError("must be yes or no")
        return words[0].lower() == "yes"

    def show(self, value: bool) -> str:
        """Yes or no."""
        return "yes" if value else "no"


class KeepAlive:
    """Seconds between TCP probes, 0 for none; CONFIG SET takes only yes or no, as Disque's."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> int:
        """The seconds; yes is 300."""
        if words[0].lower() in ("yes", "no"):
            return 300 if words[0].lower() == "yes" else 0
        if is_live:
            raise ValueError("must be yes or no")
        return Integer().parse(words, is_live=False)

    def show(self, value: int) -> str:
        """Yes or no."""
        return "yes" if value else "no"


@attrs.frozen
class Text:
    """Any text."""

    bytes_min: int = 0
    bytes_max: int = 64 << 10
    words_max: int = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The text as it is."""
        if not self.bytes_min <= len(_raw(words[0])) <= self.bytes_max:
            raise ValueError(f"must have {self.bytes_min} to {self.bytes_max} bytes")
        return words[0]

    def show(self, value: str) -> str:
        """The text."""
        return value


class Host:
    """A name or an address, which may stand in []; "" for none."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The name or address, such as peers take one."""
        host = without_brackets(words[0])
        if not is_host(host):
            raise ValueError("must be a host name or an address")
        if host.count(":") == 1:
            raise ValueError("must be a host name or an address alone, without a port")
        return host

    def show(self, value: str) -> str:
        """The name or address."""
        return value


class FileName:
    """A name without a folder."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The name."""
        if not words[0] or Path(words[0]).name != words[0]:
            raise ValueError("must be the name of a file, without a folder")
        return words[0]

    def show(self, value: str) -> str:
        """The name."""
        return value


class Folder:
    """A folder; relative to where the process stands when it is read."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The absolute path. Whether it exists is the owner's to find out."""
        if not words[0]:
            raise ValueError("must be a folder")
        return _absolute(words[0])

    def show(self, value: str) -> str:
        """The absolute path."""
        return value


class FilePath:
    """A file, if any; relative to where the process stands when it is read."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The absolute path, "" for none. Whether it exists is the owner's to find out."""
        return _absolute(words[0]) if words[0] else ""

    def show(self, value: str) -> str:
        """The absolute path."""
        return value


@attrs.frozen
class Choice:
    """One of a few words, in any case."""

    choices: tuple[str, ...]
    words_max: int = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> str:  # noqa: ARG002
        """The word in lower case."""
        if words[0].lower() not in self.choices:
            raise ValueError(f"must be one of {' '.join(self.choices)}")
        return words[0].lower()

    def show(self, value: str) -> str:
        """The word."""
        return value


class Permissions:
    """File permissions in octal digits; 0 leaves them as they are."""

    words_max = 1

    def parse(self, words: Sequence[str], *, is_live: bool) -> int:  # noqa: ARG002
        """The mode bits."""
        if not re.fullmatch("[0-7]{1,4}", words[0]) or int(words[0], 8) > 0o777:
            raise ValueError("must be octal permissions between 0 and 777")
        return int(words[0], 8)

    def show(self, value: int) -> str:
        """Octal digits."""
        return f"{value:o}"


@attrs.frozen
class Words:
    """Several words."""

    words_max: int

    def parse(self, words: Sequence[str], *, is_live: bool) -> tuple[str, ...]:  # noqa: ARG002
        """The words."""
        return tuple(words)

    def show(self, value: tuple[str, ...]) -> str:
        """One line."""
        return " ".join(value)


@attrs.frozen
class BufferLimit:
    """When a client that doesn't read is dropped: at once over hard, over soft after a while."""

    hard_bytes: int = 0  # 0: no limit
    soft_bytes: int = 0
    soft_s: int = 0


class BufferLimits:
    """The class of clients (only `normal` exists), hard limit, soft limit, seconds."""

    words_max = 4

    def parse(self, words: Sequence[str], *, is_live: bool) -> BufferLimit:  # noqa: ARG002
        """The limit of the class."""
        if len(words) != 4 or words[0].lower() != "normal":
            raise ValueError("must be normal HARD SOFT SECONDS")
        hard, soft = (Memory().parse([word], is_live=False) for word in words[1:3])
        return BufferLimit(hard, soft, Integer().parse(words[3:], is_live=False))

    def show(self, value: BufferLimit) -> str:
        """As it is written in the file."""
        return f"normal {value.hard_bytes} {value.soft_bytes} {value.soft_s}"


@attrs.frozen
class JoinAddress:
    """A node to meet: a host name or address, its client port, and the port of its bus."""

    host: str
    port: int
    bus_port: int


class JoinAddresses:
    """Nodes as `host`, `host:port` or `host:port@busport`; an IPv6 address with a port in []."""

    words_max = 1_024

    def parse(self, words: Sequence[str], *, is_live: bool) -> tuple[JoinAddress, ...]:  # noqa: ARG002
        """The nodes, in order."""
        return tuple(map(_join_address, words))

    def show(self, value: tuple[JoinAddress, ...]) -> str:
        """The nodes with all that was left out."""
        return " ".join(
            f"[{node.host}]:{node.port}@{node.bus_port}"
            if ":" in node.host
            else f"{node.host}:{node.port}@{node.bus_port}"
            for node in value
        )


class Renames:
    """`rename-command NAME NEWNAME`: one pair; an empty new name takes the command away."""

    words_max = 2

    def parse(self, words: Sequence[str], *, is_live: bool) -> dict[str, str]:  # noqa: ARG002
        """The one pair, both in lower case."""
        if len(words) != 2:
            raise ValueError("must be a command and its new name")
        return {words[0].lower(): words[1].lower()}

    def show(self, value: dict[str, str]) -> str:
        """All pairs."""
        return " ".join(f"{old} {new or chr(34) * 2}" for old, new in value.items())


class Users:
    """`user NAME on|off #SHA256 +COMMAND ~QUEUE`: one user; a later line of the same name replaces it."""

    words_max = 10_000

    def parse(self, words: Sequence[str], *, is_live: bool) -> dict[str, User]:  # noqa: ARG002
        """The one user under its name."""
        user = parse_user(words)
        return {user.name: user}

    def show(self, value: dict[str, User]) -> str:
        """The names."""
        return " ".join(value)


_JOIN = re.compile(
    r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<plain>[^:@\[\]]+))(?::(?P<port>\d{1,5})(?:@(?P<bus>\d{1,5}))?)?"
)


def _join_address(word: str) -> JoinAddress:
    if re.fullmatch(r"[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,}", word):  # an IPv6 address alone
        return JoinAddress(word, DEFAULT_PORT, DEFAULT_PORT + BUS_PORT_OFFSET)
    match = _JOIN.fullmatch(word)
    if match is not None:
        port = int(match["port"] or DEFAULT_PORT)
        bus_port = int(match["bus"] or port + BUS_PORT_OFFSET)
        host = match["bracketed"] or match["plain"]
        if is_host(host) and 0 < port <= PORT_MAX and 0 < bus_port <= PORT_MAX:
            return JoinAddress(host, port, bus_port)
    raise ValueError(f"must be host[:port[@busport]] ..., ports up to {PORT_MAX}")


def without_brackets(host: str) -> str:
    """An IPv6 address as sockets take it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _absolute(text: str) -> str:
    try:
        path = str(Path(text).resolve())
    except (OSError, RuntimeError):  # the present folder has gone; links that point at each other
        raise ValueError("must be a path that can be followed") from None
    if len(_raw(path)) > _PATH_BYTES_MAX:
        raise ValueError(f"must have at most {_PATH_BYTES_MAX} bytes")
    return path


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
