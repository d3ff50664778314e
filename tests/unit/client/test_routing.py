"""Routes: who is asked next."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from disque.client.commands import Home
from disque.client.results import Hello, NodeInfo
from disque.client.routing import (
    AVOID_FIRST_S,
    AVOID_MOST_S,
    AVOID_REFUSING_S,
    DRIFT_WINDOW,
    Route,
    Routes,
)
from disque.client.url import Address
from tests.unit.client.world import job_id

A, B, C = Address("a"), Address("b"), Address("c")
IDS = {A: "a" * 40, B: "b" * 40, C: "c" * 40}


def told(**priorities: int) -> Hello:
    """HELLO's answer by a, of nodes named by a letter."""
    nodes = [NodeInfo(name * 40, name, 7711, priority) for name, priority in priorities.items()]
    return Hello("a" * 40, tuple(nodes))


def routes_to(*seeds: Address, seed: int = 1) -> Routes:
    return Routes(seeds, random.Random(seed))


def order(routes: Routes, now: float = 0.0, home: Home = "produce") -> list[Address]:
    return [route.address for route in routes.order(home, now)]


def route(routes: Routes, address: Address) -> Route:
    return next(each for each in routes.order("produce", 0.0) if each.address == address)


def test_chance_spreads_clients_over_the_nodes() -> None:
    firsts = {order(routes_to(A, B, C, seed=seed))[0] for seed in range(30)}
    assert firsts == {A, B, C}


def test_a_node_that_served_stays_the_home() -> None:
    routes = routes_to(A, B, C)
    routes.served(route(routes, B), "produce", 0.0)
    routes.served(route(routes, C), "produce", 0.0)
    assert {order(routes)[0] for _ in range(20)} == {B}


def test_producing_and_consuming_have_homes_of_their_own() -> None:
    routes = routes_to(A, B)
    routes.served(route(routes, A), "produce", 0.0)
    routes.served(route(routes, B), "consume", 0.0)
    assert order(routes)[0] == A
    assert order(routes, home="consume")[0] == B


def test_a_lost_node_is_avoided_for_a_while_that_doubles_up_to_a_limit() -> None:
    routes = routes_to(A, B)
    lost = route(routes, A)
    waits = []
    for _ in range(12):
        routes.lost(lost, 100.0)
        waits.append(lost.avoid_until - 100.0)
    assert waits[:3] == [AVOID_FIRST_S, 2 * AVOID_FIRST_S, 4 * AVOID_FIRST_S]
    assert waits[-1] == AVOID_MOST_S
    assert order(routes, 100.0) == [B, A]
    routes.served(lost, "produce", 100.0)
    assert (lost.failures, lost.avoid_until) == (0, 0.0)


def test_the_home_is_given_up_only_for_one_that_serves() -> None:
    routes = routes_to(A, B)
    routes.served(route(routes, A), "produce", 0.0)
    routes.lost(route(routes, A), 10.0)
    assert order(routes, 10.0) == [B, A]
    assert order(routes, 10.0 + AVOID_FIRST_S)[0] == A
    routes.served(route(routes, B), "produce", 10.0)
    assert order(routes, 10.0 + AVOID_FIRST_S)[0] == B


def test_a_leaving_node_comes_last_till_it_says_otherwise() -> None:
    routes = routes_to(A, B)
    routes.served(route(routes, A), "produce", 0.0)
    routes.refused(route(routes, A), "LEAVING", 0.0)
    assert order(routes, 1e6) == [B, A]
    routes.learn(route(routes, A), told(a=1, b=1))
    assert order(routes, 1e6)[0] == A


def test_a_node_that_cannot_serve_now_is_avoided_shortly_and_one_queue_that_is_paused_is_no_reason() -> (
    None
):
    for code in ("LOADING", "OOM", "MISCONF"):
        routes = routes_to(A, B)
        routes.served(route(routes, A), "produce", 0.0)
        routes.refused(route(routes, A), code, 10.0)
        assert order(routes, 10.0) == [B, A]
        assert order(routes, 10.0 + AVOID_REFUSING_S)[0] == A
    routes.refused(route(routes, A), "PAUSED", 20.0)
    assert order(routes, 20.0)[0] == A


def test_hello_brings_nodes_and_those_it_does_not_know_are_dropped() -> None:
    routes = routes_to(A)
    routes.learn(route(routes, A), told(a=1, b=1, c=5))
    assert set(order(routes)) == {A, B, C}
    assert order(routes)[-1] == C
    routes.learn(route(routes, A), told(a=1, b=1))
    assert set(order(routes)) == {A, B}


def test_a_node_that_the_caller_named_stays_though_nobody_knows_it() -> None:
    routes = routes_to(A, B)
    routes.learn(route(routes, A), told(a=1))
    assert set(order(routes)) == {A, B}


def test_a_named_node_keeps_its_name_and_is_not_listed_twice_once_its_id_is_known() -> None:
    name = Address("localhost", 7712)
    routes = routes_to(A, name)
    route(routes, name).id = "b" * 40
    routes.learn(route(routes, A), told(a=1, b=10))
    assert set(order(routes)) == {A, name}
    assert route(routes, name).priority == 10


def test_a_learnt_node_that_moved_is_asked_at_its_new_address() -> None:
    routes = routes_to(A)
    routes.learn(route(routes, A), told(a=1, b=1))
    moved = Hello("a" * 40, (NodeInfo("a" * 40, "a", 7711, 1), NodeInfo("b" * 40, "b2", 7, 1)))
    routes.learn(route(routes, A), moved)
    assert set(order(routes)) == {A, Address("b2", 7)}


def test_a_wiped_node_is_known_by_its_new_id_although_the_old_one_is_still_told() -> None:
    routes = routes_to(A)
    old = NodeInfo("0" * 40, "a", 7711, 100)
    routes.learn(route(routes, A), Hello("a" * 40, (old, NodeInfo("a" * 40, "a", 7711, 1))))
    assert [(each.id, each.priority) for each in routes.order("produce", 0.0)] == [("a" * 40, 1)]


def drifting() -> Routes:
    routes = routes_to(A)
    routes.learn(route(routes, A), told(a=1, b=1, c=1))
    routes.served(route(routes, A), "consume", 0.0)
    return routes


def jobs(**counts: int) -> list[str]:
    return [job_id(name * 8) for name, count in counts.items() for _ in range(count)]


def test_a_consumer_moves_to_the_node_that_makes_most_of_its_jobs() -> None:
    routes = drifting()
    routes.note_jobs(jobs(b=DRIFT_WINDOW - 1), 0.0)
    assert order(routes, home="consume")[0] == A
    routes.note_jobs(jobs(b=1), 0.0)
    assert order(routes, home="consume")[0] == B


def test_a_consumer_stays_where_no_node_clearly_makes_more() -> None:
    half = DRIFT_WINDOW // 2
    for counts in (
        {"a": half, "b": half},
        {"a": 10, "b": half, "c": half - 10},
        {"a": DRIFT_WINDOW},
    ):
        routes = drifting()
        routes.note_jobs(jobs(**counts), 0.0)
        assert order(routes, home="consume")[0] == A


def test_a_consumer_does_not_move_to_a_node_that_is_lost_leaves_or_is_unknown() -> None:
    lost, leaving, unknown = drifting(), drifting(), drifting()
    lost.lost(route(lost, B), 0.0)
    leaving.refused(route(leaving, B), "LEAVING", 0.0)
    for routes in (lost, leaving):
        routes.note_jobs(jobs(b=DRIFT_WINDOW), 0.0)
        assert order(routes, home="consume")[0] == A
    unknown.note_jobs(jobs(f=DRIFT_WINDOW), 0.0)
    assert order(unknown, home="consume")[0] == A


def test_old_jobs_do_not_count_for_ever() -> None:
    routes = drifting()
    routes.note_jobs(jobs(a=DRIFT_WINDOW), 0.0)
    routes.note_jobs(jobs(b=DRIFT_WINDOW), 0.0)
    assert order(routes, home="consume")[0] == B


def test_a_consumer_that_gets_nothing_goes_to_another_good_node_a_producer_stays() -> None:
    routes = drifting()
    routes.served(route(routes, A), "produce", 0.0)
    routes.wander(0.0)
    assert order(routes)[0] == A
    assert order(routes, home="consume")[0] in (B, C)
    routes.learn(route(routes, A), told(a=1, b=10, c=100))
    alone = drifting()
    alone.learn(route(alone, A), told(a=1, b=10, c=100))
    alone.wander(0.0)
    assert order(alone, home="consume")[0] == A


NAMES = st.sampled_from("abcdef")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("lost"), NAMES),
        st.tuples(st.just("served"), NAMES),
        st.tuples(st.just("LEAVING"), NAMES),
        st.tuples(st.just("OOM"), NAMES),
        st.tuples(st.just("learn"), st.frozensets(NAMES)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_whatever_happens_every_node_is_in_the_order_once_and_those_avoided_are_last(
    events: list[tuple[str, str | frozenset[str]]],
) -> None:
    routes = routes_to(A, B)
    now = 0.0
    for what, whom in events:
        now += 0.3
        by_name = {each.address.host: each for each in routes.order("consume", now)}
        if what == "learn":
            names = sorted({*whom, "a"})
            routes.learn(by_name["a"], told(**dict.fromkeys(names, 1)))
        elif isinstance(whom, str) and whom in by_name:
            if what == "lost":
                routes.lost(by_name[whom], now)
            elif what == "served":
                routes.served(by_name[whom], "consume", now)
            else:
                routes.refused(by_name[whom], what, now)
        found = routes.order("consume", now)
        assert {A, B} <= {each.address for each in found}
        assert len({each.address for each in found}) == len(found) == len(routes.addresses)
        avoided = [each.avoid_until > now for each in found]
        assert avoided == sorted(avoided)
