"""Pages: the Markdown files under docs/ as blocks of code with a language, and as links and headings.

The first word behind a fence is the language; what follows says how the block is run (see `session`). Nothing here
runs anything.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"(?P<indent> *)```(?P<info>.*)")
_INLINE = re.compile(r"`[^`]*`")


@attrs.frozen
class Block:
    """A fenced block; `line` is that of its first fence, `words` what stands there behind the language."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All pages, in order of their names."""
    return sorted(DOCS.glob("**/*.md"))


def name_of(path: Path) -> str:
    """A page's path from the root of the project."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    """The page's blocks, in order; AssertionError for one that doesn't end."""
    found: list[Block] = []
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for number, line in lines:
        match = _FENCE.fullmatch(line)
        if match is None:
            continue
        indent, (language, *words) = match["indent"], match["info"].split() or [""]
        inside: list[str] = []
        for _, each in lines:
            if each == f"{indent}```":
                break
            inside.append(each.removeprefix(indent))
        else:
            raise AssertionError(f"{path}:{number}: this block has no end")
        text = "".join([f"{each}\n" for each in inside])
        found.append(Block(name_of(path), number, language, tuple(words), text))
    return found


def prose(path: Path) -> str:
    """The page without its blocks."""
    kept: list[str] = []
    is_inside = False
    for line in path.read_text().splitlines():
        if _FENCE.fullmatch(line):
            is_inside = not is_inside
        elif not is_inside:
            kept.append(line)
    return "\n".join(kept)


def links(path: Path) -> list[str]:
    """Where the page's links lead, images included."""
    return re.findall(r"\]\(([^)\s]+)\)", _INLINE.sub("", prose(path)))


def anchors(path: Path) -> set[str]:
    """What a link to this page may say behind `#`: the headings, spelt as GitHub does."""
    return {slug(each) for each in re.findall(r"^#+ (.+)$", prose(path), re.M)}


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
