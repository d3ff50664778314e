"""The codec: what was said comes back, and garbage is RemoteProtocolError."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import messages
from cluster.errors import RemoteProtocolError
from cluster.messages import Fail, Forgotten, Gossip, GossipEntry, Payload, Ping, Pong
from cluster.nodeid import NodeId

A, B = NodeId("a" * 40), NodeId("b" * 40)
ENTRY = GossipEntry(B, "::1", 7711, 17711, messages.FAILED)
GOSSIP = Gossip(3, True, "host.example", 7711, 17711, (ENTRY,), (A,), tls_port=7721)
ALL = [Ping(GOSSIP), Pong(GOSSIP), Fail(A), Payload(7, b"\x00\xff"), Forgotten((A, B))]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_message_comes_back(message):
    assert messages.decode(messages.encode(message)) == message


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_unknown_trailing_fields_and_a_later_version_are_borne(message):
    fields = msgpack.unpackb(messages.encode(message))
    later = msgpack.packb([2, *fields[1:], "new", {"x": 1}])
    assert messages.decode(later) == message


def test_unknown_trailing_fields_of_a_gossip_entry_are_borne():
    fields = msgpack.unpackb(messages.encode(Ping(GOSSIP)))
    fields[7][0].append("new")
    assert messages.decode(msgpack.packb(fields)) == Ping(GOSSIP)


def test_unknown_type_is_skipped():
    assert messages.decode(msgpack.packb([1, 99, "?"])) is None


def test_payload_frame_is_version_type_boot_bytes():
    assert msgpack.unpackb(messages.encode(Payload(7, b"x"))) == [1, 4, 7, b"x"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ([], "0 fields"),
        (["1", 4, 7, b"x"], "version must be"),
        ([1, 4, -1, b"x"], "boot must be"),
        ([1, 4, 7, "text"], "payload must be bytes"),
        ([1, 4, True, b"x"], "boot must be"),
        ([1, 3, "A" * 40], "failed id must be a node id"),
        ([1, 5, "x"], "forgotten ids must be an array"),
        ([1, 5, ["a" * 40] * 1001], "1001 given, at most 1000"),
        ([1, 1, 1, False, "h", 1, 1, [["a" * 40, "h", 1, 1, 0]] * 1001, []], "1001 given"),
        ([1, 1, 1, False, "two\nlines", 1, 1, [], []], "host must be a host"),
        ([1, 1, 1, False, "h", 65536, 1, [], []], "port must be 0..65535, got int 65536"),
        ([1, 1, 1, False, "h"], "5 fields, at least 9"),
    ],
)
def test_malformed_message_is_the_peers_fault(fields, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        messages.decode(msgpack.packb(fields))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(body):
    with contextlib.suppress(RemoteProtocolError):
        messages.decode(body)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(1, 5), st.lists(_json, max_size=9))
def test_no_fields_raise_anything_else(kind, fields):
    with contextlib.suppress(RemoteProtocolError):
        messages.decode(msgpack.packb([1, kind, *fields]))


@pytest.mark.parametrize(
    "body", [b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc7\x03\xff\x00\x00\x00"]
)
def test_deep_huge_or_odd_msgpack_is_the_peers_fault(body):
    with pytest.raises(RemoteProtocolError):
        messages.decode(body)


def test_what_is_large_is_a_payload_and_little_else():
    large = Payload(7, b"x" * (3 << 20))
    assert messages.decode(messages.encode(large)) == large
    assert messages.decode(msgpack.packb([2, 4, 7, large.data, "new"])) == large
    assert messages.decode(msgpack.packb([1, 99, large.data])) is None
    lists = [[]] * (2 << 20)
    for fields in ([1, 4, 7, lists], [1, 4, 7, large.data, lists], [1, 1, lists], [1, 5, lists]):
        with pytest.raises(RemoteProtocolError, match="bytes that is no payload"):
            messages.decode(msgpack.packb(fields))
    for body in (b"\x91" * (2 << 20), b"\x01" + large.data, b"\x94\x01\xd9\xff" + large.data):
        with pytest.raises(RemoteProtocolError):
            messages.decode(body)


def test_a_complaint_never_holds_all_of_what_it_is_about():
    class Long(bytes):
        def __repr__(self):
            raise AssertionError("the repr of all of it")

    assert messages._show(Long(200)) == "bytes " + repr(bytes(60))[:60]
