"""The handshake: who proves what to whom, and what each lie leads to."""

from __future__ import annotations

import contextlib

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import handshake
from cluster.errors import LocalProtocolError
from cluster.handshake import AcceptorHandshake, DialerHandshake, HandshakeError, Identity
from cluster.nodeid import NodeId

D = Identity(NodeId("d" * 40), 3, 2, "", 7711, 17711)
A = Identity(NodeId("a" * 40), 9, 9, "::1", 7712, 17712)
NONCE_D, NONCE_A = b"d" * 32, b"a" * 32


def dialer(
    secret: bytes = b"s",
    *,
    own: Identity = D,
    expected: NodeId | None = A.id,
    is_meet: bool = False,
    nonce: bytes = NONCE_D,
) -> DialerHandshake:
    return DialerHandshake(own=own, secret=secret, nonce=nonce, expected=expected, is_meet=is_meet)


def acceptor(
    secret: bytes = b"s",
    *,
    own: Identity = A,
    nonce: bytes = NONCE_A,
    own_nonces: tuple[bytes, ...] = (),
) -> AcceptorHandshake:
    return AcceptorHandshake(own=own, secret=secret, nonce=nonce, own_nonces=own_nonces)


def prove(left: DialerHandshake, right: AcceptorHandshake) -> list[bytes]:
    """Up to the dialer's proof; gives all bodies said."""
    hello = left.start()
    challenge = right.receive(hello)
    assert challenge is not None
    proof = left.receive(challenge)
    assert proof is not None
    assert right.receive(proof) is None
    return [hello, challenge, proof]


@pytest.mark.parametrize("secret", [b"", b"s", b"x" * 1000])
@pytest.mark.parametrize(("expected", "is_meet"), [(A.id, False), (None, True), (A.id, True)])
def test_both_sides_know_each_other_in_the_end(secret, expected, is_meet):
    left, right = dialer(secret, expected=expected, is_meet=is_meet), acceptor(secret)
    prove(left, right)
    assert (right.peer, right.expected, right.is_meet) == (D, expected, is_meet)
    assert left.receive(right.accept()) is None
    assert left.peer == A
    assert left.version == right.version == 1


@pytest.mark.parametrize(("left_secret", "right_secret"), [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_dialer_with_a_wrong_secret_is_refused_and_told_nothing(left_secret, right_secret):
    left, right = dialer(left_secret), acceptor(right_secret)
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        prove(left, right)
    assert right.peer is None
    with pytest.raises(LocalProtocolError):
        right.accept()


def test_acceptor_that_only_pretends_to_know_the_secret_is_found_out():
    left, right = dialer(b"real"), acceptor(b"guess")
    hello = left.start()
    challenge = right.receive(hello)
    assert challenge is not None
    left.receive(challenge)
    other = acceptor(b"guess")
    prove(dialer(b"guess"), other)
    with pytest.raises(HandshakeError, match="wrong cluster-secret: the answerer"):
        left.receive(other.accept())


def test_replayed_proof_is_refused():
    said = prove(dialer(), acceptor())
    fresh = acceptor(nonce=b"b" * 32)
    fresh.receive(said[0])
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        fresh.receive(said[2])


def test_replayed_verdict_is_refused():
    left, right = dialer(), acceptor()
    said = prove(left, right)
    verdict = right.accept()
    fresh = dialer(nonce=b"e" * 32)
    fresh.start()
    fresh.receive(said[1])
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        fresh.receive(verdict)


def test_reflected_frames_are_refused():
    left = dialer()
    with pytest.raises(HandshakeError, match="out of turn"):
        left.receive(left.start())
    mirror = dialer()
    mirror.start()
    with pytest.raises(HandshakeError, match="reflected our nonce"):
        mirror.receive(msgpack.packb([handshake.MAGIC, 2, 1, 1, NONCE_D]))


def test_proof_can_t_be_reflected_as_a_verdict():
    left, right = dialer(), acceptor()
    proof = msgpack.unpackb(prove(left, right)[2])
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        left.receive(msgpack.packb([handshake.MAGIC, 4, proof[2], "", proof[5]]))


@pytest.mark.parametrize("field", range(2, 6))
def test_each_field_of_the_proof_is_bound_into_the_mac(field):
    left, right = dialer(), acceptor()
    challenge = right.receive(left.start())
    assert challenge is not None
    proof = left.receive(challenge)
    assert proof is not None
    fields = msgpack.unpackb(proof)
    changed = {2: [*fields[2][:1], 4, *fields[2][2:]], 3: "b" * 40, 4: True, 5: b"\0" * 32}
    fields[field] = changed[field]
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        right.receive(msgpack.packb(fields))


def test_verdicts_reason_is_bound_into_the_mac():
    left, right = dialer(), acceptor()
    prove(left, right)
    fields = msgpack.unpackb(right.refuse("no"))
    fields[3] = ""
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        left.receive(msgpack.packb(fields))


def test_version_range_is_bound_into_the_mac():
    left, right = dialer(), acceptor()
    hello = msgpack.unpackb(left.start())
    hello[3] = 7  # somebody between offers more
    challenge = right.receive(msgpack.packb(hello))
    assert challenge is not None
    proof = left.receive(challenge)
    assert proof is not None
    with pytest.raises(HandshakeError, match="wrong cluster-secret"):
        right.receive(proof)


def test_later_versions_agree_on_ours_and_strange_ones_fail():
    right = acceptor()
    assert right.receive(msgpack.packb([handshake.MAGIC, 1, 1, 9, NONCE_D])) is not None
    with pytest.raises(HandshakeError, match=r"no common protocol version: .* 2..9, we 1..1"):
        acceptor().receive(msgpack.packb([handshake.MAGIC, 1, 2, 9, NONCE_D]))


def test_dialer_finds_another_node_than_expected():
    left, right = dialer(expected=NodeId("b" * 40)), acceptor()
    prove(left, right)
    with pytest.raises(HandshakeError, match=f"wrong id: expected {'b' * 40}, {A.id} answered"):
        left.receive(right.refuse("whatever"))


def test_proven_refusal_tells_its_reason():
    left, right = dialer(), acceptor()
    prove(left, right)
    with pytest.raises(HandshakeError, match=f"^forgotten by {A.id}$"):
        left.receive(right.refuse(f"{handshake.FORGOTTEN}{A.id}"))
    assert left.peer is None


def test_unproved_refusal_can_t_look_like_a_proven_one():
    left = dialer()
    left.start()
    with pytest.raises(HandshakeError, match=r"^refused \(unproved\): forgotten by") as caught:
        left.receive(handshake.refusal(f"{handshake.FORGOTTEN}{A.id}\n"))
    assert "\n" not in str(caught.value)


def test_connection_to_oneself_and_another_process_with_the_same_id_are_told_apart():
    myself = acceptor(own=D, own_nonces=(NONCE_D,))
    prove(dialer(), myself)
    assert str(myself.conflict).startswith(handshake.SELF)
    twin = acceptor(own=attrs.evolve(D, port=9))
    prove(dialer(), twin)
    assert str(twin.conflict).startswith(handshake.DUPLICATE)
    stranger = acceptor()
    prove(dialer(), stranger)
    assert stranger.conflict is None


def test_dialer_told_that_it_reached_itself_says_so():
    left, right = dialer(), acceptor(own=D, own_nonces=(NONCE_D,))
    prove(left, right)
    with pytest.raises(HandshakeError, match=r"^self: "):
        left.receive(right.refuse(str(right.conflict)))


@pytest.mark.parametrize("side", [dialer, acceptor])
def test_oversize_frame_is_refused(side):
    with pytest.raises(HandshakeError, match="4097 bytes, at most 4096"):
        side().receive(b"x" * 4097)


@pytest.mark.parametrize("side", [dialer, acceptor])
@pytest.mark.parametrize(
    "body", [b"", b"GET / HTTP/1.1", b"\x90", msgpack.packb(["x", 1]), msgpack.packb({"a": 1})]
)
def test_who_doesn_t_speak_the_protocol_is_told_apart(side, body):
    with pytest.raises(HandshakeError, match="doesn't speak the bus protocol"):
        side().receive(body)


def test_deeply_nested_fields_are_only_a_failure():
    right = acceptor()
    right.receive(dialer().start())
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    identity = ["d" * 40, 1, 1, "", 1, 1]
    body = msgpack.packb([handshake.MAGIC, 3, identity, deep, False, b"x" * 32])
    with pytest.raises(HandshakeError):
        right.receive(body)


@given(st.binary(max_size=120), st.booleans())
def test_no_bytes_raise_anything_else(body, is_second):
    for side in (dialer(), acceptor()):
        if is_second and isinstance(side, AcceptorHandshake):
            side.receive(dialer().start())
        with pytest.raises(HandshakeError):
            side.receive(body)


_fields = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.text(max_size=4)
    | st.binary(max_size=33)
    | st.just(["d" * 40, 1, 1, "", 1, 1])
    | st.lists(st.integers(0, 3), max_size=7),
    max_size=6,
)


@given(st.integers(0, 6), _fields)
def test_no_fields_raise_anything_else(kind, fields):
    body = msgpack.packb([handshake.MAGIC, kind, *fields])
    left, right = dialer(), acceptor()
    right.receive(left.start())
    for side in (left, right, acceptor()):
        with contextlib.suppress(HandshakeError):
            side.receive(body)
    assert left.peer is None
    assert right.peer is None


def test_nonce_has_its_length():
    with pytest.raises(LocalProtocolError, match="32 bytes, got 5"):
        dialer(nonce=b"short")
