"""Settings: the nearest word wins: option, URL, environment, default."""

from __future__ import annotations

import click
import pytest

from disque.cli.connection import Address, Target, parse_url
from disque.cli.settings import PortNumber, Settings
from disque.client.url import Tls

CASES = [
    (Settings(), {}, Target()),
    (Settings(port=7712), {}, Target((Address(port=7712),))),
    (Settings(socket="/run/x"), {}, Target((Address(path="/run/x"),))),
    (
        Settings(url="disque://ann:pw@a:1;b"),
        {},
        Target((Address("a", 1), Address("b", 7711)), "ann", "pw"),
    ),
    (Settings(), {"DISQUE_URL": "disque://h:9"}, Target((Address("h", 9),))),
    (Settings(url="disque://h"), {"DISQUE_URL": "disque://other"}, Target((Address("h"),))),
    (Settings(url="disque://:a@h:9", port=8), {}, Target((Address("h", 8),), "", "a")),
    (Settings(), {"DISQUE_PASSWORD": "a", "DISQUE_AUTH": "b"}, Target(password="a")),
    (Settings(), {"DISQUE_AUTH": "b"}, Target(password="b")),
    (Settings(password="o"), {"DISQUE_AUTH": "b"}, Target(password="o")),
    (Settings(url="disque://:u@h"), {"DISQUE_AUTH": "b"}, Target((Address("h"),), "", "u")),
    (Settings(password="o", url="disque://:u@h"), {}, Target((Address("h"),), "", "o")),
    # the server's own variables, which containers set, are not the tool's
    (Settings(), {"DISQUE_PORT": "tcp://10.0.0.1:7711"}, Target()),
]


@pytest.mark.parametrize(("settings", "environment", "target"), CASES)
def test_nearest_word_wins(settings: Settings, environment: dict[str, str], target: Target) -> None:
    assert settings.target(environment) == target


@pytest.mark.parametrize("url", ["", "redis://h", "disque://", "disque://h:0", "disque://h:x"])
def test_wrong_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_url(url)


def test_password_is_not_shown() -> None:
    assert "secret" not in repr(Target(password="secret"))


def test_client_gets_the_same_with_the_options_of_the_url() -> None:
    url = "disques://:pw@a;b:9?reply_timeout=7&tls_ca=/ca.pem"
    endpoint = Settings(url=url, cert="/me.pem").endpoint()
    assert [str(address) for address in endpoint.addresses] == ["a:7711", "b:9"]
    assert (endpoint.password, endpoint.options.reply_timeout) == ("pw", 7.0)
    assert endpoint.tls == Tls(ca="/ca.pem", cert="/me.pem")
    assert Settings().endpoint().tls is None
    with pytest.raises(click.UsageError, match="Unix socket"):
        Settings(socket="/run/x").endpoint()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Settings(cacert="ca.pem"), "options of TLS without TLS: say --tls"),
        (Settings(is_insecure=True, url="disque://h"), "options of TLS without TLS: say --tls"),
        (Settings(user="ann"), "--user ann without a password: the password is taken from"),
    ],
)
def test_what_would_say_nothing_is_refused(settings: Settings, complaint: str) -> None:
    with pytest.raises(click.UsageError, match=complaint):
        settings.target({})


@pytest.mark.parametrize("text", ["abc", "0", "65536"])
def test_what_is_no_port_is_told_as_such(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"a port is 1 to 65535, got '{text}'"):
        PortNumber().convert(text, None, None)
