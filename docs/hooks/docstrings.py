"""Convert docstrings to Markdown: prose, formulas unchanged, parameters as a table, links to papers."""

import html
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

LINKS = (
    (r"(?:arXiv |(?<=[ (]))(\d{4}\.\d{4,5})\b", r"[arXiv \1](https://arxiv.org/abs/\1)"),
    (r"(?<![\w/.])(kexue\.fm/archives/\d+)", r"[\1](https://\1)"),
    (r"(?<![\w/.])(doi:(10\.\S+?))(?=[).,;]? |[).,;]*$)", r"[\1](https://doi.org/\2)"),
)


def markdown(cls: type) -> str:
    """The docstring of a class, and its parameters with their defaults."""
    text, _, said = (inspect.getdoc(cls) or "").partition("\nArgs:\n")
    return "\n\n".join(filter(None, [prose(text), parameters(cls, textwrap.dedent(said))]))


def prose(text: str) -> str:
    """Paragraphs; indented text (formulas, text pictures, tables of numbers) becomes a fence, unchanged."""
    made: list[str] = []
    for block in re.split(r"\n(?: *\n)+(?=\S)|\n *\n(?= {4})|\n(?= {4})(?<=:\n)", text.strip("\n")):
        if block.startswith("    "):
            made.append(f"```text\n{textwrap.dedent(block).rstrip()}\n```")
        elif re.match(r" *- ", block):
            made.append(linked(textwrap.dedent(block)))
        else:
            made.append(linked(re.sub(r"\s*\n\s*", " ", block.strip())))
    return "\n\n".join(made)


def linked(text: str) -> str:
    """Escape plain text for Markdown; `code` stays code, papers become links."""
    pieces = re.split(r"(`[^`]*`)", text)
    plain = [piece if piece.startswith("`") else _escaped(piece) for piece in pieces]
    return "".join(plain)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(text, quote=False))
    for pattern, link in LINKS:
        text = re.sub(pattern, link, text)
    return text


def parameters(cls: type, said: str) -> str:
    """A table of parameters; empty if there are none."""
    known = re.findall(r"^(\w+): (.*(?:\n +.*)*)", said, re.MULTILINE)
    if not known:
        return ""
    rows = [f"| `{name}` | {_default(cls, name)} | {linked(' '.join(text.split()))} |" for name, text in known]
    return "\n".join(["| parameter | default | |", "| --- | --- | --- |", *rows])


def _default(cls: type, name: str) -> str:
    if is_dataclass(cls):
        found: Any = next((f.default for f in fields(cls) if f.name == name), MISSING)
        missing = found is MISSING
    else:
        found = inspect.signature(cls).parameters[name].default
        missing = found is inspect.Parameter.empty
    return "" if missing else f"`{found}`"
