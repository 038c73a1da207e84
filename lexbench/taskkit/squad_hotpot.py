"""Questions of SQuAD (Rajpurkar et al., arXiv 1606.05250, 1806.03822) and HotpotQA (Yang et al., arXiv 1809.09600).

For the task distractor_qa: read from the official files, from files with one row per line, or from the hub.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.core.record import Refused
from lexbench.corpora import hub
from lexbench.taskkit import matching
from lexbench.taskkit.passages import Case, Passage


@dataclass(frozen=True)
class Item:
    """A question of the official data."""

    question: str
    """Text of the question, in one line."""
    references: tuple[str, ...]
    """Right answers, the usual one first."""
    gold: tuple[str, ...]
    """Needed documents; the last one holds the answer, if the answer occurs in any."""
    own: tuple[str, ...]
    """Distractors that the data gives with the question."""
    cluster: str
    """Title of the article (SQuAD) or the question itself (HotpotQA): questions of one cluster are not independent."""


@dataclass(frozen=True, eq=False)
class Data:
    """All questions that have an answer, and all documents, each once."""

    items: Sequence[Item]
    documents: Sequence[str]
    hash: str
    """First 16 hexadecimal digits of the SHA-256 of all items: the same for every file form of the same data."""

    def draw_items(self, n: int, rng: np.random.Generator) -> list[Item]:
        """n items in random order; Refused if there are fewer."""
        if n > len(self.items):
            raise Refused(f"distractor_qa needs {n} questions, the data has {len(self.items)}: lower n")
        return [self.items[place] for place in rng.permutation(len(self.items))[:n]]

    def make_case(self, item: Item, rng: np.random.Generator) -> Case:
        """The item's question and documents; distractors are the item's own, then all others in random order."""
        return Case(
            question=item.question,
            references=item.references,
            gold=tuple(map(Passage, item.gold)),
            others=map(Passage, self._others(item, rng)),
            cluster=item.cluster,
            chance=1 / 2 if matching.normalise_as_squad(item.references[0]) in matching.CONTRADICTING_ANSWERS else 0.0,
        )

    def _others(self, item: Item, rng: np.random.Generator) -> Iterator[str]:
        yield from item.own
        known = {*item.gold, *item.own}
        for place in rng.permutation(len(self.documents)):
            if self.documents[place] not in known:
                yield self.documents[place]


@functools.lru_cache(maxsize=4)
def read_questions(
    file: str | None, dataset: str | None, config: str | None, split: str, revision: str | None
) -> Data | Refused:
    """Questions and documents of a file or a dataset; returns Refused if the dataset is out of reach.

    Questions without an answer are left out. Raises ConfigError if there is no such file or dataset, if a row has
    neither form, or if no question is left.

    Args:
        file: .json in an official form, or .jsonl with one row per line; rows may also have the hub's form.
        dataset: on the hub, or a folder that `datasets` can load; used if no file is given.
        config: subset of the dataset, if it has several.
        split: of the dataset.
        revision: commit, branch or tag of the dataset; None: the newest.
    """
    source = f"data {file}" if file else f"dataset {dataset}"
    content = _file(Path(file).expanduser()) if file else _hub(str(dataset), config, split, revision)
    if isinstance(content, Refused):  # cached, too: an unreachable hub is tried only once
        return content
    items: list[Item] = []
    try:
        items.extend(map(_item, _rows(content)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"row {len(items) + 1} of {source} must have SQuAD's or HotpotQA's form"
        raise ConfigError(f"distractor_qa: {what} ({type(error).__name__}: {error}): give task.data=FILE") from None
    items = [item for item in items if item.references]
    if not items:
        raise ConfigError(f"distractor_qa: {source} has no question with an answer: give task.data=FILE")
    documents = list(dict.fromkeys(text for item in items for text in (*item.gold, *item.own)))
    page = json.dumps([[item.question, item.references, item.gold, item.own] for item in items])
    return Data(items, documents, hashlib.sha256(page.encode()).hexdigest()[:16])


def _file(file: Path) -> Any:
    """The value of a JSON file, or the list of its lines' values."""
    try:
        text = file.read_text(encoding="utf-8")
        lines = [line for line in text.split("\n") if line.strip()]
        return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"distractor_qa's data {file} cannot be read ({reason}): give task.data=FILE") from None


def _hub(dataset: str, config: str | None, split: str, revision: str | None) -> Any:
    """Rows of a dataset; returns Refused if the hub does not answer."""
    datasets = import_optional(*hub.DATASETS_PACKAGE)

    try:
        return hub.load_rows(dataset, config, split, revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        what = f"distractor_qa's dataset {dataset} cannot be loaded ({reason})"
        if isinstance(error, ConnectionError):
            return Refused(f"{what}: give task.data=FILE or a network")
        raise ConfigError(f"{what}: check dataset, config and split, or give task.data=FILE") from None


def _rows(content: Any) -> Iterator[Mapping[str, Any]]:
    """Rows, one for each question; SQuAD's own form nests questions in paragraphs in articles."""
    for row in content["data"] if isinstance(content, dict) else content:
        if "paragraphs" not in row:
            yield row
            continue
        for paragraph in row["paragraphs"]:
            for question in paragraph["qas"]:
                yield {**question, "context": paragraph["context"], "title": row["title"]}


def _item(row: Mapping[str, Any]) -> Item:
    """A row of SQuAD or HotpotQA, from the official file or the hub."""
    context, question = row["context"], " ".join(row["question"].split())
    if isinstance(context, str):
        answers = row["answers"]
        texts = answers["text"] if isinstance(answers, dict) else [answer["text"] for answer in answers]
        text = context.strip()
        return Item(question, _references(texts), (text,), (), str(row.get("title") or text))
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    # HotpotQA: titled documents, several of them needed.
    texts = {title: f"{title}\n{''.join(sentences).strip()}" for title, sentences in pairs}
    support = row["supporting_facts"]
    needed = set(support["title"] if isinstance(support, dict) else [title for title, _ in support]) & set(texts)
    if not needed:
        raise ConfigError("no supporting document in context")
    answer = row["answer"]
    # False sorts before True: documents that hold the answer come last, as `Item.gold` says.
    gold = sorted((text for title, text in texts.items() if title in needed), key=lambda text: answer in text)
    own = tuple(text for title, text in texts.items() if title not in needed)
    return Item(question, _references([answer]), tuple(gold), own, question)


def _references(texts: Sequence[str]) -> tuple[str, ...]:
    """Distinct answers, each in one line."""
    return tuple(dict.fromkeys(line for text in texts if (line := " ".join(text.split()))))
