"""The house rules that can be counted; each also shows on a planted line that it can fail.

A rule is a function from one parsed file (or one text) to the complaints about it. Complaints name
file, line, the bad value and the limit. ruff, mypy and import-linter check what they can; only the
rest stands here.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
BARE_FIELDS_MAX = 4  # a value class of so few fields, and nothing else, needs no docstring

PACKAGES = ("cluster", "disque")  # what users get: every public name has a docstring
CODE = (*PACKAGES, "jepsen", "tests/sim")  # what the numbers hold for
FOLDERS = (".ci", "cluster", "deploy", "disque", "docs", "jepsen", "tests")  # what is ours to read
PRINTERS = ("disque/cli/", "disque/server/local.py")  # whose job is to print

# Each word is spelt in two halves, so that this file doesn't break its own rules.
STRAY_HALVES = ("TO DO", "FIX ME", "XX X")
FOLDER_HALVES = ("wo rk", "ro ot", "ho me", "Us ers")
HOST_HALVES = (
    "py pi.org",
    "python hosted.org",
    "npm js.org",
    "deb.deb ian.org",
    "ghcr .io",
    "quay .io",
)


def any_of(halves: tuple[str, ...]) -> str:
    """A pattern for any of these words, put together again."""
    return "(?:" + "|".join(re.escape(each.replace(" ", "")) for each in halves) + ")"


STRAY = re.compile(rf"\b{any_of(STRAY_HALVES)}\b")
MACHINE_PATH = re.compile(rf"(?<![\w.~}}/-])/{any_of(FOLDER_HALVES)}/")
REGISTRY_HOST = re.compile(any_of(HOST_HALVES))


@attrs.frozen
class Source:
    """One Python file: its path from the root, its text, its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def planted(cls, text: str, path: str = "disque/planted.py") -> Source:
        """A file that exists in a test only."""
        return cls(path, text, ast.parse(text))


Rule = Callable[[Source], Iterator[str]]


def python_files(*folders: str) -> Iterator[Source]:
    """Every Python file below these folders, in order of path; one tree at a time, since all take 200 MB."""
    for path in sorted({path for folder in folders for path in (ROOT / folder).rglob("*.py")}):
        yield Source.planted(path.read_text(), path.relative_to(ROOT).as_posix())


def text_files() -> list[tuple[str, str]]:
    """Path and text of every file of the repository that is text, without asking git."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    on_top = (path for path in ROOT.iterdir() if path.name not in {".env", ".git", ".coverage"})
    found = []
    for path in sorted({*inside, *on_top}):
        if path.is_file() and "__pycache__" not in path.parts:
            raw = path.read_bytes()
            if b"\0" not in raw:
                found.append((path.relative_to(ROOT).as_posix(), raw.decode()))
    return found


# Rules about one Python file


def module_length(source: Source) -> Iterator[str]:
    """No module above MODULE_LINES_MAX lines."""
    lines = len(source.text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{source.path}: {lines} lines, at most {MODULE_LINES_MAX}"


def function_length(source: Source) -> Iterator[str]:
    """No function above FUNCTION_LINES_MAX lines, `def` to end; tests and steps are exempt."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_test(node):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                where = f"{source.path}:{node.lineno}"
                yield f"{where}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def module_docstring(source: Source) -> Iterator[str]:
    """Every module says what it is; an empty `__init__` has nothing to say."""
    is_empty = source.path.endswith("__init__.py") and not source.text.strip()
    if ast.get_docstring(source.tree) is None and not is_empty:
        yield f"{source.path}: no docstring"


def public_docstrings(source: Source) -> Iterator[str]:
    """Every public class, function, and public method of a public class, has a docstring."""
    for node, name in public_definitions(source.tree):
        if ast.get_docstring(node) is None and not is_bare_value(node):
            yield f"{source.path}:{node.lineno}: {name} has no docstring"


def prints(source: Source) -> Iterator[str]:
    """Nobody prints but those whose job it is."""
    if source.path.startswith(PRINTERS):
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield f"{source.path}:{node.lineno}: print()"


def shadowing(source: Source) -> Iterator[str]:
    """No module is named like one of the standard library."""
    stem = Path(source.path).stem
    if stem in sys.stdlib_module_names and not stem.startswith("__"):
        yield f"{source.path}: the standard library has a module {stem}"


def set_iteration(source: Source) -> Iterator[str]:
    """A set is never walked where its order could be seen: for, a list or dict of it, join() ..."""
    for node in ast.walk(source.tree):
        for walked in iterated(node):
            if is_set(walked):
                yield f"{source.path}:{walked.lineno}: walks a set; sort it, or keep a dict"


def is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A test, or a step of a Hypothesis state machine."""
    names = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
    return node.name.startswith("test_") or not names.isdisjoint(
        {"given", "rule", "invariant", "initialize"}
    )


def public_definitions(
    tree: ast.Module | ast.ClassDef, outer: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str]]:
    """Public functions, classes and methods of public classes, with dotted names."""
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name[0] != "_"
        ):
            name = outer + node.name
            if not is_overload(node):
                yield node, name
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{name}.")


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """One more signature, or the setter, of a function that is documented elsewhere."""
    return any(ast.unparse(each).endswith(("overload", ".setter")) for each in node.decorator_list)


def is_bare_value(node: ast.AST) -> bool:
    """An attrs class of at most BARE_FIELDS_MAX fields, and nothing else."""
    if not isinstance(node, ast.ClassDef):
        return False
    made_by = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
    is_attrs = not made_by.isdisjoint({"value", "frozen", "define"})
    is_fields = all(isinstance(each, ast.AnnAssign | ast.Pass) for each in node.body)
    return is_attrs and is_fields and len(node.body) <= BARE_FIELDS_MAX


def iterated(node: ast.AST) -> list[ast.expr]:
    """What this node walks in an order that can be seen afterwards."""
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.DictComp):
        return [each.iter for each in node.generators]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).split(".")[-1]
        if name in {
            "list",
            "tuple",
            "iter",
            "enumerate",
            "join",
            "extend",
            "fromkeys",
            "zip",
            "map",
            "filter",
        }:
            return node.args
    return []


def is_set(node: ast.expr) -> bool:
    """Plainly a set: its literal, its comprehension, or set() and frozenset()."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return isinstance(node, ast.Set | ast.SetComp) or (
        is_call and ast.unparse(node.func) in {"set", "frozenset"}  # type: ignore[attr-defined]
    )


# Rules about any text


def stray_marks(path: str, text: str) -> Iterator[str]:
    """Nothing is left for later in a comment; an issue is the place."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := STRAY.search(line):
            yield f"{path}:{number}: stray {found[0]}"


def machine_names(path: str, text: str) -> Iterator[str]:
    """No path of one machine, and no host of a package registry."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in (MACHINE_PATH, REGISTRY_HOST):
            if found := pattern.search(line):
                yield f"{path}:{number}: {found[0]!r} holds on some machines only"


def missing_targets(path: str, text: str, makefile: str) -> Iterator[str]:
    """Every `make x` that a page tells readers to run is a target."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    told = re.findall(r"(?:`|^|&& )make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", text, re.M)
    for word in (word for words in told for word in words.split()):
        if word not in targets:
            yield f"{path}: make {word} is no target of the Makefile: {sorted(targets)}"


def foreign_constants(source: Source) -> Iterator[str]:
    """Nobody sets another module's constant for good; monkeypatch and mock take it back."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr.isupper()
            and ast.unparse(node.value).partition(".")[0] in imported
        ):
            yield f"{source.path}:{node.lineno}: sets {ast.unparse(node)}"


_OF_NUMBERS = (ast.Constant, ast.BinOp, ast.operator)


def wrapped_constants(source: Source) -> Iterator[str]:
    """A number doesn't stand on a line by itself between parentheses: a remark that is long has its line above."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and all(isinstance(each, _OF_NUMBERS) for each in ast.walk(node.value))
            and not isinstance(getattr(node.value, "value", 0), str | bytes)
            and node.lineno < node.value.lineno == node.value.end_lineno
        ):
            yield f"{source.path}:{node.lineno}: {ast.unparse(node)} is wrapped for its remark"


def trailing_remarks(source: Source) -> Iterator[str]:
    """No remark behind a bracket that closes what it wrapped: it goes above."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.match(r"\s*[)\]}]+[,:]?\s+# (?!type:|fmt:|noqa)", line):
            yield f"{source.path}:{number}: {line.strip()!r}: the remark goes above what it is about"


def pure_sources() -> list[Source]:
    """The files that pyproject's import contract calls pure."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (pure,) = [each for each in contracts if each["name"].startswith("Pure code")]
    names = tuple(name.replace(".", "/") for name in pure["source_modules"])
    files = python_files(*PACKAGES)
    return [
        f
        for f in files
        if f.path.removesuffix(".py") in names or f.path.startswith(tuple(f"{n}/" for n in names))
    ]


RULES: list[tuple[Rule, tuple[str, ...]]] = [
    (module_length, CODE),
    (function_length, CODE),
    (module_docstring, (*PACKAGES, "tests")),
    (public_docstrings, PACKAGES),
    (prints, PACKAGES),
    (shadowing, CODE),
    (foreign_constants, (*PACKAGES, "jepsen", "tests")),
    (wrapped_constants, (*PACKAGES, "jepsen", "tests")),
    (trailing_remarks, (*PACKAGES, "deploy", "jepsen", "tests")),
]


def test_python_files_keep_the_rules() -> None:
    """All of them in one walk: to read the files takes most of the time."""
    assert [
        complaint
        for source in python_files(*{folder for _, folders in RULES for folder in folders})
        for rule, folders in RULES
        if source.path.startswith(folders)
        for complaint in rule(source)
    ] == []


def test_pure_code_walks_no_set() -> None:
    sources = pure_sources()
    assert any(source.path == "disque/core/limits.py" for source in sources)
    assert [complaint for source in sources for complaint in set_iteration(source)] == []


def test_nothing_is_left_for_later() -> None:
    assert [each for path, text in text_files() for each in stray_marks(path, text)] == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert [each for path, text in text_files() for each in machine_names(path, text)] == []


def test_every_make_command_that_a_page_tells_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pages = [(path, text) for path, text in text_files() if path.endswith(".md")]
    assert {"README.md", "tests/README.md"} <= {path for path, _ in pages}
    assert [each for path, text in pages for each in missing_targets(path, text, makefile)] == []


def test_source_distribution_has_what_the_tests_read() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    on_top = {
        ".dockerignore",
        ".env.example",
        "Dockerfile",
        "Makefile",
        "bench.json",
        "docker-compose.yml",
    }
    assert {*FOLDERS, *on_top} - {*build["targets"]["sdist"]["include"]} == set()


def test_readme_tells_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"^make run\b", readme, re.M)
    assert re.search(r"^make test\b", readme, re.M)


LONG_BODY = "    pass\n" * FUNCTION_LINES_MAX

PLANTED: list[tuple[Rule, str, str]] = [
    (module_length, "x = 1\n" * (MODULE_LINES_MAX + 1), "601 lines, at most 600"),
    (function_length, f"def work():\n{LONG_BODY}", "work has 61 lines, at most 60"),
    (function_length, f"class C:\n  async def work(self):\n{LONG_BODY}", "work has 61 lines"),
    (module_docstring, "x = 1\n", "no docstring"),
    (public_docstrings, "def act(): ...\n", "act has no docstring"),
    (public_docstrings, "class Thing:\n    pass\n", "Thing has no docstring"),
    (public_docstrings, 'class Thing:\n    "A."\n    def act(self): ...\n', "Thing.act has no"),
    (
        public_docstrings,
        "@value\nclass V:\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int\n",
        "V has no",
    ),
    (
        public_docstrings,
        "@value\nclass V:\n    a: int\n    def act(self): ...\n",
        "V has no docstring",
    ),
    (prints, "print('here')\n", "print()"),
    (set_iteration, "for x in {1, 2}: pass\n", "walks a set"),
    (set_iteration, "for x in set(y): pass\n", "walks a set"),
    (set_iteration, "z = [x for x in frozenset(y)]\n", "walks a set"),
    (set_iteration, "z = list({x for x in y})\n", "walks a set"),
    (set_iteration, "z = b','.join(set(y))\n", "walks a set"),
    (set_iteration, "z = [*set(y)]\n", "walks a set"),
    (foreign_constants, "from a import b\nb.WAIT_S = 1\n", "sets b.WAIT_S"),
    (foreign_constants, "import a.b\ndef f(): a.b.WAIT_S += 1\n", "sets a.b.WAIT_S"),
    (wrapped_constants, "N = (\n    4  # of them\n)\n", "N = 4 is wrapped"),
    (wrapped_constants, "N: int = (\n    1 << 4  # bytes\n)\n", "N: int = 1 << 4 is wrapped"),
    (trailing_remarks, "n = f(\n    1\n)  # why\n", "the remark goes above"),
    (trailing_remarks, "if (\n    a\n):  # why\n    f()\n", "the remark goes above"),
]


@pytest.mark.parametrize(("rule", "text", "complaint"), PLANTED)
def test_a_planted_line_breaks(rule: Rule, text: str, complaint: str) -> None:
    assert any(complaint in each for each in rule(Source.planted(text)))


def test_a_module_named_like_the_library_breaks() -> None:
    assert list(shadowing(Source.planted("", "disque/core/queue.py")))
    assert not list(shadowing(Source.planted("", "disque/core/jobqueue.py")))


GOOD: list[tuple[Rule, str]] = [
    (function_length, f"def test_long():\n{LONG_BODY}"),
    (function_length, f"@rule(x=1)\ndef step(self):\n{LONG_BODY}"),
    (public_docstrings, "def _act(): ...\nclass _Thing:\n    def act(self): ...\n"),
    (public_docstrings, "@attrs.frozen\nclass V:\n    a: int\n    b: int = 0\n"),
    (public_docstrings, 'class Thing:\n    "A."\n    def __len__(self): ...\n'),
    (
        set_iteration,
        "for x in sorted({1, 2}): pass\nz = {x for x in set(y)}\nw = any(x for x in set(y))\n",
    ),
    (foreign_constants, "from a import b\nWAIT_S = b.WAIT_S\nc.WAIT_S = b.wait_s = 1\n"),
    (trailing_remarks, "n = f(1)  # why\nm = (\n    1,\n)  # fmt: skip\n"),
    (wrapped_constants, "N = 4  # of them\nM = (\n    'long'\n    'text'\n)\nL = (\n    f(1)\n)\n"),
]


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_what_the_rules_allow(rule: Rule, text: str) -> None:
    assert list(rule(Source.planted(text))) == []


def test_a_planted_mark_machine_or_target_is_seen() -> None:
    assert list(stray_marks("a", "x = 1  # " + "TO" + "DO: later"))
    assert not list(stray_marks("a", "the word to" + "do in lower case"))
    assert list(machine_names("a", "cd /ro" + "ot/thing"))
    assert list(machine_names("a", 'open("/ho' + 'me/me/x")'))
    assert list(machine_names("a", "pip install -i https://py" + "pi.org/simple x"))
    assert not list(machine_names("a", "tests/work/x, https://host/root/x, ~/home/x"))
    assert list(missing_targets("a", "```\nmake rnu\n```", "run:\n"))
    assert list(missing_targets("a", "say `make run fly`", "run:\n"))
    assert not list(missing_targets("a", "to make sure, say `make run`", "run:\n"))
