"""Cli: options become a test, bad ones end with 254, and many ends become one exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen import cli, matrix, store
from jepsen.hosts import probing
from jepsen.matrix import BROKEN, INVALID, UNKNOWN, VALID
from jepsen.nemesis.packages import KINDS, NoNemesisError, choose
from jepsen.options import Options
from jepsen.run import Outcome, both
from jepsen.workloads import WORKLOADS

ALL_CAPABILITIES = frozenset().union(*(kind.needs for kind in KINDS.values()))


def options_of(*words: str) -> Options:
    return cli.options_of(cli.make_parser().parse_args(["test", *words]))


@pytest.mark.parametrize(
    "words",
    [
        ["test", "--workload", "nothing"],
        ["test", "--nemesis", "gremlins"],
        ["test", "--nemesis", "partition-halves,gremlins"],
        ["test", "--nodes", "1"],
        ["test", "--nodes", "many"],
        ["test", "--rate", "0"],
        ["test", "--time-limit", "-1"],
        ["test", "--replicate", "6"],
        ["test", "--test-count", "0"],
        ["test-all", "--only", "gremlins"],
        ["test", "--concurrency", "0n"],
        ["test", "--nemesis", "disk-full", "--net", "proxy"],
        ["test", "--nemesis", "loss", "--net", "proxy"],
        ["fly"],
        [],
        ["analyze", "no-such-folder"],
    ],
)
def test_bad_arguments_end_with_254(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = cli.main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 254
    assert "jepsen" in capsys.readouterr().err


def test_hosts_that_cannot_be_are_bad_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = probing.Finding(is_there=True, detail="planted")
    monkeypatch.setattr(probing, "can_docker", lambda: found)
    assert cli.main(["test", "--hosts", "compose"]) == 254
    assert "docker-compose.yml has 3 nodes, asked for are 5" in capsys.readouterr().err


def test_what_is_said_is_logged(tmp_path: Path) -> None:
    said: list[str] = []
    with store.open_run(tmp_path, "queue", {}) as folder:
        both(said.append, folder.log)("a line")
    assert (said, folder.path(store.LOG).read_text()) == (["a line"], "a line\n")


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["test", "--help"])
    assert ended.value.code == 0
    assert "--nemesis" in capsys.readouterr().out


def test_options_of_a_command_line() -> None:
    options = options_of(
        *("--workload", "ack-race", "--nodes", "3", "--concurrency", "4n", "--net", "proxy"),
        *("--aof", "always", "--seed", "0x10", "--node-timeout", "500"),
        *("--server-command", "python -m tests.mutants.server two", "--store", "there"),
    )
    assert (options.workload, options.nodes, options.clients, options.hosts) == (
        "ack-race",
        3,
        12,
        "local",
    )
    assert (options.aof, options.is_logged, options.seed, options.node_timeout_ms) == (
        "always",
        True,
        16,
        500,
    )
    assert options.server_command == ("python", "-m", "tests.mutants.server", "two")
    assert options.store == Path("there")


def test_what_is_not_said_has_defaults() -> None:
    options = options_of()
    assert (options.nodes, options.clients, options.nemesis_name) == (5, 15, "partition-halves")
    assert options_of("--workload", "leave-join").nemesis_name == "leave-join"
    assert options_of("--workload", "leave-join", "--nemesis", "none").nemesis_name == "none"


def test_servers_get_what_the_options_say() -> None:
    options = options_of("--nodes", "3", "--aof", "everysec", "--nemesis", "disk-full")
    built = options.host_options(("--maxmemory", "1"))
    assert (built.count, built.appendonly, built.appendfsync) == (3, True, "everysec")
    assert list(built.flags) == ["--maxmemory", "1"]
    assert built.disk_bytes > 0
    assert options_of("--nemesis", "kill").host_options(()).disk_bytes == 0


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([], UNKNOWN),
        ([VALID, VALID], VALID),
        ([VALID, UNKNOWN], UNKNOWN),
        ([UNKNOWN, BROKEN], BROKEN),
        ([BROKEN, INVALID, UNKNOWN], INVALID),
    ],
)
def test_a_bug_that_was_found_is_never_masked(statuses: list[int], status: int) -> None:
    assert matrix.worst(statuses) == status


@pytest.mark.parametrize("words", [["test-all"], ["test", "--test-count", "3"]])
def test_no_test_begins_once_one_was_stopped(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    async def stopped(options: Options, _say: object) -> Outcome:
        begun.append(options.name)
        return Outcome(options.name, valid=None, is_stopped=True)

    monkeypatch.setattr(cli, "run_test", stopped)
    assert cli.main(words) == UNKNOWN
    assert len(begun) == 1


def test_a_matrix_of_which_nothing_can_run_shows_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["test-all", "--only", "queue loss", "--net", "proxy"]
    assert cli.main(words) == UNKNOWN
    assert "left out" in capsys.readouterr().out


def test_the_matrix_has_every_nemesis_and_every_workload() -> None:
    cells = matrix.full()
    assert {cell.nemesis for cell in cells if cell.workload == "queue"} >= set(KINDS)
    assert {cell.workload for cell in cells} >= set(WORKLOADS) - {"soak"}
    for cell in (*cells, *matrix.QUICK):
        options = matrix.options_of(cell, Options())
        choose(cell.nemesis, ALL_CAPABILITIES, count=5, is_logged=options.is_logged)
    kinds = {
        kind.name
        for cell in cells
        if (options := matrix.options_of(cell, Options())).is_logged
        for kind in choose(cell.nemesis, ALL_CAPABILITIES, count=5, is_logged=True)
    }
    assert kinds == set(KINDS)
    assert len({cell.title for cell in cells}) == len(cells)


def test_a_nemesis_needs_what_the_host_can() -> None:
    with pytest.raises(NoNemesisError, match="no cut"):
        choose("partition-halves", frozenset(), count=5, is_logged=False)
    with pytest.raises(NoNemesisError, match="needs a log"):
        choose("fail-fsync", ALL_CAPABILITIES, count=5, is_logged=False)
    with pytest.raises(NoNemesisError, match="needs 4 nodes"):
        choose("majority-ring", ALL_CAPABILITIES, count=3, is_logged=False)


def test_mixed_leaves_out_what_cannot_be_and_without_a_log_what_wipes_too_much() -> None:
    def names(*, is_logged: bool, capabilities: frozenset[str] = ALL_CAPABILITIES) -> set[str]:
        return {kind.name for kind in choose("mixed", capabilities, count=5, is_logged=is_logged)}

    assert names(is_logged=True) == set(KINDS)
    assert {"kill", "bridge", "pause"} <= names(is_logged=False)
    assert names(is_logged=False).isdisjoint({"mass-restart", "disk-full", "forget"})
    assert names(is_logged=False, capabilities=frozenset({"kill"})) == {"kill"}


def test_a_combination_is_in_the_order_that_was_asked_for() -> None:
    kinds = choose("kill,bridge", ALL_CAPABILITIES, count=5, is_logged=False)
    assert [kind.name for kind in kinds] == ["kill", "bridge"]
    assert choose("none", frozenset(), count=5, is_logged=False) == ()
