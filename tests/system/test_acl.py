"""Users and secrets of a real node: nothing of them is ever shown."""

from __future__ import annotations

import signal
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from disque.client.worker import Worker
from disque.server.configfile import load
from tests.system.nodes import ROOT, Node, Resp, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLE = ROOT / "deploy" / "disque.conf"


def digest(password: str) -> str:
    return sha256(password.encode()).hexdigest()


@pytest.fixture
def guarded(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with a password from a file, a worker, and a folder `secrets` and a file `disque.conf` beside it."""
    (tmp_path / "password").write_text("pass-of-default\n")
    config = tmp_path / "disque.conf"
    config.write_text(
        f'requirepass-file "{tmp_path / "password"}"\nslowlog-log-slower-than 0\n'
        f"user worker on #{digest('pass-of-worker')} +@client ~jobs*\n"
    )
    node = make_node()
    words = node.command_line()
    words.insert(3, str(config))
    node.command_line = lambda: words  # type: ignore[method-assign]
    return node.start(DISQUE_CLUSTER_SECRET="secret-of-cluster")


def has_ended(client: Resp) -> bool:
    try:
        client.call("PING")
    except (EOFError, ConnectionError):
        return True
    return False


def logged_in(node: Node, *words: str) -> Resp:
    client = node.connect()
    assert client.call("AUTH", *words) == "OK"
    return client


@pytest.mark.parametrize(
    ("password", "complaint"), [("pass-of-worker", "NOPERM"), ("nonsense", "WRONGPASS")]
)
def test_a_worker_that_is_not_let_in_ends_its_program_with_one_line(
    guarded: Node, password: str, complaint: str
) -> None:
    worker = Worker(f"disque://worker:{password}@127.0.0.1:{guarded.port}")
    worker.job("payments")(print)
    with pytest.raises(SystemExit, match=f"^worker ends: {complaint} "):
        worker.run()


def test_no_secret_is_ever_shown(guarded: Node) -> None:
    with guarded.connect() as monitor, logged_in(guarded, "pass-of-default") as admin:
        monitor.call("AUTH", "pass-of-default")
        monitor.send("MONITOR")
        assert monitor.read() == "OK"
        with guarded.connect() as client:
            client.error("AUTH", "wrong-secret-1")
            client.error("AUTH", "worker", "wrong-secret-2")
            client.call("AUTH", "worker", "pass-of-worker")
            client.call("HELLO", "3", "AUTH", "default", "pass-of-default")
            client.error("CONFIG", "SET", "requirepass", "wrong-secret-3" * 100)
            client.error("CONFIG", "SET", "cluster-secret", "wrong-secret-4")
            client.call("CONFIG", "SET", "requirepass", "new-secret")
        shown = [str(admin.call("CONFIG", "GET", "*")), str(admin.call("INFO", "all"))]
        shown += [str(admin.call("SLOWLOG", "GET", -1)), str(admin.call("CLIENT", "LIST"))]
        shown += [str(admin.call("CLUSTER", "NODES"))]
        admin.call("PING", "the-end")
        line = ""
        while "the-end" not in line:
            line = str(monitor.read())
            shown.append(line)
    shown.append(guarded.log())
    everything = "\n".join(shown)
    for secret in ("pass-of", "secret-of", "wrong-secret", "new-secret", digest("pass-of-worker")):
        assert secret not in everything
    assert "wrong-password host=127.0.0.1 user=default" in everything


def test_rewriting_the_file_keeps_users_and_leaves_secrets_where_they_are(
    guarded: Node, tmp_path: Path
) -> None:
    config = tmp_path / "disque.conf"
    before = config.read_text()
    with logged_in(guarded, "pass-of-default") as admin:
        admin.call("CONFIG", "SET", "hz", 50)
        admin.call("CONFIG", "REWRITE")
    after = config.read_text()
    assert "pass-of" not in after
    assert "secret-of" not in after
    assert after.startswith(before)
    assert "hz 50" in after
    loaded = load([str(config)], {}).config
    assert loaded.requirepass == "pass-of-default"
    assert list(loaded.user) == ["worker"]


def test_sighup_reads_users_and_passwords_again(guarded: Node, tmp_path: Path) -> None:
    assert guarded.process is not None
    config = tmp_path / "disque.conf"
    text = config.read_text()
    worker, admin = (
        logged_in(guarded, "worker", "pass-of-worker"),
        logged_in(guarded, "pass-of-default"),
    )
    with worker, admin:
        config.write_text(text.replace("~jobs*", "~mail*"))
        (tmp_path / "password").write_text("other-pass")
        guarded.process.send_signal(signal.SIGHUP)
        wait_until("the worker's connection ends", lambda: has_ended(worker))
        assert admin.call("PING") == "PONG"
        with logged_in(guarded, "worker", "pass-of-worker") as again:
            assert again.call("QLEN", "mail-in") == 0
            assert again.error("QLEN", "jobs").startswith("NOPERM ")
        with guarded.connect() as other:
            assert other.error("AUTH", "pass-of-default") == "ERR invalid password"
            assert other.call("AUTH", "other-pass") == "OK"
        wait_until("that is told", lambda: "reloaded" in guarded.log())
        config.write_text(text + "user broken\n")
        guarded.process.send_signal(signal.SIGHUP)
        wait_until("it is told", lambda: "reload-failed" in guarded.log())
        assert guarded.log().count("reloaded") == 1
        with logged_in(guarded, "worker", "pass-of-worker") as again:
            assert again.call("QLEN", "mail-in") == 0


def test_guessing_is_stopped_and_those_who_are_in_go_on(guarded: Node) -> None:
    with logged_in(guarded, "pass-of-default") as admin, guarded.connect() as guesser:
        admin.call("CONFIG", "SET", "auth-failures-max", 5)
        for number in range(5):
            assert guesser.error("AUTH", f"guess{number}") == "ERR invalid password"
        text = guesser.error("AUTH", "pass-of-default")
        assert text.startswith("ERR too many wrong passwords from this address, try again in ")
        limits = dict(
            line.split(":") for line in admin.call("INFO", "limits").decode().split("\r\n")[1:-1]
        )
        assert (limits["auth_failures"], limits["auth_refused"]) == ("5", "1")


def test_the_sample_configuration_is_right_and_its_worker_works(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    lines = SAMPLE.read_text().splitlines()
    (sample,) = [line for line in lines if line.startswith("# user worker on #")]
    assert f"#{digest('worker-password')}" in sample
    config = tmp_path / "disque.conf"
    said = [line.removeprefix("# ") if line.startswith("# user ") else line for line in lines]
    config.write_text("\n".join([*said, "requirepass secret"]) + "\n")
    assert list(load([str(config)], {}).config.user) == ["worker"]
    node = make_node()
    words = node.command_line()
    words.insert(3, str(config))
    node.command_line = lambda: words  # type: ignore[method-assign]
    node.start()
    with logged_in(node, "worker", "worker-password") as worker:
        assert worker.call("GETJOB", "NOHANG", "FROM", "jobs") is None
        assert worker.error("QPURGE", "jobs").startswith("NOPERM ")
