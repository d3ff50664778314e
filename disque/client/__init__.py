"""What programs use the cluster through: `Client` blocks, `AsyncClient` is for trio, `worker` runs handlers.

trio is only imported by those who ask for `AsyncClient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disque.client.asynchronous import AsyncClient

from disque.client.blocking import Client, DedicatedConnection, Subscription
from disque.client.errors import (
    AuthenticationError,
    BadIdError,
    DiskError,
    JobDoneError,
    JobUnknownError,
    LeavingError,
    LoadingError,
    NotPermittedError,
    NotReplicatedError,
    OutcomeUnknownError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
    ReplyError,
    TooLateError,
    UnreachableError,
)
from disque.client.pipeline import Pipeline
from disque.client.results import (
    GlobalQueueStats,
    Hello,
    Job,
    JobInfo,
    Message,
    NodeInfo,
    Page,
    QueueStats,
    Tally,
)
from disque.client.url import Address, Endpoint, Options, parse_url
from disque.errors import DisqueError

__all__ = [
    "Address",
    "AsyncClient",
    "AuthenticationError",
    "BadIdError",
    "Client",
    "DedicatedConnection",
    "DiskError",
    "DisqueError",
    "Endpoint",
    "GlobalQueueStats",
    "Hello",
    "Job",
    "JobDoneError",
    "JobInfo",
    "JobUnknownError",
    "LeavingError",
    "LoadingError",
    "Message",
    "NodeInfo",
    "NotPermittedError",
    "NotReplicatedError",
    "Options",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "Page",
    "Pipeline",
    "QueueFullError",
    "QueuePausedError",
    "QueueStats",
    "ReplyError",
    "Subscription",
    "Tally",
    "TooLateError",
    "UnreachableError",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":
        from disque.client.asynchronous import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
