"""What a node held once doesn't stay with its process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cluster import link
from disque.server import clients
from disque.server.heap import LARGE_BYTES

PROGRAM = """
from disque.server.heap import keep_large_apart

def resident():
    return int(open("/proc/self/statm").read().split()[1]) << 12

if not keep_large_apart():
    raise SystemExit(77)
before = resident()
kept = []
for _ in range(3):  # glibc raises its bound when a block is freed
    replies = [b"x" * 200_000 for _ in range(500)]
    kept.append([bytes(1_000) for _ in range(1_000)])  # lies on top of them
    del replies
print((resident() - before) >> 20)
"""


def test_large_blocks_go_back_to_the_system_below_others_that_stay() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("not glibc")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30


@pytest.mark.parametrize("size", [clients.READ_BYTES, link.READ_BYTES])
def test_what_is_read_at_once_fits_into_a_block_of_the_heap(size: int) -> None:
    assert sys.getsizeof(bytes(size)) < LARGE_BYTES
