"""DISQUE_DIAL_MAP: read at start, refused with a reason, used for dialing only."""

from __future__ import annotations

import pytest

from disque.errors import ConfigError
from disque.server.configfile import load
from disque.server.dialmap import dialer, parse_dial_map


def test_pairs_say_where_to_dial_instead():
    pairs = parse_dial_map("127.0.0.1:17711=127.0.0.1:4001, [::1]:17712=proxy:4002,")
    assert pairs == {("127.0.0.1", 17711): ("127.0.0.1", 4001), ("::1", 17712): ("proxy", 4002)}


def test_addresses_that_the_map_does_not_know_stay():
    dial = dialer({("a", 1): ("b", 2)})
    assert dial is not None
    assert dial("a", 1) == ("b", 2)
    assert dial("a", 2) == ("a", 2)


def test_without_a_map_there_is_no_hook():
    loaded = load([], {})
    assert dialer(loaded.config.dial_map) is None


def test_environment_gives_the_map_and_no_warning():
    loaded = load([], {"DISQUE_DIAL_MAP": "h:1=h:2"})
    assert loaded.config.dial_map == {("h", 1): ("h", 2)}
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h:1", "must be host:port=host:port,..., got 'h:1'"),
        ("h:1=h", "got 'h' for an address"),
        ("h=h:1", "got 'h' for an address"),
        ("h:1=h:0", "got 'h:0' for an address"),
        ("h:1=h:65536", "got 'h:65536' for an address"),
        ("::1:1=h:2", "got '::1:1' for an address"),
        ("h:1=h:2,h:1=h:3", "has 'h:1' twice"),
    ],
)
def test_bad_map_is_a_clear_error_at_start(text, complaint):
    with pytest.raises(ConfigError, match=r"^DISQUE_DIAL_MAP: ") as caught:
        load([], {"DISQUE_DIAL_MAP": text})
    assert complaint in str(caught.value)
