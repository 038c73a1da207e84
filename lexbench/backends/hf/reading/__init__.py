"""Read texts with a network: batches, prompts, caches that go on."""
