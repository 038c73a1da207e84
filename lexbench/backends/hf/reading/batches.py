"""Sizes of batches: tokens of questions, and the memory that they take."""

from collections.abc import Sequence
from typing import Any

from lexbench.backends.hf.exact.layers import stated_size
from lexbench.core.layer_cache import LayerCache
from lexbench.core.task import Choose, ClassifyTokens, Generate, Loglikelihood

ACTIVATION_WIDTHS_PER_TOKEN = 20
"""Peak activations of a layer per token, in units of the model's width: state, queries, keys, values, a gated MLP."""
BATCH_MEMORY_SHARE = 0.5
"""Fraction of free memory for one batch; the batch is halved on out-of-memory."""
MAX_CPU_WRITING_TOKENS = 1 << 15
"""Most tokens in one writing batch on a CPU, 16 texts of 2048: more gains little, and a killed run loses the batch.
Half as many where keys are kept at further positions: 8 questions behind 8,192 tokens under ReRoPE take 1.30 of one,
each alone, and 1.43 in fours."""
MAX_CUDA_AXIS_PROGRAMS = 65_535
"""Most programs of a kernel along its second and third axis in CUDA: ours have one for each head of each text."""
MAX_GPU_PREFILL_TOKENS = 1 << 13
"""Most tokens of prompts that are read together on a GPU: more in one pass gain nothing."""
MAX_CPU_PREFILL_TOKENS = 1 << 11
"""Most tokens of prompts that are read together on a CPU: the system maps anew the memory of larger activations."""
MAX_PADDING_SHARE = 0.125
"""Largest share of padding behind a text that is read with longer ones: reading it costs as much as text."""
MAX_CHEAP_PADDING_TOKENS = 64
"""Tokens of padding that cost less than a pass of their own, whatever their share."""
Batched = Loglikelihood | Generate | Choose | ClassifyTokens


def batch_rows(question: Batched) -> int:
    """Rows of a batch: options of one token follow from the end of the prompt, and are none."""
    return max(1, sum(len(option) > 1 for option in question.options)) if isinstance(question, Choose) else 1


def batch_tokens(question: Batched) -> int:
    """Tokens of a batch."""
    return question.length * batch_rows(question)


def tokens_to_read(question: Loglikelihood | ClassifyTokens) -> int:
    """Number of tokens that the model reads to answer."""
    return question.length - 1 if isinstance(question, Loglikelihood) else int(question.places[-1])


def first_target_place(question: Loglikelihood | ClassifyTokens) -> int:
    """Place of the first target."""
    return question.first_target if isinstance(question, Loglikelihood) else int(question.places[0])


def padding_pays(sizes: Sequence[int]) -> bool:
    """Whether texts of these sizes are read together: padding must cost less than it saves."""
    return max(sizes) - min(sizes) <= max(MAX_CHEAP_PADDING_TOKENS, MAX_PADDING_SHARE * max(sizes))


def kept_numbers(caches: Sequence[LayerCache | None], length: int, slides: bool, views: int) -> int:
    """Numbers kept of a text by one pass: keys and values of all layers.

    Args:
        caches: what each layer keeps of a token; None: nothing.
        length: tokens.
        slides: whether layers with a window drop the tokens before it.
        views: further positions at which keys are kept.
    """
    return sum(
        (each.tokens(length) if slides else length) * (each.numbers + views * each.heads * each.key_dim)
        for each in caches
        if each
    )


def assumed_caches(config: Any) -> list[LayerCache]:
    """Caches of a text tower whose config does not say what its layers keep: all of them as many heads of one size."""
    heads = stated_size(config, "num_attention_heads") or 1
    size = stated_size(config, "head_dim") or config.hidden_size // heads
    kept = LayerCache(stated_size(config, "num_key_value_heads") or heads, size, size)
    return [kept] * (stated_size(config, "num_hidden_layers") or 1)
