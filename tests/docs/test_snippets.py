"""Every page can be followed from top to bottom: what it says to type works, and shows what it says."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import Block, blocks, name_of, pages
from tests.docs.session import Ports, Session, is_as_told, typed
from tests.system.nodes import Cluster, Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALONE = "<!-- alone -->"  # this page starts its nodes by itself
NOT_RUN = ("text", "sh", "ini", "yaml")  # see test_pages: what keeps these true
RUN = ("console", "python", "pycon", "conf")
PAGES = [page for page in pages() if any(block.language in RUN for block in blocks(page))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Ports]]:
    """The three nodes on 7711, 7712 and 7713 that most pages talk to."""
    ports, folder = Ports.free(), tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder, 0)
    for at in range(3):
        cluster.nodes.append(
            Node(
                folder / f"node{at}",
                *("--http-port", str(ports.of(8711 + at))),
                *("--stomp-port", str(ports.of(61_613 + at))),
                *("--cluster-node-timeout", "2000"),
                port=ports.of(7711 + at),
            )
        )
    with cluster:
        cluster.join()
        yield cluster, ports


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli isn't installed")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_can_be_followed(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ALONE in page.read_text():
        ports = Ports.free()
    else:
        nodes, ports = request.getfixturevalue("cluster")
        for node in nodes.nodes:
            assert node.call("DEBUG", "FLUSHALL") == "OK"
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path, ports)
    try:
        for block in blocks(page):
            if block.language in RUN:
                session.run(block)
    finally:
        session.end()


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("", ""),
        ("a\nb\n", "a\nb\n"),
        ("D-1 x  \n", "D-... x\n"),
        ("a    b\n", "a b\n"),
        ("a\nb\nc\n", "...\nc\n"),
        ("", "...\n"),
        ("(integer) 1\n", "(integer) 1\n"),
    ],
)
def test_what_is_as_told(shown: str, expected: str) -> None:
    assert is_as_told(shown, expected)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [("a\n", ""), ("", "a\n"), ("a\nb\n", "a\n"), ("ab\n", "a.\n"), ("a\nb\n", "a...b\n")],
)
def test_what_is_not_as_told(shown: str, expected: str) -> None:
    assert not is_as_told(shown, expected)


def test_typed_commands_may_have_several_lines() -> None:
    assert typed("$ a \\\n> b\nshown\n$ c\n") == [("a \\\nb\n", "shown\n"), ("c\n", "")]


@pytest.mark.parametrize(
    ("language", "words", "text", "said"),
    [
        ("console", (), "$ echo no\nyes\n", "--- shown\nno"),
        ("console", (), "$ false\n", "exit status 1"),
        ("console", ("fails",), "$ true\n", "exit status 0"),
        ("console", ("stays",), "$ echo no\nyes\n", "it has ended"),
        ("pycon", (), ">>> 1\n2\n", "Expected"),
        ("ruby", (), "", "how to run"),
    ],
)
def test_a_page_that_lies_is_found_out(
    language: str, words: tuple[str, ...], text: str, said: str, tmp_path: Path
) -> None:
    session = Session(tmp_path, Ports(21_000))
    try:
        with pytest.raises(AssertionError) as caught:
            session.run(Block("docs/none.md", 1, language, words, text))
    finally:
        session.end()
    assert said in str(caught.value)


def test_ports_of_pages_are_moved() -> None:
    ports = Ports(21_500)
    told = "a:7711 17712 8711 61613 17.7711 77110"
    assert ports.moved(told) == "a:21500 31501 22500 63113 17.7711 77110"
