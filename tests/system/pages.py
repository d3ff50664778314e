"""Pages: nodes with a web page on loopback, and a browser that is nothing but HTTP."""

from __future__ import annotations

import base64
import http.client
import re
import urllib.parse
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.system.nodes import WAIT_S, Cluster, Node, free_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@attrs.frozen
class Answer:
    """What an address gave; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


class Visitor:
    """Asks a page, keeps its cookie, and sends forms as a browser does."""

    def __init__(
        self,
        port: int,
        *,
        password: str = "",
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = port
        self.host = host
        self.tls = tls
        self.headers: dict[str, str] = {}
        if password:
            pair = base64.b64encode(f"default:{password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {pair}"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        """One request over a connection of its own."""
        connection = self._connect()
        sent = {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if body is not None:
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): text for name, text in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        finally:
            connection.close()
        if "set-cookie" in answer.headers:
            self.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        return http.client.HTTPSConnection(self.host, self.port, timeout=WAIT_S, context=self.tls)

    def get(self, path: str, **headers: str) -> Answer:
        """A page."""
        return self.ask("GET", path, **headers)

    def send(self, path: str, *, page: str = "/queue?name=q", **fields: str | list[str]) -> Answer:
        """A form that stands on `page`, with its token; the page that it leads to."""
        token = re.search(r'name="token" value="([0-9a-f]{64})"', self.get(page).text)
        assert token is not None, f"no form on {page}"
        form = urllib.parse.urlencode({"token": token[1], **fields}, doseq=True)
        answer = self.ask("POST", path, form)
        return self.get(answer.headers["location"]) if answer.status == 303 else answer

    @contextmanager
    def follow(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """The page's events, as an open stream."""
        connection = self._connect()
        try:
            connection.request("GET", path, headers={**self.headers, "Accept": "text/event-stream"})
            yield connection.getresponse()
        finally:
            connection.close()


def read_event(stream: http.client.HTTPResponse) -> str:
    """The data of the next event; signs of life are passed over."""
    lines: list[str] = []
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("data: "):
            lines.append(line[6:])
        elif not line and lines:
            return "\n".join(lines)


def said(answer: Answer) -> str:
    """What a page says came of a form."""
    found = re.search(r'<p class="said[^>]*>(.*?)</p>', answer.text, re.S)
    assert found is not None, answer.text
    return found[1]


def page_node(folder: Path, *flags: str) -> tuple[Node, int]:
    """A node, not started, and the port of its page."""
    port = free_port()
    return Node(folder, "--http-port", str(port), *flags), port


def page_cluster(folder: Path, count: int, *flags: str) -> tuple[Cluster, list[int]]:
    """Nodes, not started, and the ports of their pages."""
    cluster = Cluster(folder, count, *flags)
    ports = [free_port() for _ in cluster.nodes]
    for node, port in zip(cluster.nodes, ports, strict=True):
        node.flags = (*node.flags, "--http-port", str(port))
    return cluster, ports
