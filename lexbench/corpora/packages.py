"""The source of Python packages that are installed with lexbench: long real documents, without a download."""

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from lexbench.core.errors import ConfigError
from lexbench.core.extras import EXTRA_OF_MODULE, install_remedy
from lexbench.corpora import Document, hash_documents, python_files

LEFT_OUT = {"test", "tests", "benchmarks", "__pycache__"}
"""Folders that are not entered."""
BUILD_CONFIG_FILE = "__config__.py"
"""The file in which a package notes the machine that built it."""
MAX_CHARACTERS_PER_TOKEN = 5
"""Characters of a token at most: 5.0 were found over a document and 4.2 over all, with the vocabularies of GPT-4 and
GPT-4o; fewer with those of DeepSeek, Mistral and lexlet."""
MAX_DEFAULT_LENGTH_TOKENS = 1 << 17
"""Longest length in tokens for which documents are made where the user gives no `size`."""


@dataclass(frozen=True)
class Packages:
    """Files of packages by path, joined to long documents; needs nothing more, and is this machine's text.

    A document ends with the file that reaches `size` characters. What is left at the end of a package goes to its last
    document, and a smaller package is one document. A line with the path stands before each file:
    `# pandas/core/frame.py`. So a document is Python, too; it is named after its first file. The first document of
    every package comes first, then the second of every package, and so on.

    At the longest size, for 131072 tokens, there are 37 documents. lexlet was not trained on any of these packages.

    Args:
        names: packages to read; the files of the default ones come with lexbench, and are the same on every machine.
        size: least number of characters of a document; None: 5 for each token of the run's longest length, which is
            rounded up to a power of two, and 655360 (131072 tokens) at most.
        count: most documents.
    """

    names: tuple[str, ...] = ("datasets", "huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")
    size: int | None = None
    count: int = 64

    def __post_init__(self) -> None:
        if not self.names or isinstance(self.names, str):
            raise ConfigError(f"corpus.names must list packages, got {self.names!r}: e.g. corpus.names=[numpy,pandas]")
        if twice := [name for name in dict.fromkeys(self.names) if self.names.count(name) > 1]:
            raise ConfigError(f"corpus.names must name each package once, got {', '.join(twice)} again: leave it out")
        for name in ("size", "count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"corpus.{name} must be at least 1, got {value}")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Make documents for the longest length of a run."""
        tokens = min(MAX_DEFAULT_LENGTH_TOKENS, 1 << (max(lengths) - 1).bit_length())
        return self if self.size else replace(self, size=MAX_CHARACTERS_PER_TOKEN * tokens)

    def documents(self) -> Iterator[Document]:
        """Documents of the packages in turns; ConfigError for a package that is not installed as source."""
        turns = itertools.zip_longest(*map(self._of, self.names))
        return itertools.islice((each for turn in turns for each in turn if each is not None), self.count)

    def fingerprint(self) -> str:
        """Hash of the texts; it changes with the versions of the packages."""
        return hash_documents(self.documents())

    def _of(self, package: str) -> list[Document]:
        """Documents of one package."""
        size = self.size or MAX_CHARACTERS_PER_TOKEN * MAX_DEFAULT_LENGTH_TOKENS
        files = [f"# {name}\n{file.read_text(encoding='utf-8', errors='replace')}\n" for name, file in _files(package)]
        ends = list(itertools.accumulate(map(len, files)))
        begins, begun = [0], 0
        for place, end in enumerate(ends, start=1):
            if end - begun >= size and ends[-1] - end >= size:
                begins.append(place)
                begun = end
        parts = [files[begin:end] for begin, end in itertools.pairwise([*begins, len(files)])]
        return [Document(part[0].partition("\n")[0].removeprefix("# "), "".join(part)) for part in parts]


def _files(package: str) -> list[tuple[str, Path]]:
    """(path from the package's folder on, file) of all modules of a package, sorted."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    roots = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    found = [
        (f"{package}/{name}", root / name)
        for root in roots
        for name in python_files(root, LEFT_OUT)
        if Path(name).name != BUILD_CONFIG_FILE
    ]
    if not found:
        remedy = install_remedy(EXTRA_OF_MODULE[package]) if package in EXTRA_OF_MODULE else "install it"
        raise ConfigError(f"corpus packages finds no source of {package}: {remedy}, or choose other corpus.names")
    return sorted(found)
