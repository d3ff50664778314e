"""Commands: Python values to words."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from disque.client import AsyncClient, Client, Job, Pipeline, commands
from disque.client.commands import Request

ID = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
JOB = Job(ID, "q", b"x")

ALL_OPTIONS = (
    "ADDJOB q x 1000 REPLICATE 2 DELAY 3 RETRY 0 TTL 60 MAXLEN 9 PRIORITY 0 MAXDELIVERIES 0"
    " DEADLETTER d HEADER kind a HEADER n 1 ASYNC"
)

WORDS: list[tuple[Request[Any], str]] = [
    (commands.add_job("q", b"x"), "ADDJOB q x 5000"),
    (commands.add_job("q", "x", timeout=None), "ADDJOB q x 0"),
    (commands.add_job("q", b"x", timeout=0.0001), "ADDJOB q x 1"),
    (commands.add_job("q", b"x", timeout=1.2345), "ADDJOB q x 1235"),
    (
        commands.add_job(
            "q", b"x", timeout=1, replicate=2, delay=3, retry=0, ttl=60.0, maxlen=9, async_=True,
            priority=0, max_deliveries=0, dead_letter="d",
            headers={"kind": "a", "n": b"1"},
        ),
        ALL_OPTIONS,
    ),
    (commands.get_jobs("q"), "GETJOB TIMEOUT 0 COUNT 1 WITHCOUNTERS FROM q"),
    (commands.get_jobs("q", "p", timeout=0, count=3), "GETJOB NOHANG COUNT 3 WITHCOUNTERS FROM q p"),
    (commands.get_jobs("q", timeout=0.5), "GETJOB TIMEOUT 500 COUNT 1 WITHCOUNTERS FROM q"),
    (commands.ack_job(JOB, ID), f"ACKJOB {ID} {ID}"),
    (commands.ack_job(), "ACKJOB"),
    (commands.fast_ack(ID.encode()), f"FASTACK {ID}"),
    (commands.nack_job(JOB), f"NACK {ID}"),
    (commands.nack_job(JOB, delay=2), f"NACK {ID} DELAY 2.000"),
    (commands.nack_job(JOB, delay=0.25), f"NACK {ID} DELAY 0.250"),
    (commands.working(JOB), f"WORKING {ID}"),
    (commands.enqueue(JOB), f"ENQUEUE {ID}"),
    (commands.dequeue(JOB), f"DEQUEUE {ID}"),
    (commands.delete_job(JOB), f"DELJOB {ID}"),
    (commands.cancel_job(JOB), f"CANCELJOB {ID}"),
    (commands.cancel_job(JOB, timeout=2), f"CANCELJOB {ID} TIMEOUT 2000"),
    (commands.revive(JOB), f"REVIVE {ID}"),
    (commands.wait_jobs(JOB), f"WAITJOB {ID} TIMEOUT 0"),
    (commands.wait_jobs(JOB, ID, timeout=1), f"WAITJOB {ID} {ID} TIMEOUT 1000"),
    (commands.show(JOB), f"SHOW {ID}"),
    (commands.qlen("q"), "QLEN q"),
    (commands.global_qlen("q"), "GLOBALQLEN q WITHNODES"),
    (commands.global_qlen("q", timeout=1), "GLOBALQLEN q WITHNODES TIMEOUT 1000"),
    (commands.qstat("q"), "QSTAT q"),
    (commands.global_qstat("q", timeout=1), "QSTAT q GLOBAL TIMEOUT 1000"),
    (commands.qpeek("q", -5), "QPEEK q -5"),
    (commands.qpurge("q"), "QPURGE q"),
    (commands.pause("q"), "PAUSE q state"),
    (commands.pause("q", "in", bcast=True), "PAUSE q in bcast"),
    (commands.qscan(), "QSCAN 0 COUNT 100"),
    (commands.qscan(7, count=5, minlen=1, maxlen=2), "QSCAN 7 COUNT 5 MINLEN 1 MAXLEN 2"),
    (commands.qscan_stats(7), "QSCAN 7 COUNT 100 REPLY all"),
    (commands.jscan(), "JSCAN 0 COUNT 100 REPLY all"),
    (
        commands.jscan(7, queue="q", states=("queued", "acked"), count=5),
        "JSCAN 7 COUNT 5 QUEUE q STATE queued STATE acked REPLY all",
    ),
    (commands.publish("c", "x"), "PUBLISH c x"),
    (commands.numsub("c", "d"), "PUBSUB NUMSUB c d"),
    (commands.hello(), "HELLO"),
    (commands.info(), "INFO"),
    (commands.info("jobs"), "INFO jobs"),
    (commands.cluster_info(), "CLUSTER INFO"),
    (commands.ping(), "PING"),
    (commands.execute("DEBUG", b"SLEEP", 3), "DEBUG SLEEP 3"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "words"), WORDS, ids=[words for _, words in WORDS])
def test_command_is_spelled(request_: Request[Any], words: str) -> None:
    assert b" ".join(request_.words).decode() == words


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: commands.add_job("q", b"x", timeout=0), ValueError, "timeout must be seconds above 0"),
    (lambda: commands.add_job("q", b"x", timeout=float("nan")), ValueError, "timeout"),
    (lambda: commands.add_job("q", b"x", retry=1.5), ValueError, "retry must be whole seconds"),
    (lambda: commands.add_job("q", b"x", delay=-1), ValueError, "delay must be whole seconds"),
    (lambda: commands.add_job("q", b"x", ttl=float("inf")), ValueError, "ttl must be whole"),
    (lambda: commands.add_job("q", {"a": 1}), TypeError, "got {'a': 1}"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", replicate=True), TypeError, "got True"),
    (lambda: commands.get_jobs(), ValueError, "needs a queue"),
    (lambda: commands.get_jobs("q", count=0), ValueError, "count must be 1 or more, got 0"),
    (lambda: commands.get_jobs("q", timeout="5"), TypeError, "timeout must be a number"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", timeout="5"), TypeError, "timeout must be a number"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", retry="60"), TypeError, "retry must be a number"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", priority="high"), TypeError, "an int, got 'high'"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", priority=10), ValueError, "0 to 9, got 10"),
    (lambda: commands.add_job("q", b"x", replicate=0), ValueError, "1 or more, got 0"),
    (lambda: commands.add_job("", b"x"), ValueError, "a queue's name can't be empty"),
    (lambda: commands.add_job("q", b"x", dead_letter=""), ValueError, "can't be empty"),
    (lambda: commands.get_jobs("q", ""), ValueError, "a queue's name can't be empty"),
    (lambda: commands.pause("q", "stop"), ValueError, "got 'stop'"),  # type: ignore[arg-type]
    (lambda: commands.add_job("q", b"x", headers="a"), TypeError, "a dict of names"),  # type: ignore[arg-type]
    (lambda: Client("disque://a").get_job("q", timeout="5"), TypeError, "timeout must be a number"),  # type: ignore[arg-type]
    (lambda: Client("disque://a").subscribe(patterns="a*"), TypeError, "in a tuple, got 'a*'"),  # type: ignore[arg-type]
    (lambda: commands.qlen(5), TypeError, "a queue's name is str or bytes, got 5"),  # type: ignore[arg-type]
    (lambda: Client("disque://a").get_job(), ValueError, "get_job needs a queue"),
    (lambda: commands.nack_job(ID, delay=-1), ValueError, "delay must be seconds"),
    (lambda: commands.ack_job(5), TypeError, "a job or its id is wanted, got 5"),  # type: ignore[arg-type]
    (lambda: commands.wait_jobs(), ValueError, "needs a job"),
    (lambda: commands.execute(), ValueError, "needs a command"),
    (lambda: commands.execute("X", None), TypeError, "got None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "kind", "complaint"), BAD)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    build: Callable[[], object], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind) as caught:
        build()
    assert complaint in str(caught.value)


def test_only_what_would_be_done_twice_is_not_repeated() -> None:
    once = {request.name for request, _ in WORDS if not request.may_repeat}
    assert once == {"ADDJOB", "QPURGE", "PUBLISH", "DEBUG"}
    assert commands.add_job("q", b"x", may_repeat=True).may_repeat


BUILDERS = {
    name: function
    for name, function in vars(commands).items()
    if inspect.isfunction(function) and "Request" in str(function.__annotations__.get("return"))
    if not name.startswith("_")
}


def test_every_command_is_a_method_of_each_client_with_the_same_arguments() -> None:
    assert len(BUILDERS) == 30
    for owner in (Client, AsyncClient, Pipeline):
        for name, function in BUILDERS.items():
            method = getattr(
                owner, {"execute": "execute_raw"}.get(name, name) if owner is Pipeline else name
            )
            given = list(inspect.signature(method).parameters.values())[1:]
            wanted = list(inspect.signature(function).parameters.values())
            assert [(p.name, p.kind, p.default) for p in given] == [
                (p.name, p.kind, p.default) for p in wanted
            ], f"{owner.__name__}.{name}"


def test_both_clients_have_the_same_names() -> None:
    def names(owner: type) -> set[str]:
        return {name for name in vars(owner) if not name.startswith("_")}

    # an event loop of one's own is for programs that block
    assert names(Client) - names(AsyncClient) == {"dedicated"}
    assert names(AsyncClient) - names(Client) == set()


def test_the_client_of_trio_says_under_asyncio_what_to_use_there() -> None:
    async def ping() -> None:
        await AsyncClient("disque://127.0.0.1:1").ping()

    with pytest.raises(RuntimeError, match="AsyncClient is for trio; from asyncio use Client"):
        asyncio.run(ping())
