"""Places: what counts as one, and who makes room."""

from __future__ import annotations

import pytest

from cluster.places import oldest_of_most, place_of


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("node.example", "node.example"),
    ],
)
def test_a_network_of_one_owner_is_one_place(host: str, place: str) -> None:
    assert place_of(host) == place


def test_who_makes_room_is_the_first_of_where_most_come_from() -> None:
    assert oldest_of_most([("a", "1")]) == "a"
    assert oldest_of_most([("a", "1"), ("b", "2"), ("c", "2")]) == "b"
    assert oldest_of_most([("a", "1"), ("b", "2"), ("c", "2"), ("d", "1")]) == "a"
