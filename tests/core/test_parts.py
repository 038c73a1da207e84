"""Parts: what may be imported, what must be declared, and a package of a stranger, built and installed."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from lexbench.core import parts
from lexbench.core.errors import ConfigError
from lexbench.core.extras import EXTRA_OF_MODULE, import_optional, install_command

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
    """Nodes of a file that import, or call `import_optional` with names."""
    kinds = (ast.Import, ast.ImportFrom)
    nodes = ast.walk(ast.parse(file.read_text()))
    return [node for node in nodes if isinstance(node, kinds) or asks_for_optional(node)]


def asks_for_optional(node: ast.AST) -> bool:
    """Whether a node calls `import_optional` with three names."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", None) == "import_optional"
    return is_call and all(isinstance(each, ast.Constant) for each in getattr(node, "args", ()))


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports, by a statement or by `import_optional`."""
    found = set[str]()
    for node in calls_and_imports(file):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call):
            found.add(ast.literal_eval(node.args[0]).partition(".")[0])
    return found - STANDARD - {"lexbench", "tasks"}


def test_the_core_asks_for_twelve_packages_and_none_that_holds_a_model() -> None:
    asked = declared(PROJECT["dependencies"])
    assert len(PROJECT["dependencies"]) <= 12
    assert not asked & {"torch", "transformers", "datasets", "accelerate", "safetensors"}
    with_models = declared(PROJECT["optional-dependencies"]["hf"])
    assert with_models == {"torch", "transformers", "datasets"}
    for extra in ("dev", "gguf", "lm_eval", "models", "search"):
        assert with_models <= declared(PROJECT["optional-dependencies"][extra]), extra


def test_what_is_imported_is_declared() -> None:
    core = declared(PROJECT["dependencies"]) | BROUGHT
    optional = set[str]().union(*(declared(words) for words in PROJECT["optional-dependencies"].values()))
    files = [*(ROOT / "lexbench").rglob("*.py"), *(ROOT / "tasks").glob("*.py")]
    odd = {str(file.relative_to(ROOT)): lost for file in files if (lost := imported(file) - core - optional - HOSTS)}
    assert not odd


@pytest.mark.parts
def test_ours_are_found_without_being_installed_and_each_names_its_own_package() -> None:
    own = [part for part in parts.all_parts() if part.is_ours]
    folders = {place.name for place in (ROOT / "lexbench" / "parts").iterdir() if (place / "part.py").is_file()}
    assert {part.name for part in own} == folders == PROJECT["entry-points"][parts.PARTS_ENTRY_POINT_GROUP].keys()
    assert all(part.folder == ROOT / "lexbench" / "parts" / part.name for part in own)
    commands = Counter(name for part in own for name in part.commands)
    assert set(commands.values()) == {1}


@pytest.mark.parts
def test_what_no_part_provides_names_what_is_there() -> None:
    with pytest.raises(ConfigError, match="no installed part of lexbench provides executor slurm: choose from ray"):
        parts.load_provided("executor", "slurm")
    remedy = r"in a clone of lexbench, pip install -c constraints.txt '\.\[search\]'$"
    with pytest.raises(ConfigError, match=f"x needs nowhere, which is not installed: {remedy}"):
        import_optional("nowhere", "search", "x")


def test_an_extra_that_a_message_names_brings_the_module() -> None:
    for module, extra in EXTRA_OF_MODULE.items():  # what torch and transformers bring, they bring
        assert module in declared(PROJECT["optional-dependencies"][extra]) | {"networkx", "safetensors"}
    for file in (ROOT / "lexbench").rglob("*.py"):
        for node in calls_and_imports(file):
            if isinstance(node, ast.Call):
                module, extra, _ = (ast.literal_eval(each) for each in node.args)
                assert module.partition(".")[0] in declared(PROJECT["optional-dependencies"][extra]), (
                    f"{file}: {module} in {extra}"
                )


def test_a_line_that_installs_is_that_of_readme_and_names_an_extra() -> None:
    """No index holds lexbench: `pip install "lexbench[...]"` cannot work, wherever it stands."""
    assert install_command("hf") in (ROOT / "README.md").read_text().splitlines()
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "tools").iterdir()]
    files += [each for name in ("lexbench", "configs") for each in (ROOT / name).rglob("*.[py][ya]*") if each.is_file()]
    for file in files:
        text = file.read_text(errors="replace") if file.suffix in (".md", ".py", ".yaml", ".sh") else ""
        assert not re.search(r"pip install ['\"]?lexbench", text), file
        for extra in re.findall(r"'\.\[(\w+)\]'", text):
            assert extra in PROJECT["optional-dependencies"], (file, extra)


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


PART = "from lexbench.core.parts import Part\nPART = Part(name='odd', package='odd', {})\n"
COMMAND = (
    "from lexbench.commands.command import Command\n"
    "def arguments(parser):\n    {}\ndef call(options, words):\n    {}\n"
    "COMMAND = Command(name='odd', help='odd', call=call, arguments=arguments)\n"
)


def said_beside(
    folder: Path, part: str, command: str, *words: str, module: str = ""
) -> "subprocess.CompletedProcess[str]":
    """What a command says where a stranger's package is installed: its part, its command, another module of it."""
    info = folder / "odd-1.0.dist-info"
    for place, text in {
        info / "METADATA": "Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n",
        info / "entry_points.txt": "[lexbench.parts]\nodd = odd.part:PART\n",
        folder / "odd/__init__.py": "",
        folder / "odd/part.py": part,
        folder / "odd/command.py": command,
        folder / "odd/given.py": module,
    }.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    run = [sys.executable, "-m", "lexbench", *words]
    return subprocess.run(run, env=environment, cwd=folder, capture_output=True, text=True)


@pytest.mark.parts
@pytest.mark.everyday("exit", "module_exit")
@pytest.mark.parametrize(
    ("part", "command", "said"),
    [
        ("import sys; sys.exit(0)", "", "part odd is left out (fails with SystemExit (0) in part.py, line 1)"),
        ("import os; os._exit(0)", "", "part odd is left out (fails with SystemExit (os._exit(0))"),
        ("class Odd(BaseException): ...\nraise Odd", "", "part odd is left out (fails with Odd"),
        ("PART = 5", "", "odd.part:PART is no lexbench.core.parts.Part"),
        (PART.format("commands='odd.command'"), "", "commands must list modules, got 'odd.command'"),
        (PART.format("provides={'executor': 'odd'}"), "", "provides must map (kind, name) to module:attribute"),
        (
            PART.format("commands=['odd.command']"),
            "import sys; sys.exit(0)",
            "odd's command module odd.command is left",
        ),
        (PART.format("commands=['odd.command']"), "raise OSError('x')", "command module odd.command is left out (x)"),
        (PART.format("commands=['odd.command']"), "COMMAND = 5", "COMMAND is no lexbench.commands.command.Command"),
        (PART.format("commands=['odd.command']"), COMMAND.format("1 / 0", "return 0"), "fails with ZeroDivisionError"),
    ],
    ids=[
        "exit",
        "exit_of_os",
        "base",
        "none",
        "text",
        "mapping",
        "module_exit",
        "module_file",
        "module_none",
        "options",
    ],
)
def test_a_part_that_fails_or_ends_the_process_leaves_the_exit_code(
    part: str, command: str, said: str, tmp_path: Path
) -> None:
    """A check that cannot be made is red: with sys.exit(0) in a part it was green, with other faults a traceback."""
    done = said_beside(tmp_path, part, command, "check", "nowhere", "--baseline", "nothing.json")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    first, last = done.stderr.strip().splitlines()
    assert said in first and first.endswith(": mend or uninstall it")
    assert last.startswith("lexbench: ") and "not" in last


def test_what_a_part_prints_is_not_in_json(tmp_path: Path) -> None:
    part = "print('hello')\n" + PART.format("commands=['odd.command']")
    facts = (
        "method=ntk",
        "model.path=null",
        "model.head_dim=32",
        "model.rope_base=10000",
        "model.trained_length=256",
        "length=512",
    )
    command = "print('hello')\n" + COMMAND.format("print('hello')", "return 0")
    done = said_beside(tmp_path, part, command, "show", *facts, "--json")
    assert done.returncode == 0 and isinstance(json.loads(done.stdout), dict)
    assert done.stderr.count("hello") >= 3


@pytest.mark.parts
def test_a_command_of_others_that_fails_is_no_bug_of_lexbench(tmp_path: Path) -> None:
    command = COMMAND.format("pass", "return 1 / 0")
    done = said_beside(tmp_path, PART.format("commands=['odd.command']"), command, "odd")
    line = "lexbench: part odd, command odd fails with ZeroDivisionError (division by zero) in command.py, line 5\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.everyday("module")
@pytest.mark.parametrize(
    "given",
    ["import sys; sys.exit(0)", "import sys\nprint(5)\ndef settings_of(job): sys.exit(0)"],
    ids=["module", "call"],
)
def test_an_executor_of_others_that_fails_ends_only_runs_that_ask_for_it(given: str, tmp_path: Path) -> None:
    part = PART.format("provides={('executor', 'odd'): 'odd.given'}")
    words = ["run", "task=passkey", "lengths=[64]", "n=1", "--dry-run"]
    done = said_beside(tmp_path, part, "", *words, module=given)
    assert done.returncode == 0, done.stderr
    assert "executor odd is left out (part odd's executor odd" in done.stderr and "SystemExit (0)" in done.stderr
    done = said_beside(tmp_path, part, "", *words, "executor=odd", module=given)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("lexbench: part odd's executor odd")


@pytest.mark.parts
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
    assert (
        "part broken is left out (fails with ModuleNotFoundError (No module named 'nowhere')" in capsys.readouterr().err
    )
