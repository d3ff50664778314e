"""Reference: the parts of pages that are made of the code's own tables, and of bench.json.

`python -m tests.docs.reference` writes them.

A page marks where a part goes: what stands between `<!-- generated: WORDS -->` and `<!-- /generated -->` is replaced.
The words are the name of a part and what it is about.
"""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from disque.cli.grammar import USAGE
from disque.server import directives as kinds
from disque.server.acl import CATEGORIES
from disque.server.config import DIRECTIVES, Config
from disque.server.table import COMMANDS
from disque.web import metrics
from disque.web.picture import QueueRow, Sample
from tests.bench import report
from tests.docs.pages import ROOT, name_of, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from disque.server.directives import Directive, Kind

_PART = re.compile(r"(<!-- generated: ([^>]+) -->\n)(.*?)(<!-- /generated -->)", re.S)
_INT_MAX = (1 << 31) - 1


def generated(text: str) -> str:
    """A page's text with all its parts made anew. KeyError for a part that there isn't."""

    def make(found: re.Match[str]) -> str:
        name, *words = found[2].split()
        return f"{found[1]}{PARTS[name](*words)}{found[4]}"

    return _PART.sub(make, text)


def stale_pages() -> list[Path]:
    """The pages whose parts aren't what they would be made now."""
    return [page for page in pages() if generated(page.read_text()) != page.read_text()]


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(
        [f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |\n" for line in lines]
    )


# Directives


def directives_from(first: str, end: str = "") -> str:
    """The directives from the first to before the other one, or to the last, in the order of the server's list."""
    names = list(DIRECTIVES)
    chosen = names[names.index(first) : names.index(end) if end else None]
    rows = [_directive_row(DIRECTIVES[name]) for name in chosen]
    return table(["directive", "default", "takes", "live", "meaning"], rows)


def _directive_row(directive: Directive) -> list[str]:
    kind = directive.kind
    default = "the present folder" if directive.name == "dir" else _default(directive)
    live = "yes" if directive.is_settable else "SIGHUP" if directive.is_reread else ""
    return [f"`{directive.name}`", default, takes(kind, directive.unit), live, directive.help]


def _default(directive: Directive) -> str:
    value = getattr(Config(), directive.attribute)
    shown = directive.show(value)
    if isinstance(directive.kind, kinds.Memory):
        shown = _memory(value)
    return f"`{shown}`" if shown else ""


def _memory(count: int) -> str:
    """Bytes as a configuration file would have them."""
    for unit, size in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def takes(kind: Kind, unit: str) -> str:
    """What values a directive takes, in words."""
    match kind:
        case kinds.Integer(low, high):
            limits = f"{low} to {high}" if high < _INT_MAX else f"{low} or more"
            return f"{limits} {unit}".strip()
        case kinds.Choice(choices):
            return " ".join(f"`{each}`" for each in choices)
        case kinds.Words(most):
            return f"up to {most} words"
        case kinds.Memory(low=low):
            least = f", at least {_memory(low)}" if low else ""
            return f"bytes, or with `kb` `mb` `gb`{least}"
    return _TAKES[type(kind)]


_TAKES: Mapping[type, str] = {
    kinds.AutoPort: "0 to 65535, or `auto`",
    kinds.BufferLimits: "`normal` hard soft seconds",
    kinds.FileName: "name of a file",
    kinds.Host: "host name or address",
    kinds.FilePath: "path of a file",
    kinds.Folder: "path of a folder",
    kinds.JoinAddresses: "`host[:port[@busport]]` ...",
    kinds.KeepAlive: "seconds, `yes` or `no`",
    kinds.Permissions: "octal digits",
    kinds.Renames: "a command and its new name",
    kinds.Text: "text",
    kinds.Users: "see [users](operations.md#users)",
    kinds.YesNo: "`yes` `no`",
}


# Commands


def command(name: str) -> str:
    """How a command is called, and what kind of command it is."""
    usage = f"{name} {USAGE[name]}".rstrip()
    forms = [each if each.startswith(name) else f"{name} {each}" for each in _alternatives(usage)]
    forms = [_wrapped(each) for each in forms]
    return f"```text\n{chr(10).join(forms)}\n```\n\n{_traits(name)}\n"


def _wrapped(form: str) -> str:
    """Not too wide, what is in brackets undivided."""
    bound = re.sub(r"\[[^]]*\]", lambda found: found[0].replace(" ", "\0"), form)
    lines = textwrap.wrap(bound, 100, subsequent_indent="       ", break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _alternatives(usage: str) -> list[str]:
    """The forms of a command with sub-commands, one a line; only a bar outside of brackets divides them."""
    forms, depth, start = [], 0, 0
    for at, char in enumerate(usage):
        depth += (char == "[") - (char == "]")
        if usage[at : at + 3] == " | " and depth == 0:
            forms.append(usage[start:at])
            start = at + 3
    return [*forms, usage[start:]]


def _traits(name: str) -> str:
    spec = COMMANDS.get(name.lower().encode())
    if spec is None:
        return "Always answered, also without the password."
    said = ["changes jobs" if b"write" in spec.flags else "changes no job"]
    said += [text for flag, text in _FLAGS.items() if flag in spec.flags]
    if spec.name in CATEGORIES["client"]:
        said.append("in `+@client`")
    text = ", ".join(said)
    return f"{text[0].upper()}{text[1:]}."


_FLAGS = {
    b"denyoom": "refused when memory is full",
    b"admin": "for administrators",
    b"loading": "answered while the log is being read",
}


def command_index() -> str:
    """All commands with links to their sections."""
    names = [*(name.decode().upper() for name in COMMANDS), "QUIT"]
    return " · ".join(f"[`{name}`](#{name.lower()})" for name in sorted(names)) + "\n"


def user_categories() -> str:
    """What `+@client` allows."""
    return " ".join(f"`{name.decode()}`" for name in sorted(CATEGORIES["client"])) + "\n"


# Metrics


class _All(dict[str, str]):
    """Fields of a node that has them all."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "le_inf=0,sum=0"


def metric_names() -> str:
    """What /metrics has."""
    queue = {b"q": QueueRow(b"q")}
    text = metrics.exposition(Sample(0.0, _All(), _All(), queues=queue), _All()).decode()
    rows = []
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append([f"`{name}`", family.type, family.documentation])
    assert rows
    return table(["name", "kind", "meaning"], rows)


# Figures


def measured() -> str:
    """All that `make bench` measured last."""
    return report.table(report.from_json((ROOT / "bench.json").read_text())) + "\n"


PARTS: Mapping[str, Callable[..., str]] = {
    "directives": directives_from,
    "command": command,
    "commands": command_index,
    "categories": user_categories,
    "metrics": metric_names,
    "bench": measured,
}


def main() -> int:
    """Write what isn't up to date; says which pages."""
    for page in stale_pages():
        page.write_text(generated(page.read_text()))
        sys.stdout.write(f"{name_of(page)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
