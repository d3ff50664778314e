"""Kombu's transport when nodes fail, refuse, or want to know who is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import kombu
import pytest
from kombu.exceptions import OperationalError

from tests.certificates import Authority
from tests.system.kombu_world import Reader, done, hub_of, passing, publish, spin, url_of
from tests.system.nodes import Cluster, Node, free_port

pytestmark = pytest.mark.system


def test_resets_and_lost_nodes_cost_neither_messages_nor_the_loop(tmp_path: Path) -> None:
    exchange = kombu.Exchange("shout", "fanout", durable=False)
    with Cluster(tmp_path, 2, "--cluster-node-timeout", "1000") as cluster:
        cluster.join()
        url = url_of(*cluster.nodes)
        with (
            kombu.Connection(url) as connection,
            kombu.Connection(url) as other,
            hub_of(connection) as hub,
        ):
            tasks = Reader(connection, "q", prefetch=1)
            control = Reader(connection, passing("ear", exchange), no_ack=True)

            def carry(number: int) -> None:
                publish(other, "q", number, retry=True)
                spin(hub, lambda: number in done(tasks))

            for number in range(10):
                for node in cluster.nodes:
                    node.call("CLIENT", "KILL", "TYPE", "normal")
                carry(number)
            cluster.nodes[0].kill()
            carry(10)
            cluster.nodes[0].start()
            cluster.wait_mesh()
            cluster.nodes[1].kill()
            carry(11)
            with other.channel() as channel:
                channel.Producer(exchange=exchange).publish("hear", retry=True)
            spin(hub, lambda: bool(control.messages))


def test_a_connection_says_which_node_it_found(make_node: Callable[..., Node]) -> None:
    live = make_node().start()
    with kombu.Connection(f"disque://127.0.0.1:{free_port()};{url_of(live)}") as connection:
        connection.connect()
        assert connection.port == live.port


def test_without_a_node_there_is_an_error_that_kombu_knows() -> None:
    options = {"failover_timeout": 0.1}
    url = f"disque://127.0.0.1:{free_port()}"
    with kombu.Connection(url, transport_options=options) as connection:
        with pytest.raises(connection.connection_errors, match="no node can be reached"):
            connection.transport.establish_connection()
        with pytest.raises(OperationalError, match="no node can be reached"):
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_password(make_node: Callable[..., Node]) -> None:
    node = make_node("--requirepass", "s3cret").start()
    with kombu.Connection(url_of(node, password="s3cret")) as connection:
        publish(connection, "q", 1)
        assert Reader(connection, "q").read(1) == [1]
    for wrong in (url_of(node), url_of(node, password="guess")):
        with (
            kombu.Connection(wrong) as connection,
            pytest.raises(connection.connection_errors, match=r"NOAUTH|WRONGPASS|ERR invalid"),
        ):
            connection.transport.establish_connection()


def test_tls_is_kombu_s_ssl_or_a_scheme(
    make_node: Callable[..., Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    files, port = authority.issue("server"), free_port()
    node = make_node(
        *("--tls-port", str(port), "--tls-cert-file", str(files.cert)),
        *("--tls-key-file", str(files.key), "--tls-ca-cert-file", str(authority.ca)),
    ).start()
    mine = authority.issue("client")
    given = {"ca_certs": str(authority.ca), "certfile": str(mine.cert), "keyfile": str(mine.key)}
    with kombu.Connection(f"disque://127.0.0.1:{port}", ssl=given) as connection:
        publish(connection, "q", 1)
        assert node.call("QLEN", "q") == 1
    prefixed = {f"ssl_{name}": value for name, value in given.items()}
    with kombu.Connection(f"disques://127.0.0.1:{port}", ssl=prefixed) as connection:
        assert Reader(connection, "q").read(1) == [1]
    stranger = kombu.Connection(f"disques://127.0.0.1:{port}")
    with stranger, pytest.raises(stranger.connection_errors):
        stranger.transport.establish_connection()


def test_what_ssl_can_t_mean_is_refused() -> None:
    connection = kombu.Connection("disque://127.0.0.1", ssl={"ciphers": "all"})
    with pytest.raises(ValueError, match="ciphers"):
        connection.connect()


def test_a_full_broker_is_an_error_to_try_again_later(make_node: Callable[..., Node]) -> None:
    node = make_node().start()
    with kombu.Connection(url_of(node)) as connection:
        publish(connection, "q", "before")
        node.call("CONFIG", "SET", "maxmemory", 1)
        with connection.channel() as channel, pytest.raises(OperationalError, match="OOM"):
            channel.Producer().publish(
                "refused", routing_key="q", retry=True, retry_policy={"max_retries": 1}
            )
        reader = Reader(connection, "q")
        assert reader.read(1) == ["before"]
        node.call("CONFIG", "SET", "maxmemory", 0)
        publish(connection, "q", "after")
        assert reader.read(2) == ["before", "after"]
