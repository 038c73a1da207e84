"""Parts: what may be imported, what must be declared, and a package of a stranger, built and installed."""

import ast
import functools
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from lexbench.core import parts
from lexbench.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"huggingface-hub": "huggingface_hub", "hydra-core": "hydra", "pyyaml": "yaml", "rouge-score": "rouge_score"}
"""Modules that are not called as their distribution is."""
BROUGHT = {"omegaconf", "safetensors", "packaging", "markupsafe", "nltk"}
"""Modules that hydra-core, transformers, jinja2 and rouge-score bring along."""
HOSTS = {"pytest", "lm_eval", "inspect_ai", "vllm", "triton", "IPython", "ipykernel"}
"""Programs that load our plug-ins, or without which a backend refuses."""
STANDARD = set(sys.stdlib_module_names)


def declared(words: list[str]) -> set[str]:
    """Modules of requirements, those of extras of our own included."""
    found = set[str]()
    for word in words:
        name = word.split(";")[0].split(">")[0].split("=")[0].split("<")[0].strip()
        if name.startswith("lexbench["):
            for extra in name.removeprefix("lexbench[").rstrip("]").split(","):
                found |= declared(PROJECT["optional-dependencies"][extra])
        else:
            found.add(MODULES.get(name, name.replace("-", "_")))
    return found


@functools.cache
def calls_and_imports(file: Path) -> list[ast.AST]:
    """Nodes of a file that import, or call `need`."""
    kinds = (ast.Import, ast.ImportFrom)
    nodes = ast.walk(ast.parse(file.read_text()))
    return [
        node for node in nodes if isinstance(node, kinds) or getattr(getattr(node, "func", None), "id", None) == "need"
    ]


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports, by a statement or by `need`."""
    found = set[str]()
    for node in calls_and_imports(file):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call):
            found.add(ast.literal_eval(node.args[0]).partition(".")[0])
    return found - STANDARD - {"lexbench", "tasks"}


def test_the_core_asks_for_fifteen_packages_by_name() -> None:
    asked = {word.split(">")[0] for word in PROJECT["dependencies"]}
    assert asked == {
        *(
            "torch",
            "transformers",
            "tokenizers",
            "huggingface-hub",
            "numpy",
            "scipy",
            "pandas",
            "pyarrow",
            "matplotlib",
        ),
        *("hydra-core", "pyyaml", "jinja2", "tqdm", "datasets", "rouge-score"),
    }


def test_what_is_imported_is_declared() -> None:
    core = declared(PROJECT["dependencies"]) | BROUGHT
    optional = set[str]().union(*(declared(words) for words in PROJECT["optional-dependencies"].values()))
    files = [*(ROOT / "lexbench").rglob("*.py"), *(ROOT / "tasks").glob("*.py")]
    odd = {str(file.relative_to(ROOT)): lost for file in files if (lost := imported(file) - core - optional - HOSTS)}
    assert not odd


def test_ours_are_found_without_being_installed_and_each_names_its_own_package() -> None:
    own = [part for part in parts.all_parts() if part.is_ours]
    folders = {place.name for place in (ROOT / "lexbench" / "parts").iterdir() if (place / "part.py").is_file()}
    assert {part.name for part in own} == folders == PROJECT["entry-points"][parts.PARTS_ENTRY_POINT_GROUP].keys()
    assert all(part.folder == ROOT / "lexbench" / "parts" / part.name for part in own)
    commands = Counter(name for part in own for name in part.commands)
    assert set(commands.values()) == {1}


def test_what_no_part_provides_names_what_is_there() -> None:
    with pytest.raises(ConfigError, match="no installed part of lexbench provides executor slurm: choose from ray"):
        parts.load_provided("executor", "slurm")
    with pytest.raises(ConfigError, match='x needs nowhere, which is not installed: pip install "lexbench'):
        parts.import_optional("nowhere", "search", "x")


def test_an_extra_that_a_message_names_brings_the_module() -> None:
    for file in (ROOT / "lexbench").rglob("*.py"):
        for node in calls_and_imports(file):
            if isinstance(node, ast.Call):
                module, extra, _ = (ast.literal_eval(each) for each in node.args)
                assert module in declared(PROJECT["optional-dependencies"][extra]), f"{file}: {module} in {extra}"


STRANGER = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "lexbench-stretch"
version = "1.0"
[project.entry-points."lexbench.parts"]
stretch = "lexbench_stretch.part:PART"
[tool.hatch.build.targets.wheel]
packages = ["lexbench_stretch"]
""",
    "lexbench_stretch/__init__.py": "",
    "lexbench_stretch/part.py": """
from lexbench.core.parts import Part
PART = Part(name="stretch", package="lexbench_stretch", commands=("lexbench_stretch.commands",))
""",
    "lexbench_stretch/helper.py": "RATIO = 2.0\n",
    "lexbench_stretch/methods/__init__.py": "",
    "lexbench_stretch/methods/stretch.py": """
'''Divide all angles.'''
from dataclasses import dataclass
from lexbench import Attention, Model
from lexbench_stretch.helper import RATIO

@dataclass(frozen=True)
class Stretch:
    '''Divide all angles by a ratio.'''
    ratio: float = RATIO

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / self.ratio)
""",
    "lexbench_stretch/configs/task/shortkey.yaml": "file: passkey.py\ndigits: 3\n",
    "lexbench_stretch/commands.py": """
'''A command of a stranger.'''
from lexbench.commands.command import Command
COMMAND = Command(name="stretch", help="say what stretch does", call=lambda options, words: print("stretched") or 0)
""",
}
SAYS = """
import lexbench
from lexbench.core.plug_in import user_code_hash
method = lexbench.method("stretch")
print(type(method).__module__, method.ratio, lexbench.task("shortkey").digits, user_code_hash(method))
"""


def build_and_install(folder: Path, ratio: str) -> dict[str, str]:
    """Build the stranger's package, install it into a folder, and give what commands print."""
    source, place = folder / "source", folder / "site"
    for name, text in STRANGER.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text.replace("2.0", ratio))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(place), str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}

    def say(*words: str) -> str:
        ended = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)
        return ended.stdout

    settings = ("method=stretch", "task=shortkey", "lengths=[128]", "n=1", "--cfg", "job")
    return {
        "python": say("-c", SAYS),
        "command": say("-m", "lexbench", "stretch"),
        "help": say("-m", "lexbench", "--help"),
        "list": say("-m", "lexbench", "list", "method"),
        "settings": say("-m", "lexbench", "run", *settings),
    }


@pytest.mark.slow
def test_a_strangers_package_adds_a_method_a_task_and_a_command(tmp_path: Path) -> None:
    one, other = build_and_install(tmp_path / "one", "2.0"), build_and_install(tmp_path / "other", "4.0")
    module, ratio, digits, code = one["python"].split()
    assert (module, ratio, digits) == ("lexbench_stretch.methods.stretch", "2.0", "3")
    assert one["command"] == "stretched\n" and "say what stretch does" in one["help"]
    assert "Divide all angles by a ratio." in one["list"] and "digits: 3" in one["settings"]
    # The helper is another module of the package: its change is another method.
    assert code != "None" and other["python"].split()[3] != code


def test_a_part_that_cannot_be_loaded_ends_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lexbench.parts]\nbroken = nowhere.part:PART\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    parts.all_parts.cache_clear()
    try:
        found = parts.all_parts()
    finally:
        parts.all_parts.cache_clear()
    assert {part.name for part in found} == PROJECT["entry-points"][parts.PARTS_ENTRY_POINT_GROUP].keys()
    assert "part broken is left out (ModuleNotFoundError" in capsys.readouterr().err
