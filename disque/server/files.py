"""Files: what may be opened where nobody can wait."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_regular(path: Path) -> None:
    """OSError if what is there isn't an ordinary file, or nothing is: a pipe would be waited for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file")
