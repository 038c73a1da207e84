"""Commands of the part web."""
