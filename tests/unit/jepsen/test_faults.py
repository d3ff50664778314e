"""What checkers ask about faults: calm, reach, wipes, sides."""

from __future__ import annotations

from jepsen.checkers.bounds import Bounds
from jepsen.checkers.faults import FOREVER, Faults, Windows
from tests.unit.jepsen.telling import MS, NODES, Tale


def faults_of(tale: Tale, **meta: object) -> Faults:
    run = tale.run(**meta)
    return Faults(run.meta, run.ops, Bounds.of(run.meta))


def test_windows_merge_and_answer_at_their_edges() -> None:
    windows = Windows([(10, 20), (15, 30), (50, 60)])
    assert (windows.starts, windows.ends) == ([10, 50], [30, 60])
    assert [windows.touch(*span) for span in ((0, 9), (0, 10), (30, 31), (31, 49), (12, 13))] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert [windows.first_after(at) for at in (5, 10, 40, 55)] == [5, 30, 40, 60]


def test_calm_begins_only_if_it_lasts() -> None:
    tale = Tale()
    tale.cut(10_000, 11_000, ["n1"])
    # 4 s between the two: less than the bound of 5 s, so no calm in between
    tale.cut(15_000, 16_000, ["n1"])
    faults = faults_of(tale)
    assert faults.calm_from(1_000 * MS) == 1_000 * MS
    assert faults.calm_from(10_500 * MS) == 16_000 * MS
    # too short before the first fault, too
    assert faults.calm_from(6_000 * MS) == 16_000 * MS
    assert faults.is_calm(11_500 * MS, 14_900 * MS)


def test_fault_without_stop_never_ends() -> None:
    tale = Tale()
    tale.cut(10_000, None, ["n1"])
    faults = faults_of(tale)
    assert faults.calm_from(12_000 * MS) == FOREVER
    assert faults.healed_at == FOREVER


def test_who_was_not_there_before_its_join_counts_from_then_on() -> None:
    tale = Tale(nodes=("n1", "n2", "n3"))
    tale.nemesis("join", 20_000, {"target": "n3", "proven": True})
    tale.nemesis("leave", 30_000, {"target": "n2", "proven": True})
    tale.nemesis("join", 40_000, {"target": "n2", "proven": True})
    faults = faults_of(tale)
    before, after = (10_000 * MS, 11_000 * MS), (60_000 * MS, 61_000 * MS)
    assert [faults.reach_least("n1", *span) for span in (before, after)] == [2, 3]
    assert [faults.reach_most("n1", *span) for span in (before, after)] == [2, 3]


def test_lag_is_no_calm() -> None:
    faults = faults_of(Tale(), lags=((5 * MS, 6 * MS),))
    assert not faults.is_calm(0, 5 * MS)
    assert not len(faults.windows)


def test_reach_of_a_cut_at_its_best_and_worst() -> None:
    tale = Tale()
    tale.cut(10_000, 20_000, ["n1", "n2"])
    faults = faults_of(tale)
    during = (12_000 * MS, 13_000 * MS)
    assert [faults.reach_most(node, *during) for node in NODES] == [2, 2, 3, 3, 3]
    # sure only once it is made, and not when it is being mended
    assert faults.reach_most("n1", 10_000 * MS, 10_010 * MS) == 5
    assert faults.reach_least("n1", 10_000 * MS, 10_010 * MS) == 2
    # views lag behind for 3 s
    assert faults.reach_least("n1", 22_000 * MS, 22_100 * MS) == 2
    assert faults.reach_least("n1", 24_000 * MS, 24_100 * MS) == 5


def test_claims_travel_by_others_but_not_by_dead_nodes() -> None:
    tale = Tale()
    tale.fault(10_000, 20_000, "one-way", links=[["n1", "n2"]])
    tale.kill(10_000, 20_000, "n5")
    faults = faults_of(tale)
    at = (12_000 * MS, 12_000 * MS)
    assert [faults.reach_most(node, *at) for node in NODES] == [4, 4, 4, 4, 1]
    assert [faults.reach_least(node, *at) for node in NODES] == [3, 3, 4, 4, 1]


def test_who_was_heard_before_it_died_counts_with_who_came_after() -> None:
    tale = Tale(nodes=("n1", "n2", "n3"))
    tale.kill(10_000, 14_000, "n2")
    tale.kill(5_000, 12_000, "n3")
    faults = faults_of(tale)
    assert faults.reach_most("n1", 9_000 * MS, 11_000 * MS) == 2, "n3 is dead all the time"
    assert faults.reach_most("n1", 9_000 * MS, 13_000 * MS) == 3, "never all three at once"


def test_one_way_street_out_of_a_group_is_no_reach() -> None:
    tale = Tale()
    tale.fault(10_000, 20_000, "one-way", links=[[a, "n1"] for a in NODES[1:]])
    assert [faults_of(tale).reach_most(n, 12_000 * MS, 12_000 * MS) for n in NODES] == [
        1,
        4,
        4,
        4,
        4,
    ]


def test_cuts_hold_messages_back_and_kills_do_not() -> None:
    def held(kind: str, begun: int, seen: int, arrived: int) -> bool:
        tale = Tale()
        tale.fault(10_000, 20_000, kind, nodes=["n1"])
        return faults_of(tale).may_hold_back(begun * MS, seen * MS, arrived * MS)

    assert held("partition-halves", 9_000, 11_000, 24_000)
    assert not held("kill", 9_000, 11_000, 24_000)
    # made after its end, seen before its beginning, come too late
    assert not held("pause", 20_100, 21_000, 24_000)
    assert not held("pause", 9_000, 9_900, 24_000)
    assert not held("pause", 9_000, 11_000, 25_100)


def test_unproven_and_flapping_cuts_are_never_sure() -> None:
    for given in ({"proven": False}, {"kind": "flapping"}):
        tale = Tale()
        tale.cut(10_000, 20_000, ["n1"], **given)
        faults = faults_of(tale)
        assert faults.reach_most("n1", 12_000 * MS, 12_000 * MS) == 5
        assert faults.reach_least("n1", 12_000 * MS, 12_000 * MS) == 1


def test_kill_wipes_without_a_log_only_and_what_is_said_wins() -> None:
    at = 15_000 * MS
    silent = Tale()
    silent.fault(10_000, 20_000, "kill", nodes=["n1"])
    assert faults_of(silent).wiped_since(0, at) == ["n1"]
    assert faults_of(silent, log=True).wiped_since(0, at) == []
    said = Tale()
    said.kill(10_000, 20_000, "n1", wipes=False)
    assert faults_of(said).wiped_since(0, at) == []


def test_restart_in_turn_wipes_at_any_time_within() -> None:
    tale = Tale()
    tale.fault(10_000, 20_000, "rolling-restart", nodes=list(NODES), wipes=list(NODES))
    assert faults_of(tale).wiped_since(19_000 * MS, 19_000 * MS) == list(NODES)
    killed = Tale()
    killed.kill(10_000, 20_000, "n1")
    assert faults_of(killed).wiped_since(19_000 * MS, 19_000 * MS) == []


def test_abandoned_nodes_count_as_wiped() -> None:
    assert faults_of(Tale(), abandoned=("n4",)).wiped_since(0, 0) == ["n4"]


def test_sides_of_faults() -> None:
    def sides(kind: str, links: list[list[str]], nodes: list[str]) -> int:
        tale = Tale()
        tale.fault(10_000, 20_000, kind, links=links, nodes=nodes)
        return faults_of(tale).sides(12_000 * MS, 13_000 * MS)

    halves = [[a, b] for a in NODES for b in NODES if (a in NODES[:2]) != (b in NODES[:2])]
    full = [[a, b] for a in NODES for b in NODES if a != b]
    assert sides("partition-halves", halves, []) == 2
    assert sides("partition-all", full, []) == 5
    assert sides("kill", [], ["n1"]) == 2
    assert sides("delay", [], []) == 5
    assert faults_of(Tale()).sides(0, FOREVER) == 1


def test_two_faults_make_as_many_sides_as_nodes() -> None:
    tale = Tale()
    tale.cut(10_000, 20_000, ["n1"])
    tale.cut(21_000, 22_000, ["n2"])
    assert faults_of(tale).sides(12_000 * MS, 21_500 * MS) == 5
    assert faults_of(tale).sides(12_000 * MS, 13_500 * MS) == 2


def test_outsiders_leave_and_come_back() -> None:
    tale = Tale()
    for at, f in ((1, "leave"), (2, "join"), (3, "leave"), (4, "join")):
        tale.nemesis(f, at * 1_000, {"target": "n2", "proven": True})
    faults = faults_of(tale)
    seen = [faults.outsiders(at * MS) for at in (500, 1_500, 2_500, 3_500, 4_500)]
    assert seen == [set(), {"n2"}, set(), {"n2"}, set()]


def test_bounds_are_derived_published_or_set() -> None:
    assert (Bounds.of(Tale().run().meta).views_ms, Bounds.of(Tale().run().meta).facts_ms) == (
        3_000,
        5_000,
    )
    tale = Tale()
    tale.look(1, bounds={node: {"node_timeout_ms": 2_000, "color": 1} for node in NODES})
    run = tale.run()
    assert Bounds.of(run.meta, run.ops).facts_ms == 7_000
    assert Bounds.of(tale.run(bounds={"facts_ms": 100}).meta, run.ops).facts_ms == 100
