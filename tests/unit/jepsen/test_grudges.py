"""Grudges: shapes that hold for every number of nodes and every throw of the dice."""

from __future__ import annotations

import random

import pytest

from jepsen.nemesis.grudges import GRUDGES, NODES_MIN, Links, between

SEEDS = range(20)


def nodes_of(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def draw(name: str, count: int, seed: int = 0) -> Links:
    return GRUDGES[name](nodes_of(count), random.Random(seed))


def heard_by(node: str, links: Links, count: int) -> set[str]:
    """Whom a node hears, itself included."""
    silent = {source for source, target in links if target == node}
    return set(nodes_of(count)) - silent


def components(links: Links, count: int) -> list[set[str]]:
    """Groups of nodes that hear one another, directly or through others."""
    left, found = set(nodes_of(count)), []
    while left:
        group, fresh = set(), {min(left)}
        while fresh:
            group |= fresh
            fresh = {
                other
                for node in fresh
                for other in left - group
                if (node, other) not in links and (other, node) not in links
            }
        found.append(group)
        left -= group
    return found


@pytest.mark.parametrize("name", GRUDGES)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 9])
def test_every_grudge_cuts_something_once_and_nobody_from_itself(name: str, count: int) -> None:
    if count < NODES_MIN.get(name, 2):
        pytest.skip("too few nodes")
    for seed in SEEDS:
        links = draw(name, count, seed)
        assert links
        assert len(set(links)) == len(links)
        assert all(a != b and {a, b} <= set(nodes_of(count)) for a, b in links)


@pytest.mark.parametrize("name", GRUDGES)
def test_the_same_dice_draw_the_same_grudge(name: str) -> None:
    assert draw(name, 5, 7) == draw(name, 5, 7)


def test_groups_hear_nobody_outside() -> None:
    assert set(between(["a"], ["b", "c"])) == {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("partition-halves", [2, 3]),
        ("partition-random-halves", [2, 3]),
        ("partition-one", [1, 4]),
        ("minority-third", [1, 4]),
        ("three-way", [1, 2, 2]),
        ("bridge", [5]),
        ("majority-ring", [5]),
        ("partition-link", [5]),
    ],
)
def test_five_nodes_fall_into_groups(name: str, sizes: list[int]) -> None:
    for seed in SEEDS:
        assert sorted(map(len, components(draw(name, 5, seed), 5))) == sizes


def test_halves_go_in_order() -> None:
    assert components(draw("partition-halves", 5, 3), 5) == [{"n1", "n2"}, {"n3", "n4", "n5"}]


def test_a_bridge_is_heard_by_all_and_joins_two_halves() -> None:
    for seed in SEEDS:
        links = draw("bridge", 5, seed)
        heard = {node: heard_by(node, links, 5) for node in nodes_of(5)}
        (middle,) = [node for node, others in heard.items() if len(others) == 5]
        assert all(len(heard[node]) == 3 for node in heard if node != middle)


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 9])
def test_a_ring_leaves_each_a_majority_and_no_two_the_same(count: int) -> None:
    for seed in SEEDS:
        heard = [
            frozenset(heard_by(n, draw("majority-ring", count, seed), count))
            for n in nodes_of(count)
        ]
        assert all(count // 2 + 1 <= len(each) < count for each in heard)
        assert len(set(heard)) == count


def test_one_way_never_cuts_both_ways() -> None:
    for seed in SEEDS:
        links = set(draw("one-way", 5, seed))
        assert links.isdisjoint({(b, a) for a, b in links})


def test_in_an_asymmetric_ring_each_hears_one_other() -> None:
    for seed in SEEDS:
        links = draw("asym-ring", 5, seed)
        assert all(len(heard_by(node, links, 5)) == 2 for node in nodes_of(5))
