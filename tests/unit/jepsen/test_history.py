"""A history survives its file, and invocations find their completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen.history import FAIL, INFO, INVOKE, NEMESIS, OBSERVER, OK, History, Op


def op(index: int, process: int, type: str, f: str = "get", node: str = "n1") -> Op:  # noqa: A002
    return Op(index, index * 1000, process, type, f, {"queues": ["q"]}, node)


def test_file_gives_the_same_events_back(tmp_path: Path) -> None:
    history = History(
        [
            op(0, 1, INVOKE),
            Op(1, 5, NEMESIS, INFO, "start", {"id": 1, "links": [["n1", "n2"]]}),
            Op(2, 9, 1, INFO, "get", {"queues": ['"\n']}, "n1", "timeout"),
        ]
    )
    history.write(tmp_path / "h.jsonl")
    assert History.read(tmp_path / "h.jsonl") == history


def test_line_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(op(0, 1, INVOKE).to_line() + "\n" + op(1, 1, OK).to_line()[:30])
    assert History.read(path) == [op(0, 1, INVOKE)]


@pytest.mark.parametrize("line", ["{", "[]", '{"index": 1}', '{"color": 2}'])
def test_other_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(f"{line}\n{op(1, 1, OK).to_line()}\n")
    with pytest.raises(ValueError, match=r"h\.jsonl:1"):
        History.read(path)


def test_completion_belongs_to_the_open_invocation_of_its_process() -> None:
    first, second, done, failed = op(0, 1, INVOKE), op(1, 2, INVOKE), op(2, 2, OK), op(3, 1, FAIL)
    again = op(4, 1, INVOKE)
    stray = op(5, 7, OK)
    history = History([first, second, done, failed, again, stray])
    assert list(history.pairs()) == [(first, failed), (second, done), (again, None)]


def test_observer_has_one_open_look_a_node_and_the_nemesis_no_pairs() -> None:
    one, two = op(0, OBSERVER, INVOKE, node="n1"), op(1, OBSERVER, INVOKE, node="n2")
    fault = op(2, NEMESIS, INFO, "start", "")
    done = op(3, OBSERVER, OK, node="n1")
    assert list(History([one, two, fault, done]).pairs()) == [(one, done), (two, None)]
