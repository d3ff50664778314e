"""Passes: work over very many things that is done in bounded steps; where a pass stands, and when it goes on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Reversible
from typing import Any

import attrs

from disque.core.jobid import JobId


@attrs.define(eq=False)
class Trash:
    """What was forgotten all at once; its bookings are cancelled and its memory is given back in bounded steps."""

    pools: list[dict[Any, Any]] = attrs.Factory(list)
    wake_at: int | None = None


@attrs.define(eq=False)
class Chore:
    """The same for each of very many things that were there when it began, in order; any may have gone meanwhile."""

    key: Hashable
    do: Callable[[Any, Any], None]  # with the state and one of them
    things: Reversible[Any]  # a dict or a view of one: what is in it changes
    left: list[Any]  # the next one last
    is_due_again: bool = False  # asked for once more while under way
    wake_at: int | None = None


@attrs.define(eq=False)
class Pager:
    """A bounded pass over all jobs whose bodies should leave memory."""

    ids: list[JobId] = attrs.Factory(list)
    wake_at: int | None = None
