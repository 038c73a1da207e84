"""Rules by which a cache keeps a share of a prompt's tokens: each file is a value of the parameter `by` of kv."""
