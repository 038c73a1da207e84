"""Commands of the part serving."""
