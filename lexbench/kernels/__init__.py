"""Exact computations that need care: attention under an Attention's slots, likelihoods without full logits."""
