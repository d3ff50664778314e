"""The EDN view: what Jepsen's checkers read, event by event."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen import edn
from jepsen.history import FAIL, INFO
from tests.unit.jepsen.telling import Tale


def view(tale: Tale) -> list[str]:
    return list(edn.lines(tale.run().ops))


def test_add_is_enqueue_and_names_its_job() -> None:
    tale = Tale()
    tale.add(7, 1, "n4", job="D-1", process=3)
    assert view(tale) == [
        '{:index 0, :time 1000000, :process 3, :type :invoke, :f :enqueue, :value 7, :node "n4"}',
        '{:index 1, :time 6000000, :process 3, :type :ok, :f :enqueue, :value 7, :node "n4", :job "D-1"}',
    ]


def test_unknown_add_has_its_error() -> None:
    tale = Tale()
    tale.add(7, 1, outcome=INFO, error='NOREPL "so"', process=3)
    assert view(tale)[1] == (
        "{:index 1, :time 6000000, :process 3, :type :info, :f :enqueue, "
        ':value 7, :node "n1", :error "NOREPL \\"so\\""}'
    )


def test_get_of_two_jobs_is_two_pairs_with_dense_indices() -> None:
    tale = Tale()
    tale.get([1, 2], 1, process=3)
    tale.get([], 10, process=3)
    shown = [(each.split(":type ")[1].split(", :node")[0]) for each in view(tale)]
    assert shown == [
        ":invoke, :f :dequeue, :value nil",
        ":ok, :f :dequeue, :value 1",
        ":invoke, :f :dequeue, :value nil",
        ":ok, :f :dequeue, :value 2",
        ":invoke, :f :dequeue, :value nil",
        ":fail, :f :dequeue, :value nil",
    ]
    assert [each.split(",")[0] for each in view(tale)] == [f"{{:index {i}" for i in range(6)]


def test_lost_get_stays_unknown_and_refused_one_failed() -> None:
    tale = Tale()
    tale.get([], 1, outcome=INFO, error="timeout")
    tale.get([], 10, outcome=FAIL, error="refused")
    assert [":info" in view(tale)[1], ":fail" in view(tale)[3]] == [True, True]


def test_ack_names_values_and_fault_is_info_of_nemesis() -> None:
    tale = Tale()
    tale.add(7, 1)
    tale.ack([7], 10, process=5)
    tale.cut(100, 200, ["n1"])
    tale.look(300)
    shown = view(tale)
    assert ':process 5, :type :invoke, :f :ack, :value [7], :node "n1"' in shown[2]
    assert ':process :nemesis, :type :info, :f :start, :value "partition-halves"' in shown[4]
    # two of the start, two of the stop; observations have no counterpart
    assert len(shown) == 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "true"),
        (1.5, "1.5"),
        ('a"\\\n', '"a\\"\\\\\\n"'),
        ([1, [2]], "[1 [2]]"),
        ({"a": {"b": []}}, "{:a {:b []}}"),
        (edn.Keyword("x"), ":x"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert edn.dumps(value) == text


def test_what_is_no_edn_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        edn.dumps(object())


def test_file_has_one_map_a_line(tmp_path: Path) -> None:
    tale = Tale()
    tale.whole(1, 1)
    edn.write(tmp_path / "history.edn", tale.run().ops)
    assert (tmp_path / "history.edn").read_text().splitlines() == view(tale)
