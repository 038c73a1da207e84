"""What tasks share: haystacks, sampling, matching answers, perplexity."""
