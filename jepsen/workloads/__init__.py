"""Workloads: what clients do, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jepsen.workloads.base import Adder, Params, Workload
from jepsen.workloads.fates import DeadLetter, DelayTtl, PurgeCancel
from jepsen.workloads.queues import (
    AsyncFastack,
    BigMem,
    Federation,
    Fifo,
    Queue,
    Replication,
)
from jepsen.workloads.races import AckRace, AtMostOnce, NackWorking

__all__ = ["DEFAULT_NEMESIS", "LEAVES_DELIVERED", "WORKLOADS", "Params", "Workload", "make"]

Maker = Callable[[Params, Adder], Workload]

WORKLOADS: Final[Mapping[str, Maker]] = {
    "queue": Queue,
    "at-most-once": AtMostOnce,
    "ack-race": AckRace,
    "nack-working": NackWorking,
    "delay-ttl": DelayTtl,
    "replication": Replication,
    "federation": Federation,
    "fifo": Fifo,
    "async-fastack": AsyncFastack,
    "leave-join": lambda params, adder: Queue(params, adder, name="leave-join"),
    "bigmem": BigMem,
    "purge-cancel": PurgeCancel,
    "dead-letter": DeadLetter,
    "soak": lambda params, adder: Queue(params, adder, name="soak"),
}

# What a workload is tested with if the command line doesn't say.
DEFAULT_NEMESIS: Final[Mapping[str, str]] = {
    "leave-join": "leave-join",
    "bigmem": "none",
    "fifo": "none",
    "soak": "mixed",
}

# RETRY 0: a job whose delivery was lost on the way, or never acked, stays with its owner until its TTL.
LEAVES_DELIVERED: Final = frozenset({"at-most-once"})


def make(name: str, params: Params) -> Workload:
    """The workload of this name. Raises KeyError."""
    return WORKLOADS[name](params, Adder(params))
