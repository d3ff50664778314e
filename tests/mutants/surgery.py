"""Surgery: functions of the product replaced wherever they are bound, for as long as a `with` lasts."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import attrs

import disque.core
from tests.mutants.bank import Mutant

PACKAGES = ("disque.", "cluster.", "tests.sim.")


class MissingError(Exception):
    """The product has no function of that name any more: the bank must follow it."""


@attrs.frozen
class Patch:
    """`place` is the full name of a function, "disque.core.acks.collect", or of a class attribute."""

    place: str
    replacement: Any


def core_modules() -> list[ModuleType]:
    """All modules of the core."""
    names = [info.name for info in pkgutil.iter_modules(disque.core.__path__)]
    return [importlib.import_module(f"disque.core.{name}") for name in names]


@contextmanager
def operated(mutant: Mutant) -> Iterator[int]:
    """The core with this mutant in it; gives the number of places that were changed, and puts all back."""
    with patched(Patch(f"disque.core.{mutant.module}.{mutant.function}", mutant.replacement)) as n:
        yield n


@contextmanager
def patched(*patches: Patch) -> Iterator[int]:
    """The product with these patches in it; gives the number of places that were changed, and puts all back.

    Raises MissingError for a place that isn't there.
    """
    with ExitStack() as stack:
        yield sum([stack.enter_context(_patched(patch)) for patch in patches])


@contextmanager
def _patched(patch: Patch) -> Iterator[int]:
    home, name = _home(patch.place)
    original = vars(home).get(name)
    if original is None:
        raise MissingError(f"{patch.place}: no such function any more")
    if isinstance(home, type):
        setattr(home, name, patch.replacement)
        try:
            yield 1
        finally:
            setattr(home, name, original)
        return
    places = [place for module in _loaded() for place in _places(module, original)]
    for namespace, key in places:
        namespace[key] = patch.replacement
    try:
        yield len(places)
    finally:
        for namespace, key in places:
            namespace[key] = original


def _home(place: str) -> tuple[ModuleType | type, str]:
    """The module or class that has it, and its name there."""
    path, _, name = place.rpartition(".")
    try:
        return importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, owner = path.rpartition(".")
        found = getattr(importlib.import_module(module), owner, None)
        if not isinstance(found, type):
            raise MissingError(f"{place}: no such class any more") from None
        return found, name


def _loaded() -> Iterable[ModuleType]:
    """Every module of the product and the simulator that may have bound it: all of the core, and what is imported."""
    core_modules()
    return [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGES)]


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
