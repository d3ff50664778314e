"""Other people's clients against a real node: redis-py, pydisque, redis-cli."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import redis
from pydisque.client import Client as PydisqueClient

from tests.system.nodes import WAIT_S

if TYPE_CHECKING:
    from tests.system.nodes import Cluster, Node

pytestmark = pytest.mark.system


def test_redis_py_with_default_settings(node: Node) -> None:
    client = redis.Redis(port=node.port, socket_timeout=WAIT_S)
    with client:
        assert client.ping()
        job = client.execute_command("ADDJOB", "q", "body", 0)
        assert client.execute_command("GETJOB", "FROM", "q") == [[b"q", job, b"body"]]
        assert client.execute_command("ACKJOB", job) == 1
        assert client.execute_command("GETJOB", "NOHANG", "FROM", "q") is None
        assert client.config_get("port") == {"port": str(node.port)}
        assert client.info("server")["tcp_port"] == node.port
        assert client.client_setname("worker")
        assert client.client_getname() == "worker"


def test_pydisque_session(three: Cluster) -> None:
    client = PydisqueClient([f"127.0.0.1:{node.port}" for node in three.nodes])
    client.connect()
    job = client.add_job("q", "body", timeout=1_000, retry=30)
    assert client.qlen("q") == 1
    assert client.show(job, return_dict=True)[b"state"] == b"queued"
    assert client.qstat("q", return_dict=True)[b"len"] == 1
    assert client.get_job(["q"]) == [(b"q", job, b"body")]
    assert client.working(job) == 30
    client.nack_job(job)
    assert client.get_job(["q"], withcounters=True) == [(b"q", job, b"body", 1, 0)]
    client.ack_job(job)
    three.wait_drained()


def test_a_pipeline_of_redis_py_that_wants_a_transaction_does_nothing_and_says_why(
    node: Node,
) -> None:
    client = redis.Redis(port=node.port, socket_timeout=WAIT_S)
    pipe = client.pipeline()
    for number in range(700):
        pipe.execute_command("ADDJOB", "transaction", f"{number}" * 50, 5000)
    with pytest.raises(redis.ResponseError, match=r"transaction=False"):
        pipe.execute()
    assert client.execute_command("QLEN", "transaction") == 0
    client.close()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli isn't installed")
def test_redis_cli_with_arguments_and_with_lines(node: Node) -> None:
    def cli(*words: str, lines: str = "") -> str:
        done = subprocess.run(
            ["redis-cli", "-p", str(node.port), *words],
            input=lines,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        return done.stdout

    job = cli("ADDJOB", "q", "a body", "0").strip()
    assert cli("GETJOB", "FROM", "q") == f"q\n{job}\na body\n"
    assert cli(lines=f'ACKJOB {job}\nQLEN q\nPING "x y"\n') == "1\n0\nx y\n"
    assert cli("-3", "HELLO").startswith("1\n")


def test_inline_commands_by_hand(node: Node) -> None:
    with node.connect() as client:
        client.sock.sendall(b'PING\r\n\nADDJOB q "two words" 0\nqlen q\r\nQUIT\r\n')
        assert client.read() == "PONG"
        assert client.read().startswith("D-")
        assert client.read() == 1
        assert client.read() == "OK"
        with pytest.raises(EOFError):
            client.read()
