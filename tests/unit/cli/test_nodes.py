"""Nodes: what their table has room for."""

from __future__ import annotations

import pytest

from disque.cli.nodes import COLUMNS, FIGURES, NUMBERS, OPTIONAL, node_row
from disque.cli.tables import table_of


@pytest.mark.parametrize("uptime_s", [59, 3_599, 86_399, 400 * 86_400])
def test_all_columns_of_a_long_life_fit_100(uptime_s: int) -> None:
    figures = dict.fromkeys(FIGURES.values(), 0) | {"uptime_s": uptime_s, "memory_bytes": 99 << 20}
    node = {"id": "a" * 40, "host": "127.0.0.1", "port": 7711, "state": "ok"}
    row = node_row({**node, "is_asked": True, "is_reached": True, **figures})
    table = table_of(COLUMNS, [row], numbers=NUMBERS, optional=OPTIONAL, width=100)
    assert [column.header for column in table.columns] == [*COLUMNS]
