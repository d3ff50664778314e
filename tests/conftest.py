"""No test has a deadline of Hypothesis's: on a busy machine an example of a millisecond takes 300."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
