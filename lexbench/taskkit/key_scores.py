"""What tasks share whose answer is a key of the text: options behind the prompt, and the scores beside `accuracy`.

    accuracy   copied whole: what the task's own rule says
    in_place   share of the key's characters that are written at their place (`lexbench.metrics.in_place`)
    reached    any key of the text is written
    chosen     the right key is the likeliest of `N_OPTIONS`; needs no form, and works on base models
    forced     share of the key's tokens that are the likeliest ones when the right ones stand before them

The options are the keys of the text, as many as there is place for, and others of the same form, drawn from the
sample's own seed: so no sample depends on another. Those drawn have as many tokens as the right one, because a summed
NLL favours options with fewer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lexbench.core.record import Sample
from lexbench.core.task import Generate, GenerateAnswer, Tokenizer, Tokens
from lexbench.metrics import KEY_METRICS as KEY_METRICS
from lexbench.metrics import reached
from lexbench.metrics.chosen import EXPECTED_FACT, NLL_STATISTIC
from lexbench.metrics.forced import RANKS_FACT, TAUGHT_FACT
from lexbench.metrics.reached import KEYS_FACT
from lexbench.taskkit.scoring import score_written

KEY_METRICS_ALL_ASKED = tuple(reached.WHERE_ALL_ARE_ASKED if each == reached.METRIC else each for each in KEY_METRICS)
"""`KEY_METRICS` of a task that asks for every key of its texts."""
N_OPTIONS = 32
PROTOCOL_WORDS = f", chosen among {N_OPTIONS}"
"""Words for the protocol."""
MAX_DRAWS_PER_OPTION = 20
"""Draws for each option that is missing; a task with few keys has fewer options."""


def with_options(
    question: Generate,
    tokenizer: Tokenizer,
    others: Sequence[Sequence[str]],
    draw: Callable[[np.random.Generator], Sequence[str]],
    rng: np.random.Generator,
) -> Generate:
    """The question with options behind its prompt, and the keys of its text among its facts.

    Args:
        question: whose fact `expected` is the right answer, a key or a list of keys.
        tokenizer: of the model.
        others: the other answers that the text holds, each the keys of one; empty in a control without them.
        draw: draws an answer of the same form.
        rng: of the sample.
    """
    expected = question.facts["expected"]
    right = [expected] if isinstance(expected, str) else list(expected)
    begins = tokenizer.frame(False).after  # of a message: an answer without first words has no blank in front
    opens = len(begins) > 0 and np.array_equal(question.prompt[-len(begins) :], begins)
    lead = "" if opens else question.answer[: len(question.answer) - len(question.answer.lstrip())]
    options = {tuple(right): _encode(tokenizer, lead, right)}
    size = len(options[tuple(right)])
    for place in rng.permutation(len(others)):
        if len(options) < N_OPTIONS and len(own := _encode(tokenizer, lead, others[place])) <= question.max_new_tokens:
            options.setdefault(tuple(others[place]), own)
    for _ in range(MAX_DRAWS_PER_OPTION * N_OPTIONS):
        if len(options) == N_OPTIONS:
            break
        drawn = tuple(draw(rng))
        if drawn not in options and len(own := _encode(tokenizer, lead, drawn)) == size:
            options[drawn] = own
    keys = [*right, *(key for other in others for key in other)]
    facts = {**question.facts, KEYS_FACT: keys}
    if len(options) < 2:
        return replace(question, facts=facts)
    order, known = rng.permutation(len(options)).tolist(), list(options.values())
    taught = _mark_key_tokens(tokenizer, lead, right)
    return replace(
        question,
        facts={**facts, TAUGHT_FACT: taught},
        options=tuple(known[place] for place in order),
        expected=order.index(0),
    )


def _mark_key_tokens(tokenizer: Tokenizer, lead: str, keys: Sequence[str]) -> list[list[int]]:
    """Id of each token of an answer, and 1 where it holds a character of a key: a blank or a comma is none."""
    encoded = tokenizer.encode(_answer_text(lead, keys))
    ends = [*encoded.starts[1:].tolist(), len(encoded.text)]
    texts = [encoded.text[start:end] for start, end in zip(encoded.starts.tolist(), ends, strict=True)]
    letters = set("".join(keys))
    return [[token, int(not letters.isdisjoint(text))] for token, text in zip(encoded.ids.tolist(), texts, strict=True)]


def _answer_text(lead: str, keys: Sequence[str]) -> str:
    return f"{lead}{', '.join(keys)}"


def _encode(tokenizer: Tokenizer, lead: str, keys: Sequence[str]) -> Tokens:
    return tokenizer.encode(_answer_text(lead, keys)).ids


def score_keys(question: Generate, answer: GenerateAnswer, scores: Mapping[str, float]) -> Sample:
    """The sample of a written key: the task's scores, and those of `KEY_METRICS` that the answer tells.

    Args:
        question: made by `with_options`.
        answer: without likelihoods, where the backend shows none.
        scores: of the task.
    """
    facts, statistics = dict(question.facts), {}
    if answer.option_nll is not None:
        statistics[NLL_STATISTIC] = np.asarray(answer.option_nll, np.float32)
        facts[EXPECTED_FACT] = question.expected
    if answer.taught_ranks is not None:
        facts[RANKS_FACT] = answer.taught_ranks.tolist()
    sample = score_written(question, answer, scores, facts=facts, statistics=statistics)
    derived = {each.name: each.of(sample, [sample]) for each in KEY_METRICS if each.of}
    return replace(sample, scores={**scores, **{name: value for name, value in derived.items() if value is not None}})
