"""`python -m tests.fuzz [--seconds N] [--seed N] [TARGET...]`: new inputs until the time is over.

What breaks a target is made small and put into its corpus, where each test run tries it again. Memory is looked at,
too: a target that grows is a failure.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import random
import sys
import time
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, given, settings

from disque.server.info import resident_bytes
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).with_name("corpus")
ROUND = 500  # inputs, then the clock and the memory are looked at
WARM_ROUNDS = 4
GROWTH_MAX = 1.5  # of the resident size since the warm rounds


def main() -> int:
    """The exit status: 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together (60)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=" ".join(t.name for t in TARGETS)
    )
    options = parser.parse_args()
    known = {target.name: target for target in TARGETS}
    if unknown := [name for name in options.targets if name not in known]:
        parser.error(f"no target {unknown[0]}, there are: {' '.join(known)}")
    chosen = [known[name] for name in options.targets] or list(TARGETS)
    print(f"seed {options.seed}, {options.seconds:g} s for {len(chosen)} targets")
    results = [fuzz(target, options.seconds / len(chosen), options.seed) for target in chosen]
    return 0 if all(results) else 1


def fuzz(target: Target, seconds: float, seed: int) -> bool:
    """Run one target for so long; False if it broke or grew."""
    until, rounds, inputs = time.monotonic() + seconds, 0, 0
    last = b""
    warm = 0

    def run(data: bytes) -> None:
        nonlocal last, inputs
        inputs += 1
        try:
            target.run(data)
        except BaseException:
            last = data
            raise

    while time.monotonic() < until:
        test = settings(
            max_examples=ROUND,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(given(target.inputs)(run))
        try:
            hypothesis.seed(seed + rounds)(test)()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what we look for
            return tell(target, last, error)
        rounds += 1
        gc.collect()
        size = resident_bytes()
        warm = size if rounds <= WARM_ROUNDS else warm
        if size > GROWTH_MAX * warm:
            print(f"{target.name}: grew from {warm} to {size} bytes in {inputs} inputs")
            return False
    print(f"{target.name}: {inputs} inputs, {resident_bytes() >> 20} MiB")
    return True


def tell(target: Target, data: bytes, error: BaseException) -> bool:
    """Keep what broke a target, and say where."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:12]}.hex"
    path.write_text(data.hex() + "\n")
    print(f"{target.name}: {type(error).__name__}: {error}\n  {data!r}\n  kept as {path}")
    return False


if __name__ == "__main__":
    sys.exit(main())
