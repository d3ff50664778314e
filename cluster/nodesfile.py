"""nodes.conf: this node's identity and what it knows of its peers, as text.

Lines as CLUSTER NODES shows them, with the bus port (`<id> host:port@busport flags 0 0 connected`),
before them `vars boot <n> since <n> leaving yes|no`, and after them `vars peer <id> <boot> <since>`
and `forgotten <id> [all] [left]`. Disque's own file is read, too.

Rebuilt, each with a warning: a damaged or repeated line of a peer, a cut last line, an unknown
flag, a bad address, no `vars boot` line, too many lines. Fresh, without a warning: empty or blank
text. Refused with NodesFileError, because an identity would be lost or two would be mixed: no
`myself` line or two, a damaged one, a damaged `vars boot` line, NULs only.
"""

from __future__ import annotations

import attrs

from cluster.errors import NodesFileError
from cluster.messages import FAILED, LEAVING, LEFT, NOADDR, NUMBER_MAX, SUSPECT, is_host
from cluster.nodeid import NodeId, is_node_id
from cluster.peer import Address

PEERS_MAX = 1_000
FORGOTTEN_MAX = 10_000  # the newest are kept
WARNINGS_MAX = 20

MYSELF = "myself"
_FLAG_NAMES = (
    (SUSPECT, "fail?"),
    (FAILED, "fail"),
    (NOADDR, "noaddr"),
    (LEAVING, "leaving"),
    (LEFT, "left"),
)
_FLAGS = {name: flag for flag, name in _FLAG_NAMES}
_IGNORED_FLAGS = frozenset(("noflags", "handshake", MYSELF))
NOWHERE = Address("", 0, 0)


@attrs.frozen
class StoredPeer:
    """A peer as it is kept over a restart; `flags` as in gossip."""

    id: NodeId
    address: Address
    flags: int = 0
    boot: int = 0
    since: int = 0


@attrs.frozen
class StoredNodes:
    """The content of nodes.conf; the default is that of a node that starts for the first time."""

    id: NodeId | None = None  # None: no identity yet
    address: Address = NOWHERE
    boot: int = 0
    since: int = 0
    leaving: bool = False
    peers: tuple[StoredPeer, ...] = ()
    forgotten: tuple[tuple[NodeId, bool], ...] = ()  # (id, everywhere?), oldest first
    drained: frozenset[NodeId] = frozenset()  # of those, that had handed everything over
    warnings: tuple[str, ...] = ()  # what was mended while reading


def format(nodes: StoredNodes) -> str:  # noqa: A001
    """The text of nodes.conf; warnings aren't kept. ValueError without an identity."""
    if nodes.id is None:
        raise ValueError("nodes.conf needs this node's id")
    leaving = "yes" if nodes.leaving else "no"
    own_flags = LEAVING if nodes.leaving else 0
    lines = [f"vars boot {nodes.boot} since {nodes.since} leaving {leaving}"]
    lines.append(_file_line(nodes.id, nodes.address, own_flags, is_self=True))
    lines += [_file_line(peer.id, peer.address, peer.flags) for peer in nodes.peers]
    lines += [f"vars peer {p.id} {p.boot} {p.since}" for p in nodes.peers if p.boot or p.since]
    lines += [
        f"forgotten {node}{' all' if everywhere else ''}{' left' if node in nodes.drained else ''}"
        for node, everywhere in nodes.forgotten
    ]
    return "\n".join(lines) + "\n"


def parse(text: str) -> StoredNodes:
    """Read nodes.conf; the module's docstring says what is mended and what is NodesFileError."""
    if not text.strip("\0 \t\r\n"):
        if "\0" in text:
            raise NodesFileError(
                f"nodes.conf holds {len(text)} NUL bytes and no node: the file is damaged. Move it away "
                "to start as a new node"
            )
        return StoredNodes()
    reader = _Reader()
    lines = text.split("\n")
    for index, line in enumerate(lines, start=1):
        reader.line(index, line.removesuffix("\r"), is_cut=index == len(lines))
    return reader.result()


def join_host(host: str, port: int) -> str:
    """host:port, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def flag_names(flags: int, *, is_self: bool = False, is_handshake: bool = False) -> str:
    """Flags as CLUSTER NODES shows them, in Disque's order."""
    names = [MYSELF] if is_self else []
    names += [name for flag, name in _FLAG_NAMES[:2] if flags & flag]
    names += ["handshake"] if is_handshake else []
    names += [name for flag, name in _FLAG_NAMES[2:] if flags & flag]
    return ",".join(names) or "noflags"


def node_line(
    node: NodeId | str, where: str, flags: str, pinged: int, ponged: int, is_connected: bool
) -> str:
    """One line of CLUSTER NODES, without its end; times are ms, 0 for none."""
    state = "connected" if is_connected else "disconnected"
    return f"{node} {where} {flags} {pinged} {ponged} {state}"


def _file_line(node: NodeId, address: Address, flags: int, *, is_self: bool = False) -> str:
    where = f"{join_host(address.host, address.port)}@{address.bus_port}"
    return node_line(node, where, flag_names(flags, is_self=is_self), 0, 0, is_self)


def _number(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    number = int(text)
    return number if number <= most else None


def _address(text: str) -> Address | None:
    """host:port[@busport]; without a bus port it is port + 10000, as Disque's."""
    where, at, bus_text = text.partition("@")
    host, colon, port_text = where.rpartition(":")
    port = _number(port_text, 65535)
    if not colon or port is None:
        return None
    bus_port = _number(bus_text, 65535) if at else (port + 10_000 if 0 < port <= 55535 else 0)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if bus_port is None or not is_host(host):
        return None
    return Address(host, port, bus_port)


class _Reader:
    """Collects what the lines say."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.own: tuple[NodeId, Address, int] | None = None
        self.own_line = 0
        self.boot: tuple[int, int, bool] | None = None
        self.peers: dict[NodeId, StoredPeer] = {}
        self.boots: dict[NodeId, tuple[int, int]] = {}
        self.forgotten: dict[NodeId, bool] = {}
        self.drained: list[NodeId] = []

    def line(self, index: int, line: str, *, is_cut: bool) -> None:
        words = line.split(" ")
        if not line.strip():
            return
        if is_cut:
            # A number or a word may have lost its end and look whole: trust nothing of it.
            if MYSELF in line or line.startswith("vars boot"):
                self._refuse(index, line, "the line has no end, the file was cut")
            self._warn(index, line, "the file was cut here, line dropped")
        elif words[0] == "vars":
            self._vars(index, line, words)
        elif words[0] == "forgotten":
            self._forgotten(index, line, words)
        else:
            self._node(index, line, words)

    def result(self) -> StoredNodes:
        if self.own is None:
            raise NodesFileError(
                f"nodes.conf has no line flagged {MYSELF}, so this node's id is lost"
                + (f" ({self.warnings[0]})" if self.warnings else "")
                + ". Mend the file, or move it away to start as a new node"
            )
        node, address, flags = self.own
        if self.boot is None:
            self._say("no 'vars boot' line: boot numbers start again")
        boot, since, leaving = self.boot or (0, 0, bool(flags & LEAVING))
        if self.peers.pop(node, None):
            self._say(f"{node} is this node itself, its line as a peer is dropped")
        self._cut_surplus()
        peers = (
            attrs.evolve(p, boot=self.boots[p.id][0], since=self.boots[p.id][1])
            if p.id in self.boots
            else p
            for p in self.peers.values()
            if p.id not in self.forgotten
        )
        return StoredNodes(
            id=node,
            address=address,
            boot=boot,
            since=since,
            leaving=leaving,
            peers=tuple(peers),
            forgotten=tuple(self.forgotten.items()),
            drained=frozenset(each for each in self.drained if each in self.forgotten),
            warnings=tuple(self.warnings),
        )

    def _cut_surplus(self) -> None:
        if len(self.forgotten) > FORGOTTEN_MAX:
            self._say(f"{len(self.forgotten)} forgotten ids, the newest {FORGOTTEN_MAX} are kept")
            self.forgotten = dict(list(self.forgotten.items())[-FORGOTTEN_MAX:])
        if len(self.peers) > PEERS_MAX:
            self._say(f"{len(self.peers)} peers, the first {PEERS_MAX} are kept")
            self.peers = dict(list(self.peers.items())[:PEERS_MAX])
        both = [node for node in self.peers if node in self.forgotten]
        if both:
            self._say(f"{len(both)} peers are forgotten ones, dropped: {both[0]}")
        if self.own is not None and self.forgotten.pop(self.own[0], None) is not None:
            self._say("this node's own id stands as forgotten, ignored")

    def _vars(self, index: int, line: str, words: list[str]) -> None:
        if words[1:2] == ["peer"]:
            boots = [_number(word, NUMBER_MAX) for word in words[3:5]]
            if len(words) < 5 or not is_node_id(words[2]) or boots[0] is None or boots[1] is None:
                self._warn(index, line, "needs an id, a boot and a since, dropped")
            else:
                self.boots[NodeId(words[2])] = (boots[0], boots[1])
        elif words[1:2] == ["boot"]:
            self._boot(index, line, words)
        # Disque's own (vars currentEpoch ...) say nothing to us.

    def _boot(self, index: int, line: str, words: list[str]) -> None:
        facts = dict(zip(words[1::2], words[2::2], strict=False))
        boot = _number(facts.get("boot", ""), NUMBER_MAX)
        since = _number(facts.get("since", ""), NUMBER_MAX)
        leaving = {"yes": True, "no": False}.get(facts.get("leaving", ""))
        if boot is None or since is None or leaving is None:
            self._refuse(index, line, "needs 'vars boot <n> since <n> leaving yes|no'")
        elif self.boot is not None:
            self._warn(index, line, "boot stands twice, the larger one counts")
            self.boot = max(self.boot, (boot, since, leaving))
        else:
            self.boot = (boot, since, leaving)

    def _forgotten(self, index: int, line: str, words: list[str]) -> None:
        if len(words) < 2 or not is_node_id(words[1]):
            self._warn(index, line, "needs a node id, dropped")
            return
        node, everywhere = NodeId(words[1]), "all" in words[2:]
        self.forgotten[node] = self.forgotten.get(node, False) or everywhere
        if "left" in words[2:]:
            self.drained.append(node)

    def _node(self, index: int, line: str, words: list[str]) -> None:
        is_self = MYSELF in line
        if len(words) != 6 or not is_node_id(words[0]):
            why = f"needs 6 fields and a node id of 40 hexadecimal characters, has {len(words)} fields"
            if is_self:
                self._refuse(index, line, why)
            self._warn(index, line, f"{why}, dropped")
            return
        node = NodeId(words[0])
        address = _address(words[1])
        flags = self._flags(index, line, words[2])
        if is_self:
            self._myself(index, line, node, address, flags)
        elif address is None:
            self._warn(index, line, f"no address: {words[1]!r:.60}, dropped")
        elif node in self.peers:
            self._warn(index, line, "this id stands twice, the first line counts")
        else:
            self.peers[node] = StoredPeer(id=node, address=address, flags=flags)

    def _myself(
        self, index: int, line: str, node: NodeId, address: Address | None, flags: int
    ) -> None:
        if self.own is not None:
            self._refuse(index, line, f"a second {MYSELF} line, the first is line {self.own_line}")
        if address is None:
            self._warn(index, line, "own address can't be read, it comes from the configuration")
        self.own = (node, address or NOWHERE, flags)
        self.own_line = index

    def _flags(self, index: int, line: str, text: str) -> int:
        flags = 0
        for name in text.split(","):
            flags |= _FLAGS.get(name, 0)
            if name not in _FLAGS and name not in _IGNORED_FLAGS:
                self._warn(index, line, f"unknown flag {name!r:.40}, ignored")
        return flags

    def _refuse(self, index: int, line: str, why: str) -> None:
        raise NodesFileError(f"nodes.conf line {index}: {why}: {line[:100]!r}")

    def _warn(self, index: int, line: str, why: str) -> None:
        self._say(f"line {index}: {why}: {line[:60]!r}")

    def _say(self, warning: str) -> None:
        if len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(warning)
