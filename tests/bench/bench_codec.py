"""What bytes cost: commands read, replies written, messages to peers both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disque.core import parsing, wire
from disque.core.ready import Delivery
from disque.resp.decoder import Decoder
from disque.server import render
from tests.bench.parts import COUNT, CPU, repeated, timed
from tests.bench.pipeline import ADD, BODY
from tests.system.nodes import command_bytes
from tests.unit.core.builders import A, B, C, copy, job_id

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = CPU

DEPTH = 16  # commands that arrive in one piece
ENTRIES = 50  # statements of one payload


def read_commands(request: bytes) -> None:
    """As a connection does, up to the engine's values."""
    decoder = Decoder()
    for piece in [*[request * DEPTH] * (COUNT // DEPTH), request * (COUNT % DEPTH)]:
        decoder.feed(piece)
        while commands := decoder.take():
            for name, *arguments in commands:
                parsing.parse(name.lower(), arguments)


def test_read_adds(benchmark: BenchmarkFixture) -> None:
    timed(benchmark, "codec: read ADDJOB, pipelined", lambda: read_commands(ADD))


def test_read_acks(benchmark: BenchmarkFixture) -> None:
    request = command_bytes("ACKJOB", job_id(1))
    timed(benchmark, "codec: read ACKJOB of one, pipelined", lambda: read_commands(request))


def test_write_a_job(benchmark: BenchmarkFixture) -> None:
    job = Delivery(job_id(1), b"bench", BODY, {})
    timed(benchmark, "codec: write GETJOB's reply", repeated(lambda: render.render([job], 2)))


def statements() -> list[wire.Message]:
    """Copies for two peers, as one turn says them."""
    return [copy(job_id(n), A, B, C, body=BODY) for n in range(ENTRIES)]


def test_write_copies(benchmark: BenchmarkFixture) -> None:
    said = statements()

    def write() -> None:
        for _ in range(COUNT // ENTRIES):
            wire.encode(said)

    timed(benchmark, "codec: write REPLJOB, fifty a payload", write)


def test_read_copies(benchmark: BenchmarkFixture) -> None:
    payload = wire.encode(statements())

    def read() -> None:
        for _ in range(COUNT // ENTRIES):
            wire.decode(payload)

    timed(benchmark, "codec: read REPLJOB, fifty a payload", read)
