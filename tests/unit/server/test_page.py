"""The page's directives: where it listens, and what can't be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from disque.errors import CommandError, ConfigError
from disque.server.config import Config
from disque.server.configfile import load

if TYPE_CHECKING:
    from collections.abc import Mapping


def configured(*flags: str, environment: Mapping[str, str] = {}) -> Config:
    """The settings that these flags make."""
    return load(flags, environment).config


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ((), 8711),
        (("--port", "9000"), 10_000),
        (("--http-port", "0"), 0),
        (("--http-port", "80"), 80),
        (("--http-port", "AUTO"), 8711),
        (("--port", "65000", "--cluster-port", "1000"), 0),
    ],
)
def test_the_page_is_1000_above_the_port_unless_it_is_set(
    flags: tuple[str, ...], port: int
) -> None:
    assert configured(*flags).page_port == port


@pytest.mark.parametrize(
    ("hosts", "is_exposed"),
    [
        ((), False),
        (("127.0.0.1", "::1"), False),
        (("[::1]",), False),
        (("0.0.0.0",), True),
        (("*",), True),
        (("127.0.0.1", "10.0.0.1"), True),
        (("localhost",), True),
    ],
)
def test_more_than_loopback_is_exposed_and_needs_a_password(
    hosts: tuple[str, ...], is_exposed: bool
) -> None:
    flags = ("--http-bind", *hosts) if hosts else ()
    assert configured(*flags, "--requirepass", "x").is_page_exposed is is_exposed
    assert configured(*flags, "--http-port", "0").page_port == 0
    if is_exposed:
        with pytest.raises(ConfigError, match=r"^http-bind .* needs requirepass"):
            configured(*flags)
    else:
        assert configured(*flags).page_port == 8711


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--http-port", "65536"), "http-port must be a number between 0 and 65535, or auto"),
        (("--http-port", "no"), "http-port must be a number between 0 and 65535, or auto"),
        (("--http-port", "7711"), "http-port must be another than port and cluster-port, got 7711"),
        (("--http-port", "17711"), "http-port must be another than port"),
        (("--stomp-port", "9", "--http-port", "9"), "http-port must be another than port"),
        (("--http-tls", "yes"), "http-tls needs tls-cert-file"),
        (
            ("--http-bind", "*", "--requirepass", "x", "--tls-only", "yes"),
            "tls-only with http-bind needs http-tls",
        ),
    ],
)
def test_what_cannot_be_is_told(flags: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(*flags)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "name", "text", "complaint"),
    [
        (("--http-bind", "*"), "requirepass", "", "http-bind * needs requirepass"),
        (("--http-bind", "*"), "tls-only", "yes", "tls-only with http-bind needs http-tls"),
        (("--http-tls", "yes"), "tls-cert-file", "", "http-tls needs tls-cert-file"),
    ],
)
def test_config_set_makes_nothing_that_a_start_would_refuse(
    flags: tuple[str, ...], name: str, text: str, complaint: str
) -> None:
    config = configured(*flags, "--requirepass", "x", "--tls-cert-file", "cert.pem")
    before = config.get(name)
    with pytest.raises(CommandError) as refused:
        config.set(name, text)
    assert str(refused.value).startswith(complaint)
    assert config.get(name) == before


def test_the_environment_sets_it_too() -> None:
    assert configured(environment={"DISQUE_HTTP_PORT": "80"}).page_port == 80
