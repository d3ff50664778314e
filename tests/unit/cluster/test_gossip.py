"""Which peers a PING tells about."""

from __future__ import annotations

import random

from cluster import gossip
from cluster.nodeid import NodeId
from cluster.peer import Address, Backoff, Peer
from cluster.ready import ConnId

RECEIVER = NodeId("f" * 40)


def peers(count: int, *, suspect: int = 0, unlinked: int = 0) -> list[Peer]:
    made = []
    for index in range(count):
        peer = Peer(
            id=NodeId(f"{index:040x}"),
            address=Address(f"h{index}", 1, 2),
            redial=Backoff(0),
            heard_at_ms=0,
            link=ConnId(index),
        )
        peer.is_suspect = index < suspect
        if index >= count - unlinked:
            peer.link = None
        made.append(peer)
    return made


def ids(entries) -> list[int]:
    return sorted(int(entry.id, 16) for entry in entries)


def chosen(several: list[Peer], *, is_new_link: bool = False):
    return gossip.choose(several, RECEIVER, random.Random(1), is_new_link=is_new_link)


def test_three_or_a_tenth_are_told():
    assert len(chosen(peers(20))) == 3
    assert len(chosen(peers(100))) == 10


def test_missed_ones_come_first_whether_linked_or_not():
    several = peers(20, suspect=2)
    several[0].link = None
    entries = chosen(several)
    assert ids(entries[:2]) == [0, 1]
    assert len(entries) == 5


def test_new_link_gets_a_hundred():
    assert len(chosen(peers(150), is_new_link=True)) == 100


def test_neither_the_receiver_nor_quiet_unlinked_nodes_are_told():
    several = peers(6, unlinked=3)
    several[0].id = RECEIVER
    assert ids(chosen(several, is_new_link=True)) == [1, 2]


def test_each_peer_gets_its_turn():
    several = peers(30)
    dice = random.Random(1)
    told = set()
    for _ in range(100):
        told |= {e.id for e in gossip.choose(several, RECEIVER, dice, is_new_link=False)}
    assert len(told) == 30


def test_forgotten_ids_take_turns():
    ids_ = [NodeId(f"{index:040x}") for index in range(250)]
    cursor, told = 0, []
    for _ in range(3):
        some, cursor = gossip.take_turns(ids_, cursor)
        assert len(some) <= 100
        told += some
    assert told == ids_
    assert gossip.take_turns(ids_, cursor)[0] == tuple(ids_[:100])
