"""Right answers of the study `parity` by the number of ones.

As a program, `python tests/parts/lab/test_parity_by_ones.py DIR`, it writes them from the folder of the study.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.task import Choose
from lexbench.parts.lab.study import page
from lexbench.store.store import Store

FOLDER = Path(__file__).parents[3] / "results" / "reference" / "parity"
FILE = FOLDER / "by_ones.csv"
NAMES = ("encoding", "length", "ones", "strings", "right")


def written(study: Path) -> None:
    """Count the strings of each number of ones, and the right answers."""
    rows = []
    for folder in sorted((study / "runs").iterdir()):
        for finished in Store(folder).load():
            if finished.cell.task == "parity":
                ones = [str(sample.prompt).count("1") for sample in finished.samples]
                right = Counter(
                    count
                    for count, sample in zip(ones, finished.samples, strict=True)
                    if sample.scores["accuracy"] == 1
                )
                name = folder.name.removesuffix("-seed0")
                rows += [(name, finished.cell.length, count, of, right[count]) for count, of in Counter(ones).items()]
    with FILE.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([NAMES, *sorted(rows)])


def counts() -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Ones, strings and right answers by encoding and length."""
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for row in csv.DictReader(FILE.read_text().splitlines()):
        ones, strings, right = (int(row[name]) for name in NAMES[2:])
        found.setdefault((row["encoding"], int(row["length"])), []).append((ones, strings, right))
    return found


def test_right_answers_add_up_to_the_accuracies_of_the_records() -> None:
    records = [row.record for row in page.read_page_data(FOLDER)[0] if row.record.task == "parity"]
    values = {
        (each.model.removesuffix("-seed0"), each.length): each.value for each in records if each.metric == "accuracy"
    }
    assert len(values) == 24
    assert values == {key: sum(right for _, _, right in rows) / 256 for key, rows in counts().items()}


def test_strings_are_those_of_the_task(tokenizer: FastTokenizer) -> None:
    asked: dict[int, Counter[int]] = {}
    for length in (24, 48, 120, 240):
        questions = lexbench.task("parity").questions(tokenizer, length, 256, 0)
        prompts = [question.prompt for question in questions if isinstance(question, Choose)]
        asked[length] = Counter(tokenizer.decode(prompt[len(tokenizer.prefix) :]).count("1") for prompt in prompts)
    for (_, length), rows in counts().items():
        assert {ones: strings for ones, strings, _ in rows} == asked[length]


def test_the_page_says_which_strings_are_wrong() -> None:
    found = counts()
    for name in ("nope", "alibi", "sinusoidal"):
        assert {ones: strings - right for ones, strings, right in found[name, 24] if right < strings} == {15: 8}
    assert (13, 21, 0) in found["rope", 24]
    assert [row for row in found["randomized", 24] if row[2] < row[1]] == [(16, 1, 0), (18, 1, 0)]
    for name, said in (("nope", 0), ("alibi", 0), ("randomized", 1)):
        assert all(right == (strings if ones % 2 == said else 0) for ones, strings, right in found[name, 48])


if __name__ == "__main__":
    written(Path(sys.argv[1]))
