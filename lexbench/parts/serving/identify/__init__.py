"""Name that RoPE: what a served model turns by, told from log-probabilities alone."""
