"""Crowd: who among the connections is whom, and how much they may cost: one by one, by address, and all together.

Who doesn't give the password that is needed is a *stranger*: little is read of it at a time, it has to be quick, and
when there are too many the oldest goes, since who means well says the password at once. It accepts nobody.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import attrs

from cluster.places import place_of
from disque.resp.decoder import BULK_BYTES_MAX, MULTIBULK_COUNT_MAX, Decoder
from disque.server.acl import DEFAULT
from disque.server.connection import OPEN_ADDS_MAX, OUT_CAP_BYTES
from disque.server.shelf import Shelf
from disque.server.tls import TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from disque.core.ready import ClientId
    from disque.server.acl import User
    from disque.server.connection import Client
    from disque.server.eventlog import EventLog
    from disque.server.info import Figures

    Weight: TypeAlias = tuple[int, int, ClientId]

STRANGER_BULK_BYTES_MAX = 16 << 10  # an argument before the password was given; Redis'
STRANGER_ARGUMENTS_MAX = 16
# Of a connection that holds nothing, its task included; measured as the growth of RSS
CONNECTION_BYTES = 9_000
TLS_BYTES = 14_000  # on top of that

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


def _own_bytes(client: Client) -> int:
    return CONNECTION_BYTES + (TLS_BYTES if isinstance(client.sock, TlsSocket) else 0)


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
    users: Mapping[str, User] = attrs.Factory(dict)  # besides default


class Crowd:
    """All connections of a node, counted."""

    def __init__(
        self,
        limits: ClientLimits,
        figures: Figures,
        events: EventLog,
        end: Callable[[Client], None],
    ) -> None:
        """`end` gives a connection up; thousands may be told so at once."""
        self.limits = limits
        self._figures = figures
        self._events = events
        self._end = end
        # With the time when they became that, and their place; in the order of their coming
        self._strangers: OrderedDict[ClientId, tuple[Client, int, str]] = OrderedDict()
        self._strangers_of: Counter[str] = Counter()  # by place
        self._of_address: Counter[str] = Counter()
        self._count = 0
        self.own_bytes = 0  # what all connections cost that hold nothing
        self.shelf = Shelf()

    def objection(self, host: str, *, is_local: bool, is_tls: bool) -> tuple[str, str] | None:
        """Why nobody more from there is served: an error's code and text; None for welcome. `host` "": unix socket."""
        limits = self.limits
        if denied := self._denied(is_local=is_local, is_tls=is_tls):
            return "DENIED", denied
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

    def _denied(self, *, is_local: bool, is_tls: bool) -> str:
        """Why who comes this way may not be here, "" if he may."""
        if not (is_local or self.limits.is_open_to_all):
            return DENIED
        return DENIED_PLAIN if self.limits.is_tls_only and not (is_local or is_tls) else ""

    def add(self, client: Client, now_ms: int, *, is_own: bool = False) -> None:
        """One more is served; is_own: it is the node's, and needs no password."""
        self._count += 1
        self.own_bytes += _own_bytes(client)
        self._of_address[place_of(client.host)] += 1
        client.shelf = self.shelf
        self.limit(client)
        if is_own:
            client.user = DEFAULT
        elif self.limits.needs_password:
            self._add_stranger(client, now_ms)

    def forget(self, client: Client) -> None:
        """One that was added is served no longer."""
        self._count -= 1
        self.own_bytes -= _own_bytes(client)
        self._known(client)
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
        self._known(client)
        self.limit(client)

    def logged_out(self, client: Client, now_ms: int) -> None:
        """It has shown a wrong password: it is nobody, again."""
        client.user = None
        if self.limits.needs_password and client.id not in self._strangers:
            self._add_stranger(client, now_ms)

    def review(self, client: Client, now_ms: int, *, is_setter: bool = False) -> bool:
        """Who may be here may have changed: passwords, users, protected mode, tls-only. True if this one may not.

        A changed requirepass concerns who comes: who was let in by the one before stays. is_setter: it has asked for
        the change, and is answered whatever it is.
        """
        if self._is_welcome(client):
            self._review_password(client, now_ms, is_setter=is_setter)
            return False
        if is_setter:
            client.close_soon()
            return False
        self._end(client)
        return True

    def _is_welcome(self, client: Client) -> bool:
        """Whether it might come as it is now."""
        if self._denied(is_local=client.is_local, is_tls=client.is_tls):
            return False
        user = client.user
        return user is None or user is DEFAULT or self.limits.users.get(user.name) == user

    def _review_password(self, client: Client, now_ms: int, *, is_setter: bool) -> None:
        """Who came without a password is a stranger now, if one is needed, or no longer.

        What it heard and waited for was meant for somebody known: that ends.
        """
        needs_password = self.limits.needs_password
        if client.user is not None or client.is_stranger is needs_password:
            return
        if not needs_password:
            self._known(client)
            return
        self._add_stranger(client, now_ms)
        if is_setter or (client.dialect is not None and client.dialect.tells_end):
            return
        if client.is_monitor or client.is_listening or client.is_abandonable:
            self._drop_stranger(client)

    def _add_stranger(self, client: Client, now_ms: int) -> None:
        while len(self._strangers) >= self.limits.strangers_max:
            most = max(self._strangers_of.values())
            comers = self._strangers.values()
            self._drop_stranger(
                next(each for each, _, place in comers if self._strangers_of[place] == most)
            )
        place = place_of(client.host)
        self._strangers[client.id] = (client, now_ms, place)
        self._strangers_of[place] += 1
        client.is_stranger = True
        if isinstance(client.decoder, Decoder):
            client.decoder.set_limits(
                bulk_bytes_max=STRANGER_BULK_BYTES_MAX,
                arguments_max=STRANGER_ARGUMENTS_MAX,
                is_before_auth=True,
            )

    def _drop_stranger(self, client: Client) -> None:
        self._known(client)
        self._figures.strangers_dropped += 1
        self._end(client)

    def _known(self, client: Client) -> None:
        """It is no stranger, or no longer."""
        client.is_stranger = False
        found = self._strangers.pop(client.id, None)
        if found is None:
            return
        place = found[2]
        self._strangers_of[place] -= 1
        if not self._strangers_of[place]:
            del self._strangers_of[place]

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

    def drop_if_slow(self, client: Client, now_ms: int) -> None:
        """Who has left too much unread for too long goes."""
        limits = self.limits
        if not limits.out_soft_bytes or client.backlog_bytes <= limits.out_soft_bytes:
            client.over_soft_since_ms = None
        elif client.over_soft_since_ms is None:
            client.over_soft_since_ms = now_ms
        elif now_ms - client.over_soft_since_ms > limits.out_soft_s * 1000:
            self._figures.clients_dropped_output += 1
            self._tell_dropped(client, "slow")
            client.die()

    def _tell_dropped(self, client: Client, reason: str) -> None:
        self._events.event("warning", "client-dropped", addr=client.address, reason=reason)
