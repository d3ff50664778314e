"""The web page in a real browser, Debian's Chromium: every page, every button, and nodes that die while it is open."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.system.nodes import WAIT_S, Cluster, Node, wait_until
from tests.system.pages import page_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

pytestmark = pytest.mark.system

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
WAIT_MS = WAIT_S * 1000
PHONE = {"width": 390, "height": 800}
# Every control has a name, every header cell says of what it is one; what a screen reader would stumble over
STUMBLES = """() => {
  const named = (e) => e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim();
  const found = [...document.querySelectorAll("button, input:not([type=hidden]), a")]
    .filter((e) => !named(e)).map((e) => e.outerHTML);
  found.push(...[...document.querySelectorAll("th:not([scope])")].map((e) => e.outerHTML));
  found.push(...[...document.querySelectorAll("svg:not([role])")].map((e) => e.outerHTML));
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) found.push("an id twice");
  if (!document.documentElement.lang) found.push("no language");
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[int]]]:
    """Three nodes that know each other, and the ports of their pages."""
    cluster, ports = page_cluster(
        tmp_path_factory.mktemp("three"), 3, "--cluster-node-timeout", "1000"
    )
    with cluster:
        yield cluster.join(), ports


@pytest.fixture
def node(three: tuple[Cluster, list[int]]) -> Iterator[Node]:
    """The first node, whose page is looked at; all jobs go after the test."""
    cluster, _ = three
    yield cluster.nodes[0]
    for each in cluster.nodes:
        each.call("DEBUG", "FLUSHALL")
        each.call("PAUSE", "q", "none", "bcast")


@pytest.fixture
def open_page(browser: Browser, three: tuple[Cluster, list[int]]) -> Iterator[Callable[..., Page]]:
    """Opens addresses of the first node's page, each in a context of its own; a complaint of the browser fails."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def open_page(path: str, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{three[1][0]}{path}")
        return page

    expect.set_options(timeout=WAIT_MS)
    yield open_page
    for context in contexts:
        context.close()
    # That a node dies is meant to be noticed
    deaths = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    assert [each for each in complaints if not any(death in each for death in deaths)] == []


def add(node: Node, queue: str, body: str, *options: str | int) -> str:
    """Add a job on all three nodes; its id."""
    id_ = node.call("ADDJOB", queue, body, 5_000, *options)
    assert isinstance(id_, str)
    return id_


def bury(node: Node, queue: str, body: str) -> str:
    """A dead letter; its id."""
    id_ = add(node, queue, body, "MAXDELIVERIES", 1, "RETRY", 60)
    node.call("GETJOB", "FROM", queue)
    assert node.call("NACK", id_) == 1
    return id_


def wait_live(page: Page) -> None:
    """The page is being kept up to date."""
    expect(page.locator("#link-state")).to_have_text("Live")


def press(page: Page, name: str, said: str) -> None:
    """Press a button by its name; what the page then says."""
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("alert")).to_have_text(said)


def test_every_page_in_light_and_dark_and_on_a_phone(
    node: Node, open_page: Callable[..., Page]
) -> None:
    id_ = add(node, "q", '{"a": 1}')
    bury(node, "poison", "x")
    paths = ("/", "/queue?name=q", f"/job?id={quote(id_)}", "/dead", "/nodes", "/work?name=q")
    for options in (
        {"color_scheme": "light"},
        {"color_scheme": "dark", "viewport": PHONE, "has_touch": True},
    ):
        page = open_page("/", **options)
        for path in paths:
            page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/")[2] + path)
            if "/work" not in path:
                wait_live(page)
            assert page.evaluate(STUMBLES) == []
            assert page.evaluate(
                "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            ), f"{path} is wider than the window"
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        light = sum(int(each) for each in re.findall(r"\d+", ground)[:3])
        assert (light > 600) == (options["color_scheme"] == "light")


def test_the_overview_follows_what_happens_and_keeps_the_focus(
    node: Node, open_page: Callable[..., Page]
) -> None:
    add(node, "first", "x")
    page = open_page("/")
    wait_live(page)
    link = page.get_by_role("link", name="first", exact=True)
    link.focus()
    for _ in range(3):
        add(node, "second", "x")
    expect(page.locator("tbody tr").first).to_contain_text("second")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("first")
    expect(link).to_be_focused()
    expect(page.locator(".spark polyline").first).to_have_attribute("points", re.compile(r"\d"))
    page.get_by_role("columnheader", name="Queue").get_by_role("link").click()
    expect(page.locator("tbody tr").first).to_contain_text("first")
    page.get_by_label("Name contains").fill("SEC")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Job id or queue name").fill("first")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queue first")


def test_a_queue_is_paused_and_purged(node: Node, open_page: Callable[..., Page]) -> None:
    add(node, "q", "x")
    page = open_page("/queue?name=q")
    for name, flags in (
        ("Take no jobs", "in"),
        ("Give no jobs", "out"),
        ("Take and give none", "all"),
        ("Run", "none"),
    ):
        press(page, name, f"In force at this node now: {flags}.")
        assert node.call("PAUSE", "q", "state") == flags
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
    page.get_by_role("button", name="Purge").click()
    assert node.call("QLEN", "q") == 1
    page.get_by_label("I am sure").check()
    press(page, "Purge", "1 job cancelled at 3 nodes.")
    assert node.call("GLOBALQLEN", "q") == 0
    expect(page.get_by_text("Nothing waits here.")).to_be_visible()


def test_a_job_is_queued_again_and_cancelled_and_its_body_takes_other_forms(
    node: Node, open_page: Callable[..., Page]
) -> None:
    id_ = add(node, "q", '{"text": "<b>bold</b>"}', "RETRY", 600)
    node.call("GETJOB", "FROM", "q")
    page = open_page(f"/job?id={quote(id_)}")
    body = page.get_by_role("region", name="Body")
    expect(body).to_contain_text('"text": "<b>bold</b>"')
    for form in ("hex", "text", "json"):
        page.get_by_role("link", name=form, exact=True).click()
        expect(body).to_contain_text("7b 22 74" if form == "hex" else '"text"')
    press(page, "Queue now", "Queued.")
    assert node.call("QLEN", "q") == 1
    press(page, "Cancel", "Cancelled.")
    assert node.call("QLEN", "q") == 0


def test_dead_letters_are_revived_and_cancelled(node: Node, open_page: Callable[..., Page]) -> None:
    ids = [bury(node, "poison", body) for body in ("one", "two", "three")]
    page = open_page("/dead")
    expect(page.locator("tbody tr")).to_have_count(3)
    wait_live(page)
    box = page.get_by_label(f"Choose {ids[1]}")
    box.check()
    ids.append(bury(node, "poison", "four"))
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(box).to_be_checked()
    press(page, "Revive chosen", "1 of 1 revived.")
    assert node.call("GLOBALQLEN", "poison") == 1
    page.get_by_label("All shown").check()
    press(page, "Cancel chosen", "3 of 3 cancelled.")
    expect(page.get_by_text("No dead letters here.")).to_be_visible()
    fifth = bury(node, "more poison", "five")
    page = open_page(f"/job?id={quote(fifth)}")
    press(page, "Revive", "Revived.")


def test_keyboard_alone(node: Node, open_page: Callable[..., Page]) -> None:
    add(node, "q", "x")
    page = open_page("/queue?name=q")
    wait_live(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "location.hash && document.activeElement.textContent != 'Skip to content'"
    )
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("In force at this node now: in.")


def test_without_scripts_all_can_be_seen_and_done(
    node: Node, open_page: Callable[..., Page]
) -> None:
    add(node, "q", "x")
    page = open_page("/", java_script_enabled=False)
    page.get_by_role("link", name="q", exact=True).click()
    page.get_by_label("I am sure").check()
    press(page, "Purge", "1 job cancelled at 3 nodes.")


def test_with_a_password_the_page_is_as_live_and_reaches_all_nodes(
    three: tuple[Cluster, list[int]], node: Node, open_page: Callable[..., Page]
) -> None:
    for each in three[0].nodes:
        each.call("CONFIG", "SET", "requirepass", "secret")
    try:
        page = open_page(
            "/queue?name=q", http_credentials={"username": "default", "password": "secret"}
        )
        wait_live(page)
        press(page, "Take no jobs", "In force at this node now: in.")
        page.get_by_role("link", name="Nodes", exact=True).click()
        wait_live(page)
        expect(page.get_by_text("up", exact=True)).to_have_count(3)
    finally:
        for each in three[0].nodes:
            with each.connect() as client:
                client.call("AUTH", "secret")
                client.call("CONFIG", "SET", "requirepass", "")


def test_nodes_that_die_while_the_page_is_open(
    three: tuple[Cluster, list[int]], node: Node, open_page: Callable[..., Page]
) -> None:
    other = three[0].nodes[2]
    nodes, overview = open_page("/nodes"), open_page("/")
    for page in (nodes, overview):
        wait_live(page)
    expect(nodes.get_by_text("up", exact=True)).to_have_count(3)
    expect(nodes.get_by_text("connected", exact=True)).to_have_count(6)
    other.kill()
    row = nodes.get_by_role("row", name=re.compile(f":{other.port}")).first
    expect(row).to_contain_text("unreachable")
    expect(row).to_contain_text("connection refused")
    expect(overview.get_by_text("2 of 3 nodes answer.")).to_be_visible()
    expect(nodes.get_by_text("failed", exact=True)).to_have_count(2)
    add(node, "meanwhile", "x")
    expect(overview.get_by_role("link", name="meanwhile")).to_be_visible()
    other.start()
    expect(row).to_contain_text("up")
    node.kill()
    expect(nodes.locator("#link-state")).to_have_text("Not connected: figures are old")
    node.start()
    wait_live(nodes)
    wait_until("the mesh is back", lambda: node.info("cluster")["cluster_reachable_nodes"] == "2")
