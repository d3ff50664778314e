"""Words: how one line becomes arguments, in inline commands and in the configuration file.

Shell-like, as Disque's `sdssplitargs`: double quotes with escapes, single quotes in which only
`\\'` is one, and a quote must end its word. It knows nothing of where the line came from. Source:
reference 0.1.
"""

from __future__ import annotations

_SPACE = b" \t\n\r\v\f"
_QUOTE, _APOSTROPHE, _BACKSLASH = b"\"'\\"
_HEX = b"0123456789abcdefABCDEF"
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


def split_words(line: bytes) -> list[bytes]:
    """Split a line into its words, empty quoted ones included.

    A NUL ends the line, as it does in C. Raises ValueError if a quote stays open, or if its word
    goes on behind it. Linear in the length of the line.
    """
    if b"\0" in line:
        line = line[: line.index(b"\0")]
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _SPACE:
            at += 1
        if at == len(line):
            return words
        word, at = _word(line, at)
        words.append(word)


def quote_word(word: bytes) -> bytes:
    """A word in double quotes, printable, such that `split_words` gives it back."""
    return b'"' + b"".join([_QUOTED[byte] for byte in word]) + b'"'


def _quoted(byte: int) -> bytes:
    for letter, code in _ESCAPES.items():
        if code == byte:
            return bytes((_BACKSLASH, letter))
    if byte in (_QUOTE, _BACKSLASH):
        return bytes((_BACKSLASH, byte))
    return bytes((byte,)) if 32 <= byte < 127 else b"\\x%02x" % byte


_QUOTED = [_quoted(byte) for byte in range(256)]


def _word(line: bytes, at: int) -> tuple[bytes, int]:
    """The word that begins at `at`, and where it ends; a quote may open in it, then ends it."""
    word = bytearray()
    while at < len(line) and line[at] not in _SPACE:
        if line[at] in (_QUOTE, _APOSTROPHE):
            quoted = _double_quoted if line[at] == _QUOTE else _single_quoted
            at = quoted(line, at + 1, word)
            if at < len(line) and line[at] not in _SPACE:
                raise ValueError("a closing quote must be followed by a space")
            break
        word.append(line[at])
        at += 1
    return bytes(word), at


def _double_quoted(line: bytes, at: int, word: bytearray) -> int:
    """Append what stands in the double quotes that opened before `at`; return where to go on."""
    while at < len(line) and line[at] != _QUOTE:
        if line[at] != _BACKSLASH or at + 1 == len(line):
            word.append(line[at])
            at += 1
        elif line[at + 1] == ord("x") and _is_hex(line[at + 2 : at + 4]):
            word.append(int(line[at + 2 : at + 4], 16))
            at += 4
        else:
            word.append(_ESCAPES.get(line[at + 1], line[at + 1]))
            at += 2
    return _closed(line, at)


def _single_quoted(line: bytes, at: int, word: bytearray) -> int:
    """As `_double_quoted`, for single quotes: only an escaped apostrophe is special."""
    while at < len(line) and line[at] != _APOSTROPHE:
        if line[at : at + 2] == b"\\'":
            at += 1
        word.append(line[at])
        at += 1
    return _closed(line, at)


def _closed(line: bytes, at: int) -> int:
    if at == len(line):
        raise ValueError("a quote is not closed")
    return at + 1


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in _HEX for digit in digits)
