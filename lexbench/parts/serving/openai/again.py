"""Asks finished questions again, in another order, of a server that may mix requests up."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    ChooseAnswer,
    ClassifyTokensAnswer,
    GenerateAnswer,
    LoglikelihoodAnswer,
)

N_AGAIN, N_MORE_AGAIN = 2, 6
"""Finished questions that are asked again, and further ones where one of these has another answer."""
MAX_PARTED_SHARE, MAX_OFTEN_PARTED_SHARE = 0.25, 0.05
"""Share of tokens at which greedy texts may part when asked again, and where more than half of four texts or more do:
rounding of another batch exchanges two tokens that are equally likely."""
N_OFTEN = 4
"""Texts that part, from which they part often."""
MAX_MOVED_NATS, MAX_MOVED_SHARE = 0.5, 0.02
"""Nats, and share of them, by which a likelihood may move when asked again."""
MAX_MOVED_TOKENS_SHARE, MAX_OUTLIER_NATS = 0.125, 2.0
"""Share of likelihoods that may move by more, and by how much: outliers of activations in few bits."""


class MixedUp(Refused):
    """The server was seen to answer questions otherwise when they are asked again."""


def check_again(
    questions: Sequence[AnyQuestion], found: Iterator[Answer], ask: Callable[[AnyQuestion], Answer], url: str
) -> Iterator[Answer]:
    """The answers in turn; behind them the last questions are asked again, the last one first, one at a time.

    `MixedUp` where the server answers them otherwise: by likelihoods that have moved, or by texts of which more part
    than by rounding.
    """
    answers = list[Answer]()
    for answer in found:
        answers.append(answer)
        yield answer
    pairs = list[tuple[Answer, Answer]]()
    for question, answer in list(zip(questions, answers, strict=True))[: -N_AGAIN - N_MORE_AGAIN - 1 : -1]:
        if len(pairs) >= N_AGAIN and not any(is_other(*pair) for pair in pairs):
            return
        try:
            pairs.append((answer, ask(question)))
        except Deferred:
            raise
        except Refused as refusal:
            raise MixedUp(f"{url} refuses a question that it has answered before ({refusal.reason})") from None
    if are_of_other_requests(pairs):
        count = sum(is_other(*pair) for pair in pairs)
        raise MixedUp(
            f"{url} answers {count} of {len(pairs)} questions otherwise when they are asked again, one by one in "
            "another order: it mixes requests up, or answers from the cache of another one"
        )


def are_of_other_requests(pairs: Sequence[tuple[Answer, Answer]]) -> bool:
    """Whether answers differ from those to the same questions by more than rounding."""
    others = [pair for pair in pairs if is_other(*pair)]
    if not others or not isinstance(others[0][0], GenerateAnswer):
        return bool(others)
    alike = 0
    for one, other in pairs:
        assert isinstance(one, GenerateAnswer) and isinstance(other, GenerateAnswer), "a task has one kind of question"
        same = itertools.takewhile(lambda two: two[0] == two[1], zip(one.tokens, other.tokens, strict=False))
        alike += sum(1 for _ in same)
    often = len(others) >= N_OFTEN and len(others) > len(pairs) / 2
    share = MAX_OFTEN_PARTED_SHARE if often else MAX_PARTED_SHARE
    return len(others) > share * (alike + len(others))


def is_other(one: Answer, other: Answer) -> bool:
    """Whether two answers are other texts, or likelihoods that are further apart than by rounding."""
    if isinstance(one, GenerateAnswer) and isinstance(other, GenerateAnswer):
        return not np.array_equal(one.tokens, other.tokens)
    kinds = ChooseAnswer, ClassifyTokensAnswer, LoglikelihoodAnswer
    assert isinstance(one, kinds) and isinstance(other, kinds), "servers give no other answers"
    moved = np.abs(np.asarray(one.nll, np.float64) - other.nll)
    allowed = MAX_MOVED_SHARE * np.abs(one.nll)
    often = (moved > MAX_MOVED_NATS + allowed).mean() > MAX_MOVED_TOKENS_SHARE
    return bool(often or (moved > MAX_OUTLIER_NATS + allowed).any())
