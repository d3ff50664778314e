"""Exit statuses: what a script can tell apart; 0 is done."""

from __future__ import annotations

import signal
from typing import Final

# An error reply, or a part was not done: a node could not be asked, a job was not there
REFUSED: Final = 1
WRONG_USAGE: Final = 2  # a word or a file that can't be understood; nothing was done
NO_CONNECTION: Final = 3  # none could be made, or it broke
TIME_IS_UP: Final = 4  # what was waited for has not come
INTERRUPTED: Final = 128 + signal.SIGINT
PIPE_BROKEN: Final = 128 + signal.SIGPIPE  # nobody reads the output any more
