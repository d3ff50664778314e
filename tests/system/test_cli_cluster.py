"""The tool over three nodes: nodes, queues, jobs, top, drain; and with nodes that die, leave and are forgotten."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.nodes import WAIT_S, Cluster, Node, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.tool import Tool

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests that use only queues of their own."""
    with Cluster(tmp_path_factory.mktemp("shared"), 3) as cluster:
        yield cluster.join()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes for a test that takes one away."""
    with Cluster(tmp_path, 2, "--cluster-node-timeout", "1000") as cluster:
        yield cluster.join()


def add(node: Node, queue: str, body: str | bytes = "x", *options: str | int) -> str:
    """A job that is in all copies."""
    return str(node.call("ADDJOB", queue, body, 5000, *options))


def queue_of(tool: Tool, node: Node, name: str) -> dict[str, Any]:
    """What `queues` says of one queue."""
    (found,) = tool.ok(node, "queues", "--json", name).json()
    return dict(found)


def test_nodes_shows_each_node_as_it_tells_of_itself(shared: Cluster, tool: Tool) -> None:
    a, *_ = shared.nodes
    found = tool.ok(a, "nodes", "--json").json()
    assert sorted(each["port"] for each in found) == sorted(node.port for node in shared.nodes)
    assert [each["is_asked"] for each in found].count(True) == 1
    assert all(each["state"] == "ok" and each["is_reached"] and each["clients"] for each in found)
    lines = tool.ok(a, "nodes").text.splitlines()
    assert len(lines) == 4
    assert lines[0].split()[:3] == ["NODE", "ADDRESS", "STATE"]
    assert "\x1b" not in "".join(lines)


def test_node_whose_announced_name_is_not_known_here_is_reached_by_its_published_port(
    make_node: Callable[..., Node], tool: Tool
) -> None:
    # As from outside of docker-compose: HELLO tells the names of services.
    a = make_node().start()
    b = make_node("--cluster-announce-host", "nosuch.invalid").start()
    stranger = make_node()
    a.call("CLUSTER", "MEET", "127.0.0.1", b.port)
    wait_until("they know each other", lambda: a.info("cluster")["cluster_reachable_nodes"] == "1")
    found = tool.ok(a, "nodes", "--json").json()
    assert {each["port"]: each["is_reached"] for each in found} == {a.port: True, b.port: True}
    # Another node at that port isn't taken for it.
    b.kill()
    stranger.port = b.port
    stranger.start()
    done = tool(a, "nodes", "--json")
    assert done.status == 1
    (dead,) = [each for each in done.json() if each["port"] == b.port]
    assert not dead["is_reached"]


def test_queues_sums_over_nodes_and_finds_those_of_other_nodes(shared: Cluster, tool: Tool) -> None:
    a, b, c = shared.nodes
    for node in (a, b, c):
        add(node, "sums")
    b.call("GETJOB", "FROM", "sums")
    add(c, "sums", "later", "DELAY", 100)
    add(b, "sums-later", "x", "DELAY", 100)
    found = queue_of(tool, a, "sums-later")
    assert (found["length"], found["delayed"]) == (0, 1)
    found = queue_of(tool, a, "sums")
    assert (found["length"], found["delivered"], found["delayed"]) == (2, 1, 1)
    assert found["oldest_age"] >= 0
    assert found["nodes_answered"] == 3
    table = tool.ok(a, "queues", "su*").text.splitlines()
    assert table[1].split()[:2] == ["sums", "2"]


def test_jobs_that_only_lie_at_holders_are_seen(pair: Cluster, tool: Tool) -> None:
    """Their node is gone, and no other has queued them yet."""
    a, b = pair.nodes
    add(b, "held", "x", "REPLICATE", 2, "RETRY", 1_000)
    found = queue_of(tool, a, "held")
    assert (found["length"], found["copies"]) == (1, 2)
    b.kill()
    row = tool(a, "queues", "held").text.splitlines()[1].split()
    assert row[:6] == ["held", "0", "-", "0", "0", "1"]


def test_queues_are_sorted_and_limited_and_empty_ones_left_out(shared: Cluster, tool: Tool) -> None:
    a, b, _ = shared.nodes
    for at in range(3):
        add(b, "sort-long", str(at))
    add(a, "sort-short")
    id_ = add(a, "sort-empty")
    a.call("GETJOB", "FROM", "sort-empty")
    a.call("ACKJOB", id_)
    found = tool.ok(a, "queues", "sort-*", "--sort", "length", "--json").json()
    assert [each["name"] for each in found] == ["sort-long", "sort-short"]
    assert len(tool.ok(a, "queues", "sort-*", "--limit", "1", "--json").json()) == 1
    every = tool.ok(a, "queues", "sort-*", "--all", "--json").json()
    assert "sort-empty" in [each["name"] for each in every]


def test_queue_name_that_is_no_text_is_shown_escaped_and_kept_in_json(
    shared: Cluster, tool: Tool
) -> None:
    a = shared.nodes[0]
    a.call("ADDJOB", b"odd-\xff\x1b[31m", "x", 0)
    assert '"odd-\\xff\\x1b[31m"' in tool.ok(a, "queues").text
    names = [each["name"] for each in tool.ok(a, "queues", "--json").json()]
    assert {"base64": "b2RkLf8bWzMxbQ=="} in names
    a.call("QPURGE", b"odd-\xff\x1b[31m")


def test_jobs_are_listed_once_with_one_state(shared: Cluster, tool: Tool) -> None:
    a, b, _ = shared.nodes
    out = add(b, "states", "out", "PRIORITY", 9)
    assert b.call("GETJOB", "FROM", "states")[0][1].decode() == out
    waits = add(a, "states", "waits")
    later = add(a, "states", "later", "DELAY", 100)
    found = tool.ok(a, "jobs", "list", "-q", "states", "--json").json_lines()
    assert {each["id"]: each["state"] for each in found} == {
        waits: "queued",
        later: "delayed",
        out: "delivered",
    }
    assert all(len(each["copies"]) == 3 for each in found)
    for state, id_ in (("queued", waits), ("delayed", later), ("delivered", out)):
        words = ("jobs", "list", "-q", "states", "--state", state, "--json")
        assert [each["id"] for each in tool.ok(b, *words).json_lines()] == [id_]
    table = tool.ok(a, "jobs", "-q", "states", "--limit", "1")
    assert len(table.text.splitlines()) == 2
    assert "and more" in table.err


def test_job_is_shown_with_its_body(shared: Cluster, tool: Tool) -> None:
    a, b, _ = shared.nodes
    id_ = add(b, "shown", '{"a": [1]}', "RETRY", 7, "PRIORITY", 2)
    text = tool.ok(a, "jobs", "show", id_).text
    assert id_ in text
    assert '{\n  "a": [\n    1\n  ]\n}' in text
    told = tool.ok(a, "jobs", "show", id_, "--json").json()
    assert (told["retry"], told["priority"], told["state"], told["body"]) == (
        7,
        2,
        "queued",
        '{"a": [1]}',
    )
    assert len(told["holders"]) == 3
    raw = bytes(range(256))
    binary = add(b, "shown", raw)
    assert tool.ok(a, "jobs", "show", "--body", binary).out == raw
    assert "00000000  00 01 02" in tool.ok(a, "jobs", "show", binary).text
    gone = tool(a, "jobs", "show", f"{id_[:-4]}ffff")
    assert gone.status == 1
    assert "no node that answered knows" in gone.err


def test_jobs_are_requeued_by_id_and_by_state(shared: Cluster, tool: Tool) -> None:
    a, b, c = shared.nodes
    ids = [add(b, "requeue", str(at)) for at in range(3)]
    b.call("GETJOB", "COUNT", 3, "FROM", "requeue")
    assert tool.ok(c, "jobs", "requeue", ids[0]).text == "requeued 1 of 1 job\n"
    # It may be on its way to a node that has asked for jobs, and is queued nowhere for that moment.
    wait_until("it is queued", lambda: a.call("GLOBALQLEN", "requeue") == 1)
    unsure = tool(a, "jobs", "requeue", "-q", "requeue", "--state", "delivered")
    assert unsure.status == 2
    assert "would requeue 2 jobs" in unsure.err
    done = tool.ok(a, "jobs", "requeue", "-q", "requeue", "--yes", "--json").json()
    assert done == {"jobs": 2, "done": 2, "nodes_silent": 0}
    wait_until("all are queued", lambda: a.call("GLOBALQLEN", "requeue") == 3)
    again = tool(a, "jobs", "requeue", ids[0])
    assert (again.status, again.text) == (1, "requeued 0 of 1 job\n")
    assert again.err == f"{ids[0]}: it waits in requeue already\n"


def test_requeue_says_why_it_did_nothing(shared: Cluster, tool: Tool) -> None:
    a, *_ = shared.nodes
    done, story = (
        add(a, "why"),
        ("HEADER", "id", "old", "HEADER", "queue", "mail", "HEADER", "error", "e"),
    )
    a.call("ACKJOB", done)
    letter = add(a, "why-letters", "x", *story)
    told = tool(a, "jobs", "requeue", letter, done).err.splitlines()
    assert told[0].startswith(f"{letter}: it waits in why-letters as a job of its own, ")
    assert told[0].endswith("add its body to mail")
    assert told[1].removeprefix(f"{done}: ") in ("it is done", "no node that was asked knows it")
    assert "it waits in why-letters" in tool(a, "jobs", "requeue", "-q", "why-letters").err


def test_dead_letters_go_back_into_their_queue(shared: Cluster, tool: Tool) -> None:
    a, b, c = shared.nodes
    id_ = add(b, "mortal", "x", "MAXDELIVERIES", 1, "DEADLETTER", "graves")
    b.call("GETJOB", "FROM", "mortal")
    b.call("NACK", id_)
    (dead,) = tool.ok(a, "jobs", "list", "--state", "dead", "-q", "graves", "--json").json_lines()
    assert (dead["id"], dead["queue"], dead["reason"]) == (id_, "graves", "nack")
    assert "(dead)" in tool.ok(c, "jobs", "list", "--state", "dead").text
    tool.ok(c, "jobs", "requeue", "--state", "dead", "-q", "graves", "-y")
    wait_until("it is back", lambda: a.call("GLOBALQLEN", "mortal") == 1)
    assert a.call("GLOBALQLEN", "graves") == 0


def test_jobs_are_cancelled_by_ids_of_standard_input_and_by_queue(
    shared: Cluster, tool: Tool
) -> None:
    a, b, _ = shared.nodes
    ids = [add(b, "cancel", str(at)) for at in range(4)]
    some = " ".join(ids[:2]).encode()
    assert tool.ok(a, "jobs", "cancel", "-", stdin=some).text == "cancelled 2 of 2 jobs\n"
    assert tool.ok(a, "jobs", "cancel", "-q", "cancel", "-y").text == "cancelled 2 of 2 jobs\n"
    assert a.call("GLOBALQLEN", "cancel") == 0


def test_drain_of_a_queue_that_no_node_has_pauses_nothing(shared: Cluster, tool: Tool) -> None:
    a, *_ = shared.nodes
    done = tool(a, "drain", "typo")
    assert (done.status, done.err) == (1, "Error: no node has a queue typo\n")
    assert a.call("QSTAT", "typo", "GLOBAL") is None


def test_drain_waits_for_a_job_that_is_neither_queued_nor_handed_out(
    shared: Cluster, tool: Tool
) -> None:
    a, b, _ = shared.nodes
    id_ = add(b, "drain-held", "x", "REPLICATE", 1)
    assert b.call("DEQUEUE", id_) == 1
    late = tool(a, "drain", "drain-held", "--timeout", "0")
    assert late.status == 4
    assert "0 waiting, 0 delivered, 0 delayed, copies held: 1" in late.err
    b.call("ACKJOB", id_)
    assert tool.ok(a, "drain", "drain-held").text == "drain-held is empty\n"


def test_drain_keeps_new_jobs_out_and_waits_for_the_last_one(
    shared: Cluster, tool: Tool, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    a, b, _ = shared.nodes
    id_ = add(b, "drain")
    late = tool(a, "drain", "drain", "--timeout", "0", "--json")
    assert late.status == 4
    assert late.json() == {"queue": "drain", "left": 1, "is_paused": True}
    wait_until("the pause is everywhere", lambda: b.call("PAUSE", "drain", "state") == "in")
    assert b.call_error("ADDJOB", "drain", "y", 0).startswith("PAUSED")
    process = spawn_tool("-p", str(a.port), "drain", "drain", "--resume", "--json")
    b.call("GETJOB", "FROM", "drain")
    b.call("ACKJOB", id_)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert json.loads(out) == {"queue": "drain", "left": 0, "is_paused": False}
    # Not to what was before, which was the first drain's pause.
    assert b.call("PAUSE", "drain", "state") == "none"


def test_top_in_a_pipe_gives_pictures(shared: Cluster, tool: Tool) -> None:
    a, b, _ = shared.nodes
    add(b, "watched")
    pictures = tool.ok(a, "top", "--json", "-n", "2", "-i", "0.1").json_lines()
    assert len(pictures) == 2
    (queue,) = [each for each in pictures[1]["queues"] if each["name"] == "watched"]
    assert (queue["length"], queue["in_per_second"]) == (1, 0.0)
    text = tool.ok(a, "top", "-n", "1").text
    assert "3 of 3 nodes ok" in text
    assert "watched" in text


def test_top_goes_on_at_another_node_when_the_one_that_was_named_dies(
    pair: Cluster, spawn_tool: Callable[..., subprocess.Popen[bytes]]
) -> None:
    a, c = pair.nodes
    process = spawn_tool("-p", str(c.port), "top", "--json", "-i", "0.2")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert [node["is_reached"] for node in first["nodes"]] == [True, True]
    c.kill()

    def is_told() -> bool:
        assert process.stdout is not None
        nodes = json.loads(process.stdout.readline())["nodes"]
        asked = {node["port"]: (node["is_reached"], node["is_asked"]) for node in nodes}
        return asked == {a.port: (True, True), c.port: (False, False)}

    wait_until("the other node tells of the dead one", is_told)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0


def test_dead_node_is_shown_told_and_forgotten(pair: Cluster, tool: Tool) -> None:
    a, c = pair.nodes
    id_of_c = c.call("CLUSTER", "MYID").decode()
    add(a, "survives")
    assert tool(a, "forget", "ffffffff").status == 2
    alive = tool(a, "forget", id_of_c)
    assert alive.status == 2
    assert "is alive" in alive.err
    c.kill()
    done = tool(a, "nodes", "--json")
    assert done.status == 1
    (dead,) = [each for each in done.json() if each["id"] == id_of_c]
    assert (dead["is_reached"], dead["jobs"]) == (False, None)
    assert "refused" in dead["complaint"]
    table = tool(a, "queues", "survives")
    assert table.status == 1
    assert table.text.splitlines()[1].split()[:2] == ["survives", "1"]
    assert "1 of 2 nodes answered" in table.err
    partial = tool(a, "export", "survives")
    assert (partial.status, len(partial.json_lines())) == (1, 1)
    assert tool(a, "export", "survives", "--move", "-o", str(a.folder / "x")).status == 1
    assert tool.ok(a, "forget", id_of_c[:8]).text.startswith(f"forgotten: {id_of_c}")
    assert len(tool.ok(a, "nodes", "--json").json()) == 1


def test_node_leaves_and_says_when_it_can_be_stopped(pair: Cluster, tool: Tool) -> None:
    a, c = pair.nodes
    jobs = [add(c, "handed-over", str(at), "REPLICATE", 1) for at in range(5)]
    assert "is leaving" in tool.ok(c, "leave").text
    assert "stays" in tool.ok(c, "leave", "--cancel").text
    assert c.call("CLUSTER", "LEAVING") == "no"
    done = tool.ok(a, "leave", f"127.0.0.1:{c.port}", "--wait", "--timeout", "30", "--json").json()
    assert done == {"id": done["id"], "is_leaving": True, "is_safe_to_stop": True}
    assert done["id"] == c.call("CLUSTER", "MYID").decode()
    assert c.terminate() == 0
    tool.ok(a, "forget", done["id"])
    assert len([a.call("GETJOB", "TIMEOUT", 5000, "FROM", "handed-over") for _ in jobs]) == len(
        jobs
    )
