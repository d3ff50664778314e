"""What a node held once doesn't stay with its process."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import trio

from cluster import link
from disque.core.delivery import free, queue_of
from disque.server import clients
from disque.server.heap import (
    FALL_MIN_BYTES,
    LARGE_BYTES,
    LOOK_S,
    Tide,
    clear_free_lists,
    give_back,
    return_free_blocks,
)
from tests.unit.server.world import running

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


def test_it_is_low_tide_when_a_quarter_has_gone_and_no_more_goes() -> None:
    tide = Tide()
    most, least = 400 << 20, 300 << 20
    assert [tide.is_out(used) for used in (most, most, most - (50 << 20))] == [False] * 3
    assert not tide.is_out(least)  # it falls
    assert tide.is_out(least)
    assert not tide.is_out(least)
    assert not tide.is_out(1 << 20)
    assert tide.is_out(1 << 20)


def test_little_is_no_tide() -> None:
    tide = Tide()
    assert not any(
        tide.is_out(used) for used in (1 << 20, FALL_MIN_BYTES, 1 << 20, 1 << 20, 1 << 20)
    )


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """For the tests after this one the collector looks at all objects again."""
    yield
    gc.unfreeze()


def test_what_python_keeps_for_later_is_freed() -> None:
    kept = [(number, number, number) for number in range(5_000)]
    del kept
    before = sys.getallocatedblocks()
    clear_free_lists(is_still=False)
    assert sys.getallocatedblocks() < before - 1_000


def test_to_give_blocks_back_leaves_nothing_behind() -> None:
    return_free_blocks()
    before = len(gc.get_objects())
    for _ in range(20):
        return_free_blocks()
    assert len(gc.get_objects()) < before + 20


def test_what_was_told_to_be_old_and_is_garbage_now_is_freed_on_a_still_node() -> None:
    class Ring:
        def __init__(self) -> None:
            self.own = self

    ring = weakref.ref(Ring())
    gc.freeze()
    clear_free_lists(is_still=False)
    assert ring() is not None
    clear_free_lists(is_still=True)
    assert ring() is None


async def test_when_much_has_gone_tables_get_small(autojump_clock: object) -> None:
    async with running() as world:
        engine = world.broker.engine
        queues = engine.state.queues
        for number in range(30_000):
            queue_of(engine.state, b"name-%d" % number)
        for queue in list(queues.values()):
            free(engine.state, queue)
        world.nursery.start_soon(give_back, world.turns)
        for body_bytes in (100 << 20, 0):
            engine.state.body_bytes = body_bytes
            await trio.sleep(2.5 * LOOK_S)
        assert sys.getsizeof(queues) < 1_000
