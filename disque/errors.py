"""Errors that a client can cause; `code` is the first word of the RESP error reply."""

from __future__ import annotations


class DisqueError(Exception):
    """Base: the client's fault or a state it can react to. str(error) is the text after the code."""

    code = "ERR"


class CommandError(DisqueError):
    """A command that can't be carried out; carries its own code."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(text)
        self.code = code


class ProtocolError(DisqueError):
    """Bytes that are no RESP, or no STOMP: reply with the text, then close the connection."""

    event = (
        ""  # under which the log tells of it, too: who runs the server can do something about it
    )


class LimitError(ProtocolError):
    """More than a limit of ours allows; the text names both."""

    event = "over-limit"


class TlsError(ProtocolError):
    """What comes is TLS, and nobody took it off."""

    HELLO = b"\x16\x03"  # how it begins
    event = "tls-on-plain-port"

    def __init__(self) -> None:
        super().__init__("Protocol error: TLS came, and this port doesn't speak it")


class ConfigError(DisqueError):
    """A directive or value that can't be used; the text names both."""
