"""The system's chance in large pieces."""

from __future__ import annotations

import pytest

from disque.server.entropy import POOL_BYTES, Entropy


def test_no_byte_of_a_piece_is_given_twice_or_left_out_by_equal_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[bytes] = []

    def urandom(n: int) -> bytes:
        drawn.append(bytes([len(drawn)]) * (n - 1) + b"!")
        return drawn[-1]

    monkeypatch.setattr("os.urandom", urandom)
    dice = Entropy()
    given = [dice.randbytes(16) for _ in range(3 * POOL_BYTES // 16)]
    assert b"".join(given) == b"".join(drawn)
    assert len(drawn) == 3


@pytest.mark.parametrize("n", [0, 1, 18, POOL_BYTES, POOL_BYTES + 1])
def test_as_many_bytes_as_asked_for_whatever_is_left(n: int) -> None:
    dice = Entropy()
    dice.randbytes(POOL_BYTES - 5)
    assert len(dice.randbytes(n)) == n
