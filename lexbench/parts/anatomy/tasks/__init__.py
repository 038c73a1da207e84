"""Tasks of this part, each a file of its name."""
