"""Survey: all nodes of the cluster at once, each over a connection of its own.

Most commands tell of one node. So the node that was named is asked who else is there, each is connected to, and
proves by its id that it is the one that was meant. A node that can't be reached is part of the picture, with the
reason.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import attrs
import click

from disque.cli.connection import Address, Connection
from disque.cli.render import counted, note
from disque.client import results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from disque.cli.settings import Settings
    from disque.client.results import GlobalQueueStats

PROBE_S = 2.0  # a node that takes longer to say who it is counts as not reached
REPLY_S = 10.0  # likewise for what it is asked then
THREADS_MAX = 16
PAGE = 1_000  # elements that a scan asks for at a time
T = TypeVar("T")


@attrs.define(eq=False)
class Node:
    """One node as the asked one knows it; `connection` None, with a complaint, if we can't reach it."""

    id: str
    address: Address
    flags: tuple[str, ...]  # as in CLUSTER NODES
    is_linked: bool  # the asked node has a link to it
    connection: Connection | None = None
    complaint: str = ""

    @property
    def is_asked(self) -> bool:
        """True for the node that all this was learnt from."""
        return "myself" in self.flags

    @property
    def state(self) -> str:
        """One word: ok, leaving, suspect, failed, or no link."""
        if "fail" in self.flags:
            return "failed"
        if "fail?" in self.flags:
            return "suspect"
        if "leaving" in self.flags:
            return "leaving"
        return "ok" if self.is_asked or self.is_linked else "no link"


class Survey:
    """The nodes of a cluster with connections to them; a context that closes these."""

    def __init__(self, settings: Settings, also: Iterable[Address] = ()) -> None:
        """`also`: addresses to try when none of those in the settings answers."""
        target = settings.target()
        addresses = tuple(dict.fromkeys([*target.addresses, *also]))
        self.home = Connection(attrs.evolve(target, addresses=addresses), reply_timeout_s=REPLY_S)
        self._pool = ThreadPoolExecutor(THREADS_MAX)
        try:
            self.nodes = self._known()
            list(self._pool.map(self._connect, self.nodes))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        for node in getattr(self, "nodes", []):
            if node.connection is not None:
                node.connection.close()
        self.home.close()
        self._pool.shutdown()

    @property
    def reached(self) -> list[Node]:
        """The nodes that can be asked."""
        return [node for node in self.nodes if node.connection is not None]

    @property
    def silent(self) -> list[Node]:
        """The nodes that can't."""
        return [node for node in self.nodes if node.connection is None]

    def each(self, ask: Callable[[Connection], T], only: str | None = None) -> dict[str, T]:
        """What each node that can be asked (or only one, by its id) answers, by id, asked at the same time.

        One whose connection breaks, or that answers with an error, is silent from then on; if it is the node that was
        named, that is raised.
        """

        def ask_one(node: Node) -> T | None:
            assert node.connection is not None
            try:
                return ask(node.connection)
            except click.ClickException as error:
                if node.is_asked:
                    raise
                node.complaint = error.format_message()
                node.connection.close()
                node.connection = None
                return None

        asked = [node for node in self.reached if only in (None, node.id)]
        answers = zip(asked, self._pool.map(ask_one, asked), strict=True)
        return {node.id: answer for node, answer in answers if answer is not None}

    def tell_silent(self) -> bool:
        """Say on standard error who could not be asked; True if all could."""
        for node in self.silent:
            is_named = str(node.address) in node.complaint
            where = node.complaint if is_named else f"{node.address}: {node.complaint}"
            note(f"not asked: {node.id[:8]}, {where}")
        if self.silent:
            note(f"{len(self.reached)} of {counted(len(self.nodes), 'node')} answered")
        return not self.silent

    def _known(self) -> list[Node]:
        hello = self.home.get(results.hello, "HELLO")
        table = self.home.get(results.word, "CLUSTER", "NODES")
        rows = {
            fields[0]: fields for fields in map(str.split, table.splitlines()) if len(fields) >= 6
        }
        nodes = []
        for told in hello.nodes:
            fields = rows.get(told.id, [])
            flags = tuple(fields[2].split(",")) if fields else ()
            is_linked = bool(fields) and fields[-1] == "connected"
            if "handshake" not in flags:
                nodes.append(Node(told.id, Address(told.host, told.port), flags, is_linked))
        return sorted(nodes, key=lambda node: (str(node.address.host), node.address.port, node.id))

    def _connect(self, node: Node) -> None:
        """By the address that the cluster tells; by that port where we are connected to (published ports); or by one
        that the URL has (TLS has ports of its own, which HELLO doesn't tell).
        """
        if node.is_asked:
            node.connection = self.home
            node.address = node.address if node.address.host else self.home.address
            return
        here = Address(self.home.address.host, node.address.port)
        named = [each for each in self.home.target.addresses if each != self.home.address]
        for address in dict.fromkeys([node.address, here, *named]):
            try:
                connection = Connection(
                    self.home.target.at(address),
                    reply_timeout_s=PROBE_S,
                    connect_timeout_s=PROBE_S,
                )
            except click.ClickException as error:
                node.complaint = node.complaint or error.format_message()
                continue
            try:
                if connection.get(results.word, "CLUSTER", "MYID") == node.id:
                    connection.set_reply_timeout(REPLY_S)
                    node.connection, node.complaint = connection, ""
                    return
                node.complaint = node.complaint or f"another node answers at {address}"
            except click.ClickException as error:
                node.complaint = node.complaint or error.format_message()
            connection.close()


def queues_of(connection: Connection, count_max: int | None = None) -> list[GlobalQueueStats]:
    """What one node has of its queues; at most about `count_max`, if given."""
    cursor, found = 0, dict[str, results.GlobalQueueStats]()
    while True:
        page = connection.get(results.scanned_stats, "QSCAN", cursor, "COUNT", PAGE, "REPLY", "ALL")
        found.update({each.name: each for each in page.items})
        cursor = page.cursor
        if not cursor or (count_max is not None and len(found) >= count_max):
            return list(found.values())


def job_ids(connection: Connection, *filters: str | bytes) -> list[str]:
    """The jobs that one node knows, as JSCAN's filters narrow them."""
    cursor, found = 0, dict[str, None]()
    while True:
        page = connection.get(results.names, "JSCAN", cursor, "COUNT", PAGE, *filters)
        found.update(dict.fromkeys(page.items))
        cursor = page.cursor
        if not cursor:
            return list(found)
