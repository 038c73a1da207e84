"""Nouns and what all rooms share: no torch."""
