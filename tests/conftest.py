"""What holds for all tests.

None is timed by Hypothesis, neither its examples nor how long it makes them up: on a busy machine a millisecond takes
300. None is named by an address in memory: two processes that share the work must have the same names.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process."""
    odd = [item.nodeid for item in items if re.search("at 0x| at -", item.nodeid)]
    if odd:
        raise pytest.UsageError(f"named by an address: {odd[0]}")
