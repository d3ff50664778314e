"""`top`: two pictures make rates; what doesn't fit the screen is counted."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from disque.cli.nodes import FIGURES
from disque.cli.top import Picture, drawn, picture_json, rates
from disque.client.results import GlobalQueueStats


def queue(name: str, *, length: int = 1, jobs_in: int = 0, jobs_out: int = 0) -> GlobalQueueStats:
    """A queue of one node."""
    return GlobalQueueStats(name, length, 7.0, 0, 0, 0, 1, 0, jobs_in, jobs_out, "none", 1, 0)


def node(**more: Any) -> dict[str, Any]:
    """A node that was asked."""
    fixed = {
        "id": "a" * 40,
        "host": "h",
        "port": 7711,
        "state": "ok",
        "is_asked": True,
        "is_reached": True,
    }
    return {**dict.fromkeys(FIGURES.values(), 1), **fixed, **more}


def text(picture: Picture, screen: tuple[int, int] | None = None) -> str:
    """As it is drawn, without colours."""
    file = io.StringIO()
    Console(file=file, width=200).print(drawn(None, picture, screen))
    return file.getvalue()


def test_rates_are_differences_and_never_negative() -> None:
    before = Picture(10.0, [], [queue("a", jobs_in=5, jobs_out=9), queue("gone")], 2, 0)
    now = Picture(12.0, [], [queue("a", jobs_in=11, jobs_out=0), queue("new")], 2, 0)
    assert rates(before, now) == {"a": (3.0, 0.0)}
    assert rates(None, now) == {}


def test_picture_shows_nodes_queues_and_dead_letters() -> None:
    silent = node(id="b" * 40, is_asked=False, is_reached=False, **dict.fromkeys(FIGURES.values()))
    shown = text(Picture(0.0, [node(), silent], [queue("mail", length=1_234)], 1, 3))
    assert "1 of 2 nodes ok" in shown
    assert "aaaaaaaa*" in shown
    assert "ok, not reached" in shown
    assert "1,234" in shown
    assert "3 dead letters" in shown


def test_small_screen_shows_fewer_queues_and_says_how_many_more() -> None:
    picture = Picture(0.0, [node()], [queue(f"q{at}") for at in range(30)], 30, 0)
    shown = text(picture, (120, 20))
    assert len(shown.splitlines()) <= 20
    assert "… 20 queues more" in shown


def test_name_with_markup_is_no_markup() -> None:
    assert "[red]x[/red]" in text(Picture(0.0, [node()], [queue("[red]x[/red]")], 1, 0))


def test_json_has_rates_once_there_are_two_pictures() -> None:
    before = Picture(10.0, [node()], [queue("a")], 1, 0)
    now = Picture(11.0, [node()], [queue("a", jobs_in=2)], 1, 4)
    first, second = picture_json(None, before), picture_json(before, now)
    assert first["queues"][0]["in_per_second"] is None
    assert second["queues"][0]["in_per_second"] == 2.0
    assert (second["dead_letters"], second["dead_lettered_total"]) == (4, 1)
    assert json.dumps(second["nodes"])
