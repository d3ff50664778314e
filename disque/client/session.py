"""Session: carries commands out on whichever node can do so. All of a client's judgement, over any `Transport`.

What happens to a command:

- A node can't be reached, or breaks the connection before the command has left whole: another node, at once.
- The connection breaks later, or no reply comes in time: another node if the command may be repeated, else
  OutcomeUnknownError.
- A node refuses for a reason of its own (LEAVING, PAUSED, LOADING, OOM, MISCONF, too few reachable peers): another
  node; once every node has refused, the last refusal is the answer.
- No node can be reached: once more after a pause that doubles, until `failover_timeout` is over; UnreachableError.

A node that is lost is told once on the logger `disque.client`, `cannot reach node=... error=...`, and once when it
answers again.

Connections are kept for the next call. Each greets with AUTH, if there is a password, and HELLO, which tells the other
nodes; that view is renewed on the way. A GETJOB that is given up (cancelled, interrupted) gives back what was on its
way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import threading
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import attrs

from disque.client.commands import Home, Name, Request, get_jobs, hello, nack_job, seconds, words
from disque.client.connection import BadReplyError, Connection, Exchange, encode, in_batches
from disque.client.errors import (
    AuthenticationError,
    NotPermittedError,
    OutcomeUnknownError,
    ReplyError,
    UnreachableError,
    is_conclusive,
)
from disque.client.results import Job
from disque.client.routing import Route, Routes
from disque.client.transport import Transport
from disque.client.url import Address, Endpoint
from disque.errors import DisqueError

T = TypeVar("T")

IDLE_MAX: Final = 16
PAUSE_FIRST_S: Final = 0.05
PAUSE_MOST_S: Final = 1.0
GIVE_BACK_S: Final = 1.0
# Replies for which a node of its own is to blame: another one may do it.
_OWN_REASONS: Final = frozenset({"LEAVING", "PAUSED", "LOADING", "OOM", "MISCONF", "NOREPL"})
_NO_PASSWORD_SET: Final = "no password is set"
_OPEN: Final = object()

_log = logging.getLogger("disque.client")


@attrs.define(eq=False)
class Call:
    """A command on its way: `answer` is the result, a DisqueError, or still open; `refusal` what the last node said.

    `doubt` is set once it may have been carried out without an answer: then no refusal can be the last word.
    """

    request: Request[Any]
    encoded: bytes
    started_at: float
    answer: Any = _OPEN
    refusal: ReplyError | None = None
    doubt: OutcomeUnknownError | None = None
    is_repetition: bool = False

    @property
    def is_open(self) -> bool:
        """True while there is no answer."""
        return self.answer is _OPEN

    def fail(self, error: DisqueError) -> None:
        """Nobody else is asked."""
        self.answer = self.doubt or error

    def doubts(self, address: Address, cause: Exception) -> None:
        """It may have been carried out: that is the answer, unless it may be repeated."""
        error = _unknown(self.request, address, cause)
        if not self.request.may_repeat:
            self.answer = error
        elif not self.request.is_idempotent:
            self.doubt = error

    def next_try(self, now: float) -> tuple[bytes, float | None]:
        """What to send, and how long its node may take: a repetition gets what is left of the time."""
        request = self.request
        if not self.is_repetition or request.timeout_at is None or request.waits is None:
            self.is_repetition = True
            return self.encoded, request.waits
        left = max(0.001, self.started_at + request.waits - now)
        spelled = list(request.words)
        spelled[request.timeout_at] = b"%d" % int(1000 * left)
        return encode(spelled), left


@attrs.define(eq=False)
class _Tour:
    """Where this call has been: nodes tried in this round, their troubles, when to give up, how long to pause next."""

    tried: list[Route] = attrs.Factory(list)
    troubles: dict[Address, Exception] = attrs.Factory(dict)
    give_up_at: float | None = None
    pause: float = PAUSE_FIRST_S


class Session:
    """One client's nodes and connections; safe for threads and tasks, each call has a connection to itself."""

    def __init__(
        self, transport: Transport, endpoint: Endpoint, *, dice: random.Random | None = None
    ) -> None:
        self.endpoint = endpoint
        self.options = endpoint.options
        # of the line that tells of a lost node
        self.loss_level = logging.INFO
        self._transport = transport
        self._dice = dice or random.Random()
        self._routes = Routes(endpoint.addresses, self._dice)
        # Held for moments without waiting, so tasks may use it, too.
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = {}
        self._lost_now: set[Address] = set()
        self._learned_at: float | None = None
        self._idle_since: float | None = None
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def addresses(self) -> list[Address]:
        """The nodes that are known now."""
        with self._lock:
            return self._routes.addresses

    def close(self) -> None:
        """End idle connections; those in use end when their calls do. Calls after this are RuntimeErrors."""
        self._is_closed = True
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def now(self) -> float:
        """The transport's time."""
        return self._transport.now()

    async def call(self, request: Request[T]) -> T:
        """Carry out one command. Raises a DisqueError: see the module."""
        (answer,) = await self.carry_out([request])
        if isinstance(answer, DisqueError):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def carry_out(self, requests: Sequence[Request[Any]]) -> list[Any]:
        """Carry out commands as a pipeline; the result of each in its place, or its DisqueError.

        All go to one node; only what it couldn't do goes on to others, so the order holds as long as none is lost.
        """
        now = self.now()
        calls = [Call(request, encode(request.words), now) for request in requests]
        tour = _Tour()
        while left := [call for call in calls if call.is_open]:
            home = left[0].request.home
            route = self._next_route(home, tour)
            if route is None:
                await self._come_round(left, tour)
            elif (connection := await self._connection(route, tour)) is not None:
                await self._ask(connection, route, left, tour)
        return [call.answer for call in calls]

    async def get_jobs(
        self, *queues: Name, timeout: float | None = None, count: int = 1
    ) -> list[Job]:
        """GETJOB, a while at a time: so a node that has fallen silent is left, and a better one is moved to."""
        deadline = None if timeout is None else self.now() + seconds("timeout", timeout)
        while True:
            left = math.inf if deadline is None else max(0.0, deadline - self.now())
            step = min(left, self.options.poll)
            jobs = await self.call(get_jobs(*queues, timeout=step, count=count))
            self.note(jobs)
            if jobs or step == left:
                return jobs

    def note(self, jobs: Sequence[Job]) -> None:
        """What a GETJOB brought, or that it brought nothing, tells where to consume; for those who don't `get_jobs`."""
        now, since = self.now(), self._idle_since
        with self._lock:
            if jobs:
                self._routes.note_jobs([job.id for job in jobs], now)
            elif since is not None:
                if now < since + self.options.poll:
                    return
                self._routes.wander(now)
            self._idle_since = now

    async def open(self, home: Home = "consume") -> tuple[Connection, Address]:
        """A connection of the caller's own, to the node that would be asked next. Raises UnreachableError."""
        tour = _Tour()
        while True:
            route = self._next_route(home, tour)
            if route is None:
                await self._pause(tour)
            elif (connection := await self._connection(route, tour)) is not None:
                self._served(route, home)
                return connection, route.address

    def lost(self, address: Address) -> None:
        """A connection of the caller's own broke: its node is avoided for a while."""
        with self._lock:
            for route in self._routes.order("consume", self.now()):
                if route.address == address:
                    self._routes.lost(route, self.now())

    def next_address(self, home: Home) -> Address:
        """The node that would be asked next; for those who hold a connection of their own, and may want to move."""
        with self._lock:
            return self._routes.order(home, self.now())[0].address

    # Where to

    def _next_route(self, home: Home, tour: _Tour) -> Route | None:
        if self._pid != os.getpid():
            self._begin_in_child()
        with self._lock:
            routes = self._routes.order(home, self.now())
        route = next((route for route in routes if route not in tour.tried), None)
        if route is not None:
            tour.tried.append(route)
        return route

    async def _come_round(self, left: Sequence[Call], tour: _Tour) -> None:
        """Every node was tried: refusals are answers now; the rest is tried once more, or given up."""
        for call in left:
            if call.refusal is not None:
                call.fail(call.refusal)
        still_open = [call for call in left if call.is_open]
        try:
            if still_open:
                await self._pause(tour)
        except DisqueError as failure:
            for call in still_open:
                call.fail(failure)

    async def _pause(self, tour: _Tour) -> None:
        """Before all nodes are tried again.

        Raises AuthenticationError or NotPermittedError, or UnreachableError when time is over.
        """
        for trouble in tour.troubles.values():
            if isinstance(trouble, AuthenticationError | NotPermittedError):
                raise trouble
        now = self.now()
        if tour.give_up_at is None:
            tour.give_up_at = now + self.options.failover_timeout
        if now >= tour.give_up_at:
            told = {str(address): _told(error) for address, error in tour.troubles.items()}
            raise UnreachableError(told)
        await self._transport.sleep(self._dice.uniform(tour.pause / 2, tour.pause))
        tour.pause = min(2 * tour.pause, PAUSE_MOST_S)
        tour.tried.clear()

    def _begin_in_child(self) -> None:
        """After a fork the connections are the parent's: give up our copies, say nothing on them."""
        # another thread of the parent may have held it at that moment
        self._lock = threading.Lock()
        idle, self._idle, self._pid = self._idle, {}, os.getpid()
        for connection in [each for kept in idle.values() for each in kept]:
            connection.close()

    # Connections

    async def _connection(self, route: Route, tour: _Tour) -> Connection | None:
        """One that is kept, or a new one; None if there is none to be had, and `tour` knows why."""
        if self._is_closed:
            raise RuntimeError("this client is closed")
        kept = self._kept(route.address)
        if kept is not None:
            return kept
        deadline = self.now() + self.options.connect_timeout
        try:
            stream = await self._transport.connect(route.address, deadline)
        except OSError as error:
            self._lost(route, error, tour)
            return None
        connection = Connection(stream)
        try:
            await self._greet(connection, route, deadline)
        except (OSError, ReplyError) as error:
            connection.close()
            self._lost(route, error, tour)
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _kept(self, address: Address) -> Connection | None:
        with self._lock:
            kept = self._idle.get(address, [])
            while kept:
                connection = kept.pop()
                if not connection.stream.is_stale():
                    return connection
                connection.close()
        return None

    def _keep(self, connection: Connection, address: Address) -> None:
        with self._lock:
            kept = self._idle.setdefault(address, [])
            if not self._is_closed and len(kept) < IDLE_MAX:
                kept.append(connection)
                return
        connection.close()

    async def _greet(self, connection: Connection, route: Route, deadline: float) -> None:
        """AUTH and HELLO. Raises ReplyError or OSError."""
        requests = [hello()] if self.options.discover else []
        endpoint = self.endpoint
        batch = [encode(request.words) for request in requests]
        if endpoint.password:
            # the default user is the one of a password alone
            names = [endpoint.username] if endpoint.username not in ("", "default") else []
            batch.insert(0, encode(words("AUTH", *names, endpoint.password)))
        done = await connection.exchange(batch, deadline)
        if endpoint.password and done.replies:
            welcome = done.replies.pop(0)
            if isinstance(welcome, ReplyError) and _NO_PASSWORD_SET not in welcome.text:
                raise AuthenticationError(welcome.text, welcome.code)
        if done.trouble is not None:
            raise done.trouble
        for reply in done.replies:
            self._learn(route, reply)

    def _learn(self, route: Route, reply: Any) -> None:
        """Take in what HELLO said. Raises its error reply, or BadReplyError."""
        if isinstance(reply, ReplyError):
            raise reply
        told = read(hello(), reply)
        with self._lock:
            self._routes.learn(route, told)
            self._learned_at = self.now()

    # Asking

    async def _ask(
        self, connection: Connection, route: Route, calls: Sequence[Call], tour: _Tour
    ) -> None:
        """Send what is open, batch by batch, as long as the connection lasts."""
        left, batch = list(calls), list[Call]()
        try:
            await self._renew(connection, route)
            for size in in_batches([call.encoded for call in left]):
                batch, left = left[:size], left[size:]
                done = await self._exchange(connection, batch)
                for call, reply in zip(batch, done.replies, strict=False):
                    self._settle(call, reply, route, tour)
                if done.trouble is not None:
                    self._doubt(batch, done, route)
                    raise done.trouble
        except OSError as error:
            connection.close()
            self._lost(route, error, tour)
        except BaseException:
            try:
                with self._transport.shielded(GIVE_BACK_S):
                    await self._give_back(connection, batch)
            finally:
                connection.close()
            raise
        else:
            self._keep(connection, route.address)

    async def _exchange(self, connection: Connection, batch: Sequence[Call]) -> Exchange:
        now = self.now()
        deadline: float | None = now + self.options.reply_timeout
        encoded = []
        for call in batch:
            data, waits = call.next_try(now)
            encoded.append(data)
            deadline = None if deadline is None or waits is None else deadline + waits
        return await connection.exchange(encoded, deadline)

    async def _give_back(self, connection: Connection, batch: Sequence[Call]) -> None:
        """The caller doesn't wait any more: jobs that were on their way to it aren't kept till their RETRY.

        Ending our side makes the node end a GETJOB that waits; what it had sent before that comes still.
        """
        if [call.request.name for call in batch] != ["GETJOB"]:
            return
        with contextlib.suppress(OSError, DisqueError):
            connection.stream.finish()
            reply = await connection.receive(self.now() + GIVE_BACK_S)
            if found := read(batch[0].request, reply):
                await self.call(nack_job(*found))

    async def _renew(self, connection: Connection, route: Route) -> None:
        """Ask for the view of the cluster, if ours is old."""
        now = self.now()
        learned_at = self._learned_at
        if learned_at is None or now < learned_at + self.options.refresh:
            return
        done = await connection.exchange(
            [encode(hello().words)], now + self.options.connect_timeout
        )
        if done.trouble is not None:
            raise done.trouble
        try:
            self._learn(route, done.replies[0])
        except ReplyError:
            # It can't tell now; it may be able to do what is asked.
            self._learned_at = now

    def _settle(self, call: Call, reply: Any, route: Route, tour: _Tour) -> None:
        """A reply came: is it the answer? Raises BadReplyError if the connection has to be made anew."""
        request = call.request
        if not isinstance(reply, ReplyError):
            self._served(route, request.home)
            try:
                call.answer = read(request, reply)
            except BadReplyError as error:
                call.answer = _unknown(request, route.address, error)
            return
        if reply.code == "NOAUTH" and self.endpoint.password:
            raise BadReplyError("a password is asked for since this connection was made")
        if reply.code not in _OWN_REASONS or not request.goes_elsewhere:
            self._served(route, request.home)
            call.fail(reply)
            return
        with self._lock:
            self._routes.refused(route, reply.code, self.now())
        if reply.code == "LOADING":
            tour.troubles[route.address] = reply
            return
        call.refusal = reply
        if not is_conclusive(request.name, reply):
            call.doubts(route.address, reply)

    def _doubt(self, batch: Sequence[Call], done: Exchange, route: Route) -> None:
        """The connection broke: what left whole and wasn't answered may have been done."""
        assert done.trouble is not None
        for call in batch[len(done.replies) : done.sent]:
            call.doubts(route.address, done.trouble)

    def _served(self, route: Route, home: Home) -> None:
        address = route.address
        with self._lock:
            self._routes.served(route, home, self.now())
            is_back = address in self._lost_now
            self._lost_now.discard(address)
        if is_back:
            _log.info("reached again node=%s", address)

    def _lost(self, route: Route, error: Exception, tour: _Tour) -> None:
        address = route.address
        tour.troubles[address] = error
        with self._lock:
            self._routes.lost(route, self.now())
            is_news = address not in self._lost_now
            self._lost_now.add(address)
        if is_news:
            what = "refused by" if isinstance(error, ReplyError) else "cannot reach"
            told = json.dumps(_told(error))
            _log.log(self.loss_level, "%s node=%s error=%s", what, address, told)


def read(request: Request[T], reply: Any) -> T:
    """Make a command's result of its reply. BadReplyError if it has not the shape that it should have."""
    try:
        return request.read(reply)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise BadReplyError(f"{request.name} answered {reply!r}"[:300]) from error


def _unknown(request: Request[Any], address: Address, cause: Exception) -> OutcomeUnknownError:
    error = OutcomeUnknownError(request.name, str(address), _told(cause))
    error.__cause__ = cause
    return error


def _told(error: Exception) -> str:
    """An exception in words; a time-out has none of its own."""
    words_ = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return words_ or ("no reply in time" if isinstance(error, TimeoutError) else repr(error))
