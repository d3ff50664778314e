"""One line an event, whatever the values hold."""

from __future__ import annotations

import re
import syslog
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from disque.server.eventlog import EventLog, spell

if TYPE_CHECKING:
    from pathlib import Path


def test_line_is_time_level_event_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(EventLog(path=str(path))) as log:
        log.event("notice", "ready", port=7711, host="a b", none="")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(stamp + r' notice ready port=7711 host="a b" none=""\n', path.read_text())


def test_level_decides_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(EventLog(path=str(path), level="warning")) as log:
        log.event("notice", "small")
        log.note("info", "small", ())
        log.note("warning", "large", (("level", 3), ("event", "x")))
    assert [line.split(" ", 2)[2] for line in path.read_text().splitlines()] == [
        "large level=3 event=x"
    ]


@pytest.mark.parametrize("value", ["a\nb", "a\x00", 'say "x"', "k=v", "\x1b[31m", b"\xff", "é x"])
def test_value_never_breaks_the_line(value: object) -> None:
    text = spell(value)
    assert text.isprintable()
    assert "\n" not in text


def test_long_value_is_cut() -> None:
    assert len(spell("x" * 10_000)) < 1_000


def test_seldom_is_once_a_minute_for_each_event_and_what_it_is_about(tmp_path: Path) -> None:
    with closing(EventLog(path=str(tmp_path / "log"))) as log:
        for _ in range(3):
            log.seldom("warning", "log", "one", text="one")
            log.seldom("warning", "log", "two", text="two")
            log.seldom("warning", "possible-attack")
    told = [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert told == ["log text=one", "log text=two", "possible-attack"]


def test_sink_that_fails_is_borne() -> None:
    with closing(EventLog(path="/dev/full")) as log:
        log.event("notice", "ready")


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        EventLog(path=str(tmp_path / "no" / "log"))


def test_syslog_gets_each_line_without_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []
    said: list[tuple[int, str]] = []
    monkeypatch.setattr(syslog, "openlog", lambda *words: opened.append(words))
    monkeypatch.setattr(syslog, "syslog", lambda level, text: said.append((level, text)))
    with closing(EventLog(path="/dev/null", syslog=("name", "local3"))) as log:
        log.event("notice", "ready", port=7711)
        log.event("debug", "small")
        log.event("warning", "large", text="a\ud800")
    assert opened == [("name", syslog.LOG_PID | syslog.LOG_NDELAY, syslog.LOG_LOCAL3)]
    assert said == [
        (syslog.LOG_NOTICE, "ready port=7711"),
        (syslog.LOG_WARNING, 'large text="a\\ud800"'),
    ]
