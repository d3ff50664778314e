"""The pages hang together: links lead somewhere, parts made of the code's tables are up to date, nothing is missing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import attrs
import pytest
from kombu.transport import virtual

import disque.client
from disque.cli.grammar import SUBCOMMANDS
from disque.client import Options, Pipeline
from disque.client.url import Tls
from disque.kombu_transport import Channel
from disque.server.config import DIRECTIVES
from disque.server.table import COMMANDS
from tests.docs import reference
from tests.docs.pages import DOCS, ROOT, anchors, blocks, links, name_of, pages, prose
from tests.docs.test_snippets import NOT_RUN, RUN

INDEX = DOCS / "index.md"
LINE_CHARS_MAX = 140
# Programs that aren't ours, whose commands are told in blocks that no test can run.
FOREIGN = (
    ".venv/bin/pip",
    "cp",
    "docker",
    "docker-compose",
    "kubectl",
    "python3",
    "sudo",
)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{name_of(page)}: {target} isn't there"
        if anchor:
            assert anchor in anchors(other), f"{name_of(page)}: no heading for {target}"


@pytest.mark.parametrize("page", [*pages(), *ROOT.glob("*.md")], ids=name_of)
def test_tables_have_a_head_and_rows_as_wide(page: Path) -> None:
    """A blank line in a table makes text of what is below."""
    for is_table, lines in groupby(prose(page).splitlines(), key=lambda line: line[:1] == "|"):
        rows = list(lines) if is_table else []
        widths = {re.sub(r"\\\||`[^`]*`", "", row).count("|") for row in rows}
        assert len(widths) <= 1, f"{name_of(page)}: {rows}"
        assert not rows or set(rows[1]) <= set("|-: "), f"{name_of(page)}: no head: {rows}"


@pytest.mark.parametrize("page", [*pages(), *ROOT.glob("*.md")], ids=name_of)
def test_lines_of_prose_are_short(page: Path) -> None:
    """What tables hold, and what is made from the code's own, is as long as it is."""
    text = re.sub(r"<!-- generated.*?/generated -->", "", prose(page), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if line[:1] != "|"]
    assert [line for line in lines if len(line) > LINE_CHARS_MAX] == []


def test_every_page_is_reached_from_the_index() -> None:
    reached, new = {INDEX}, [INDEX]
    while new:
        page = new.pop()
        targets = [(page.parent / each.partition("#")[0]).resolve() for each in links(page)]
        found = {each for each in targets if each.suffix == ".md" and DOCS in each.parents}
        new += sorted(found - reached)
        reached |= found
    assert [name_of(page) for page in pages() if page not in reached] == []


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/index.md" in links(ROOT / "README.md")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_is_run_or_of_a_kind_that_is_checked(page: Path) -> None:
    strange = [block for block in blocks(page) if block.language not in (*RUN, *NOT_RUN)]
    assert [str(block) for block in strange] == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_shell_lines_that_cannot_be_run_here_are_for_programs_of_others(page: Path) -> None:
    told = [
        line for block in blocks(page) if block.language == "sh" for line in commands(block.text)
    ]
    assert [line for line in told if line.split()[0] not in FOREIGN] == []


def commands(text: str) -> Iterator[str]:
    """The lines of a shell block with what continues them; without comments."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        said = line.partition("   #")[0].strip()
        if said and not said.startswith("#"):
            yield said


def test_extras_that_pages_install_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = [
        name
        for page in pages()
        for told in re.findall(r"(?:disque-broker|'\.)\[([\w,-]+)\]", page.read_text())
        for name in told.split(",")
    ]
    assert named
    assert [name for name in named if name not in extras] == []


def test_files_that_pages_name_exist() -> None:
    pattern = re.compile(r"`((?:deploy|disque|cluster|tests|docs)/[\w./*-]+)`")
    named = {(name_of(page), path) for page in pages() for path in pattern.findall(prose(page))}
    assert named
    assert [pair for pair in sorted(named) if not list(ROOT.glob(pair[1].rstrip("/")))] == []


def test_directives_that_pages_name_exist() -> None:
    pattern = re.compile(
        r"`((?:cluster|appendfsync|tls|http|stomp|aof|auto-aof|default|topic|maxmemory)-[a-z-]+)`"
    )
    named = {(name_of(page), name) for page in pages() for name in pattern.findall(prose(page))}
    assert named
    assert [pair for pair in sorted(named) if pair[1] not in DIRECTIVES] == []


def test_every_rule_that_the_code_names_is_on_its_page() -> None:
    page = (DOCS / "rules.md").read_text()
    stands = {*re.findall(r"^\| (M\d+) \|", page, re.M), *re.findall(r"^- ([SQ]\d+) ", page, re.M)}
    for section in re.split(r"^### ", page, flags=re.M)[1:]:
        procedure = section.partition(" ")[0]
        steps = re.findall(r"^(\d+)\. ", section.partition("\n## ")[0], re.M)
        stands |= {procedure, *(f"{procedure}.{step}" for step in steps)}
    code = (path for name in ("disque", "cluster", "tests") for path in (ROOT / name).rglob("*.py"))
    named = {
        (rule, path.relative_to(ROOT).as_posix())
        for path in code
        for rule in re.findall(r"\b[MBSQ]\d{1,2}(?:\.\d+)?\b", path.read_text())
    }
    assert len(named) > 300
    assert [pair for pair in sorted(named) if pair[0] not in stands] == []


def test_every_alert_is_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DOCS / "monitoring.md").read_text())
    assert alerts
    explained = (DOCS / "incidents.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in explained] == []


def table_names(page: str, title: str) -> list[str]:
    """What stands in backquotes in the first column of the table with this title."""
    rows = re.search(rf"^\| {title} \|.*\n\| ---.*\n((?:\|.*\n)+)", (DOCS / page).read_text(), re.M)
    assert rows is not None, f"{page}: no table begins with {title}"
    first = [row.split("|")[1] for row in rows[1].splitlines()]
    return [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]


def test_options_of_the_client_are_those_of_its_urls() -> None:
    text = (DOCS / "client.md").read_text()
    cells = re.findall(r"^\| `([a-z_`, ]+)` \|", text, re.M)
    told = [name for cell in cells for name in cell.split("`, `")]
    plain = [field.name for field in attrs.fields(Options)]
    assert told == [*plain, *[f"tls_{field.name}" for field in attrs.fields(Tls)]]


def test_errors_that_the_client_page_explains_are_all_there_are() -> None:
    told = table_names("client.md", "error")
    errors = [
        name for name in disque.client.__all__ if name.endswith("Error") and name != "DisqueError"
    ]
    assert sorted(name for name in told if name.endswith("Error")) == sorted(errors)


def test_options_of_celery_exist() -> None:
    own = set(Channel.from_transport_options) - set(virtual.Channel.from_transport_options)
    shared = {"connect_timeout", "reply_timeout", "failover_timeout", "discover"}
    assert set(table_names("celery.md", "option")) == own | shared
    assert shared <= {field.name for field in attrs.fields(Options)}


def test_commands_of_the_tool_are_all_told() -> None:
    told = set(re.findall(r"`disque ([a-z]+)[ `]", (DOCS / "tool.md").read_text()))
    assert told == set(SUBCOMMANDS)


def test_methods_of_the_client_are_all_told() -> None:
    text = prose(DOCS / "client.md")
    told = re.search(r"Each command is a method: (.*?)\. Anything else", text, re.S)
    assert told is not None
    methods = {name for name in vars(Pipeline) if not name.startswith("_")}
    missing = {"append", "execute", "execute_raw"}
    assert set(re.findall(r"`(\w+)`", told[1])) == (methods - missing) | {"get_job"}


def test_generated_parts_are_up_to_date() -> None:
    stale = [name_of(page) for page in reference.stale_pages()]
    assert stale == [], "run python -m tests.docs.reference"


def test_every_directive_is_in_the_reference() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "directives.md").read_text(), re.M)
    assert told == list(DIRECTIVES)


def test_every_command_has_a_section_with_its_usage_and_what_it_does() -> None:
    text = (DOCS / "commands.md").read_text()
    sections = re.findall(r"^### ([A-Z]+)\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    served = [name.decode().upper() for name in COMMANDS]
    assert sorted(name for name, _ in sections) == sorted([*served, "QUIT"])
    for name, section in sections:
        assert f"<!-- generated: command {name} -->" in section, name
        assert section.partition("<!-- /generated -->")[2].strip(), f"{name}: nothing is said"
