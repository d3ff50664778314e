"""TLS on every port of real nodes: clients of RESP and STOMP, the bus, certificates that change."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import redis

from tests.certificates import Authority, Pair
from tests.system.nodes import ROOT, WAIT_S, Cluster, Node, Resp, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class TlsResp(Resp):
    """A RESP client under TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._file = self.sock.makefile("rb")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.issue("server")


def flags(pair: Pair, authority: Authority, **others: object) -> list[str]:
    said = {"tls-cert-file": pair.cert, "tls-key-file": pair.key, "tls-ca-cert-file": authority.ca}
    said |= {name.replace("_", "-"): value for name, value in others.items()}
    return [word for name, value in said.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, server_pair: Pair
) -> Iterator[Node]:
    """A node with TLS ports for RESP and STOMP that asks for no certificates."""
    words = flags(
        server_pair,
        authority,
        tls_port=free_port(),
        tls_stomp_port=free_port(),
        tls_auth_clients="no",
    )
    made = Node(tmp_path_factory.mktemp("tls"), *words).start()
    yield made
    made.kill()
    assert "Traceback" not in made.log() + made.complaints()


def test_hello_tells_clients_under_tls_the_ports_that_speak_it(
    tmp_path: Path, authority: Authority, server_pair: Pair
) -> None:
    tls_ports = {}
    cluster = Cluster(tmp_path, 2)
    for each in cluster.nodes:
        tls_ports[each.port] = free_port()
        words = flags(server_pair, authority, tls_port=tls_ports[each.port], tls_auth_clients="no")
        each.flags = (*each.flags, *words)
    with cluster:
        cluster.join()

        def told(client: Resp) -> set[int]:
            return {int(row[2]) for row in client.call("HELLO")[2:]}

        first = cluster.nodes[0]
        with (
            first.connect() as plain,
            TlsResp(tls_ports[first.port], authority.client()) as secured,
        ):
            assert told(plain) == set(tls_ports)
            wait_until("both have told", lambda: told(secured) == set(tls_ports.values()))


def tls_port(node: Node, name: str = "--tls-port") -> int:
    return int(node.flags[node.flags.index(name) + 1])


def test_clients_work_as_without_tls(node: Node, authority: Authority) -> None:
    with TlsResp(tls_port(node), authority.client()) as client, node.connect() as plain:
        body = bytes(range(256)) * 20_000
        job = client.call("ADDJOB", "q", body, 5_000)
        assert plain.call("GETJOB", "FROM", "q") == [[b"q", job.encode(), body]]
        job = plain.call("ADDJOB", "q", body, 5_000)
        assert client.call("GETJOB", "FROM", "q") == [[b"q", job.encode(), body]]
        client.sock.sendall(b"PING\r\n" * 20_000)
        assert {client.read() for _ in range(20_000)} == {"PONG"}
        client.send("GETJOB", "FROM", "wait")
        plain.call("ADDJOB", "wait", "x", 5_000)
        assert client.read()[0][2] == b"x"
        assert client.call("QUIT") == "OK"
        with pytest.raises(EOFError):
            client.read()


def test_redis_py_works_over_tls(node: Node, authority: Authority) -> None:
    with redis.Redis(
        host="127.0.0.1", port=tls_port(node), ssl=True, ssl_ca_certs=str(authority.ca), protocol=2
    ) as client:
        job = client.execute_command("ADDJOB", "redis", "body", 0)
        assert client.execute_command("GETJOB", "FROM", "redis") == [[b"redis", job, b"body"]]


def test_stomp_works_over_tls(node: Node, authority: Authority) -> None:
    plain = socket.create_connection(("127.0.0.1", tls_port(node, "--tls-stomp-port")), WAIT_S)
    with authority.client().wrap_socket(plain, server_hostname="127.0.0.1") as sock:
        sock.sendall(
            b"CONNECT\naccept-version:1.2\n\n\0"
            b"SUBSCRIBE\nid:0\ndestination:/queue/s\n\n\0"
            b"SEND\ndestination:/queue/s\n\nhello\0"
        )
        heard = b""
        while b"\n\nhello\0" not in heard:
            more = sock.recv(1 << 16)
            assert more, heard
            heard += more
        assert heard.startswith(b"CONNECTED\nversion:1.2\n")


def test_who_speaks_no_tls_is_closed_and_counted_and_disturbs_nobody(
    node: Node, authority: Authority
) -> None:
    before = int(node.info("limits")["tls_handshakes_failed"])
    for said in (b"PING\r\n", b"\x16\x03\x01\x00\x05hello", b""):
        with socket.create_connection(("127.0.0.1", tls_port(node)), WAIT_S) as sock:
            sock.sendall(said)
            with suppress(OSError):  # the node may have closed it already
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1_000):
                    pass
    wait_until(
        "three are counted",
        lambda: int(node.info("limits")["tls_handshakes_failed"]) == before + 3,
    )
    told = [line for line in node.log().splitlines() if "tls-handshake-failed" in line]
    assert len(told) == 1
    assert told[0].endswith('host=127.0.0.1 reason="the other side doesn\'t speak TLS"')
    with TlsResp(tls_port(node), authority.client()) as client:
        assert client.call("PING") == "PONG"


def test_clients_must_show_a_certificate_of_the_authority(
    make_node: Callable[..., Node], tmp_path: Path, authority: Authority, server_pair: Pair
) -> None:
    node = make_node(*flags(server_pair, authority, tls_port=free_port())).start()
    port = tls_port(node)
    with TlsResp(port, authority.client(authority.issue("client"))) as client:
        assert client.call("PING") == "PONG"
    stranger = Authority(tmp_path, "stranger").issue("client")
    for own in (None, stranger):
        with pytest.raises((OSError, EOFError)), TlsResp(port, authority.client(own)) as client:
            client.call("PING")
    assert node.call("CONFIG", "SET", "tls-auth-clients", "optional") == "OK"
    with TlsResp(port, authority.client()) as client:
        assert client.call("PING") == "PONG"
    with pytest.raises((OSError, EOFError)), TlsResp(port, authority.client(stranger)) as client:
        client.call("PING")
    assert "the other side shows no certificate" in node.log()


def test_certificates_are_read_again_at_config_set_and_at_sighup(
    make_node: Callable[..., Node], authority: Authority
) -> None:
    pair = authority.issue("renewed")
    node = make_node(*flags(pair, authority, tls_port=free_port(), tls_auth_clients="no")).start()
    assert node.process is not None
    seen: list[bytes | None] = []

    def shown() -> bytes | None:
        with TlsResp(tls_port(node), authority.client()) as client:
            assert client.call("PING") == "PONG"
            return client.sock.getpeercert(binary_form=True)

    with TlsResp(tls_port(node), authority.client()) as old:
        seen.append(shown())
        authority.issue("renewed")
        assert shown() == seen[-1]
        assert node.call("CONFIG", "SET", "tls-cert-file", str(pair.cert)) == "OK"
        seen.append(shown())
        authority.issue("renewed")
        node.process.send_signal(signal.SIGHUP)
        wait_until("another certificate", lambda: shown() not in seen)
        # What can't be used changes nothing
        seen.append(shown())
        pair.cert.write_text("junk")
        text = node.call_error("CONFIG", "SET", "tls-cert-file", str(pair.cert))
        assert text.startswith(f"ERR tls-cert-file {pair.cert}")
        node.process.send_signal(signal.SIGHUP)
        wait_until("it is told", lambda: "reload-failed" in node.log())
        assert shown() == seen[-1]
        assert old.call("PING") == "PONG"
    assert len(set(seen)) == 3


def test_a_certificate_and_its_key_change_together(
    make_node: Callable[..., Node], authority: Authority
) -> None:
    old, new, other = (authority.issue(name) for name in ("old", "new", "third"))
    node = make_node(*flags(old, authority, tls_port=free_port(), tls_auth_clients="no")).start()

    def shown() -> bytes | None:
        with TlsResp(tls_port(node), authority.client()) as client:
            return client.sock.getpeercert(binary_form=True)

    def told() -> list[bytes]:
        return node.call("CONFIG", "GET", "tls-*-file")

    before, files = shown(), told()
    for key in (other.key, "nowhere"):
        words = ("tls-cert-file", str(new.cert), "tls-key-file", str(key))
        assert node.call_error("CONFIG", "SET", *words).startswith("ERR tls-")
    assert (shown(), told()) == (before, files)
    words = ("tls-cert-file", str(new.cert), "TLS-KEY-FILE", str(new.key))
    assert node.call("CONFIG", "SET", *words) == "OK"
    assert shown() != before
    assert str(new.key).encode() in told()


def test_a_certificate_out_of_its_time_is_told(
    make_node: Callable[..., Node], authority: Authority
) -> None:
    pair = authority.issue("aging")
    node = make_node(*flags(pair, authority, tls_port=free_port(), tls_auth_clients="no")).start()
    assert "certificate-invalid" not in node.log()
    for until, reason in (
        (datetime(2020, 1, 1, tzinfo=UTC), "certificate has expired"),
        (datetime(2900, 1, 1, tzinfo=UTC), "certificate is not yet valid"),
    ):
        authority.issue("aging", until=until)
        assert node.call("CONFIG", "SET", "tls-cert-file", str(pair.cert)) == "OK"
        assert f'warning certificate-invalid file={pair.cert} reason="{reason}"' in node.log()
    authority.issue("aging")
    node.call("CONFIG", "SET", "tls-cert-file", str(pair.cert))
    assert node.log().count("certificate-invalid") == 2


WRONG = [
    (["--tls-port", "1234"], "tls-port needs tls-cert-file (and tls-key-file)"),
    (["--tls-cluster", "yes"], "tls-cluster needs tls-cert-file (and tls-key-file)"),
    (
        ["--tls-port", "1234", "--tls-cert-file", "{cert}", "--tls-key-file", "{key}"],
        "tls-auth-clients yes needs tls-ca-cert-file",
    ),
    (
        ["--tls-cluster", "yes", "--tls-cert-file", "{cert}", "--tls-key-file", "{key}"],
        "tls-cluster needs tls-ca-cert-file",
    ),
    (["--tls-port", "1234", "--tls-cert-file", "none.pem"], "none.pem: No such file or directory"),
    (["--tls-cert-file", "none.pem"], "none.pem: No such file or directory"),
    (["--tls-cert-file", "{ca}"], "no usable PEM"),
    (["--tls-cert-file", "{cert}", "--tls-key-file", "{other}"], "key values mismatch"),
    (["--tls-port", "7711"], "tls-port must be another than port and cluster-port, got 7711"),
]


@pytest.mark.parametrize(("words", "text"), WRONG)
def test_what_can_t_be_used_is_one_clear_line(
    tmp_path: Path, authority: Authority, server_pair: Pair, words: list[str], text: str
) -> None:
    names = {"cert": server_pair.cert, "key": server_pair.key, "ca": authority.ca}
    names["other"] = authority.issue("other").key
    done = subprocess.run(
        [sys.executable, "-m", "disque.server.main", *[word.format(**names) for word in words]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_nodes_speak_tls_with_each_other_and_let_in_nobody_else(
    tmp_path: Path, authority: Authority
) -> None:
    words = flags(authority.issue("node"), authority, tls_cluster="yes", cluster_secret="s")
    foreign = Authority(tmp_path, "foreign")
    strangers = [
        Node(
            tmp_path / "foreign",
            *flags(foreign.issue("node"), foreign, tls_cluster="yes", cluster_secret="s"),
        ),
        Node(tmp_path / "plain", "--cluster-secret", "s"),
    ]
    with Cluster(tmp_path, 3, *words) as cluster:
        cluster.join()
        first, second, _ = cluster.nodes
        try:
            for each in strangers:
                each.start()
                each.call("CLUSTER", "MEET", "127.0.0.1", first.port)
                wait_until("it is refused", lambda each=each: "handshake-failed" in each.log())
            job = first.call("ADDJOB", "q", bytes(1_000_000), 10_000, "REPLICATE", 3)
            assert second.call("GETJOB", "FROM", "q")[0][1] == job.encode()
            assert second.call("ACKJOB", job) == 1
            cluster.wait_drained()
            assert first.call("CLUSTER", "NODES").count(b"\n") == 3
            for each in strangers:
                assert each.info("cluster")["cluster_reachable_nodes"] == "0"
        finally:
            for each in strangers:
                each.kill()
