"""The method kv."""
