"""Difference between two answers to the same question, and the tolerance for rounding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lexbench.core.attention import Floats
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    LoglikelihoodAnswer,
    Tokens,
)

ROUNDOFF_OF_DTYPE = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding one number, by dtype."""
REPLACEMENT_CHARACTER = "\ufffd"
"""Replaces invalid bytes in a text; several tokens decode to it."""


@dataclass(frozen=True)
class Tolerance:
    """Nats by which the log-probabilities of tokens may differ between two sound backends."""

    largest: float
    """Largest difference of a single token."""
    mean: float
    """Mean over all compared tokens."""


def rounding_tolerance(dtypes: Sequence[str | None], length: int, tokens: int) -> Tolerance:
    """Tolerance for rounding where `tokens` tokens are compared in texts of `length` tokens.

        largest  128 u + 64 length 2^-24
        mean      16 u +  2 length 2^-24 + largest / tokens

    u is the unit roundoff of the coarser dtype; an unstated one counts as exact. The first term is
    for rounded weights and activations: each of a forward pass's sums is off by some u of its size. The second is for
    angles, which libraries compute in float32, whatever the dtype, or better. Where a pair turns by a radian a token,
    as the fastest one does, rounding the frequency and its products with the places of a query and a key moves the
    angle between these by up to 3 length 2^-24, in each backend. A radian moves most tokens little, but some by nats,
    where attention is sharp and turns to another key: 10 are allowed. Such tokens are few, so that the mean is
    steadier, and shows errors that no single token does; its last term is for a comparison of few tokens, which may
    hold one of these all the same.

    The constants are measured: results/parity/margins.md has the margins on both sides.
    """
    coarser = max(ROUNDOFF_OF_DTYPE.get(dtype or "", 0.0) for dtype in dtypes)
    angles = length * ROUNDOFF_OF_DTYPE["float32"]
    largest = 128 * coarser + 64 * angles
    return Tolerance(largest, 16 * coarser + 2 * angles + largest / tokens)


def answer_differences(
    question: AnyQuestion, ours: Answer, theirs: Answer, choose: Callable[[Choose], ChooseAnswer], ends: Tokens
) -> Floats:
    """[tokens] nats between two answers to a question, each 0 or more; NaN where either is NaN.

    Loglikelihood: of every target. ClassifyTokens: of every option at every place. Choose: of every option, a share for
    each of its tokens. Generate: 0 for every token before the first different one; for that one, half the difference of
    the reference's likelihoods of both: each must move by so much before the other becomes likelier. Near ties stay
    small.

    Args:
        question: the question.
        ours: the reference's answer.
        theirs: the other backend's.
        choose: the reference's `choose`, for the first different token.
        ends: the model's end tokens; a text shorter than its room ended with one of them.
    """
    if isinstance(question, Generate):
        assert isinstance(ours, GenerateAnswer) and isinstance(theirs, GenerateAnswer)
        return _text_differences(question, ours, theirs, choose, ends)
    assert isinstance(ours, LoglikelihoodAnswer | ClassifyTokensAnswer | ChooseAnswer) and type(ours) is type(theirs)
    with np.errstate(invalid="ignore"):  # inf - inf
        apart = np.abs(ours.nll.astype(np.float64) - theirs.nll.astype(np.float64))
    return apart / [len(option) for option in question.options] if isinstance(question, Choose) else apart.ravel()


def _text_differences(
    question: Generate,
    ours: GenerateAnswer,
    theirs: GenerateAnswer,
    choose: Callable[[Choose], ChooseAnswer],
    ends: Tokens,
) -> Floats:
    least = min(len(ours.tokens), len(theirs.tokens))
    differing = np.flatnonzero(ours.tokens[:least] != theirs.tokens[:least])
    agreed = int(differing[0]) if len(differing) else least
    text = _cut_at_end_string(question, ours.text)
    if text == _cut_at_end_string(question, theirs.text) and REPLACEMENT_CHARACTER not in text:
        return np.zeros(max(agreed, 1))
    # A text that stopped here ended with one of the end tokens, the likeliest counts.
    options = [answer.tokens[agreed : agreed + 1] if len(answer.tokens) > agreed else ends for answer in (ours, theirs)]
    if not all(map(len, options)):
        return np.array([np.inf])  # ended without an end token
    # Both wrote the same up to here: the reference says how likely each next token is.
    prompt = np.concatenate([question.prompt, ours.tokens[:agreed]])
    asked = tuple(option[None] for option in np.concatenate(options))
    nll = choose(Choose(index=question.index, cluster=question.cluster, prompt=prompt, options=asked, expected=0)).nll
    own, other = np.split(nll, [len(options[0])])
    return np.append(np.zeros(agreed), abs(other.min() - own.min()) / 2)


def _cut_at_end_string(question: Generate, text: str) -> str:
    """A text up to its first end string."""
    found = [text.find(end) for end in question.until if end in text]
    return text[: min(found)] if found else text
