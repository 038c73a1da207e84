"""Questions of SQuAD (Rajpurkar et al., arXiv 1606.05250, 1806.03822) and HotpotQA (Yang et al., arXiv 1809.09600).

For the task distractor_qa: read from the official files, from files with one row a line, or from the hub.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.record import Refused


@dataclass(frozen=True)
class Item:
    """A question of official data."""

    question: str
    """In one line."""
    references: tuple[str, ...]
    """Right answers, the usual one first."""
    gold: tuple[str, ...]
    """Documents that are needed; the last one holds the answer where that is written in one."""
    own: tuple[str, ...]
    """Documents that the data gives to this question and that are not needed."""
    cluster: str
    """Title of the article (SQuAD), or the question itself (HotpotQA): questions of one are not independent."""


@dataclass(frozen=True, eq=False)
class Data:
    """Questions with an answer, and all documents, each once."""

    items: Sequence[Item]
    documents: Sequence[str]
    hash: str
    """16 hexadecimal digits of the SHA-256 of all items: the same for every form of one data."""

    def others(self, item: Item, rng: np.random.Generator) -> Iterator[str]:
        """Documents that are not needed: the item's own ones, then all others by chance."""
        yield from item.own
        known = {*item.gold, *item.own}
        for place in rng.permutation(len(self.documents)):
            if self.documents[place] not in known:
                yield self.documents[place]


@functools.lru_cache(maxsize=4)
def read(file: str | None, dataset: str | None, config: str | None, split: str, revision: str | None) -> Data | Refused:
    """What a file or else a dataset holds, or, as a value, why the dataset is out of reach.

    Questions without an answer are left out. Raises ValueError, in one line that says the remedy, where there is no
    such file or dataset, where a row has neither form, and where no question is left.

    Args:
        file: .json of an official form, or .jsonl with one row of it a line; rows may also be as the hub has them.
        dataset: on the hub, or a folder that `datasets` can load, where no file is given.
        config: subset of the dataset, where it has several.
        split: of the dataset.
        revision: commit, branch or tag of the dataset; None: the newest.
    """
    source = f"data {file}" if file else f"dataset {dataset}"
    content = _file(Path(file).expanduser()) if file else _hub(str(dataset), config, split, revision)
    if isinstance(content, Refused):  # kept, too: a hub that does not answer is asked once
        return content
    items: list[Item] = []
    try:
        items.extend(map(_item, _rows(content)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"row {len(items) + 1} of {source} has neither SQuAD's nor HotpotQA's form"
        raise ValueError(f"distractor_qa: {what} ({type(error).__name__}: {error}): give task.data=FILE") from None
    items = [item for item in items if item.references]
    if not items:
        raise ValueError(f"distractor_qa: {source} has no question with an answer: give task.data=FILE")
    documents = list(dict.fromkeys(text for item in items for text in (*item.gold, *item.own)))
    page = json.dumps([[item.question, item.references, item.gold, item.own] for item in items])
    return Data(items, documents, hashlib.sha256(page.encode()).hexdigest()[:16])


def _file(file: Path) -> Any:
    """The value of a JSON file, or those of its lines."""
    try:
        text = file.read_text(encoding="utf-8")
        lines = [line for line in text.split("\n") if line.strip()]
        return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"distractor_qa's data {file} cannot be read ({reason}): give task.data=FILE") from None


def _hub(dataset: str, config: str | None, split: str, revision: str | None) -> Any:
    """Rows of a dataset; Refused, as a value, where the hub does not answer."""
    import datasets

    try:
        return datasets.load_dataset(dataset, config, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        what = f"distractor_qa's dataset {dataset} cannot be loaded ({reason})"
        if isinstance(error, ConnectionError):
            return Refused(f"{what}: give task.data=FILE or a network")
        raise ValueError(f"{what}: check dataset, config and split, or give task.data=FILE") from None


def _rows(content: Any) -> Iterator[Mapping[str, Any]]:
    """One question each: rows as they are, and those of articles with paragraphs with questions, SQuAD's own form."""
    for row in content["data"] if isinstance(content, dict) else content:
        if "paragraphs" not in row:
            yield row
            continue
        for paragraph in row["paragraphs"]:
            for question in paragraph["qas"]:
                yield {**question, "context": paragraph["context"], "title": row["title"]}


def _item(row: Mapping[str, Any]) -> Item:
    """A row of either form, as the official file or the hub has it."""
    context, question = row["context"], " ".join(row["question"].split())
    if isinstance(context, str):
        answers = row["answers"]
        texts = answers["text"] if isinstance(answers, dict) else [answer["text"] for answer in answers]
        text = context.strip()
        return Item(question, _references(texts), (text,), (), str(row.get("title") or text))
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    texts = {title: f"{title}\n{''.join(sentences).strip()}" for title, sentences in pairs}
    support = row["supporting_facts"]
    needed = set(support["title"] if isinstance(support, dict) else [title for title, _ in support]) & set(texts)
    if not needed:
        raise ValueError("no supporting document in context")
    answer = row["answer"]
    gold = sorted((text for title, text in texts.items() if title in needed), key=lambda text: answer in text)
    own = tuple(text for title, text in texts.items() if title not in needed)
    return Item(question, _references([answer]), tuple(gold), own, question)


def _references(texts: Sequence[str]) -> tuple[str, ...]:
    """Answers in one line each, none twice."""
    return tuple(dict.fromkeys(line for text in texts if (line := " ".join(text.split()))))
