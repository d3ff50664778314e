"""The browser of a store: verdicts in front, files behind, and no way out."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen import serve, store
from tests.unit.jepsen.synthetic import make_results, make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a judged run and one that crashed; a secret beside it, links to it inside."""
    root = tmp_path / "store"
    run = make_run(jobs=5)
    for name in ("judged", "crashed"):
        with store.open_run(root, name, {}) as folder:
            folder.append(run.ops[0])
            folder.path("n1/server.log").write_text("<b>up</b>")
            if name == "judged":
                folder.write_results(run, make_results(run)[:1])
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "store-2").mkdir()
    (tmp_path / "store-2" / "secret").write_text("secret")
    (root / "leak").symlink_to(tmp_path / "secret")
    (root / ".hidden").write_text("hidden")
    return root


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """The address of a server of that store."""
    server = serve.make_server(root, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://{serve.HOST}:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(url: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", ""


def test_the_front_page_lists_runs_with_their_verdicts(address: str) -> None:
    status, kind, text = fetch(address)
    assert (status, kind) == (200, "text/html; charset=utf-8")
    rows = text.split("<tr>")[1:]
    assert sorted((row[4], "not judged" in row) for row in rows) == [("n", True), ("✓", False)]


def test_folders_and_files_of_a_run(address: str) -> None:
    status, _, text = fetch(f"{address}/latest")
    assert status == 200
    assert 'href="n1/"' in text
    status, kind, text = fetch(f"{address}/latest/n1/server.log")
    assert (status, kind, text) == (200, "text/plain; charset=utf-8", "<b>up</b>")
    assert fetch(f"{address}/latest/results.json")[1] == "application/json"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/%2e%2e/secret",
        "/latest/../../secret",
        "/..%2fsecret",
        "/../store-2/secret",
        "/leak",
        "/.hidden",
        "/latest/%00",
        "/nothing",
    ],
)
def test_there_is_no_way_out_of_the_store(address: str, path: str) -> None:
    assert fetch(address + path)[0] == 404


def test_a_path_is_resolved_with_all_its_links(root: Path) -> None:
    assert serve.resolve(root, "/") == root.resolve()
    assert (
        serve.resolve(root, "/latest/results.json") == (root / "latest").resolve() / "results.json"
    )
    assert serve.resolve(root, "/leak") is None
    assert serve.resolve(root, "//secret") is None


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    assert "No run yet." in serve.front_page(tmp_path / "none")
