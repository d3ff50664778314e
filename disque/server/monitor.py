"""Monitor: commands as people read them in MONITOR and SLOWLOG, without what is secret.

It formats and knows no connections. Source: reference 1.18.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.resp.inline import quote_word
from disque.server.config import DIRECTIVES
from disque.server.slowlog import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

MONITOR_OUT_MAX = 64 << 20  # bytes that a monitor may leave unread before it is dropped
WORDS_MAX = 64  # of a command that are shown, lest others wait for the quoting of large ones
WORD_BYTES_MAX = 1_024
_HIDDEN = b"(redacted)"
_SECRET_DIRECTIVES = frozenset(
    name.encode() for name, directive in DIRECTIVES.items() if directive.is_secret
)


def monitor_line(wall_ns: int, peer: str, words: Sequence[bytes]) -> bytes:
    """`+<seconds>.<microseconds> [peer] "WORD" ...`."""
    seconds, microseconds = divmod(wall_ns // 1000, 1_000_000)
    shown = cut(words, count_max=WORDS_MAX, bytes_max=WORD_BYTES_MAX)
    said = b" ".join(map(quote_word, shown))
    host = peer.encode("utf-8", "surrogateescape")
    return b"+%d.%06d [%b] %b\r\n" % (seconds, microseconds, host, said)


def without_secrets(name: bytes, words: Sequence[bytes]) -> Sequence[bytes]:
    """The words of a command (`name`: as in the table) with passwords covered."""
    if name == b"auth":
        return [words[0], *[_HIDDEN] * (len(words) - 1)]
    if name == b"hello" and len(words) > 2:
        return [*words[:2], *[_HIDDEN] * (len(words) - 2)]
    if name == b"config" and any(word.lower() in _SECRET_DIRECTIVES for word in words[2:-1]):
        return [*words[:3], *[_HIDDEN] * (len(words) - 3)]
    return words
