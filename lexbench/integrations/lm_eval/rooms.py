"""Room for an answer in the words of lm-evaluation-harness: read by its model that we are, and from its results."""

ROOMS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Generation settings that say how many tokens to write at most; the first that is given counts."""
ROOM = 256
"""Tokens to write where a task does not say: the harness's own default."""
