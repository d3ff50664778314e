"""What a member can do to the view of others by lying, and where that ends."""

from __future__ import annotations

from cluster import messages
from cluster.contacts import BOOT_AHEAD_MAX
from cluster.nodeid import NodeId
from cluster.nodesfile import FORGOTTEN_MAX, StoredNodes
from cluster.ready import ConnId
from tests.unit.cluster.test_membership import B, C, alone, identity, linked
from tests.unit.cluster.world import START_MS


def ids(count: int, *, first: int = 0) -> tuple[NodeId, ...]:
    return tuple([NodeId(f"{number:040x}") for number in range(first, first + count)])


def forgetting(*nodes: NodeId) -> bytes:
    return messages.encode(messages.Forgotten(nodes))


def test_many_forgotten_ids_of_a_message_are_taken_in_one_go():
    one = linked()
    one.accepted(ConnId(3), identity(C), True, "10.0.0.1", "10.0.0.3")
    one.take_ready()
    told = ids(999)
    one.frame(ConnId(2), forgetting(*told, C))
    assert one.view().forgotten == {*told, C}
    assert C not in one.view().members
    ready = one.take_ready()
    spoken = [messages.decode(body) for conn, body in ready.frames if conn == ConnId(1)]
    assert spoken == [messages.Forgotten((*told, C))]
    assert [note.event for note in ready.notes] == ["nodes_forgotten"]
    assert ("count", 1_000) in ready.notes[0].facts
    one.frame(ConnId(2), forgetting(*told, C))
    ready = one.take_ready()
    assert not ready.frames
    assert not ready.notes


def test_hearsay_pushes_out_no_tombstone():
    stored = StoredNodes(forgotten=tuple((node, True) for node in ids(FORGOTTEN_MAX - 1)))
    one = alone(stored=stored)
    one.accepted(ConnId(2), identity(B), True, "10.0.0.1", "10.0.0.2")
    one.accepted(ConnId(3), identity(C), True, "10.0.0.1", "10.0.0.3")
    before = one.view().forgotten
    lies = ids(500, first=FORGOTTEN_MAX)
    one.frame(ConnId(2), forgetting(*lies))
    assert one.view().forgotten == before | {lies[0]}
    one.frame(ConnId(2), forgetting(C))
    assert C in one.view().forgotten, "who was a peer is forgotten, and the oldest goes"
    assert len(one.view().forgotten) == FORGOTTEN_MAX


def test_a_boot_that_no_clock_can_have_made_is_refused():
    one = alone()
    assert one.admits(identity(B, boot=BOOT_AHEAD_MAX + 1), None, True) is None
    for boot in (BOOT_AHEAD_MAX + 2, messages.NUMBER_MAX):
        reason = f"boot {boot} is no clock's, this node's is 1"
        assert one.admits(identity(B, boot=boot), None, True) == reason
        one.accepted(ConnId(2), identity(B, boot=boot), True, "10.0.0.1", "10.0.0.2")
        assert B not in one.view().members


def test_what_a_peer_can_repeat_is_noted_once_a_minute():
    one = linked()
    for port in range(1, 50):
        gossip = messages.Gossip(5, False, "10.0.0.9", 7711, port)
        one.frame(ConnId(2), messages.encode(messages.Ping(gossip)))
    assert [note.event for note in one.take_ready().notes] == ["peer_moved"]
    for conn in range(10, 20):
        one.accepted(ConnId(conn), identity(B, boot=5), False, "10.0.0.1", "10.0.0.9")
        one.frame(ConnId(conn), b"junk")
    assert [note.event for note in one.take_ready().notes] == ["peer_broke_protocol"]
    assert one.statistics().protocol_errors == 10
    for is_leaving in [True, False] * 20:
        gossip = messages.Gossip(5, is_leaving, "10.0.0.9", 7711, 49)
        one.accepted(ConnId(20), identity(B, boot=5), False, "10.0.0.1", "10.0.0.9")
        one.frame(ConnId(20), messages.encode(messages.Ping(gossip)))
    assert [note.event for note in one.take_ready().notes] == ["peer_leaving", "peer_stays"]
    one.advance(START_MS + 60_000)
    one.accepted(ConnId(30), identity(B, boot=5), False, "10.0.0.1", "10.0.0.9")
    one.frame(ConnId(30), b"junk")
    assert "peer_broke_protocol" in [note.event for note in one.take_ready().notes]
