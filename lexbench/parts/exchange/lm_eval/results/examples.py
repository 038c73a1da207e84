"""Logged examples of lm-evaluation-harness: prompt, output, and each metric's value by filter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.checkpoints.tokenizer import load_tokenizer, read_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.parts.exchange.lm_eval import DEFAULT_MAX_NEW_TOKENS, MAX_NEW_TOKENS_SETTINGS, MODEL_NAME
from lexbench.parts.exchange.lm_eval.results.files import SamplesLine, mapping_or_empty, whole_number_or_none
from lexbench.taskkit.excerpt import shorten_text

Request = tuple[str, Any]
"""Context, and the continuation to score or the generation settings."""
UNCONDITIONAL_METRIC = "acc_mutual_info"
"""A metric for which the harness asks every option twice: behind its context, then all of them without it."""


class RequestTokenCounter:
    """Counts tokens of requests as the harness encodes them: a special token spelled out by a template is one token.

    Args:
        folder: of the checkpoint, with tokenizer.json.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"tokenizer {folder} has no tokenizer.json: give the model's folder")
        self._tokenizer = read_tokenizer(file)
        self._prefix = list(load_tokenizer(folder).prefix)
        # A tokenizer.json may state both, and the lengths of prompts would be wrong.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def longest_request_tokens(self, requests: Sequence[Request]) -> int:
        """Tokens of the longest request: BOS if the model uses it, context, continuation or limit of new tokens."""
        texts = [context + (more if isinstance(more, str) else "") for context, more in requests]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return max(
            self._count_with_bos(each.ids) + _answer_tokens(more)
            for each, (_, more) in zip(encodings, requests, strict=True)
        )

    def _count_with_bos(self, ids: Sequence[int]) -> int:
        begins = list(ids[: len(self._prefix)]) == self._prefix
        return len(ids) + (0 if begins else len(self._prefix))


def _answer_tokens(settings: Any) -> int:
    """Tokens that an answer may have, at most; 0 for a continuation."""
    if not isinstance(settings, Mapping):
        return 0
    return next(
        (room for name in MAX_NEW_TOKENS_SETTINGS if (room := whole_number_or_none(settings.get(name)))),
        DEFAULT_MAX_NEW_TOKENS,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedExample:
    """Document of a task, with its answer and scores."""

    index: int
    cluster: str
    made_for: int | None
    """Length that the document was made for (RULER), in tokens; None if it does not say."""
    tokens: int | None
    """Tokens of the longest request; None if not counted."""
    cut: bool
    """Whether its prompt was truncated, as files of `lexbench share` say."""
    prompt: str
    output: str | None
    expected: Mapping[str, Any]
    """Facts about the right answer: its text, and for a choice its place among the options."""
    chance: float | None
    option_nll: NDArray[np.float32] | None
    """[options] NLL of each option of a choice, in nats."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values by metric and filter, with the harness's key: `exact_match,strict-match`."""
    answers: dict[str, str] = field(default_factory=dict)
    """The output after each filter."""
    hashes: list[bytes] = field(default_factory=list)
    """Hashes of its logged lines."""


def read_examples(
    lines: Iterable[SamplesLine], keys: Sequence[str], kind: str, tokens: RequestTokenCounter | None
) -> list[LoggedExample]:
    """Read the examples of a task, by index; ConfigError for a malformed line.

    Args:
        lines: of the samples file.
        keys: metrics with their filters.
        kind: the task's output_type.
        tokens: token counter; None: do not count.
    """
    filters = sorted({key.partition(",")[2] for key in keys})
    found: dict[int, LoggedExample] = {}
    for line in lines:
        place, row = line.place, line.row
        index = 0 if row.get("doc_id") == 0 else whole_number_or_none(row.get("doc_id"))
        name = row.get("filter", filters[0] if len(filters) == 1 else None)
        if index is None:
            raise ConfigError(f"{place} has no doc_id: log the samples again")
        if not isinstance(name, str):
            raise ConfigError(f"{place} does not name its filter: log the samples with a newer lm_eval")
        if index not in found:
            found[index] = _read_example(row, index, keys, kind, tokens, place)
        example = found[index]
        if name in example.answers:
            raise ConfigError(f"{place} is the second of example {index}: log the samples again")
        example.answers[name] = shorten_text(_first_text(row.get("filtered_resps")), [])
        example.hashes.append(line.hash)
        for key in keys:
            metric, _, of = key.partition(",")
            if of == name and metric in row:
                example.values[key] = row[metric]
    return [example for _, example in sorted(found.items())]


def _read_example(
    row: Mapping[str, Any], index: int, keys: Sequence[str], kind: str, tokens: RequestTokenCounter | None, place: str
) -> LoggedExample:
    doc = mapping_or_empty(row.get("doc"))
    ours = mapping_or_empty(doc.get(MODEL_NAME))
    requests, answers = _read_requests(row.get("arguments"), place), row.get("filtered_resps")
    if any(key.partition(",")[0] == UNCONDITIONAL_METRIC for key in keys):
        requests = requests[: len(requests) // 2]
        answers = answers[: len(requests)] if isinstance(answers, list) else None
    target, chance = replace_surrogates(row.get("target", "")), ours.get("chance")
    losses = _option_nll(answers, len(requests)) if kind == "multiple_choice" else None
    expected = _expected_facts(target, requests if losses is not None else [])
    if not isinstance(chance, float) or not 0 <= chance <= 1:
        chance = None if losses is None or target.startswith("[") else 1 / len(losses)
    made_for = whole_number_or_none(doc.get("max_length"))
    return LoggedExample(
        index=index,
        cluster=replace_surrogates(row.get("doc_hash") or f"document {index}"),
        made_for=made_for if any(key.partition(",")[0] == str(made_for) for key in keys) else None,
        tokens=whole_number_or_none(ours.get("tokens"))
        or (tokens.longest_request_tokens(requests) if tokens else None),
        cut=ours.get("truncated") is True,
        prompt=shorten_text(requests[0][0], [expected["expected"]]),
        output=shorten_text(_first_text(row.get("resps")), []) if kind == "generate_until" else None,
        expected=expected,
        chance=chance,
        option_nll=losses,
    )


def _expected_facts(target: str, options: Sequence[Request]) -> dict[str, Any]:
    """Facts about the right answer; if the target is the number of an option, its text and place."""
    texts = [str(more).strip() for _, more in options]
    if not target.isdecimal() or int(target) >= len(texts) or len({context for context, _ in options}) > 1:
        return {"expected": shorten_text(target, [])}
    shown = [shorten_text(text, []) for text in texts]
    return {"expected": shown[int(target)], "expected_option": int(target), "options": shown}


def replace_surrogates(value: Any) -> str:
    """A value as text that can be encoded as UTF-8: lone surrogates are replaced."""
    return str(value).encode(errors="replace").decode()


def _read_requests(arguments: Any, place: str) -> list[Request]:
    """Requests of an example: `{"gen_args_0": {"arg_0": ..., "arg_1": ...}}`, or lists in older versions."""
    if isinstance(arguments, Mapping):
        listed = [list(mapping_or_empty(arguments.get(f"gen_args_{i}")).values()) for i in range(len(arguments))]
    else:
        listed = arguments if isinstance(arguments, list) else []
    if not listed or any(not isinstance(each, list) or not each or not isinstance(each[0], str) for each in listed):
        raise ConfigError(f"{place} does not contain its prompt: log the samples again")
    seconds = [each[1] if len(each) > 1 else None for each in listed]
    return [
        (replace_surrogates(each[0]), replace_surrogates(second) if isinstance(second, str) else second)
        for each, second in zip(listed, seconds, strict=True)
    ]


def _option_nll(answers: Any, options: int) -> NDArray[np.float32] | None:
    """NLL of each option (nats), from pairs (log-likelihood, is greedy); None if they are not such pairs."""
    try:
        losses = np.array([-float(answer[0]) for answer in answers], dtype=np.float32)
    except (TypeError, ValueError, LookupError):
        return None
    return losses if len(losses) == options > 1 and not np.isnan(losses).any() else None


def _first_text(answers: Any) -> str:
    """The first value in nested lists, as text."""
    while isinstance(answers, list | tuple) and answers:
        answers = answers[0]
    return replace_surrogates(answers) if isinstance(answers, str | int | float) else ""
