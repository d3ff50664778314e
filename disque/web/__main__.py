"""The page's process: `python -m disque.web LEASH LISTENER...`, file descriptors that the node hands down.

The node starts it when somebody first comes, and again after it has ended: by itself once nobody has come for a
while, or with the node. So a node that nobody looks at pays nothing, and what a page costs is never paid by the
node's loop.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

from disque.web.leash import Leash

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Serve until nobody comes; the exit status."""
    try:
        tether = Leash(socket.socket(fileno=int(arguments[0])))
    except EOFError:
        return 0
    # First: what is imported next takes a while, and the node may go meanwhile
    tether.follow()

    import trio

    from disque.web.serving import run

    trio.run(run, tether, [int(each) for each in arguments[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
