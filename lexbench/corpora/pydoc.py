"""The running Python's own documentation: the language reference that `help()` shows."""

from collections.abc import Iterator
from dataclasses import dataclass

from lexbench.core.errors import ConfigError
from lexbench.corpora import Document, check_split, hash_documents, is_in_split


@dataclass(frozen=True)
class Pydoc:
    """Topics of the language reference, one document each, by name; needs nothing, and is this machine's text.

    Args:
        split: train, test (about 15 % of the topics, chosen by a hash of their names) or all.
    """

    split: str = "test"

    def __post_init__(self) -> None:
        check_split(self.split)

    def documents(self) -> Iterator[Document]:
        """Topics in the order of their names."""
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ConfigError("corpus pydoc is not part of this Python: use corpus=stdlib or synthetic") from None
        for name in sorted(topics):
            if is_in_split(name, self.split):
                yield Document(name, topics[name])

    def fingerprint(self) -> str:
        """Hash of the texts; it changes with the version of Python."""
        return hash_documents(self.documents())
