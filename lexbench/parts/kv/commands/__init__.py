"""Commands of the part kv."""
