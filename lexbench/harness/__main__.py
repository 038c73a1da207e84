"""`python -m lexbench.harness ...`: the harness's command line, with our model in it."""

import sys

from lexbench.harness import main

sys.exit(main(sys.argv[1:]))
