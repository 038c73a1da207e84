"""Count rooms, floors, arrows and circles of the package: python tools/rooms.py

A room is a folder or module directly under lexbench/, or tasks/. An arrow is a pair of rooms of which one imports the
other. A room stands one floor above the highest room that it imports. Rooms of a circle import each other.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def arrows() -> dict[str, set[str]]:
    """By room, the rooms that it imports. The package's own __init__ hands names on, and is no room."""
    graph = grimp.build_graph("lexbench")
    found: dict[str, set[str]] = {module.split(".")[1]: set() for module in graph.modules if module != "lexbench"}
    for importer in graph.modules - {"lexbench"}:
        for imported in graph.find_modules_directly_imported_by(importer) - {"lexbench"}:
            if importer.split(".")[1] != imported.split(".")[1]:
                found[importer.split(".")[1]].add(imported.split(".")[1])
    tasks = [ast.parse(file.read_text()) for file in (ROOT / "tasks").glob("*.py")]
    modules = {node.module or "" for tree in tasks for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found["tasks"] = {module.split(".")[1] for module in modules if module.startswith("lexbench.")}
    return found


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
        print(f"floor {floor}: {', '.join(sorted(by_floor[floor]))}")
    print(f"{len(imports)} rooms, {len(by_floor)} floors, {sum(map(len, imports.values()))} arrows, no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
