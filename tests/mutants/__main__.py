"""Mutants: put a bug into the product and see who notices.

    python -m tests.mutants                     every bug of the catalogue, in its recorded simulated runs
    python -m tests.mutants no-dummy --jobs 2   this one
    python -m tests.mutants --list              names, and how to start a server with the bug in it
    python -m tests.mutants --real [NAME ...]   real clusters with no bug and with it, judged by jepsen, a minute each
    python -m tests.mutants --search            look for the runs anew, write seeds.json
    python -m tests.mutants --faults [W-3 ...]  C Disque's faults against the tests that name them

Exit 1 if a bug survives, is found by somebody else than it should be, or is found without being there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

from tests.mutants import faults, real
from tests.mutants.bank import FAULTS
from tests.mutants.catalogue import BUGS, SEEDS_FILE, recorded
from tests.mutants.hunt import Verdict, judge_all, keys_of, search

SEEDS_MAX = 400
SEARCH_MAX_S = 60  # short runs of one bug, and as long for full ones
WIDTHS = (26, 52, 16, 24, 7)  # of the table's columns


def table(verdicts: list[Verdict]) -> str:
    """bug, what it is, who found it, in which run, seconds to the kill, verdict."""
    rows: list[tuple[str, ...]] = [("bug", "what", "found by", "run", "s", "verdict")]
    for verdict in verdicts:
        where = "black box" if verdict.is_black_box else BUGS[verdict.name].what
        run = "none recorded" if verdict.run is None else verdict.run.command
        took = f"{verdict.seconds:.2f}"
        rows.append((verdict.name, where, verdict.found or "-", run, took, verdict.words))
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=False)]
        lines.append(" ".join([*cells, row[-1]]))
    return "\n".join(lines)


def real_runs() -> str:
    """Every bug, and the real run that must find those that have one."""
    return "\n".join(
        f"{name:26} {shlex.join(real.command(name, bug.real)) if bug.real else '-'}"
        for name, bug in BUGS.items()
    )


def run_real(names: list[str]) -> int:
    """Real runs, one after another, each of them first with healthy nodes; exit code."""
    runs = dict.fromkeys(BUGS[name].real for name in names)
    bad = 0
    for run in runs:
        for name in (real.HEALTHY, *(each for each in names if BUGS[each].real == run)):
            verdict = real.judge(name, run)
            print(verdict.line, flush=True)
            bad += not verdict.is_good
    return 1 if bad else 0


def look_for(names: list[str]) -> int:
    """Search killing runs and record them; exit code."""
    runs = json.loads(SEEDS_FILE.read_text())
    missing = 0
    for key in keys_of(names):
        found = search(key, seeds_max=SEEDS_MAX, seconds_max=SEARCH_MAX_S)
        print(f"{key:40} {'NONE' if found is None else found.command}", flush=True)
        missing += found is None
        if found is not None:
            runs[key] = [found.seed, found.events]
    SEEDS_FILE.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n")
    return 1 if missing else 0


def main(arguments: list[str]) -> int:
    """Exit code: 0 if every mutant was noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", action="store_true", help="C Disque's faults")
    parser.add_argument("--list", action="store_true", help="names and real runs")
    parser.add_argument("--real", action="store_true", help="real runs of those that have one")
    parser.add_argument("--search", action="store_true", help="look for killing runs anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    options = parser.parse_args(arguments)
    bank = FAULTS if options.faults else BUGS
    unknown = [name for name in options.names if name not in bank]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; there are {' '.join(bank)}")
    names = options.names or list(bank)
    if options.list:
        print(real_runs())
        return 0
    if options.real:
        return run_real([name for name in names if BUGS[name].real])
    if options.faults:
        tested = faults.judge({name: FAULTS[name] for name in names})
        print(faults.table(tested))
        return 0 if all(verdict.is_good for verdict in tested) else 1
    if options.search:
        return look_for(names)
    verdicts = list(judge_all(recorded(), keys_of(names), options.jobs))
    print(table(verdicts))
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    print(f"{len(verdicts) - len(bad)} of {len(verdicts)} runs kill as they should")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
