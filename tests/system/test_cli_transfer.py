"""`export` and `import`: nothing is lost on the way, nothing is added twice, and a file is whole or not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.nodes import Cluster, Node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.tool import Tool

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes for all tests of this module."""
    with Cluster(tmp_path_factory.mktemp("shared"), 2) as cluster:
        yield cluster.join()


def shown(node: Node, id_: str) -> dict[str, Any]:
    """SHOW as a mapping."""
    flat = node.call("SHOW", id_)
    return dict(zip([name.decode() for name in flat[::2]], flat[1::2], strict=True))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """An exported file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def new_ids(path: Path) -> dict[str, str]:
    """The journal: old id -> new id."""
    return dict(
        line.split() for line in path.with_name(f"{path.name}.imported").read_text().splitlines()
    )


SPECS: list[tuple[bytes, tuple[str | int, ...]]] = [
    (b"", ()),
    ("grün\n\0".encode(), ("PRIORITY", 9, "TTL", 500, "RETRY", 50)),
    (bytes(range(256)), ("MAXDELIVERIES", 3, "DEADLETTER", "graves", "REPLICATE", 2)),
    (b"at most once", ("RETRY", 0, "REPLICATE", 1)),
    (b"later", ("DELAY", 300, "TTL", 1000)),
    (b"headed", ("HEADER", "content-type", "text/plain", "HEADER", "x", "\0\n")),
]
KEPT = ("repl", "retry", "priority", "max-deliveries", "dead-letter", "headers", "body")


def test_queue_comes_back_as_it_was(
    shared: Cluster, make_node: Callable[..., Node], tool: Tool, tmp_path: Path
) -> None:
    a, b = shared.nodes
    ids = [str(b.call("ADDJOB", "whole", body, 5000, *options)) for body, options in SPECS]
    before = {id_: shown(b, id_) for id_ in ids}
    path = tmp_path / "whole.jsonl"
    told = tool.ok(a, "export", "whole", "-o", str(path), "--json").json()
    assert told == {"exported": len(SPECS), "nodes_silent": 0}
    # In the order in which the queue gives them out: by priority, then age.
    order = [ids[1], ids[0], *ids[2:]]
    assert [line["id"] for line in lines_of(path)] == order
    assert a.call("GLOBALQLEN", "whole") == len(SPECS) - 1
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []

    other = make_node().start()
    assert tool.ok(other, "import", str(path)).text == f"added {len(SPECS)} jobs\n"
    for old, new in new_ids(path).items():
        was, is_ = before[old], shown(other, new)
        # One node takes no more than one copy.
        assert {name: is_[name] for name in KEPT} == {
            **{name: was[name] for name in KEPT},
            "repl": 1,
        }
        assert is_["queue"] == b"whole"
        assert was["ttl"] - 10 <= is_["ttl"] <= was["ttl"]
    later = shown(other, new_ids(path)[ids[4]])
    assert later["state"] == b"active"
    assert 290 <= later["delay"] <= 300


def test_dead_letters_know_where_they_come_from(
    make_node: Callable[..., Node], tool: Tool, tmp_path: Path
) -> None:
    node = make_node().start()
    id_ = str(node.call("ADDJOB", "mortal", "x", 0, "MAXDELIVERIES", 1, "DEADLETTER", "graves"))
    node.call("GETJOB", "FROM", "mortal")
    node.call("NACK", id_)
    path = tmp_path / "letters"
    tool.ok(node, "export", "graves", "--move", "-o", str(path))
    (line,) = lines_of(path)
    assert (line["queue"], line["own_queue"], line["reason"]) == ("graves", "mortal", "nack")
    tool.ok(node, "import", str(path))
    assert node.call("QLEN", "graves") == 1
    tool.ok(node, "import", str(path), "--revive", "--again")
    assert node.call("QLEN", "mortal") == 1


def test_second_import_adds_nothing_and_a_journal_that_ends_early_goes_on(
    make_node: Callable[..., Node], tool: Tool, tmp_path: Path
) -> None:
    node = make_node().start()
    path = tmp_path / "jobs"
    path.write_text("".join(f'{{"queue": "q", "body": "{at}"}}\n' for at in range(250)))
    assert tool.ok(node, "import", str(path)).text == "added 250 jobs\n"
    again = tool.ok(node, "import", str(path), "--json").json()
    assert (again["added"], again["done_before"]) == (0, 250)
    journal = path.with_name("jobs.imported")
    *kept, unknown = journal.read_text().splitlines()[:101]
    # As after a crash: one of which nobody knows, and a torn last line.
    journal.write_text("\n".join([*kept, f"{unknown.split()[0]} ?", "line:102:0 D-"]))
    third = tool.ok(node, "import", str(path), "--json").json()
    assert (third["added"], third["done_before"]) == (149, 101)
    fourth = tool.ok(node, "import", str(path), "--retry-unknown", "--json").json()
    assert fourth["added"] == 1
    assert node.call("QLEN", "q") == 250 + 149 + 1
    assert tool.ok(node, "import", str(path), "--again", "--json").json()["added"] == 250


def test_jobs_that_the_cluster_still_has_are_not_added_again(
    shared: Cluster, tool: Tool, tmp_path: Path
) -> None:
    a, b = shared.nodes
    kept, gone = [str(b.call("ADDJOB", "still", body, 5000)) for body in ("kept", "gone")]
    path = tmp_path / "jobs"
    tool.ok(a, "export", "still", "-o", str(path))
    b.call("CANCELJOB", gone)
    path.write_text(path.read_text() * 2)
    done = tool.ok(a, "import", str(path), "--json").json()
    assert (done["added"], done["still_there"], done["done_before"]) == (1, 1, 2)
    assert a.call("GLOBALQLEN", "still") == 2
    assert list(new_ids(path)) == [gone]
    assert shown(b, kept)["state"] == b"queued"


def test_move_takes_what_waits_and_leaves_what_workers_have(
    shared: Cluster, tool: Tool, tmp_path: Path
) -> None:
    a, b = shared.nodes
    out = str(b.call("ADDJOB", "moved", "out", 5000))
    assert b.call("GETJOB", "FROM", "moved")[0][1].decode() == out
    for body in ("1", "2"):
        b.call("ADDJOB", "moved", body, 5000)
    b.call("ADDJOB", "moved", "3", 5000, "DELAY", 100)
    path = tmp_path / "jobs"
    told = tool.ok(a, "export", "moved", "--move", "-o", str(path), "--json").json()
    assert told == {"exported": 3, "cancelled": 3, "left": 1}
    assert [line["body"] for line in lines_of(path)] == ["1", "2", "3"]
    assert a.call("GLOBALQLEN", "moved") == 0
    wait_until("the pause is lifted", lambda: b.call("PAUSE", "moved", "state") == "none")
    assert b.call("ACKJOB", out) == 1
    assert tool.ok(b, "import", str(path), "-q", "moved-on").text == "added 3 jobs\n"
    assert a.call("GLOBALQLEN", "moved-on") == 2


def test_export_to_standard_output_goes_through_a_pipe(shared: Cluster, tool: Tool) -> None:
    a, b = shared.nodes
    b.call("ADDJOB", "piped", b"\xff", 5000)
    done = tool.ok(a, "export", "piped")
    assert done.json()["body"] == {"base64": "/w=="}
    assert "exported 1 job" in done.err
    again = tool.ok(b, "import", "-", "--again", "--queue", "piped-2", stdin=done.out)
    assert again.text == "added 1 job\n"
    assert a.call("QPEEK", "piped-2", 1) == [] or b.call("QPEEK", "piped-2", 1)[0][2] == b"\xff"


def test_export_of_a_queue_that_is_merely_empty_has_no_remark(shared: Cluster, tool: Tool) -> None:
    a = shared.nodes[0]
    a.call("ADDJOB", "emptied", "x", 5000)
    a.call("QPURGE", "emptied")
    assert tool.ok(a, "export", "emptied").err == "exported 0 jobs\n"


def test_file_that_cannot_be_written_leaves_the_old_one(
    shared: Cluster, tool: Tool, tmp_path: Path
) -> None:
    a = shared.nodes[0]
    done = tool(a, "export", "x", "-o", str(tmp_path / "nosuch" / "file"))
    assert done.status == 2
    assert "nosuch" in done.err
    link = tmp_path / "link"
    (tmp_path / "real").write_text("old")
    link.symlink_to(tmp_path / "real")
    done = tool.ok(a, "export", "nothing-here", "-o", str(link))
    assert done.err.endswith("no node has a queue nothing-here\n")
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == ""
    tool.ok(a, "export", "nothing-here", "-o", "/dev/null")


def test_wrong_line_is_named_and_nothing_is_added(
    shared: Cluster, tool: Tool, tmp_path: Path
) -> None:
    a = shared.nodes[0]
    path = tmp_path / "jobs"
    path.write_text(
        '{"queue": "wrong", "body": "x"}\n\n{"queue": "wrong", "body": "x", "ttll": 1}\n'
    )
    done = tool(a, "import", str(path))
    assert done.status == 2
    assert "line 3: ttll: no such field" in done.err
    assert a.call("GLOBALQLEN", "wrong") == 0
    assert not path.with_name("jobs.imported").exists()
    piped = tool(a, "import", "-", stdin=path.read_bytes())
    assert (piped.status, piped.out) == (2, b"")
    assert a.call("GLOBALQLEN", "wrong") == 0


def test_refused_jobs_are_told_and_added_when_it_is_called_again(
    make_node: Callable[..., Node], tool: Tool, tmp_path: Path
) -> None:
    node = make_node().start()
    node.call("PAUSE", "closed", "in")
    path = tmp_path / "jobs"
    path.write_text(
        '{"queue": "open", "body": "1"}\n{"queue": "closed", "body": "2"}\n{"queue": "open", "body": "3"}\n'
    )
    done = tool(node, "import", str(path))
    assert done.status == 1
    assert "line 2: PAUSED" in done.err
    assert node.call("QLEN", "open") == 2
    node.call("PAUSE", "closed", "none")
    assert tool.ok(node, "import", str(path)).text == "added 1 job\n"
    assert node.call("QLEN", "closed") == 1
