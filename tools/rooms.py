"""Count rooms, floors, arrows and circles of the package: python tools/rooms.py

A room is a folder or module directly under lexbench/ or lexbench/parts/, or tasks/. An arrow is a pair of rooms of
which one imports the other. A room stands one floor above the highest room that it imports. Rooms of a circle import
each other. Lines of code are those without blank ones, comments, docstrings and imports.
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def arrows() -> dict[str, set[str]]:
    """By room, the rooms that it imports. The package's own __init__ hands names on, and is no room."""
    graph = grimp.build_graph("lexbench")
    modules = graph.modules - {"lexbench", "lexbench.parts"}
    found: dict[str, set[str]] = {room(module): set() for module in modules}
    for importer in modules:
        for imported in graph.find_modules_directly_imported_by(importer) & modules:
            if room(importer) != room(imported):
                found[room(importer)].add(room(imported))
    tasks = [ast.parse(file.read_text()) for file in (ROOT / "tasks").glob("*.py")]
    modules = {node.module or "" for tree in tasks for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found["tasks"] = {module.split(".")[1] for module in modules if module.startswith("lexbench.")}
    return found


def room(module: str) -> str:
    """The room of a module: `stats`, or `parts/lab`."""
    words = module.split(".")
    return "/".join(words[1:3]) if words[1] == "parts" else words[1]


def texts(name: str) -> list[str]:
    """The Python files of a room."""
    place = ROOT / name if name == "tasks" else ROOT / "lexbench" / name
    files = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return [file.read_text(encoding="utf-8") for file in files]


def lines(name: str) -> int:
    """Lines of a room."""
    return sum(len(text.splitlines()) for text in texts(name))


def code_lines(text: str) -> int:
    """Lines of a file that hold a token of code other than an import's or a docstring's."""
    kinds = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    held = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in kinds:
            held |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
            assert isinstance(node, ast.stmt)
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """Floor of each room, 1 for a room that imports no other; ValueError naming the rooms of a circle."""
    found: dict[str, int] = {}
    while len(found) < len(imports):
        ready = [room for room in imports.keys() - found.keys() if imports[room] <= found.keys()]
        if not ready:
            raise ValueError(f"rooms import each other in a circle: {', '.join(sorted(imports.keys() - found.keys()))}")
        found |= {room: 1 + max((found[each] for each in imports[room]), default=0) for room in ready}
    return found


def main() -> int:
    """Print the floors, the highest first."""
    imports = arrows()
    by_floor = defaultdict(list)
    for room, floor in floors(imports).items():
        by_floor[floor].append(room)
    for floor in sorted(by_floor, reverse=True):
        print(f"floor {floor}: {', '.join(f'{name} {lines(name):,}' for name in sorted(by_floor[floor]))}")
    core = {name: below for name, below in imports.items() if not name.startswith("parts/")}
    for title, some in (("core", core), ("whole", imports)):
        count = sum(map(len, some.values()))
        code = sum(code_lines(text) for name in some for text in texts(name))
        size = f"{sum(map(lines, some)):,} lines, {code:,} of code"
        print(f"{title}: {size}, in {len(some)} rooms, {count} arrows, no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
