"""A page before it has a form: headings, texts, tables, figures and remarks, without markup.

`formats` writes a sheet for a terminal, as Markdown, LaTeX or HTML. Only these writers know marks, and escape names.
The table of a sheet is a `Grid`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lexbench.report.grid import Grid


@dataclass(frozen=True)
class Heading:
    """The title of what follows."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Link:
    """Words that lead to a file."""

    text: str
    target: str
    """Path, relative to the page."""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str
    links: Sequence[Link] = ()
    """Files that the text leads to, behind it."""
    strong: bool = False
    warns: bool = False
    """Whether it is a warning, which has a colour where the form has any."""


@dataclass(frozen=True)
class Remark:
    """A remark in a line; remarks that follow each other are a list."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A picture."""

    file: str
    """Path, relative to the page."""
    text: str
    """What it shows, for readers who do not see it."""


Block = Heading | Paragraph | Remark | Grid | Figure
Sheet = Sequence[Block]
"""A page from top to bottom."""
