"""Optional parts of lexbench: each adds commands, methods or tasks, and no other part imports it."""
