"""`python -m jepsen`."""

import sys

from jepsen.cli import main

if __name__ == "__main__":
    sys.exit(main())
