"""URLs of clusters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disque.client.url import Address, Endpoint, Options, Tls, parse_address, parse_url


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("disque://a", Endpoint((Address("a"),))),
        ("a:1", Endpoint((Address("a", 1),))),
        ("disque://a:1;disque://b:2", Endpoint((Address("a", 1), Address("b", 2)))),
        ("disque://a:1;b:2/", Endpoint((Address("a", 1), Address("b", 2)))),
        ("disque://a:1/0", Endpoint((Address("a", 1),))),
        ("disque://a;a;a:7711", Endpoint((Address("a"),))),
        ("disque://[::1]:5;[::2]", Endpoint((Address("::1", 5), Address("::2")))),
        ("disque://secret@a", Endpoint((Address("a"),), "", "secret")),
        ("disque://:s%40:c@a;b", Endpoint((Address("a"), Address("b")), "", "s@:c")),
        ("disque://me:x@a", Endpoint((Address("a"),), "me", "x")),
        (
            "disque://a/?reply_timeout=1.5&discover=no",
            Endpoint((Address("a"),), options=Options(reply_timeout=1.5, discover=False)),
        ),
        ("disques://a;disques://b", Endpoint((Address("a"), Address("b")), tls=Tls())),
        (
            "disques://a?tls_ca=/c&tls_cert=/d&tls_key=/e&tls_verify=no",
            Endpoint((Address("a"),), tls=Tls("/c", "/d", "/e", verify=False)),
        ),
    ],
)
def test_url_is_read(url: str, endpoint: Endpoint) -> None:
    assert parse_url(url) == endpoint


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "no host in ''"),
        ("disque://", "no host"),
        ("redis://a", "got 'redis://a'"),
        ("disque://a;disques://b", "got 'disques://b'"),
        ("disques://a;disque://b", "a node is disques://host:port, got 'disque://b'"),
        ("disque://a?tls_ca=/c", "tls_ca need disques://"),
        ("disque://a:0", "a port is 1 to 65535, got '0'"),
        ("disque://a:65536", "got '65536'"),
        ("disque://a:x", "got 'x'"),
        ("disque://::1", "no host:port: '::1'"),
        ("disque://a b", "no host:port"),
        ("disque://a,b", "several nodes are joined by ';', got 'a,b'"),
        ("disque://a:1,b:2", "several nodes are joined by ';', got 'a:1,b:2'"),
        ("disque://a:1/2", "there are no databases: a URL ends with the port, got '/2'"),
        ("disque://a?timeout=1", "no option 'timeout'"),
        ("disque://a?poll=fast", "poll can't be 'fast'"),
        ("disque://a?poll=0", "poll must be seconds above 0, got 0.0"),
        ("disque://a?poll=nan", "poll must be seconds above 0"),
        ("disque://a?discover=maybe", "discover can't be 'maybe'"),
    ],
)
def test_url_that_cannot_be_meant_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_url(url)
    assert complaint in str(caught.value)


def test_complaints_and_representations_never_show_the_password() -> None:
    for url in (
        "redis://u:hidden@a",
        "disque://u:hidden@",
        "disque://u:hidden;x@a",
        "disque://u:hidden?x@a",
        "disque://u:12?hidden@a",
        "redis://u:hidden;x@a",
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            parse_url(url)
        assert "hidden" not in str(caught.value)
    assert "hidden" not in repr(parse_url("disque://u:hidden@a"))


HOSTS = st.sampled_from(["a", "node-1.example", "10.0.0.1", "::1", "fe80::1%eth0"])


@given(HOSTS, st.integers(1, 65_535))
def test_an_address_is_read_as_it_is_shown(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == Address(host, port)


def test_options_given_to_a_client_win_over_those_of_the_url() -> None:
    endpoint = Endpoint.of("disque://a?poll=3&refresh=4", {"poll": 1.0})
    assert endpoint.options == Options(poll=1.0, refresh=4.0)
    with pytest.raises(TypeError, match="no option 'pool': there are connect_timeout, "):
        Endpoint.of("disque://a", {"pool": 1.0})
    with pytest.raises(TypeError, match="no option 'tls_cafile': there are "):
        Endpoint.of("disques://a", {"tls_cafile": "ca.pem"})


@pytest.mark.parametrize("url", [None, 7, b"disque://:secret@a", ["a", "b"]])
def test_what_is_no_url_is_refused_by_its_type_alone(url: Any) -> None:
    with pytest.raises(TypeError, match=r"a URL is str, .*got \w+$"):
        Endpoint.of(url, {})


def test_an_endpoint_for_one_node_keeps_the_credentials() -> None:
    alone = parse_url("disque://u:x@a;b?poll=3").at("c:5")
    assert alone == Endpoint((Address("c", 5),), "u", "x", Options(poll=3.0, discover=False))
