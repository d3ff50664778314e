"""Field: what faults act on: the hosts, what is broken right now, and plain questions to nodes.

Several faults may be on at once, so a cut is the union of what each asked for; a fault takes back only its own part.
Every fault that begins or ends is measured, never believed; a `Proof` says how.
"""

# ruff: noqa: A002

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio

from jepsen.hosts.base import Hosts, HostsError, all_links
from jepsen.nemesis.grudges import Link
from jepsen.resp import Client, ReplyError, Trouble, Word

ANSWER_S: Final = 1.0
# A healthy answer on a busy machine may take a while; silence is only claimed after this.
SILENT_S: Final = 0.4
PROOF_S: Final = 3.0


@attrs.frozen
class Proof:
    """What a measurement showed: of `asked` things (links, nodes), `silent` are as the fault wants them."""

    asked: int
    silent: int
    how: str = ""

    @property
    def is_proven(self) -> bool:
        """True if all are."""
        return self.silent == self.asked

    def as_value(self) -> dict[str, Any]:
        """As the history has it."""
        proof = {"asked": self.asked, "silent": self.silent, "how": self.how}
        return {"proof": proof, "proven": self.is_proven}


@attrs.frozen
class Fault:
    """One fault as drawn: `links` fall silent, `nodes` are hit, `wipes` lose their data."""

    kind: str
    links: tuple[Link, ...] = ()
    nodes: tuple[str, ...] = ()
    params: Mapping[str, Any] = attrs.Factory(dict)
    wipes: tuple[str, ...] = ()

    def as_value(self, id: int) -> dict[str, Any]:
        """As the history has it."""
        return {
            "id": id,
            "kind": self.kind,
            "links": [list(link) for link in self.links],
            "nodes": list(self.nodes),
            "params": dict(self.params),
            "wipes": list(self.wipes),
        }


@attrs.define(eq=False)
class Field:
    """The cluster under fire. `is_logged`: a killed node keeps its jobs. `timeout_s`: the nodes' own for silence."""

    hosts: Hosts
    dice: random.Random
    is_logged: bool = False
    timeout_s: float = 1.0
    say: Callable[[str], None] = lambda _text: None
    # Writes leave, join and views of a node into the history: when it begins (None), and whether it was then done.
    tell: Callable[[str, str, bool | None], None] = lambda _f, _target, _is_proven: None
    # Does a whole fault of its own, for so long, as a part of one that holds.
    within: Callable[[Kind, Fault, float], Awaitable[None]] = attrs.field(init=False)
    cuts: dict[int, tuple[Link, ...]] = attrs.Factory(dict)
    down: dict[str, None] = attrs.Factory(dict)
    paused: dict[str, None] = attrs.Factory(dict)
    gone: dict[str, None] = attrs.Factory(dict)
    # Nodes that a restart didn't bring up, with their last words: the servers' fault, not the harness's.
    broken: dict[str, str] = attrs.Factory(dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes."""
        return self.hosts.nodes

    def fit_nodes(self) -> list[str]:
        """Nodes that no fault has stopped or put out, in order."""
        hit = self.down.keys() | self.paused.keys() | self.gone.keys()
        return [node for node in self.nodes if node not in hit]

    def complain(self, text: str) -> None:
        """Say it where another fault may be to blame; else HostsError, which leaves this one unproven."""
        if not self.cuts and len(self.fit_nodes()) >= len(self.nodes) - 1:
            raise HostsError(text)
        self.say(text)

    async def cut(self, id: int, links: Iterable[Link]) -> None:
        """From now on this fault silences exactly these links."""
        self.cuts[id] = tuple(links)
        await self.hosts.cut(self.cut_links())

    async def uncut(self, id: int) -> None:
        """This fault silences none any more."""
        self.cuts.pop(id, None)
        await self.hosts.cut(self.cut_links())

    def cut_links(self) -> list[Link]:
        """All links that should be silent, sorted."""
        return sorted({link for links in self.cuts.values() for link in links})

    async def prove_silent(self, links: Collection[Link]) -> Proof:
        """Measure that these links carry nothing, while all between live nodes that no fault silences do."""
        out = {*self.cut_links(), *links}
        others = [link for link in all_links(self.nodes) - out if self.down.keys().isdisjoint(link)]
        heard: set[Link] = set()

        async def are_others_heard() -> bool:
            heard.update(await self.hosts.probe())
            return heard.issuperset(others)

        await until(are_others_heard)
        silent = sum(link not in heard for link in links)
        if mute := sum(link not in heard for link in others):
            return Proof(len(links) + mute, silent, f"links probed; {mute} others carry nothing")
        return Proof(len(links), silent, "links probed")

    async def prove_carrying(self, links: Collection[Link]) -> Proof:
        """Measure that these links carry, but for those that another fault silences."""
        wanted = [link for link in links if link not in set(self.cut_links())]
        carrying = await self.hosts.probe()
        return Proof(len(wanted), sum(link in carrying for link in wanted), "links probed")

    async def call(self, node: str, *words: Word, timeout_s: float = ANSWER_S) -> Any:
        """One command over a connection of its own. Raises ReplyError and Trouble."""
        client = Client(partial(self.hosts.open, node), self.hosts.password)
        try:
            return await client.call(*words, timeout_s=timeout_s)
        finally:
            client.close()

    async def start(self, node: str) -> None:
        """Start a node that is down; one that doesn't come up is noted as broken."""
        try:
            await self.hosts.start(node)
        except HostsError as error:
            self.broken[node] = str(error)
            self.say(f"{node} does not start: {error}")
        else:
            self.broken.pop(node, None)
            self.down.pop(node, None)

    async def answers(self, node: str, timeout_s: float = SILENT_S) -> bool:
        """True if the node answers a PING, if by an error."""
        with trio.move_on_after(timeout_s):
            try:
                await self.call(node, "PING", timeout_s=timeout_s)
            except Trouble:
                return False
            except ReplyError:
                return True
            return True
        return False

    async def cluster_info(self, node: str) -> dict[str, str]:
        """CLUSTER INFO's fields; empty if there is no answer."""
        try:
            text = (await self.call(node, "CLUSTER", "INFO")).decode()
        except (ReplyError, Trouble):
            return {}
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)

    async def id_of(self, node: str) -> str:
        """The node's cluster id."""
        return str((await self.call(node, "CLUSTER", "MYID")).decode())

    async def wait_full_view(self, nodes: Collection[str], within_s: float) -> bool:
        """True once each of these nodes reaches all the others; False if time runs out."""
        wanted = str(len(nodes) - 1)

        async def is_full() -> bool:
            infos = [await self.cluster_info(node) for node in nodes]
            return all(info.get("cluster_reachable_nodes") == wanted for info in infos)

        return await until(is_full, within_s)


class Kind(Protocol):
    """One kind of fault; `needs` are capabilities that the host must have."""

    @property
    def name(self) -> str:
        """Its name on the command line and in the history."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Of jepsen.hosts.base."""
        ...

    def draw(self, field: Field) -> Fault | None:
        """What to break now; None if nothing can be broken just now."""
        ...

    async def begin(self, field: Field, id: int, fault: Fault) -> Proof:
        """Break it and measure that it is broken."""
        ...

    async def hold(self, field: Field, id: int, fault: Fault, seconds: float) -> None:
        """Keep it broken for so long."""
        ...

    async def end(self, field: Field, id: int, fault: Fault) -> Proof:
        """Mend it and measure that it is mended."""
        ...


async def until(
    probe: Callable[[], Awaitable[bool]], within_s: float = PROOF_S, every_s: float = 0.1
) -> bool:
    """Ask until it is so: True, or False when time is up."""
    deadline = trio.current_time() + within_s
    while not await probe():
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(every_s)
    return True
