"""Commands of the part search."""
