"""Measure on the workers of a Ray cluster."""
