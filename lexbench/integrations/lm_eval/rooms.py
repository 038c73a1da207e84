"""Names of lm-evaluation-harness for the room of an answer, shared by our model and the import of results."""

ROOMS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Generation settings for the most tokens to write; the first one given counts."""
ROOM = 256
"""Tokens to write by default: the harness's own default."""
