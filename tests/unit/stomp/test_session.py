"""Session: what each frame does, version by version, with a real engine behind it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disque.core import commands as cmd
from disque.core.limits import Limits
from disque.core.ready import ClientId
from disque.errors import ProtocolError
from disque.stomp.frames import Frame, Version
from disque.stomp.listening import SAME_MAX
from tests.unit.core.builders import A, B, Node, World, view
from tests.unit.stomp.world import Hub, Talker, depth, receipt

VERSIONS = [Version.V10, Version.V11, Version.V12]
each_version = pytest.mark.parametrize("version", VERSIONS)
from_1_1 = pytest.mark.parametrize("version", VERSIONS[1:])


def error_of(frames: list[Frame]) -> str:
    (frame,) = frames
    assert frame.command == b"ERROR", frame
    assert frame.body == frame.headers[b"message"] + b"\n"
    return frame.headers[b"message"].decode()


# CONNECT


@pytest.mark.parametrize(
    ("accept", "version"),
    [(None, "1.0"), ("1.0", "1.0"), ("1.1", "1.1"), ("1.0,1.2,1.1", "1.2"), ("2.0, 1.1", "1.1")],
)
def test_the_highest_version_that_both_speak(accept: str | None, version: str) -> None:
    talker = Hub().open()
    (frame,) = talker.do("CONNECT", **({} if accept is None else {"accept_version": accept}))
    assert frame.command == b"CONNECTED"
    assert frame.headers[b"version"] == version.encode()
    assert frame.headers[b"session"] == b"c0"
    assert talker.session.version.text == version.encode()


def test_without_a_common_version_the_versions_are_told() -> None:
    talker = Hub().open()
    (frame,) = talker.do("STOMP", accept_version="3.0")
    assert frame.command == b"ERROR"
    assert frame.headers[b"version"] == b"1.0,1.1,1.2"
    assert talker.session.is_closing


@pytest.mark.parametrize("code", [b"a:b\\", b"a\\cb\\\\"])
def test_the_password_is_the_passcode_escaped_or_not(code: bytes) -> None:
    hub = Hub()
    hub.passcode = b"a:b\\"
    (frame,) = hub.open().do("CONNECT", accept_version="1.2", passcode=code)
    assert frame.command == b"CONNECTED"


def test_a_wrong_or_missing_password_ends_the_connection() -> None:
    hub = Hub()
    hub.passcode = b"secret"
    for headers in ({}, {"passcode": "no"}, {"passcode": "\\x"}, {"login": "secret"}):
        talker = hub.open()
        assert error_of(talker.do("CONNECT", **headers)) == "wrong login or passcode"
        assert talker.session.is_closing
        assert talker.do("SEND", destination="/queue/q") == []


def test_a_1_0_client_may_put_spaces_around_its_password() -> None:
    hub = Hub()
    hub.passcode = b"secret"
    assert hub.open().do("CONNECT", passcode=" secret ")[0].command == b"CONNECTED"


def test_first_comes_connect_and_it_comes_once() -> None:
    talker = Hub().open()
    assert error_of(talker.do("SEND", destination="/queue/q")) == "first comes CONNECT, got 'SEND'"
    talker = Hub().connect()
    assert "already" in error_of(talker.do("CONNECT"))


@each_version
def test_what_a_version_doesnt_know(version: Version) -> None:
    talker = Hub().connect(version)
    text = error_of(talker.do("FLY", receipt="r"))
    assert text == f"STOMP {version.text.decode()} has no 'FLY'"
    assert talker.session.is_closing == (version is not Version.V10)


def test_an_error_names_the_receipt_and_only_1_0_goes_on() -> None:
    for version in VERSIONS:
        talker = Hub().connect(version)
        (frame,) = talker.do("SEND", destination="nowhere", receipt="r1")
        assert frame.headers[b"receipt-id"] == b"r1"
        text = b"no destination: 'nowhere'; there are /queue/x, /topic/x and /temp-queue/x"
        assert frame.headers[b"message"] == text
        later = talker.do("SEND", destination="/queue/q", receipt="r2")
        assert len(later) == (1 if version is Version.V10 else 0)


def test_bytes_that_are_no_frame_end_the_connection_in_any_version() -> None:
    talker = Hub().connect(Version.V10)
    talker.session.broken(ProtocolError("bad bytes"))
    talker.hub.route()
    assert error_of(talker.heard()) == "bad bytes"
    assert talker.session.is_closing


# SEND


@each_version
def test_a_sent_job_is_the_job_that_resp_sees(version: Version) -> None:
    hub = Hub()
    talker = hub.connect(version)
    (answer,) = talker.do(
        "SEND", b"a\0b", destination="/queue/q", receipt="r", foo="1", content_type="x"
    )
    (delivery,) = hub.node.get(b"q")
    assert answer == receipt("r", message_id=delivery.id)
    assert (delivery.body, dict(delivery.headers)) == (
        b"a\0b",
        {b"foo": b"1", b"content-type": b"x"},
    )


def test_the_receipt_comes_after_the_copies() -> None:
    world = World.of(A, B)
    hub = Hub(world.nodes[A])
    talker = hub.connect()
    assert talker.do("SEND", b"x", destination="/queue/q", receipt="r", replicate="2") == []
    assert talker.session.outbox.open_count == 1
    world.settle()
    hub.route()
    (frame,) = talker.heard()
    assert frame.headers[b"receipt-id"] == b"r"
    assert talker.session.outbox.open_count == 0


def test_headers_decide_how_a_job_is_kept() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do(
        "SEND", b"x", destination="/queue/q", ttl="100.5", delay="0.0301", priority="9", replicate="1",
        ack_timeout="2.5", maxlen="7", receipt="r",
    )  # fmt: skip
    (job,) = hub.node.state.jobs.values()
    spec = job.live_spec
    assert (spec.ttl_ms, spec.delay_ms, spec.retry_ms, spec.priority) == (100_500, 30, 2_500, 9)
    assert (spec.replicate, spec.is_explicit) == (1, True)
    assert dict(spec.headers) == {b"ack-timeout": b"2.5"}


@pytest.mark.parametrize(
    ("headers", "retry_ms", "kept"),
    [
        ({}, 300_000, None),
        ({"ack_timeout": "0"}, 300_000, None),
        ({"ack_timeout": "0.0"}, 300_000, None),
        ({"ack_timeout": "0.0001"}, 1, b"0.0001"),
        ({"ack_timeout": "5", "retry": "7.5"}, 7_500, b"7.5"),
        ({"ack_timeout": "5", "retry": "0", "replicate": "1"}, 0, None),
    ],
)
def test_only_retry_0_means_at_most_once(
    headers: dict[str, str], retry_ms: int, kept: bytes | None
) -> None:
    hub = Hub()
    (answer,) = hub.connect().do("SEND", destination="/queue/q", receipt="r", **headers)
    assert answer.command == b"RECEIPT"
    (job,) = hub.node.state.jobs.values()
    assert job.retry_ms == retry_ms
    assert job.live_spec.headers.get(b"ack-timeout") == kept


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"ttl": "x"}, "ttl must be a number of seconds, got 'x'"),
        ({"ttl": "0"}, "ttl must be above 0 s"),
        ({"delay": "-1"}, "delay must be a number of seconds, got '-1'"),
        ({"delay": "1."}, "delay must be a number of seconds, got '1.'"),
        ({"retry": ""}, "retry must be a number of seconds, got ''"),
        ({"ack_timeout": "1e3"}, "ack-timeout must be a number of seconds, got '1e3'"),
        ({"priority": "10"}, "priority must be between 0 and 9, got '10'"),
        ({"replicate": "0"}, "replicate must be between 1 and 65535, got '0'"),
        ({"maxlen": "no"}, "maxlen must be between 1 and 9223372036854775807, got 'no'"),
        ({"delay": "9" * 4_000}, "delay must be a number of seconds"),
        ({"delay": "2", "ttl": "1"}, "The specified DELAY is greater than TTL."),
        ({"replicate": "2"}, "NOREPL Not enough reachable nodes"),
    ],
)
def test_a_header_that_cant_be_used_is_shown(headers: dict[str, str], text: str) -> None:
    frames = Hub().connect().do("SEND", destination="/queue/q", **headers)
    assert error_of(frames).startswith(text)


def test_a_very_long_fraction_is_no_harm() -> None:
    (answer,) = (
        Hub().connect().do("SEND", destination="/queue/q", delay="0." + "0" * 9_000, receipt="r")
    )
    assert answer.command == b"RECEIPT"


def test_a_paused_queue_is_an_error_and_1_0_goes_on() -> None:
    hub = Hub()
    hub.node.do(cmd.Pause(b"q", 1))
    talker = hub.connect(Version.V10)
    text = error_of(talker.do("SEND", destination="/queue/q", receipt="r"))
    assert text == "PAUSED Queue paused in input, try later"
    hub.node.do(cmd.Pause(b"q", 0))
    assert talker.do("SEND", destination="/queue/q", receipt="r")[0].command == b"RECEIPT"


def test_what_a_message_says_itself_doesnt_travel() -> None:
    hub = Hub()
    hub.connect().do(
        "SEND",
        destination="/queue/q",
        message_id="x",
        ack="y",
        subscription="z",
        redelivered="true",
    )
    (delivery,) = hub.node.get(b"q")
    assert dict(delivery.headers) == {}


# SUBSCRIBE, MESSAGE


@each_version
def test_a_message_in_each_version(version: Version) -> None:
    hub = Hub()
    talker = hub.connect(version)
    assert talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", receipt="r") == [
        receipt("r")
    ]
    id_ = hub.add(b"hi\0", headers={b"a:b": b"c\nd"})
    wanted = {
        b"subscription": b"0",
        b"destination": b"/queue/q",
        b"message-id": id_,
        b"a:b": b"c\nd",
        b"content-length": b"3",
    }
    if version is Version.V10:
        del wanted[b"a:b"]
        wanted[b"a"] = b"b:c d"
    if version is Version.V12:
        wanted[b"ack"] = id_
    (frame,) = talker.heard()
    assert (frame.command, frame.headers, frame.body) == (b"MESSAGE", wanted, b"hi\0")


@each_version
def test_a_jobs_headers_are_never_taken_for_those_of_the_frame(version: Version) -> None:
    """By a content-length of its own a job's body would be frames of anything, to whoever reads them."""
    hub = Hub()
    talker = hub.connect(version)
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    hub.add(b"x" * 8)
    (plain,) = talker.heard()
    names = [*plain.headers, b"ack", b"redelivered", b"nacks", b"additional-deliveries"]
    forged = [f(each) for each in names for f in (bytes, bytes.upper, _spaced, _cut, _with_colon)]
    hub.add(b"x" * 8, headers={**dict.fromkeys([*forged, b"", b" "], b"5"), b"kept": b"yes"})
    (frame,) = talker.heard()
    assert frame.headers.keys() == {*plain.headers, b"kept"}
    assert {name for name in plain.headers if frame.headers[name] != plain.headers[name]} <= {
        b"message-id",
        b"ack",
    }
    assert frame.body == b"x" * 8


def _spaced(name: bytes) -> bytes:
    return b" " + name + b"\r\n"


def _cut(name: bytes) -> bytes:
    return name + b"\0"


def _with_colon(name: bytes) -> bytes:
    return name + b":5"


def test_a_1_0_subscription_needs_no_id() -> None:
    hub = Hub()
    talker = hub.connect(Version.V10)
    talker.do("SUBSCRIBE", destination="/queue/q")
    talker.do("SUBSCRIBE", destination="/topic/t")
    hub.add(b"x")
    talker.do("SEND", b"y", destination="/topic/t")
    talker.do("UNSUBSCRIBE", destination="/queue/q", receipt="r")
    hub.add(b"late")
    assert depth(hub).queued == 1


def test_a_1_0_subscription_without_id_has_messages_without_one() -> None:
    hub = Hub()
    talker = hub.connect(Version.V10)
    talker.do("SUBSCRIBE", destination="/topic/t")
    (frame,) = talker.do("SEND", b"y", destination="/topic/t")
    assert frame.headers == {
        b"destination": b"/topic/t",
        b"message-id": b"T-1",
        b"content-length": b"1",
    }


def test_the_newline_of_ocamlmq_is_an_option_of_1_0() -> None:
    hub = Hub()
    hub.ends_lines = True
    for version in VERSIONS:
        talker = hub.connect(version)
        talker.do("SUBSCRIBE", destination="/queue/q", id="0")
        talker.do("SUBSCRIBE", destination="/topic/t", id="1")
        hub.node.add(b"x")
        hub.route()
        assert talker.wire.endswith(b"x\0\n") is (version is Version.V10)
        talker.do("SEND", b"y", destination="/topic/t", receipt="r")
        talker.leave()


@from_1_1
def test_what_a_subscription_needs(version: Version) -> None:
    for headers, text in [
        ({"destination": "/queue/q"}, "SUBSCRIBE needs a header id"),
        ({"id": "0"}, "SUBSCRIBE needs a header destination"),
        (
            {"id": "0", "destination": "/queue/q", "ack": "x"},
            "ack must be auto, client or client-individual, got 'x'",
        ),
        ({"id": "0", "destination": "/queue/q", "selector": "a=1"}, "selectors aren't supported"),
        (
            {"id": "0", "destination": "/queue/q", "prefetch": "0"},
            "prefetch must be a number above 0, got '0'",
        ),
        ({"id": "0", "destination": "/control/count-msgs/queue/q"}, "nobody can subscribe to"),
        (
            {"id": "0", "destination": "/topic/a.*.b"},
            "a topic is a name, or a beginning and one final star",
        ),
        (
            {"id": "0", "destination": "/topic/a.#"},
            "a topic is a name, or a beginning and one final star",
        ),
        (
            {"id": "0", "destination": "/topic/a.>"},
            "a topic is a name, or a beginning and one final star",
        ),
        ({"id": "0", "destination": "/queue/"}, "no destination: '/queue/'"),
    ]:
        assert error_of(Hub().connect(version).do("SUBSCRIBE", **headers)).startswith(text)


def test_two_subscriptions_have_two_ids() -> None:
    talker = Hub().connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0")
    assert "already" in error_of(talker.do("SUBSCRIBE", destination="/topic/q", id="0"))


def test_prefetch_bounds_what_is_unacknowledged_and_has_a_ceiling() -> None:
    hub = Hub(prefetch_max=5)
    for n in range(20):
        hub.add(b"%d" % n)
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="2")
    held = talker.session._consumer.subscriptions[b"0"].held
    assert len(held) == 2
    other = hub.connect()
    other.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="99")
    assert len(other.session._consumer.subscriptions[b"0"].held) == 5


def test_round_robin_over_subscribers_that_have_room() -> None:
    hub = Hub()
    talkers = [hub.connect() for _ in range(3)]
    for talker, prefetch in zip(talkers, "931", strict=True):
        talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch=prefetch)
    for n in range(8):
        hub.add(b"%d" % n)
    assert [talker.bodies() for talker in talkers] == [
        [b"0", b"3", b"5", b"7"],
        [b"1", b"4", b"6"],
        [b"2"],
    ]


def test_priority_then_age() -> None:
    hub = Hub()
    for n, priority in enumerate((1, 9, 1, 9)):
        hub.add(b"%d" % n, priority=priority)
    talker = hub.connect()
    frames = talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    order = []
    while frames:
        (frame,) = frames
        order.append(frame.body)
        frames = ack(talker, frame.headers[b"ack"])
    assert order == [b"1", b"3", b"0", b"2"]


# ACK


def receive(talker: Talker, count: int, mode: str, **headers: str) -> list[bytes]:
    """Subscribe and be handed `count` jobs; their ids."""
    for n in range(count):
        talker.hub.add(b"%d" % n)
    frames = talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack=mode, **headers)
    assert len(frames) == count
    return [frame.headers[b"message-id"] for frame in frames]


def ack(talker: Talker, id_: bytes, command: str = "ACK", **headers: str) -> list[Frame]:
    """ACK as the version says it."""
    if talker.session.version is Version.V12:
        return talker.do(command, id_=id_, **headers)
    if talker.session.version is Version.V11:
        return talker.do(command, message_id=id_, subscription="0", **headers)
    return talker.do(command, message_id=id_, **headers)


def live(hub: Hub) -> list[bytes]:
    """Ids that aren't done, in order of their making."""
    return [id_ for id_, job in hub.node.state.jobs.items() if not job.is_done]


@each_version
def test_client_is_cumulative_from_1_1_on(version: Version) -> None:
    hub = Hub()
    talker = hub.connect(version)
    ids = receive(talker, 4, "client")
    assert ack(talker, ids[2], receipt="r") == [receipt("r")]
    assert live(hub) == (ids[:2] + ids[3:] if version is Version.V10 else ids[3:])


@each_version
def test_client_individual_is_not(version: Version) -> None:
    hub = Hub()
    talker = hub.connect(version)
    ids = receive(talker, 3, "client-individual")
    ack(talker, ids[1])
    assert live(hub) == [ids[0], ids[2]]


@each_version
def test_auto_is_acknowledged_once_sent(version: Version) -> None:
    hub = Hub()
    talker = hub.connect(version)
    receive(talker, 3, "auto")
    assert live(hub) == []


def test_auto_is_not_acknowledged_before_it_is_sent_and_goes_back_if_it_never_is() -> None:
    hub = Hub(prefetch_max=2)
    talker = hub.connect()
    talker.is_stalled = True
    ids = [hub.add(b"%d" % n) for n in range(3)]
    talker.do("SUBSCRIBE", destination="/queue/q", id="0")
    assert live(hub) == ids
    assert depth(hub).queued == 1
    talker.leave()
    assert depth(hub).queued == 3


@from_1_1
def test_nack_gives_back_and_counts(version: Version) -> None:
    hub = Hub()
    talker, other = hub.connect(version), hub.connect(version)
    ids = receive(talker, 3, "client-individual", prefetch="3")
    other.do("SUBSCRIBE", destination="/queue/q", id="9", ack="client")
    assert ack(talker, ids[1], "NACK", receipt="r")[0].headers == {b"receipt-id": b"r"}
    (frame,) = other.heard()
    assert frame.headers[b"message-id"] == ids[1]
    assert frame.headers[b"redelivered"] == b"true"
    assert frame.headers[b"nacks"] == b"1"
    assert live(hub) == ids


def test_nack_in_client_mode_is_cumulative_too() -> None:
    hub = Hub()
    talker = hub.connect()
    ids = receive(talker, 3, "client", prefetch="3")
    hub.node.do(cmd.Pause(b"q", 2))
    ack(talker, ids[1], "NACK")
    assert depth(hub).queued == 2


def test_no_command_is_about_more_than_some_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disque.stomp.outbox.IDS_MAX", 3)
    monkeypatch.setattr("disque.stomp.consuming.IDS_MAX", 3)
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id_="s", ack="client")
    sizes: dict[type, list[int]] = {}
    command_of = hub.node.engine.command

    def command(id_: ClientId, command: cmd.Command) -> bool:
        if hasattr(command, "ids"):
            sizes.setdefault(type(command), []).append(len(command.ids))
        return command_of(id_, command)

    monkeypatch.setattr(hub.node.engine, "command", command)

    def last_of(count: int) -> bytes:
        for _ in range(count):
            hub.add()
        return talker.heard()[-1].headers[b"ack"]

    assert talker.do("ACK", id_=last_of(7)) == []
    assert talker.do("ACK", id_=last_of(4), receipt="r") == [receipt("r")]
    talker.do("BEGIN", transaction="t")
    talker.do("NACK", id_=last_of(3), transaction="t")
    hub.advance(300_000)
    talker.do("NACK", id_=last_of(2), transaction="t")
    assert sizes.pop(cmd.Renew)[:1] == [3]
    assert receipt("r") in talker.do("COMMIT", transaction="t", receipt="r")
    talker.leave()
    wanted = {cmd.AckJob: [3, 3, 1, 3, 1], cmd.Nack: [3, 2], cmd.Enqueue: [3, 2]}
    assert sizes == wanted


def test_an_ack_of_what_isnt_held_is_answered_and_changes_nothing() -> None:
    hub = Hub()
    talker = hub.connect()
    ids = receive(talker, 2, "client")
    ack(talker, ids[1])
    assert ack(talker, ids[0], receipt="r") == [receipt("r")]
    assert ack(talker, b"T", receipt="r") == [receipt("r")]
    assert "needs a header id" in error_of(talker.do("ACK"))


def test_ack_of_1_1_names_its_subscription() -> None:
    talker = Hub().connect(Version.V11)
    assert "needs a header subscription" in error_of(talker.do("ACK", message_id="x"))


# Coming back


@pytest.mark.parametrize("end", ["unsubscribe", "disconnect", "lost"])
def test_what_was_not_acknowledged_goes_back_at_once_by_age(end: str) -> None:
    hub = Hub()
    talker = hub.connect()
    ids = receive(talker, 3, "client-individual")
    ack(talker, ids[1])
    hub.add(b"young")
    other = hub.connect()
    if end == "unsubscribe":
        assert talker.do("UNSUBSCRIBE", id_="0", receipt="r")[-1] == receipt("r")
    elif end == "disconnect":
        assert talker.do("DISCONNECT", receipt="r")[-1] == receipt("r")
        assert talker.session.is_closing
        talker.leave()
    else:
        talker.leave()
    frames = other.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    assert [frame.body for frame in frames] == [b"0", b"2", b"young"]
    assert [frame.headers.get(b"additional-deliveries") for frame in frames] == [b"1", b"1", b"1"]
    assert all(frame.headers[b"redelivered"] == b"true" for frame in frames)


def test_after_ack_timeout_the_job_is_somebody_elses_and_its_place_is_free() -> None:
    hub = Hub()
    talker, other = hub.connect(), hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    talker.do("SEND", b"1", destination="/queue/q", ack_timeout="2")
    talker.do("SEND", b"2", destination="/queue/q", ack_timeout="60")
    other.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    talker.wire = other.wire = b""
    hub.advance(1_900)
    assert (talker.heard(), other.heard()) == ([], [])
    ack(other, next(iter(other.session._consumer._held)))
    other.wire = b""
    hub.advance(1_000)
    frames = talker.heard() + other.heard()
    assert [frame.body for frame in frames] == [b"1"]
    assert frames[0].headers[b"ack-timeout"] == b"2"


def test_after_ack_timeout_a_subscriber_of_another_node_comes_first() -> None:
    world = World.of(A, B)
    hub, there = Hub(world.nodes[A]), Hub(world.nodes[B])
    hung, other = hub.connect(), there.connect()
    hung.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    other.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    world.settle()
    (frame,) = hung.do("SEND", b"1", destination="/queue/q", ack_timeout="2", replicate="1")
    assert frame.body == b"1"
    for _ in range(30):
        world.advance(100)
        for each in (hub, there):
            for talker in each.talkers:
                talker.tick()
            each.route()
        world.settle()
        there.route()
    assert (hung.heard(), [frame.body for frame in other.heard()]) == ([], [b"1"])


def test_after_ack_timeout_who_is_alone_gets_the_job_again() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    talker.do("SEND", b"1", destination="/queue/q", ack_timeout="2")
    hub.advance(4_000)
    assert talker.bodies() == [b"1"]


def test_a_late_ack_counts() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    (frame,) = talker.do("SEND", b"1", destination="/queue/q", retry="1")
    hub.node.do(cmd.Pause(b"q", 2))
    hub.advance(3_000)
    assert depth(hub).queued == 1
    assert ack(talker, frame.headers[b"ack"], receipt="r") == [receipt("r")]
    assert live(hub) == []


def test_without_ack_timeout_the_lease_lives_as_long_as_the_connection() -> None:
    hub = Hub()
    talker, other = hub.connect(), hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    talker.do("SEND", b"1", destination="/queue/q", ttl="100")  # RETRY is 10 s
    other.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    hub.advance(95_000, step_ms=500)
    assert other.heard() == []
    talker.leave()
    (frame,) = other.heard()
    assert frame.headers[b"redelivered"] == b"true"


def test_a_job_that_is_done_elsewhere_frees_its_place() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    talker.do("SEND", b"1", destination="/queue/q", ttl="100")
    talker.do("SEND", b"2", destination="/queue/q", ttl="100")
    talker.wire = b""
    hub.node.do(cmd.AckJob(tuple(talker.session._consumer._held)))
    hub.advance(6_000)
    assert talker.bodies() == [b"2"]


def test_a_fetch_that_was_answered_when_its_subscription_ended_loses_nothing() -> None:
    hub = Hub()
    talker = hub.connect()
    hub.add(b"x")
    session, node = talker.session, hub.node
    session.receive(Frame(b"SUBSCRIBE", {b"destination": b"/queue/q", b"id": b"0"}), node.now_ms)
    talker.carry_out()
    ((attending, reply),) = node.replies
    session.replied(attending, reply, node.now_ms)
    node.replies.clear()
    talker.carry_out()
    ((_, (job,)),) = node.replies
    assert job.body == b"x"
    session.receive(Frame(b"UNSUBSCRIBE", {b"id": b"0"}), node.now_ms)
    hub.route()
    assert depth(hub).queued == 1


def test_a_refused_fetch_is_tried_again() -> None:
    hub = Hub(Node(view(leaving=(A,))))
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    assert talker.heard() == []
    hub.node.see(view())
    hub.add(b"x")
    hub.advance(1_500)
    assert talker.bodies() == [b"x"]


def test_of_many_refused_fetches_few_are_tried_at_a_time() -> None:
    hub = Hub(Node(view(leaving=(A,))))
    talker = hub.connect()
    for number in range(100):
        talker.do("SUBSCRIBE", destination=f"/queue/q{number}", id=f"{number}", ack="client")
    consumer = talker.session._consumer
    for _ in range(3):
        hub.advance(1_000)
        assert len(consumer._resting) == 100, "the one that was tried is refused again"
    hub.node.see(view())
    sizes: list[int] = []
    for _ in range(8):
        hub.advance(1_000)
        sizes.append(100 - len(consumer._resting))
    assert sizes == [1, 3, 7, 15, 31, 63, 100, 100]
    assert talker.session.due_at is None


@each_version
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_subscription_beyond_the_limit_is_an_error_and_nothing_more(
    version: Version, kind: str
) -> None:
    hub = Hub(Node(limits=Limits(blocked_max=1, subscriptions_max=1)))
    talker, other = hub.connect(version), hub.connect(version)
    said = {"destination": f"/{kind}/x", "id_": "here"}
    assert other.do("SUBSCRIBE", **said, receipt="r") == [receipt("r")]
    (frame,) = talker.do("SUBSCRIBE", **said, receipt="r")
    assert (frame.command, frame.headers[b"receipt-id"]) == (b"ERROR", b"r")
    assert frame.headers[b"subscription"] == b"here"
    assert b"the limit is 1" in frame.headers[b"message"]
    assert talker.session.is_closing == (version is not Version.V10)
    assert (talker.session.due_at, talker.session.outbox.waiting()) == (None, [])
    hub.advance(5_000)
    assert talker.heard() == []
    if version is Version.V10:
        other.do("UNSUBSCRIBE", id_="here")
        assert talker.do("SUBSCRIBE", **said, receipt="r") == [receipt("r")]


@each_version
def test_a_subscription_that_cant_be_names_itself(version: Version) -> None:
    talker = Hub().connect(version)
    (frame,) = talker.do("SUBSCRIBE", destination="/nowhere", id_="7", receipt="r")
    assert frame.headers[b"subscription"] == b"7"


def test_a_subscription_that_ends_before_it_has_begun_is_counted_once() -> None:
    hub = Hub(Node(limits=Limits(blocked_max=1)))
    for _ in range(2):
        talker = hub.connect()
        for command in (b"SUBSCRIBE", b"UNSUBSCRIBE"):
            headers = {b"id": b"0", b"destination": b"/queue/q"}
            talker.session.receive(Frame(command, headers), hub.node.now_ms)
        hub.route()
        assert (hub.node.state.topics.attended, hub.node.state.getting) == (0, {})


# Topics


@each_version
def test_a_topic_reaches_all_subscriptions(version: Version) -> None:
    hub = Hub()
    one, two = hub.connect(version), hub.connect(version)
    one.do("SUBSCRIBE", destination="/topic/news.*", id="a", ack="client")
    one.do("SUBSCRIBE", destination="/topic/news.x", id="b", receipt="r")
    two.do("SUBSCRIBE", destination="/topic/news.x", id="c")
    frames = two.do("SEND", b"hi", destination="/topic/news.x", foo="1", receipt="r")
    assert [f.command for f in frames] == [b"MESSAGE", b"RECEIPT"]
    assert frames[0].headers == {
        b"subscription": b"c", b"message-id": b"T-1", b"destination": b"/topic/news.x", b"foo": b"1",
        b"content-length": b"2",
    }  # fmt: skip
    heard = one.heard()
    assert sorted(f.headers[b"subscription"] for f in heard if f.command == b"MESSAGE") == [
        b"a",
        b"b",
    ]
    two.do("SEND", b"hi", destination="/topic/news.", receipt="r")
    (frame,) = one.heard()
    assert frame.headers[b"subscription"] == b"a"
    assert (b"ack" in frame.headers) == (version is Version.V12)
    assert one.do("UNSUBSCRIBE", id_="a", receipt="r") == [receipt("r")]
    two.do("SEND", b"hi", destination="/topic/news.", receipt="r")
    assert one.heard() == []
    one.leave()
    assert hub.node.state.topics.size == 1


def test_two_subscriptions_of_one_topic_are_two_messages() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/topic/t", id="a")
    talker.do("SUBSCRIBE", destination="/topic/t", id="b")
    assert len(talker.do("SEND", b"x", destination="/topic/t")) == 2
    talker.do("UNSUBSCRIBE", id_="a")
    assert len(talker.do("SEND", b"x", destination="/topic/t")) == 1
    talker.do("UNSUBSCRIBE", id_="b")
    assert talker.do("SEND", b"x", destination="/topic/t") == []
    assert "no subscription" in error_of(talker.do("UNSUBSCRIBE", id_="b"))


@each_version
def test_subscriptions_of_one_topic_have_a_limit(version: Version) -> None:
    talker = Hub().connect(version)
    for n in range(SAME_MAX):
        assert talker.do("SUBSCRIBE", destination="/topic/t", id_=str(n)) == []
    assert talker.do("SUBSCRIBE", destination="/topic/u", id_="other") == []
    said = {"destination": "/topic/t", "id_": "more", "receipt": "r"}
    text = "too many subscriptions of one topic, the limit is 100"
    assert error_of(talker.do("SUBSCRIBE", **said)) == text
    if version is Version.V10:
        talker.do("UNSUBSCRIBE", id_="0")
        assert talker.do("SUBSCRIBE", **said) == [receipt("r")]


def test_topics_are_those_of_resp() -> None:
    hub = Hub()
    talker = hub.connect()
    talker.do("SUBSCRIBE", destination="/topic/x", id="a")
    hub.node.engine.command(ClientId(95), cmd.Publish(b"x", b"hi"))
    hub.node._take()
    hub.route()
    assert talker.bodies() == [b"hi"]


@each_version
def test_what_a_session_keeps_is_charged(version: Version) -> None:
    hub = Hub(World.of(A, B).nodes[A])
    talker = hub.connect(version)
    session = talker.session
    assert session.kept_bytes == 0
    for kind in ("queue", "topic", "temp-queue"):
        before = session.kept_bytes
        talker.do("SUBSCRIBE", destination=f"/{kind}/{'n' * 200}", id_=f"{kind}{'i' * 50_000}")
        assert session.kept_bytes - before > 2 * 50_200
    for kind in ("queue", "topic", "temp-queue"):
        talker.do("UNSUBSCRIBE", id_=f"{kind}{'i' * 50_000}")
    before = session.kept_bytes
    assert 200 < before < 300, "the temporary queue is still the connection's"
    talker.do("SEND", destination="/queue/q", reply_to=f"/temp-queue/{'n' * 60_000}")
    assert session.kept_bytes - before >= 60_000
    before = session.kept_bytes
    talker.do("SEND", destination="/queue/q", receipt="r" * 60_000, replicate="2")
    assert session.kept_bytes - before == 60_000
    talker.leave()
    assert session.outbox.kept_bytes == 0


# Temporary queues, questions


def test_a_temporary_queue_is_its_connections_own_and_ends_with_it() -> None:
    hub = Hub()
    asker, worker = hub.connect(), hub.connect()
    asker.do("SUBSCRIBE", destination="/temp-queue/answers", id="t")
    worker.do("SUBSCRIBE", destination="/queue/q", id="q")
    asker.do("SEND", b"question", destination="/queue/q", reply_to="/temp-queue/answers")
    (question,) = worker.heard()
    assert question.headers[b"reply-to"] == b"/queue/temp-queue/c0/answers"
    worker.do("SEND", b"answer", destination=question.headers[b"reply-to"])
    (answer,) = asker.heard()
    assert (answer.body, answer.headers[b"destination"]) == (b"answer", b"/temp-queue/answers")
    other = hub.connect()
    other.do("SUBSCRIBE", destination="/temp-queue/answers", id="t")
    asker.do("UNSUBSCRIBE", id_="t")
    worker.do("SEND", b"late", destination=question.headers[b"reply-to"])
    assert other.heard() == []
    assert depth(hub, b"temp-queue/c0/answers").queued == 1
    asker.leave()
    assert depth(hub, b"temp-queue/c0/answers").queued == 0
    assert b"temp-queue/c0/answers" not in hub.node.state.queues


def test_questions_are_answered_in_the_receipt_and_by_all_nodes() -> None:
    world = World.of(A, B)
    hub, other = Hub(world.nodes[A]), Hub(world.nodes[B])
    talker, far = hub.connect(), other.connect()
    far.do("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch="1")
    far.do("SUBSCRIBE", destination="/topic/t*", id="1")
    talker.do("SUBSCRIBE", destination="/topic/tt", id="1")
    world.settle()

    def count(what: str) -> dict[bytes, bytes]:
        frames = talker.do("SEND", destination=f"/control/{what}", receipt="r")
        world.settle()
        hub.route()
        (frame,) = frames + talker.heard()
        return {k: v for k, v in frame.headers.items() if k != b"receipt-id"}

    for n in range(3):
        other.add(b"%d" % n, queue=b"p")
    hub.add(b"x", queue=b"p")
    assert count("count-msgs/queue/p") == {b"num-messages": b"4"}
    assert count("count-subscribers/queue/q") == {b"num-subscribers": b"1"}
    assert count("count-subscribers/topic/tt") == {b"num-subscribers": b"2"}
    assert count("count-subscribers/topic/none") == {b"num-subscribers": b"0"}
    far.leave()
    world.settle()
    assert count("count-subscribers/queue/q") == {b"num-subscribers": b"0"}
    assert talker.do("SEND", destination="/control/count-msgs/queue/p") == []
    assert error_of(talker.do("SEND", destination="/control/fly")).startswith("no destination")


# Transactions


def test_commit_does_all_and_abort_nothing() -> None:
    hub = Hub()
    talker = hub.connect()
    ids = receive(talker, 2, "client-individual")
    assert talker.do("BEGIN", transaction="t", receipt="b") == [receipt("b")]
    assert talker.do("SEND", b"s", destination="/queue/out", transaction="t", receipt="s") == [
        receipt("s")
    ]
    assert ack(talker, ids[0], transaction="t", receipt="a") == [receipt("a")]
    assert depth(hub, b"out").queued == 0
    assert live(hub) == ids
    assert talker.do("COMMIT", transaction="t", receipt="c") == [receipt("c")]
    assert depth(hub, b"out").queued == 1
    assert ids[0] not in live(hub)
    talker.do("BEGIN", transaction="t")
    talker.do("SEND", b"s", destination="/queue/out", transaction="t")
    ack(talker, ids[1], transaction="t")
    assert talker.do("ABORT", transaction="t", receipt="x") == [receipt("x")]
    assert depth(hub, b"out").queued == 1
    assert ids[1] in live(hub)
    assert "no transaction" in error_of(talker.do("COMMIT", transaction="t"))


def test_nothing_is_acknowledged_before_all_is_stored() -> None:
    world = World.of(A, B)
    hub = Hub(world.nodes[A])
    talker = hub.connect()
    (id_,) = receive(talker, 1, "client", prefetch="1")
    hub.add(b"next")
    talker.do("BEGIN", transaction="t")
    ack(talker, id_, transaction="t")
    talker.do("SEND", b"s", destination="/queue/out", transaction="t", replicate="2")
    assert talker.do("COMMIT", transaction="t", receipt="c") == []
    assert id_ in live(hub)
    world.settle()
    hub.route()
    done, following = talker.heard()
    assert done == receipt("c")
    assert following.body == b"next", "there is room again"
    assert id_ not in live(hub)


def test_a_failed_send_leaves_all_unacknowledged() -> None:
    hub = Hub()
    talker = hub.connect()
    (id_,) = receive(talker, 1, "client")
    hub.node.do(cmd.Pause(b"paused", 1))
    talker.do("BEGIN", transaction="t")
    ack(talker, id_, transaction="t")
    talker.do("SEND", b"1", destination="/queue/out", transaction="t")
    talker.do("SEND", b"2", destination="/queue/paused", transaction="t")
    text = error_of(talker.do("COMMIT", transaction="t", receipt="c"))
    assert text.startswith("PAUSED 1 of 2 SENDs failed, nothing was acknowledged: ")
    assert id_ in live(hub)


def test_a_nack_of_a_transaction_and_the_last_word_about_a_job_counts() -> None:
    hub = Hub()
    talker = hub.connect()
    ids = receive(talker, 2, "client-individual", prefetch="2")
    talker.do("BEGIN", transaction="t")
    ack(talker, ids[0], transaction="t")
    ack(talker, ids[0], "NACK", transaction="t")
    ack(talker, ids[1], "NACK", transaction="t")
    ack(talker, ids[1], transaction="t")
    frames = talker.do("COMMIT", transaction="t", receipt="c")
    assert receipt("c") in frames
    assert live(hub) == [ids[0]]


def test_a_lost_connection_drops_its_transactions() -> None:
    hub = Hub()
    talker = hub.connect()
    (id_,) = receive(talker, 1, "client")
    talker.do("BEGIN", transaction="t")
    ack(talker, id_, transaction="t")
    talker.do("SEND", b"1", destination="/queue/out", transaction="t")
    talker.leave()
    assert (depth(hub).queued, depth(hub, b"out").queued) == (1, 0)


def test_limits_of_transactions() -> None:
    talker = Hub().connect(Version.V10)
    for n in range(16):
        assert talker.do("BEGIN", transaction=f"{n}") == []
    assert "the limit is 16" in error_of(talker.do("BEGIN", transaction="more"))
    assert "has begun already" in error_of(talker.do("BEGIN", transaction="0"))
    big = b"x" * (8 << 20)
    assert talker.do("SEND", big, destination="/queue/q", transaction="0") == []
    assert "at most 16777216 bytes" in error_of(
        talker.do("SEND", big, destination="/queue/q", transaction="1")
    )
    for _ in range(999):
        assert talker.do("SEND", destination="/queue/q", transaction="0") == []
    assert "at most 1000 frames" in error_of(
        talker.do("SEND", destination="/queue/q", transaction="0")
    )
    assert "no transaction" in error_of(talker.do("SEND", destination="/queue/q", transaction="z"))
    assert "can't be part" in error_of(
        talker.do("SEND", destination="/control/count-msgs/queue/q", transaction="0")
    )
    assert "needs a header transaction" in error_of(talker.do("BEGIN"))


# Heart-beats


def test_heart_beats_are_sent_when_nothing_else_is() -> None:
    hub = Hub()
    talker = hub.connect(heart_beat="0,3000")
    hub.advance(10_000)
    assert talker.session.is_closing is False
    beats = talker.sent_bytes
    talker.sent_bytes = 0
    hub.advance(30_000)
    assert talker.sent_bytes >= 9
    assert beats > 0
    assert set(talker.wire) == {10}


def test_a_client_that_misses_its_heart_beats_is_dropped() -> None:
    hub = Hub()
    talker = hub.connect(heart_beat="2000,0")
    for _ in range(5):
        hub.advance(2_000)
        talker.read_at_ms = hub.node.now_ms
    assert not talker.session.is_closing
    hub.advance(5_500)
    assert error_of(talker.heard()).startswith("no heart-beat for ")
    assert talker.session.is_closing


def test_no_heart_beats_unless_wanted() -> None:
    hub = Hub()
    for version in VERSIONS:
        talker = hub.connect(version)
        before = talker.sent_bytes
        hub.advance(5_000)
        assert talker.sent_bytes == before
    assert "heart-beat must be" in error_of(
        hub.open().do("CONNECT", accept_version="1.2", heart_beat="x,1")
    )


# Fuzz: whatever a client says, no exception, and no job is lost


texts = st.sampled_from(
    ["", "0", "1", "t", "/queue/q", "/topic/t", "/topic/*", "/temp-queue/x", "/control/count-msgs/queue/q",
     "client", "auto", "client-individual", "1.5", "-1", "1.2", "1.0,1.1"]
)  # fmt: skip
names = st.sampled_from(
    ["destination", "id", "ack", "receipt", "transaction", "message-id", "subscription", "prefetch", "ttl", "retry",
     "delay", "replicate", "priority", "accept-version", "heart-beat", "reply-to", "x"]
)  # fmt: skip
words = st.sampled_from(
    ["CONNECT", "SEND", "SEND", "SUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT",
     "DISCONNECT", "FLY"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(VERSIONS),
    st.lists(
        st.tuples(words, st.dictionaries(names, texts, max_size=6), st.booleans()), max_size=15
    ),
)
def test_no_frame_is_too_strange(
    version: Version, said: list[tuple[str, dict[str, str], bool]]
) -> None:
    hub = Hub(prefetch_max=2)
    talker = hub.connect(version)
    kept = [hub.add(b"%d" % n) for n in range(3)]
    for command, headers, is_late in said:
        frame = Frame(command.encode(), {k.encode(): v.encode() for k, v in headers.items()})
        talker.say(frame)
        if is_late:
            hub.advance(2_000, step_ms=500)
    acked = [id_ for id_ in kept if id_ not in live(hub)]
    talker.leave()
    hub.node.engine.check()
    assert talker.session.outbox.waiting() == []
    assert talker.session.outbox.open_count == 0
    assert hub.node.state.topics.size == 0
    assert hub.node.state.topics.attending == {}
    assert hub.node.state.getting == {}
    assert len(live(hub)) >= 3 - len(acked)
    assert not any(job.role == 1 for job in hub.node.state.jobs.values() if not job.is_done)
