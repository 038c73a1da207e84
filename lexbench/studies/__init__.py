"""Studies of many runs: tuning, encodings trained alike, parity of backends, the search for LongRoPE factors."""
