"""Commands of the part anatomy."""
