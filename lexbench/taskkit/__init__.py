"""Shared by tasks: haystacks, sampling, matching answers, perplexity."""
