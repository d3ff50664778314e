"""The programs of the image: probes ask a real node, the stop of a pod asks a made-up Kubernetes."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.docs.pages import ROOT
from tests.system.nodes import Node, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROBE, PRESTOP = (ROOT / "deploy" / "image" / name for name in ("probe.py", "prestop.py"))


def run(program: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Exit status, and what was said on both streams."""
    done = subprocess.run(
        [sys.executable, str(program), *words],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a password."""
    node = Node(tmp_path_factory.mktemp("guarded"), "--requirepass", "secret")
    yield node.start()
    node.kill()


def test_node_that_serves_is_alive_and_ready(guarded: Node, tmp_path: Path) -> None:
    secret = tmp_path / "requirepass"
    secret.write_text("secret\n")
    port = str(guarded.port)
    assert run(PROBE, DISQUE_PORT=port) == (0, "")
    assert run(PROBE, "alive", DISQUE_PORT=port, DISQUE_REQUIREPASS="secret") == (0, "")
    assert run(PROBE, "ready", DISQUE_PORT=port, DISQUE_REQUIREPASS="secret") == (0, "")
    assert run(PROBE, "ready", DISQUE_PORT=port, DISQUE_REQUIREPASS_FILE=str(secret)) == (0, "")


def test_node_that_leaves_is_alive_but_not_ready(guarded: Node) -> None:
    environment = {"DISQUE_PORT": str(guarded.port), "DISQUE_REQUIREPASS": "secret"}
    with guarded.connect() as client:
        client.call("AUTH", "secret")
        client.call("CLUSTER", "LEAVING", "yes")
        assert run(PROBE, "alive", **environment) == (0, "")
        assert run(PROBE, "ready", **environment) == (1, "leaving the cluster\n")
        client.call("CLUSTER", "LEAVING", "no")


def test_probe_that_gets_no_answer_or_a_wrong_question_says_so() -> None:
    status, said = run(PROBE, "alive", DISQUE_PORT=str(free_port()))
    assert (status, said[:11]) == (1, "no answer: ")
    assert run(PROBE, "well")[0] == 2


class Kubernetes(HTTPServer):
    """An API server that knows one StatefulSet."""

    found: dict[str, Any]
    asked: list[tuple[str, str | None]]


class Answer(BaseHTTPRequestHandler):
    """GET is all that is asked for."""

    server: Kubernetes

    def do_GET(self) -> None:
        """The set, or 404."""
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(200 if self.server.found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.found).encode())

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    """It listens under TLS."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = Kubernetes(("127.0.0.1", 0), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.authority = authority  # type: ignore[attr-defined]
    server.found, server.asked = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def stop(kubernetes: Kubernetes, tmp_path: Path) -> Callable[..., list[str]]:
    """Stops a pod of this name while the set is so; returns the calls of `disque`."""
    account, programs, calls = tmp_path / "account", tmp_path / "programs", tmp_path / "calls"
    account.mkdir()
    programs.mkdir()
    (account / "namespace").write_text("shop")
    (account / "token").write_text("of-the-pod\n")
    kubernetes.authority.cert_pem.write_to_path(account / "ca.crt")  # type: ignore[attr-defined]
    tool = programs / "disque"
    tool.write_text(f'#!/bin/sh\necho "$DISQUE_PASSWORD $*" >>{calls}\nexit 3\n')
    tool.chmod(0o755)

    def stop(name: str, found: dict[str, Any], **secret: str) -> list[str]:
        kubernetes.found = found
        status, said = run(
            PRESTOP,
            HOSTNAME=name,
            PATH=f"{programs}:{os.environ['PATH']}",
            DISQUE_PRESTOP_ACCOUNT=str(account),
            **(secret or {"DISQUE_REQUIREPASS": "secret"}),
            KUBERNETES_SERVICE_HOST="127.0.0.1",
            KUBERNETES_SERVICE_PORT=str(kubernetes.server_port),
        )
        called = calls.read_text().splitlines() if calls.exists() else []
        assert status == (3 if called else 0), said
        return called

    return stop


def the_set(replicas: int, **more: Any) -> dict[str, Any]:
    return {"metadata": more, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("disque-broker-2", the_set(3)),
        ("disque-broker-0", the_set(0)),
        ("disque-broker-2", the_set(2, deletionTimestamp="2027-01-01T00:00:00Z")),
        ("disque-broker-2", {}),
        ("disque-broker-5", {"metadata": {}, "spec": {"replicas": 3, "ordinals": {"start": 3}}}),
    ],
    ids=["restarted", "all are stopped", "set is deleted", "not known", "numbers from 3"],
)
def test_pod_that_comes_back_or_has_nobody_to_leave_to_just_stops(
    name: str, found: dict[str, Any], stop: Callable[..., list[str]]
) -> None:
    assert stop(name, found) == []


def test_pod_whose_password_is_a_file_leaves_with_it(
    stop: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("of a file\n")
    called = stop("disque-broker-2", the_set(2), DISQUE_REQUIREPASS_FILE=str(tmp_path / "secret"))
    assert called == ["of a file -p 7711 leave --wait"]


def test_pod_that_is_scaled_away_leaves_first(
    kubernetes: Kubernetes, stop: Callable[..., list[str]]
) -> None:
    assert stop("disque-broker-2", the_set(2)) == ["secret -p 7711 leave --wait"]
    path = "/apis/apps/v1/namespaces/shop/statefulsets/disque-broker"
    assert kubernetes.asked == [(path, "Bearer of-the-pod")]
