"""Jane Austen's six novels, out of R's package janeaustenr as Debian has it: long prose, the same for everybody."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from lexbench.corpora import Document, hash_documents
from lexbench.parts.debian.packages import files_of

R_STRING_VECTOR_TYPE, R_STRING_TYPE = 16, 9
"""R's type of a vector of strings, and of one string."""


@dataclass(frozen=True)
class Novels:
    """Six novels of Jane Austen, one document each; needs a package of Debian: `make texts`.

    They have 0.43 to 0.88 million characters, in lines of about 70, as Project Gutenberg prints them. Six documents
    are six clusters: see `manuals` for more.
    """

    def documents(self) -> Iterator[Document]:
        """Novels, named after their first lines; ConfigError without the package."""
        database = files_of("r-cran-janeaustenr", "usr/lib/R/site-library/janeaustenr/data")["Rdata.rdb"]
        for novel in _objects(database):
            lines = _strings(novel)
            yield Document(lines[0], "\n".join(lines) + "\n")

    def fingerprint(self) -> str:
        """Hash of the texts."""
        return hash_documents(self.documents())


def _objects(database: bytes) -> Iterator[bytes]:
    """Objects of a database of R's lazy loading, each serialised.

    Of each stands there the number of its bytes, in four bytes, and then the object by zlib (R Internals, section 1.5;
    `makeLazyLoadDB` in R's package tools).
    """
    while database:
        [size] = struct.unpack(">I", database[:4])
        stream = zlib.decompressobj()
        unpacked = stream.decompress(database[4:])
        assert len(unpacked) == size, f"an object has {size} bytes, got {len(unpacked)}"
        yield unpacked
        database = stream.unused_data


def _strings(serialised: bytes) -> list[str]:
    """A vector of strings out of R's serialisation, version 3 in XDR form (R Internals, section 1.8).

    All numbers are 32-bit, big-endian: `X\\n`, three versions, the name of the encoding after its size; flags with the
    type in their lowest byte, number of strings; and of each string its flags, its size and its bytes in UTF-8.
    """
    place = 2

    def number() -> int:
        nonlocal place
        place += 4
        return int.from_bytes(serialised[place - 4 : place], "big")

    def text(size: int) -> str:
        nonlocal place
        place += size
        return serialised[place - size : place].decode()

    form = serialised[:2], number()
    assert form == (b"X\n", 3), f"strings are serialised as XDR, version 3, got {form}"
    number(), number(), text(number())
    kind = number()
    assert kind == R_STRING_VECTOR_TYPE, f"a novel is a vector of strings without attributes, got flags {kind:#x}"
    lines = []
    for _ in range(number()):
        kind = number()
        assert kind & 0xFF == R_STRING_TYPE, f"a line is a string, got flags {kind:#x}"
        lines.append(text(number()))
    assert place == len(serialised), f"nothing follows the strings, got {len(serialised) - place} bytes"
    return lines
