"""The page's port and process: when there is a page, for whom, and that it lives and dies with its node."""

from __future__ import annotations

import http.client
import os
import signal
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest
import websocket

from tests.certificates import Authority, Pair
from tests.system.nodes import WAIT_S, Node, Resp, free_port, wait_until
from tests.system.pages import Visitor, page_node, read_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

PASSWORD = "a pässword"


@pytest.fixture
def make_page(tmp_path: Path) -> Iterator[Callable[..., tuple[Node, int]]]:
    """Makes nodes with a page, not started; they are killed at the end."""
    made: list[Node] = []

    def make(*flags: str) -> tuple[Node, int]:
        node, port = page_node(tmp_path / f"page{len(made)}", *flags)
        made.append(node)
        return node, port

    yield make
    for node in made:
        node.kill()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, int]]:
    """A node with a password whose page listens everywhere."""
    node, port = page_node(tmp_path_factory.mktemp("locked"), "--http-bind", "0.0.0.0", "::")
    node.start(DISQUE_REQUIREPASS=PASSWORD)
    yield node, port
    node.kill()


def page_process(node: Node) -> list[str]:
    """The command lines of a node's children."""
    assert node.process is not None
    path = f"/proc/{node.process.pid}/task/{node.process.pid}/children"
    with open(path) as file:  # noqa: PTH123 - not a file of ours
        return file.read().split()


def is_taken(port: int) -> bool:
    """True if somebody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# The port


def free_pair() -> int:
    """A port for clients whose page's default port is free, too."""
    for _ in range(50):
        port = free_port()
        if not is_taken(port + 1_000):
            return port
    raise AssertionError("no free pair")


def test_without_any_setting_the_page_is_1000_above_the_port(tmp_path: Path) -> None:
    node = Node(tmp_path / "plain", "--http-port", "auto", port=free_pair())
    try:
        node.start()
        assert node.call("CONFIG", "GET", "http-port") == [b"http-port", b"auto"]
        assert Visitor(node.port + 1_000).get("/health").text == "ok\n"
    finally:
        node.kill()


def test_a_default_port_that_is_taken_is_a_warning_and_a_set_one_an_error(tmp_path: Path) -> None:
    port = free_pair()
    with socket.create_server(("127.0.0.1", port + 1_000)):
        node = Node(tmp_path / "default", "--http-port", "auto", port=port)
        try:
            node.start()
            assert "warning page-off" in node.log()
        finally:
            node.kill()
        node = Node(tmp_path / "set", "--http-port", str(port + 1_000), port=port)
        node.spawn()
        assert node.process is not None
        assert node.process.wait(WAIT_S) == 1
        assert f"can't listen on 127.0.0.1:{port + 1_000}" in node.complaints()


def test_0_is_no_page(make_node: Callable[..., Node]) -> None:
    node = make_node("--http-port", "0").start()
    assert not is_taken(node.port + 1_000)
    assert "page-off" not in node.log()


@pytest.mark.parametrize("setting", ["auto", "set"])
def test_without_the_extra_a_node_says_so_once(
    make_node: Callable[..., Node], setting: str
) -> None:
    node = make_node("--http-port", "auto" if setting == "auto" else str(free_port()))
    words = node.command_line()
    script = (
        "import sys; sys.modules['hypercorn'] = None\n"
        "from disque.server.main import main\n"
        "sys.exit(main())"
    )
    node.command_line = lambda: [words[0], "-c", script, *words[3:]]  # type: ignore[method-assign]
    if setting == "auto":
        node.start()
        assert node.log().count("install disque-broker[web]") == 1
        return
    node.spawn()
    assert node.process is not None
    assert node.process.wait(WAIT_S) == 1
    assert "http-port needs hypercorn: install disque-broker[web]" in node.complaints()


def test_more_than_loopback_needs_a_password(make_page: Callable[..., tuple[Node, int]]) -> None:
    node, _ = make_page("--http-bind", "0.0.0.0")
    node.spawn()
    assert node.process is not None
    assert node.process.wait(WAIT_S) == 1
    assert "http-bind 0.0.0.0 needs requirepass" in node.complaints()


# The password


def test_the_page_asks_for_the_password(locked: tuple[Node, int]) -> None:
    _, port = locked
    answer = Visitor(port).get("/")
    assert (answer.status, answer.headers["www-authenticate"][:5]) == (401, "Basic")
    assert Visitor(port, password="wrong").get("/").status == 401
    assert Visitor(port, password=PASSWORD).get("/").status == 200
    assert Visitor(port).get("/metrics").status == 401
    assert Visitor(port).get("/health").text == "ok\n"
    assert Visitor(port).get("/ready").text == "ok\n"


def test_an_exposed_page_answers_at_every_address(locked: tuple[Node, int]) -> None:
    _, port = locked
    visitor = Visitor(port, password=PASSWORD)
    assert visitor.get("/nodes", Host="broker.example").status == 200
    with socket.socket(socket.AF_INET6) as probe:
        has_ipv6 = probe.connect_ex(("::1", port)) == 0
    if has_ipv6:
        assert Visitor(port, password=PASSWORD, host="::1").get("/nodes").status == 200


def test_a_new_password_counts_at_once(make_page: Callable[..., tuple[Node, int]]) -> None:
    node, port = make_page()
    node.start()
    assert Visitor(port).get("/").status == 200
    node.call("CONFIG", "SET", "requirepass", "new")
    wait_until("the old way in is closed", lambda: Visitor(port).get("/").status == 401)
    page = Visitor(port, password="new").get("/nodes")
    assert (page.status, ">up<" in page.text) == (200, True)


def test_under_tls_certificates_may_be_replaced(
    make_page: Callable[..., tuple[Node, int]], tmp_path: Path
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    pair = old.issue("page")
    node, port = make_page(
        "--http-tls", "yes", "--tls-cert-file", str(pair.cert), "--tls-key-file", str(pair.key)
    )
    node.start()
    page = Visitor(port, tls=old.client()).get("/")
    assert (page.status, "; Secure" in page.headers["set-cookie"]) == (200, True)
    with pytest.raises((OSError, http.client.HTTPException)):
        Visitor(port).get("/")
    fresh = new.issue("page")
    pair.cert.write_bytes(fresh.cert.read_bytes())
    pair.key.write_bytes(fresh.key.read_bytes())
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    wait_until(
        "the new certificate is shown",
        lambda: Visitor(port, tls=new.client()).get("/health").status == 200,
    )


# The process


def test_a_node_that_nobody_looks_at_has_no_other_process(
    make_page: Callable[..., tuple[Node, int]],
) -> None:
    node, port = make_page()
    node.start()
    assert page_process(node) == []
    Visitor(port).get("/health")
    assert len(page_process(node)) == 1


def test_a_page_that_dies_is_started_again_and_the_node_goes_on(
    make_page: Callable[..., tuple[Node, int]],
) -> None:
    node, port = make_page()
    node.start()
    Visitor(port).get("/health")
    (pid,) = page_process(node)
    os.kill(int(pid), signal.SIGKILL)
    wait_until("it is missed", lambda: "warning page-failed" in node.log())
    assert node.call("PING") == "PONG"
    assert Visitor(port).get("/health").text == "ok\n"
    assert page_process(node) != [pid]


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_the_page_ends_with_its_node_and_leaves_the_port(
    make_page: Callable[..., tuple[Node, int]], how: str
) -> None:
    node, port = make_page()
    node.start()
    with Visitor(port).follow("/") as stream:
        assert stream.status == 200
        (pid,) = page_process(node)
        getattr(node, how)()
        wait_until("the page has gone", lambda: not is_running(pid))
    node.start()
    assert Visitor(port).get("/health").text == "ok\n"


def is_running(pid: str) -> bool:
    """True if there is such a process, and it isn't dead already."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - not a file of ours
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# STOMP over WebSocket


def frame(command: str, body: str = "", **headers: str) -> str:
    """A STOMP frame."""
    lines = [command, *[f"{name.replace('_', '-')}:{text}" for name, text in headers.items()]]
    return "\n".join(lines) + f"\n\n{body}\0"


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_stomp_over_websocket(locked: tuple[Node, int], version: str) -> None:
    _, port = locked
    subprotocol = f"v{version.replace('.', '')}.stomp"
    socket_ = websocket.create_connection(
        f"ws://127.0.0.1:{port}/stomp", subprotocols=[subprotocol], timeout=WAIT_S
    )
    try:
        assert socket_.getsubprotocol() == subprotocol
        socket_.send(frame("CONNECT", accept_version=version, host="/", passcode=PASSWORD))
        assert socket_.recv().startswith("CONNECTED\n")
        send = frame("SEND", "grüße", destination="/queue/ws", receipt="r")
        socket_.send(send[:10])
        socket_.send(send[10:])
        assert "receipt-id:r" in socket_.recv()
        socket_.send(frame("SUBSCRIBE", destination="/queue/ws", id="0", ack="auto"))
        message = socket_.recv()
        assert message.startswith("MESSAGE\n")
        assert message.endswith("grüße\0")
    finally:
        socket_.close()


def test_stomp_over_websocket_asks_for_the_password_itself(locked: tuple[Node, int]) -> None:
    node, port = locked
    socket_ = websocket.create_connection(f"ws://127.0.0.1:{port}/stomp", timeout=WAIT_S)
    try:
        socket_.send(frame("CONNECT", accept_version="1.2", host="/", passcode="wrong"))
        assert socket_.recv().startswith("ERROR\n")
    finally:
        socket_.close()
    assert "wrong-password host=127.0.0.1" in node.log()


def test_stomp_over_websocket_under_tls_asks_for_the_certificate_that_stomp_under_tls_would(
    make_page: Callable[..., tuple[Node, int]], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("page")
    flags = ("--tls-cert-file", str(pair.cert), "--tls-key-file", str(pair.key))
    node, port = make_page("--http-tls", "yes", *flags, "--tls-ca-cert-file", str(authority.ca))
    node.start()

    def may_talk(own: Pair | None = None) -> bool:
        secure = {"context": authority.client(own)}
        url = f"wss://127.0.0.1:{port}/stomp"
        try:
            websocket.create_connection(url, sslopt=secure, timeout=WAIT_S).close()
        except websocket.WebSocketBadStatusException as refusal:
            return refusal.status_code != 403
        return True

    assert Visitor(port, tls=authority.client()).get("/").status == 200
    assert not may_talk()
    assert may_talk(authority.issue("client"))
    node.call("CONFIG", "SET", "tls-auth-clients", "optional")
    wait_until("no certificate is needed", may_talk)


def test_another_site_gets_no_websocket_where_there_is_no_password(
    make_page: Callable[..., tuple[Node, int]],
) -> None:
    node, port = make_page()
    node.start()
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        websocket.create_connection(
            f"ws://127.0.0.1:{port}/stomp", origin="http://evil.example", timeout=WAIT_S
        )


# What the node's bounds and rules say of the page's connections


def open_connection(port: int, path: str = "/health") -> socket.socket:
    """A connection to the page on which one request was sent, and that stays."""
    sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
    sock.sendall(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return sock


def status(sock: socket.socket) -> int:
    """Of the first answer."""
    return int(sock.recv(12)[9:])


def read_to_end(stream: http.client.HTTPResponse) -> None:
    """Until the server ends it, in the midst of what it said it would send."""
    with suppress(http.client.IncompleteRead, ConnectionError):
        while stream.read(1 << 16):
            pass


def figures(client: Resp, section: str) -> dict[str, str]:
    """INFO's fields, without another connection."""
    lines = client.call("INFO", section).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_connections_to_the_page_count_for_the_bounds_of_clients(
    make_page: Callable[..., tuple[Node, int]],
) -> None:
    node, port = make_page()
    node.start()
    with closing(open_connection(port)) as first, node.connect() as client:
        assert status(first) == 200
        assert figures(client, "clients")["http_clients"] == "1"
        for name, text in (
            ("clients-per-address-max", b"max number of clients of one address reached"),
            ("maxclients", b"max number of clients reached"),
        ):
            (_, before) = client.call("CONFIG", "GET", name)
            client.call("CONFIG", "SET", name, 1)
            with closing(open_connection(port, "/")) as second:
                assert status(second) == 503
                said = b""
                while data := second.recv(4_096):
                    said += data
                assert text in said
            with closing(open_connection(port)) as probe:
                assert status(probe) == 200
            client.call("CONFIG", "SET", name, before)
        assert figures(client, "limits")["clients_per_address_refused"] == "2"
        assert int(figures(client, "stats")["rejected_connections"]) >= 4
    wait_until("all have gone", lambda: node.info("clients")["http_clients"] == "0")


def test_probes_are_answered_though_connections_and_tries_are_used_up_before_the_page_begins(
    make_page: Callable[..., tuple[Node, int]], tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    node, port = make_page("--unixsocket", path, "--maxclients", "2", "--auth-failures-max", "1")
    node.start(DISQUE_REQUIREPASS=PASSWORD)

    def let_in() -> Resp | None:
        """One more connection, once that by which the start was seen has gone."""
        other = node.connect()
        if other.error("PING").startswith("NOAUTH"):
            return other
        other.close()
        return None

    with socket.socket(socket.AF_UNIX) as guesser:
        guesser.connect(path)
        for complaint in (b"-ERR invalid password", b"-ERR too many wrong passwords"):
            guesser.sendall(b"AUTH wrong\r\n")
            assert guesser.recv(4_096).startswith(complaint)
        with wait_until("the node has room", let_in):
            for path in ("/health", "/ready"):
                with closing(open_connection(port, path)) as probe:
                    assert status(probe) == 200


def test_a_websocket_counts_once(make_page: Callable[..., tuple[Node, int]]) -> None:
    node, port = make_page("--clients-per-address-max", "2")
    node.start()
    with node.connect() as client:
        one = websocket.create_connection(f"ws://127.0.0.1:{port}/stomp", timeout=WAIT_S)
        one.send(frame("CONNECT", accept_version="1.2", host="/"))
        assert one.recv().startswith("CONNECTED\n")
        assert "cmd=connect" in client.call("CLIENT", "LIST").decode()
        assert figures(client, "clients")["http_clients"] == "0"
        with closing(open_connection(port, "/")) as another:
            assert status(another) == 503
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            websocket.create_connection(f"ws://127.0.0.1:{port}/stomp", timeout=WAIT_S)
        one.close()


def test_a_connection_to_the_page_can_be_killed(make_page: Callable[..., tuple[Node, int]]) -> None:
    node, port = make_page()
    node.start()
    with Visitor(port).follow("/") as stream, node.connect() as client:
        read_event(stream)
        lines = client.call("CLIENT", "LIST").decode().splitlines()
        (line,) = [each for each in lines if "cmd=http" in each]
        assert client.call("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id=")) == 1
        read_to_end(stream)


def test_strangers_on_the_page_end_as_others_and_who_knows_the_password_stays(
    make_page: Callable[..., tuple[Node, int]],
) -> None:
    node, port = make_page()
    node.start()
    with Visitor(port).follow("/") as before, node.connect() as client:
        read_event(before)
        assert client.call("CONFIG", "SET", "requirepass", PASSWORD) == "OK"
        assert client.call("AUTH", PASSWORD) == "OK"
        read_to_end(before)
        with Visitor(port, password=PASSWORD).follow("/") as known:
            read_event(known)
            client.call("CONFIG", "SET", "auth-timeout", 1)
            with closing(open_connection(port)) as stranger:
                assert status(stranger) == 200
                while stranger.recv(4_096):
                    pass
            assert client.call("CLIENT", "LIST").decode().count("cmd=http") == 1
        assert int(figures(client, "limits")["strangers_dropped"]) >= 1
