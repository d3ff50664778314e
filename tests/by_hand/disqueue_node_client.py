"""npm `disqueue-node`: its own tests, against a node on 7711.

`python -m tests.by_hand.disqueue_node_client` needs node, npm and the port free. Mocha prints the counts.
"""

from __future__ import annotations

import sys

from tests.by_hand.foreign import call, cluster, npm_unpack, run


def main() -> int:
    """Run the suite; without --bail, so that all is counted."""
    with cluster(1) as (folder, _):
        source = npm_unpack(folder, "disqueue-node")
        call("npm", "install", "--omit=dev", "--no-audit", "--no-fund", "--silent", folder=source)
        call(
            "npm", "install", "--no-save", "--no-audit", "--no-fund", "--silent",
            "mocha@5", "should@7", folder=source,
        )  # fmt: skip
        options = source / "test" / "mocha.opts"
        options.write_text(options.read_text().replace("--bail\n", ""))
        return run("node_modules/.bin/mocha", folder=source)


if __name__ == "__main__":
    sys.exit(main())
