"""A dataset of the Hugging Face hub, or of a folder that `datasets` reads."""

import bisect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.checkpoints.checkpoint import hub_is_reached
from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.corpora import Document, hash_documents
from lexbench.corpora.fields import text_of

DATASETS_PACKAGE = ("datasets", "hf", "a dataset of the hub")
"""The package, its extra and what needs it."""
SAVED_DATASET_FILES = ("state.json", "dataset_dict.json")
"""Names of files, one of which lies in every folder of `Dataset.save_to_disk`."""


@dataclass(frozen=True)
class Hub:
    """Rows of a dataset, one document each; needs the hub, or a folder of its files as corpus.dataset.

    Args:
        dataset: name on the hub, `emozilla/pg19-test`, or a folder with .parquet, .jsonl or .txt files, or one that
            `save_to_disk` wrote.
        config: subset of the dataset, where it has several.
        split: name of the split, or a slice of it: `test`, `train[:1000]`.
        field: the column with the text; for a nested field a path: `meeting.title`. A list is joined, one line per
            item.
        revision: commit, branch or tag on the hub; None: the newest.
        form: how an object in such a list is written: `{speaker}: {content}`.
        begins: regular expression of the start of a document, for datasets whose rows are lines: rows are joined, one
            line each, and cut at each match (^ and $ match at lines); a document is named after its first row. None:
            each row is a document.
    """

    dataset: str
    config: str | None = None
    split: str = "test"
    field: str = "text"
    revision: str | None = None
    form: str | None = None
    begins: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.begins or "")
        except re.error as error:
            raise ConfigError(f"corpus.begins must be a regular expression, got {self.begins!r} ({error})") from None

    def documents(self) -> Iterator[Document]:
        """Rows with text, named split#row; ConfigError where the dataset cannot be loaded, or has no text."""
        empty = True
        for place, text in self._joined_rows() if self.begins else self._texts():
            if text.strip():
                empty = False
                yield Document(f"{self.split}#{place}", text)
        if empty:
            raise ConfigError(f"dataset {self.dataset} holds no text in {self.split}: choose another corpus.split")

    def fingerprint(self) -> str:
        """Hash of the texts; the name of the dataset does not change it."""
        return hash_documents(self.documents())

    def _texts(self) -> Iterator[tuple[int, str]]:
        """Number and text of every row; null becomes an empty text."""
        rows = self._rows()
        column = self.field if self.field in rows.column_names else self.field.split(".")[0]
        if column not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise ConfigError(f"dataset {self.dataset} has no field {column!r}: choose corpus.field from {have}")
        for place, value in enumerate(rows[column]):  # of a whole row, images and sound would be decoded, too
            where = f"dataset {self.dataset} row {place}"
            yield place, text_of({column: value}, self.field, self.form, where) or ""

    def _joined_rows(self) -> Iterator[tuple[int, str]]:
        """Number of the first row, and text, of every document joined from rows."""
        lines = [text if text.endswith("\n") else f"{text}\n" for _, text in self._texts()]
        ends, text = list(itertools.accumulate(map(len, lines))), "".join(lines)
        begins = [found.start() for found in re.finditer(self.begins or "", text, re.MULTILINE)]
        for begin, end in itertools.pairwise(sorted({0, *begins, len(text)})):
            # Its first row is the first one that ends behind its beginning.
            yield bisect.bisect_right(ends, begin), text[begin:end]

    def _rows(self) -> Any:
        datasets = import_optional(*DATASETS_PACKAGE)

        folder = Path(self.dataset).expanduser()
        saved = [folder / name for name in SAVED_DATASET_FILES if (folder / name).is_file()]
        try:
            if saved:
                return _load_saved(folder, self.split)
            return load_rows(self.dataset, self.config, self.split, self.revision)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
            remedy = "check name, config, split and network"
            raise ConfigError(f"dataset {self.dataset} cannot be loaded ({reason}): {remedy}") from None


def load_rows(dataset: str, config: str | None, split: str, revision: str | None) -> Any:
    """Rows of a dataset; where the hub does not answer, from the cache, without half a minute of attempts."""
    datasets = import_optional(*DATASETS_PACKAGE)

    stated = datasets.config.HF_HUB_OFFLINE
    try:  # `datasets` reads this flag at each call, and has no argument for it
        datasets.config.HF_HUB_OFFLINE = stated or not (Path(dataset).expanduser().exists() or hub_is_reached())
        return datasets.load_dataset(dataset, config, split=split, revision=revision)
    finally:
        datasets.config.HF_HUB_OFFLINE = stated


def _load_saved(folder: Path, split: str) -> Any:
    """Load a folder of `save_to_disk`: several splits, or one dataset, to which any split's name refers."""
    datasets = import_optional(*DATASETS_PACKAGE)

    found = datasets.load_from_disk(str(folder))
    parts = found if isinstance(found, datasets.DatasetDict) else {re.split(r"[+\[]", split)[0]: found}
    sizes = {name: len(rows) for name, rows in parts.items()}
    spans = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
    return datasets.concatenate_datasets([parts[span.splitname].select(range(span.from_, span.to)) for span in spans])
