"""Watch: what of a server's log tells of a bug."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio

from disque.server.eventlog import EventLog
from jepsen.hosts.base import Hosts
from jepsen.nemesis.field import Field
from jepsen.recorder import Recorder
from jepsen.watch import Watch


@attrs.frozen
class Logs:
    """Hosts of one node, of which there is only its log."""

    text: str
    nodes: tuple[str, ...] = ("n1",)

    def log_text(self, node: str) -> str:
        return self.text


def troubles(text: str) -> list[str]:
    field = Field(cast(Hosts, Logs(text)), random.Random(0))
    return Watch(Recorder(), field).tracebacks()


def bug() -> Exception:
    """What a task of the server raises comes out of its nursery."""

    async def task() -> None:
        raise ValueError("planted")

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(serve, strict_exception_groups=True)
    return caught.value


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def events(log: Path) -> Iterator[EventLog]:
    opened = EventLog(path=str(log))
    yield opened
    opened.close()


def test_the_traceback_of_a_nursery_is_found_with_its_error(events: EventLog, log: Path) -> None:
    events.event("notice", "started")
    events.write("".join(traceback.format_exception(bug())))
    found = troubles(log.read_text())
    assert found[0].startswith("n1: Exception Group Traceback")
    assert "n1: Traceback (most recent call last): ValueError: planted" in found


def test_the_event_of_a_bug_is_found_without_a_traceback(events: EventLog, log: Path) -> None:
    events.event("warning", "bug", status=70)
    (found,) = troubles(log.read_text())
    assert found.endswith("warning bug status=70")


def test_events_of_the_ordinary_kind_are_none(events: EventLog, log: Path) -> None:
    events.event("warning", "configuration", text="maxmemory is small")
    events.event("notice", "peer-down", node="a", reason="eof | + reset")
    assert troubles(log.read_text()) == []
