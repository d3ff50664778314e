"""Cluster administration: CLUSTER's subcommands and Disque's HELLO, answered from the membership's view.

It reads the view and asks the broker for changes; how nodes agree is membership's business. Texts
and order of checks are Disque's; FORGET … ALL and host names in MEET are ours.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import trio

from cluster.errors import LocalProtocolError
from cluster.nodeid import NODE_ID_CHARS, NodeId, node_id_from_bytes
from cluster.places import packed
from disque.core.integers import parse_int
from disque.core.ready import Status
from disque.errors import CommandError
from disque.server.addresses import is_loopback
from disque.server.directives import BUS_PORT_OFFSET, PORT_MAX
from disque.server.shell import Later
from disque.server.tls import TlsSocket

if TYPE_CHECKING:
    from cluster.view import MemberView
    from disque.server.connection import Client
    from disque.server.render import Answer
    from disque.server.shell import Shell

OK = Status(b"OK")
HOST_CHARS_MAX = 253  # of a DNS name
RESOLVE_S_MAX = 5.0
_WRONG = "Wrong CLUSTER subcommand or number of arguments"


def known_nodes(shell: Shell, client: Client) -> Answer:
    """HELLO without arguments: version, own id; id, host, port and priority of each node.

    Who speaks TLS is told the ports that do, of the nodes that have such a port.
    """
    is_tls = isinstance(client.sock, TlsSocket)
    view = shell.broker.membership.view()
    nodes: list[Answer] = []
    for member in view.members.values():
        is_self = member.id == view.self_id
        host = member.host or (client.local_host or "127.0.0.1" if is_self else "")
        nodes.append(
            [
                member.id.encode(),
                host.encode("utf-8", "surrogateescape"),
                b"%d" % ((is_tls and member.tls_port) or member.port),
                b"%d" % _priority(member, is_self),
            ]
        )
    return [1, view.self_id.encode(), *nodes]


def _priority(member: MemberView, is_self: bool) -> int:
    """Disque's advice to clients: 1 good, 5 no link, 10 suspect, 100 failed or leaving."""
    if member.is_failed or member.is_leaving:
        return 100
    if member.is_suspect:
        return 10
    return 1 if is_self or member.is_reachable else 5


def cluster(shell: Shell, _: Client, args: list[bytes]) -> Answer | Later:
    """`CLUSTER MEET | NODES | INFO | MYID | FORGET | RESET | LEAVING | SAVECONFIG`."""
    match args[0].lower(), len(args):
        case b"meet", 3 | 4:
            return _meet(shell, args[1:])
        case b"nodes", 1:
            return shell.broker.membership.nodes_text().encode("utf-8", "surrogateescape")
        case b"myid", 1:
            return shell.broker.membership.view().self_id.encode()
        case b"info", 1:
            return _info(shell)
        case b"saveconfig", 1:
            return Later(partial(_save, shell))
        case b"forget", 2 | 3:
            return _forget(shell, args[1:])
        case b"reset", 1 | 2:
            return _reset(shell, args[1:])
        case b"leaving", 1:
            return Status(b"yes" if shell.broker.membership.view().is_leaving else b"no")
        case b"leaving", 2:
            return _set_leaving(shell, args[1])
    raise CommandError(_WRONG)


def _meet(shell: Shell, args: list[bytes]) -> Answer | Later:
    """`MEET <host> <port> [<bus port>]`: a literal address at once, a name after one look-up."""
    host, raw_port = args[0].decode("utf-8", "surrogateescape"), args[1]
    port = parse_int(raw_port)
    if port is None:
        raise CommandError(f"Invalid TCP port specified: {_text(raw_port)}")
    bus_port = port + BUS_PORT_OFFSET
    if len(args) == 3:
        given = parse_int(args[2])
        if given is None or not 0 < given <= PORT_MAX:
            raise CommandError(f"Invalid TCP bus port specified: {_text(args[2])}")
        bus_port = given
    is_spelled_well = 0 < len(host) <= HOST_CHARS_MAX and host.isascii() and host.isprintable()
    if not is_spelled_well or " " in host or port <= 0 or max(port, bus_port) > PORT_MAX:
        raise _invalid_address(host, port)
    if packed(host) is None:
        return Later(partial(_meet_by_name, shell, host, port, bus_port))
    _check_protected(shell, host, [host])
    return _start_meeting(shell, host.removeprefix("[").removesuffix("]"), bus_port)


async def _meet_by_name(shell: Shell, host: str, port: int, bus_port: int) -> Answer:
    addresses: list[str] = []
    with trio.move_on_after(RESOLVE_S_MAX):
        try:
            found = await trio.socket.getaddrinfo(host, bus_port, type=socket.SOCK_STREAM)
            addresses = [str(entry[4][0]) for entry in found]
        except (OSError, UnicodeError):
            addresses = []
    if not addresses:
        raise _invalid_address(host, port)
    _check_protected(shell, host, addresses)
    return _start_meeting(shell, host, bus_port)


def _start_meeting(shell: Shell, host: str, bus_port: int) -> Answer:
    try:
        shell.broker.meet(host, bus_port)
    except LocalProtocolError as error:  # too many at once
        raise CommandError(str(error)) from None
    return OK


def _check_protected(shell: Shell, host: str, addresses: list[str]) -> None:
    if shell.config.is_bus_open or all(is_loopback(address) for address in addresses):
        return
    raise CommandError(
        f"MEET with {host} refused: protected mode is on and no cluster-secret is set, so only "
        "nodes on this machine may join. Set the same cluster-secret on all nodes (configuration "
        "file, --cluster-secret, or DISQUE_CLUSTER_SECRET in the environment), or switch this off "
        "with protected-mode no.",
        "DENIED",
    )


def _invalid_address(host: str, port: int) -> CommandError:
    return CommandError(f"Invalid node address specified: {host}:{port}")


def _info(shell: Shell) -> Answer:
    membership = shell.broker.membership
    view, counted = membership.view(), membership.statistics()
    reachable = sum(each.is_reachable for each in view.members.values() if each.id != view.self_id)
    fields = (
        ("cluster_state", "ok"),
        ("cluster_known_nodes", counted.known_nodes),
        ("cluster_reachable_nodes", reachable),
        ("cluster_size", view.size),
        ("cluster_stats_messages_sent", counted.messages_sent),
        ("cluster_stats_messages_received", counted.messages_received),
        ("cluster_safe_to_stop", int(shell.broker.is_safe_to_stop())),
        ("cluster_forgotten_by", ",".join(counted.forgotten_by)),
        ("cluster_handshakes_failed", counted.handshakes_failed),
        ("cluster_refused_by", ",".join(counted.refused_by)),
    )
    return "".join(f"{name}:{text}\r\n" for name, text in fields).encode()


async def _save(shell: Shell) -> Answer:
    try:
        await shell.save_nodes_now()
    except OSError as error:
        raise CommandError(f"error saving the cluster node config: {error.strerror}") from None
    return OK


def _forget(shell: Shell, args: list[bytes]) -> Answer:
    """`FORGET <id> [ALL]`."""
    if len(args) == 2 and args[1].lower() != b"all":
        raise CommandError(_WRONG)
    if len(args[0]) != NODE_ID_CHARS:
        raise CommandError("Invalid node identifier")
    try:
        shell.broker.forget(NodeId(_text(args[0])), everywhere=len(args) == 2)
    except LocalProtocolError as error:  # unknown, or this node itself; the texts are Disque's
        raise CommandError(str(error)) from None
    return OK


def _reset(shell: Shell, args: list[bytes]) -> Answer:
    """`RESET [SOFT|HARD]`: no peers, no jobs; HARD is a new id, too."""
    word = args[0].lower() if args else b"soft"
    if word not in (b"soft", b"hard"):
        raise CommandError("syntax error")
    new_id = node_id_from_bytes(os.urandom(NODE_ID_CHARS // 2)) if word == b"hard" else None
    shell.broker.reset(new_id=new_id)
    return OK


def _set_leaving(shell: Shell, word: bytes) -> Answer:
    if word.lower() not in (b"yes", b"no"):
        raise CommandError("Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'")
    shell.broker.set_leaving(word.lower() == b"yes")
    return OK


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
