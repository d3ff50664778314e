"""Crowd: who among the connections is whom, and how much they may cost: one by one, by address, and all together.

Who doesn't give the password that is needed is a *stranger*: little is read of it at a time, it has to be quick, and
when there are too many the oldest goes, since who means well says the password at once. It accepts nobody.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import attrs

from cluster.places import oldest_of_most, place_of
from disque.resp.decoder import BULK_BYTES_MAX, MULTIBULK_COUNT_MAX, Decoder
from disque.server.connection import OPEN_ADDS_MAX, OUT_CAP_BYTES
from disque.server.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from disque.core.ready import ClientId
    from disque.server.acl import User
    from disque.server.connection import Client
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures

    Weight: TypeAlias = tuple[int, int, ClientId]

STRANGER_BULK_BYTES_MAX = 16 << 10  # an argument before the password was given; Redis'
STRANGER_ARGUMENTS_MAX = 16

DENIED = (
    "disque-broker runs in protected mode because no requirepass is set: only clients on the same "
    "machine are served. Set a password with requirepass (in the configuration file, as "
    "--requirepass, as DISQUE_REQUIREPASS in the environment, or with CONFIG SET from the machine "
    "itself), or switch this off with protected-mode no."
)
DENIED_PLAIN = "tls-only is on: without TLS only clients on the same machine are served; use the port that speaks TLS"


def weight_of(client: Client) -> Weight:
    """What a connection costs alone, what it keeps that lies on the shelf, and who it is."""
    shelved_bytes = client.shelved_bytes
    return client.held_bytes - shelved_bytes, shelved_bytes, client.id


@attrs.define
class ClientLimits:
    """What configuration says about connections; CONFIG SET changes the fields."""

    clients_max: int = 10_000
    idle_max_s: int = 0  # 0: for ever
    out_hard_bytes: int = 0  # 0: connection.OUT_CAP_BYTES
    out_soft_bytes: int = 0  # 0: none
    out_soft_s: int = 0
    keepalive_s: int = 0
    is_open_to_all: bool = False  # False: loopback and unix sockets only (protected mode)
    is_tls_only: bool = False  # True: the same for those without TLS
    needs_password: bool = False  # who comes is a stranger until it was given
    strangers_max: int = 1_000
    stranger_s: int = 0  # 0: for ever
    per_address_max: int = 0  # 0: no limit
    bulk_bytes_max: int = BULK_BYTES_MAX
    arguments_max: int = MULTIBULK_COUNT_MAX
    waits_max: int = OPEN_ADDS_MAX
    memory_max: int = 0  # of what all connections hold; who holds most goes. 0: no limit


class Crowd:
    """All connections of a node, counted."""

    def __init__(self, limits: ClientLimits, figures: Figures, events: EventLog) -> None:
        self.limits = limits
        self._figures = figures
        self._events = events
        # With the time when they became that, and their place; in the order of their coming
        self._strangers: OrderedDict[ClientId, tuple[Client, int, str]] = OrderedDict()
        self._of_address: Counter[str] = Counter()
        self._count = 0
        self.shelf = Shelf()

    def objection(self, host: str, *, is_local: bool, is_tls: bool) -> tuple[str, str] | None:
        """Why nobody more from there is served: an error's code and text; None for welcome. `host` "": unix socket."""
        limits = self.limits
        if not (is_local or limits.is_open_to_all):
            return "DENIED", DENIED
        if limits.is_tls_only and not (is_local or is_tls):
            return "DENIED", DENIED_PLAIN
        if self._count >= limits.clients_max:
            return "ERR", "max number of clients reached"
        if (
            host
            and limits.per_address_max
            and self._of_address[place_of(host)] >= limits.per_address_max
        ):
            self._figures.clients_per_address_refused += 1
            return "ERR", "max number of clients of one address reached"
        return None

    def add(self, client: Client, now_ms: int) -> None:
        """One more is served."""
        self._count += 1
        self._of_address[place_of(client.host)] += 1
        client.shelf = self.shelf
        self.limit(client)
        if self.limits.needs_password:
            self._add_stranger(client, now_ms)

    def forget(self, client: Client) -> None:
        """One that was added is served no longer."""
        self._count -= 1
        self._strangers.pop(client.id, None)
        place = place_of(client.host)
        self._of_address[place] -= 1
        if not self._of_address[place]:
            del self._of_address[place]
        if client.is_over:
            self._figures.clients_dropped_output += 1
            self._tell_dropped(client, f"more than {client.out_limit_bytes} bytes unread")

    def limit(self, client: Client) -> None:
        """Bind a connection to the limits as they are now."""
        limits = self.limits
        client.out_limit_bytes = limits.out_hard_bytes or OUT_CAP_BYTES
        client.waits_max = limits.waits_max
        if isinstance(client.decoder, Decoder) and not client.is_stranger:
            client.decoder.set_limits(
                bulk_bytes_max=limits.bulk_bytes_max, arguments_max=limits.arguments_max
            )
        if client.dialect is not None:
            client.dialect.limit(client)

    # Who is who

    def logged_in(self, client: Client, user: User) -> None:
        """It has shown that it knows a user's password."""
        client.user = user
        self._strangers.pop(client.id, None)
        client.is_stranger = False
        self.limit(client)

    def logged_out(self, client: Client, now_ms: int) -> None:
        """It has shown a wrong password: it is nobody, again."""
        client.user = None
        if self.limits.needs_password and client.id not in self._strangers:
            self._add_stranger(client, now_ms)

    def review(self, client: Client, now_ms: int) -> None:
        """Whether a password is needed may have changed: who came without one is a stranger now, or no longer.

        What it heard and waited for was meant for somebody known: that ends.
        """
        needs_password = self.limits.needs_password
        if client.user is not None or client.is_stranger is needs_password:
            return
        if not needs_password:
            self._strangers.pop(client.id, None)
            client.is_stranger = False
            return
        self._add_stranger(client, now_ms)
        # A dialect says why it ends its own
        if client.dialect is None and (
            client.is_monitor or client.is_listening or client.is_abandonable
        ):
            self._drop_stranger(client)

    def _add_stranger(self, client: Client, now_ms: int) -> None:
        while len(self._strangers) >= self.limits.strangers_max:
            comers = [(each, place) for each, _, place in self._strangers.values()]
            self._drop_stranger(oldest_of_most(comers))
        self._strangers[client.id] = (client, now_ms, place_of(client.host))
        client.is_stranger = True
        if isinstance(client.decoder, Decoder):
            client.decoder.set_limits(
                bulk_bytes_max=STRANGER_BULK_BYTES_MAX,
                arguments_max=STRANGER_ARGUMENTS_MAX,
                is_before_auth=True,
            )

    def _drop_stranger(self, client: Client) -> None:
        del self._strangers[client.id]
        self._figures.strangers_dropped += 1
        client.die()

    def held_bytes(self, weights: Iterable[Weight]) -> int:
        """What all these connections cost together; what several keep of a topic's message counts once."""
        return self.shelf.bytes + sum([own for own, _, _ in weights])

    # Once a second

    def drop_strangers(self, now_ms: int) -> None:
        """Who hasn't given the password in time goes."""
        longest_ms = self.limits.stranger_s * 1000
        for client, since_ms, _ in list(self._strangers.values()) if longest_ms else ():
            if now_ms - since_ms <= longest_ms:
                break
            self._drop_stranger(client)

    def drop_largest(
        self, weights: Collection[Weight], by_id: Mapping[ClientId, Client]
    ) -> Iterator[None]:
        """Beyond the memory that all may hold together those go that hold most of it, a step for each.

        Of what lies on the shelf each counts a share of what he keeps: who alone goes frees less of it.
        """
        most, shelf = self.limits.memory_max, self.shelf
        own = sum([own for own, _, _ in weights])
        if not most or own + shelf.bytes <= most:
            return
        share = shelf.bytes / max(sum([shelved for _, shelved, _ in weights]), 1)
        for cost, shelved, id_ in sorted(weights, key=lambda each: -each[0] - each[1] * share):
            total = own + shelf.bytes
            if total <= most:
                return
            own -= cost
            client = by_id.get(id_)
            if client is not None and not client.is_dead:
                self._figures.clients_dropped_memory += 1
                reason = f"all connections hold {total} bytes, this one {cost + shelved}"
                self._tell_dropped(client, reason)
                client.die()
                yield

    def drop_slow(self, client: Client) -> None:
        """Who has left too much unread for too long goes."""
        self._figures.clients_dropped_output += 1
        self._tell_dropped(client, "slow")
        client.die()

    def _tell_dropped(self, client: Client, reason: str) -> None:
        self._events.event("warning", "client-dropped", addr=client.address, reason=reason)
