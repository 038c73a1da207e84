"""lexbench as a model of lm-evaluation-harness: runs any of its tasks with any of our methods.

    lexbench lm_eval --model lexbench --model_args model=lexlet,method=yarn,factor=4 --tasks lambada_openai

calls the harness's own command line. Harness releases that read entry points (group `lm_eval.models`) find the model
without it.
"""

import os
import sys
from collections.abc import Sequence

from lexbench.core.errors import ConfigError
from lexbench.core.extras import install_remedy
from lexbench.core.record import Refused

MODEL_NAME = "lexbench"
"""The model's name for `--model`."""
MAX_NEW_TOKENS_SETTINGS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Generation settings for the most tokens to write; the first one given counts."""
DEFAULT_MAX_NEW_TOKENS = 256
"""Tokens to write by default: the harness's own default."""


def register_model() -> None:
    """Register our model with the installed harness, once; ConfigError if the harness is not installed."""
    try:
        import lm_eval.models  # noqa: F401  (first: the harness adds its own models only to an empty registry)
        from lm_eval.api import registry
    except ImportError as error:
        raise ConfigError(f"lm-evaluation-harness cannot be imported ({error}): {install_remedy('lm_eval')}") from None
    if MODEL_NAME not in registry.MODEL_REGISTRY:
        from lexbench.parts.exchange.lm_eval.model import LexbenchModel

        registry.register_model(MODEL_NAME)(LexbenchModel)


def main(arguments: Sequence[str]) -> int:
    """Run the harness's command line with our model; exit code 0, or 2 and one line for wrong input or a refusal."""
    try:
        register_model()
        from lm_eval.__main__ import cli_evaluate

        sys.argv = ["lm_eval", *arguments]  # the harness reads sys.argv only
        cli_evaluate()
    except (ValueError, Refused) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            raise
        print(f"lexbench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
