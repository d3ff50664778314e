"""The log, the bus and the node table of version 0.1 are understood, and what is newer than this version is refused
with a clear sentence, or agreed down to what both know."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgpack
import pytest

from cluster import handshake, messages, nodesfile
from cluster.errors import RemoteProtocolError
from cluster.frame import FrameDecoder
from cluster.handshake import AcceptorHandshake, DialerHandshake, HandshakeError
from disque.aof import format as fmt
from disque.aof.disk import LogError
from disque.aof.replay import Findings, Replay
from disque.core import wire
from disque.core.job import JobState
from disque.core.jobid import JobId
from disque.core.ready import Record
from tests.disk import MemoryDisk, Segment
from tests.fuzz.seeds import ACCEPTOR, DIALER, SECRET
from tests.unit.core.builders import NOW, B, Node, state_name, view
from tests.upgrade import samples

HERE = Path(__file__).parent
(LOG,) = HERE.glob("*.log")
IDS = {
    name: JobId(id_.encode())
    for name, id_ in json.loads((HERE / "expected.json").read_text()).items()
}


def disk_with(data: bytes) -> MemoryDisk:
    number, salt = LOG.stem.split("-")
    disk = MemoryDisk()
    disk.files[int(number)] = Segment(int(salt, 16), bytearray(data), bytearray(data))
    return disk


def started(data: bytes) -> tuple[Node, Findings]:
    """A node as it is after a start with this segment, 1 s later."""
    node = Node(view(up=(B,)), now_ms=NOW + 1_000)
    replay = Replay(disk_with(data), kernel_boot_id="kernel-1", stored_boot=7)
    for batch in replay.run():
        for placed in batch:
            node.engine.restore(*placed)
    node.engine.restored(since=replay.findings.since, boot=8)
    node.advance(0)
    return node, replay.findings


# The log


def test_a_recorded_segment_gives_back_every_job_as_it_was() -> None:
    node, findings = started(LOG.read_bytes())
    assert findings.is_intact
    assert not findings.lost
    assert (findings.boot, findings.since, findings.node_id) == (7, 7, node.id)
    jobs = node.state.jobs
    assert {name: state_name(node, id_) for name, id_ in IDS.items()} == {
        "queued": "queued",
        "delayed": "active",
        "leased": "leased",
        "once": "queued",
        "spent": "spent",
        "acked": "tombstone",
        "foreign": "active",
        "dead": "queued",
    }
    assert jobs[IDS["queued"]].body == b"queued"
    assert jobs[IDS["queued"]].live_spec.priority == 7
    assert jobs[IDS["delayed"]].not_before == NOW + 3_600_000
    assert jobs[IDS["dead"]].queue == b"graves"
    assert jobs[IDS["foreign"]].holders == (node.id, B)
    assert node.state.pauses[b"paused"][2] == 1
    assert not [job for job in jobs.values() if job.state is JobState.WAITING]


def with_version(version: int) -> bytes:
    """The same segment, said to be of another version."""
    number, salt = LOG.stem.split("-")
    data, seed = LOG.read_bytes(), fmt.seed_of(int(number), int(salt, 16))
    parts = [fmt.MAGIC]
    for at in fmt.scan(data, seed).offsets:
        record = fmt.record_at(data, at)
        if record.kind == "segment":
            number_, node_id, _, *rest = record.fields
            record = Record("segment", (number_, node_id, version, *rest))
        payload = fmt.encode(record)
        parts += [fmt.head(payload, seed), payload]
    return b"".join(parts)


def test_a_segment_of_a_later_version_is_refused_and_left_as_it_is() -> None:
    disk = disk_with(with_version(fmt.VERSION + 1))
    before = bytes(disk.files[1].data)
    text = f"segment 1 has format version {fmt.VERSION + 1}, this server reads up to {fmt.VERSION}"
    with pytest.raises(LogError, match=text):
        list(Replay(disk).run())
    assert bytes(disk.files[1].data) == before


def test_rewriting_the_head_of_a_segment_is_how_these_tests_make_versions() -> None:
    assert with_version(1) == LOG.read_bytes()


# The bus


def recorded() -> list[bytes]:
    decoder = FrameDecoder(1 << 20)
    decoder.feed((HERE / "dialer.bus").read_bytes())
    bodies = []
    while (body := decoder.next_frame()) is not None:
        bodies.append(body)
    return bodies


def test_a_recorded_dialer_is_let_in_and_each_of_its_words_understood() -> None:
    hello, proof, *said = recorded()
    # As drawn when it was recorded: the dialer's nonce came first
    dice = random.Random(0)
    dice.randbytes(32)
    acceptor = AcceptorHandshake(own=ACCEPTOR, secret=SECRET, nonce=dice.randbytes(32))
    assert acceptor.receive(hello) is not None
    assert acceptor.receive(proof) is None
    assert (acceptor.peer, acceptor.expected, acceptor.is_meet) == (DIALER, ACCEPTOR.id, True)
    assert acceptor.version == 1
    words = [messages.decode(body) for body in said]
    assert words == list(samples.WORDS)
    payload = words[3]
    assert isinstance(payload, messages.Payload)
    assert wire.decode(payload.data) == list(samples.STATEMENTS)


def shake(dialers: tuple[int, int], acceptors: tuple[int, int], patch: pytest.MonkeyPatch) -> int:
    """A handshake between two versions of this program; the version that both agree on."""

    def speak(versions: tuple[int, int]) -> None:
        patch.setattr(handshake, "VERSION_MIN", versions[0])
        patch.setattr(handshake, "VERSION_MAX", versions[1])

    dialer = DialerHandshake(
        own=DIALER, secret=SECRET, nonce=bytes(32), expected=ACCEPTOR.id, is_meet=False
    )
    acceptor = AcceptorHandshake(own=ACCEPTOR, secret=SECRET, nonce=b"a" * 32)
    speak(dialers)
    hello = dialer.start()
    speak(acceptors)
    challenge = acceptor.receive(hello)
    assert challenge is not None
    speak(dialers)
    proof = dialer.receive(challenge)
    assert proof is not None
    speak(acceptors)
    acceptor.receive(proof)
    verdict = acceptor.accept()
    speak(dialers)
    dialer.receive(verdict)
    assert dialer.peer == ACCEPTOR
    assert acceptor.peer == DIALER
    assert dialer.version == acceptor.version
    return dialer.version


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [((1, 1), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 3), (2, 2), 2), ((1, 2), (1, 3), 2)],
)
def test_nodes_of_neighbouring_versions_agree_on_the_highest_that_both_know(
    one: tuple[int, int], other: tuple[int, int], agreed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shake(one, other, monkeypatch) == agreed
    assert shake(other, one, monkeypatch) == agreed


def test_versions_without_a_common_one_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"no common protocol version: the other side speaks 1\.\.1, we 2\.\.3"
    with pytest.raises(HandshakeError, match=text):
        shake((1, 1), (2, 3), monkeypatch)


def test_words_that_a_later_version_adds_are_passed_over() -> None:
    assert messages.decode(msgpack.packb([1, 6, "news"])) is None
    known = wire.encode([samples.STATEMENTS[1]])
    version, nodes, runs = msgpack.unpackb(known)
    later = [len(wire.MESSAGE_TYPES) + 1, ["what", 1, None]]
    assert wire.decode(msgpack.packb([version, nodes, [later, *runs]])) == [samples.STATEMENTS[1]]


def test_a_payload_of_a_later_version_is_a_clear_error() -> None:
    later = bytearray(wire.encode(list(samples.STATEMENTS)))
    assert later[1] == 1
    later[1] = 2
    with pytest.raises(RemoteProtocolError, match="version"):
        wire.decode(bytes(later))


# The node table


def test_a_recorded_node_table_is_read_as_it_was() -> None:
    assert nodesfile.parse((HERE / "nodes-0.1.conf").read_text()) == samples.NODES
