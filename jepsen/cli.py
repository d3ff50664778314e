"""Cli: `python -m jepsen`: test, test-all, analyze, serve, doctor, clean; the only part that prints.

Exit status as in Jepsen: 0 valid, 1 invalid, 2 unknown, 254 bad arguments, 255 the harness broke.
"""

# Printing is its job.
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import trio

from jepsen import analyze, doctor, matrix, report, serve
from jepsen.checkers.base import verdict
from jepsen.hosts import choosing, cleaning
from jepsen.hosts.base import HostsError
from jepsen.matrix import BAD_ARGUMENTS, BROKEN, STATUS
from jepsen.nemesis.packages import NoNemesisError
from jepsen.options import AOF, FINALS, OptionError, Options
from jepsen.run import outcome_json, run_test
from jepsen.workloads import WORKLOADS

NETS: Final = ("auto", "netns", "proxy")
_HOSTS_OF_NET: Final = {"netns": choosing.NETNS, "proxy": choosing.LOCAL}


class Parser(argparse.ArgumentParser):
    """One that ends with 254 for arguments it can't use."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message."""
        self.print_usage(sys.stderr)
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, raises SystemExit for --help and bad arguments."""
    words = make_parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = words.act
    try:
        return act(words)
    except (OptionError, NoNemesisError) as error:
        print(f"jepsen: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    except KeyboardInterrupt:
        print("jepsen: given up", file=sys.stderr)
        return BROKEN


def make_parser() -> Parser:
    """All commands and their options."""
    parser = Parser(prog="python -m jepsen", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=Parser)
    test = commands.add_parser("test", help="one workload under one nemesis")
    _add_test_options(test)
    test.set_defaults(act=_test)
    every = commands.add_parser("test-all", help="the matrix of workloads and nemeses")
    _add_test_options(every)
    size = every.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="four short tests, for each change")
    size.add_argument("--only", metavar="WORD", default="", help="tests whose name has this in it")
    every.set_defaults(act=_test_all)
    again = commands.add_parser("analyze", help="judge an old history again")
    again.add_argument("folder", nargs="?", type=Path, help="of a run; the newest without it")
    again.add_argument("--store", type=Path, default=Path("store"))
    again.set_defaults(act=_analyze)
    browse = commands.add_parser("serve", help="browse the store on loopback")
    browse.add_argument("--store", type=Path, default=Path("store"))
    browse.add_argument("--port", type=int, default=8080)
    browse.set_defaults(act=_serve)
    able = commands.add_parser("doctor", help="what this machine can do")
    able.set_defaults(act=_doctor)
    clean = commands.add_parser("clean", help="remove what dead runs left behind")
    clean.add_argument(
        "--all", action="store_true", help="runs that go on, and those of other pid namespaces, too"
    )
    clean.set_defaults(act=_clean)
    return parser


def _add_test_options(parser: argparse.ArgumentParser) -> None:
    """Their defaults are Options'."""
    add = parser.add_argument
    add("--workload", choices=sorted(WORKLOADS))
    add("--nemesis", help='a kind, "a,b", all, mixed or none')
    add("--hosts", choices=choosing.KINDS)
    add("--net", choices=NETS, help="between local nodes; auto: the strongest there is")
    add("--nodes", type=int)
    add("--concurrency", metavar="N", help='clients, or "3n": three a node')
    add("--rate", type=float, metavar="HZ", help="operations begun a second, by all clients")
    add("--replicate", type=int, help="0: drawn")
    add("--retry", type=int, metavar="S", help="-1: drawn")
    add("--ttl", type=int, metavar="S", help="0: the server's default")
    add("--aof", choices=AOF)
    add("--time-limit", type=float, metavar="S")
    add("--nemesis-interval", type=float, metavar="S", help="from start to start of faults")
    add("--nemesis-stable-period", type=float, metavar="S", help="long quiet, in long runs")
    add("--node-timeout", type=int, metavar="MS", dest="node_timeout_ms")
    add("--final", choices=FINALS, help="heal everything, or leave all but a core dead")
    add("--final-time-limit", type=float, metavar="S", help="of the drain")
    add("--seed", type=lambda word: int(word, 0))
    add("--test-count", type=int, metavar="N", help="so often, each with the next seed")
    add("--leave-running", action="store_true", default=None, help="until Ctrl-C, after the test")
    add("--server-command", type=shlex.split, metavar="WORDS", help="instead of our server")
    add("--json", action="store_true", default=None, help="one line for machines at the end")
    add("--store", type=Path)


def options_of(words: argparse.Namespace) -> Options:
    """The options of a command line. Raises OptionError."""
    given: dict[str, Any] = {
        field.name: value
        for field in attrs.fields(Options)
        if (value := getattr(words, field.name, None)) is not None
    }
    if words.net in _HOSTS_OF_NET:
        given["hosts"] = _HOSTS_OF_NET[words.net]
    if "concurrency" in given:
        given["concurrency"] = _count(given["concurrency"], given.get("nodes", Options().nodes))
    if "server_command" in given:
        given["server_command"] = tuple(given["server_command"])
    return Options(**given)


def _count(word: str, nodes: int) -> int:
    """A number of clients: "15" or "3n"."""
    number = word.removesuffix("n")
    if not number.isdigit() or int(number) == 0:
        raise OptionError(f"--concurrency {word}: a number above 0, or one with n for each node")
    return int(number) * (nodes if word.endswith("n") else 1)


def run_one(options: Options) -> tuple[int, bool]:
    """One test with all its repetitions: the status, and whether somebody stopped it and wants no more.

    A harness that breaks is a status, not an exception.
    """
    say = _say_to_stderr if options.json else _say
    statuses = []
    for number in range(options.test_count):
        each = attrs.evolve(options, seed=options.seed + number)
        try:
            outcome = trio.run(run_test, each, say)
        except (OptionError, NoNemesisError, KeyboardInterrupt):
            raise
        except (Exception, BaseExceptionGroup) as error:  # whatever: the harness broke
            if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt):
                raise KeyboardInterrupt from error
            traceback.print_exc()
            statuses.append(BROKEN)
            continue
        statuses.append(STATUS[outcome.valid])
        if options.json:
            print(json.dumps(outcome_json(outcome)))
        if outcome.is_stopped:
            return matrix.worst(statuses), True
    return matrix.worst(statuses), False


def _test(words: argparse.Namespace) -> int:
    return run_one(options_of(words))[0]


def _test_all(words: argparse.Namespace) -> int:
    base = options_of(words)
    cells = [
        cell
        for cell in (matrix.QUICK if words.quick else matrix.full())
        if words.only in f"{cell.workload} {cell.nemesis}"
    ]
    if not cells:
        raise OptionError(f"--only {words.only}: no test has this in its name")
    ended: list[tuple[str, int]] = []
    left_out: list[str] = []
    for number, cell in enumerate(cells, 1):
        options = matrix.options_of(cell, base)
        _say(f"\n{number}/{len(cells)}  {cell.title}")
        try:
            status, is_stopped = run_one(options)
        except NoNemesisError as error:
            left_out.append(f"{cell.title}: {error}")
            continue
        ended.append((cell.title, status))
        if is_stopped:
            _say(f"stopped: {len(cells) - number} tests not begun")
            break
    _say("")
    for name, status in ended:
        _say(f"{matrix.WORDS[status]:<15} {name}")
    for reason in left_out:
        _say(f"{'left out':<15} {reason}")
    return matrix.worst([status for _, status in ended])


def _analyze(words: argparse.Namespace) -> int:
    try:
        folder = words.folder or analyze.latest(words.store)
        _, results = analyze.recheck(folder)
    except (FileNotFoundError, ValueError) as error:
        print(f"jepsen: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    _say(report.summary(results, report=folder / "report.html"))
    return STATUS[verdict(results)]


def _serve(words: argparse.Namespace) -> int:
    server = serve.make_server(words.store, words.port)
    _say(f"http://{serve.HOST}:{server.server_port}/  until Ctrl-C")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


def _doctor(words: argparse.Namespace) -> int:
    _say(doctor.table())
    return 0


def _clean(words: argparse.Namespace) -> int:
    try:
        removed = cleaning.clean(everything=words.all)
    except HostsError as error:
        print(f"jepsen: {error}", file=sys.stderr)
        return BROKEN
    for each in removed:
        _say(each.describe())
    _say(f"{len(removed)} runs cleaned up")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _say_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
