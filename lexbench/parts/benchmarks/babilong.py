"""BABILong (Kuratov et al., arXiv 2406.10149): facts of bAbI in books, answered in one or two words."""

import csv
import functools
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.benchmarks.base import Benchmark, BenchmarkExample, BenchmarkRequest
from lexbench.parts.benchmarks.copy import assigned_literals, checked_field, read_data_rows
from lexbench.taskkit.longbench.examples import check_new_id
from lexbench.taskkit.rescored import Rescored, example_below

PLACE_ANSWERS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
YES_NO = ("no", "yes")
PATH_ANSWERS = tuple(f"{a},{b}" for a in "nesw" for b in "nesw" if {a, b} not in ({"n", "s"}, {"e", "w"}))
"""Two steps of a path; no path goes back."""
ANSWERS_OF_TASK: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("qa1", "qa2", "qa3", "qa4", "qa11", "qa12", "qa13"), PLACE_ANSWERS),
    "qa5": ("bill", "fred", "jeff", "mary", "apple", "football", "milk"),
    **dict.fromkeys(("qa6", "qa9", "qa17", "qa18"), YES_NO),
    "qa7": ("none", "one", "three", "two"),
    "qa8": ("apple", "football", "milk", "nothing"),
    "qa10": ("maybe", "no", "yes"),
    "qa14": ("bedroom", "cinema", "kitchen", "office", "park", "school"),
    "qa15": ("cat", "mouse", "sheep", "wolf"),
    "qa16": ("gray", "green", "white", "yellow"),
    "qa19": PATH_ANSWERS,
    "qa20": ("bedroom", "bored", "garden", "hungry", "kitchen", "thirsty", "tired"),
}
"""Possible answers of each task."""
TASK_NAMES = tuple(sorted(ANSWERS_OF_TASK, key=lambda name: int(name[2:])))
PANDAS_MISSING_VALUES = {
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
}
"""Answers that pandas.read_csv takes for missing values, as the official code does."""
PREDICTION_FILE_PATTERN = re.compile(r"(?P<task>qa\d+)_(?P<length>\d+[kM])_(?P<prompt>.+)\.csv")
MAX_NEW_TOKENS = 20
AVERAGED_TASKS = ("qa1", "qa2", "qa3", "qa4", "qa5")
"""Tasks of the published average."""


def score(task: str, target: str, output: str, question: str, scorer: str = "official") -> float:
    """Score 1 if exactly the target is named of all labels of the task but those in the question, else 0.

    official: labels are substrings of the lower-cased answer up to its first full stop, so "none" also names "one", and
    "I do not know" names "no" (babilong/metrics.py). repaired: labels are whole words, up to the end of the first
    sentence; blanks behind the comma of a pair do not matter.
    """
    text = output.lower()
    if scorer == "official":
        # Also at the dot of "Mr.": one of the official faults.
        text = text.split(".")[0]
    else:
        # A full stop ends the sentence unless it belongs to a title; "s, s" of qa19 becomes "s,s".
        text = re.sub(r",\s+", ",", re.split(r"(?<!\bmr)(?<!\bdr)(?<!\bmrs)\.(?:\s|$)|\n\n", text)[0])
    # Models that go on with the prompt's own form are cut there.
    text = text.split("<context>")[0].split("<example>")[0]
    # A label of the question is taken off even where it is the answer.
    named = _named_labels(task, text, scorer) - _named_labels(task, question.lower(), scorer)
    target = target.lower()
    # Longer than 3: the pairs of directions of qa19 ("n,w") are single labels, the lists of qa8 are not.
    if "," in target and len(target) > 3:
        parts = set(target.split(","))
        return float(parts == named) if scorer == "repaired" else float(parts <= named and len(parts) == len(named))
    return float(named == {target})


@functools.lru_cache(maxsize=4096)
def _named_labels(task: str, text: str, scorer: str) -> frozenset[str]:
    if scorer == "official":
        return frozenset(label for label in ANSWERS_OF_TASK[task] if label in text)
    return frozenset(label for label in ANSWERS_OF_TASK[task] if re.search(rf"(?<!\w){label}s?(?!\w)", text))


def rescore(folder: Path, scorer: str = "official") -> list[Rescored]:
    """Percent right by task, prompt and length, and the average of qa1-qa5, each with the prompt of its best mean.

    Raises ConfigError for a folder without predictions, and for a file of another form.

    Args:
        folder: of files {task}_{length}_{prompt}.csv with the columns target, output, question.
        scorer: official or repaired; repaired also keeps answers that pandas takes for missing values, such as None.
    """
    files = {each.name: PREDICTION_FILE_PATTERN.fullmatch(each.name) for each in folder.glob("*.csv")}
    found = {(m["task"], m["prompt"], m["length"]): folder / name for name, m in files.items() if m}
    if not found:
        below = example_below(folder, "qa*_*.csv")
        raise ConfigError(f"folder {folder} has no predictions: give one with TASK_LENGTH_PROMPT.csv{below}")
    rows = [
        _rescore_file(*key, found[key], scorer)
        for key in sorted(found, key=lambda key: (key[0], key[1], _thousands_of_tokens(key)))
    ]
    return rows + _average_over_tasks(rows)


def _thousands_of_tokens(key: tuple[str, str, str]) -> float:
    return float(key[2][:-1]) * (1000 if key[2].endswith("M") else 1)


def _rescore_file(task: str, prompt: str, length: str, file: Path, scorer: str) -> Rescored:
    if task not in ANSWERS_OF_TASK:
        raise ConfigError(f"{file}: task must be one of {', '.join(TASK_NAMES)}, got {task}: remove the file")
    right = []
    try:
        rows = csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline=""), strict=True)
        head, known = next(rows, []), dict[str, int]()
        places = [head.index(name) for name in ("target", "output", "question")]
        if twice := [name for name, count in Counter(head).items() if count > 1]:
            raise ConfigError(f"{twice[0]!r} is there twice")
        for row in filter(None, rows):
            if len(row) != len(head):
                raise ConfigError(f"line {rows.line_num} has {len(row)} columns, the first {len(head)}")
            if "" in head:  # the numbers of the rows, as pandas writes them
                check_new_id(known, row[head.index("")], rows.line_num, file.name)
            target, output, question = (row[place] for place in places)
            # The official code reads files by pandas, which makes "None" and "NA" to missing values.
            missing = scorer == "official" and output in PANDAS_MISSING_VALUES
            right.append(score(task, target, "" if missing else output, question, scorer))
    except (csv.Error, IndexError, ValueError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ConfigError(f"{file} must have the columns target, output, question ({reason}): correct it") from None
    if not right:
        raise ConfigError(f"{file} has no rows: remove it")
    return Rescored(
        f"{task} {prompt}", f"accuracy_{scorer}", length, round(100 * sum(right) / len(right), 2), len(right)
    )


def _average_over_tasks(rows: Sequence[Rescored]) -> list[Rescored]:
    """Mean over qa1-qa5 at each length; of each task the prompt with the best mean over lengths, so chosen on the test.

    None where a task lacks a length that another has.
    """
    lengths = list(
        dict.fromkeys(
            row.bucket for row in sorted(rows, key=lambda row: _thousands_of_tokens(("", "", str(row.bucket))))
        )
    )
    best = []
    for task in AVERAGED_TASKS:
        names = {row.dataset for row in rows if row.dataset.startswith(f"{task} ")}
        cells = [{row.bucket: row for row in rows if row.dataset == name} for name in sorted(names)]
        whole = [each for each in cells if len(each) == len(lengths)]
        if not whole:
            return []
        # As the published row: the prompt is chosen on the test itself.
        best.append(max(whole, key=lambda each: sum(row.value for row in each.values())))
    return [
        Rescored(
            "average qa1-qa5, best prompt of each",
            rows[0].metric,
            length,
            round(sum(each[length].value for each in best) / len(best), 2),
            sum(each[length].n for each in best),
        )
        for length in lengths
    ]


def _examples(asked: BenchmarkRequest) -> Iterator[BenchmarkExample]:
    assert asked.prompts is not None, "the task has checked it"
    stated = assigned_literals(asked.prompts)
    try:
        template, wording = stated["DEFAULT_TEMPLATE"], stated["DEFAULT_PROMPTS"][asked.part]
        template.format(context="", question="", **wording)
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"prompts {asked.prompts} must state DEFAULT_TEMPLATE and DEFAULT_PROMPTS of {asked.part}: "
            "give the official babilong/prompts.py"
        ) from None
    for file in asked.files.places:
        # Both official layouts: qa1/0k.json, and 0k/qa1-....parquet.
        class_ = next((name for name in (file.stem, file.parent.name) if re.fullmatch(r"\d+[kM]", name)), "?")
        for number, row in enumerate(read_data_rows(file)):
            context, question, target = (
                checked_field(row, name, str, file) for name in ("input", "question", "target")
            )
            prompt = template.format(context=context.strip(), question=question, **wording).strip()
            yield BenchmarkExample(
                id=f"{asked.part}:{class_}:{number}",
                messages=[("user", prompt)],
                facts={"task": asked.part, "target": target, "question": question, "class": class_},
                room=MAX_NEW_TOKENS,
                answer=target,
                parts=(f"official {class_}",),
                # The same row is the same question at every length, in a longer book.
                cluster=f"{asked.part}:{number}",
                chance=chance_of_guess(asked.part, target, question),
            )


def chance_of_guess(task: str, target: str, question: str) -> float:
    """Expected official score of a guess among the labels that the question does not name: the others are never right.

    A target that the question names is out of reach.
    """
    named = _named_labels(task, question.lower(), "official")
    return 0.0 if target.lower() in named else 1 / (len(ANSWERS_OF_TASK[task]) - len(named))


def _score(facts: Mapping[str, Any], text: str, scorer: str) -> float:
    return score(facts["task"], facts["target"], text, facts["question"], scorer)


def _file_patterns(part: str, axis: str | None) -> Sequence[str]:
    class_ = axis or "*"
    return (
        f"data/{part}/{class_}.json",
        f"{class_}/{part}-*.parquet",
        f"**/{class_}/{part}.*",
        f"**/{part}/{class_}.*",
    )


BABILONG = Benchmark(
    title="BABILong (Kuratov et al., arXiv 2406.10149)",
    parts=TASK_NAMES,
    files=_file_patterns,
    examples=_examples,
    metric="accuracy",
    score=_score,
    prompts="babilong/prompts.py of booydar/babilong",
    axes="0k, 1k, 2k, ..., 10M",
)
