"""From a question and its answer to a sample, for each kind of question."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lexbench.core.record import Sample
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    MeasureDivergence,
    MeasureDivergenceAnswer,
)
from lexbench.taskkit import matching


def score_written(question: Generate, answer: GenerateAnswer, scores: Mapping[str, float], **more: Any) -> Sample:
    """The sample of a written answer with the task's scores; `more` sets other fields of the sample."""
    return sample_of(
        question, scores=scores, chance=question.chance, output=answer.text, hit_room=answer.hit_room, **more
    )


def score_items(question: AnyQuestion, answer: Answer, item: str, plain: Callable[[str], str] = str) -> Sample:
    """`accuracy` (strict) and `contains` for a list of items; the right ones are `question.facts["expected"]`.

    Args:
        question: a `Generate`.
        answer: a `GenerateAnswer`.
        item: regular expression of one item.
        plain: applied to the answer before strict scoring, e.g. `matching.remove_list_numbers`.
    """
    assert isinstance(question, Generate) and isinstance(answer, GenerateAnswer)
    return score_written(question, answer, item_scores(question, answer, item, plain))


def item_scores(
    question: Generate, answer: GenerateAnswer, item: str, plain: Callable[[str], str] = str
) -> dict[str, float]:
    """The scores of `score_items`."""
    expected = question.facts["expected"]
    accuracy = matching.strict_list_score(plain(answer.text), expected, item)
    return {"accuracy": accuracy, "contains": matching.contains_all(answer.text, expected)}


def score_choice(question: AnyQuestion, answer: Answer, **more: Any) -> Sample:
    """Accuracy of a choice: 1 if the right option has the lowest NLL; tied options share the 1.

    `statistics` keeps the NLL of every option.

    Args:
        question: a `Choose`.
        answer: a `ChooseAnswer`.
        more: other fields of the sample.
    """
    assert isinstance(question, Choose) and isinstance(answer, ChooseAnswer)
    nll = np.asarray(answer.nll, dtype=np.float64)
    bad = not np.isfinite(nll).all()
    best = np.flatnonzero(nll == nll.min())
    # Tied options share the point: a model of equal likelihoods scores exactly 1 / options.
    share = 1 / len(best) if not bad and question.expected in best else 0.0
    return sample_of(
        question,
        scores={"accuracy": share},
        chance=question.chance,
        failed="an option has no finite likelihood" if bad else None,
        statistics={"option_nll": nll.astype(np.float32)},
        facts={**question.facts, "expected_option": question.expected},
        **more,
    )


def score_marks(question: AnyQuestion, answer: Answer, **more: Any) -> Sample:
    """Mean accuracy over the places (tied options share), and `exact`: 1 if every place is right.

    `statistics` keeps, for each place, its accuracy and the NLL of the right token, to see where in the text a model
    goes wrong.

    Args:
        question: a `ClassifyTokens`.
        answer: a `ClassifyTokensAnswer`.
        more: other fields of the sample.
    """
    assert isinstance(question, ClassifyTokens) and isinstance(answer, ClassifyTokensAnswer)
    nll = np.asarray(answer.nll, dtype=np.float64)
    bad = int((~np.isfinite(nll).all(axis=1)).sum())
    right = question.tokens[question.places][:, None] == question.options[None, :]
    best = nll == nll.min(axis=1, keepdims=True)
    # A row with a NaN has no least NLL: its share is 0 / 1, not 0 / 0.
    shares = (best & right).sum(axis=1) / np.maximum(best.sum(axis=1), 1)
    return sample_of(
        question,
        scores={"accuracy": float(shares.mean()), "exact": float(bool((shares == 1).all()))},
        chance=question.chance,
        failed=f"{bad} of {len(nll)} places have no finite likelihood" if bad else None,
        statistics={
            "place": question.places.astype(np.float32),
            "right": shares.astype(np.float32),
            "nll": nll[right].astype(np.float32),
        },
        **more,
    )


def score_likelihood(question: AnyQuestion, answer: Answer) -> Sample:
    """The sample of a perplexity task: NLL of each target, with the bytes and words that the targets cover.

    Args:
        question: a `Loglikelihood`.
        answer: a `LoglikelihoodAnswer`.
    """
    assert isinstance(question, Loglikelihood) and isinstance(answer, LoglikelihoodAnswer)
    nll = np.asarray(answer.nll, dtype=np.float32)
    assert len(nll) == len(question.tokens) - question.first_target, "a backend must answer every target once"
    bad = int((~np.isfinite(nll)).sum())
    return sample_of(
        question,
        nll=nll,
        bytes=question.bytes,
        words=question.words,
        floors=question.floors,
        failed=f"{bad} of {len(nll)} targets have no finite likelihood" if bad else None,
    )


def score_divergence(question: AnyQuestion, answer: Answer) -> Sample:
    """The sample of two readings of a text: `kld`, `same_top` (a share) and `nll_rise`, means over the targets.

    `statistics` keeps the divergence of each target.

    Args:
        question: a `MeasureDivergence`.
        answer: a `MeasureDivergenceAnswer`.
    """
    assert isinstance(question, MeasureDivergence) and isinstance(answer, MeasureDivergenceAnswer)
    apart = np.asarray(answer.divergence, dtype=np.float64)
    rise = np.asarray(answer.nll, dtype=np.float64) - np.asarray(answer.other_nll, dtype=np.float64)
    assert len(apart) == question.length - question.first_target, "a backend must answer every target once"
    bad = int((~np.isfinite(apart) | ~np.isfinite(rise)).sum())
    scores = {"kld": float(apart.mean()), "same_top": float(answer.same_top.mean()), "nll_rise": float(rise.mean())}
    return sample_of(
        question,
        scores={} if bad else scores,
        failed=f"{bad} of {len(apart)} targets have no finite divergence" if bad else None,
        statistics={"divergence": apart.astype(np.float32)},
    )


def sample_of(question: AnyQuestion, **fields: Any) -> Sample:
    """A sample with these fields, and with number, cluster, tokens, facts and depth of its question."""
    known = {
        "index": question.index,
        "cluster": question.cluster,
        "tokens": question.length,
        "depth": question.facts.get("depth"),
        "facts": question.facts,
    }
    return Sample(**{**known, **fields})
