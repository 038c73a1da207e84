"""Who may import whom: the table of the design, and what loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lexbench

ROOT = Path(__file__).parent.parent
CORE = {"record", "model", "attention", "task"}
SHARED = {
    "methods": {"methods", "methods.rotary", "methods.distances"},
    "backends": {
        *("backends", "backends.rotary", "backends.hook", "backends.evidence"),
        *("backends.network", "backends.memory", "backends.caches"),
        *("backends.completions", "backends.http", "backends.dialect", "backends.replies"),
        *("backends.vllm_angles", "backends.vllm_engine"),
    },
}
"""What plug-ins of one kind have in common; beyond it they never import one another."""
ALLOWED = {  # folder or module under lexbench: what of ours it may import
    "record": set(),
    "model": {"record"},
    "attention": {"record", "model"},
    "task": {"record", "model", "attention"},
    "files": set(),
    "kinds": set(),
    "assets": {"task"},
    "checkpoint": {"files", "kinds", "model"},
    "tokenizer": {"files", "task"},
    "methods": {"attention", "model", "record", *SHARED["methods"]},
    "compose": {"assets", "attention", "methods", "model"},
    "definition": {"attention", "model"},
    "export": {"attention", "checkpoint", "methods", "model", "record"},
    "verify": {"attention", "backends", "definition", "files", "task"},
    "encodings": {"encodings", "attention", "task"},
    "kernels": {"attention", "kernels"},
    "corpora": {"corpora"},
    "perplexity": CORE | {"corpora", "samples"},
    "excerpt": {"task"},
    "haystack": {"perplexity", "record", "task"},
    "keys": {"model", "task"},
    "scoring": set(),
    "draw": {"record", "task"},
    "official_qa": {"record"},
    "samples": {"record", "task"},
    "symbols": {"record", "task"},
    "longbench": {"longbench", "record", "scoring"},
    "backends": CORE
    | {"kernels", "native", "encodings", "checkpoint", "tokenizer", "definition", "methods", *SHARED["backends"]}
    | {"export", "compose", "provenance"},
    "loading": {"assets", "backends", "checkpoint", "model"},
    "native": {
        "native",
        "encodings",
        "attention",
        "kernels",
        "checkpoint",
        "corpora",
        "files",
        "kinds",
        "assets",
        "tokenizer",
        "task",
        "record",
        "compose",
        "export",
        "methods",
    },
    "cell_file": {"record", "kinds"},
    "packed": {"cell_file", "files"},
    "store": {"record", "cell_file", "packed", "files"},
    "report": {"record", "cell_file", "store", "report", "files", "kinds"},
    "agreement": {"attention", "task"},
    "parity": CORE
    | {
        "agreement",
        "assets",
        "backends",
        "checkpoint",
        "examiner",
        "loading",
        "plan",
        "provenance",
        "report",
        "job",
        "runner",
        "tokenizer",
    },
    "harness": CORE
    | {"", "harness", "assets", "backends", "checkpoint", "compose", "job", "loading", "methods", "runner", "verify"},
    "imports": {"imports", "harness.rooms", "record", "checkpoint", "excerpt", "tokenizer", "store", "report", ""},
    "share": {"report", "files"},
    "view": {"view", "report", "store", ""},
    "show": {"attention", "model"},
    "show_panels": {"attention", "model", "report", "show"},
    "show_plots": {"attention", "model", "report", "show", "show_panels"},
}
WITHOUT_TORCH = [
    "lexbench",
    "lexbench.cli",
    "lexbench.report",
    "lexbench.store",
    "lexbench.show",
    "lexbench.show_plots",
    "lexbench.job",
    "lexbench.runner",
    "lexbench.verify",
    "lexbench.export",
    "lexbench.search",
    "lexbench.tune",
    "lexbench.view",
    "lexbench.find_keys",
    "lexbench.harness",
    "lexbench.imports.lm_eval",
    "lexbench.loading",
    "lexbench.parity",
    "lexbench.share",
]


def imported(file: Path) -> set[str]:
    """Our modules that a file imports, without the leading `lexbench.`; `lexbench` itself as the empty string."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lexbench":
            base = node.module.removeprefix("lexbench").lstrip(".")
            modules = [".".join(filter(None, [base, name.name])) for name in node.names]
            found |= {module if exists(module) else base for module in modules}
        elif isinstance(node, ast.Import):
            found |= {n.name.removeprefix("lexbench").lstrip(".") for n in node.names if n.name.startswith("lexbench")}
    return found


def exists(module: str) -> bool:
    path = ROOT / "lexbench" / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_each_part_imports_only_what_the_table_allows(part: str) -> None:
    path = ROOT / "lexbench" / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    assert files
    allowed = ALLOWED[part]
    for file in files:
        for module in imported(file):
            names = {module, module.split(".")[0]}
            assert names & allowed, f"{file.relative_to(ROOT)} imports lexbench.{module}"


def test_methods_encodings_and_backends_never_import_one_another() -> None:
    for group, shared in SHARED.items():
        for file in (ROOT / "lexbench" / group).glob("*.py"):
            siblings = {module for module in imported(file) if module.split(".")[0] == group}
            assert siblings <= shared, f"{file.name} imports {siblings - shared}"


def test_tasks_import_only_public_names() -> None:
    for file in (ROOT / "tasks").glob("*.py"):
        assert imported(file) <= {"", *lexbench.__all__}, f"{file.name} imports {imported(file)}"


def test_only_the_settings_import_hydra() -> None:
    for file in (ROOT / "lexbench").rglob("*.py"):
        uses = "hydra" in {
            (node.module or "").split(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert not uses or file.name == "settings.py", f"{file.name} imports hydra"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import {module}, sys; print([m for m in ('torch', 'transformers', 'hydra') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
