"""Pipeline: commands that are collected and sent together, over any transport."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from disque.client import commands
from disque.client.commands import Request

P = ParamSpec("P")
R = TypeVar("R")


def _queued(build: Callable[P, Request[Any]]) -> Callable[Concatenate[Pipeline[Any], P], None]:
    """A command as a method that only remembers it."""

    @functools.wraps(build)
    def method(self: Pipeline[Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.append(build(*args, **kwargs))

    commands.as_method(method)
    return method


class Pipeline(Generic[R]):
    """Commands for one node, if it lasts; `execute` sends them. One caller at a time.

    pipe = client.pipeline()
    for body in bodies:
        pipe.add_job("mail", body)
    ids = pipe.execute()          # of an AsyncClient: await pipe.execute()

    ADDJOBs of a pipeline make their copies together. A GETJOB that waits holds up what comes after it.
    """

    def __init__(self, carry_out: Callable[[list[Request[Any]]], R]) -> None:
        """Made by `Client.pipeline`."""
        self._carry_out = carry_out
        self._requests: list[Request[Any]] = []

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: Request[Any]) -> None:
        """Remember a command as `commands` makes them."""
        self._requests.append(request)

    def execute(self) -> R:
        """Send what was collected, and forget it: a list of results, each in its place, or its DisqueError."""
        requests, self._requests = self._requests, []
        return self._carry_out(requests)

    add_job = _queued(commands.add_job)
    get_jobs = _queued(commands.get_jobs)
    ack_job = _queued(commands.ack_job)
    fast_ack = _queued(commands.fast_ack)
    nack_job = _queued(commands.nack_job)
    working = _queued(commands.working)
    enqueue = _queued(commands.enqueue)
    dequeue = _queued(commands.dequeue)
    delete_job = _queued(commands.delete_job)
    cancel_job = _queued(commands.cancel_job)
    revive = _queued(commands.revive)
    wait_jobs = _queued(commands.wait_jobs)
    show = _queued(commands.show)
    qlen = _queued(commands.qlen)
    global_qlen = _queued(commands.global_qlen)
    qstat = _queued(commands.qstat)
    global_qstat = _queued(commands.global_qstat)
    qpeek = _queued(commands.qpeek)
    qpurge = _queued(commands.qpurge)
    pause = _queued(commands.pause)
    qscan = _queued(commands.qscan)
    qscan_stats = _queued(commands.qscan_stats)
    jscan = _queued(commands.jscan)
    publish = _queued(commands.publish)
    numsub = _queued(commands.numsub)
    hello = _queued(commands.hello)
    info = _queued(commands.info)
    cluster_info = _queued(commands.cluster_info)
    ping = _queued(commands.ping)
    execute_raw = _queued(commands.execute)
