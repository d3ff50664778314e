"""What holds for all tests.

None has a deadline of Hypothesis's: on a busy machine an example of a millisecond takes 300. None is named by an
address in memory: two processes that share the work must have the same names.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process."""
    odd = [item.nodeid for item in items if re.search("at 0x| at -", item.nodeid)]
    if odd:
        raise pytest.UsageError(f"named by an address: {odd[0]}")
