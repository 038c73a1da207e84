"""Tell one state of a user's code from another: what earlier code has measured is no result of the present code."""

import ast
import functools
import hashlib
import sys
import sysconfig
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
OURS = (PACKAGE, PACKAGE.parent / "tasks")
"""Folders of lexbench's own code, whose classes state versions of their own."""
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
"""Folders of Python and of installed packages."""


def is_ours(file: str | Path) -> bool:
    """Whether a file is of lexbench."""
    place = Path(file).resolve()
    return any(place.is_relative_to(folder) for folder in OURS)


def is_users(file: str | Path) -> bool:
    """Whether a file is neither of lexbench nor of Python or an installed package."""
    place = Path(file).resolve()
    return place.is_file() and not is_ours(place) and not any(place.is_relative_to(folder) for folder in INSTALLED)


def code_of(*given: Any) -> str | None:
    """Hash of the files that define users' classes: classes given, those of dataclasses given and in their fields.

    Their base classes count, too; comments, docstrings and layout do not, nor do modules that such a file imports. None
    where all classes are lexbench's own.
    """
    own = {kind for each in given for kind in _classes(each) if _text(kind)}
    texts = {text for kind in own for base in kind.__mro__ if (text := _text(base))}
    return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16] if texts else None


def _classes(value: Any) -> set[type]:
    """A class; or the classes of dataclasses, in lists and fields, too."""
    if isinstance(value, type):
        return {value}
    if is_dataclass(value):
        return {type(value)}.union(*(_classes(getattr(value, each.name)) for each in fields(value)))
    return set[type]().union(*map(_classes, value)) if isinstance(value, tuple | list) else set()


@functools.cache
def _text(kind: type) -> str | None:
    """The code of the file that defines a user's class, as it was when first asked; None for any other class."""
    place = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if place is None or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    if is_ours(place):
        return None
    try:
        tree = ast.parse(Path(place).read_bytes())
    except (OSError, SyntaxError, ValueError):  # gone, or no source
        return None
    return ast.unparse(_WithoutTexts().visit(tree))


class _WithoutTexts(ast.NodeTransformer):
    """Takes out what stands by itself and does nothing: docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node
