"""`python -m tests.upgrade.record FOLDER`: what this version writes and says, as files; once a version, never again."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, Final

from cluster import messages, nodesfile
from cluster.frame import encode_frame
from cluster.handshake import AcceptorHandshake, DialerHandshake
from disque.aof.store import Life, Store
from disque.core import commands as cmd
from tests.disk import MemoryDisk
from tests.fuzz.seeds import ACCEPTOR, DIALER, SECRET
from tests.unit.core.builders import RETRY_MS, A, B, C, Node, copy, job_id, view
from tests.upgrade import samples

SALT: Final = 0x5F3A2B1C
KERNEL: Final = "kernel-1"


class Disk(MemoryDisk):
    """One whose segments' names don't depend on chance."""

    def create(self, segment: int) -> None:
        """Make an empty segment."""
        super().create(segment)
        self.files[segment].salt = SALT + segment - 1


def write_log(folder: Path) -> None:
    """One segment with jobs of every kind, and beside it what a start must make of it."""
    node = Node(view(up=(B, C)))
    node.engine.set_logged(True)
    queued = node.add(b"queued", replicate=1, priority=7)
    delayed = node.add(b"delayed", replicate=1, delay_ms=3_600_000)
    leased = node.add(b"leased", queue=b"work", replicate=1, retry_ms=RETRY_MS)
    assert [each.id for each in node.get(b"work")] == [leased]
    once = node.add(b"once", queue=b"once", replicate=1, retry_ms=0)
    spent = node.add(b"spent", queue=b"spent", replicate=1, retry_ms=0)
    assert [each.id for each in node.get(b"spent")] == [spent]
    acked = node.add(b"acked", queue=b"acked", replicate=1)
    node.do(cmd.AckJob((acked,)))
    foreign = job_id(5)
    node.hear(B, copy(foreign, A, B))
    dead = node.add(b"dead", queue=b"bad", replicate=1, max_deliveries=1, dead_queue=b"graves")
    assert [each.id for each in node.get(b"bad")] == [dead]
    node.do(cmd.Nack((dead,)))
    node.do(cmd.Pause(b"paused", 1, is_cluster=True))
    disk = Disk()
    store = Store(
        disk,
        Life(A, 7, 7, KERNEL, "always"),
        is_complete=True,
        node_records=node.engine.node_records,
    )
    store.set_complete()
    store.write(node.records)
    job = store.begin_sync()
    assert job is not None
    job.run(disk)
    store.synced(job)
    (number,) = disk.files
    path = folder / f"{number:08d}-{disk.files[number].salt:08x}.log"
    path.write_bytes(bytes(disk.files[number].data))
    names = {
        "queued": queued, "delayed": delayed, "leased": leased, "once": once, "spent": spent, "acked": acked,
        "foreign": foreign, "dead": dead,
    }  # fmt: skip
    expected: dict[str, Any] = {name: id_.decode() for name, id_ in names.items()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_bus(folder: Path) -> None:
    """All that a dialer says: its handshake, and one word of each kind."""
    dice = random.Random(0)
    dialer = DialerHandshake(
        own=DIALER, secret=SECRET, nonce=dice.randbytes(32), expected=ACCEPTOR.id, is_meet=True
    )
    acceptor = AcceptorHandshake(own=ACCEPTOR, secret=SECRET, nonce=dice.randbytes(32))
    hello = dialer.start()
    challenge = acceptor.receive(hello)
    assert challenge is not None
    proof = dialer.receive(challenge)
    assert proof is not None
    said = [hello, proof, *map(messages.encode, samples.WORDS)]
    (folder / "dialer.bus").write_bytes(b"".join(map(encode_frame, said)))


def write_nodes(folder: Path) -> None:
    """A node table."""
    (folder / "nodes-0.1.conf").write_text(nodesfile.format(samples.NODES))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_log(target)
    write_bus(target)
    write_nodes(target)
