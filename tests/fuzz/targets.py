"""Targets: what is fuzzed, each a function from bytes to nothing that raises if a promise is broken.

Decoders are asked whether the way the network cuts bytes matters; readers of files and frames whether anything but
their own error comes out, and whether what they accept can be said again; whole nodes are in `nodes`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from cluster import messages, nodesfile
from cluster.errors import NodesFileError, RemoteProtocolError
from cluster.frame import FrameDecoder
from cluster.handshake import AcceptorHandshake, DialerHandshake, HandshakeError
from cluster.membership import MembershipConfig
from cluster.ready import ConnId
from disque.aof import format as fmt
from disque.aof.disk import LogError
from disque.aof.replay import Replay
from disque.broker import Broker, BrokerSettings
from disque.core import wire
from disque.errors import ConfigError, ProtocolError
from disque.resp.decoder import Decoder
from disque.server.config import Config
from disque.server.configfile import read_content
from disque.server.rewriting import rewritten
from disque.stomp.frames import Decoder as StompDecoder
from disque.stomp.frames import FrameLimits, Version
from tests.disk import MemoryDisk, Segment
from tests.fuzz import nodes, page, seeds
from tests.fuzz.mutation import mutated
from tests.unit.core.builders import NOW, A, B, C, Node, view
from tests.upgrade import samples

UPGRADE: Final = Path(__file__).parents[1] / "upgrade"
SALT: Final = 7


@attrs.frozen
class Target:
    """`examples`: how many inputs CI takes."""

    name: str
    inputs: st.SearchStrategy[bytes]
    run: Callable[[bytes], None]
    examples: int


def pieces(data: bytes) -> list[bytes]:
    """The same bytes as a network might cut them; the first byte decides."""
    size = data[0] % 7 + 1 if data else 1
    return [data[at : at + size] for at in range(0, len(data), size)]


# Decoders of clients


def decode_all(decoder: Any, parts: list[bytes]) -> tuple[list[Any], str]:
    """What comes out, and the error at the end."""
    found: list[Any] = []
    for part in parts:
        decoder.feed(part)
        try:
            while taken := decoder.take(2):
                found += taken
        except ProtocolError as error:
            return found, str(error)
        if decoder.error is not None:
            return found, str(decoder.error)
    assert decoder.pending_bytes <= sum(map(len, parts))
    return found, ""


def run_resp(data: bytes) -> None:
    """RESP: however it is cut, the same commands and the same error; limits hold."""
    whole, cut = (
        Decoder(bulk_bytes_max=64, arguments_max=16),
        Decoder(bulk_bytes_max=64, arguments_max=16),
    )
    one = decode_all(whole, [data])
    assert one == decode_all(cut, pieces(data))
    for words in one[0]:
        assert words
        assert len(words) <= 16 or not data.startswith(b"*")


def run_stomp(data: bytes) -> None:
    """STOMP: the same, in each version."""
    limits = FrameLimits(head_bytes_max=200, headers_max=8, body_bytes_max=64)
    for version in (Version.V10, Version.V11, Version.V12):
        results = []
        for parts in ([data], pieces(data)):
            decoder = StompDecoder(limits)
            decoder.version = version
            results.append(decode_all(decoder, parts))
        assert results[0] == results[1]
        for frame in results[0][0]:
            assert len(frame.body) <= 64
            assert len(frame.headers) <= 8


# The bus


def run_frames(data: bytes) -> None:
    """Frames of the bus: the same bodies however they are cut; nothing is kept of one that is too long."""
    results = []
    for parts in ([data], pieces(data)):
        decoder = FrameDecoder(200)
        bodies: list[bytes] = []
        error = ""
        for part in parts:
            decoder.feed(part)
            try:
                while (body := decoder.next_frame()) is not None:
                    assert len(body) <= 200
                    bodies.append(body)
            except RemoteProtocolError as refused:
                error = str(refused)
                break
        results.append((bodies, error))
    assert results[0] == results[1]


def run_messages(data: bytes) -> None:
    """Membership's words: an error of the peer's, nothing, or what can be said again."""
    with contextlib.suppress(RemoteProtocolError):
        said = messages.decode(data)
        if said is not None:
            assert messages.decode(messages.encode(said)) == said


def run_statements(data: bytes) -> None:
    """Payloads of jobs, and a node that hears them of a member."""
    try:
        statements = wire.decode(data)
    except RemoteProtocolError:
        return
    assert wire.decode(wire.encode(statements)) == statements
    node = Node(view(up=(B, C)))
    node.hear_many(B, statements)
    node.advance(2_000)
    assert len(node.state.jobs) <= len(statements) + 1


def run_bus(data: bytes) -> None:
    """A whole broker that hears frames of a proven peer."""
    broker = Broker(
        settings=BrokerSettings(membership=MembershipConfig(port=7712, bus_port=17712)),
        identity=seeds.ACCEPTOR,
        stored=nodesfile.StoredNodes(),
        dice=random.Random(0),
        now_ms=NOW,
    )
    conn = ConnId(1)
    broker.accepted(conn, seeds.DIALER, True, "127.0.0.1", "127.0.0.1")
    decoder = FrameDecoder(1 << 20)
    decoder.feed(data)
    with contextlib.suppress(RemoteProtocolError):
        while (body := decoder.next_frame()) is not None:
            broker.frame(conn, body)
            broker.take_ready()
    for _ in range(10):
        broker.advance(broker.next_wakeup_ms() or NOW + 1_000)
        broker.take_ready()
    broker.engine.check()


def run_handshake(data: bytes) -> None:
    """Both sides of a handshake hear whatever comes: nobody is let in, and only their own error comes out."""
    dice = random.Random(1)
    sides: list[Any] = [
        AcceptorHandshake(own=seeds.ACCEPTOR, secret=b"other", nonce=dice.randbytes(32)),
        DialerHandshake(
            own=seeds.DIALER, secret=b"other", nonce=dice.randbytes(32), expected=None, is_meet=True
        ),
    ]
    sides[1].start()
    decoder = FrameDecoder(4096)
    decoder.feed(data)
    with contextlib.suppress(RemoteProtocolError):
        while (body := decoder.next_frame()) is not None:
            for side in sides:
                with contextlib.suppress(HandshakeError):
                    side.receive(body)
                assert side.peer is None


# Files


def run_nodes_file(data: bytes) -> None:
    """nodes.conf: its error, or what can be written and read again."""
    text = data.decode(errors="replace")
    with contextlib.suppress(NodesFileError):
        found = nodesfile.parse(text)
        if found.id is None:
            return
        again = nodesfile.parse(nodesfile.format(found))
        assert attrs.evolve(again, warnings=()) == attrs.evolve(found, warnings=())


def run_config(data: bytes) -> None:
    """The configuration file: its error, or settings that CONFIG REWRITE can write and a start reads the same."""
    if b"include" in data.lower() or b"dir" in data.lower():
        # other files aren't the matter here
        return
    path, config = Path("disque.conf"), Config(config_file="disque.conf")
    try:
        read_content(config, data, path)
    except ConfigError:
        return
    again = Config(config_file="disque.conf")
    read_content(again, rewritten(data, config), path)
    assert again.get("*") == config.get("*")
    assert (again.user, again.rename_command) == (config.user, config.rename_command)


def run_log(data: bytes) -> None:
    """A segment of the log, damaged: read to its end, and the engine stands on what is left of it."""
    disk = MemoryDisk()
    disk.files[1] = Segment(SALT, bytearray(data), bytearray(data))
    node = Node(view(A))
    replay = Replay(disk, kernel_boot_id="k")
    try:
        for batch in replay.run():
            for placed in batch:
                node.engine.restore(*placed)
    except LogError:
        return
    node.engine.restored()
    node.engine.advance(NOW)
    node.engine.check()
    assert replay.findings.records <= len(data)


def segment() -> bytes:
    """The recorded segment, as segment 1 under this file's salt."""
    recorded = next(iter(sorted(UPGRADE.glob("*.log"))))
    number, salt = recorded.stem.split("-")
    data = recorded.read_bytes()
    payloads = [
        fmt.record_at(data, at)
        for at in fmt.scan(data, fmt.seed_of(int(number), int(salt, 16))).offsets
    ]
    seed = fmt.seed_of(1, SALT)
    parts = [fmt.MAGIC]
    for record in payloads:
        payload = fmt.encode(record)
        parts += [fmt.head(payload, seed), payload]
    return b"".join(parts)


_NODES_FILE: Final = (UPGRADE / "nodes-0.1.conf").read_bytes()
_CONFIG: Final = (Path(__file__).parents[2] / "deploy" / "disque.conf").read_bytes()
_CONFIG_LINES: Final = tuple(
    line.removeprefix(b"# ") + b"\n" for line in _CONFIG.splitlines() if line.count(b" ") < 20
)
_BODIES: Final = tuple(map(messages.encode, samples.WORDS))

TARGETS: Final = (
    Target("resp", mutated(seeds.RESP, seeds.RESP_WORDS), run_resp, 150),
    Target("stomp", mutated(seeds.STOMP, seeds.STOMP_WORDS), run_stomp, 100),
    Target("frames", mutated(seeds.framed(_BODIES)), run_frames, 100),
    Target("messages", mutated(_BODIES), run_messages, 150),
    Target("statements", mutated([wire.encode([each]) for each in samples.STATEMENTS]), run_statements, 200),
    Target("bus", mutated(seeds.framed(_BODIES)), run_bus, 100),
    Target("handshake", mutated(seeds.framed(seeds.handshakes())), run_handshake, 150),
    Target("nodes-file", mutated([_NODES_FILE, *_NODES_FILE.splitlines(keepends=True)]), run_nodes_file, 200),
    Target("config", mutated([_CONFIG, *_CONFIG_LINES]), run_config, 200),
    Target("log", mutated([segment()]), run_log, 150),
    Target("resp-node", mutated(seeds.RESP, seeds.RESP_WORDS), nodes.run_resp, 60),
    Target("stomp-node", mutated(seeds.STOMP, seeds.STOMP_WORDS), nodes.run_stomp, 60),
    Target("page", mutated(page.SEEDS, page.WORDS), page.run, 60),
)  # fmt: skip
