"""Commands of the part lab."""
