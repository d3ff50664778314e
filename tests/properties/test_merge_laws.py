"""The merge rules are joins (S16): each law of each join, and how often the two sides really conflicted.

A law that never meets a conflict proves nothing, so every run counts how often both sides held something that the
other had to give up or take over, prints the share, and fails below 30 %.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import combinations
from typing import Any

import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cluster.nodeid import NodeId
from disque.core import copies, merge
from disque.core import messages as msg
from disque.core.job import Burials, Job, JobState, Reason
from tests.unit.core.builders import (
    DAY_MS,
    NOW,
    RETRY_MS,
    A,
    B,
    C,
    D,
    E,
    Node,
    job_id,
    reread,
    spec,
    view,
)

NODES = (A, B, C, D, E)
SHARE_MIN = 0.30
EXAMPLES_MIN = 30  # fewer say nothing about a share

small = st.integers(0, 3)
nodes = st.sampled_from(NODES[:3])


def per_node(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A mapping over three nodes, so that both sides speak of the same ones."""
    return st.fixed_dictionaries({A: values}, optional={B: values, C: values})


def differs_at_a_node(ours: Any, theirs: Any) -> bool:
    """Both sides say something about one node, and not the same."""
    return any(node in theirs and theirs[node] != ours[node] for node in ours)


def differs(ours: Any, theirs: Any) -> bool:
    """Two values of which one must give way."""
    return bool(ours != theirs)


def neither_has_all(ours: Any, theirs: Any) -> bool:
    """Each side knows an id that the other doesn't."""
    return not set(ours) <= set(theirs) and not set(theirs) <= set(ours)


@attrs.frozen
class Join:
    """One function of core/merge.py, values for it, and when two of them conflict."""

    name: str
    merge: Callable[[Any, Any], Any]
    values: st.SearchStrategy[Any]
    is_conflict: Callable[[Any, Any], bool]
    is_same: Callable[[Any, Any], bool] = operator.is_


SUBSETS = tuple([ids for size in (2, 3) for ids in combinations(NODES, size)])
sets = st.sampled_from(SUBSETS)  # each as likely: Hypothesis' own sets are mostly small and equal
instants = st.integers(NOW, NOW + 3)
burials = st.builds(
    Burials, count=st.integers(1, 2), reason=st.integers(0, 2), base=small, expires_at=instants
)

JOINS = (
    Join("holders H and told T (M2, M5)", merge.union, sets, neither_has_all),
    Join("counters and covered (M7, M9)", merge.maxima, per_node(small), differs_at_a_node),
    Join("claims (M3)", merge.claims, per_node(st.tuples(small, small, st.booleans())), differs_at_a_node),
    Join("leases (M8)", merge.leases, per_node(st.tuples(small, instants)), differs_at_a_node),
    Join("reason of done (M4)", merge.reason, st.none() | st.sampled_from(list(Reason)), differs),
    Join("burials (M13)", merge.burials, st.one_of(burials, burials, st.none()), differs),
    Join("expiry and DELAY (M11, M12)", merge.earlier, st.integers(NOW, NOW + 9), differs, operator.eq),
    Join("pause flags (M18)", merge.pause, st.tuples(small, nodes, small), differs, operator.eq),
)  # fmt: skip
each_join = pytest.mark.parametrize("join", JOINS, ids=lambda join: join.name)


class Tally:
    """Counts conflicts and says the share; a share that proves nothing is a failure."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.examples = 0

    def count(self, is_conflict: bool) -> None:
        """One example."""
        self.examples += 1
        self.conflicts += is_conflict
        event("both sides conflict" if is_conflict else "no conflict")

    def verdict(self, what: str) -> None:
        """Print and judge."""
        share = self.conflicts / max(self.examples, 1)
        print(f"{what}: both sides conflicted in {self.conflicts} of {self.examples} ({share:.0%})")
        if self.examples >= EXAMPLES_MIN:
            assert share >= SHARE_MIN, f"{what}: {share:.0%} conflicts, at least {SHARE_MIN:.0%}"


def for_all(join: Join, count: int, law: Callable[..., None]) -> None:
    """Run a law over `count` values of a join and judge how often the first two conflicted."""
    tally = Tally()

    @settings(max_examples=100, deadline=None)
    @given(st.tuples(*[join.values] * count))
    def holds(values: tuple[Any, ...]) -> None:
        tally.count(join.is_conflict(values[0], values[1]))
        law(*values)

    holds()
    tally.verdict(join.name)


@each_join
def test_merge_is_commutative(join: Join) -> None:
    def law(one: Any, two: Any) -> None:
        assert join.merge(one, two) == join.merge(two, one)

    for_all(join, 2, law)


@each_join
def test_merge_is_associative(join: Join) -> None:
    def law(one: Any, two: Any, three: Any) -> None:
        left = join.merge(join.merge(one, two), three)
        assert left == join.merge(one, join.merge(two, three))

    for_all(join, 3, law)


@each_join
def test_merge_is_idempotent_and_what_was_merged_says_nothing_new(join: Join) -> None:
    def law(one: Any, two: Any) -> None:
        both = join.merge(one, two)
        assert join.is_same(join.merge(one, one), one)
        assert join.is_same(join.merge(both, one), both)
        assert join.is_same(join.merge(both, two), both)

    for_all(join, 2, law)


@each_join
def test_our_very_object_comes_back_if_and_only_if_theirs_says_nothing_new(join: Join) -> None:
    def law(ours: Any, theirs: Any) -> None:
        before = repr(ours)
        joined = join.merge(ours, theirs)
        assert join.is_same(joined, ours) == (joined == ours)
        assert repr(ours) == before, "a fact was changed in place"

    for_all(join, 2, law)


@settings(max_examples=200, deadline=None)
@given(per_node(st.tuples(small, instants)), per_node(st.tuples(small, instants)))
def test_a_lease_is_news_only_by_a_stamp_never_by_an_end_that_shifted(
    ours: Any, theirs: Any
) -> None:
    def stamps(leases: Any) -> dict[Any, int]:
        return {node: stamp for node, (stamp, _) in leases.items()}

    is_new = stamps(merge.leases(ours, theirs)) != stamps(ours)
    assert merge.is_lease_news(ours, theirs) == is_new


# Copies of one job that tell each other what they know, through the codec

ID = job_id(1)
LATENCY_MAX_MS = 40  # of one frame; all of a run stay far below the gaps between lease ends
_LEASE_STEP_MS = 2_500

# A node's later stamp ends later, as in every real history (same RETRY, time goes forward); of one stamp two copies
# may know ends that differ by a latency. Stamps up to 2 are over.
lease_rows = st.tuples(st.integers(1, 5), st.integers(0, 100)).map(
    lambda row: (row[0], NOW + (row[0] - 2) * _LEASE_STEP_MS - row[1])
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A live copy with arbitrary facts."""
    return Job(
        id=ID,
        spec=spec(),
        ctime=1,
        body=b"body",
        state=JobState.ACTIVE,
        expires_at=NOW + draw(st.integers(DAY_MS - 2, DAY_MS)),
        holders=draw(sets),
        claims=draw(per_node(st.tuples(small, small, st.booleans()))),
        dispatches=draw(per_node(small)),
        nacks=draw(st.dictionaries(nodes, small)),
        leases=draw(per_node(lease_rows)),
        covered=draw(st.dictionaries(nodes, st.integers(0, 5))),
        burials=draw(
            st.one_of(
                st.none(), burials.map(lambda b: attrs.evolve(b, expires_at=b.expires_at + DAY_MS))
            )
        ),
        not_before=draw(st.sampled_from([0, NOW + 5_000, NOW + 9_000])),
    )


def said(node: Node, job: Job) -> msg.Facts:
    """Facts of a copy as a peer reads them."""
    (told,) = reread([msg.Told(job.id, copies.facts_of(node.state, job))])
    assert isinstance(told, msg.Told)
    return told.facts


def clone(job: Job) -> Job:
    """The same copy again; facts are never changed in place."""
    return attrs.evolve(job)


def timeless(job: Job, now_ms: int) -> tuple[object, ...]:
    """What is news if it changes: sets, counters, stamps and flags; of leases those that still run."""
    live = {node: stamp for node, (stamp, end) in job.leases.items() if end > now_ms}
    dead = (
        None if job.burials is None else (job.burials.count, job.burials.reason, job.burials.base)
    )
    return (
        job.holders,
        dict(job.claims),
        dict(job.dispatches),
        dict(job.nacks),
        live,
        dict(job.covered),
        dead,
    )


def times(job: Job, now_ms: int) -> list[int]:
    """All instants of a copy that still matter."""
    ends = [max(end, now_ms) for _, (_, end) in sorted(job.leases.items()) if end > now_ms]
    dead = 0 if job.burials is None else job.burials.expires_at
    return [job.expires_at, max(job.not_before, now_ms), dead, *ends]


def has_conflict(one: Job, two: Job) -> bool:
    """The copies disagree about a counter, a lease, a claim, or each knows a holder more."""
    return (
        neither_has_all(one.holders, two.holders)
        or differs_at_a_node(one.dispatches, two.dispatches)
        or differs_at_a_node(one.leases, two.leases)
        or differs_at_a_node(one.claims, two.claims)
    )


latencies = st.integers(0, LATENCY_MAX_MS)


def test_a_late_or_doubled_arrival_changes_nothing_but_its_latency() -> None:
    """M8 and M12 of S16, and M11."""
    tally = Tally()

    @settings(max_examples=100, deadline=None)
    @given(jobs(), jobs(), latencies, latencies)
    def holds(ours: Job, theirs: Job, late_ms: int, later_ms: int) -> None:
        tally.count(has_conflict(ours, theirs))
        node = Node()
        facts = said(node, theirs)
        prompt, late = clone(ours), clone(ours)
        copies.merge_facts(node.state, prompt, facts)
        node.state.now_ms += late_ms
        copies.merge_facts(node.state, late, facts)
        once = (timeless(late, NOW), times(late, NOW))
        node.state.now_ms += later_ms
        assert copies.merge_facts(node.state, late, facts) is False, "a doubled frame was news"
        assert (timeless(late, NOW), times(late, NOW)) == once, "a doubled frame changed something"
        assert timeless(late, NOW) == timeless(prompt, NOW)
        for of_late, of_prompt in zip(times(late, NOW), times(prompt, NOW), strict=True):
            assert of_prompt <= of_late <= of_prompt + late_ms

    holds()
    tally.verdict("late arrival")


@settings(max_examples=100, deadline=None)
@given(jobs(), jobs(), latencies)
def test_no_arrival_prolongs_a_life_a_delay_or_a_known_lease(
    ours: Job, theirs: Job, late_ms: int
) -> None:
    """S11: expiry never rises, no lease ends later than RETRY from now."""
    node = Node()
    facts = said(node, theirs)
    merged = clone(ours)
    node.state.now_ms += late_ms
    copies.merge_facts(node.state, merged, facts)
    assert merged.expires_at <= ours.expires_at
    assert merged.not_before <= ours.not_before
    for name, (stamp, end) in merged.leases.items():
        assert end <= node.state.now_ms + RETRY_MS
        if name in ours.leases and ours.leases[name][0] == stamp:
            assert end <= ours.leases[name][1]


talks = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), latencies), max_size=12)


def tell(node: Node, sender: Job, receiver: Job, late_ms: int) -> bool:
    """One frame from copy to copy, late_ms under way; True if it was news."""
    facts = said(node, sender)
    node.state.now_ms += late_ms
    return copies.merge_facts(node.state, receiver, facts)


def test_copies_that_exchange_facts_in_any_order_any_number_of_times_end_equal() -> None:
    """Q2, with the NACKs that cover leases (M9) among the facts."""
    tally = Tally()

    @settings(max_examples=100, deadline=None)
    @given(st.lists(jobs(), min_size=2, max_size=3), talks)
    def holds(of_nodes: list[Job], order: list[tuple[int, int, int]]) -> None:
        tally.count(has_conflict(of_nodes[0], of_nodes[1]))
        node = Node()
        for sender, receiver, late_ms in order:
            one, two = of_nodes[sender % len(of_nodes)], of_nodes[receiver % len(of_nodes)]
            if one is not two:
                tell(node, one, two, late_ms)
        for _ in range(10):
            if not any([tell(node, a, b, 0) for a in of_nodes for b in of_nodes if a is not b]):
                break
        else:
            raise AssertionError("facts still are news after ten rounds")
        now = node.state.now_ms
        shift = sum(late_ms for _, _, late_ms in order)
        first = of_nodes[0]
        for other in of_nodes[1:]:
            assert timeless(other, now) == timeless(first, now)
            for mine, theirs in zip(times(first, now), times(other, now), strict=True):
                assert abs(mine - theirs) <= shift

    holds()
    tally.verdict("convergence")


@settings(max_examples=100, deadline=None)
@given(jobs(), jobs())
def test_an_answer_is_given_if_and_only_if_it_is_news_for_the_sender(
    ours: Job, theirs: Job
) -> None:
    """M22: has_news_for promises exactly what the sender's own merge will say; claims alone are no news."""
    node = Node()
    facts = said(node, theirs)
    copies.merge_facts(node.state, ours, facts)
    # a sender without leases of its own: those are never news for it
    is_told = copies.has_news_for(node.state, NodeId("f" * 40), ours, facts)
    before = timeless(theirs, node.now_ms)
    # Of leases that are over a sender says nothing, so it may be told again what it had forgotten to mention.
    theirs.leases = {name: lease for name, lease in theirs.leases.items() if lease[1] > node.now_ms}
    is_news = copies.merge_facts(node.state, theirs, said(node, ours))
    assert is_told == is_news
    if not is_news:
        after = timeless(theirs, node.now_ms)
        assert (after[0], *after[2:]) == (before[0], *before[2:])


def test_a_nodes_own_lease_is_no_news_for_it() -> None:
    """M22: told late, it goes on elsewhere after its end; two that knew each other's so told them without end."""
    node = Node(view(up=(B,)))
    ours = attrs.evolve(_plain_job(), leases={B: (9, NOW + 9_000)})
    facts = said(node, _plain_job())
    assert not copies.has_news_for(node.state, B, ours, facts)
    assert copies.has_news_for(node.state, C, ours, facts)


def test_a_nack_covers_the_leases_known_until_then_and_not_those_that_came_with_it() -> None:
    """M9, both ways round: the same frames in either order end the same."""
    node = Node(view(up=(B,)))
    plain = attrs.evolve(_plain_job(), leases={A: (5, NOW + 5_000)})
    nack_of_b = attrs.evolve(
        _plain_job(), nacks={B: 1}, covered={A: 5}, leases={B: (9, NOW + 9_000)}
    )
    merged = clone(plain)
    copies.merge_facts(node.state, merged, said(node, nack_of_b))
    assert merged.covered == {A: 5}
    assert merged.lease_end() == NOW + 9_000
    other = clone(nack_of_b)
    copies.merge_facts(node.state, other, said(node, plain))
    assert timeless(other, NOW) == timeless(merged, NOW)


def test_news_of_a_nack_covers_leases_that_the_nacker_never_knew() -> None:
    """M9: every stamp the receiver knows, whatever the sender knew; told again, it covers nothing more."""
    node = Node(view(up=(B,)))
    leased = attrs.evolve(_plain_job(), leases={A: (5, NOW + 5_000), C: (6, NOW + 7_000)})
    nack = said(node, attrs.evolve(_plain_job(), nacks={B: 1}))
    assert copies.merge_facts(node.state, leased, nack)
    assert (leased.covered, leased.lease_end()) == ({A: 5, C: 6}, 0)
    leased.leases = {**leased.leases, A: (9, NOW + 9_000)}
    assert not copies.merge_facts(node.state, leased, nack)
    assert leased.lease_end() == NOW + 9_000


def _plain_job() -> Job:
    return Job(
        id=ID,
        spec=spec(),
        ctime=1,
        body=b"",
        state=JobState.ACTIVE,
        expires_at=NOW + DAY_MS,
        holders=(A, B),
    )
