"""What is right: an Attention inside a network of transformers, installed, checked and removed."""
