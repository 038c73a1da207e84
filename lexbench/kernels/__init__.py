"""Exact computations in bounded memory: attention by its definition, likelihood by chunks."""
