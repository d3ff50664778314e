"""Membership in a world of its own kind: joining, failing, forgetting, moving."""

from __future__ import annotations

import itertools
import random

import attrs
import pytest

from cluster import dialing, handshake, messages, nodesfile
from cluster.errors import LocalProtocolError
from cluster.membership import MEETINGS_MAX, Membership, MembershipConfig
from cluster.messages import Gossip, GossipEntry
from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes
from cluster.peer import LASTING_MS
from cluster.ready import ConnId, DialId, Identity
from tests.unit.cluster.world import BUS_PORT, START_MS, World

A, B, C, D = (NodeId(char * 40) for char in "abcd")


def identity(node: NodeId, *, boot: int = 1, host: str = "", bus_port: int = BUS_PORT) -> Identity:
    return Identity(id=node, boot=boot, since=boot, host=host, port=7711, bus_port=bus_port)


def alone(node_timeout_ms: int = 3_000, *, stored: StoredNodes | None = None) -> Membership:
    return Membership(
        identity=identity(A),
        config=MembershipConfig(node_timeout_ms=node_timeout_ms),
        stored=stored or StoredNodes(),
        dice=random.Random(1),
        now_ms=START_MS,
    )


def linked(*, boot: int = 5) -> Membership:
    """A, linked both ways with B: my link is connection 1, its is 2."""
    one = alone()
    one.meet("10.0.0.2", BUS_PORT)
    (dial,) = one.take_ready().dials
    one.dialed(dial.dial, ConnId(1), identity(B, boot=boot), "10.0.0.1", "10.0.0.2")
    one.accepted(ConnId(2), identity(B, boot=boot), False, "10.0.0.1", "10.0.0.2")
    one.take_ready()
    return one


def payload(boot: int, data: bytes = b"x") -> bytes:
    return messages.encode(messages.Payload(boot, data))


# Joining


def test_mesh_of_seven_forms_from_a_chain_of_meets_within_three_seconds():
    world = World()
    nodes = [world.add(f"n{index}") for index in range(7)]
    for left, right in itertools.pairwise(nodes):
        world.meet(left, right)
    took = world.run_until(lambda: world.is_mesh(nodes), 10_000)
    assert world.is_mesh(nodes)
    assert took <= 3_000
    assert all(node.membership.statistics().handshakes_pending == 0 for node in nodes)


def test_mesh_forms_after_hard_resets_one_after_another_while_others_know_old_ids():
    world = World()
    nodes = world.mesh(7)
    old_ids = {node.id for node in nodes}
    for index, node in enumerate(nodes):
        node.membership.reset(new_id=NodeId(f"{index:040x}"))
        world.run(20)
    for left, right in itertools.pairwise(nodes):
        world.meet(left, right)
    took = world.run_until(lambda: world.is_mesh(nodes), 10_000)
    assert world.is_mesh(nodes)
    assert took <= 3_000
    assert not any(old_ids & set(node.membership.view().members) for node in nodes)


def test_soft_reset_node_isn_t_drawn_back_in():
    world = World()
    nodes = world.mesh(4)
    nodes[0].membership.reset(new_id=None)
    world.run(20_000)
    assert list(nodes[0].membership.view().members) == [nodes[0].id]
    assert not nodes[1].membership.view().members[nodes[0].id].is_reachable


def test_leaving_flag_survives_reset_and_restart():
    world = World()
    a, b = world.mesh(2)
    a.membership.set_leaving(True)
    world.settle()
    assert world.flags(b) == {"n0": "leaving"}
    a.membership.reset(new_id=None)
    assert a.membership.view().is_leaving
    world.settle()
    world.kill(a)
    world.restart(a)
    assert a.membership.view().is_leaving


def test_meet_to_a_node_that_starts_later_joins_it():
    world = World()
    a = world.add("a")
    a.membership.meet("10.0.0.2", BUS_PORT)
    world.run(30_000)
    assert a.membership.statistics().handshakes_pending == 1
    b = world.add("b")
    world.run(3_000)
    assert world.is_mesh([a, b])


def test_meet_is_given_up_after_three_minutes_and_the_failure_is_told():
    world = World()
    a = world.add("a")
    a.membership.meet("10.0.0.9", BUS_PORT)
    world.run(179_000)
    assert a.membership.statistics().known_nodes == 2
    world.run(2_000)
    statistics = a.membership.statistics()
    assert (statistics.known_nodes, statistics.handshakes_pending) == (1, 0)
    assert statistics.last_handshake_failure == (
        "10.0.0.9:17711",
        "no connection: Connection refused",
    )
    assert statistics.handshakes_failed > 20
    assert a.events("handshake_failed") == [
        {"address": "10.0.0.9:17711", "reason": "no connection: Connection refused"}
    ]
    assert a.events("meet_given_up") == [
        {"address": "10.0.0.9:17711", "reason": "no connection: Connection refused"}
    ]
    assert a.membership.next_wakeup_ms() is None


def test_sticky_meet_is_tried_for_ever():
    world = World()
    a = world.add("a")
    a.membership.meet("10.0.0.2", BUS_PORT, is_sticky=True)
    world.run(600_000)
    b = world.add("b")
    world.run(3_000)
    assert world.is_mesh([a, b])
    assert a.membership.statistics().handshakes_pending == 0
    assert [note.level for note in a.notes if note.event == "handshake_failed"] == ["info"]


def test_sticky_meet_that_is_refused_is_a_warning():
    world = World()
    a, b = world.add("a"), world.add("b")
    b.secret = b"other"
    a.membership.meet(b.host, BUS_PORT, is_sticky=True)
    world.run(3_000)
    assert [note.level for note in a.notes if note.event == "handshake_failed"] == ["warning"]


def test_both_meet_each_other_and_nobody_has_moved():
    world = World()
    a, b = world.add("a"), world.add("b")
    for one, other in ((a, b), (b, a)):
        one.membership.meet(other.host, BUS_PORT, is_sticky=True)
    world.run(3_000)
    assert world.is_mesh([a, b])
    for node in (a, b):
        assert len(node.events("peer_joined")) == 1
        assert node.events("peer_moved") == []


def test_meet_of_the_own_address_is_harmless():
    world = World()
    a = world.add("a")
    a.membership.meet(a.host, BUS_PORT)
    world.run(1_000)
    assert a.membership.nodes_text().count("\n") == 1
    assert a.membership.statistics().handshakes_failed == 0
    assert a.membership.next_wakeup_ms() is None


def test_sticky_meet_of_the_own_address_ends_once_another_node_is_known():
    world = World()
    a, b = world.add("a"), world.add("b")
    a.membership.meet(a.host, BUS_PORT, is_sticky=True)
    world.run(5_000)
    assert a.membership.statistics().handshakes_pending == 1
    world.meet(b, a)
    world.run(5_000)
    assert world.is_mesh([a, b])
    assert a.membership.statistics().handshakes_pending == 0


def test_second_meet_of_an_address_is_one_handshake():
    one = alone()
    one.meet("b.example", BUS_PORT)
    one.meet("b.example", BUS_PORT)
    assert len(one.take_ready().dials) == 1
    assert one.statistics().handshakes_pending == 1


def test_pending_handshakes_are_bounded():
    one = alone()
    for index in range(MEETINGS_MAX):
        one.meet(f"h{index}", BUS_PORT)
    with pytest.raises(LocalProtocolError, match="64 handshakes are pending"):
        one.meet("more", BUS_PORT)


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("a b", 1), ("a\n", 1), ("a", 0), ("a", 65536)]
)
def test_meet_of_what_is_no_address_is_refused(host, port):
    with pytest.raises(LocalProtocolError, match="Invalid node address"):
        alone().meet(host, port)


def test_node_with_another_secret_is_never_listed():
    world = World()
    a, b = world.add("a", secret=b"right"), world.add("b", secret=b"wrong")
    a.membership.meet(b.host, BUS_PORT)
    b.membership.meet(a.host, BUS_PORT)
    world.run(70_000)
    assert len(a.membership.view().members) == len(b.membership.view().members) == 1
    assert a.membership.statistics().last_handshake_failure is not None


def test_idle_node_without_peers_sleeps():
    one = alone()
    one.advance(START_MS)
    assert one.next_wakeup_ms() is None


# Failing


def test_two_dead_of_seven_fail_within_ten_seconds_and_clear_at_their_word():
    world = World()
    nodes = world.mesh(7)
    world.kill(nodes[5])
    world.kill(nodes[6])

    def failed() -> int:
        return sum(flags == "fail" for flags in world.flags(nodes[0]).values())

    took = world.run_until(lambda: failed() == 2, 10_000)
    assert failed() == 2
    assert took > 3_000
    world.restart(nodes[5])
    world.restart(nodes[6])
    took = world.run_until(lambda: world.is_mesh(nodes), 5_000)
    assert failed() == 0
    assert took < 1_000


def test_broken_link_is_unreachable_at_once_but_not_yet_suspect():
    world = World()
    a, b, c = world.mesh(3)
    world.kill(b)
    member = a.membership.view().members[b.id]
    assert not member.is_reachable
    assert not member.is_suspect
    assert a.membership.view().members[c.id].is_reachable


def test_dead_peer_of_two_stays_suspect():
    world = World()
    a, b = world.mesh(2)
    world.kill(b)
    world.run(60_000)
    assert world.flags(a) == {"n1": "fail?"}


def test_minority_side_never_says_fail():
    world = World()
    nodes = world.mesh(5)
    for left in nodes[:2]:
        for right in nodes[2:]:
            world.cut(left, right)
    world.run(20_000)
    assert sorted(world.flags(nodes[0]).values()) == ["fail?", "fail?", "fail?", "noflags"]
    assert sorted(world.flags(nodes[4]).values()) == ["fail", "fail", "noflags", "noflags"]
    world.heal()
    world.run_until(lambda: world.is_mesh(nodes), 5_000)
    assert world.is_mesh(nodes)


def test_one_way_cut_makes_both_sides_unreachable():
    world = World()
    a, b, _ = world.mesh(3)
    world.cuts = {(b.name, a.name)}
    world.run(10_000)
    assert not a.membership.view().members[b.id].is_reachable
    assert not b.membership.view().members[a.id].is_reachable


def test_w23_word_of_a_failure_isn_t_believed_about_a_node_that_is_heard():
    one = linked()
    one.accepted(ConnId(4), identity(C), True, "10.0.0.1", "10.0.0.3")
    one.frame(ConnId(4), messages.encode(messages.Fail(B)))
    assert not one.view().members[B].is_failed


def test_failure_reports_expire():
    world = World()
    a, _b, c, d = world.mesh(4)
    world.kill(d)
    world.kill(c)
    world.run(20_000)
    # Two of four alive: never a majority of three, whatever was reported before.
    assert world.flags(a) == {"n1": "noflags", "n2": "fail?", "n3": "fail?"}


def test_own_long_sleep_makes_nobody_suspect():
    one = linked()
    one.advance(START_MS + 60_000)
    assert not one.view().members[B].is_suspect
    one.frame(ConnId(2), payload(5))
    one.advance(START_MS + 61_600)
    assert not one.view().members[B].is_suspect


def test_flags_survive_a_restart_and_clear_when_heard():
    world = World()
    nodes = world.mesh(4)
    world.kill(nodes[3])
    world.run(10_000)
    world.kill(nodes[0])
    world.restart(nodes[0])
    assert world.flags(nodes[0])["n3"] == "fail"
    world.restart(nodes[3])
    world.run_until(lambda: world.is_mesh(nodes), 3_000)
    assert world.is_mesh(nodes)


# Forgetting


def test_forgotten_node_isn_t_brought_back_by_gossip():
    world = World()
    nodes = world.mesh(4)
    nodes[0].membership.forget(nodes[3].id)
    world.run(120_000)
    assert nodes[3].id not in nodes[0].membership.view().members
    assert nodes[3].id in nodes[0].membership.view().forgotten
    assert nodes[3].id in nodes[1].membership.view().members
    member = nodes[3].membership.view().members[nodes[0].id]
    assert not member.is_reachable
    assert nodes[3].membership.statistics().forgotten_by == (nodes[0].id,)
    assert nodes[3].membership.view().is_forgotten
    assert nodes[3].events("cluster_forgotten_by") == [{"by": nodes[0].id, "id": nodes[3].id}]


def test_forget_stays_over_a_restart_of_either_side():
    world = World()
    nodes = world.mesh(3)
    nodes[0].membership.forget(nodes[2].id)
    world.settle()
    for node in (nodes[0], nodes[2]):
        world.kill(node)
        world.restart(node)
    world.run(30_000)
    assert nodes[2].id not in nodes[0].membership.view().members
    assert nodes[2].membership.statistics().forgotten_by == (nodes[0].id,)


def test_forget_everywhere_reaches_a_node_that_was_away():
    world = World()
    nodes = world.mesh(4)
    world.kill(nodes[1])
    nodes[0].membership.forget(nodes[3].id, everywhere=True)
    world.settle()
    assert nodes[3].id not in nodes[2].membership.view().members
    world.run(5_000)
    world.restart(nodes[1])
    world.run(5_000)
    assert nodes[3].id not in nodes[1].membership.view().members
    assert sorted(nodes[3].membership.statistics().forgotten_by) == sorted(
        node.id for node in nodes[:3]
    )
    assert world.is_mesh(nodes[:3])


def test_meet_of_a_forgotten_id_is_refused():
    world = World()
    a, b = world.mesh(2)
    a.membership.forget(b.id)
    world.meet(b, a)
    world.meet(a, b)
    world.run(70_000)
    assert len(a.membership.view().members) == 1


def test_forgotten_node_comes_back_under_a_new_id():
    world = World()
    a, b = world.mesh(2)
    a.membership.forget(b.id)
    world.run(1_000)
    b.membership.reset(new_id=NodeId("7" * 40))
    world.meet(a, b)
    world.run(3_000)
    assert world.is_mesh([a, b])


def test_forget_refuses_self_and_strangers():
    one = alone()
    with pytest.raises(LocalProtocolError, match="can't forget myself"):
        one.forget(A)
    with pytest.raises(LocalProtocolError, match=f"Unknown node {B}"):
        one.forget(B)


def test_forgotten_ids_are_bounded_and_the_newest_stay():
    ids = [NodeId(f"{index:040x}") for index in range(10_002)]
    one = alone(stored=StoredNodes(forgotten=tuple((node, False) for node in ids)))
    assert one.view().forgotten == frozenset(ids[2:])


# Identity, address, boot


def test_address_change_is_followed():
    world = World()
    nodes = world.mesh(3)
    world.kill(nodes[2])
    world.run(1_000)
    world.restart(nodes[2], host="10.9.9.9")
    world.run_until(lambda: world.is_mesh(nodes), 5_000)
    assert world.is_mesh(nodes)
    assert {n.membership.view().members[nodes[2].id].host for n in nodes[:2]} == {"10.9.9.9"}


def test_announced_address_change_is_told_to_all():
    world = World()
    nodes = world.mesh(3)
    nodes[0].membership.set_announce("10.0.0.1", 9999, BUS_PORT, 0)
    world.settle()
    assert {n.membership.view().members[nodes[0].id].port for n in nodes} == {9999}
    assert world.is_mesh(nodes)


def test_larger_boot_is_a_restart_and_a_smaller_one_is_ignored():
    world = World()
    a, b = world.mesh(2)
    world.kill(b)
    world.restart(b, boot=9)
    world.run(1_000)
    assert a.membership.view().members[b.id].boot == 9
    world.kill(b)
    world.restart(b, boot=4)
    world.run(10_000)
    assert a.membership.view().members[b.id].boot == 9
    assert not a.membership.view().members[b.id].is_reachable
    reason = a.membership.admits(identity(b.id, boot=4), a.id, False)
    assert reason == "boot 4 is smaller than 9, seen before (an old copy?)"
    # Once a minute each
    assert a.events("peer_refused") == [{"id": b.id, "reason": reason}]
    assert b.events("link_refused") == [{"id": a.id, "reason": reason}]
    assert b.membership.statistics().refused_by == (a.id,)
    world.kill(b)
    world.restart(b, boot=10)
    world.run_until(lambda: world.is_mesh([a, b]), 3_000)
    assert b.membership.statistics().refused_by == ()


def test_a_node_that_is_merely_down_is_no_warning():
    one = linked()
    one.closed(ConnId(1))
    one.advance(START_MS + 2_000)
    (dial,) = one.take_ready().dials
    one.dial_failed(dial.dial, f"{handshake.UNREACHED}Connection refused")
    assert [(n.level, n.event) for n in one.take_ready().notes] == [("debug", "dial_failed")]
    assert one.statistics().refused_by == ()


def test_a_ping_that_came_before_there_was_a_link_is_answered_over_the_next_one():
    # else two that link by turns never hear of each other
    one = linked()
    one.closed(ConnId(1))
    one.frame(
        ConnId(2),
        messages.encode(messages.Ping(dialing.compose_gossip(one._state, one._state.peers[B]))),
    )
    one.advance(START_MS + 2_000)
    (dial,) = one.take_ready().dials
    one.dialed(dial.dial, ConnId(4), identity(B, boot=5), "10.0.0.1", "10.0.0.2")
    told = [
        type(messages.decode(body)) for conn, body in one.take_ready().frames if conn == ConnId(4)
    ]
    assert told == [messages.Ping, messages.Pong]


def test_frames_of_a_superseded_connection_are_dropped():
    one = linked()
    one.accepted(ConnId(3), identity(B, boot=5), False, "10.0.0.1", "10.0.0.2")
    assert one.take_ready().closes == [ConnId(2)]
    one.frame(ConnId(2), payload(5, b"late"))
    one.frame(ConnId(3), payload(5, b"now"))
    assert one.take_ready().payloads == [(B, 5, b"now")]
    one.closed(ConnId(2))
    assert one.view().members[B].is_reachable


def test_frames_of_a_smaller_boot_are_dropped():
    one = linked(boot=5)
    one.accepted(ConnId(3), identity(B, boot=6), False, "10.0.0.1", "10.0.0.2")
    one.frame(ConnId(2), payload(5, b"old process"))
    one.frame(ConnId(3), payload(5, b"old stamp"))
    one.frame(ConnId(3), payload(6, b"new"))
    ready = one.take_ready()
    assert ready.payloads == [(B, 6, b"new")]
    assert ready.closes == [ConnId(1), ConnId(2)] or ready.closes == [ConnId(2), ConnId(1)]
    assert len(ready.dials) == 1


def test_w22_ghost_is_listed_but_never_reachable_nor_spread():
    world = World()
    nodes = world.mesh(3)
    old = nodes[2].id
    nodes[2].membership.reset(new_id=NodeId("7" * 40))
    world.run(20_000)
    for node in nodes[:2]:
        member = node.membership.view().members[old]
        assert (member.is_reachable, member.is_suspect) == (False, True)
        assert "noaddr" in world.flags(node)[old]
    late = world.add("late")
    world.meet(late, nodes[0])
    world.run(20_000)
    assert old not in late.membership.view().members
    assert world.is_mesh([late]) is False
    assert len(late.membership.view().members) == 3


def test_another_process_with_the_own_id_is_refused_and_noted():
    one = alone()
    reason = one.admits(identity(A, boot=7), None, True)
    assert reason is not None
    assert reason.startswith(handshake.DUPLICATE)
    assert [note.event for note in one.take_ready().notes] == ["duplicate_node_id"]


def test_link_intent_of_a_stranger_and_of_who_expects_another_is_refused():
    one = alone()
    assert str(one.admits(identity(B), A, False)).startswith(handshake.UNKNOWN_NODE)
    assert str(one.admits(identity(B), C, True)).startswith(handshake.WRONG_ID)
    assert one.admits(identity(B), None, True) is None


def test_restart_finds_the_others_without_any_meet():
    world = World()
    nodes = world.mesh(5)
    for node in nodes:
        world.kill(node)
    for node in nodes:
        world.restart(node)
    took = world.run_until(lambda: world.is_mesh(nodes), 5_000)
    assert world.is_mesh(nodes)
    assert took < 3_000


# Payloads, Ready, text


def test_payload_goes_only_over_the_own_link():
    world = World()
    a, b, c = world.mesh(3)
    assert a.membership.send(b.id, b"hello")
    assert not a.membership.send(D, b"hello")
    world.settle()
    assert b.payloads == [(a.id, 1, b"hello")]
    assert c.payloads == []
    world.kill(b)
    assert not a.membership.send(b.id, b"gone")


def test_frames_on_a_dialed_link_break_the_protocol():
    one = linked()
    one.frame(ConnId(1), payload(5))
    ready = one.take_ready()
    assert (ready.closes, ready.payloads) == ([ConnId(1)], [])


def test_garbage_closes_the_connection_and_is_noted():
    one = linked()
    one.frame(ConnId(2), b"\xff\x00garbage")
    ready = one.take_ready()
    assert ready.closes == [ConnId(2)]
    assert [note.event for note in ready.notes] == ["peer_broke_protocol"]
    assert not one.view().members[B].is_reachable
    one.frame(ConnId(77), b"of nobody")
    assert one.take_ready().closes == []


def test_gossip_invites_only_nodes_that_are_well():
    entries = (
        GossipEntry(C, "10.0.0.3", 7711, BUS_PORT, messages.FAILED),
        GossipEntry(D, "10.0.0.4", 7711, BUS_PORT, messages.LEAVING),
        GossipEntry(A, "10.0.0.1", 7711, BUS_PORT, 0),
    )
    one = linked()
    gossip = Gossip(5, False, "", 7711, BUS_PORT, entries)
    one.frame(ConnId(2), messages.encode(messages.Ping(gossip)))
    (dial,) = one.take_ready().dials
    assert (dial.host, dial.expected, dial.is_meet) == ("10.0.0.4", D, True)


@pytest.mark.parametrize("ending", ["met", "forgotten", "no longer told of"])
def test_who_joins_while_a_member_is_cut_off_knows_that_there_is_one(ending: str) -> None:
    world = World()
    nodes = world.mesh(2)
    world.kill(nodes[1])
    world.run(10_000)
    newcomer = world.add("new")
    world.meet(newcomer, nodes[0])
    world.run(3_000)
    assert newcomer.membership.view().has_unmet
    assert len(newcomer.membership.view().members) == 2
    if ending == "met":
        world.restart(nodes[1])
    else:
        nodes[0].membership.forget(nodes[1].id, everywhere=ending == "forgotten")
    world.run(30_000)
    assert not any(node.membership.view().has_unmet for node in (nodes[0], newcomer))


def test_tls_port_is_the_one_that_was_told_last():
    one = linked()
    for told in (7721, 7722, 0):
        gossip = Gossip(5, False, "", 7711, BUS_PORT, tls_port=told)
        one.frame(ConnId(2), messages.encode(messages.Ping(gossip)))
        assert one.view().members[B].tls_port == told


def test_flood_of_gossiped_strangers_is_bounded():
    entries = tuple(
        GossipEntry(NodeId(f"{index:040x}"), f"10.1.{index // 250}.{index % 250}", 1, 2, 0)
        for index in range(1_000)
    )
    one = linked()
    one.frame(
        ConnId(2), messages.encode(messages.Ping(Gossip(5, False, "", 7711, BUS_PORT, entries)))
    )
    assert one.statistics().handshakes_pending == MEETINGS_MAX


def test_meet_by_hand_takes_over_a_handshake_that_gossip_began():
    one = linked()
    gossip = Gossip(5, False, "", 7711, BUS_PORT, (GossipEntry(C, "10.0.0.3", 1, BUS_PORT, 0),))
    one.frame(ConnId(2), messages.encode(messages.Ping(gossip)))
    (dial,) = one.take_ready().dials
    one.meet("10.0.0.3", BUS_PORT)
    one.dial_failed(dial.dial, f"{handshake.WRONG_ID} expected {C}, {D} answered")
    one.advance(START_MS + 100)
    (dial,) = one.take_ready().dials
    assert (dial.host, dial.expected) == ("10.0.0.3", None)


def test_unknown_conns_and_dials_are_harmless():
    one = linked()
    one.closed(ConnId(99))
    one.dial_failed(DialId(99), "whatever")
    one.dialed(DialId(99), ConnId(50), identity(C), "", "")
    ready = one.take_ready()
    assert ready.closes == [ConnId(50)]
    assert sorted(one.view().members) == [A, B]


def test_view_is_told_only_when_it_changed():
    one = linked()
    assert one.take_ready().view is None
    one.view()
    one.set_leaving(True)
    one.view()  # looking at it must not hide the change
    ready = one.take_ready()
    assert ready.view is not None
    assert ready.view.is_leaving
    one.frame(ConnId(2), payload(5))
    assert one.take_ready().view is None


def test_nodes_file_is_written_at_first_and_not_for_pings():
    world = World()
    nodes = world.mesh(3)
    saves = [node.saves for node in nodes]
    world.run(60_000)
    assert [node.saves for node in nodes] == saves
    stored = nodesfile.parse(nodes[0].disk)
    assert stored.warnings == ()
    assert {peer.id for peer in stored.peers} == {nodes[1].id, nodes[2].id}
    assert {peer.boot for peer in stored.peers} == {1}


def test_cluster_nodes_has_six_fields_and_brackets_ipv6():
    one = alone()
    one.meet("::1", BUS_PORT)
    (dial,) = one.take_ready().dials
    pending = one.nodes_text().splitlines()[1].split(" ")
    assert pending[1:] == ["[::1]:7711", "handshake", "0", "0", "disconnected"]
    one.dialed(dial.dial, ConnId(1), identity(B), "::1", "::1")
    mine, other = one.nodes_text().splitlines()
    assert mine == f"{A} [::1]:7711 myself 0 0 connected"
    assert other == f"{B} [::1]:7711 noflags {START_MS} 0 connected"


def test_backoff_doubles_to_half_a_node_timeout_or_two_seconds():
    one = alone(node_timeout_ms=60_000)
    one.meet("h", BUS_PORT, is_sticky=True)
    waits = []
    now = START_MS
    for _ in range(8):
        (dial,) = one.take_ready().dials
        one.dial_failed(dial.dial, "no")
        due = one.next_wakeup_ms()
        assert due is not None
        waits.append(due - now)
        now = due
        one.advance(now)
    steps = [100, 200, 400, 800, 1600, 2000, 2000, 2000]
    assert all(step // 2 <= wait <= step for wait, step in zip(waits, steps, strict=True))


def test_links_that_do_not_last_are_dialed_ever_more_seldom_and_told_once_a_minute():
    one = linked()
    one.set_node_timeout(60_000)
    events: list[str] = []
    conn, now, dials = ConnId(1), START_MS + LASTING_MS, 0
    one.advance(now)

    def lose(conn: ConnId) -> int:
        """How long it takes until the next dial, which comes through."""
        nonlocal now
        began_ms = now
        one.closed(conn)
        while not (ready := one.take_ready()).dials:
            events.extend([note.event for note in ready.notes])
            now = one.next_wakeup_ms() or now
            one.advance(now)
        one.dialed(ready.dials[0].dial, conn, identity(B, boot=5), "10.0.0.1", "10.0.0.2")
        return now - began_ms

    while now < START_MS + 60_000:
        lose(conn)
        dials += 1
    assert 27 <= dials <= 62
    assert events.count("link_short") == 1
    one.closed(conn)
    one.accepted(ConnId(9), identity(B, boot=5), False, "10.0.0.1", "10.0.0.2")
    (dial,) = one.take_ready().dials
    one.dialed(dial.dial, conn, identity(B, boot=5), "10.0.0.1", "10.0.0.2")
    assert lose(conn) >= 1_000
    now += LASTING_MS
    one.advance(now)
    assert lose(conn) <= 100


def test_connection_from_a_peer_makes_us_dial_back_at_once():
    one = linked()
    one.closed(ConnId(1))
    for _ in range(5):
        due = one.next_wakeup_ms()
        assert due is not None
        one.advance(due)
        for dial in one.take_ready().dials:
            one.dial_failed(dial.dial, "no")
    one.accepted(ConnId(9), identity(B, boot=5), False, "10.0.0.1", "10.0.0.2")
    assert len(one.take_ready().dials) == 1


def test_same_seed_gives_the_same_story():
    def story() -> list[object]:
        world = World(seed=7)
        nodes = world.mesh(5)
        world.kill(nodes[1])
        world.run(10_000)
        return [(n.name, [attrs.astuple(note) for note in n.notes]) for n in nodes]

    assert story() == story()


# Small steps of one node


def ping_from_b(one: Membership, *entries: GossipEntry) -> None:
    gossip = Gossip(5, False, "", 7711, BUS_PORT, entries)
    one.frame(ConnId(2), messages.encode(messages.Ping(gossip)))


def pass_silence(one: Membership) -> None:
    """3.5 s in which B alone speaks, and nobody can be dialed."""
    for now in range(START_MS + 100, START_MS + 3_501, 100):
        one.advance(now)
        for dial in one.take_ready().dials:
            one.dial_failed(dial.dial, "no")
        one.frame(ConnId(2), messages.encode(messages.Pong(Gossip(5, False, "", 7711, BUS_PORT))))


def with_silent_c() -> Membership:
    """A linked with B; C was there once and is silent for longer than the node timeout."""
    one = linked()
    one.accepted(ConnId(4), identity(C), True, "10.0.0.1", "10.0.0.3")
    one.closed(ConnId(4))
    for dial in one.take_ready().dials:
        one.dial_failed(dial.dial, "no")
    pass_silence(one)
    return one


def test_fail_is_told_to_all_linked_peers():
    one = with_silent_c()
    assert one.view().members[C].is_suspect
    ping_from_b(one, GossipEntry(C, "10.0.0.3", 7711, BUS_PORT, messages.SUSPECT))
    assert one.view().members[C].is_failed
    assert (ConnId(1), messages.encode(messages.Fail(C))) in one.take_ready().frames


def test_report_is_taken_back_by_later_gossip():
    one = linked()
    one.accepted(ConnId(4), identity(C), True, "10.0.0.1", "10.0.0.3")
    ping_from_b(one, GossipEntry(C, "10.0.0.3", 7711, BUS_PORT, messages.SUSPECT))
    ping_from_b(one, GossipEntry(C, "10.0.0.3", 7711, BUS_PORT, 0))
    one.closed(ConnId(4))
    pass_silence(one)
    member = one.view().members[C]
    assert (member.is_suspect, member.is_failed) == (True, False)


def test_place_that_works_isn_t_left_for_where_a_connection_seems_to_come_from():
    one = linked()
    one.accepted(ConnId(3), identity(B, boot=5), False, "10.0.0.1", "172.17.0.1")
    assert one.view().members[B].host == "10.0.0.2"
    one.closed(ConnId(1))
    hosts = []
    now = START_MS
    for _ in range(4):
        now += 2_000
        one.advance(now)
        for dial in one.take_ready().dials:
            hosts.append(dial.host)
            one.dial_failed(dial.dial, "no")
    assert hosts == ["10.0.0.2", "172.17.0.1", "10.0.0.2", "172.17.0.1"]


def test_known_place_of_a_broken_link_is_left_for_where_the_peer_comes_from():
    one = linked()
    one.closed(ConnId(1))
    one.take_ready()
    one.accepted(ConnId(3), identity(B, boot=5), False, "10.0.0.1", "10.7.7.7")
    assert [dial.host for dial in one.take_ready().dials] == ["10.7.7.7"]


def test_forgotten_peer_is_told_before_its_connections_close():
    one = linked()
    one.forget(B)
    ready = one.take_ready()
    assert ready.frames == [(ConnId(1), messages.encode(messages.Forgotten((B,))))]
    assert ready.closes == [ConnId(1), ConnId(2)]


def test_sticky_meet_goes_on_after_a_find_that_can_t_be_used():
    one = linked()
    one.forget(B)
    one.take_ready()
    one.meet("service.example", BUS_PORT, is_sticky=True)
    (dial,) = one.take_ready().dials
    one.dialed(dial.dial, ConnId(9), identity(B, boot=5), "", "10.0.0.2")
    assert one.take_ready().closes == [ConnId(9)]
    assert one.statistics().handshakes_pending == 1


def test_back_off_begins_anew_when_the_peer_dials_us():
    one = linked()
    one.closed(ConnId(1))
    now = START_MS
    for _ in range(6):
        now += 2_000
        one.advance(now)
        for dial in one.take_ready().dials:
            one.dial_failed(dial.dial, "no")
    one.accepted(ConnId(9), identity(B, boot=5), False, "10.0.0.1", "10.0.0.2")
    (dial,) = one.take_ready().dials
    one.dial_failed(dial.dial, "no")
    one.advance(now + 100)
    assert len(one.take_ready().dials) == 1


@pytest.mark.parametrize("who_meets", ["a member", "the forgotten node"])
def test_a_meet_by_hand_from_either_side_calls_a_forgotten_node_back(who_meets):
    """C1-2: whether or not it has heard yet that it is forgotten."""
    world = World()
    nodes = world.mesh(4)
    gone = nodes[3]
    nodes[0].membership.forget(gone.id, everywhere=True)
    if who_meets == "a member":
        world.meet(nodes[1], gone)
    else:
        world.meet(gone, nodes[1])
    world.run_until(lambda: gone.membership.is_called_back, 5_000)
    assert gone.membership.is_called_back
    gone.id = NodeId("f" * 40)
    gone.membership.come_back(gone.id)
    world.run_until(lambda: world.is_mesh(nodes), 20_000)
    assert world.is_mesh(nodes)
    assert not gone.membership.is_called_back
    for node in nodes[:3]:
        view = node.membership.view()
        assert view.forgotten == view.drained, "C6-2: what it had, it has under its new id"


def test_neither_gossip_nor_a_configured_address_calls_a_forgotten_node_back():
    world = World()
    nodes = world.mesh(4)
    nodes[0].membership.forget(nodes[3].id, everywhere=True)
    nodes[0].membership.meet(nodes[3].host, BUS_PORT, is_sticky=True)
    nodes[3].membership.meet(nodes[1].host, BUS_PORT, is_sticky=True)
    world.run(60_000)
    assert not nodes[3].membership.is_called_back
    assert nodes[3].id not in nodes[1].membership.view().members


def test_a_node_that_meets_one_that_it_has_forgotten_doesnt_take_itself_for_forgotten():
    """C3-2: the refusal is its own; else its next MEET would make it a new node."""
    world = World()
    nodes = world.mesh(3)
    nodes[0].membership.forget(nodes[1].id, everywhere=True)
    world.meet(nodes[0], nodes[1])
    world.run(5_000)
    assert nodes[0].membership.statistics().forgotten_by == ()
    assert not nodes[0].membership.view().is_forgotten
    assert not nodes[0].membership.is_called_back
    assert nodes[1].membership.is_called_back


def test_who_had_handed_everything_over_before_it_was_forgotten_is_known_as_such():
    """B5.7: also to those who hear of the FORGET by gossip, and over a restart."""
    world = World()
    nodes = world.mesh(4)
    left, kept = nodes[3], nodes[2]
    left.membership.set_leaving(True)
    world.settle()
    left.membership.set_left(True)
    world.settle()
    assert "left" in world.flags(nodes[1])["n3"]
    nodes[0].membership.forget(left.id, everywhere=True)
    nodes[0].membership.forget(kept.id, everywhere=True)
    world.run(5_000)
    for node in nodes[:2]:
        view = node.membership.view()
        assert view.forgotten == {left.id, kept.id}
        assert view.drained == {left.id}
    world.kill(nodes[1])
    world.restart(nodes[1])
    assert nodes[1].membership.view().drained == {left.id}


def test_a_newcomer_hears_of_all_who_have_left_however_many_they_are():
    """They take turns: else an ack of an unknown id would wait there for whom nobody can ask (M14)."""
    world = World()
    old, new = world.mesh(2)
    left = [NodeId(f"{number:040x}") for number in range(250)]
    world.kill(old)
    old.disk += "".join(f"forgotten {node} all left\n" for node in left)
    world.restart(old)
    world.run(20_000)
    assert new.membership.view().drained == frozenset(left)


def test_who_takes_its_leaving_back_has_not_left():
    world = World()
    nodes = world.mesh(2)
    nodes[1].membership.set_leaving(True)
    nodes[1].membership.set_left(True)
    world.settle()
    nodes[1].membership.set_leaving(False)
    nodes[1].membership.set_left(False)
    world.settle()
    nodes[0].membership.forget(nodes[1].id)
    assert nodes[0].membership.view().drained == frozenset()


def test_it_has_left_once_all_who_can_be_reached_have_heard_it():
    """A node that is stopped right after it says that it is safe must be known to have left."""
    world = World()
    nodes = world.mesh(3)
    world.kill(nodes[2])
    world.run(10_000)
    leaver = nodes[1].membership
    leaver.set_leaving(True)
    world.settle()
    leaver.set_left(True)
    assert not leaver.is_left_told
    world.run(5)
    assert leaver.is_left_told
    assert "left" in world.flags(nodes[0])["n1"]
