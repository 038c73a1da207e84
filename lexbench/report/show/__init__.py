"""Show how a method changes a model, as a table and as pictures."""
