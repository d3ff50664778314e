"""STOMP at the sockets: frames to sessions, their commands to the broker, its replies back.

Thin: what frames mean is `disque.stomp.session`'s business, reading and writing is that of `clients`. A session's
commands never run while replies are being placed, but at the end of that turn (`resume`), as any other input.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import attrs
import trio

import disque
from disque.core import commands as cmd
from disque.core.commands import AddJob, Attend, CountReached
from disque.core.ready import Failure, Published
from disque.errors import CommandError, ProtocolError
from disque.server.access import WrongPassword
from disque.server.acl import DEFAULT_NAME
from disque.server.clients import RUN_NS, UNWRITTEN
from disque.server.dispatch import LOADING_TEXT, OOM_TEXT
from disque.server.pubsub import tell
from disque.stomp.frames import Decoder, Frame, FrameLimits, Version, encode
from disque.stomp.listening import Tails
from disque.stomp.session import COMMANDS, Session, Surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from disque.core.commands import Command
    from disque.core.ready import ClientId, Reply
    from disque.server.clients import Hearer
    from disque.server.connection import Client
    from disque.server.shell import Shell

TICK_S = 0.1  # timers of sessions (leases, heart-beats) are looked at so often
NOAUTH_TEXT = "NOAUTH Authentication required."
# What a session has done for a client, by the command of RESP that does the same
_SAME_AS: Mapping[type, bytes] = {
    cmd.AddJob: b"addjob",
    cmd.GetJob: b"getjob",
    cmd.AckJob: b"ackjob",
    cmd.Nack: b"nack",
    cmd.Publish: b"publish",
    cmd.Subscribe: b"subscribe",
    cmd.GlobalQLen: b"globalqlen",
    cmd.CountAttending: b"qstat",
    cmd.CountReached: b"pubsub",
}
# Of a frame in CLIENT LIST; what else somebody sends may be anything
_SHOWN = {name: name.decode().lower() for name in COMMANDS}


@attrs.define(eq=False)
class Talk:
    """One connection and its session."""

    client: Client
    session: Session
    decoder: Decoder
    hearer: Hearer
    due_at_ms: float = math.inf
    # The broker hasn't got all commands yet: nothing more is said or run before
    is_behind: bool = False
    is_over: bool = False  # the connection has ended; replies may still come


class Stomp:
    """All STOMP connections of a node; a `dialect.Dialect`."""

    name = "stomp"
    tells_end = True

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._talks: dict[ClientId, Talk] = {}
        self._has_talks = trio.Event()
        self._tails = Tails()
        self._server = b"disque-broker/" + disque.__version__.encode()

    # disque.server.dialect.Dialect

    def decoder(self) -> Decoder:
        """For one connection's bytes."""
        return Decoder(self._limits())

    def limit(self, client: Client) -> None:
        """From the next head on."""
        assert isinstance(client.decoder, Decoder)
        client.decoder.limits = self._limits()

    def refusal(self, code: str, text: str) -> bytes:
        """An ERROR frame."""
        message = f"{code} {text}".encode()
        return encode(Frame(b"ERROR", {b"message": message}, message + b"\n"), Version.UNKNOWN)

    def begin(self, client: Client) -> None:
        """A connection is there; it has still to say CONNECT."""
        shell = self._shell
        around = Surroundings(
            connection=b"%b-%d" % (shell.run_id[:16].encode(), client.id),
            server=self._server,
            new_id=shell.clients.new_id,
            log_in=lambda login, passcodes: self._log_in(client, login, passcodes),
            permit=lambda command, is_own: self._permit(client, command, is_own=is_own),
            prefetch_max=lambda: shell.config.stomp_max_prefetch,
            tails=self._tails,
            ends_lines=lambda: shell.config.stomp_newline,
        )
        assert isinstance(client.decoder, Decoder)

        def hear(id_: ClientId, reply: Reply) -> Client:
            # Not by a variable: a cycle would keep all of it until the next full collection
            talk = self._talks.get(client.id)
            return client if talk is None else self._replied(talk, id_, reply)

        talk = Talk(client, Session(around, shell.clock.now_ms()), client.decoder, hear)
        self._talks[client.id] = talk
        self._has_talks.set()
        client.on_flushed = lambda: self._flushed(talk)

    def execute(self, client: Client, request: Frame) -> None:
        """Carry a frame out."""
        talk = self._talks[client.id]
        client.last_command = _SHOWN.get(request.command, "unknown")
        self._shell.figures.commands_processed += 1
        if self._is_nobody(talk):
            talk.session.broken(ProtocolError(NOAUTH_TEXT))
        talk.session.receive(request, self._shell.clock.now_ms())
        talk.decoder.version = talk.session.version
        if not client.pending or talk.session.is_closing:
            talk.session.settle_up()
        self._carry_out(talk)

    def overtakes(self, request: Frame) -> bool:
        """Only DISCONNECT waits for what is under way: then its receipt says that all is done."""
        return request.command != b"DISCONNECT"

    def broken(self, client: Client, error: ProtocolError) -> None:
        """An ERROR frame is the last one."""
        talk = self._talks[client.id]
        talk.session.broken(error)
        self._carry_out(talk)

    def resume(self, client: Client) -> None:
        """Carry out what replies have led to."""
        talk = self._talks.get(client.id)
        if talk is not None:
            self._carry_out(talk)

    def part(self, client: Client) -> None:
        """The connection ends: SENDs without their copies are taken back, what it held goes back into the queues."""
        talk = self._talks[client.id]
        talk.is_over = True
        talk.due_at_ms = math.inf
        client.on_flushed = None
        outbox = talk.session.outbox
        for id_ in outbox.owed():
            if self._take_back(id_):
                outbox.forget(id_)
        self._carry_out(talk)

    def _limits(self) -> FrameLimits:
        return FrameLimits(body_bytes_max=self._shell.config.body_max)

    # Between sessions and the broker

    def _carry_out(self, talk: Talk) -> None:
        """Give the session's commands to the broker, what follows from a refusal, too; the rest has its turn later."""
        session, outbox = talk.session, talk.session.outbox
        self._listen_to_topics(talk)
        talk.is_behind = False
        until_ns, now_ms = time.perf_counter_ns() + RUN_NS, self._shell.clock.now_ms()
        while outbox.commands or (talk.is_over and session.close(now_ms)):
            if outbox.commands:
                self._give(talk, *outbox.commands.popleft())
            if time.perf_counter_ns() > until_ns:
                talk.is_behind = True
                self._shell.turns.resume(talk.client)
                break
        self._say(talk)
        if talk.is_over and outbox.is_idle and not talk.is_behind:
            self._talks.pop(talk.client.id, None)

    def _give(self, talk: Talk, id_: ClientId, command: Command | None) -> None:
        """Give one command to the broker."""
        shell = self._shell
        if command is None:
            if self._take_back(id_):
                talk.session.outbox.forget(id_)
            return
        refusal = self._refusal(command)
        if refusal is not None:
            talk.session.replied(id_, refusal, shell.clock.now_ms())
            return
        shell.clients.listen_to(id_, talk.hearer)
        shell.broker.command(id_, command)

    def _take_back(self, id_: ClientId) -> bool:
        """End a command that waits; False if its reply is on its way already."""
        broker = self._shell.broker
        if not broker.engine.is_waiting(id_):
            return False
        broker.disconnect(id_)
        self._shell.clients.forget(id_)
        return True

    def _replied(self, talk: Talk, id_: ClientId, reply: Reply) -> Client:
        """Called while replies are placed: nothing new may reach the broker now."""
        shell, session = self._shell, talk.session
        shell.clients.forget(id_)
        session.replied(id_, reply, shell.clock.now_ms())
        self._say(talk)
        if session.outbox.commands or talk.is_over:
            shell.turns.resume(talk.client)
        return talk.client

    def _say(self, talk: Talk) -> None:
        """Put the session's bytes where they are sent from, and show the connection what has become of it."""
        client, session = talk.client, talk.session
        outbox = session.outbox
        if talk.is_over:
            outbox.data.clear()
            return
        if outbox.data and not talk.is_behind:
            data, outbox.data = outbox.data, []
            client.answer(data[0] if len(data) == 1 else b"".join(data))
        had = (client.waits, client.is_alone)
        client.waits, client.is_alone = outbox.open_count + talk.is_behind, talk.is_behind
        if client.waits < had[0] or client.is_alone < had[1]:
            client.made_room()
            if client.has_input:
                self._shell.turns.resume(client)
        client.is_listening = session.has_subscriptions
        client.kept_bytes = session.kept_bytes
        due_at = session.due_at
        talk.due_at_ms = math.inf if due_at is None else due_at
        if session.is_closing and not (client.is_closing or talk.is_behind):
            client.close_soon()

    def _listen_to_topics(self, talk: Talk) -> None:
        client, session = talk.client, talk.session
        if session.subscriber is None or client.subscriber is not None or talk.is_over:
            return

        def heard(_id: ClientId, reply: Reply) -> Client:
            if isinstance(reply, Published):
                self._tell(talk, reply)
            return client

        client.subscriber = session.subscriber
        self._shell.clients.listen_to(session.subscriber, heard)

    def _tell(self, talk: Talk, published: Published) -> None:
        """A topic's message to each subscription; once it alone overflows topic-buffer no more copies are made."""
        shell, session, size = self._shell, talk.session, 0
        for told, message in enumerate(session.messages(published), 1):
            size += len(message)
            if tell(shell, talk.client, message) and size > shell.config.topic_buffer:
                shell.figures.topic_messages_dropped += session.message_count(published) - told
                break

    def _flushed(self, talk: Talk) -> None:
        if talk.session.outbox.data:
            return  # it is behind
        talk.session.flushed(self._shell.clock.now_ms())
        if talk.session.outbox.commands:
            self._shell.turns.resume(talk.client)

    def _refusal(self, command: Command) -> Failure | None:
        """Why the broker must not get a command now."""
        turns = self._shell.turns
        if turns.is_loading or self._shell.broker.is_returning:
            return Failure("LOADING", LOADING_TEXT)
        if turns.trouble and not isinstance(command, CountReached | Attend):
            return Failure("MISCONF", f"{UNWRITTEN}: {turns.trouble}")
        if isinstance(command, AddJob) and self._shell.broker.engine.is_out_of_memory():
            return Failure("OOM", OOM_TEXT)
        return None

    def _log_in(self, client: Client, login: bytes, passcodes: list[bytes]) -> bool:
        """A login that names no user is `default`, as those are that clients make up ("guest")."""
        access, name = self._shell.access, login.decode("utf-8", "surrogateescape")
        if name not in self._shell.config.user:
            if not access.needs_password:
                return True
            name = DEFAULT_NAME
        try:
            user = access.log_in(name, passcodes, client.host)
        except WrongPassword:
            return False
        self._shell.clients.crowd.logged_in(client, user)
        return True

    def _is_nobody(self, talk: Talk) -> bool:
        """True if it came when no password was needed, and now one is."""
        if talk.is_over or talk.client.user is not None or not talk.session.version:
            return False
        return self._shell.access.needs_password

    def _permit(self, client: Client, command: Command, *, is_own: bool) -> None:
        """CommandError if a client may not have this done now; `is_own`: in a queue that only it has."""
        shell = self._shell
        if client.user is not None:
            client.user.check_command(_SAME_AS[type(command)], ())
            if not is_own:
                client.user.check_names(command, shell.broker.engine.queue_of)
        if isinstance(command, AddJob) and shell.broker.engine.is_out_of_memory():
            raise CommandError(OOM_TEXT, "OOM")

    # Time

    async def run(self) -> None:
        """See to the timers of all sessions, for ever; nothing wakes while there are none."""
        shell = self._shell
        while True:
            if not self._talks:
                self._has_talks = trio.Event()
                await self._has_talks.wait()
            await trio.sleep(TICK_S)
            until_ns = time.perf_counter_ns() + RUN_NS
            for talk in list(self._talks.values()):
                is_nobody = self._is_nobody(talk)
                if talk.due_at_ms <= shell.clock.now_ms() or is_nobody:
                    self._tick(talk, is_nobody=is_nobody)
                if time.perf_counter_ns() > until_ns:
                    await trio.lowlevel.checkpoint()
                    until_ns = time.perf_counter_ns() + RUN_NS

    def _tick(self, talk: Talk, *, is_nobody: bool) -> None:
        client, session, now_ms = talk.client, talk.session, self._shell.clock.now_ms()
        if is_nobody:
            session.broken(ProtocolError(NOAUTH_TEXT))
        session.tick(now_ms, sent_bytes=client.sent_bytes, read_at_ms=client.idle_since_ms)
        self._shell.turns.open()
        self._carry_out(talk)
        self._shell.turns.end(client)
