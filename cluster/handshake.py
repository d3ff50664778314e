"""The handshake: both sides prove that they know the cluster's secret before either believes anything.

Four frames: HELLO (versions, nonce) · CHALLENGE (versions, nonce) · PROOF (who dials, whom it
expects, MEET or link, MAC) · VERDICT (who answered, ok or the reason of refusal, MAC). The dialer
proves first, so that nobody who merely connects gets a MAC to guess the secret from. Each MAC is
HMAC-SHA256 over the role, both nonces, all versions and everything said: replayed, reflected or
altered frames fail. The version that both agree on is the largest they know; so far there is one, and
nothing that is said later depends on it: fields and types are only added, and skipped by who doesn't
know them. A change that can't be skipped raises VERSION_MAX, and then the link must hand `version`
on. No secret means the empty key, same flow. A REFUSAL without MAC may come at any
time (protected mode, wrong secret): it is shown as unproved. Pure: the caller draws the nonces, and
adds the frames' lengths.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import attrs

from cluster import messages
from cluster.errors import LocalProtocolError, RemoteProtocolError
from cluster.frame import HANDSHAKE_FRAME_BYTES_MAX
from cluster.nodeid import NodeId, is_node_id
from cluster.packing import pack

if TYPE_CHECKING:
    from collections.abc import Container


MAGIC = "disque-bus"
VERSION_MIN = 1
VERSION_MAX = 1
NONCE_BYTES = 32
REASON_CHARS_MAX = 300

# What a reason begins with, where somebody reacts to it.
WRONG_ID = "wrong id:"
SELF = "self:"
DUPLICATE = "duplicate id:"
FORGOTTEN = "forgotten by "  # then the id of who forgot
UNKNOWN_NODE = "unknown node:"
UNREACHED = "no connection: "
UNPROVED = "refused (unproved): "

_HELLO, _CHALLENGE, _PROOF, _VERDICT, _REFUSAL = 1, 2, 3, 4, 5


@attrs.frozen
class Identity:
    """What each side of a connection proves and tells in the handshake, before any frame."""

    id: NodeId
    boot: int
    since: int
    host: str  # announced host, "" = use the address the connection comes from
    port: int
    bus_port: int
    tls_port: int = 0  # for clients, 0: none; gossip tells it, no handshake does


def forgetter_in(reason: str) -> NodeId | None:
    """Who forgot the dialer, if that is why it was refused."""
    by = reason.removeprefix(FORGOTTEN)[:40]
    return NodeId(by) if reason.startswith(FORGOTTEN) and is_node_id(by) else None


class HandshakeError(RemoteProtocolError):
    """The connection can't be used; str(error) is the reason, fit for the log and for `dial_failed`."""


class DialerHandshake:
    """The side that opened the connection: `start`, then `receive` each frame until `peer` is set."""

    def __init__(
        self, *, own: Identity, secret: bytes, nonce: bytes, expected: NodeId | None, is_meet: bool
    ) -> None:
        self._own = own
        self._secret = secret
        self._nonce = _checked_nonce(nonce)
        self._expected = expected
        self._is_meet = is_meet
        self._transcript: list[object] = []
        self._is_proof_sent = False
        self.version = 0
        self.peer: Identity | None = None

    def start(self) -> bytes:
        """The first frame's body."""
        return pack([MAGIC, _HELLO, VERSION_MIN, VERSION_MAX, self._nonce])

    def receive(self, body: bytes) -> bytes | None:
        """Take the peer's frame, give the next one to send, if any; HandshakeError ends it."""
        kind, fields = _unpack(body)
        if kind == _REFUSAL:
            raise HandshakeError(UNPROVED + _reason(fields))
        if kind == _CHALLENGE and not self._is_proof_sent:
            return self._prove(fields)
        if kind == _VERDICT and self._is_proof_sent and self.peer is None:
            self._judge(fields)
            return None
        raise HandshakeError(f"frame of kind {kind} out of turn")

    def _prove(self, fields: list[object]) -> bytes:
        low, high, nonce = _versions_and_nonce(fields)
        if nonce == self._nonce:
            raise HandshakeError("the peer reflected our nonce")
        self.version = _common_version(low, high)
        said = [_identity_fields(self._own), self._expected, self._is_meet]
        self._transcript = [
            self.version,
            VERSION_MIN,
            VERSION_MAX,
            low,
            high,
            self._nonce,
            nonce,
            said,
        ]
        self._is_proof_sent = True
        return pack([MAGIC, _PROOF, *said, _mac(self._secret, "dialer", self._transcript)])

    def _judge(self, fields: list[object]) -> None:
        _need(fields, 3)
        peer = _read_identity(fields[0])
        reason = "" if fields[1] == "" else _reason(fields[1:2])
        said = [fields[0], fields[1]]
        proof = _mac(self._secret, "acceptor", [*self._transcript, said])
        if not hmac.compare_digest(proof, _bytes(fields[2])):
            raise HandshakeError("wrong cluster-secret: the answerer's isn't ours")
        if peer.id == self._own.id and not reason:
            reason = f"{DUPLICATE} the answerer has this node's own id {peer.id}"
        elif self._expected is not None and peer.id != self._expected and peer.id != self._own.id:
            raise HandshakeError(f"{WRONG_ID} expected {self._expected}, {peer.id} answered")
        if reason:
            raise HandshakeError(reason)
        self.peer = peer


class AcceptorHandshake:
    """The side that was dialed: `receive` until `peer` is set, then `accept` or `refuse`.

    `own_nonces` holds those with which this very process is dialing now: it tells a connection to
    myself from another process that runs with my id.
    """

    def __init__(
        self, *, own: Identity, secret: bytes, nonce: bytes, own_nonces: Container[bytes] = ()
    ) -> None:
        self._own = own
        self._secret = secret
        self._nonce = _checked_nonce(nonce)
        self._own_nonces = own_nonces
        self._peer_nonce: bytes | None = None
        self._versions: tuple[int, int, int] = (0, 0, 0)
        self._transcript: list[object] = []
        self._is_over = False
        self.version = 0
        self.peer: Identity | None = None
        self.expected: NodeId | None = None
        self.is_meet = False

    def receive(self, body: bytes) -> bytes | None:
        """Take the dialer's frame, give the next one to send, if any; HandshakeError ends it."""
        kind, fields = _unpack(body)
        if kind == _HELLO and self._peer_nonce is None:
            low, high, nonce = _versions_and_nonce(fields)
            self.version = _common_version(low, high)
            self._versions = (self.version, low, high)
            self._peer_nonce = nonce
            return pack([MAGIC, _CHALLENGE, VERSION_MIN, VERSION_MAX, self._nonce])
        if kind == _PROOF and self._peer_nonce is not None and self.peer is None:
            self._check_proof(fields, self._peer_nonce)
            return None
        raise HandshakeError(f"frame of kind {kind} out of turn")

    @property
    def conflict(self) -> str | None:
        """Why the proven peer can't be another node: it has my own id; None if it has its own."""
        if self.peer is None or self.peer.id != self._own.id:
            return None
        if self._peer_nonce in self._own_nonces:
            return f"{SELF} this is node {self._own.id} itself"
        return f"{DUPLICATE} another process runs with the id {self._own.id}"

    def accept(self) -> bytes:
        """The verdict's body that lets the proven peer in."""
        return self._verdict("")

    def refuse(self, reason: str) -> bytes:
        """The verdict's body that tells the proven peer why not."""
        return self._verdict(reason[:REASON_CHARS_MAX] or "refused")

    def _verdict(self, reason: str) -> bytes:
        if self.peer is None or self._is_over:
            raise LocalProtocolError("a verdict is given once, after the peer's proof")
        self._is_over = True
        said = [_identity_fields(self._own), reason]
        proof = _mac(self._secret, "acceptor", [*self._transcript, said])
        return pack([MAGIC, _VERDICT, *said, proof])

    def _check_proof(self, fields: list[object], peer_nonce: bytes) -> None:
        _need(fields, 4)
        peer = _read_identity(fields[0])
        version, low, high = self._versions
        transcript = [
            version,
            low,
            high,
            VERSION_MIN,
            VERSION_MAX,
            peer_nonce,
            self._nonce,
            fields[:3],
        ]
        if not hmac.compare_digest(_mac(self._secret, "dialer", transcript), _bytes(fields[3])):
            raise HandshakeError("wrong cluster-secret")
        try:
            self.expected = (
                None if fields[1] is None else messages.node_id(fields[1], "expected id")
            )
            self.is_meet = messages.flag(fields[2], "intent")
        except RemoteProtocolError as error:
            raise HandshakeError(str(error)) from error
        self._transcript = transcript
        self.peer = peer


def refusal(reason: str) -> bytes:
    """The body of a frame that refuses before, or without, any proof."""
    return pack([MAGIC, _REFUSAL, reason[:REASON_CHARS_MAX]])


def _checked_nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise LocalProtocolError(f"a nonce takes {NONCE_BYTES} bytes, got {len(nonce)}")
    return nonce


def _mac(secret: bytes, role: str, transcript: list[object]) -> bytes:
    try:
        said = pack([MAGIC, role, transcript])
    except (ValueError, TypeError, OverflowError) as error:  # the peer's words: nested too deep
        raise HandshakeError(f"handshake fields that can't be repeated: {error}") from error
    return hmac.new(secret, said, hashlib.sha256).digest()


def _unpack(body: bytes) -> tuple[int, list[object]]:
    if len(body) > HANDSHAKE_FRAME_BYTES_MAX:
        limit = HANDSHAKE_FRAME_BYTES_MAX
        raise HandshakeError(f"handshake frame of {len(body)} bytes, at most {limit} are allowed")
    try:
        fields = messages.unpack_list(body)
        if len(fields) < 2 or fields[0] != MAGIC:
            raise HandshakeError("the other side doesn't speak the bus protocol")
        return messages.number(fields[1], "kind"), fields[2:]
    except HandshakeError:
        raise
    except RemoteProtocolError as error:
        raise HandshakeError(f"the other side doesn't speak the bus protocol: {error}") from error


def _versions_and_nonce(fields: list[object]) -> tuple[int, int, bytes]:
    _need(fields, 3)
    try:
        low = messages.number(fields[0], "lowest version", most=65535)
        high = messages.number(fields[1], "highest version", most=65535)
    except RemoteProtocolError as error:
        raise HandshakeError(str(error)) from error
    nonce = _bytes(fields[2])
    if len(nonce) != NONCE_BYTES:
        raise HandshakeError(f"a nonce takes {NONCE_BYTES} bytes, got {len(nonce)}")
    return low, high, nonce


def _common_version(low: int, high: int) -> int:
    version = min(high, VERSION_MAX)
    if version < max(low, VERSION_MIN):
        raise HandshakeError(
            f"no common protocol version: the other side speaks {low}..{high}, we {VERSION_MIN}..{VERSION_MAX}"
        )
    return version


def _identity_fields(identity: Identity) -> list[object]:
    return [
        identity.id,
        identity.boot,
        identity.since,
        identity.host,
        identity.port,
        identity.bus_port,
    ]


def _read_identity(value: object) -> Identity:
    if not isinstance(value, list) or len(value) < 6:
        raise HandshakeError("an identity takes 6 fields")
    try:
        return Identity(
            id=messages.node_id(value[0], "id"),
            boot=messages.number(value[1], "boot"),
            since=messages.number(value[2], "since"),
            host=messages.host(value[3], "host"),
            port=messages.number(value[4], "port", most=65535),
            bus_port=messages.number(value[5], "bus port", most=65535),
        )
    except RemoteProtocolError as error:
        raise HandshakeError(str(error)) from error


def _reason(fields: list[object]) -> str:
    text = fields[0] if fields else None
    if not isinstance(text, str) or len(text) > REASON_CHARS_MAX:
        return "no reason given"
    return "".join(char if char.isprintable() else "?" for char in text) or "no reason given"


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _need(fields: list[object], count: int) -> None:
    if len(fields) < count:
        raise HandshakeError(
            f"{len(fields)} fields in a handshake frame, at least {count} are needed"
        )
