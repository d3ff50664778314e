"""The simulator's command line: `python -m tests.sim --seeds 0..299 [--jobs 2]` or `--seed 7 [--trace]`.

Exit status 0: no rule broken, and no cell of the coverage table empty without a reason (asked from 300 seeds on).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator

from tests.sim import coverage
from tests.sim.plan import draw
from tests.sim.run import Result, run_profile, run_seed

STRICT_SEEDS = 300  # fewer seeds can't be expected to meet every rare case


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status."""
    options = _parse(arguments)
    if options.seed is not None:
        return _one(options.seed, wants_trace=options.trace)
    first, last = options.seeds
    begun = time.monotonic()
    totals = coverage.Totals()
    failures: list[Result] = []
    for result in _results(range(first, last + 1), options.jobs):
        totals.add(result)
        if result.violation is not None:
            failures.append(result)
            _show_failure(result, wants_story=len(failures) <= options.stories)
            if len(failures) >= options.failures_max:
                break
    print(totals.table(time.monotonic() - begun, options.jobs))
    empty = totals.unexplained() if last - first + 1 >= STRICT_SEEDS else []
    for cell in empty:
        print(f"EMPTY {cell}: no seed met it, and coverage.ALLOWED_EMPTY gives no reason")
    if failures:
        print(f"{len(failures)} seeds FAILED: {' '.join(str(f.seed) for f in failures)}")
    return 1 if failures or empty else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--seeds", type=_range, default=(0, 99), metavar="A..B", help="both ends included"
    )
    parser.add_argument(
        "--seed", type=lambda text: int(text, 0), help="one seed, with its plan and digest"
    )
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


def _one(seed: int, *, wants_trace: bool) -> int:
    profile = draw(seed)
    print(profile.describe())
    result, world = run_profile(profile, wants_digest=True)
    if wants_trace:
        for line in world.story.text():
            print(line)
    totals = coverage.Totals()
    totals.add(result)
    print(totals.summary(result.cpu_s, 1))
    print(f"digest {result.digest}")
    if result.violation is not None:
        _show_failure(result, wants_story=True)
        return 1
    return 0


def _results(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=1)


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
