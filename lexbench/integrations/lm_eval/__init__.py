"""lexbench as a model of lm-evaluation-harness: any of its tasks, under any of our methods.

    lexbench lm_eval --model lexbench --model_args model=lexlet,method=yarn,factor=4 --tasks lambada_openai

is the harness's own command line. Releases that read entry points (group `lm_eval.models`) find the model without us.
"""

import os
import sys
from collections.abc import Sequence

from lexbench.core.record import Refused

NAME = "lexbench"
"""What `--model` calls it."""


def register() -> None:
    """Add our model to the installed harness, where it is not yet; ValueError where there is no harness."""
    try:
        import lm_eval.models  # noqa: F401  (first: the harness takes a registry that holds one model for complete)
        from lm_eval.api import registry
    except ImportError as error:
        raise ValueError(f"lm-evaluation-harness is not there ({error}): pip install 'lexbench[lm_eval]'") from None
    if NAME not in registry.MODEL_REGISTRY:
        from lexbench.integrations.lm_eval.model import LexbenchModel

        registry.register_model(NAME)(LexbenchModel)


def main(arguments: Sequence[str]) -> int:
    """The harness's command line, with our model in it; 0 done, 2 wrong input or refused (said in one line)."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        sys.argv = ["lm_eval", *arguments]  # it reads no other
        cli_evaluate()
    except (ValueError, Refused) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            raise
        print(f"lexbench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
