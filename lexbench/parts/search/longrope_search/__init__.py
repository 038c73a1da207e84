"""Search for LongRoPE's factors, guided by perplexity."""
