"""Train small models with a positional encoding of your choice, and study them."""
