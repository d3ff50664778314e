"""What is written out for the compiler is what attrs would make, line by line where it was."""

from __future__ import annotations

import ast
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import attrs
import pytest

import cluster
from deploy.compiled import adopt
from deploy.compiled.build import COMPILED, LEFT_OUT, ROOT, STAMP, BuildError, build, stamp_of
from deploy.compiled.expand import ADOPT, ExpansionError, expand

SOURCE = '''"""A module."""

from __future__ import annotations

import attrs

LIMIT = 3
NAMES: list[str] = ["a",
                    "b"]
Alias = int | str
counted = 0


def count() -> None:
    global counted
    counted += 1


@attrs.define
class Point:
    """A place; ähnlich."""

    x: int
    y: int = LIMIT  # a comment
    tags: dict[str, int] = attrs.Factory(
        dict
    )
    rest: list[int] = attrs.Factory(lambda: [0] * 2)
    _hidden: int | None = attrs.field(default=None, init=False)

    @property
    def total(self) -> int:
        """Sum."""
        return self.x + self.y


@attrs.define(eq=False)
class Alone:
    x: int = 1


@attrs.define(eq=False)
class Base:
    booked: int = attrs.field(default=-1, init=False)


@attrs.define(eq=False)
class Derived(Base):
    x: int


@attrs.frozen
class Frozen:
    x: int
    names: tuple[str, ...] = ()


@attrs.define(eq=False, kw_only=True)
class Named:
    x: int
    y: int = 2


def fail() -> None:
    raise ValueError("here")
'''


def load(source: str) -> Any:
    """The module that a text makes."""
    module = types.ModuleType("made")
    sys.modules["made"] = module
    exec(compile(source, "made.py", "exec"), vars(module))
    return module


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """(attrs' own, written out)."""
    monkeypatch.setitem(sys.modules, ADOPT, adopt)
    monkeypatch.setattr(cluster, ADOPT.split(".")[1], adopt, raising=False)
    monkeypatch.setitem(sys.modules, "made", None)
    return load(SOURCE), load(expand(SOURCE))


def test_a_class_behaves_as_that_of_attrs(both: tuple[Any, Any]) -> None:
    def seen(module: Any) -> list[object]:
        one, two = module.Point(1), module.Point(1, 3, {})
        other = attrs.evolve(one, x=5)
        frozen = module.Frozen(1, ("a",))
        alone = module.Alone()
        named = module.Named(x=1)
        return [
            repr(one), one == two, one == other, other.x, other.total, one.tags is two.tags, one.rest, one._hidden,
            one == alone, repr(frozen), hash(frozen) == hash(module.Frozen(1, ("a",))), alone == module.Alone(),
            {alone: 1}[alone], (named.x, named.y), (module.Derived(4).x, module.Derived(4).booked),
            [each.name for each in attrs.fields(module.Point)],
        ]  # fmt: skip

    ours, written = [seen(module) for module in both]
    assert ours == written


@pytest.mark.parametrize(
    "wrong",
    [
        lambda module: module.Point(),
        lambda module: module.Point(1, 2, {}, [], 5),
        lambda module: module.Point(1, hidden=5),
        lambda module: module.Named(1),
        lambda module: hash(module.Point(1)),
    ],
)
def test_it_refuses_what_attrs_refuses(both: tuple[Any, Any], wrong: Any) -> None:
    for module in both:
        with pytest.raises(TypeError):
            wrong(module)


def test_no_line_moves(both: tuple[Any, Any]) -> None:
    places = []
    for module in both:
        with pytest.raises(ValueError, match="here") as caught:
            module.fail()
        places.append(traceback.extract_tb(caught.value.__traceback__)[-1].lineno)
    assert places[0] == places[1] == SOURCE.splitlines().index('    raise ValueError("here")') + 1


def test_what_is_bound_once_is_final_and_nothing_else() -> None:
    text = expand(SOURCE)
    assert "\nLIMIT: _Final = 3\n" in text
    assert '\nNAMES: _Final[list[str]] = ["a",\n' in text
    assert "\nAlias = int | str\n" in text
    assert "\ncounted = 0\n" in text


def test_a_member_of_an_enum_isnt_the_constant_of_its_name() -> None:
    text = expand(f"{SOURCE}\n\nclass Kind(IntEnum):\n    A = 1\n\n\nA = Kind.A\n")
    assert "\n    A = 1\n\n\nA: _Final = Kind.A\n" in text


def test_a_mapping_is_a_dict() -> None:
    text = expand(f"{SOURCE}\n\ndef get(names: Mapping[int, OtherMapping[int]]) -> None: ...\n")
    assert "\ndef get(names: dict[int, OtherMapping[int]]) -> None: ...\n" in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("@attrs.define\nclass A(B):\n    x: int\n", "a base, and what it compares"),
        ("@attrs.define(eq=False)\nclass A(B, C):\n    x: int\n", "more than one base"),
        ("@attrs.define(slots=False)\nclass A:\n    x: int\n", "slots"),
        ("@attrs.define\nclass A:\n    x: int = attrs.field(converter=int)\n", "converter"),
        ("@attrs.define\nclass A:\n    x: int\n    def __init__(self): pass\n", "__init__"),
        ("@attrs.define\nclass A:\n    x: int\nclass B: pass\n", "an empty line"),
        (
            "def f():\n    try: pass\n    except A as e: pass\n    except B as e: pass\n",
            "e is A and B",
        ),
    ],
)
def test_what_isnt_understood_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ExpansionError, match=complaint):
        expand(f"from __future__ import annotations\nimport attrs\n{text}")


def modules() -> list[Path]:
    """What is compiled."""
    found = [path for pattern in COMPILED for path in sorted(ROOT.glob(pattern))]
    return [path for path in found if path.name not in LEFT_OUT]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_that_is_compiled_can_be_written_out(path: Path) -> None:
    source = path.read_text()
    before, after = ast.parse(source), ast.parse(expand(source))
    places = [
        {each.name: each.lineno for each in tree.body if isinstance(each, ast.FunctionDef)}
        for tree in (before, after)
    ]
    assert places[0] == places[1]


def test_a_directory_that_may_be_somebodys_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("thesis")
    for directory, complaint in ((tmp_path, "holds other things"), (mine, "is no directory")):
        with pytest.raises(BuildError, match=complaint):
            build(directory)
    assert mine.read_text() == "thesis"


def test_a_former_build_is_emptied_even_one_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenOffError(Exception):
        pass

    def compile_nothing(*_: object) -> None:
        raise BrokenOffError

    monkeypatch.setattr("deploy.compiled.build._compile", compile_nothing)
    for _ in range(2):
        with pytest.raises(BrokenOffError):
            build(tmp_path)
        assert (tmp_path / STAMP).read_text() == ""
        (tmp_path / "old.so").touch()
    with pytest.raises(BrokenOffError):
        build(tmp_path)
    assert not (tmp_path / "old.so").exists()


def test_a_page_that_changes_is_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("disque", "cluster"):
        (tmp_path / package).mkdir()
    page = tmp_path / "disque" / "page.css"
    page.write_text("a")
    monkeypatch.setattr("deploy.compiled.build.ROOT", tmp_path)
    monkeypatch.setattr("deploy.compiled.build.HERE", tmp_path)
    before = stamp_of("1")
    assert stamp_of("1") == before != stamp_of("2")
    page.write_text("b")
    assert stamp_of("1") != before


def test_a_level_of_optimization_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="DISQUE_OPTIMIZATION is 'fast', not one of 0, 1, 2, 3"):
        build(tmp_path, optimization="fast")
