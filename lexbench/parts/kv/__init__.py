"""Compressed caches of keys and values: their methods, their task's settings, and the command `lexbench kv`."""
