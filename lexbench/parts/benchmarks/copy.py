"""The user's own copy of a benchmark: its files by any official layout, rows of any format, literals of its code."""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.taskkit.longbench.examples import read_rows


@dataclass(frozen=True)
class BenchmarkFiles:
    """Files of one part of a benchmark. Identities and labels depend on their content only."""

    places: tuple[Path, ...] = field(compare=False)
    sha256: str

    def __str__(self) -> str:
        return f"sha256:{self.sha256[:8]}"

    __repr__ = __str__

    @classmethod
    def of(cls, places: Sequence[Path]) -> "BenchmarkFiles":
        """Existing files, in this order."""
        digest = hashlib.sha256()
        for place in places:
            with place.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return cls(tuple(places), digest.hexdigest())


def find_files(data: str, patterns: Sequence[str], what: str) -> BenchmarkFiles:
    """All files of the first pattern that matches any, below a folder; ConfigError if there is no such folder.

    Refused if no pattern matches. `data` may also be the only file itself.
    """
    folder = Path(data).expanduser()
    if folder.is_file():
        return BenchmarkFiles.of([folder])
    if not folder.is_dir():
        raise ConfigError(f"data {data} does not exist: give task.data=DIR, your copy of {what}")
    for pattern in patterns:
        if places := sorted(place for place in folder.glob(pattern) if place.is_file()):
            return BenchmarkFiles.of(places)
    raise Refused(f"data of {what} lack {' and '.join(patterns)}: give task.data=DIR, your copy")


def read_data_rows(file: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a .jsonl, .json (one list) or .parquet; ConfigError for anything else."""
    if file.suffix == ".parquet":
        try:
            with pyarrow.parquet.ParquetFile(file) as opened:
                # A row may have megabytes of text: a few at a time.
                for batch in opened.iter_batches(batch_size=16):
                    yield from batch.to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:80]
            raise ConfigError(f"{file} is damaged ({reason}): download it again") from None
    elif file.suffix == ".jsonl":
        yield from (row for _, row in read_rows(str(file), file.read_bytes(), {}))
    else:
        try:
            listed = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
            raise ConfigError(f"{file} must hold a JSON list of objects: give the official file")
        yield from listed


def checked_field(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], file: Path) -> Any:
    """A field of a row; ConfigError if it is missing or of another type."""
    if not isinstance(row.get(name), kind):
        raise ConfigError(f"{file} has a row without {name} of its usual type: give the official file")
    return row[name]


def assigned_literals(file: Path) -> dict[str, Any]:
    """Values that Python code assigns: names at the top, and `function.name` inside functions. Nothing is executed.

    Only literals, literal strings joined by +, and f-strings of names of earlier ones at the top are read. The last of
    several assignments to one name counts; one inside an `if` at the top where there is no other. Of `A if ... else B`,
    both: [A, B].
    """
    return {name: literal for name, literal, _ in _iterate_assignments(_parse_python(file))}


def all_assigned_literals(file: Path | None) -> dict[str, list[Any]]:
    """All values that Python code assigns to each name, in the order of the lines; else as `assigned_literals`."""
    assert file is not None, "the task has checked it"
    found: dict[str, list[Any]] = {}
    for name, literal, _ in sorted(_iterate_assignments(_parse_python(file)), key=lambda each: each[2]):
        found.setdefault(name, []).append(literal)
    return found


def _parse_python(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ConfigError(f"prompts {file} cannot be read ({reason}): give the official file") from None


def _iterate_assignments(tree: ast.Module) -> Iterator[tuple[str, Any, int]]:
    """Name, value and line of every assignment of a literal."""
    # Assignments inside an `if` come first, so that one without a condition has the last word.
    choices = (node for each in tree.body if isinstance(each, ast.If) for node in ast.walk(each))
    functions = [
        ("", [*choices, *tree.body]),
        *((f"{f.name}.", ast.walk(f)) for f in tree.body if isinstance(f, ast.FunctionDef)),
    ]
    stated: dict[str, Any] = {}
    for prefix, nodes in functions:
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                try:
                    literal = ast.literal_eval(_join_literals(node.value, stated))
                except ValueError:
                    continue
                if not prefix:
                    stated[node.targets[0].id] = literal
                yield f"{prefix}{node.targets[0].id}", literal, node.lineno


def _join_literals(node: ast.expr, stated: Mapping[str, Any]) -> ast.expr:
    """`"a" + "b"` and `f"{a}b"` as one literal, also as the values of a dict; both of a choice.

    Args:
        node: of the code.
        stated: values of earlier names, for f-strings.
    """
    # `A if condition else B`: the condition is not evaluated, so both are kept.
    if isinstance(node, ast.IfExp):
        return ast.List([_join_literals(node.body, stated), _join_literals(node.orelse, stated)], ast.Load())
    if isinstance(node, ast.Dict):
        return ast.Dict(node.keys, [_join_literals(each, stated) for each in node.values])
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_join_literals(node.left, stated), _join_literals(node.right, stated)]
    if isinstance(node, ast.JoinedStr):
        parts = [_fill_name(each, stated) for each in node.values]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return ast.Constant("".join(texts)) if parts and len(texts) == len(parts) else node


def _fill_name(part: ast.expr, stated: Mapping[str, Any]) -> ast.expr:
    """`{name}` of an f-string as the value of the name, if it is known and not formatted."""
    if isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None:
        name = part.value
        return ast.Constant(stated[name.id]) if isinstance(name, ast.Name) and name.id in stated else part
    return part
