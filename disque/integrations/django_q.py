"""Django-Q2 over a cluster.

    Q_CLUSTER = {
        "broker_class": "disque.integrations.django_q.DisqueBroker",
        "disque": "disque://:password@a:7711;disque://b:7711",
        ...
    }

`retry` is how long after a hand-out an unacknowledged task is handed out again, `bulk` how many are got at a time, as
with any broker of Django-Q's that acknowledges. Queue sizes are those of the whole cluster.
"""

from __future__ import annotations

import functools
from typing import Final

from django_q.brokers import Broker  # type: ignore[import-untyped]
from django_q.conf import Conf  # type: ignore[import-untyped]

from disque.client import Client

DEFAULT_URL: Final = "disque://127.0.0.1:7711"
# How long one look for tasks may take: Django-Q's pusher checks whether it should stop in between.
WAIT_S: Final = 1.0
# Tasks wait as long as they must; Disque's own default is a day.
TTL_S: Final = 365 * 86_400


@functools.cache
def client_of(url: str) -> Client:
    """One for the whole process: Django-Q makes a broker for each task that a view adds, and closes none."""
    return Client(url)


class DisqueBroker(Broker):  # type: ignore[misc]
    """A Django-Q broker; `connection` is a `Client`, which makes connections of its own in each forked process."""

    connection: Client
    list_key: str
    _info: str | None

    @staticmethod
    def get_connection(list_key: str | None = None) -> Client:  # noqa: ARG004 -- Django-Q's signature
        """The client of the cluster in the settings; it connects when it is first used."""
        return client_of(Conf.conf.get("disque", DEFAULT_URL))

    def enqueue(self, task: str) -> str:
        """Add a task; returns the job's id. OutcomeUnknownError if it may have been added all the same."""
        return self.connection.add_job(self.list_key, task, retry=Conf.RETRY, ttl=TTL_S)

    def dequeue(self) -> list[tuple[str, str]]:
        """Get tasks as (id, package); none if there is none for a second."""
        jobs = self.connection.get_jobs(self.list_key, timeout=WAIT_S, count=Conf.BULK)
        return [(job.id, job.body.decode("utf-8", "replace")) for job in jobs]

    def queue_size(self) -> int:
        """Tasks that wait."""
        return self.connection.global_qlen(self.list_key).jobs

    def lock_size(self) -> int:
        """Tasks that were handed out and not acknowledged."""
        stats = self.connection.global_qstat(self.list_key)
        return 0 if stats is None else stats.delivered

    def delete_queue(self) -> int:
        """Drop all tasks; returns how many."""
        return self.purge_queue()

    def purge_queue(self) -> int:
        """Drop all tasks, also those that are being worked on; returns how many."""
        return self.connection.qpurge(self.list_key).jobs

    def delete(self, task_id: str) -> None:
        """Drop one task on every node."""
        self.connection.cancel_job(task_id)

    def acknowledge(self, task_id: str) -> None:
        """A task is done."""
        self.connection.ack_job(task_id)

    def fail(self, task_id: str) -> None:
        """A package that can't be read is dropped."""
        self.delete(task_id)

    def ping(self) -> bool:
        """True if a node answers; UnreachableError if none does."""
        self.connection.ping()
        return True

    def info(self) -> str:
        """Who answers, and its version."""
        if not self._info:
            self._info = f"Disque {self.connection.info('server')['disque_version']}"
        return self._info
