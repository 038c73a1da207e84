"""Other tools: lm-evaluation-harness, hub cards and data sets."""
