"""Rank methods or models, by length or summary."""
