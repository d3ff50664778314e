"""Membership: a node leaves in order, is wiped and comes back as a new one; or is forgotten while it lives.

Nothing here starts while another node is out. A node that doesn't become safe to stop stays, and the fault isn't proven
unless others were on beside it.
"""

# Shapes are shared: not every one of a kind needs all that it is given.
# ruff: noqa: A002, ARG002

from __future__ import annotations

from typing import Final

import attrs
import trio

from jepsen.hosts.base import JOIN, WIPE
from jepsen.nemesis.field import Fault, Field, Proof, until
from jepsen.resp import ReplyError, Trouble

LEAVE_S: Final = 25.0
JOIN_S: Final = 15.0


def draw_one(field: Field, kind: str, *, is_wiped: bool) -> Fault | None:
    """One node of a cluster that is whole and stays large enough."""
    fit = field.fit_nodes()
    if len(fit) < len(field.nodes) or len(fit) < 3:
        return None
    hit = (field.dice.choice(fit),)
    return Fault(kind, nodes=hit, wipes=hit if is_wiped else ())


async def forget(field: Field, node_id: str, among: list[str]) -> bool:
    """FORGET this id everywhere, told to the first that listens; True once nobody among them lists it."""
    for teller in among:
        try:
            await field.call(teller, "CLUSTER", "FORGET", node_id, "ALL")
        except (ReplyError, Trouble):
            continue
        break

    async def is_forgotten() -> bool:
        texts = [await nodes_text(field, node) for node in among]
        return all(text and node_id not in text for text in texts)

    return await until(is_forgotten, JOIN_S)


async def nodes_text(field: Field, node: str) -> str:
    """CLUSTER NODES; empty if there is no answer."""
    try:
        return str((await field.call(node, "CLUSTER", "NODES")).decode())
    except (ReplyError, Trouble):
        return ""


async def bring_back(field: Field, node: str) -> Proof:
    """Let a node that is out join again; proven by views that have all nodes."""
    if node in field.down:
        await field.start(node)
    if node in field.broken:
        return Proof(1, 0, "it does not start")
    through = field.dice.choice(field.fit_nodes())
    # Said at the node that is out: a forgotten one comes back under a new id only if it is told so itself.
    await field.hosts.join(through, node)
    field.gone.pop(node, None)
    field.tell("join", node, None)
    is_full = await field.wait_full_view(field.fit_nodes(), JOIN_S)
    field.tell("join", node, is_full)
    return Proof(1, int(is_full), "every view has all nodes")


async def set_leaving(field: Field, node: str, word: str) -> Proof:
    """Let a node leave, or stay after all; proven by its own answer."""
    f = "leave" if word == "yes" else "join"
    is_so = False
    field.tell(f, node, None)
    try:
        await field.call(node, "CLUSTER", "LEAVING", word)
        is_so = await field.call(node, "CLUSTER", "LEAVING") == word
    finally:
        field.tell(f, node, is_so)
    return Proof(1, int(is_so), "CLUSTER LEAVING asked")


@attrs.frozen
class LeaveJoin:
    """A node hands all over, is stopped when it says that it may be, is forgotten and wiped, and joins as a new node.

    It is no wipe in the sense of an excuse: it said that nobody needs a copy from it.
    """

    name: str = "leave-join"
    needs: frozenset[str] = frozenset({WIPE, JOIN})

    def draw(self, field: Field) -> Fault | None:
        """Who leaves."""
        return draw_one(field, self.name, is_wiped=False)

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Say that it leaves; proven by its own answer."""
        return await set_leaving(field, fault.nodes[0], "yes")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Wait until it may be stopped; then stop, forget and wipe it."""
        (node,) = fault.nodes

        async def is_safe() -> bool:
            return (await field.cluster_info(node)).get("cluster_safe_to_stop") == "1"

        if not await until(is_safe, LEAVE_S):
            field.complain(f"{node} was not safe to stop within {LEAVE_S:.0f} s, and stays")
            return
        node_id = await field.id_of(node)
        field.down[node] = field.gone[node] = None
        await field.hosts.kill(node)
        await field.hosts.wipe(node)
        others = field.fit_nodes()
        if not await forget(field, node_id, others):
            field.complain(f"{node} is not forgotten by all of {others} within {JOIN_S:.0f} s")
        await trio.sleep(min(seconds, 3.0))

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """A new, empty node of the same name joins."""
        (node,) = fault.nodes
        if node not in field.gone:
            return await set_leaving(field, node, "no")
        return await bring_back(field, node)


@attrs.frozen
class Forget:
    """A live node is forgotten by the others, serves on alone, and is met again under a new id."""

    name: str = "forget"
    needs: frozenset[str] = frozenset({JOIN})

    def draw(self, field: Field) -> Fault | None:
        """Who is forgotten."""
        return draw_one(field, self.name, is_wiped=True)

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Forget it everywhere; proven by lists without it."""
        (node,) = fault.nodes
        others = [each for each in field.fit_nodes() if each != node]
        node_id = await field.id_of(node)
        field.gone[node] = None
        return Proof(1, int(await forget(field, node_id, others)), "CLUSTER NODES asked")

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Let it serve alone."""
        await trio.sleep(seconds)

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Meet it again."""
        return await bring_back(field, fault.nodes[0])
