"""Print what a scenario does now, or write it into the file, by hand: `python -m tests.scenarios [--rewrite] FILE ...`

What is written is what the code did, not what it should do: read the diff against merge-rules.md line by line before
you keep it. No test calls this.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.scenarios.story import parse, play, render


def main() -> int:
    """0 if every file already says what happens."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write the files anew")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    is_same = True
    for path in options.files:
        text = path.read_text()
        played = render(play(parse(text)))
        is_same &= played == text
        if options.rewrite:
            path.write_text(played)
        elif played != text:
            print(f"== {path}\n{played}")
    return 0 if is_same or options.rewrite else 1


if __name__ == "__main__":
    sys.exit(main())
