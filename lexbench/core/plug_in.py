"""Tell one state of a user's code from another: what earlier code has measured is no result of the present code."""

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from inspect import getclosurevars
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from lexbench.core.code_places import is_own_code, is_user_code
from lexbench.core.parts import part_of_module


def user_code_hash(*given: Any) -> str | None:
    """Hash of the files that define users' classes: classes given, those of dataclasses given and in their fields.

    Their base classes count, too, and the user's modules that these files import; comments, docstrings and layout do
    not, nor do installed packages. Of a class that no file holds, as in a notebook, and of what a function has closed
    over, the code in memory counts. None where all classes are lexbench's own.
    """
    found = {kind for each in given for kind in _classes(each)}
    own = {kind for kind in found if _texts(kind) or _live_code(kind)}
    texts = {text for kind in own for base in kind.__mro__ for text in (*_texts(base), *_live_code(base))}
    return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16] if texts else None


def source_of_module(name: str) -> Path:
    """The file of a module; no package is imported for it, because packages may import torch."""
    package, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):  # a missing package, or an empty name
        spec = None
    if spec is None or not inner:
        return Path(spec.origin) if spec and spec.origin else Path()
    places = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next(filter(Path.is_file, files), Path())


def _classes(value: Any) -> set[type]:
    """A class; or the classes of dataclasses, in lists and fields, too."""
    if isinstance(value, type):
        return {value}
    if is_dataclass(value):
        return {type(value)}.union(*(_classes(getattr(value, each.name)) for each in fields(value)))
    return set[type]().union(*map(_classes, value)) if isinstance(value, tuple | list) else set()


@functools.cache
def _texts(kind: type) -> frozenset[str]:
    """The code of a user's class as it was when first asked, file by file; none of any other class."""
    place = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if place is None or kind.__module__.partition(".")[0] in sys.stdlib_module_names or is_own_code(place):
        return frozenset()
    if part := part_of_module(kind.__module__):
        return frozenset(_read(file, part.package).text for file in sorted(part.folder.rglob("*.py")))
    own = Path(place).resolve()
    found = {own: _read(own, kind.__module__)}  # as it is now: a file of the registry is loaded again when it changes
    waiting = set(found[own].imports)
    while waiting:
        file, module = waiting.pop()
        if file not in found:
            found[file] = _first_read(file, module)
            waiting |= found[file].imports
    return frozenset(each.text for each in found.values() if each.text)


def _live_code(kind: type) -> frozenset[str]:
    """The code in memory of a user's class: all of it where no file holds it, else what its functions closed over."""
    module = sys.modules.get(kind.__module__)
    place = getattr(module, "__file__", None)
    if kind.__module__ == "builtins" or (place is not None and not is_user_code(place)):
        return frozenset()
    functions = [each for name, each in sorted(vars(kind).items()) if not _is_made(kind, name)]
    functions = [getattr(each, "__func__", getattr(each, "fget", each)) for each in functions]
    told: dict[str, str] = {}
    for function in functions:
        if isinstance(function, FunctionType):
            _tell(function, place is None, told)
    return frozenset(f"{name} {text}" for name, text in told.items())


def _is_made(kind: type, name: str) -> bool:
    """Whether `dataclass` has made a function: its fields are told elsewhere."""
    return is_dataclass(kind) and name.startswith("__") and name != "__post_init__"


def _tell(function: FunctionType, whole: bool, told: dict[str, str]) -> None:
    """Add the values that a function has closed over; of the whole, its code and the globals that this names, too."""
    values = {name: value for name, value in getclosurevars(function).nonlocals.items() if name != "__class__"}
    if whole:
        told[function.__qualname__] = _code_text(function.__code__)
        known = function.__globals__
        values |= {name: known[name] for name in _names(function.__code__) if name in known}
    for name, value in values.items():
        if isinstance(value, FunctionType):
            file = getattr(sys.modules.get(value.__module__), "__file__", None)
            if value.__qualname__ not in told and (file is None or is_user_code(file)):
                _tell(value, True, told)
        elif not isinstance(value, ModuleType | type):
            told[f"{function.__qualname__}.{name}"] = _value_text(value)


def _code_text(code: CodeType) -> str:
    """The instructions of a function with the constants and names in them, without its lines."""
    constants = [_code_text(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


def _names(code: CodeType) -> set[str]:
    """Names of globals in a function and in the functions inside it."""
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _value_text(value: Any) -> str:
    """A value as text; of an array, a hash of all of it, as its `repr` leaves numbers out."""
    if hasattr(value, "__array__"):
        value = np.asarray(value)
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


class _Code(NamedTuple):
    """A file's code without comments and docstrings, and the user's modules that it imports: file and name."""

    text: str
    imports: frozenset[tuple[Path, str]]


def _read(file: Path, module: str) -> _Code:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # gone, or no source
        return _Code("", frozenset())
    imports = {(source_of_module(name).resolve(), name) for name in _imports(tree, module, file)}
    users = frozenset(each for each in imports if is_user_code(each[0]))
    return _Code(ast.unparse(_WithoutTexts().visit(tree)), users)


_first_read = functools.cache(_read)
"""Read an imported module once: a process keeps it as it was first imported."""


def _imports(tree: ast.Module, module: str, file: Path) -> Iterator[str]:
    """Names that may be modules which a module's code imports, and the packages around them."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [each.name for each in node.names]
        if isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # from . import ..., outside of a package
                continue
            names = [f"{base}.{name}" for name in names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


class _WithoutTexts(ast.NodeTransformer):
    """Remove docstrings, and other constants that stand as a statement."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node
