"""The old place of the command line, for installations and scripts of 0.1. It goes in 0.3: use `python -m lexbench`."""

import sys

from lexbench.commands.main import main

__all__ = ["main"]

if __name__ == "__main__":
    print("lexbench: python -m lexbench.cli is python -m lexbench now; the old name goes in 0.3", file=sys.stderr)
    sys.exit(main())
