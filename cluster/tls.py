"""TLS without sockets: a link's bytes in, and out, whoever carries them.

The link writes what `encrypt` gives and reads what `decrypt` makes of it, so its bounds and its way of never waiting
stay as they are. Who may be a peer is decided by the context (certificates of one authority on both sides), then by the
handshake of the bus.
"""

from __future__ import annotations

import ssl

READ_BYTES = 1 << 16
_NOT_TLS = "the other side doesn't speak TLS"
_UNTRUSTED = "the other side doesn't trust our certificate"
_NO_VERSION = "no version of TLS in common"
_MEANINGS = {
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "HTTP_REQUEST": _NOT_TLS,
    "HTTPS_PROXY_REQUEST": _NOT_TLS,
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side shows no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate",
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "UNEXPECTED_EOF_WHILE_READING": "the connection ended during the handshake",
}


def explain(error: OSError) -> str:
    """Why TLS with the other side came to nothing, in words for a log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other side's certificate isn't accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _MEANINGS.get(error.reason, error.reason.lower().replace("_", " "))
    return error.strerror or str(error)


class TlsSession:
    """One connection's TLS. Methods raise ssl.SSLError, an OSError, for what the other side can't or may not say."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self.is_done = False  # the handshake

    def shake(self) -> bytes:
        """Go on with the handshake as far as may be; what is to be sent now, whatever becomes of it."""
        try:
            self._object.do_handshake()
            self.is_done = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """What goes over the wire for these bytes (at least one)."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def feed(self, data: bytes | bytearray) -> None:
        """Bytes came from the wire; none: that was the end."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def decrypt(self) -> tuple[bytes, bool]:
        """All that the bytes so far say, and whether that was the last of it."""
        parts: list[bytes] = []
        while True:
            try:
                part = self._object.read(READ_BYTES)
            except ssl.SSLWantReadError:
                return b"".join(parts), False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                part = b""
            if not part:
                return b"".join(parts), True
            parts.append(part)

    def own_words(self) -> bytes:
        """What TLS itself has to say: a key update, an alert."""
        return self._outgoing.read()
