"""Sizes of batches: tokens of questions, and the memory that they take."""

from collections.abc import Sequence
from typing import Any

from lexbench.backends.hf.exact.layers import stated
from lexbench.core.memory import cache_numbers
from lexbench.core.task import Choose, Mark, Score, Write

ACTIVATIONS = 20
"""Peak activations of a layer per token, in units of the model's width: state, queries, keys, values, a gated MLP."""
SHARE = 0.5
"""Fraction of free memory for one batch; the batch is halved on out-of-memory."""
TOGETHER = 1 << 15
"""Most tokens in one writing batch on a CPU, 16 texts of 2048: more gains little, and a killed run loses the batch.
Half as many where keys are kept at further positions: 8 questions behind 8,192 tokens under ReRoPE take 1.30 of one,
each alone, and 1.43 in fours."""
PROGRAMS = 65_535
"""Most programs of a kernel along its second and third axis in CUDA: ours have one for each head of each text."""
READ = 1 << 13
"""Most tokens of prompts that are read together on a GPU: more in one pass gain nothing."""
READ_ON_CPU = 1 << 11
"""The same on a CPU. Larger activations cost more than they gain: each is memory that the system maps anew."""
PADDED = 0.125
"""Largest share of padding behind a text that is read with longer ones: reading it costs as much as text."""
SHORT = 64
"""Tokens of padding that cost less than a pass of their own, whatever their share."""
Batched = Score | Write | Choose | Mark


def rows_of(question: Batched) -> int:
    """Rows of a batch: options of one token follow from the end of the prompt, and are none."""
    return max(1, sum(len(option) > 1 for option in question.options)) if isinstance(question, Choose) else 1


def tokens_of(question: Batched) -> int:
    """Tokens of a batch."""
    return question.length * rows_of(question)


def read_of(question: Score | Mark) -> int:
    """Number of tokens that the model reads to answer."""
    return question.length - 1 if isinstance(question, Score) else int(question.places[-1])


def first_of(question: Score | Mark) -> int:
    """Place of the first target."""
    return question.start if isinstance(question, Score) else int(question.places[0])


def about_alike(sizes: Sequence[int]) -> bool:
    """Whether texts of these sizes are read together: padding must cost less than it saves."""
    return max(sizes) - min(sizes) <= max(SHORT, PADDED * max(sizes))


def kept_numbers(config: Any, length: int, windows: Sequence[int], views: int) -> int:
    """Numbers kept of a text by one pass: keys and values of all layers.

    Args:
        config: of the text tower.
        length: tokens.
        windows: size of each layer that keeps no more tokens than its window.
        views: further positions at which keys are kept.
    """
    heads = stated(config, "num_attention_heads") or 1
    width = stated(config, "head_dim") or config.hidden_size // heads
    each = cache_numbers(1, stated(config, "num_key_value_heads") or heads, width, views)
    whole = (stated(config, "num_hidden_layers") or 1) - len(windows)
    tokens = whole * length + sum(min(length, size - 1) for size in windows)
    return tokens * each
