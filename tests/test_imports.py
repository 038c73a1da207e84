"""Who may import whom, where import-linter (`make lint`) does not look: plug-ins, tasks, hydra, torch."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import lexbench

ROOT = Path(__file__).parent.parent
SHARED = {
    "methods": {"methods.rotary", "methods.distances", "methods.export"},
    "encodings": {"encodings.base", "encodings.wrappers"},
    "corpora": {"corpora", "corpora.fields"},
}
"""What plug-ins of one kind have in common; beyond it they never import one another."""
WITHOUT_TORCH = [
    "lexbench",
    "lexbench.commands.main",
    "lexbench.parts.exchange.share",
    "lexbench.parts.exchange.lm_eval",
    "lexbench.parts.exchange.lm_eval.results.command",
    "lexbench.pytest_plugin",
    "lexbench.methods.export",
    "lexbench.report.report",
    "lexbench.report.show.plots",
    "lexbench.parts.web.view",
    "lexbench.runner.backend_pool",
    "lexbench.runner.loop",
    "lexbench.runner.verify",
    "lexbench.store.store",
    "lexbench.parts.lab.study.study",
    "lexbench.parts.search.find_key_tokens",
    "lexbench.parts.search.longrope_search.search",
    "lexbench.parts.serving.parity.compare",
    "lexbench.parts.search.tune.tune",
]


@functools.cache
def imported(file: Path) -> set[str]:
    """Modules that a file imports, and those that a package's names may be."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{name.name}" for name in node.names}
            found |= {module if exists(module) else node.module for module in modules}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def modules_of_parts(file: Path) -> set[str]:
    """Modules of parts, and of their tests, that a file imports anywhere in it."""
    found = {tuple(module.split(".")[:3]) for module in imported(file)}
    return {".".join(each) for each in found if each[:2] in (("lexbench", "parts"), ("tests", "parts"))}


def test_a_folder_of_tests_imports_no_part_unless_it_is_the_parts() -> None:
    """`tests/parts/faults` damages the files of all parts."""
    for file in (ROOT / "tests").rglob("*.py"):
        room, part, *_ = (*file.relative_to(ROOT / "tests").parts, "")
        own = {f"lexbench.parts.{part}", f"tests.parts.{part}"} if room == "parts" else set[str]()
        assert part == "faults" or modules_of_parts(file) <= own, file


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("group", sorted(SHARED))
def test_plug_ins_of_one_kind_never_import_one_another(group: str) -> None:
    shared = {f"lexbench.{module}" for module in SHARED[group]}
    for file in (ROOT / "lexbench" / group).glob("*.py"):
        if f"lexbench.{group}.{file.stem}" not in shared and file.stem != "composition":
            siblings = {module for module in imported(file) if module.startswith(f"lexbench.{group}")}
            assert siblings <= shared, f"{file.name} imports {siblings - shared}"


@pytest.mark.slow
def test_tasks_import_public_names_and_what_tasks_share() -> None:
    for file in [*ROOT.glob("tasks/*.py"), *ROOT.glob("lexbench/parts/*/tasks/*.py")]:
        ours = {module for module in imported(file) if module.split(".")[0] == "lexbench"} - {"lexbench"}
        part = f"lexbench.parts.{file.parents[1].name}."
        assert all(module.startswith(("lexbench.taskkit", part)) for module in ours), f"{file}: {ours}"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "lexbench":
                assert {name.name for name in node.names} <= set(lexbench.__all__), file.name


@pytest.mark.slow
def test_only_the_commands_know_hydra() -> None:
    for file in (ROOT / "lexbench").rglob("*.py"):
        uses = {module.split(".")[0] for module in imported(file)} & {"hydra", "omegaconf"}
        assert not uses or file.parent.name == "commands", f"{file.name} imports {uses}"


@pytest.mark.slow
def test_importing_loads_no_torch() -> None:
    code = f"""
import importlib, sys
for module in {WITHOUT_TORCH}:
    importlib.import_module(module)
    print(module, *(heavy for heavy in ("torch", "transformers", "hydra") if heavy in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == WITHOUT_TORCH


def test_no_public_function_shadows_a_module() -> None:
    modules = {path.stem for path in (ROOT / "lexbench").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not modules & set(lexbench.__all__)
