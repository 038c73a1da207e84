"""Search for settings: tune, factors of LongRoPE, key tokens."""
