"""The simulator's command line.

    python -m tests.sim --seeds 0..299 --jobs 2       many runs; --events 5000 makes them short ones
    python -m tests.sim --seed 7 [--trace]            one run, with its plan and digest
    python -m tests.sim --plan store/sim/x.json       a plan from a file
    python -m tests.sim --seed 3 --events 5000 --mutant no-dummy     with a bug of tests.mutants in it

A failing run tells its story, and its plan is made small and written below store/sim. Exit status 0: no rule broken,
and no cell of the coverage table empty without a reason (asked from 285 seeds of full length on, as CI has them).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from tests.sim import coverage
from tests.sim.plan import Profile, draw, with_log
from tests.sim.run import Result, run_profile, run_seed
from tests.sim.shrink import shrunk

STRICT_SEEDS = 285  # of one call; fewer can't be expected to meet every rare case


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status."""
    options = _parse(arguments)
    if options.plan is not None or options.seed is not None:
        return _one(options)
    first, last = options.seeds
    begun = time.monotonic()
    totals = coverage.Totals()
    failures: list[Result] = []
    for result in _results(range(first, last + 1), options):
        totals.add(result)
        if result.violation is not None:
            failures.append(result)
            _show_failure(result, wants_story=len(failures) <= options.stories)
            if len(failures) <= options.stories:
                _shrink(_plan(result.seed, options), result, options.shrink)
            if len(failures) >= options.failures_max:
                break
    print(totals.table(time.monotonic() - begun, options.jobs))
    is_strict = last - first + 1 >= STRICT_SEEDS and not options.events and not options.log
    empty = totals.unexplained() if is_strict else []
    for cell in empty:
        print(f"EMPTY {cell}: no seed met it, and coverage.ALLOWED_EMPTY gives no reason")
    if failures:
        print(f"{len(failures)} seeds FAILED: {' '.join(str(f.seed) for f in failures)}")
    return 1 if failures or empty else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=_range, default=(0, 99), metavar="A..B", help="both ends included"
    )
    parser.add_argument(
        "--seed", type=lambda text: int(text, 0), help="one seed, with its plan and digest"
    )
    parser.add_argument("--plan", type=Path, help="a plan from a file")
    parser.add_argument("--mutant", help="with --seed or --plan: a bug of tests.mutants")
    parser.add_argument(
        "--events", type=int, default=0, help="short runs, of about so many events at most"
    )
    parser.add_argument(
        "--shrink", type=float, default=60, help="seconds for making a failing plan small; 0: none"
    )
    parser.add_argument("--log", action="store_true", help="nodes with a log, and disks that fail")
    parser.add_argument("--trace", action="store_true", help="with --seed: print the whole story")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--stories", type=int, default=1, help="how many failing seeds tell their story"
    )
    parser.add_argument(
        "--failures-max", type=int, default=20, help="stop after so many failing seeds"
    )
    return parser.parse_args(arguments)


def _range(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    return int(first, 0), int(last, 0) if dots else int(first, 0)


def _one(options: argparse.Namespace) -> int:
    if options.plan is not None:
        profile = Profile.from_json(options.plan.read_text())
    else:
        profile = _plan(options.seed, options)
    bug = nullcontext(0)
    if options.mutant is not None:
        # only now: the catalogue needs the simulator
        from tests.mutants.catalogue import BUGS
        from tests.mutants.surgery import patched

        if options.plan is None:
            profile = BUGS[options.mutant].shape(profile)
        bug = patched(*BUGS[options.mutant].patches)  # type: ignore[assignment]
    print(profile.describe())
    with bug:
        result, world = run_profile(profile, wants_digest=True)
        if options.trace:
            for line in world.story.text():
                print(line)
        totals = coverage.Totals()
        totals.add(result)
        print(totals.summary(result.cpu_s, 1))
        print(f"digest {result.digest}")
        if result.violation is None:
            return 0
        _show_failure(result, wants_story=True)
        with_bug = f" --mutant {options.mutant}" if options.mutant is not None else ""
        _shrink(profile, result, options.shrink, with_bug)
    return 1


def _shrink(profile: Profile, result: Result, seconds: float, with_bug: str = "") -> None:
    if seconds and result.violation is not None:
        print(shrunk(profile, result.violation.rule, seconds, with_bug), flush=True)


def _plan(seed: int, options: argparse.Namespace) -> Profile:
    profile = draw(seed, options.events)
    return with_log(profile) if options.log else profile


def _results(seeds: Iterable[int], options: argparse.Namespace) -> Iterator[Result]:
    jobs = options.jobs
    run = partial(run_seed, events_wanted=options.events, has_log=options.log)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, chunksize=1)


def _show_failure(result: Result, *, wants_story: bool) -> None:
    assert result.violation is not None
    if wants_story:
        print(result.story)
    else:
        text = result.violation.text.strip().splitlines()
        print(f"FAIL seed {result.seed} {result.violation.rule}: {text[0][:200]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
