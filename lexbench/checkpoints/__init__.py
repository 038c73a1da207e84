"""Readers of checkpoints: configs, tokenizers, tensors and GGUF files. No torch."""
