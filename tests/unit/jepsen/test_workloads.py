"""Workloads: pure objects; what they order can be carried out, and each does what it is there for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from jepsen import commands
from jepsen.history import OK
from jepsen.options import Options
from jepsen.run import demands
from jepsen.workloads import DEFAULT_NEMESIS, WORKLOADS, Params, make
from jepsen.workloads.base import Completed, Intent, Planned, View, Workload
from tests.unit.jepsen.telling import judge, run_of

NODES = ("n1", "n2", "n3", "n4", "n5")


def play(
    name: str, steps: int = 600, seed: int = 1
) -> tuple[Workload, list[Intent], list[Planned]]:
    """A workload against a cluster that always delivers one job of the first queue asked for."""
    workload, dice = make(name, Params(NODES)), random.Random(seed)
    intents: list[Intent] = []
    followed: list[Planned] = []
    for step in range(steps):
        view = View(NODES[step % 5], step * 0.1)
        intent = workload.next(dice, view)
        intents.append(intent)
        job = {"v": step, "id": f"D-{step}", "queue": "jx", "nacks": 0, "extra": 0}
        answers: dict[str, dict[str, Any]] = {"add": {"id": f"D-{step}"}, "get": {"jobs": [job]}}
        more = answers.get(intent.f, {"count": 1})
        followed += workload.heard(dice, view, intent, Completed(OK, {**intent.value, **more}))
    return workload, intents, followed


@pytest.mark.parametrize("name", WORKLOADS)
def test_everything_that_is_ordered_is_a_command(name: str) -> None:
    workload, intents, followed = play(name)
    assert workload.name == name
    for intent in (*intents, *(planned.intent for planned in followed)):
        assert commands.words_of(intent.f, intent.value, "run")
        assert intent.node in NODES


@pytest.mark.parametrize("name", WORKLOADS)
def test_values_are_never_used_twice_and_the_drain_asks_for_every_queue(name: str) -> None:
    workload, intents, _ = play(name)
    adds = [intent.value for intent in intents if intent.f == "add"]
    assert len({add["v"] for add in adds}) == len(adds) > 0
    assert {add["queue"] for add in adds} <= set(workload.queues)
    assert {add["dead"] for add in adds} - {""} <= set(workload.queues)
    assert max(add["retry"] for add in adds) <= workload.retry_max_s


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_dice_play_the_same_run(name: str) -> None:
    assert play(name, seed=5)[1:] == play(name, seed=5)[1:]


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_follows_what_is_unknown(name: str) -> None:
    workload, dice, view = make(name, Params(NODES)), random.Random(1), View("n1", 0.0)
    for f in ("add", "get"):
        assert (
            workload.heard(
                dice,
                view,
                Intent(f, "n1", {"v": 1, "queues": ["jx"]}),
                Completed("info", {}, "timeout"),
            )
            == []
        )


def test_what_the_command_line_fixes_is_not_drawn() -> None:
    workload, dice = (
        make("queue", Params(NODES, replicate=2, retry_s=5, ttl_s=60)),
        random.Random(1),
    )
    drawn = [workload.next(dice, View("n1", 0.0)) for _ in range(50)]
    for add in (intent.value for intent in drawn if intent.f == "add"):
        assert (add["replicate"], add["retry"], add["ttl"]) == (2, 5, 60)


def test_at_most_once_means_retry_0_on_one_node() -> None:
    for intent in play("at-most-once")[1]:
        if intent.f == "add":
            assert (intent.value["retry"], intent.value["replicate"]) == (0, 1)


def test_ack_races_ack_elsewhere_twice_and_late() -> None:
    _, intents, followed = play("ack-race")
    acks = Counter(planned.intent.value["ids"][0] for planned in followed)
    assert max(acks.values()) == 2
    assert any(planned.after_s > 0.5 for planned in followed)
    known = {f"D-{step}" for step in range(600)}
    assert any(intent.f == "ack" and not known & set(intent.value["ids"]) for intent in intents)


def test_producers_and_consumers_of_a_federation_are_apart() -> None:
    _, intents, _ = play("federation")
    where = {f: {intent.node for intent in intents if intent.f == f} for f in ("add", "get")}
    assert where == {"add": {"n1", "n2"}, "get": {"n3", "n4", "n5"}}


@pytest.mark.parametrize(
    ("name", "fs"),
    [
        ("queue", {"add", "get", "ack"}),
        ("nack-working", {"add", "get", "ack", "nack", "working"}),
        ("purge-cancel", {"add", "get", "ack", "purge", "cancel", "deljob"}),
        ("dead-letter", {"add", "get", "ack", "nack", "revive"}),
        ("async-fastack", {"add", "get", "ack", "fastack"}),
        ("replication", {"add"}),
    ],
)
def test_each_does_what_it_is_there_for(name: str, fs: set[str]) -> None:
    _, intents, followed = play(name, 1500)
    assert {intent.f for intent in intents} | {planned.intent.f for planned in followed} == fs


def test_delays_and_short_lives_are_drawn_and_fit() -> None:
    adds = [i.value for i in play("delay-ttl")[1] if i.f == "add"]
    assert {add["delay"] for add in adds} >= {0, 1, 4}
    assert all(add["ttl"] == 0 or add["ttl"] > add["delay"] for add in adds)


def test_default_nemeses_belong_to_workloads() -> None:
    assert set(DEFAULT_NEMESIS) <= set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_demanded_is_counted(name: str) -> None:
    demanded = make(name, Params(NODES)).demands
    numbers = judge(run_of(lambda _: {"demands": demanded}))["stats"].numbers
    assert demanded
    assert set(demanded) <= set(numbers)


def test_a_fifo_is_added_and_asked_for_at_its_own_node_alone() -> None:
    _, intents, followed = play("fifo")
    for intent in intents:
        assert (intent.value.get("queues") or [intent.value["queue"]]) == [f"jx-{intent.node}"]
    assert {planned.intent.f for planned in followed} == {"ack"}


@pytest.mark.parametrize(
    ("name", "seconds", "has_faults", "wanted"),
    [
        ("queue", 60.0, True, {"deliveries_in_faults": 100, "acks_elsewhere": 20}),
        ("queue", 9.0, True, {"deliveries_in_faults": 20, "acks_elsewhere": 4}),
        ("queue", 60.0, False, {"acks_elsewhere": 20}),
        ("replication", 60.0, False, {"copies_counted": 50}),
        ("bigmem", 2.0, False, {"refused_full": 1, "acks_elsewhere": 1}),
    ],
)
def test_a_short_run_has_to_show_something(
    name: str, seconds: float, has_faults: bool, wanted: dict[str, int]
) -> None:
    options = Options(time_limit=seconds)
    assert demands(make(name, Params(NODES)), options, has_faults) == wanted
