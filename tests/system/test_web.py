"""The web page by HTTP alone: what it shows, what it does, and what it refuses."""

from __future__ import annotations

import contextlib
import html
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.nodes import Cluster, Node, wait_until
from tests.system.pages import Visitor, page_cluster, read_event, said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

HOSTILE_NAMES = [
    b"<script>alert(1)</script>",
    b"\"'&<>",
    b"\xff\xfe\x00",
    b"a/b?c#d%20",
    b"",
    "\u202eevil".encode(),
    b"x" * 4_000,
    b"../../etc/passwd",
    b"{{ 7 * 7 }}",
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[int]]]:
    """Two nodes that know each other, and the ports of their pages."""
    cluster, ports = page_cluster(
        tmp_path_factory.mktemp("two"), 2, "--cluster-node-timeout", "2000"
    )
    with cluster:
        yield cluster.join(), ports


@pytest.fixture
def node(two: tuple[Cluster, list[int]]) -> Iterator[Node]:
    """The first of the two, whose jobs go after the test."""
    cluster, _ = two
    yield cluster.nodes[0]
    for each in cluster.nodes:
        each.call("DEBUG", "FLUSHALL")
        each.call("PAUSE", "q", "none", "bcast")


@pytest.fixture
def visitor(two: tuple[Cluster, list[int]]) -> Visitor:
    """Somebody at the first node's page."""
    return Visitor(two[1][0])


@pytest.fixture
def elsewhere(two: tuple[Cluster, list[int]]) -> Visitor:
    """Somebody at the other node's page."""
    return Visitor(two[1][1])


def add(node: Node, queue: str | bytes, body: str | bytes, *options: str) -> str:
    """Add a job here alone; its id."""
    id_ = node.call("ADDJOB", queue, body, 0, "REPLICATE", 1, *options)
    assert isinstance(id_, str)
    return id_


# What is shown


def test_any_node_shows_the_whole_cluster(
    two: tuple[Cluster, list[int]], node: Node, visitor: Visitor, elsewhere: Visitor
) -> None:
    other = two[0].nodes[1]
    add(node, "here", "1")
    add(other, "there", "2")
    for each in (visitor, elsewhere):
        wait_until(
            "both queues are listed",
            lambda each=each: all(name in each.get("/").text for name in (">here<", ">there<")),  # type: ignore[misc]
        )
        page = each.get("/nodes").text
        assert f"127.0.0.1:{node.port}" in page
        assert f"127.0.0.1:{other.port}" in page
        assert page.count(">connected<") == 2


def test_overview_is_filtered_and_sorted(node: Node, visitor: Visitor) -> None:
    for queue, count in (("mail-a", 1), ("mail-b", 3), ("other", 2)):
        for _ in range(count):
            add(node, queue, "x")

    def order(path: str) -> list[str]:
        page = visitor.get(path).text
        return sorted(
            [name for name in ("mail-a", "mail-b", "other") if f">{name}<" in page],
            key=lambda name: page.index(f">{name}<"),
        )

    wait_until("queues are listed", lambda: len(order("/")) == 3)
    assert order("/") == ["mail-b", "other", "mail-a"]
    assert order("/?sort=name") == ["mail-a", "mail-b", "other"]
    assert order("/?find=MAIL") == ["mail-b", "mail-a"]
    assert order("/?sort=nonsense") == ["mail-b", "other", "mail-a"]
    assert "No queue&#39;s name contains" in visitor.get("/?find=zzz").text.replace("'", "&#39;")


def test_a_queue_may_have_any_name(node: Node, visitor: Visitor) -> None:
    addresses = ["/queue?name=" + quote_from_bytes(name, safe="") for name in HOSTILE_NAMES]
    for name, address in zip(HOSTILE_NAMES, addresses, strict=True):
        id_ = add(node, name, b"<b>body</b>\x00" + name)
        page = visitor.get(address).text
        assert html.escape(id_) in page
        assert "<script>alert" not in page
        assert "<b>body" not in page
        assert "\u202e" not in page
        assert "&lt;b&gt;body&lt;/b&gt;" in page
        pause = address.replace("/queue", "/queue/pause")
        assert said(visitor.send(pause, flags="in")).endswith("in.")
        assert node.call("PAUSE", name, "state") == "in"
        visitor.send(pause, flags="none")
    wait_until(
        "the overview links to all",
        lambda: all(f'href="{each}"' in visitor.get("/").text for each in addresses),
    )
    overview = visitor.get("/").text
    assert "<script>alert" not in overview
    assert ">49<" not in overview


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b"<img src=x onerror=alert(1)>", "text", "&lt;img src=x onerror=alert(1)&gt;"),
        (b'{"a":[1,"<i>"]}', "json", "&#34;&lt;i&gt;&#34;"),
        (b"\x00\xff<>", "hex", "00000000  00 ff 3c 3e"),
        (b"x" * 3_000_000, "text", "The beginning only."),
        (b"\xff" * 100_000, "hex", "The beginning only."),
    ],
    ids=["html", "json", "binary", "huge text", "huge binary"],
)
def test_a_body_may_be_anything(
    node: Node, visitor: Visitor, body: bytes, form: str, shown: str
) -> None:
    id_ = add(node, "q", body)
    page = visitor.get(f"/job?id={id_}")
    assert shown in page.text
    assert f'aria-current="true">{form}</a>' in page.text
    assert "<img" not in page.text
    assert len(page.body) < 500_000


def test_a_job_is_shown_with_its_story_and_every_holder(
    two: tuple[Cluster, list[int]], node: Node, visitor: Visitor
) -> None:
    id_ = node.call("ADDJOB", "q", "body", 5_000, "REPLICATE", 2, "RETRY", 30)
    page = visitor.get(f"/job?id={id_}").text
    assert "Waits in its queue to be fetched." in page
    assert page.count("has it") == 4
    node.call("GETJOB", "FROM", "q")
    page = visitor.get(f"/job?id={id_}").text
    assert "Handed out once." in page
    assert "Is being worked on" in page
    node.call("NACK", id_)
    assert "given back once" in visitor.get(f"/job?id={id_}").text
    node.call("ACKJOB", id_)

    def is_settled() -> bool:
        text = visitor.get(f"/job?id={id_}").text
        return "Is settled" in text or "No node has this job any more: acked" in text

    wait_until("it is settled", is_settled)


def test_jobs_in_work_are_listed_without_the_copies_of_others(
    two: tuple[Cluster, list[int]], node: Node, elsewhere: Visitor
) -> None:
    ids = [node.call("ADDJOB", "q", f"body {n}", 5_000, "REPLICATE", 2) for n in range(3)]
    delayed = node.call("ADDJOB", "q", "later", 5_000, "REPLICATE", 2, "DELAY", 100)
    node.call("GETJOB", "FROM", "q")
    node.call("GETJOB", "FROM", "q")
    page = elsewhere.get("/work?name=q").text
    assert page.count("<td>delivered</td>") == 2
    assert page.count("<td>delayed</td>") == 1
    assert all(html.escape(each) in page for each in (ids[0], ids[1], delayed))
    assert ids[2] not in page
    assert "There may be more" not in page
    assert "No job of this queue is in work" in elsewhere.get("/work?name=other").text


def test_find_leads_to_jobs_and_queues(visitor: Visitor) -> None:
    id_ = "D-" + "a" * 38
    assert visitor.get(f"/find?what={id_}").headers["location"] == f"/job?id={id_}"
    assert visitor.get("/find?what=%FFq").headers["location"] == "/queue?name=%FFq"
    assert "No node knows this job" in visitor.get(f"/job?id=D-{'0' * 8}-{'a' * 24}-05a1").text
    assert "BADID" in visitor.get("/job?id=nonsense").text
    assert "No node that answers knows this queue" in visitor.get("/queue?name=nobody").text


# What is done


def test_pausing_is_for_all_nodes(
    two: tuple[Cluster, list[int]], node: Node, visitor: Visitor
) -> None:
    other = two[0].nodes[1]
    for flags in ("in", "out", "all", "none"):
        visitor.send("/queue/pause?name=q", flags=flags)
        wait_until(
            f"the other node has {flags}",
            lambda flags=flags: other.call("PAUSE", "q", "state") == flags,  # type: ignore[misc]
        )
    assert visitor.send("/queue/pause?name=q", flags="everything").status == 400


def test_purging_reaches_every_node_and_wants_to_be_sure(
    two: tuple[Cluster, list[int]], node: Node, visitor: Visitor
) -> None:
    add(node, "q", "1")
    add(two[0].nodes[1], "q", "2")
    assert visitor.send("/queue/purge?name=q").status == 400
    assert node.call("GLOBALQLEN", "q") == 2
    assert said(visitor.send("/queue/purge?name=q", sure="yes")) == "2 jobs cancelled at 2 nodes."
    assert node.call("GLOBALQLEN", "q") == 0


def test_a_job_is_queued_again_and_cancelled_from_any_node(
    node: Node, visitor: Visitor, elsewhere: Visitor
) -> None:
    id_ = add(node, "q", "body")
    node.call("GETJOB", "FROM", "q")
    assert said(elsewhere.send(f"/job/requeue?id={id_}")) == "Queued."
    assert node.call("QLEN", "q") == 1
    assert "isn&#39;t in a state" in said(visitor.send(f"/job/requeue?id={id_}"))
    assert said(elsewhere.send(f"/job/cancel?id={id_}")) == "Cancelled."
    assert node.call("QLEN", "q") == 0
    assert "BADID" in said(visitor.send("/job/cancel?id=nonsense"))


def bury(node: Node, queue: str, body: str) -> str:
    """A dead letter; its id."""
    id_ = add(node, queue, body, "MAXDELIVERIES", "1", "RETRY", "60")
    node.call("GETJOB", "FROM", queue)
    assert node.call("NACK", id_) == 1
    return id_


def test_dead_letters_are_revived_and_cancelled(node: Node, visitor: Visitor) -> None:
    first, second, third = (bury(node, "work", body) for body in "123")
    page = visitor.get("/dead").text
    assert all(id_ in page for id_ in (first, second, third))
    assert page.count("given back") == 3
    answer = visitor.send("/dead/revive", page="/dead", id=[first, second])
    assert said(answer) == "2 of 2 revived."
    assert node.call("QLEN", "work") == 2
    assert said(visitor.send("/dead/cancel", page="/dead", id=[third])) == "1 of 1 cancelled."
    assert "No dead letters here" in visitor.get("/dead").text
    fourth = bury(node, "more", "4")
    assert "A dead letter: it had been handed out" in visitor.get(f"/job?id={fourth}").text
    assert said(visitor.send(f"/job/revive?id={fourth}")) == "Revived."
    assert visitor.send("/dead/revive").status == 400


def test_queueing_again_at_a_holder_that_has_not_heard_of_the_hand_out_lasts(
    two: tuple[Cluster, list[int]], node: Node, elsewhere: Visitor
) -> None:
    id_ = node.call("ADDJOB", "q", "body", 5_000, "REPLICATE", 2)
    node.call("GETJOB", "FROM", "q")
    assert said(elsewhere.send(f"/job/requeue?id={id_}")) == "Queued."
    assert node.call("QLEN", "q") == 1


# What is refused


def test_nothing_is_done_without_a_token_of_this_browser(
    two: tuple[Cluster, list[int]], node: Node, visitor: Visitor
) -> None:
    add(node, "q", "1")
    stranger = Visitor(two[1][0])
    for body in ("sure=yes", "sure=yes&token=", f"sure=yes&token={'0' * 64}"):
        assert stranger.ask("POST", "/queue/purge?name=q", body).status == 403
    visitor.get("/queue?name=q")
    visitor.headers["Origin"] = "http://evil.example"
    assert visitor.send("/queue/purge?name=q", sure="yes").status == 403
    assert node.call("QLEN", "q") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/queue/purge?name=q", 405),
        ("POST", "/", 405),
        ("DELETE", "/queue?name=q", 405),
        ("GET", "/queue", 400),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e/app.py", 404),
        ("HEAD", "/", 200),
    ],
)
def test_addresses_and_methods(visitor: Visitor, method: str, path: str, status: int) -> None:
    answer = visitor.ask(method, path)
    assert answer.status == status
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    if method != "HEAD" and status >= 400:
        assert "<h1>" in answer.text


def test_pages_have_no_script_or_style_but_our_files(visitor: Visitor) -> None:
    for path in (
        "/",
        "/queue?name=q",
        "/work?name=q",
        "/dead",
        "/nodes",
        f"/job?id=D-{'a' * 38}",
        "/nowhere",
    ):
        page = visitor.get(path).text
        assert page.count("<script") == 1
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick=" not in page
    assert visitor.get("/static/live.js").headers["content-type"].startswith("text/javascript")
    assert visitor.get("/static/style.css").status == 200


def test_a_name_that_others_can_point_here_is_refused(visitor: Visitor) -> None:
    assert visitor.get("/", Host="evil.example").status == 421
    assert visitor.get("/", Host=f"localhost:{visitor.port}").status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"POST /queue/purge?name=q HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_nonsense_disturbs_nobody(node: Node, visitor: Visitor, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=10) as sock:
        answer = b""
        # it may close as soon as it has seen enough, with the rest unread
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").read()
    assert b" 200 " not in answer[:20]
    assert visitor.get("/health").text == "ok\n"
    assert "Traceback" not in node.complaints()


@pytest.mark.parametrize("preface", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"])
def test_the_page_stays_with_http_1(visitor: Visitor, preface: bytes) -> None:
    upgrade = (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
    )
    for asked in (upgrade + preface, preface):
        with socket.create_connection(("127.0.0.1", visitor.port), timeout=10) as sock:
            sock.sendall(asked)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").read()
        # an HTTP/2 server's first word is its SETTINGS frame, after 101 if it was asked to change
        assert b"HTTP/1.1 101" not in answer
        assert answer[:9] in (b"HTTP/1.1 ", b"")
        assert answer.startswith(b"HTTP/1.1 200") or asked is preface


# What programs ask


def test_events_bring_the_page_anew(node: Node, visitor: Visitor) -> None:
    with visitor.follow("/queue?name=q") as stream:
        assert stream.getheader("Content-Type", "").startswith("text/event-stream")
        assert "<!doctype" not in read_event(stream)
        id_ = add(node, "q", "new one")
        while id_ not in (event := read_event(stream)):
            pass
        assert "new one" in event


def test_metrics_tell_what_happened(node: Node, visitor: Visitor) -> None:
    def figures() -> dict[str, float]:
        answer = visitor.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return {
            each.name + json.dumps(each.labels): each.value
            for family in text_string_to_metric_families(answer.text)
            for each in family.samples
        }

    before = figures()
    ids = [node.call("ADDJOB", "q", "x", 5_000, "REPLICATE", 2) for _ in range(3)]
    node.call("GETJOB", "COUNT", 2, "FROM", "q")
    node.call("NACK", ids[0])
    node.call("GETJOB", "FROM", "q")
    node.call("ACKJOB", ids[1])
    after = figures()

    def grown(name: str) -> float:
        return after[name + "{}"] - before[name + "{}"]

    assert [
        grown(f"disque_jobs_{name}_total")
        for name in ("added", "delivered", "redelivered", "given_back", "acknowledged")
    ] == [3, 3, 1, 1, 1]
    assert grown("disque_replication_seconds_count") == 3
    assert grown("disque_delivery_seconds_count") == 2
    assert after['disque_queue_length{"queue": "q"}'] == 1
    assert after["disque_cluster_reachable_nodes{}"] == 1
    assert after["disque_memory_used_bytes{}"] > 0
    assert "disque_loop_lag_seconds_sum{}" in after


def test_probes_tell_a_leaving_node_from_a_ready_one(node: Node, visitor: Visitor) -> None:
    assert (visitor.get("/health").status, visitor.get("/ready").status) == (200, 200)
    node.call("CLUSTER", "LEAVING", "yes")
    try:
        answer = visitor.get("/ready")
        assert (answer.status, answer.text) == (503, "leaving the cluster\n")
        assert visitor.get("/health").status == 200
    finally:
        node.call("CLUSTER", "LEAVING", "no")
