"""The Python client under TLS, blocking and on trio."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from disque.cli.connection import Address as CliAddress
from disque.cli.connection import Connection, ConnectionFailed, Target
from disque.client import AsyncClient, Client, Job, UnreachableError, commands
from disque.client.url import Tls
from tests.certificates import Authority
from tests.system.nodes import Node, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, tls_port: int
) -> Iterator[Node]:
    """A node with a TLS port that wants certificates of its clients."""
    pair = authority.issue("server")
    given = {
        "tls-port": tls_port,
        "tls-cert-file": pair.cert,
        "tls-key-file": pair.key,
        "tls-ca-cert-file": authority.ca,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    made = Node(tmp_path_factory.mktemp("tls"), *words).start()
    yield made
    made.kill()
    assert "Traceback" not in made.log() + made.complaints()


@pytest.fixture
def url(node: Node, authority: Authority, tls_port: int) -> str:
    assert node.call("DEBUG", "FLUSHALL") == "OK"
    pair = authority.issue("client")
    files = f"tls_ca={authority.ca}&tls_cert={pair.cert}&tls_key={pair.key}"
    return f"disques://127.0.0.1:{tls_port}?{files}"


def test_blocking_client_works_as_without_tls(url: str, node: Node) -> None:
    with Client(url) as client:
        body = bytes(range(256)) * 4_000
        found: list[Job] = []
        thread = threading.Thread(target=lambda: found.extend(client.get_jobs("q", timeout=20)))
        thread.start()
        wait_until("it waits", lambda: node.info("clients")["blocked_clients"] == "1")
        job_id = client.add_job("q", body, replicate=1)
        thread.join()
        assert found == [Job(job_id, "q", body)]
        pipe = client.pipeline()
        for _ in range(1_000):
            pipe.add_job("many", b"x" * 100, replicate=1)
        assert len(set(pipe.execute())) == 1_000
        with client.subscribe("news") as subscription:
            assert subscription.receive(0) is None
            assert client.publish("news", b"x") == 1
            assert subscription.receive(5) is not None
        line = client.dedicated()
        line.send(commands.get_jobs("nothing comes"))
        with pytest.raises(TimeoutError):
            line.receive()
        assert line.finish(timeout=5) == []
    wait_until("nobody waits", lambda: node.info("clients")["blocked_clients"] == "0")


def test_one_connection_serves_call_after_call(url: str, node: Node) -> None:
    with Client(url) as client:
        client.ping()
        before = int(node.info("stats")["total_connections_received"])
        for _ in range(10):
            client.ping()
        # the one more is the question itself
        assert int(node.info("stats")["total_connections_received"]) == before + 1


async def test_async_client_works_as_without_tls(url: str) -> None:
    async with AsyncClient(url) as client:
        job_id = await client.add_job("q", b"x" * 100_000, replicate=1)
        (job,) = await client.get_jobs("q", timeout=5)
        assert (job.id, len(job.body)) == (job_id, 100_000)
        assert await client.ack_job(job) == 1
        async with await client.subscribe("news") as subscription:
            assert await subscription.receive(0.01) is None
            assert await client.publish("news", b"x") == 1
            assert await subscription.receive(5) is not None


def test_a_node_of_another_authority_or_name_is_not_believed(
    url: str, tls_port: int, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    other_authority = f"disques://127.0.0.1:{tls_port}?tls_ca={stranger.ca}"
    other_name = url.replace("127.0.0.1", "localhost", 1)
    for address in (other_authority, other_name):
        client = Client(address, failover_timeout=0.1)
        with client, pytest.raises(UnreachableError, match="certificate verify failed"):
            client.ping()


def test_files_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ValueError, match=r"tls_ca can't be .*missing\.pem"):
        Client(f"disques://localhost?tls_ca={missing}")
    with pytest.raises(ValueError, match=r"tls_cert .*missing\.pem"):
        Client("disques://localhost", tls_cert=str(missing))


def test_the_tool_asks_whether_a_port_speaks_tls(
    node: Node, tls_port: int, authority: Authority
) -> None:
    plain = Target((CliAddress(port=tls_port),))
    with Connection(plain) as line, pytest.raises(ConnectionFailed, match="does it speak TLS"):
        line.call("PING")
    trusting = Target((CliAddress(port=node.port),), tls=Tls(ca=str(authority.ca)))
    with pytest.raises(ConnectionFailed, match="leave out --tls"):
        Connection(trusting, connect_timeout_s=1.0)
