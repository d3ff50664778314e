"""Grudges: which directed links fall silent. Pure functions of the nodes and the dice.

A link is (who says, who doesn't hear). Names and shapes are Jepsen's; the rings are its `majorities-ring` in the exact
form that exists up to five nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Link = tuple[str, str]
Links = tuple[Link, ...]
Nodes = Sequence[str]
Grudge = Callable[[Nodes, random.Random], Links]


def between(*groups: Nodes) -> Links:
    """Nobody hears outside of their own group."""
    return tuple(
        (source, target)
        for mine in groups
        for other in groups
        if other is not mine
        for source in mine
        for target in other
    )


def both_ways(pairs: Sequence[Link]) -> Links:
    """These links, in both directions."""
    return tuple(link for a, b in pairs for link in ((a, b), (b, a)))


def halves(nodes: Nodes, dice: random.Random) -> Links:
    """The smaller half against the rest, in order."""
    middle = len(nodes) // 2
    return between(nodes[:middle], nodes[middle:])


def random_halves(nodes: Nodes, dice: random.Random) -> Links:
    """The smaller half against the rest, shuffled."""
    return halves(shuffled(nodes, dice), dice)


def isolate_one(nodes: Nodes, dice: random.Random) -> Links:
    """One against the rest."""
    one, *rest = shuffled(nodes, dice)
    return between([one], rest)


def minority_third(nodes: Nodes, dice: random.Random) -> Links:
    """Fewer than a third, but at least one, against the rest."""
    mixed = shuffled(nodes, dice)
    few = max(1, (len(nodes) - 1) // 3)
    return between(mixed[:few], mixed[few:])


def bridge(nodes: Nodes, dice: random.Random) -> Links:
    """Two halves, and one node that both hear."""
    _, *rest = shuffled(nodes, dice)
    return halves(rest, dice)


def majority_ring(nodes: Nodes, dice: random.Random) -> Links:
    """Every node hears a majority, no two the same: a ring in which each hears its nearest on both sides.

    Where a majority needs an odd number of others, an even ring adds each one's opposite, an odd one a second pair.
    """
    mixed, count = shuffled(nodes, dice), len(nodes)
    others = count // 2
    hears_opposite = count % 2 == 0 and others % 2 == 1
    reach = (others - 1) // 2 if hears_opposite else (others + 1) // 2
    cut = []
    for i in range(count):
        for j in range(i + 1, count):
            distance = min(j - i, count - (j - i))
            if distance > reach and not (hears_opposite and distance == others):
                cut.append((mixed[i], mixed[j]))
    return both_ways(cut)


def three_way(nodes: Nodes, dice: random.Random) -> Links:
    """Three groups, as even as they can be."""
    mixed = shuffled(nodes, dice)
    return between(mixed[0::3], mixed[1::3], mixed[2::3])


def one_way(nodes: Nodes, dice: random.Random) -> Links:
    """The second half hears nothing of the first, which still hears everything: done, but the sender can't know."""
    mixed = shuffled(nodes, dice)
    middle = dice.randint(1, len(nodes) - 1)
    return tuple((source, target) for source in mixed[:middle] for target in mixed[middle:])


def asym_ring(nodes: Nodes, dice: random.Random) -> Links:
    """Each hears its next in the ring only."""
    mixed, count = shuffled(nodes, dice), len(nodes)
    heard = {(mixed[(i + 1) % count], mixed[i]) for i in range(count)}
    return tuple((a, b) for a in mixed for b in mixed if a != b and (a, b) not in heard)


def one_link(nodes: Nodes, dice: random.Random) -> Links:
    """One pair doesn't hear each other; all others hear both."""
    a, b, *_ = shuffled(nodes, dice)
    return both_ways([(a, b)])


def shuffled(nodes: Nodes, dice: random.Random) -> list[str]:
    """The nodes in drawn order."""
    return dice.sample(list(nodes), len(nodes))


GRUDGES: Final[Mapping[str, Grudge]] = {
    "partition-halves": halves,
    "partition-random-halves": random_halves,
    "partition-one": isolate_one,
    "partition-link": one_link,
    "minority-third": minority_third,
    "bridge": bridge,
    "majority-ring": majority_ring,
    "three-way": three_way,
    "one-way": one_way,
    "asym-ring": asym_ring,
}
NODES_MIN: Final[Mapping[str, int]] = {
    "bridge": 3,
    "majority-ring": 4,
    "three-way": 3,
    "asym-ring": 3,
    "partition-link": 3,
}
