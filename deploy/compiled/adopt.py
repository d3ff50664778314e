"""What attrs gives a class beside `__init__` and `__eq__`, for one that was compiled (see expand.py)."""

from __future__ import annotations

from typing import Any

import attrs


def adopt(cls: type, fields: dict[str, bool], *, is_equal: bool, is_hashed: bool) -> None:
    """Give repr, hash and fields; `fields`: name -> whether __init__ takes it."""
    twin = attrs.make_class(
        cls.__name__,
        {name: attrs.field(default=None, init=is_given) for name, is_given in fields.items()},
    )
    names = tuple(fields)

    def shown(self: Any) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({values})"

    def hashed(self: Any) -> int:
        return hash(tuple([getattr(self, name) for name in names]))

    given: dict[str, object] = {"__attrs_attrs__": attrs.fields(twin)}
    if "__repr__" not in vars(cls):
        given["__repr__"] = shown
    if is_equal:
        given["__hash__"] = hashed if is_hashed else None
    for name, value in given.items():
        setattr(cls, name, value)
