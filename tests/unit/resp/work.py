"""Work: how much a module does with bytes, counted instead of timed.

The module is compiled anew with its bytes literals, and the names `bytes` and `bytearray`, made to mean types that
count: each byte that is copied, split or looked through is one unit, and so is each such step.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.define
class Work:
    """Units of work done so far."""

    units: int = 0


class _CountLiterals(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, bytes):
            return node
        call = ast.Call(ast.Name("bytes", ast.Load()), [node], [])
        return ast.copy_location(call, node)


def with_counted_bytes(module: ModuleType, work: Work) -> Any:
    """A second copy of a module whose work with bytes is added to `work`."""
    tree = ast.fix_missing_locations(_CountLiterals().visit(ast.parse(inspect.getsource(module))))
    spec = importlib.util.spec_from_loader(module.__name__ + "_counted", loader=None)
    assert spec is not None
    copy = importlib.util.module_from_spec(spec)
    copy.__dict__["bytes"], copy.__dict__["bytearray"] = _counting_types(work)
    exec(compile(tree, module.__file__ or "", "exec"), copy.__dict__)
    return copy


def _counting_types(work: Work) -> tuple[type[bytes], type[bytearray]]:
    class Counted(bytes):
        """Bytes of which every copy is counted; what is made of them counts, too."""

        def __new__(cls, data: Any = b"") -> Counted:
            work.units += 1 + len(data)
            return super().__new__(cls, data)

        def __getitem__(self, at: Any) -> Any:
            got = super().__getitem__(at)
            return Counted(got) if isinstance(got, bytes) else got

        def split(self, *args: Any) -> list[bytes]:
            work.units += len(self)
            return super().split(*args)

        def join(self, parts: Iterable[Any]) -> bytes:
            return Counted(super().join(parts))

        def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
            last = len(self) if end is None else min(end, len(self))
            found = super().find(sub, start, last)
            work.units += 1 + (last if found < 0 else found) - start
            return found

    class CountedArray(bytearray):
        """The same for what grows."""

        def __init__(self, data: Any = b"") -> None:
            work.units += 1 + len(data)
            super().__init__(data)

        def __getitem__(self, at: Any) -> Any:
            got = super().__getitem__(at)
            return CountedArray(got) if isinstance(got, bytearray) else got

        def __iadd__(self, more: Any) -> Any:
            work.units += 1 + len(more)
            return super().__iadd__(more)

    return Counted, CountedArray
