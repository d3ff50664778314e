"""Which addresses are this machine's own, and how they are spelled."""

from __future__ import annotations

import pytest

from cluster.places import packed
from disque.server.addresses import (
    is_loopback,
    join_host_port,
    socket_host,
    socket_name,
)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.255.255.254", "::1", "[::1]", "::ffff:127.0.0.1", "::ffff:7f00:1"],
)
def test_loopback_in_all_its_spellings(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "127.1",
        "128.0.0.1",
        "10.0.0.1",
        "::",
        "::2",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "1::ffff:127.0.0.1",
        "127.0.0.1\0",
    ],
)
def test_everything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_mapped_address_is_the_ipv4_one() -> None:
    assert packed("::ffff:1.2.3.4") == bytes((1, 2, 3, 4))
    assert socket_host(("::ffff:1.2.3.4", 7711, 0, 0)) == "1.2.3.4"


def test_address_is_spelled_as_client_list_shows_it() -> None:
    assert socket_name(("10.0.0.1", 7711)) == "10.0.0.1:7711"
    assert socket_name(("::1", 7711, 0, 0)) == "[::1]:7711"
    assert socket_name("", "/run/s") == "unix:/run/s"
    assert join_host_port("fe80::1", 1) == "[fe80::1]:1"
