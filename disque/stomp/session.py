"""Session: one STOMP connection: frames in; commands of the core, and bytes, out.

It knows the three versions and no socket. The owner gives it frames, replies of the core and the time, and takes what
its outbox holds after each; the connection is his. A frame's RECEIPT says that all it asked for has been done: for a
SEND that the job has its copies. What the client got wrong, and what the core refuses, becomes an ERROR; from 1.1 on
the connection ends with it, as the specifications want.

The rest of the protocol is next door: `frames`, `destinations`, `sending` (SEND), `consuming` (queues), `listening`
(topics), `transactions`, `beats`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import attrs

from disque.core import commands as cmd
from disque.core.jobid import JobId
from disque.core.ready import ClientId, Failure, Published, Reply, Status
from disque.errors import CommandError, ProtocolError
from disque.stomp.beats import OFFER, Beats
from disque.stomp.consuming import AckMode, Consumer, Subscription
from disque.stomp.destinations import (
    TEMP,
    Asked,
    Channel,
    Control,
    Queue,
    parse_destination,
    temporary_name,
)
from disque.stomp.frames import (
    Frame,
    FrameError,
    Version,
    encode,
    escape,
    shown,
    unescape,
)
from disque.stomp.listening import Listener, Tails
from disque.stomp.outbox import Outbox, Then, ignore
from disque.stomp.sending import add_command, publish_command
from disque.stomp.transactions import Transaction, Transactions

SUBSCRIPTIONS_MAX = 1_000_000  # of one connection
TEMPORARY_MAX = 10_000  # temporary queues of one connection
_VERSIONS = {version.text: version for version in (Version.V10, Version.V11, Version.V12)}


@attrs.frozen
class Surroundings:
    """What a session needs of its owner."""

    connection: bytes  # unique among all connections of the cluster
    server: bytes  # name and version of the program
    new_id: Callable[[], ClientId]  # ids for the core that nobody had before
    # Is the passcode one of these, for this login? CommandError: not now
    log_in: Callable[[bytes, list[bytes]], bool]
    prefetch_max: Callable[[], int]
    tails: Tails
    # 1.0 clients of ocamlmq want a newline after the NUL
    ends_lines: Callable[[], bool] = lambda: False
    # May the client have this done, there or (True) in a queue of its own? CommandError: no
    permit: Callable[[cmd.Command, bool], None] = lambda _, __: None


class Session:
    """One connection. `version` is the decoder's business, too: set it there after each frame."""

    def __init__(self, surroundings: Surroundings, now_ms: int) -> None:
        self.version = Version.UNKNOWN
        self.outbox = Outbox(surroundings.new_id)
        self.is_closing = False  # say what is to be said, then close
        self.subscriber: ClientId | None = None  # whose replies are what is published to its topics
        self._around = surroundings
        self._now_ms = now_ms
        self._consumer = Consumer(self.outbox)
        self._transactions = Transactions()
        self._listener = Listener(surroundings.tails)
        self._temporary: dict[bytes, None] = {}  # names of its queues
        self._temporary_bytes = 0  # of them
        self._beats = Beats()
        self._end = b"\0"  # of a frame

    # Input

    def receive(self, frame: Frame, now_ms: int) -> None:
        """The client's next frame."""
        self._at(now_ms)
        if self.is_closing:
            return
        try:
            self._handler(frame)(self, frame)
        except CommandError as error:
            id_ = frame.headers.get(b"id") if frame.command == b"SUBSCRIBE" else None
            self._fail(frame.headers.get(b"receipt"), error.code, str(error), subscription=id_)

    def settle_up(self) -> None:
        """All frames that have come are done: to be called after the last one."""
        self._consumer.settle_up()

    def broken(self, error: ProtocolError) -> None:
        """What the client sent is no frame."""
        if not self.is_closing:
            self._fail(None, "ERR", str(error), is_fatal=True)

    def replied(self, id_: ClientId, reply: Reply, now_ms: int) -> None:
        """The core's reply to a command of the outbox."""
        self._at(now_ms)
        self.outbox.replied(id_, reply)
        self._consumer.settle_up()

    def flushed(self, now_ms: int) -> None:
        """All bytes so far have been sent."""
        self._at(now_ms)
        self._consumer.flushed()

    def tick(self, now_ms: int, *, sent_bytes: int, read_at_ms: int) -> None:
        """`due_at` has come; `sent_bytes` since the beginning, `read_at_ms`: when the client last said anything."""
        self._at(now_ms)
        self._consumer.due()
        if self.is_closing:
            return
        if self._beats.must_send(now_ms, sent_bytes):
            self.outbox.data.append(b"\n")
        if missing_ms := self._beats.missing_ms(now_ms, read_at_ms):
            self._fail(None, "ERR", f"no heart-beat for {missing_ms} ms", is_fatal=True)

    def close(self, now_ms: int) -> bool:
        """The connection has ended: what it holds goes back, what was only its own goes away.

        There may be very much of it, so each call does a bit; False if nothing is left.
        """
        self._at(now_ms)
        self.is_closing = True
        self._transactions.clear()
        if self._consumer.close_one():
            return True
        if not self._temporary:
            return False
        name, _ = self._temporary.popitem()
        self.outbox.ask(cmd.QPurge(name, is_final=True), ignore, is_owed=False)
        return True

    @property
    def due_at(self) -> int | None:
        """ms; when `tick` should be called."""
        times = [self._consumer.due_at, self._beats.due_at]
        return min([at for at in times if at is not None], default=None)

    @property
    def has_subscriptions(self) -> bool:
        """True if the client may be silent and still be there."""
        return bool(self._listener) or bool(self._consumer.subscriptions)

    @property
    def kept_bytes(self) -> int:
        """What open transactions, subscriptions, names of temporary queues, and receipts to be said hold."""
        return (
            self._transactions.size
            + self._consumer.kept_bytes
            + self._listener.kept_bytes
            + self._temporary_bytes
            + self.outbox.kept_bytes
        )

    def messages(self, published: Published) -> Iterator[bytes]:
        """The frames in which a message of a topic reaches this client, one a subscription."""
        return self._listener.messages(published)

    def message_count(self, published: Published) -> int:
        """How many frames that would be."""
        return self._listener.count(published)

    def _at(self, now_ms: int) -> None:
        self._now_ms = self._consumer.now_ms = now_ms

    def _handler(self, frame: Frame) -> Callable[[Session, Frame], None]:
        if self.version is Version.UNKNOWN:
            if frame.command not in (b"CONNECT", b"STOMP"):
                raise CommandError(f"first comes CONNECT, got {shown(frame.command)}")
            return Session._connect
        if frame.command in (b"CONNECT", b"STOMP"):
            raise CommandError("this connection is connected already")
        handler = _HANDLERS.get(frame.command)
        if handler is None or (frame.command == b"NACK" and self.version is Version.V10):
            raise CommandError(f"STOMP {self.version.text.decode()} has no {shown(frame.command)}")
        if frame.body and frame.command != b"SEND" and self.version > Version.V10:
            raise CommandError(f"{shown(frame.command)} takes no body")
        return handler

    # Output

    def _say(self, frame: Frame) -> None:
        self.outbox.data.append(encode(frame, self.version) + self._end[1:])

    def _receipt(self, receipt: bytes | None, more: bytes = b"") -> None:
        """Say RECEIPT if it was asked for; `more`: header lines."""
        if receipt is not None and not self.is_closing:
            name = escape(receipt, self.version)
            self.outbox.data.append(b"RECEIPT\nreceipt-id:%b\n%b\n%b" % (name, more, self._end))

    def _fail(
        self,
        receipt: bytes | None,
        code: str,
        text: str,
        *,
        subscription: bytes | None = None,
        is_fatal: bool = False,
    ) -> None:
        """Say what went wrong, and with what. STOMP 1.0 lets the connection go on."""
        message = text if code == "ERR" else f"{code} {text}"
        headers = {
            b"message": message.encode("utf-8", "surrogateescape"),
            b"content-type": b"text/plain",
        }
        if self.version is Version.UNKNOWN:
            headers[b"version"] = b",".join(_VERSIONS)
        if receipt is not None:
            headers[b"receipt-id"] = receipt
        if subscription is not None:
            headers[b"subscription"] = subscription
        self._say(Frame(b"ERROR", headers, headers[b"message"] + b"\n"))
        if is_fatal or self.version is not Version.V10:
            self.is_closing = True

    def _done(
        self, receipt: bytes | None, reply: Reply, *, subscription: bytes | None = None
    ) -> bool:
        """A command of a frame has been carried out, or (False) has failed, which the client is told."""
        if isinstance(reply, Failure):
            if not self.is_closing:
                self._fail(receipt, reply.code, reply.text, subscription=subscription)
            return False
        return True

    # CONNECT, DISCONNECT

    def _connect(self, frame: Frame) -> None:
        headers = dict(frame.headers)
        accepted = headers.get(b"accept-version")
        if accepted is None:
            version = Version.V10
            headers = {name.strip(): text.strip() for name, text in headers.items()}
        else:
            common = [v for each in accepted.split(b",") if (v := _VERSIONS.get(each.strip()))]
            if not common:
                raise CommandError(
                    f"no common version: this server speaks 1.0, 1.1 and 1.2, not {shown(accepted)}"
                )
            version = max(common)
        if not self._log_in(headers.get(b"login", b""), headers.get(b"passcode", b"")):
            raise CommandError("wrong login or passcode")
        if version > Version.V10:
            self._beats.agree(headers.get(b"heart-beat", b"0,0"), self._now_ms)
        elif self._around.ends_lines():
            self._end = b"\0\n"
        self._consumer.frame_end = self._listener.frame_end = self._end
        self.version = self._consumer.version = self._listener.version = version
        self._say(
            Frame(
                b"CONNECTED",
                {
                    b"version": version.text,
                    b"heart-beat": OFFER if version > Version.V10 else b"0,0",
                    b"session": self._around.connection,
                    b"server": self._around.server,
                },
            )
        )

    def _log_in(self, login: bytes, passcode: bytes) -> bool:
        """A CONNECT frame isn't escaped, but there are clients that do so."""
        meant = [passcode]
        if b"\\" in passcode:
            with contextlib.suppress(FrameError):
                meant.append(unescape(passcode, Version.V12))
        return self._around.log_in(login, meant)

    def _disconnect(self, frame: Frame) -> None:
        """The owner runs it once all before it has been answered."""
        self._receipt(frame.headers.get(b"receipt"))
        self.is_closing = True

    # SEND

    def _send(self, frame: Frame) -> None:
        receipt = frame.headers.get(b"receipt")
        command = self._command_of(frame)
        if b"transaction" in frame.headers:
            if command is None:
                raise CommandError("a question can't be part of a transaction")
            self._transactions.add_send(frame, command)
            self._receipt(receipt)
        elif command is not None:
            self.outbox.ask(command, lambda reply: self._sent(receipt, reply), receipt=receipt)

    def _command_of(self, frame: Frame) -> cmd.AddJob | cmd.Publish | None:
        """What a SEND adds or publishes; None for a question, which is asked here."""
        connection, permit = self._around.connection, self._around.permit
        if (reply_to := frame.headers.get(b"reply-to", b"")).startswith(TEMP):
            self._note_temporary(temporary_name(reply_to, connection))
        destination = parse_destination(_needed(frame, b"destination"), connection)
        match destination:
            case Queue(name=name):
                command = add_command(name, frame, connection)
                permit(command, destination.is_temporary)
                if destination.is_temporary:
                    self._note_temporary(name)
                return command
            case Channel(name=name):
                message = publish_command(name, frame, connection)
                permit(message, False)
                return message
            case Asked():
                if b"transaction" not in frame.headers:
                    self._ask(destination, frame.headers.get(b"receipt"))
                return None

    def _sent(self, receipt: bytes | None, reply: Reply) -> None:
        if self._done(receipt, reply):
            if isinstance(reply, Status):
                self._receipt(receipt, b"message-id:%b\n" % reply.text)
            else:
                self._receipt(receipt)

    def _note_temporary(self, name: bytes) -> None:
        """A queue of this connection's own, which ends with it; nobody has to permit its name."""
        if name in self._temporary:
            return
        if len(self._temporary) >= TEMPORARY_MAX:
            raise CommandError(f"too many temporary queues, the limit is {TEMPORARY_MAX}")
        self._temporary[name] = None
        self._temporary_bytes += len(name)

    def _ask(self, asked: Asked, receipt: bytes | None) -> None:
        """A question is answered in its receipt."""
        if receipt is None:
            return
        command, word = _QUESTIONS[asked.what]
        self._around.permit(command(asked.name), False)

        def answered(reply: Reply) -> None:
            if self._done(receipt, reply):
                count = reply if isinstance(reply, int) else 0
                self._receipt(receipt, b"%b:%d\n" % (word, count))

        self.outbox.ask(command(asked.name), answered, receipt=receipt)

    # SUBSCRIBE, UNSUBSCRIBE

    def _subscribe(self, frame: Frame) -> None:
        headers = frame.headers
        text = _needed(frame, b"destination")
        id_ = headers.get(b"id")
        if id_ is None and self.version > Version.V10:
            raise CommandError("SUBSCRIBE needs a header id")
        key = text if id_ is None else id_
        if key in self._listener or key in self._consumer.subscriptions:
            raise CommandError(f"there is a subscription {shown(key)} already")
        if len(self._listener) + len(self._consumer.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise CommandError(f"too many subscriptions, the limit is {SUBSCRIPTIONS_MAX}")
        if b"selector" in headers:
            raise CommandError("selectors aren't supported")
        mode = _ack_mode(headers.get(b"ack", b"auto"))
        receipt = headers.get(b"receipt")

        def answered(reply: Reply) -> None:
            if self._done(receipt, reply, subscription=id_):
                self._receipt(receipt)
            else:
                self._listener.drop(key)

        destination = parse_destination(text, self._around.connection)
        match destination:
            case Queue(name=name, is_temporary=is_temporary):
                self._around.permit(cmd.GetJob((name,)), is_temporary)
                if mode is AckMode.AUTO:  # what is sent is acknowledged, without another frame
                    self._around.permit(cmd.AckJob(()), True)
                if is_temporary:
                    self._note_temporary(name)
                subscription = Subscription(
                    key,
                    name,
                    mode,
                    self._prefetch(headers.get(b"prefetch")),
                    self._consumer,
                    is_nameless=id_ is None,
                    is_temporary=is_temporary,
                )
                self._consumer.subscribe(subscription, answered)
            case Channel():
                self._around.permit(cmd.Subscribe(0, (destination.topic,)), False)
                self._listener.add(
                    key,
                    destination.name,
                    is_nameless=id_ is None,
                    is_acknowledged=mode is not AckMode.AUTO,
                )
                self._subscribe_topic(destination, answered)
            case Asked():
                raise CommandError(f"nobody can subscribe to {shown(text)}")

    def _prefetch(self, text: bytes | None) -> int:
        most = self._around.prefetch_max()
        if text is None:
            return most
        if not text.isdigit() or len(text) > 9 or not int(text):
            raise CommandError(f"prefetch must be a number above 0, got {shown(text)}")
        return min(int(text), most)

    def _subscribe_topic(self, channel: Channel, answered: Then) -> None:
        if self.subscriber is None:
            self.subscriber = self._around.new_id()
        self.outbox.ask(cmd.Subscribe(self.subscriber, (channel.topic,)), answered)

    def _unsubscribe(self, frame: Frame) -> None:
        receipt = frame.headers.get(b"receipt")
        key = frame.headers.get(b"id")
        if key is None and self.version is Version.V10:
            key = frame.headers.get(b"destination")
        if key is None:
            raise CommandError("UNSUBSCRIBE needs a header id")
        if key in self._consumer.subscriptions:
            self._consumer.unsubscribe(key)
            self._receipt(receipt)
            return
        name = self._listener.drop(key)
        if name is None:
            raise CommandError(f"there is no subscription {shown(key)}")
        if self._listener.wants(name) or self.subscriber is None:
            self._receipt(receipt)
            return
        command = cmd.Unsubscribe(self.subscriber, (Channel(name).topic,))
        self.outbox.ask(command, lambda reply: self._sent(receipt, reply))

    # ACK, NACK

    def _acknowledge(self, frame: Frame) -> None:
        receipt = frame.headers.get(b"receipt")
        ids = self._meant(frame)
        is_nack = frame.command == b"NACK"
        command = cmd.Nack(tuple(ids)) if is_nack else cmd.AckJob(tuple(ids))
        self._around.permit(command, False)
        if b"transaction" in frame.headers:
            self._transactions.add_ack(frame, ids, is_nack=is_nack)
            self._receipt(receipt)
        elif ids and receipt is None and not is_nack:
            self._consumer.acknowledge(ids)
        elif ids:
            self._settle(ids, receipt, lambda reply: self._sent(receipt, reply), is_nack=is_nack)
        else:
            self._receipt(receipt)

    def _meant(self, frame: Frame) -> list[JobId]:
        """The jobs that an ACK or NACK is about: none of a topic's message, or of what isn't held any more."""
        name = b"id" if self.version >= Version.V12 else b"message-id"
        id_ = _needed(frame, name)
        if self.version is Version.V11:
            _needed(frame, b"subscription")
        return self._consumer.meant(id_, is_cumulative=self.version > Version.V10)

    def _settle(
        self, ids: list[JobId], receipt: bytes | None, then: Then, *, is_nack: bool
    ) -> None:
        self.outbox.ask_all(cmd.Nack if is_nack else cmd.AckJob, ids, then, receipt=receipt)
        self._consumer.release(ids)

    # Transactions

    def _begin(self, frame: Frame) -> None:
        self._transactions.begin(_needed(frame, b"transaction"))
        self._receipt(frame.headers.get(b"receipt"))

    def _abort(self, frame: Frame) -> None:
        self._transactions.take(_needed(frame, b"transaction"))
        self._receipt(frame.headers.get(b"receipt"))

    def _commit(self, frame: Frame) -> None:
        """All SENDs together; once each of them has its copies, all ACKs and NACKs together; then the receipt."""
        transaction = self._transactions.take(_needed(frame, b"transaction"))
        receipt = frame.headers.get(b"receipt")
        left = len(transaction.sends)
        failures: list[Failure] = []

        def sent(reply: Reply) -> None:
            nonlocal left
            left -= 1
            if isinstance(reply, Failure):
                failures.append(reply)
            if not left and not failures:
                self._commit_acks(transaction, receipt)
            elif not left and not self.is_closing:
                first = failures[0]
                count = f"{len(failures)} of {len(transaction.sends)}"
                text = f"{count} SENDs failed, nothing was acknowledged: {first.text}"
                self._fail(receipt, first.code, text)

        for command in transaction.sends:
            self.outbox.ask(command, sent, receipt=receipt)
        if not transaction.sends:
            self._commit_acks(transaction, receipt)

    def _commit_acks(self, transaction: Transaction, receipt: bytes | None) -> None:
        acks, nacks = list(transaction.acks), list(transaction.nacks)
        parts = [(ids, is_nack) for ids, is_nack in ((acks, False), (nacks, True)) if ids]
        left = len(parts)

        def settled(reply: Reply) -> None:
            nonlocal left
            left -= 1
            if self._done(receipt, reply) and not left:
                self._receipt(receipt)

        for ids, is_nack in parts:
            self._settle(ids, receipt, settled, is_nack=is_nack)
        if not parts:
            self._receipt(receipt)


def _needed(frame: Frame, name: bytes) -> bytes:
    text = frame.headers.get(name)
    if text is None:
        raise CommandError(f"{frame.command.decode()} needs a header {name.decode()}")
    return text


def _ack_mode(text: bytes) -> AckMode:
    try:
        return AckMode(text)
    except ValueError:
        raise CommandError(
            f"ack must be auto, client or client-individual, got {shown(text)}"
        ) from None


_QUESTIONS: Mapping[Control, tuple[Callable[[bytes], cmd.Command], bytes]] = {
    Control.MESSAGES: (cmd.GlobalQLen, b"num-messages"),
    Control.QUEUE_SUBSCRIBERS: (cmd.CountAttending, b"num-subscribers"),
    Control.TOPIC_SUBSCRIBERS: (cmd.CountReached, b"num-subscribers"),
}
_HANDLERS: Mapping[bytes, Callable[[Session, Frame], None]] = {
    b"SEND": Session._send,
    b"SUBSCRIBE": Session._subscribe,
    b"UNSUBSCRIBE": Session._unsubscribe,
    b"ACK": Session._acknowledge,
    b"NACK": Session._acknowledge,
    b"BEGIN": Session._begin,
    b"COMMIT": Session._commit,
    b"ABORT": Session._abort,
    b"DISCONNECT": Session._disconnect,
}
COMMANDS = (b"CONNECT", b"STOMP", *_HANDLERS)  # of frames that a client may send
