"""A Celery app for test_celery.py; its workers are real processes.

URL and options of the broker, and the file in which each run of a task leaves a line, are in the environment.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import disque.kombu_transport

disque.kombu_transport.register()

app = Celery(
    "tests.system.celery_app",
    broker=os.environ.get("TEST_BROKER", "disque://"),
    backend="rpc://",
)
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("TEST_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_ignore_result=True,
)


def record(*words: object) -> None:
    """One line in the file of runs; lines of several processes don't mix."""
    line = " ".join(map(str, words)) + "\n"
    fd = os.open(os.environ["TEST_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


@app.task(ignore_result=False)
def echo(word: str) -> str:
    """Answer, over the broker."""
    return word


@app.task
def note(number: int) -> None:
    """Leave a line."""
    record("note", number)


@app.task
def timed(number: int, due_at: float) -> None:
    """Leave a line with how late it is, in seconds."""
    record("timed", number, time.time() - due_at)


@app.task
def slow(number: int, seconds: float) -> None:
    """Leave a line at the beginning and one at the end."""
    record("begun", number)
    time.sleep(seconds)
    record("ended", number)


@app.task(bind=True)
def fussy(self: Any, number: int) -> None:
    """Want to be delivered twice."""
    record("fussy", number, bool(self.request.delivery_info["redelivered"]))
    if not self.request.delivery_info["redelivered"]:
        raise disque_reject()


def disque_reject() -> Exception:
    """What makes Celery requeue a message."""
    from celery.exceptions import Reject

    return Reject("once more", requeue=True)


@app.task
def kill_worker(number: int, marker: str) -> None:
    """End the worker process that runs it, while the file `marker` is missing."""
    record("fatal", number)
    if not Path(marker).exists():
        os._exit(1)
