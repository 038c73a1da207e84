"""InfiniteBench (Zhang et al., arXiv 2402.13718): twelve sets of about 100 thousand tokens (src/compute_scores.py)."""

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest, cluster_of
from lexbench.parts.benchmarks.copy import assigned_literals, checked_field, read_data_rows
from lexbench.taskkit.longbench.examples import read_rows
from lexbench.taskkit.longbench.metrics import CHINESE_PUNCTUATION, qa_f1
from lexbench.taskkit.rescored import Rescored, example_below

CHOICE_LETTERS = "ABCD"
NO_PREDICTION_TEXT, NO_LABEL_TEXT = "NO PREDICTION", "XXXXXXXXXX"
"""Texts that the official code reads where a line has no prediction or no label."""


@dataclass(frozen=True)
class InfiniteBenchSet:
    """Official and repaired score of one of the twelve sets, and its number of new tokens."""

    room: int
    """Official number of new tokens."""
    official: Callable[[str, Any], float]
    repaired: Callable[[str, Any], float]


def _blank_out(text: str, removed: Sequence[str]) -> str:
    for each in removed:
        text = text.replace(each, " ")
    return text


def _first_digits_score(text: str, label: Any) -> float:
    """The first run of digits equals the label as a string."""
    # As strings: "12,345" is a 12, and the "1." of a list is the answer.
    return float(next((run for run in re.split("[^0-9]", text) if run), "") == label)


def _number_score(text: str, label: Any) -> float:
    """The first number, with or without commas, apart from the number of a list."""
    found = re.search(r"\d[\d,]*", re.sub(r"^\s*1\.\s+", "", text))
    return float(found is not None and found[0].replace(",", "") == str(label))


def _key_value_score(text: str, label: Any) -> float:
    """The label is a word between blanks and the marks that are taken off."""
    return float(label in _blank_out(text, ("\n", ":", '"', "'", ".", ",", "?", "!", "{", "}")).split())


def _whole_word_score(text: str, label: Any) -> float:
    """1 if the label occurs anywhere and is no part of a longer word, else 0."""
    return float(re.search(rf"(?<![\w-]){re.escape(str(label))}(?![\w-])", text, re.IGNORECASE) is not None)


def _dialogue_score(text: str, label: Any) -> float:
    """The first label is a word of the answer in capitals; labels of two words are out of reach."""
    words = _blank_out(text, ("\n", ":", '"', "'", ".", ",", "?", "!", "{", "}")).split()
    return float(label[0] in [word.upper() for word in words])


def _first_letter_score(text: str, label: Any) -> float:
    """En.MC: a first character among A to D is the answer, so "Answer: B" answers A."""
    text = text.strip()
    if not text:
        return 0.0
    # Before any other rule, so "Because" is B and "Dr." is D.
    if text[0] in CHOICE_LETTERS:
        return float(text[0] in label)
    if text in label:
        return 1.0
    text = re.sub(" +", " ", _blank_out(text, ("\n", '"', "'", ".", ",", "?", "!", "{", "}")))
    behind = _text_behind(text, ("answer is:", "answer:", "answer is", "option is"))
    if behind is not None:
        return float(any(behind.startswith(each) for each in label))
    # `in LETTERS` is a substring test: "AB" and "BC" count as words, too.
    return float(next((word in label for word in text.split() if word in CHOICE_LETTERS), False))


def _text_behind(text: str, prefixes: Sequence[str]) -> str | None:
    """The text one character behind the first of the prefixes that occurs."""
    prefix = next((each for each in prefixes if each in text), None)
    # + 1: the official code skips the blank that it expects behind the phrase.
    return None if prefix is None else text[text.find(prefix) + len(prefix) + 1 :]


def choice_score(text: str, label: Any) -> float:
    """1 if the right option is chosen, else 0. The choice is the letter behind "answer is" or the like; else the first
    letter A to D that stands alone; else the option's text has to occur.
    """
    said = re.search(r"(?:answer|option)\W*(?:is)?\W*([A-D])\b", text, re.IGNORECASE)
    alone = said or re.search(r"(?<![\w'])([A-D])(?![\w'])", text)
    if alone:
        return float(alone[1].upper() == label[-1])
    return _whole_word_score(text, label[0])


def _debug_score(text: str, label: Any) -> float:
    """Code.Debug: "B." or "B:" comes first, or letter or function follows a phrase; "B" alone is wrong."""
    name, letter = label
    text = text.strip()
    if text[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    text = re.sub(" +", " ", _blank_out(text, ("\n", "`", "'", '"', "-", "*", "Option", "option")))
    behind = _text_behind(text, ("answer is:", "is:", "answer:", "correct option is:"))
    return float(behind is not None and behind.startswith((letter, name)))


def _last_word_score(text: str, label: Any) -> float:
    """Code.Run: the last word is the label."""
    words = _blank_out(text.strip(), ("\n", ".", "`", "'", '"', ":")).split()
    try:
        return float(bool(words) and int(words[-1]) == label)
    except ValueError:
        return 0.0


def _last_integer_score(text: str, label: Any) -> float:
    """The last integer of the first line that has one."""
    line = next((each for each in text.splitlines() if re.search(r"\d", each)), "")
    return float([int(each) for each in re.findall(r"-?\d+", line)][-1:] == [label])


def _unsigned_number_score(text: str, label: Any) -> float:
    """Math.Find: the first number without its sign; a decimal for a whole label ends the official run, here it is 0."""
    label = label[0] if isinstance(label, list) else label
    # Without a sign: negative labels cannot be right.
    found = re.search(r"\d+\.\d+|\d+", text)
    if found is None or (isinstance(label, int) and "." in found[0]):
        return 0.0
    return float(float(found[0]) == label)


def _signed_number_score(text: str, label: Any) -> float:
    label = label[0] if isinstance(label, list) else label
    found = re.search(r"-?\d+(?:\.\d+)?", text)
    return float(found is not None and float(found[0]) == label)


def _values_score(pattern: str, text: str, label: Any) -> float:
    """Math.Calc: share of the labels that the numbers of the answer begin with.

    Published labels are a list in a list. The official code leaves out the first number that GPT-4 writes, by the
    model's name; here no model has a rule of its own.
    """
    label = label[0] if isinstance(label[0], list) else label
    numbers = [int(each) for each in re.findall(pattern, text)]
    right = 0
    for number, wanted in zip(numbers, label, strict=False):
        if number != wanted:
            break
        right += 1
    return right / len(label)


def _chinese_f1(text: str, label: Any) -> float:
    """Zh.QA: F1 of characters, the best of the labels."""
    return max(_f1(_characters(text), _characters(each)) for each in _list_of_labels(label))


def _characters(text: str) -> list[str]:
    ignored = set(string.punctuation + CHINESE_PUNCTUATION)
    return [each for each in text.lower() if each not in ignored and not each.isspace()]


def _f1(written: Sequence[str], expected: Sequence[str]) -> float:
    same = sum((Counter(written) & Counter(expected)).values())
    return 2 * same / (len(written) + len(expected)) if same else 0.0


def _english_f1(text: str, label: Any) -> float:
    return max(qa_f1(text, each) for each in _list_of_labels(label))


def _summary_score(text: str, label: Any) -> float:
    """rougeLsum, F1, of the package rouge-score, as `evaluate` computes it."""
    return float(_rouge_scorer().score(_list_of_labels(label)[0], text)["rougeLsum"].fmeasure)


@functools.cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeLsum"])


def _list_of_labels(label: Any) -> list[str]:
    return [label] if isinstance(label, str) else list(label)


def _any_whole_word_score(text: str, label: Any) -> float:
    return max(_whole_word_score(text, each) for each in _list_of_labels(label))


SET_OF_NAME: Mapping[str, InfiniteBenchSet] = {
    "passkey": InfiniteBenchSet(6, _first_digits_score, _number_score),
    "number_string": InfiniteBenchSet(12, _first_digits_score, _number_score),
    "kv_retrieval": InfiniteBenchSet(50, _key_value_score, _whole_word_score),
    "longbook_sum_eng": InfiniteBenchSet(1200, _summary_score, _summary_score),
    "longbook_qa_eng": InfiniteBenchSet(40, _english_f1, _english_f1),
    "longbook_choice_eng": InfiniteBenchSet(40, _first_letter_score, choice_score),
    "longbook_qa_chn": InfiniteBenchSet(40, _chinese_f1, _chinese_f1),
    "longdialogue_qa_eng": InfiniteBenchSet(40, _dialogue_score, _any_whole_word_score),
    "math_find": InfiniteBenchSet(3, _unsigned_number_score, _signed_number_score),
    "math_calc": InfiniteBenchSet(
        30000, functools.partial(_values_score, r"\d+"), functools.partial(_values_score, r"-?\d+")
    ),
    "code_run": InfiniteBenchSet(5, _last_word_score, _last_integer_score),
    "code_debug": InfiniteBenchSet(5, _debug_score, choice_score),
}


def score(part: str, label: Any, output: str, scorer: str = "official") -> float:
    """The part's score in [0, 1]; each rule's faults are named in its docstring, `repaired` is without them.

    A label that came as a list of one, where the rule wants the value itself, counts as that value.
    """
    # A file may hold the label in a list of one; these rules compare it with a string or a number.
    single = SET_OF_NAME[part].official in (_first_digits_score, _key_value_score, _last_word_score)
    if single and isinstance(label, list) and len(label) == 1:
        label = label[0]
    return float(getattr(SET_OF_NAME[part], scorer)(output, label))


def rescore(folder: Path, scorer: str = "official") -> list[Rescored]:
    """Mean x 100 of each set; the folder holds preds_{set}.jsonl with prediction (or pred) and ground_truth (or label).

    Raises ConfigError for a folder without predictions, an unknown set, and a wrong line.
    """
    files = {name: folder / f"preds_{name}.jsonl" for name in SET_OF_NAME}
    files = {name: file for name, file in files.items() if file.is_file()}
    if not files:
        raise ConfigError(
            f"folder {folder} has no predictions: give one with preds_{next(iter(SET_OF_NAME))}.jsonl or the like"
            f"{example_below(folder, 'preds_*.jsonl')}"
        )
    found = []
    for name, file in files.items():
        values = []
        for number, row in read_rows(str(file), file.read_bytes(), {}):
            output = row.get("prediction", row.get("pred", NO_PREDICTION_TEXT))
            try:
                values.append(score(name, row.get("ground_truth", row.get("label", NO_LABEL_TEXT)), output, scorer))
            except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
                raise ConfigError(f"{file}:{number} has a wrong prediction or ground_truth: correct the line") from None
        found.append(Rescored(name, f"score_{scorer}", None, round(100 * sum(values) / len(values), 2), len(values)))
    return found


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    assert asked.prompts is not None, "the task has checked it"
    stated = assigned_literals(asked.prompts)
    families = sorted(name.removesuffix("_templates") for name in stated if name.endswith("_templates"))
    if asked.template not in families:
        known = ", ".join(families) or "none"
        raise ConfigError(f"infinitebench's template must be one of the copy's {known}, got {asked.template}")
    wording = stated[f"{asked.template}_templates"].get(asked.part)
    for file in asked.files.places:
        for number, row in enumerate(read_data_rows(file)):
            label, context = row.get("answer"), checked_field(row, "context", str, file)
            try:
                prompt = str(wording).format(
                    **_template_fields(asked.part, checked_field(row, "input", str, file), context, row)
                )
            except (KeyError, IndexError, ValueError):
                raise ConfigError(
                    f"template {asked.template} of {asked.part} has unknown fields: take one of {', '.join(families)}"
                ) from None
            listed = label if isinstance(label, list) else [label]
            # The rules of both want the right option's text and its letter.
            if asked.part in ("longbook_choice_eng", "code_debug"):
                label = [listed[0], CHOICE_LETTERS[list(row["options"]).index(listed[0])]]
            yield BenchmarkExample(
                id=f"{asked.part}:{row.get('id', number)}",
                messages=[("user", prompt)],
                facts={"part": asked.part, "label": label},
                room=SET_OF_NAME[asked.part].room,
                answer=str(label if asked.part == "math_calc" else label[-1] if isinstance(label, list) else label),
                cluster=cluster_of(context),
                chance=0.25 if asked.part in ("longbook_choice_eng", "code_debug") else 0.0,
            )


def _template_fields(part: str, asked: str, context: str, row: Mapping[str, Any]) -> dict[str, str]:
    """Values of the fields that the official templates have."""
    # As the official code: these templates name the call and its function apart from the input.
    call = re.findall(r"func_[0-9]+\(-?[0-9]+\)", asked) if part == "code_run" else []
    number = re.findall(r"The .+ of", asked) if part == "math_find" else []
    prefix = f"What is {number[0].lower()[:-3]} in the following list?" if number else ""
    options = {
        f"OPTION_{letter}": str(each) for letter, each in zip(CHOICE_LETTERS, row.get("options") or (), strict=False)
    }
    calls = {"func_call": call[0], "func": call[0].partition("(")[0]} if call else {}
    return {
        "context": context,
        "input": asked,
        "question": asked,
        "prefix": prefix,
        "prompt": prefix,
        **options,
        **calls,
    }


INFINITEBENCH = Benchmark(
    title="InfiniteBench (Zhang et al., arXiv 2402.13718)",
    parts=tuple(SET_OF_NAME),
    files=lambda part, axis: (f"{part}.jsonl", f"**/{part}.jsonl"),
    examples=_examples,
    metric="score",
    score=lambda facts, text, scorer: score(facts["part"], facts["label"], text, scorer),
    # eval_yi_200k.py, eval_chatglm.py and eval_yarn_mistral.py generate from the bare text.
    completions=("yarn_mistral",),
    prompts="src/prompt.py of OpenBMB/InfiniteBench",
    cuts_middle=True,
)
