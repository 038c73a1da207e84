"""Optional parts, each found by an entry point. None imports another, and the core imports none."""
