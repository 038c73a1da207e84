"""The documentation: every command, program and file of a page is run as it stands there, in a folder of its own."""

import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.core import task
from lexbench.core.version import __version__
from lexbench.methods.composition import changing_methods
from tools.keep_records import read_records

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ["../README.md", *sorted(page.name for page in DOCS.glob("*.md"))]
OWN = ("methods.md", "tasks.md")
"""Pages whose outputs have tests of their own."""
QUICK = ("files.md", "importing.md", "index.md", "limits.md", "protocols.md", "statistics.md")
DRAWN = "reports.md"
"""The page whose reports have figures."""
FENCE = re.compile(r"^(?:`(mine/\S+)`:\n\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REASONS = ("downloads", "needs", "serves", "takes")
"""How the title begins of commands that no test can run."""
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")


@dataclass(frozen=True)
class Block:
    """A fence of a page."""

    file: str
    """Name that the page gives it, `mine/...`, or nothing."""
    kind: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """All fences, in their order."""
    return [Block(*found) for found in FENCE.findall((DOCS / page).read_text())]


def commands(block: Block) -> Iterator[tuple[str, int]]:
    """Each command line, and the exit code that the block's title promises."""
    code = re.search(r"exit code (\d+)", block.title)
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words), int(code[1]) if code else 0


def like(shown: str, printed: str) -> bool:
    """Whether a line begins as it is shown: the same words, and numbers but for another machine's last digits."""
    ours, theirs = (" ".join(line.split()) for line in (shown, printed))
    if not NUMBER.sub("#", theirs).startswith(NUMBER.sub("#", ours)):
        return False
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False)
    return all(float(one) == pytest.approx(float(other), rel=0.02, abs=0.02) for one, other in pairs)


VENVS = {"light": ".venv-light", "hf": ".venv-readme", "search": ".venv-search"}
"""Folder of the venv for each line of installation: README's without torch, README's own, and with an extra."""
SMALLEST = {
    "train": (
        'recipe.shape="{layers:1,width:32,heads:2,kv_heads:1,hidden:32}" recipe.batch=4 '
        'recipe.stages="[{steps:3,lessons:{text:1.0}}]" corpora="[{name:synthetic,count:2,words:400}]"'
    ),
    "run": "n=1 multiples=[0.5] task=last_segment",
    "versus": "n=2 multiples=[1] task=passkey",
    "search": "population=2 iterations=1 parents=2 mutations=1 crossovers=1",
    "study": "--dry-run",
}
"""By command, what makes one of a block that takes minutes take seconds. Texts and their number stay as printed."""


def python_of(line: str) -> str:
    """The Python of a venv that the Makefile makes by a line of README or docs (`make readme-venvs`), else this one."""
    own = ROOT / VENVS[line] / "bin/python"
    return str(own) if own.is_file() else sys.executable


def steps_of(page: str) -> Iterator[tuple[str, dict[str, object]]]:
    """All that a page says to do, in its order, each with the line of installation after which it is done."""
    line = "hf"
    for block in blocks(page):
        if block.file:
            yield line, {"file": block.file, "text": block.text}
        elif block.kind == "bash" and (found := re.search(r"pip install .*'\.\[(\w+)\]'", block.text)):
            line = found[1] if found[1] in VENVS else line
        elif block.kind == "sh" or (block.title.startswith("takes") and "needs" not in block.title):
            small = SMALLEST if block.title.startswith("takes") else {}
            for number, (each, code) in enumerate(commands(block)):
                words = f"{each} {small.get(each.split()[1], '')}".strip()
                yield ("light" if block.title == "light" else line), {"line": words, "code": code, "first": not number}
        elif block.kind == "python":
            yield line, {"python": block.text}
        elif block.title == "prints":
            yield line, {"prints": block.text}


def follow(page: str, folder: Path) -> dict[str, str]:
    """Do all that a page says, in its order, by the lexbench that it says to install; what each command printed."""
    text = (DOCS / page).read_text()
    if re.search("results/reference|board results", text):
        shutil.copytree(ROOT / "results" / "reference", folder / "results" / "reference")
        shutil.copy(ROOT / "results" / "ledger.jsonl", folder / "results")
    if " tests/data/" in text:
        shutil.copytree(ROOT / "tests" / "data", folder / "tests" / "data")
    said: dict[str, str] = {}
    last: list[str] = []
    asked = {"figures": page == DRAWN, "self_check": "\nlexbench verify " in text}
    for line, group in itertools.groupby(steps_of(page), lambda each: each[0]):
        steps = [step for _, step in group]
        for step, printed in zip(steps, done_by(line, steps, asked, folder), strict=True):
            if "line" in step:
                said[str(step["line"])] = printed
                last = [*([] if step["first"] else last), *printed.splitlines()]
            elif "prints" in step:
                for shown in filter(str.strip, str(step["prints"]).splitlines()):
                    assert any(like(shown, each) for each in last), f"{page} shows {shown!r}, printed was {last}"
    return said


def done_by(line: str, steps: list[dict[str, object]], asked: dict[str, bool], folder: Path) -> list[str]:
    """What each step printed, done in a folder by the Python of a line of installation."""
    (folder / ".steps.json").write_text(json.dumps({**asked, "steps": steps}))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHONPATH"))}
    if python_of(line) == sys.executable:
        clean["PYTHONPATH"] = str(ROOT)
    # -P: the folder of the tests is no place of modules.
    words = [python_of(line), "-P", str(ROOT / "tests/page_steps.py"), ".steps.json", ".outputs.json"]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    outputs: list[str] = json.loads((folder / ".outputs.json").read_text())
    return outputs


def of(said: dict[str, str], command: str, word: str) -> str:
    """What the one command of a name with a word in it printed."""
    [output] = [text for line, text in said.items() if line.startswith(f"lexbench {command} ") and word in line]
    return output


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page in QUICK else [pytest.mark.slow]) for page in PAGES if page not in OWN],
)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


def test_the_tutorial_is_kept_without_outputs_and_compiles() -> None:
    """tests/parts/exchange/programs runs it."""
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        compile("".join(cell["source"]), "tutorial.ipynb", "exec")


@pytest.mark.slow
def test_a_method_outside_the_repository_runs_is_verified_and_stands_in_the_table(tmp_path: Path) -> None:
    said = follow("methods.md", tmp_path)
    names = of(said, "list", "mine")
    assert re.search(r"^  root_pi +Squeeze positions by a power of the stretch", names, re.MULTILINE)
    assert "root_pi(power=0.25)" in of(said, "show", "root_pi")
    [row] = [line for line in of(said, "verify", "root_pi").splitlines() if line.startswith("| root_pi")]
    assert row.count("ok ") == 6 and "FAILED" not in row  # all but identity, which it does not promise
    assert re.search(r"\| root_pi +\| +\d\.\d+ \[", of(said, "run", "root_pi"))
    assert "root_pi" in (tmp_path / of(said, "report", "mine").strip()).read_text()


@pytest.mark.slow
def test_a_task_outside_the_repository_runs_and_stands_in_the_table(tmp_path: Path) -> None:
    said = follow("tasks.md", tmp_path)
    assert re.search(r"^  last_word +Repeat a secret word", of(said, "list", "mine"), re.MULTILINE)
    table = of(said, "run", "last_word")
    assert re.search(r"\| none +\| +\d\.\d+ \[.*\| +\d\.\d+ \[", table)
    assert "Chance: below 0.01" in table
    assert "a word just read" in (tmp_path / of(said, "report", "words").strip()).read_text()


SPECIAL = re.compile(r"[][(){}*?~#]")
"""What zsh reads outside of quotes: patterns, which must match a file, and comments, which its prompt does not know."""


def unquoted(text: str) -> str:
    """What stands outside of quotes, as a shell reads it."""
    return re.sub(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_shell_line_can_be_pasted_into_zsh(page: str) -> None:
    for block in blocks(page):
        if block.kind in ("sh", "bash"):
            for line in unquoted(block.text).splitlines():
                found = SPECIAL.findall(line)
                assert not found, f"{page}: quote {found} in {line!r}, or move the comment"


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("run 'lengths=[1,2]' n=2", "run  n=2"),
        ('run "a \\" [b]" c', "run  c"),
        ("run lengths=[1]", "run lengths=[1]"),
        ("run \\[ x", "run  x"),
        ("a 'b\nc [d]' e", "a  e"),
    ],
)
def test_quotes_hide_what_is_inside(line: str, bare: str) -> None:
    assert unquoted(line) == bare


@pytest.mark.parametrize("page", ["check.md", "certify.md"])
def test_what_stands_for_a_name_of_the_readers_is_explained_before_it_is_used(page: str) -> None:
    text = " ".join((DOCS / page).read_text().split())
    explained = text.index("`OWNER` is the account on the forge that holds your copy of lexbench, `COMMIT` the commit")
    assert explained < min(text.index("OWNER/lexbench"), text.index("COMMIT/" if "COMMIT/" in text else "@COMMIT"))


def test_the_line_of_readme_is_that_of_the_makefile() -> None:
    """But for -e: the tests are of the clone as it is."""
    [line] = [block.text.strip() for block in blocks("../README.md") if block.text.startswith("pip install")]
    made = (ROOT / "Makefile").read_text().replace('"', "'").replace("-e ", "")
    for venv in ("$(BIN)", "$(README)/bin"):
        assert f"\t{venv}/{line.replace('pip install', '$(PIP)')}\n" in made
    assert "`pip install -c constraints.txt .`" in (DOCS / "../README.md").read_text()
    assert "\t$(LIGHT)/bin/$(PIP) -c constraints.txt .\n" in made


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_says_why(page: str) -> None:
    for block in blocks(page):
        assert block.kind in {"sh", "bash", "python", "yaml", "text", "math"}, block
        assert (block.kind == "bash") == block.title.startswith(REASONS), block
    outside = FENCE.sub("", (DOCS / page).read_text())
    assert not re.search(r"^(    |```)", outside, re.MULTILINE), "code stands in fences of a known form"


FILE_OF_THE_TREE = re.compile(r"\b(?:lexbench|tools|tests|docs|tasks)/[\w/]+\.(?:py|md|yaml|sh)\b")


@pytest.mark.parts
def test_every_file_that_a_page_names_is_there() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *(DOCS / page for page in PAGES), *(ROOT / "results").rglob("*.md")]
    named = {(page.name, file) for page in pages for file in FILE_OF_THE_TREE.findall(page.read_text())}
    assert sorted(each for each in named if "NAME" not in each[1] and not (ROOT / each[1]).is_file()) == []


@pytest.mark.slow
def test_the_numbers_of_the_page_on_curves_are_those_of_the_committed_records() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| (\d+) % \|$", (DOCS / "reading.md").read_text(), re.MULTILINE
    )
    known = {
        (str(record.method), record.task, record.metric, record.length): record
        for record in read_records(ROOT / "results" / "reference" / "lexlet.parquet")
    }
    assert {method for method, *_ in rows} == {"none", "sliding_window", "rerope"}
    for method, *shown in rows:
        nll = [known[method, "last_segment", "nll", length].value for length in (256, 2048)]
        found = known[method, "passkey", "accuracy", 2048].value
        assert shown == [f"{nll[0]:.3f}", f"{nll[1]:.3f}", f"{100 * (found or 0):.0f}"]
    page = " ".join((DOCS / "reading.md").read_text().split())
    none, rerope = (known[method, "last_segment", "nll", 512] for method in ("none", "rerope"))
    bands = [f"{each.value:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in (none, rerope)]
    assert f"`none` has {bands[0]} and `rerope` {bands[1]}: the bands overlap" in page
    [difference] = re.findall(r"paired difference is (-[\d.]+) (\[.*?\]), far from 0", page)
    assert f"| {difference[0]}* {difference[1]} |" in (ROOT / "results/reference/lexlet.md").read_text()


def test_the_table_of_questions_has_the_fields_of_the_classes() -> None:
    page = (ROOT / "docs/adding.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .* \| `(\w+)`: (.*) \|$", page, re.MULTILINE)
    assert {row[0] for row in rows} == {kind.__name__ for kind in task.Question.__subclasses__()}
    for question, given, answer, wanted in rows:
        for name, stated in ((question, given), (answer, wanted)):
            known = {each.name for each in fields(getattr(task, name))}
            assert {*re.findall(r"`(\w+)`", stated)} <= known, name


def gate_steps(form: str) -> list[str]:
    """The commands of the page's workflow on a forge, in their order."""
    [page] = [yaml.safe_load(block.text) for block in blocks("check.md") if form in block.title]
    if form == ".github":
        return [step["run"] for step in page["jobs"]["length"]["steps"] if "run" in step]
    return [*page["length"]["before_script"], *page["length"]["script"]]


def test_both_workflows_of_the_gate_measure_what_the_baseline_was_written_from() -> None:
    """A gate of two tasks against a baseline of one is red for ever; versions, CPU wheels and caches are stated."""
    [measured] = [
        line for each in blocks("check.md") if each.kind == "sh" for line, _ in commands(each) if " run " in line
    ]
    for form in (".github", ".gitlab"):
        steps = gate_steps(form)
        [install] = [step for step in steps if step.startswith("pip ")]
        torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        assert (
            f"{torch}+cpu" in install
            and "/whl/cpu" in install
            and "constraints.txt" in install
            and "@COMMIT" in install
        )
        [run] = [step for step in steps if step.startswith("lexbench run")]
        assert shlex.split(run) == shlex.split(measured)
        assert re.search(r"cache: ?(pip|\{key)", next(each.text for each in blocks("check.md") if form in each.title))


@pytest.mark.slow
def test_the_gate_of_the_page_passes_in_a_scratch_repository_and_finds_a_planted_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page, baseline and workflows in order; then the model loses its rotary base, as in a broken export."""
    shutil.copytree(locate_checkpoint("lexbench:lexlet"), tmp_path / "model")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/lexbench").write_text(f'#!/bin/sh\nexec {sys.executable} -m lexbench "$@"\n')
    (tmp_path / "bin/lexbench").chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": "summary"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}

    def run(command: str) -> int:
        own = command.replace("model=lexlet", "model=./model")
        done = subprocess.run(["bash", "-ec", own], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode

    page = [line for each in blocks("check.md") if each.kind == "sh" for line, _ in commands(each)]
    assert [run(line) for line in page[:2]] == [0, 0]
    steps = [step for step in gate_steps(".github") if not step.startswith("pip ")]
    assert shlex.split(steps[0]) == shlex.split(page[0]), "measured already"
    assert [run(step) for step in steps[1:]] == [0, 0]
    assert "PASS: no loss found in 12 comparisons; each would have found one of " in (tmp_path / "summary").read_text()
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "rope_theta": 50.0}))
    shutil.rmtree(tmp_path / "runs")
    assert run(steps[0]) == 0
    for form in (".github", ".gitlab"):  # both measure by the same words
        [gate] = [step for step in gate_steps(form) if step.startswith("lexbench check ")]
        assert run(gate) == 1, form


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("| none | 1.00 [0.68, 1.00] |", "| none   |  1.00 [0.676, 1.00] | 0.5 |", True),
        ("| none | 1.00 [0.68, 1.00] |", "| none | 0.88 [0.68, 1.00] |", False),
        ("| none | 1.00 |", "| yarn | 1.00 |", False),
    ],
)
def test_a_line_is_as_shown_by_its_words_and_nearly_its_numbers(shown: str, printed: str, same: bool) -> None:
    assert like(shown, printed) == same


def hook(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of docs/hooks."""
    monkeypatch.syspath_prepend(str(DOCS / "hooks"))
    return importlib.import_module(name)


def test_the_page_of_commands_has_every_exit_code_that_a_help_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    head, *helps = hook("commands", monkeypatch).page().split("\n## ")
    named = set(re.findall(r"[Ee]xit code (\d+)", " ".join(helps)))
    assert {"1", "2", "3"} <= named
    assert named <= set(re.findall(r"[:;] (\d+) ", head))


@pytest.mark.parts
@pytest.mark.everyday("rope-False")
@pytest.mark.parametrize(("encoding", "heads"), [("hwfa", False), ("rope", False), ("alibi", True)])
def test_heads_of_an_encoding_that_are_alike_are_one_line(
    encoding: str, heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hwfa's window hides far keys from all heads alike; alibi's slopes differ."""
    picture = hook("gallery_encodings", monkeypatch).encoding_picture(encoding)
    assert (b"head 8" in picture) == heads


@pytest.mark.parametrize(
    ("lines", "ends"),
    [([[0.125, np.nan], [0.1, 0.1]], (-0.4, 0.625)), ([[0.0, -1000.0], [0.0, -4.0]], (-20, 0.5))],
)
def test_the_picture_of_an_encoding_cuts_no_line_at_its_top(
    lines: list[list[float]], ends: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hook("gallery_encodings", monkeypatch).limits(np.array(lines)) == pytest.approx(ends)


def test_the_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_number_of_methods_is_that_of_the_registry() -> None:
    """Counts of measurements say that they are of measured methods."""
    pages = {page: (DOCS / page).read_text(encoding="utf-8") for page in PAGES}
    said = re.findall(r"(?<!of )\b([34]\d) methods\b", " ".join(pages.values()))
    assert {*map(int, said)} == {len(changing_methods())} and len(said) >= 2
