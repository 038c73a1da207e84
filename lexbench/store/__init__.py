"""The run folder: the only reader and writer of its formats."""
