"""Logged examples of lm-evaluation-harness: what was asked, what came, and each metric's value, by filter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from lexbench.core.tokenizer import load_tokenizer
from lexbench.integrations.lm_eval.results.files import Line, mapping, whole
from lexbench.integrations.lm_eval.rooms import ROOM, ROOMS
from lexbench.taskkit.excerpt import shortened

Request = tuple[str, Any]
"""Context, and the continuation that is scored, or the settings by which an answer is written."""


class Tokens:
    """Counts the tokens of requests as the harness sends them: special tokens that a template writes are tokens.

    Args:
        folder: of a checkpoint, with tokenizer.json.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"tokenizer {folder} has no tokenizer.json: give the model's folder")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises no class of its own
            raise ValueError(f"tokenizer {file} cannot be read ({error}): give the model's folder") from None
        self._prefix = list(load_tokenizer(folder).prefix)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def most(self, requests: Sequence[Request]) -> int:
        """Tokens of the longest: BOS where it begins every context, context, continuation or room for the answer."""
        texts = [context + (more if isinstance(more, str) else "") for context, more in requests]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return max(self._begun(each.ids) + _room(more) for each, (_, more) in zip(encodings, requests, strict=True))

    def _begun(self, ids: Sequence[int]) -> int:
        begins = list(ids[: len(self._prefix)]) == self._prefix
        return len(ids) + (0 if begins else len(self._prefix))


def _room(settings: Any) -> int:
    """Tokens that may be written."""
    if not isinstance(settings, Mapping):
        return 0
    return next((room for name in ROOMS if (room := whole(settings.get(name)))), ROOM)


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One document that was asked about."""

    index: int
    cluster: str
    asked: int | None
    """Tokens that the task was made for (RULER's), where it says so."""
    tokens: int | None
    """Of the longest request; None where nobody counted."""
    prompt: str
    output: str | None
    expected: Mapping[str, Any]
    """Facts of the right answer: as text, and of a choice its place among the options."""
    chance: float | None
    option_nll: NDArray[np.float32] | None
    """[options] nats of each option of a choice."""
    values: dict[str, Any] = field(default_factory=dict)
    """By metric and filter, as the harness writes both: `exact_match,strict-match`."""
    answers: dict[str, str] = field(default_factory=dict)
    """What each filter made of the output."""
    hashes: list[bytes] = field(default_factory=list)
    """Of its lines."""


def examples(lines: Iterable[Line], keys: Sequence[str], kind: str, tokens: Tokens | None) -> list[Example]:
    """The examples of a task, by index; ValueError for a line that is amiss.

    Args:
        lines: of the file of samples.
        keys: metrics, with their filters.
        kind: the task's output_type.
        tokens: counts; None: nobody does.
    """
    filters = sorted({key.partition(",")[2] for key in keys})
    found: dict[int, Example] = {}
    for line in lines:
        place, row = line.place, line.row
        index = 0 if row.get("doc_id") == 0 else whole(row.get("doc_id"))
        name = row.get("filter", filters[0] if len(filters) == 1 else None)
        if index is None:
            raise ValueError(f"{place} has no doc_id: log the samples again")
        if not isinstance(name, str):
            raise ValueError(f"{place} does not name its filter: log the samples with a newer lm_eval")
        if index not in found:
            found[index] = _example(row, index, keys, kind, tokens, place)
        example = found[index]
        if name in example.answers:
            raise ValueError(f"{place} is the second of example {index}: log the samples again")
        example.answers[name] = shortened(_said(row.get("filtered_resps")), [])
        example.hashes.append(line.hash)
        for key in keys:
            metric, _, of = key.partition(",")
            if of == name and metric in row:
                example.values[key] = row[metric]
    return [example for _, example in sorted(found.items())]


def _example(
    row: Mapping[str, Any], index: int, keys: Sequence[str], kind: str, tokens: Tokens | None, place: str
) -> Example:
    requests = _requests(row.get("arguments"), place)
    target = clean(row.get("target", ""))
    losses = _option_nll(row.get("filtered_resps"), len(requests)) if kind == "multiple_choice" else None
    expected = _expected(target, requests if losses is not None else [])
    asked = whole(mapping(row.get("doc")).get("max_length"))
    return Example(
        index=index,
        cluster=clean(row.get("doc_hash") or f"document {index}"),
        asked=asked if any(key.partition(",")[0] == str(asked) for key in keys) else None,
        tokens=tokens.most(requests) if tokens else None,
        prompt=shortened(requests[0][0], [expected["expected"]]),
        output=shortened(_said(row.get("resps")), []) if kind == "generate_until" else None,
        expected=expected,
        chance=None if losses is None or target.startswith("[") else 1 / len(losses),
        option_nll=losses,
    )


def _expected(target: str, options: Sequence[Request]) -> dict[str, Any]:
    """The right answer; where it is the number of a continuation, that."""
    texts = [str(more).strip() for _, more in options]
    if not target.isdecimal() or int(target) >= len(texts) or len({context for context, _ in options}) > 1:
        return {"expected": shortened(target, [])}
    shown = [shortened(text, []) for text in texts]
    return {"expected": shown[int(target)], "expected_option": int(target), "options": shown}


def clean(value: Any) -> str:
    """A value as text that every file can hold: halves of surrogate pairs are replaced."""
    return str(value).encode(errors="replace").decode()


def _requests(arguments: Any, place: str) -> list[Request]:
    """By their numbers: `{"gen_args_0": {"arg_0": ..., "arg_1": ...}}`, or lists as older versions wrote them."""
    if isinstance(arguments, Mapping):
        listed = [list(mapping(arguments.get(f"gen_args_{i}")).values()) for i in range(len(arguments))]
    else:
        listed = arguments if isinstance(arguments, list) else []
    if not listed or any(not isinstance(each, list) or not each or not isinstance(each[0], str) for each in listed):
        raise ValueError(f"{place} does not say what was asked: log the samples again")
    seconds = [each[1] if len(each) > 1 else None for each in listed]
    return [
        (clean(each[0]), clean(second) if isinstance(second, str) else second)
        for each, second in zip(listed, seconds, strict=True)
    ]


def _option_nll(answers: Any, options: int) -> NDArray[np.float32] | None:
    """Nats of each option, from pairs of a log-likelihood and whether it is greedy; None where they are no such."""
    try:
        losses = np.array([-float(answer[0]) for answer in answers], dtype=np.float32)
    except (TypeError, ValueError, LookupError):
        return None
    return losses if len(losses) == options > 1 and not np.isnan(losses).any() else None


def _said(answers: Any) -> str:
    """The first text in nested lists."""
    while isinstance(answers, list | tuple) and answers:
        answers = answers[0]
    return clean(answers) if isinstance(answers, str | int | float) else ""
