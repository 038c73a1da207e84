"""`python -m lexbench.parts.exchange.lm_eval ...`: the harness's command line, with our model."""

import sys

from lexbench.parts.exchange.lm_eval import main

sys.exit(main(sys.argv[1:]))
