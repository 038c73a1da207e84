"""Compare backends token by token."""
