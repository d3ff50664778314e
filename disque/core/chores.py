"""Chores: the same is to be done for each of very many things, in bounded steps; few need but one, at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Reversible
from typing import TypeVar

from disque.core.passes import Chore
from disque.core.state import State, wake

T = TypeVar("T")

STEP = 250


def for_each(
    state: State, things: Reversible[T], do: Callable[[State, T], None], *, key: Hashable
) -> None:
    """Do it for each of these, in order. What happens meanwhile happens: `do` looks whether its thing still counts.

    While a chore of the same `key` is under way, it goes around once more after that: flapping makes no more of them.
    """
    chore = state.chores.get(key)
    if chore is not None:
        chore.things, chore.do, chore.is_due_again = things, do, True
        return
    chore = state.chores[key] = Chore(key, do, things, [*reversed(things)])
    chore_due(state, chore)


def chore_due(state: State, chore: Chore) -> None:
    """One bounded step."""
    if not chore.left and chore.is_due_again:
        chore.left, chore.is_due_again = [*reversed(chore.things)], False
    count = min(STEP, len(chore.left))
    for _ in range(count):
        chore.do(state, chore.left.pop())
    state.fired += count
    if chore.left or chore.is_due_again:
        wake(state, chore, state.now_ms + 1)
    else:
        del state.chores[chore.key]
