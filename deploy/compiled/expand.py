"""Source for the compiler: the same modules, with attrs' classes and constants spelled out.

mypyc makes a C struct of a plain class, and nothing of one that a decorator makes at run time. So what attrs would
write, `__init__` and `__eq__`, is written into the text, and names that are bound once become Final. No line moves: a
traceback of the compiled code points into the source as it is. The rest of what attrs gives a class (repr, hash,
fields) is added when the module is imported (adopt.py).

And a Mapping becomes a dict: it always is one here, the annotation only forbids to change it. Of a dict the compiler
knows how to get, to look and to walk; of a Mapping it must ask by name.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TypeAlias

import attrs

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

ADOPT = "cluster.compiled_values"  # where adopt.py lies in a compiled tree
_FROZEN = "attrs.frozen"
_DECORATORS = ("attrs.define", "value", _FROZEN)
_OPTIONS = {"eq", "kw_only", "weakref_slot", "repr"}
_FIELD_OPTIONS = {"default", "factory", "init", "repr", "alias"}
_MAPPING = re.compile(r"\bMapping\[")
_FINAL = "from typing import Final as _Final"


class ExpansionError(Exception):
    """A class that attrs would make of more than is understood here."""


@attrs.frozen
class Field:
    """One attribute; `default` is source text, None if the caller must give it."""

    name: str
    annotation: str
    default: str | None
    is_made_anew: bool  # the default is an expression that each instance evaluates
    is_given: bool  # __init__ takes it

    @property
    def argument(self) -> str:
        """As __init__ names it."""
        return self.name.lstrip("_")

    def parameter(self) -> str:
        """Of __init__."""
        if self.default is None:
            return f"{self.argument}: {self.annotation}"
        if self.is_made_anew:
            return f"{self.argument}: {self.annotation} | None = None"
        return f"{self.argument}: {self.annotation} = {self.default}"

    def assignment(self) -> str:
        """In __init__."""
        if not self.is_given:
            return f"self.{self.name} = {self.default}"
        if self.is_made_anew:
            return (
                f"self.{self.name} = {self.default} if {self.argument} is None else {self.argument}"
            )
        return f"self.{self.name} = {self.argument}"


def expand(source: str) -> str:
    """The text of a module in which no class is left to attrs; ExpansionError for what it doesn't understand."""
    source = _MAPPING.sub("dict[", source)
    tree = ast.parse(source)
    text = _Text(source)
    _refuse_shared_names(tree)
    adoptions = [
        _expand_class(text, node, decorator)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and (decorator := _attrs_decorator(node)) is not None
    ]
    _finalize(text, tree)
    if adoptions:
        text.append(f"import {ADOPT} as _values")
        text.append("\n".join(adoptions))
    return str(text)


class _Text:
    """Lines that are replaced in place, so that each keeps its number. Columns are bytes, as ast counts them."""

    def __init__(self, source: str) -> None:
        self._lines = [line.encode() for line in source.splitlines()]

    def __str__(self) -> str:
        return b"\n".join([*self._lines, b""]).decode()

    def replace(
        self, node: ast.expr | ast.stmt, new: str, *, behind: ast.expr | None = None
    ) -> None:
        """Put text where a node is, or the part of it behind another one."""
        first, begin = _begin(node) if behind is None else _end(behind)
        last, end = _end(node)
        rest = self._lines[last][end:]
        self._lines[first] = self._lines[first][:begin] + new.encode()
        for between in range(first + 1, last + 1):
            self._lines[between] = b""
        self._lines[last] += rest

    def drop_decorator(self, node: ast.expr) -> None:
        """Leave an empty line."""
        self.replace(node, "")
        self._lines[node.lineno - 1] = b""

    def extend_line(self, node: ast.stmt, new: str) -> None:
        """Put text at the end of the line on which a statement ends."""
        self._lines[_end(node)[0]] += new.encode()

    def fill(self, after: int, new: list[str]) -> None:
        """Use the empty lines behind a line for these; there must be as many before the next statement."""
        at = after
        for line in new:
            while at < len(self._lines) and self._lines[at].strip().startswith(b"#"):
                at += 1
            if at == len(self._lines):
                self._lines.append(b"")
            if self._lines[at]:
                raise ExpansionError(
                    f"line {at + 1}: an empty line is needed behind a class of attrs"
                )
            self._lines[at] = line.encode()
            at += 1

    def append(self, new: str) -> None:
        """At the end of the module."""
        self._lines.append(new.encode())


def _begin(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno - 1, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno - 1, node.end_col_offset


def _attrs_decorator(node: ast.ClassDef) -> ast.expr | None:
    for each in node.decorator_list:
        if _name_of(each) in _DECORATORS:
            return each
    return None


def _name_of(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _options_of(node: ast.ClassDef, decorator: ast.expr) -> dict[str, object]:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    options = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
    if unknown := options.keys() - _OPTIONS:
        raise ExpansionError(f"class {node.name}: {', '.join(sorted(unknown))}")
    if len(node.bases) > 1 or node.keywords:
        raise ExpansionError(f"class {node.name}: more than one base")
    if node.bases and options.get("eq", True):
        raise ExpansionError(f"class {node.name}: a base, and what it compares")
    return options


def _expand_class(text: _Text, node: ast.ClassDef, decorator: ast.expr) -> str:
    """Write a class out; returns what is to be done when its module is imported."""
    options = _options_of(node, decorator)
    fields = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            fields.append(_field(node, statement))
            if statement.value is not None:
                text.replace(statement, "", behind=statement.annotation)
    own = {each.name for each in node.body if isinstance(each, Definition)}
    if own & {"__init__", "__attrs_post_init__", "__attrs_pre_init__"}:
        raise ExpansionError(f"class {node.name}: an __init__ beside that of attrs")
    is_equal = options.get("eq", True) and "__eq__" not in own
    base = ast.unparse(node.bases[0]) if node.bases else ""
    methods = [_init(base, fields, is_keyword_only=bool(options.get("kw_only")))]
    if is_equal:
        methods.append(_eq(node.name, fields))
    text.drop_decorator(decorator)
    text.fill(_end(node)[0] + 1, methods)
    given = ", ".join(f"{each.name!r}: {each.is_given}" for each in fields)
    is_hashed = is_equal and _name_of(decorator) == _FROZEN
    return f"_values.adopt({node.name}, {{{given}}}, is_equal={is_equal}, is_hashed={is_hashed})"


def _field(node: ast.ClassDef, statement: ast.AnnAssign) -> Field:
    assert isinstance(statement.target, ast.Name)
    name, annotation, value = (
        statement.target.id,
        ast.unparse(statement.annotation),
        statement.value,
    )
    is_given = True
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "attrs.field":
        options = {str(each.arg): each.value for each in value.keywords}
        if unknown := options.keys() - _FIELD_OPTIONS:
            raise ExpansionError(f"{node.name}.{name}: {', '.join(sorted(unknown))}")
        is_given = "init" not in options or bool(ast.literal_eval(options["init"]))
        value = options.get("default")
        if "factory" in options:
            return Field(name, annotation, _called(options["factory"]), True, is_given)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "attrs.Factory":
        return Field(name, annotation, _called(value.args[0]), True, is_given)
    return Field(name, annotation, None if value is None else ast.unparse(value), False, is_given)


def _called(factory: ast.expr) -> str:
    if isinstance(factory, ast.Lambda):
        return ast.unparse(factory.body)
    name = ast.unparse(factory)
    return {"dict": "{}", "list": "[]"}.get(name, f"{name}()")


def _init(base: str, fields: list[Field], *, is_keyword_only: bool) -> str:
    """The fields of a base have defaults, and nobody gives them: attrs insists on the former only."""
    given = [each.parameter() for each in fields if each.is_given]
    parameters = ", ".join(["self", *["*"][: is_keyword_only and bool(given)], *given])
    steps = [f"{base}.__init__(self)"] if base else []
    body = "; ".join([*steps, *[each.assignment() for each in fields]]) or "pass"
    return f"    def __init__({parameters}) -> None: {body}"


def _eq(name: str, fields: list[Field]) -> str:
    same = " and ".join([f"self.{each.name} == other.{each.name}" for each in fields]) or "True"
    return (
        f"    def __eq__(self, other: object) -> bool: return isinstance(other, {name}) and {same}"
    )


def _refuse_shared_names(tree: ast.Module) -> None:
    """A variable has one type for the compiler: the second `except B as error` of a function would take no B."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, str] = {}
            for each in ast.walk(function):
                if isinstance(each, ast.ExceptHandler) and each.name and each.type:
                    kind = ast.unparse(each.type)
                    if kinds.setdefault(each.name, kind) != kind:
                        raise ExpansionError(
                            f"{function.name}: {each.name} is {kinds[each.name]} and {kind}"
                        )


def _finalize(text: _Text, tree: ast.Module) -> None:
    """Declare Final what a module binds once at its top: then it needs no dictionary to be found."""
    bound = Counter(
        node.id
        for each in tree.body
        if not isinstance(each, ast.ClassDef)  # a member of an enum isn't the constant of its name
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    bound.update(
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    )
    constants = [each for each in tree.body if bound[_constant_of(each)] == 1]
    for each in constants:
        if isinstance(each, ast.Assign):
            text.replace(each.targets[0], f"{_constant_of(each)}: _Final")
        elif isinstance(each, ast.AnnAssign):
            text.replace(each.annotation, f"_Final[{ast.unparse(each.annotation)}]")
    if constants:
        text.extend_line(_future_of(tree), f"; {_FINAL}")


def _constant_of(statement: ast.stmt) -> str:
    """The name that a statement binds to a value, "" for all others."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if ast.unparse(statement.value).startswith("TypeVar("):
            return ""
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
        if ast.unparse(statement.annotation).startswith("Final"):
            return ""
    else:
        return ""
    return target.id if isinstance(target, ast.Name) and not _is_type(target.id) else ""


def _is_type(name: str) -> bool:
    """True for the name of a class or an alias: CapitalWords."""
    return name.lstrip("_")[:1].isupper() and not name.isupper()


def _future_of(tree: ast.Module) -> ast.stmt:
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module == "__future__":
            return each
    raise ExpansionError("from __future__ import annotations is missing")
