"""`python -m lexbench`: the command line, from a checkout that is not installed."""

import sys

from lexbench.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
