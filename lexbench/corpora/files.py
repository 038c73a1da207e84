"""Text files, or folders of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object
from lexbench.core.registry import TEXT_ENDINGS
from lexbench.corpora import Document, hash_documents
from lexbench.corpora.fields import text_of


@dataclass(frozen=True)
class Files:
    """A file, or all .txt, .md, .py and .jsonl files under a folder, sorted by path; needs corpus.path.

    A document is named after its file, relative to the folder, and after the number of its piece or line, if the file
    has several: `book.txt`, `stories.txt#17`, `meetings.jsonl#3`. Empty documents are left out.

    Args:
        path: file or folder.
        field: with the text of each JSON object in a .jsonl file (other files are read whole); for a nested field a
            path: `meeting.title`. A list is joined, one line per item.
        separator: text between the documents of a .txt file, which are then stripped; None: one document per file.
        form: how an object in a list of a .jsonl file is written: `{speaker}: {content}`.
    """

    path: str
    field: str = "text"
    separator: str | None = "<|endoftext|>"
    form: str | None = None

    def __post_init__(self) -> None:
        if not self.path:  # it would be the folder in which lexbench runs
            raise ConfigError("corpus.path must name a file or a folder, got an empty text: give corpus.path=FILE")
        if self.separator == "":
            raise ConfigError("corpus.separator must not be empty: give null for one document a file")

    def documents(self) -> Iterator[Document]:
        """Documents in the order of files and lines; ConfigError for unreadable files, or without documents."""
        empty = True
        for name, file in self._files():
            split = self._lines if file.suffix == ".jsonl" else self._pieces
            for document in split(name, _read(file)):
                if document.text.strip():
                    empty = False
                    yield document
        if empty:
            raise ConfigError(
                f"corpus {self.path} holds no text in {', '.join(TEXT_ENDINGS)} files: give another corpus.path"
            )

    def fingerprint(self) -> str:
        """Hash of names and texts; the path of the folder does not change it."""
        return hash_documents(self.documents())

    def _files(self) -> list[tuple[str, Path]]:
        root = Path(self.path).expanduser()
        if root.is_dir():
            found = sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*") if file.is_file())
            return [(name, file) for name, file in found if file.suffix in TEXT_ENDINGS]
        if not root.is_file():
            raise ConfigError(f"corpus {self.path} does not exist: give corpus.path=FILE or a folder")
        return [(root.name, root)]

    def _pieces(self, name: str, text: str) -> Iterator[Document]:
        if not name.endswith(".txt") or self.separator is None or self.separator not in text:
            yield Document(name, text)
            return
        for place, piece in enumerate(text.split(self.separator)):
            yield Document(f"{name}#{place}", piece.strip())

    def _lines(self, name: str, text: str) -> Iterator[Document]:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield Document(f"{name}#{number}", self._text(f"{name} line {number}", line))

    def _text(self, place: str, line: str) -> str:
        row = parse_object(line, place, "write one object a line")
        text = text_of(row, self.field, self.form, place) or ""
        return text.encode("utf-8", "replace").decode()  # JSON can spell half a surrogate pair


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # without the mark that some editors put at the start
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 (byte {error.start}): convert it") from None
