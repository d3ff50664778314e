"""One anomaly, anywhere in a valid random history, gives exactly its finding; and none gives none."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen.checkers import verdict
from jepsen.history import FAIL, INFO
from tests.unit.jepsen.telling import NODES, Tale, found, judge

PLANTED = 10_000  # the value that the anomaly is about
END = 70_000

# One valid job: (tale, value, from ms on, a node, another)
Shape = Callable[[Tale, int, int, str, str], None]
# One anomaly, at a time when all has been calm for long: the same, with the value PLANTED
Anomaly = Callable[[Tale, int, str, str], None]


def plain(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1)
    tale.get([v], at + 20, other)
    tale.ack([v], at + 40, node)


def retried(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1)
    tale.get([v], at + 20, node)
    tale.get([v], at + 2_030, other)
    tale.ack([v], at + 2_050, other)


def nacked(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1)
    tale.get([v], at + 20, node)
    tale.order("nack", [v], at + 40, other)
    tale.get([v], at + 60, other)
    tale.ack([v], at + 80, node)


def worked_on(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1)
    tale.get([v], at + 20, other)
    tale.order("working", [v], at + 1_500, other)
    tale.ack([v], at + 3_000, other)


def once(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, retry=0, replicate=1)
    tale.get([v], at + 20, other)
    tale.ack([v], at + 40, other)


def delayed(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1, delay=1)
    tale.get([v], at + 1_010, other)
    tale.ack([v], at + 1_030, node)


def buried(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1, limit=1, dead="dead")
    tale.get([v], at + 20, node)
    tale.order("nack", [v], at + 40, node)
    tale.get([v], at + 60, other, queue="dead")
    tale.ack([v], at + 80, other)


def cancelled(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=1)
    tale.order("cancel", [v], at + 20, other)


def refused(tale: Tale, v: int, at: int, node: str, other: str) -> None:
    tale.add(v, at, node, replicate=9, outcome=FAIL, error="ERR replicate")


SHAPES: list[Shape] = [
    plain,
    retried,
    nacked,
    worked_on,
    once,
    delayed,
    buried,
    cancelled,
    refused,
]


def lost(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1)


def unfinished(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1)
    tale.get([PLANTED], at + 10, other)


def dropped(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1, retry=0)


def twice(tale: Tale, at: int, node: str, other: str) -> None:
    once(tale, PLANTED, at, node, other)
    tale.get([PLANTED], at + 30, node)


def phantom(tale: Tale, at: int, node: str, other: str) -> None:
    refused(tale, PLANTED, at, node, other)
    tale.get([PLANTED], at + 10, other)


def late(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1)
    tale.ack([PLANTED], at + 20, other)
    tale.get([PLANTED], at + 6_000, node)


def resurrected(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1)
    tale.ack([PLANTED], at + 20, other)
    tale.look(at + 100)
    tale.look(at + 200)
    tale.get([PLANTED], at + 300, node)


def early_again(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1)
    tale.get([PLANTED], at + 20, node)
    tale.get([PLANTED], at + 1_020, other)
    tale.ack([PLANTED], at + 1_040, other)


def before_delay(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1, delay=1)
    tale.get([PLANTED], at + 500, other)
    tale.ack([PLANTED], at + 520, other)


def expired(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1, ttl=1)
    tale.get([PLANTED], at + 4_500, other)
    tale.ack([PLANTED], at + 4_600, other)


def over_limit(tale: Tale, at: int, node: str, other: str) -> None:
    tale.add(PLANTED, at, node, replicate=1, limit=1, dead="dead")
    tale.get([PLANTED], at + 20, node)
    tale.get([PLANTED], at + 2_100, other)
    tale.ack([PLANTED], at + 2_200, other)


def two_letters(tale: Tale, at: int, node: str, other: str) -> None:
    buried(tale, PLANTED, at, node, other)
    tale.get([PLANTED], at + 70, node, queue="dead")


def repeated_id(tale: Tale, at: int, node: str, other: str) -> None:
    plain(tale, PLANTED, at, node, other)
    tale.add(PLANTED + 1, at + 100, node, job=tale.ids[PLANTED], replicate=1, outcome="ok", retry=0)
    tale.get([], at + 120, other, outcome=INFO, error="eof")


ANOMALIES: list[tuple[Anomaly, str, str]] = [
    (lost, "loss", "lost"),
    (unfinished, "loss", "unfinished"),
    (dropped, "at-most-once", "dropped"),
    (twice, "at-most-once", "delivered-twice"),
    (phantom, "accounting", "phantom"),
    (late, "ack-respected", "delivered-late"),
    (resurrected, "no-resurrection", "resurrected"),
    (early_again, "retry-lease", "early-redelivery"),
    (before_delay, "delay", "early"),
    (expired, "ttl", "delivered-expired"),
    (over_limit, "dead-letter", "over-limit"),
    (two_letters, "dead-letter", "two-letters"),
    (repeated_id, "unique-ids", "repeated"),
]

pairs_of_nodes = st.permutations(NODES).map(lambda nodes: (nodes[0], nodes[1]))
jobs = st.lists(
    st.tuples(st.sampled_from(SHAPES), st.integers(0, 60_000), pairs_of_nodes), max_size=30
)
sides = st.sets(st.sampled_from(NODES), min_size=1, max_size=4)
cuts = st.lists(st.tuples(st.integers(200, 3_000), sides), max_size=3)


def valid(
    background: list[tuple[Shape, int, tuple[str, str]]], faults: list[tuple[int, set[str]]]
) -> Tale:
    """Jobs of any shape at any time, cuts within the first 12 s, everything empty in the end."""
    tale = Tale()
    for v, (shape, at, (node, other)) in enumerate(background):
        shape(tale, v, at, node, other)
    for number, (length, side) in enumerate(faults):
        tale.cut(4_000 * number, 4_000 * number + length, sorted(side))
    tale.end(END)
    return tale


@settings(deadline=None)
@given(jobs, cuts)
def test_valid_history_has_no_finding(
    background: list[tuple[Shape, int, tuple[str, str]]], faults: list[tuple[int, set[str]]]
) -> None:
    assert found(valid(background, faults).run()) == set()


@settings(deadline=None)
@given(jobs, cuts, st.sampled_from(ANOMALIES), st.integers(20_000, 50_000), pairs_of_nodes)
def test_one_anomaly_gives_its_finding_alone(
    background: list[tuple[Shape, int, tuple[str, str]]],
    faults: list[tuple[int, set[str]]],
    anomaly: tuple[Anomaly, str, str],
    at: int,
    nodes: tuple[str, str],
) -> None:
    plant, checker, kind = anomaly
    tale = valid(background, faults)
    plant(tale, at, *nodes)
    results = judge(tale.run())
    findings = [each for result in results.values() for each in result.findings]
    assert [(each.checker, each.kind) for each in findings] == [(checker, kind)]
    assert findings[0].v in (PLANTED, PLANTED + 1)
    assert verdict(results.values()) is False
