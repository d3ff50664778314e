"""nodes.conf: what comes back, what is mended, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import nodesfile
from cluster.errors import NodesFileError
from cluster.messages import FAILED, LEAVING, NOADDR, SUSPECT
from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes, StoredPeer
from cluster.peer import Address

A, B, C, D = (NodeId(char * 40) for char in "abcd")
NODES = StoredNodes(
    id=A,
    address=Address("10.0.0.1", 7711, 17711),
    boot=5,
    since=3,
    leaving=True,
    peers=(
        StoredPeer(B, Address("::1", 7712, 17712), FAILED | LEAVING, 8, 7),
        StoredPeer(C, Address("", 0, 0), NOADDR),
    ),
    forgotten=((D, True), (NodeId("e" * 40), False)),
)
TEXT = f"""\
vars boot 5 since 3 leaving yes
{A} 10.0.0.1:7711@17711 myself,leaving 0 0 connected
{B} [::1]:7712@17712 fail,leaving 0 0 disconnected
{C} :0@0 noaddr 0 0 disconnected
vars peer {B} 8 7
forgotten {D} all
forgotten {"e" * 40}
"""


def test_text_is_that_of_cluster_nodes_and_more():
    assert nodesfile.format(NODES) == TEXT
    assert nodesfile.parse(TEXT) == NODES


_ids = st.integers(0, 2**160 - 1).map(lambda number: NodeId(f"{number:040x}"))
_hosts = st.sampled_from(["", "10.0.0.1", "::1", "fe80::1%eth0", "node-1.example", "a"])
_ports = st.integers(0, 65535)
_addresses = st.builds(Address, _hosts, _ports, _ports)
_numbers = st.integers(0, 2**63 - 1)
_peers = st.builds(
    StoredPeer,
    _ids,
    _addresses,
    st.sampled_from([0, SUSPECT, FAILED, NOADDR, LEAVING, FAILED | LEAVING | NOADDR]),
    _numbers,
    _numbers,
)


@st.composite
def stored_nodes(draw):
    ids = draw(st.lists(_ids, min_size=1, max_size=12, unique=True))
    own, *others = ids
    cut = draw(st.integers(0, len(others)))
    return StoredNodes(
        id=own,
        address=draw(_addresses),
        boot=draw(_numbers),
        since=draw(_numbers),
        leaving=draw(st.booleans()),
        peers=tuple(
            StoredPeer(each, p.address, p.flags, p.boot, p.since)
            for each in others[:cut]
            for p in [draw(_peers)]
        ),
        forgotten=tuple((each, draw(st.booleans())) for each in others[cut:]),
    )


@given(stored_nodes())
def test_what_was_written_is_read(nodes):
    assert nodesfile.parse(nodesfile.format(nodes)) == nodes


@given(stored_nodes())
def test_windows_line_ends_change_nothing(nodes):
    assert nodesfile.parse(nodesfile.format(nodes).replace("\n", "\r\n")) == nodes


def _parse(text: str) -> StoredNodes | None:
    with contextlib.suppress(NodesFileError):
        return nodesfile.parse(text)
    return None


@given(st.text(max_size=300))
def test_no_text_raises_anything_else(text):
    _parse(text)


_words = st.sampled_from(
    [
        A,
        B,
        "vars",
        "boot",
        "peer",
        "since",
        "leaving",
        "yes",
        "myself",
        "forgotten",
        "all",
        "x:1@2",
        "-1",
        ":",
        "[::1]:1",
        "connected",
        "0",
        "9" * 25,
        "²",
        "\0",
        "noflags",
        "fail,what",
        "h:99999",
    ]
)


@given(st.lists(st.lists(_words, max_size=8).map(" ".join), max_size=6).map("\n".join))
def test_no_words_raise_anything_else(text):
    _parse(text)
    _parse(TEXT + text + "\n")


@given(st.integers(0, len(TEXT)), st.integers(0, 30), st.text(max_size=5))
def test_damage_never_makes_another_identity(start, length, instead):
    nodes = _parse(TEXT[:start] + instead + TEXT[start + length :])
    if nodes is None or nodes.id is None:
        return
    assert nodes.id == A or start <= TEXT.index("myself") + 6


@given(st.integers(1, len(TEXT) - 1))
def test_cut_file_is_refused_or_loses_only_what_comes_after(length):
    nodes = _parse(TEXT[:length])
    own_end = TEXT.index("10.0.0.1:7711") + len("10.0.0.1:7711@17711 myself,leaving 0 0 connected")
    assert (nodes is None) == (length <= own_end)
    if nodes is not None:
        assert (nodes.id, nodes.boot, nodes.leaving) == (A, 5, True)
        assert all(peer.id in (B, C) for peer in nodes.peers)


@pytest.mark.parametrize("text", ["", "\n", " \r\n\n"])
def test_empty_file_is_a_fresh_start(text):
    assert nodesfile.parse(text) == StoredNodes()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\0" * 512, "512 NUL bytes"),
        (TEXT.replace("myself,", ""), "no line flagged myself"),
        (
            TEXT + f"{B} 10.0.0.2:1@2 myself 0 0 connected\n",
            "line 8: a second myself line, the first is line 2",
        ),
        (TEXT.replace("boot 5", "boot five"), "line 1: needs 'vars boot"),
        (TEXT.replace(A, A[:39]), "line 2: needs 6 fields"),
        (TEXT[: TEXT.index(" 0 0 connected")], "line 2: the line has no end"),
        ("garbage\n", "no line flagged myself"),
    ],
)
def test_what_would_lose_an_identity_is_refused_by_line(text, complaint):
    with pytest.raises(NodesFileError, match=complaint):
        nodesfile.parse(text)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (TEXT.replace("fail,", "odd,"), "line 3: unknown flag 'odd', ignored"),
        (TEXT.replace("@17712", "@177120"), "line 3: no address"),
        (TEXT + f"{B} 10.0.0.2:1@2 noflags 0 0 x\n", "line 8: this id stands twice, the first"),
        (TEXT + f"{A} 10.0.0.2:1@2 noflags 0 0 x\n", f"{A} is this node itself"),
        (TEXT + "forgotten x\n", "line 8: needs a node id"),
        (TEXT + "vars boot 9 since 9 leaving no\n", "line 8: boot stands twice, the larger"),
        (TEXT + f"forgotten {B}\n", "1 peers are forgotten ones"),
        (TEXT + "\0\0\0\0\n", "line 8: needs 6 fields"),
        (TEXT + f"{D[:20]}", "line 8: the file was cut here"),
        (TEXT.replace("vars boot 5 since 3 leaving yes\n", ""), "no 'vars boot' line"),
    ],
)
def test_what_can_be_mended_is_mended_with_a_warning(text, warning):
    nodes = nodesfile.parse(text)
    assert nodes.id == A
    assert any(each.startswith(warning) for each in nodes.warnings), nodes.warnings


def test_disques_own_file_is_read():
    text = (
        f"{A} 127.0.0.1:25000 myself 0 0 connected\n"
        f"{B} 127.0.0.1:25001 leaving 0 1795968199245 connected\n"
        "vars currentEpoch 0 lastVoteEpoch 0\n\n\n"
    )
    nodes = nodesfile.parse(text)
    assert nodes.peers == (StoredPeer(B, Address("127.0.0.1", 25001, 35001), LEAVING),)
    assert nodes.address == Address("127.0.0.1", 25000, 35000)
