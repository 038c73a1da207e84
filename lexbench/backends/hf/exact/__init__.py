"""Install an Attention into a network of transformers, check it, and remove it."""
