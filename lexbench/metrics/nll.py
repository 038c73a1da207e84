"""Likelihoods of a text's target tokens, and the same numbers per byte and per word (`lexbench.stats.records`).

NLL                  mean of -log p over the target tokens, in nats; samples store the value of each token
perplexity           exp(NLL)
bits per byte        sum of -log2 p over the bytes of the targets' text
word perplexity      exp of the sum of -log p over the words of the targets' text
"""

import math

from lexbench.core.metric import Metric

METRIC = Metric(
    *("nll", "NLL (nats per token)", "nats per token", "lower"),
    digits=3,
    range=(-1.0, math.inf),  # rounding may leave a sure token a little below 0
    headline=True,
    per="tokens",
)
PERPLEXITY_METRIC = Metric(
    *("perplexity", "perplexity (per token)", "as measured", "lower"),
    headline=True,
    per="tokens",
    follows=METRIC.name,
    logarithmic=True,
)
BITS_PER_BYTE = Metric("bits_per_byte", "bits per byte", "as measured", "lower", per="bytes", follows=METRIC.name)
WORD_PERPLEXITY = Metric(
    *("word_perplexity", "perplexity per word", "as measured", "lower"),
    per="words",
    follows=METRIC.name,
    logarithmic=True,
)
