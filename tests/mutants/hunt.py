"""Hunt: run a bug in the simulator and say who found it, how soon, and whether the same run is clean without it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator

import attrs

from tests.mutants.catalogue import BUGS, Recorded
from tests.mutants.surgery import patched
from tests.sim.plan import draw
from tests.sim.run import run_profile

SEEN = "/seen"  # after a bug's name: the run of the black box
EVENTS = 5000  # of a short run


@attrs.frozen
class Verdict:
    """What came of one recorded run; `found` is the rule or checker, "" if nothing was found."""

    name: str
    is_black_box: bool
    run: Recorded | None
    found: str
    text: str
    seconds: float
    is_clean_without: bool

    @property
    def expected(self) -> tuple[str, ...]:
        """Who may find it."""
        bug = BUGS[self.name]
        return bug.sees if self.is_black_box else bug.finds

    @property
    def is_good(self) -> bool:
        """The bug, and only the bug, was found by whom it should be."""
        return self.found in self.expected and self.is_clean_without

    @property
    def words(self) -> str:
        """In a word or two."""
        if not self.found:
            return "SURVIVES"
        if self.found not in self.expected:
            return f"found by {self.found}, not by {'/'.join(self.expected)}"
        return "killed" if self.is_clean_without else "killed, BUT FOUND WITHOUT IT, TOO"


def find(name: str, run: Recorded, *, is_black_box: bool) -> tuple[str, str]:
    """The first rule that breaks with this bug, and its text; two empty strings if none does."""
    bug = BUGS[name]
    profile = bug.shape(draw(run.seed, run.events))
    with patched(*bug.patches):
        violation = run_profile(profile, is_black_box=is_black_box)[0].violation
    return ("", "") if violation is None else (violation.rule, violation.text.splitlines()[0])


def is_clean(name: str, run: Recorded, *, is_black_box: bool) -> bool:
    """The same run without the bug breaks nothing."""
    profile = BUGS[name].shape(draw(run.seed, run.events))
    return run_profile(profile, is_black_box=is_black_box)[0].violation is None


def judge(key: str, run: Recorded | None) -> Verdict:
    """The verdict on one recorded run, by its key in seeds.json."""
    name = key.removesuffix(SEEN)
    is_black_box = key.endswith(SEEN)
    if run is None:
        return Verdict(name, is_black_box, None, "", "", 0.0, is_clean_without=True)
    begun = time.monotonic()
    found, text = find(name, run, is_black_box=is_black_box)
    seconds = time.monotonic() - begun
    clean = is_clean(name, run, is_black_box=is_black_box)
    return Verdict(name, is_black_box, run, found, text, seconds, clean)


def keys_of(names: Iterable[str]) -> list[str]:
    """Keys of seeds.json that there should be for these bugs."""
    return [key for name in names for key in (name, name + SEEN) if key == name or BUGS[name].sees]


def judge_all(runs: dict[str, Recorded], keys: list[str], jobs: int) -> Iterator[Verdict]:
    """Verdicts in the order of the keys."""
    work = [(key, runs.get(key)) for key in keys]
    if jobs <= 1:
        yield from (judge(*each) for each in work)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.starmap(judge, work, chunksize=1)


def search(key: str, *, seeds_max: int, seconds_max: float) -> Recorded | None:
    """The first short run, else full run, in which the bug, and only the bug, is found by whom it should be."""
    name, is_black_box = key.removesuffix(SEEN), key.endswith(SEEN)
    wanted = BUGS[name].sees if is_black_box else BUGS[name].finds
    end = time.monotonic() + seconds_max
    for events in (EVENTS, 0):
        for seed in range(seeds_max):
            if time.monotonic() > end:
                break
            run = Recorded(seed, events)
            found, _ = find(name, run, is_black_box=is_black_box)
            if found in wanted and is_clean(name, run, is_black_box=is_black_box):
                return run
        end += seconds_max
    return None
