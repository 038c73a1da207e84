"""Read GGUF files as checkpoints."""
