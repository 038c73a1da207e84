"""A dataset of the Hugging Face hub, or of a folder that `datasets` reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.corpora import Document, hash_documents

SAVED = ("state.json", "dataset_dict.json")
"""One of these lies in a folder that `Dataset.save_to_disk` wrote."""


@dataclass(frozen=True)
class Hub:
    """Rows of a dataset, one document each, in their order: `emozilla/pg19-test`, or a folder of its files.

    Args:
        dataset: name on the hub, or a folder with .parquet, .jsonl or .txt files, or one that `save_to_disk` wrote.
        config: subset of the dataset, where it has several.
        split: with a slice, if only a part is wanted: `test`, `train[:1000]`.
        field: the column that holds the text.
        revision: commit, branch or tag on the hub; None: the newest.
    """

    dataset: str
    config: str | None = None
    split: str = "test"
    field: str = "text"
    revision: str | None = None

    def documents(self) -> Iterator[Document]:
        """Rows with text, named split#row; ValueError where the dataset cannot be had, or holds none."""
        rows = self._rows()
        if self.field not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise ValueError(f"dataset {self.dataset} has no field {self.field!r}: choose corpus.field from {have}")
        empty = True
        for place, text in enumerate(rows[self.field]):
            if not isinstance(text, str | None):
                raise ValueError(
                    f"dataset {self.dataset} has {type(text).__name__} in field {self.field!r}, not text: "
                    "choose another corpus.field"
                )
            if text and text.strip():
                empty = False
                yield Document(f"{self.split}#{place}", text)
        if empty:
            raise ValueError(f"dataset {self.dataset} holds no text in {self.split}: choose another corpus.split")

    def fingerprint(self) -> str:
        """Hash of the texts, whatever the dataset is called today."""
        return hash_documents(self.documents())

    def _rows(self) -> Any:
        import datasets

        folder = Path(self.dataset).expanduser()
        saved = [folder / name for name in SAVED if (folder / name).is_file()]
        try:
            if saved:
                return _saved(folder, self.split)
            return datasets.load_dataset(self.dataset, self.config, split=self.split, revision=self.revision)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
            remedy = "check name, config, split and network"
            raise ValueError(f"dataset {self.dataset} cannot be loaded ({reason}): {remedy}") from None


def _saved(folder: Path, split: str) -> Any:
    """What `save_to_disk` wrote: one dataset, or several splits of one."""
    import datasets

    found = datasets.load_from_disk(str(folder))
    if not isinstance(found, datasets.DatasetDict):
        return found
    if split not in found:
        raise ValueError(f"no split {split!r} in {', '.join(found)}")
    return found[split]
