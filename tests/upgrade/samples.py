"""Samples: one word of each kind that version 0.1 says on the bus and writes into its log, as values."""

from __future__ import annotations

from typing import Any, Final

import attrs

from cluster import messages
from cluster.messages import Gossip, GossipEntry
from cluster.nodeid import NodeId
from cluster.nodesfile import StoredNodes, StoredPeer
from cluster.peer import Address
from disque.core import messages as msg
from disque.core import wire
from disque.core.job import Burials, Reason
from tests.unit.core.builders import CTIME, A, B, C, job_id, spec

TYPES_OF_0_1: Final = wire.MESSAGE_TYPES[:30]  # later versions append theirs

_FACTS: Final = msg.Facts(
    holders=(A, B, C),
    expires_in=60_000,
    due_in=500,
    is_queued=True,
    claims={A: (7, 3, True), B: (8, 1, False)},
    dispatches={A: 2, C: 1},
    nacks={A: 1},
    leases={A: (4, 9_000)},
    covered={A: 3},
    burials=Burials(1, 2, 3, 50_000),
)
_VALUES: Final[dict[str, Any]] = {
    "id": job_id(1),
    "spec": attrs.evolve(spec(), headers={b"content-type": b"text/plain"}), "ctime": CTIME,
    "body": b"\x00body\xff", "facts": _FACTS, "reason": Reason.ACKED, "holders": (A, B), "told": (A,),
    "queue": b"q\xff", "node": C,
    "is_taken": True, "is_queue_only": True, "has_waiting": True, "ids": (job_id(2), job_id(3)),
    "numbers": (1, 2, 1 << 40), "channel": b"news", "name": b"news", "is_anew": True, "headers": {b"a": b"b"},
}  # fmt: skip

STATEMENTS: Final[tuple[msg.Message, ...]] = tuple(
    kind(**{each.name: _VALUES.get(each.name, 5) for each in attrs.fields(kind)})
    for kind in TYPES_OF_0_1
)

GOSSIP: Final = Gossip(
    boot=3,
    is_leaving=True,
    host="node-2.example",
    port=7712,
    bus_port=17712,
    entries=(GossipEntry(C, "10.0.0.3", 7713, 17713, messages.SUSPECT),),
    forgotten=(NodeId("f" * 40),),
    has_left=True,
    drained=(NodeId("f" * 40),),
)
WORDS: Final[tuple[messages.Message, ...]] = (
    messages.Ping(GOSSIP),
    messages.Pong(GOSSIP),
    messages.Fail(C),
    messages.Payload(9, wire.encode(list(STATEMENTS))),
    messages.Forgotten((C,)),
)

NODES: Final = StoredNodes(
    id=A,
    address=Address("", 7711, 17711),
    boot=9,
    since=8,
    leaving=True,
    peers=(
        StoredPeer(B, Address("10.0.0.2", 7712, 17712), boot=3, since=3),
        StoredPeer(C, Address("node-3.example", 7713, 17713), messages.FAILED, 4, 2),
    ),
    forgotten=((NodeId("f" * 40), True), (NodeId("e" * 40), False)),
    drained=frozenset({NodeId("f" * 40)}),
)
