"""Surgery: one function of the core replaced wherever it is bound, for as long as a `with` lasts."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import disque.core
from tests.mutants.bank import Mutant


class MissingError(Exception):
    """The core has no function of that name any more: the bank must follow it."""


def core_modules() -> list[ModuleType]:
    """All modules of the core."""
    names = [info.name for info in pkgutil.iter_modules(disque.core.__path__)]
    return [importlib.import_module(f"disque.core.{name}") for name in names]


@contextmanager
def operated(mutant: Mutant) -> Iterator[int]:
    """The core with this mutant in it; gives the number of places that were changed, and puts all back."""
    home = importlib.import_module(f"disque.core.{mutant.module}")
    original = getattr(home, mutant.function, None)
    if not callable(original):
        raise MissingError(f"disque.core.{mutant.module} has no function {mutant.function!r}")
    places = [place for module in core_modules() for place in _places(module, original)]
    for namespace, key in places:
        namespace[key] = mutant.replacement
    try:
        yield len(places)
    finally:
        for namespace, key in places:
            namespace[key] = original


def _places(
    module: ModuleType, original: Callable[..., Any]
) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Names of a module and entries of its tables that are bound to the function."""
    namespace = vars(module)
    for name, bound in list(namespace.items()):
        if bound is original:
            yield namespace, name
        elif isinstance(bound, dict) and name != "__builtins__":
            for key, each in bound.items():
                if each is original:
                    yield bound, key
