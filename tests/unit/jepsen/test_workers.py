"""Workers: both ends of each operation are recorded, unknown outcomes retire a process, follow-ups are carried out."""

from __future__ import annotations

from typing import cast

import attrs
import trio

from jepsen import bodies
from jepsen.history import FAIL, INFO, INVOKE, OK, Op
from jepsen.hosts.base import Hosts
from jepsen.recorder import Recorder
from jepsen.workers import Crew, Session
from jepsen.workloads import Params, make
from jepsen.workloads.base import Intent

RUN = "r"


@attrs.define(eq=False)
class ScriptedHosts:
    """Nodes of one real socket server; `answers` gives the reply to a command by its first word."""

    answers: dict[bytes, bytes]
    nodes: tuple[str, ...] = ("n1", "n2")
    password: str = ""
    refuses: bool = False
    port: int = 0

    async def listen(self, nursery: trio.Nursery) -> Hosts:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, self._serve, [listener])
        self.port = listener.socket.getsockname()[1]
        return cast(Hosts, self)

    async def open(self, node: str) -> trio.SocketStream:
        if self.refuses:
            raise ConnectionRefusedError(node)
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async for data in stream:
            reply = self.answers[bytes(data).split(b"\r\n")[2]]
            if not reply:
                await stream.aclose()
                return
            await stream.send_all(reply)


def job(v: int) -> bytes:
    body = bodies.make(RUN, v)
    fields = b"$2\r\njx\r\n$3\r\nD-1\r\n$%d\r\n%b\r\n" % (len(body), body)
    return b"*1\r\n*7\r\n" + fields + b"$5\r\nnacks\r\n:0\r\n$21\r\nadditional-deliveries\r\n:0\r\n"


def told(history: list[Op]) -> list[tuple[int, str, str, str]]:
    return [(op.process, op.type, op.f, op.error) for op in history]


async def test_outcomes_and_the_numbers_of_processes(nursery: trio.Nursery) -> None:
    hosts = ScriptedHosts({b"ACKJOB": b":1\r\n", b"NACK": b"", b"FASTACK": b"-BADID no\r\n"})
    recorder = Recorder()
    session = Session(await hosts.listen(nursery), recorder, RUN, process=1, concurrency=10)
    for f in ("ack", "fastack", "nack", "ack"):
        await session.perform(Intent(f, "n1", {"ids": ["D-1"], "vs": [1]}))
    session.close()
    hosts.refuses = True
    await session.perform(Intent("ack", "n2", {"ids": ["D-1"], "vs": [1]}))
    session.close()
    assert told(recorder.history) == [
        (1, INVOKE, "ack", ""),
        (1, OK, "ack", ""),
        (1, INVOKE, "fastack", ""),
        (1, FAIL, "fastack", "BADID no"),
        (1, INVOKE, "nack", ""),
        (1, INFO, "nack", "eof"),
        (11, INVOKE, "ack", ""),
        (11, OK, "ack", ""),
        (11, INVOKE, "ack", ""),
        (11, FAIL, "ack", "refused"),
    ]
    assert [op.index for op in recorder.history] == list(range(10))
    assert recorder.history[1].value["count"] == 1


async def test_what_is_cancelled_is_unknown(nursery: trio.Nursery) -> None:
    hosts = ScriptedHosts({b"ACKJOB": b"*1\r\n"})
    recorder = Recorder()
    session = Session(await hosts.listen(nursery), recorder, RUN, process=1, concurrency=10)
    with trio.move_on_after(0.05):
        await session.perform(Intent("ack", "n1", {"ids": ["D-1"], "vs": [1]}))
    session.close()
    assert told(recorder.history)[-1] == (1, INFO, "ack", "cancelled")
    assert session.process == 11


async def test_a_crew_acks_what_it_gets_and_ends_when_it_is_closed(nursery: trio.Nursery) -> None:
    hosts = ScriptedHosts({b"ADDJOB": b"+D-1\r\n", b"GETJOB": job(1), b"ACKJOB": b":1\r\n"})
    recorder = Recorder()
    workload = make("queue", Params(hosts.nodes))
    crew = Crew(
        await hosts.listen(nursery), recorder, workload, RUN, concurrency=4, rate_hz=500, seed=1
    )

    def acks() -> int:
        return sum(op.f == "ack" and op.type == OK for op in recorder.history)

    async with trio.open_nursery() as working:
        working.start_soon(crew.work)
        with trio.fail_after(20):
            while acks() < 10:
                await trio.sleep(0.01)
        crew.close()
    count = len(recorder.history)
    await trio.sleep(0.05)
    assert len(recorder.history) == count
    assert {op.process for op in recorder.history} == {0, 1, 2, 3}
    invoked, completed = (
        [op for op in recorder.history if (op.type == INVOKE) == is_one] for is_one in (True, False)
    )
    assert len(invoked) == len(completed)
