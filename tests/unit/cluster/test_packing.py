"""One buffer for all that is packed: what came before leaves nothing behind."""

from __future__ import annotations

import msgpack
import pytest

from cluster.packing import KEPT_BYTES_MAX, bytes_head, pack, pack_list_head


@pytest.mark.parametrize("size", [0, 10, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1])
def test_the_next_is_packed_as_if_nothing_had_been(size: int) -> None:
    large = [b"x" * size]
    assert pack(large) == msgpack.packb(large)
    assert pack([1, b"two"]) == msgpack.packb([1, b"two"])


@pytest.mark.parametrize("bad", [object(), 1 << 64, "\ud800"])
def test_what_cannot_be_said_leaves_no_half_of_it(bad: object) -> None:
    with pytest.raises((TypeError, OverflowError, ValueError)):
        pack([b"some", bad])
    assert pack([1]) == msgpack.packb([1])


def test_a_large_buffer_is_not_kept() -> None:
    from cluster import packing

    pack([b"small"])
    kept = packing._packer
    pack([b"x" * KEPT_BYTES_MAX])
    assert packing._packer is not kept


@pytest.mark.parametrize("count", [0, 15, 16, 70_000])
def test_elements_packed_by_themselves_make_the_array(count: int) -> None:
    assert pack_list_head(count) + pack(7) * count == msgpack.packb([7] * count)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
def test_bytes_with_their_head_are_as_packed(size: int) -> None:
    assert bytes_head(size) + bytes(size) == msgpack.packb(bytes(size))
