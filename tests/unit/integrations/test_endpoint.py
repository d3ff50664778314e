"""Which cluster a Kombu connection means."""

from __future__ import annotations

import ssl
from typing import Any

import kombu
import pytest

import disque.kombu_transport
from disque.client import Address, Endpoint, Options
from disque.client.url import Tls
from disque.integrations.dramatiq import DisqueBroker
from disque.kombu_transport.endpoint import endpoint_of, tls_of, whole_s

disque.kombu_transport.register()
A, B = Address("a", 1), Address("b", 7711)
PATIENCE = Options(connect_timeout=5.0, failover_timeout=1.0)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("disque://a:1", (A,)),
        ("disque://b", (B,)),
        ("disque://", (Address("localhost", 7711),)),
        ("disque://a:1//", (A,)),
        ("disque://a:1/0", (A,)),
        ("disque://a:1;disque://b:7711", (A, B)),
        ("disque://a:1;b", (A, B)),
        ("disque://[::1]:1", (Address("::1", 1),)),
    ],
)
def test_every_node_that_is_named_is_one_to_ask(url: str, addresses: tuple[Address, ...]) -> None:
    assert endpoint_of(kombu.Connection(url)) == Endpoint(addresses, options=PATIENCE)


def test_after_kombu_s_own_switch_the_other_node_comes_first() -> None:
    connection = kombu.Connection("disque://a:1;b:2")
    connection.maybe_switch_next()
    assert endpoint_of(connection).addresses == (Address("b", 2), A)


@pytest.mark.parametrize(
    ("url", "username", "password"),
    [
        ("disque://:s%40crt@a:1", "", "s@crt"),
        ("disque://me:secret@a:1", "me", "secret"),
        ("disque://secret@a:1", "", "secret"),
    ],
)
def test_credentials(url: str, username: str, password: str) -> None:
    endpoint = endpoint_of(kombu.Connection(url))
    assert (endpoint.username, endpoint.password) == (username, password)
    assert "secret" not in repr(endpoint)


def test_a_password_may_be_a_function() -> None:
    connection = kombu.Connection("disque://me@a:1", password=lambda: "fresh")
    assert endpoint_of(connection).password == "fresh"


def test_transport_options_that_the_client_knows_reach_it() -> None:
    connection = kombu.Connection(
        "disque://a:1",
        connect_timeout=3,
        transport_options={"reply_timeout": 9.0, "discover": False, "visibility_timeout": 5},
    )
    assert endpoint_of(connection).options == Options(
        connect_timeout=3.0, reply_timeout=9.0, failover_timeout=1.0, discover=False
    )


def test_an_option_that_nobody_heeds_is_refused_by_name() -> None:
    known = {"max_retries": 3, "visibility_timeout": 5, "discover": False, "body_encoding": None}
    assert kombu.Connection("disque://a:1", transport_options=known).transport is not None
    connection = kombu.Connection("disque://a:1", transport_options={"visibilty_timeout": 5})
    with pytest.raises(ValueError, match="no transport option 'visibilty_timeout': there are"):
        _ = connection.transport


def test_options_in_the_url_are_refused_not_ignored() -> None:
    with pytest.raises(ValueError, match=r"belong into transport options, .*: discover"):
        endpoint_of(kombu.Connection("disque://a:1;disque://b:2?discover=no"))


def test_an_option_that_can_t_be_meant_is_refused() -> None:
    connection = kombu.Connection("disque://a:1", transport_options={"reply_timeout": -1})
    with pytest.raises(ValueError, match="reply_timeout"):
        endpoint_of(connection)


def test_a_virtual_host_is_refused_two_of_them_would_be_one() -> None:
    with pytest.raises(ValueError, match="there are no virtual hosts, got 'shop'"):
        endpoint_of(kombu.Connection("disque://a:1/shop"))


@pytest.mark.parametrize("given", [0, -1, 0.5, "60", True, float("inf"), None])
def test_a_time_that_can_t_be_meant_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ValueError, match=r"visibility_timeout must be seconds, 1 or more, got "):
        whole_s("visibility_timeout", given)
    assert whole_s("visibility_timeout", 60.5) == 60


@pytest.mark.parametrize("retry", [0, 1.5, "60"])
def test_a_retry_of_dramatiq_s_broker_that_can_t_be_meant_is_refused(retry: Any) -> None:
    with pytest.raises(ValueError, match="retry must be whole seconds, 1 or more, got "):
        DisqueBroker("disque://a", retry=retry)


@pytest.mark.parametrize(
    ("given", "tls"),
    [
        (True, Tls()),
        ({}, Tls()),
        ({"ca_certs": "ca", "certfile": "cert", "keyfile": "key"}, Tls("ca", "cert", "key")),
        ({"ssl_ca_certs": "ca", "ssl_cert_reqs": ssl.CERT_REQUIRED}, Tls("ca")),
        ({"cert_reqs": ssl.CERT_NONE}, Tls(verify=False)),
        ({"ssl_cert_reqs": "none"}, Tls(verify=False)),
    ],
)
def test_kombu_s_ssl_by_its_names(given: Any, tls: Tls) -> None:
    assert tls_of(given) == tls


def test_a_name_that_ssl_doesn_t_know_is_refused() -> None:
    with pytest.raises(ValueError, match="got ciphers"):
        tls_of({"ciphers": "ALL"})


def test_the_scheme_asks_for_tls_and_for_the_named_nodes_only() -> None:
    endpoint = endpoint_of(kombu.Connection("disques://a:1"))
    assert endpoint.tls == Tls()
    assert endpoint.options.discover is False
