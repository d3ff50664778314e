"""Handlers that other processes import: for workers that run in processes of their own, or handlers that do."""

from __future__ import annotations

import os
import time
from pathlib import Path

from disque.client.results import Job


def note(job: Job) -> None:
    """Add a line to the file that the body names."""
    with Path(job.body.decode()).open("a") as file:
        file.write(f"{os.getpid()} {job.attempt}\n")


def note_and_sleep(job: Job) -> None:
    """Note it, and take longer than any test."""
    note(job)
    time.sleep(60)


def note_and_die(job: Job) -> None:
    """Note it; the first attempt kills the process."""
    note(job)
    if job.attempt == 1:
        os._exit(9)


def note_slowly(job: Job) -> None:
    """Note it, and again at the end, a second later."""
    note(job)
    time.sleep(1)
    note(job)
