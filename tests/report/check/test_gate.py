"""The gate as this repository uses it: on committed records, on its committed baseline, and as a GitHub Action."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lexbench.commands.main import main
from lexbench.methods import ntk
from lexbench.methods.rotary import ntk_base
from lexbench.stats import baseline
from lexbench.stats.records import load_cells
from lexbench.store.format import FinishedCell
from tests.report.fake_run import keep
from tests.report.outcomes import answers, folder, right

ROOT = Path(__file__).parent.parents[2]
REFERENCE = ROOT / "results/reference/lexlet"
BASELINE = ROOT / "results/baselines/lexlet.json"
ACTION = ROOT / ".github/actions/check/action.yml"
METHODS = ("none", "ntk", "yarn", "rerope")
RUN = "task=[last_segment,passkey] corpus=packages multiples=[1,4] n=64"
"""What the committed baseline was made from, under each of the methods."""


@pytest.fixture(scope="module")
def committed() -> list[FinishedCell]:
    """The committed records of a few methods."""
    return [each for each in load_cells([REFERENCE]).finished if str(each.cell.method) in METHODS]


@pytest.mark.slow
def test_a_method_that_is_not_applied_fails_with_its_lengths(
    committed: list[FinishedCell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells that say ntk and hold what none gave: the regression is what results/reference/lexlet.md tells of ntk."""
    of_none = {
        (each.cell.task, each.cell.length): each.samples for each in committed if str(each.cell.method) == "none"
    }
    broken = [
        replace(each, samples=of_none[each.cell.task, each.cell.length]) if str(each.cell.method) == "ntk" else each
        for each in committed
    ]
    keep(tmp_path / "good", committed)
    keep(tmp_path / "bad", broken)
    file = str(tmp_path / "b.json")
    assert main(["check", str(tmp_path / "good"), "--baseline", file, "--update"]) == 0
    assert main(["check", str(tmp_path / "good"), "--baseline", file]) == 0
    assert "PASS: no loss found in 40 comparisons" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "bad"), "--baseline", file, "--json"]) == 1
    page = json.loads(capsys.readouterr().out)
    lost = {(row["task"], row["method"], row["length"]) for row in page["verdicts"] if row["status"] == "regressed"}
    assert lost == {("last_segment", "ntk", length) for length in (512, 1024)} | {("passkey", "ntk", 512)}
    unsure = {
        (row["task"], row["method"], row["length"]): row["reason"]
        for row in page["verdicts"]
        if row["status"] == "not comparable"
    }
    assert unsure.keys() == {("last_segment", "ntk", 2048)}  # few documents lose much of it, and 40 are compared
    assert all("unless the noise of " in reason and " is skewed: raise n" in reason for reason in unsure.values())
    assert main(["check", str(tmp_path / "bad"), "--baseline", file]) == 1
    said = capsys.readouterr().out
    assert (
        "lost: last_segment nll of ntk on lexlet at 1024: " in said
        and "lost: passkey accuracy of ntk on lexlet at 512: " in said
    )


def test_the_committed_baseline_is_small_and_says_where_it_comes_from() -> None:
    found = baseline.read_baseline(BASELINE)
    places = {(str(each.cell.method), each.cell.task, each.cell.length) for each in found.cells}
    tasks, lengths = ("last_segment", "passkey"), (256, 1024)
    prices = {(method, task, 256) for method in ("ntk(factor=4.0)", "yarn(factor=4.0)") for task in tasks}
    assert places == {(method, task, length) for method in METHODS for task in tasks for length in lengths} | prices
    assert BASELINE.stat().st_size < 300_000
    assert {each.cell.corpus for each in found.cells} == {"packages(size=5120)", None}
    assert all(set(each) >= {"lexbench", "packages", "processor", "git", "backend"} for each in found.measured)


@pytest.mark.slow
def test_a_baseline_of_another_corpus_gives_2_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed records stand on other texts and other lengths than the committed baseline."""
    assert main(["check", str(REFERENCE), "--baseline", str(BASELINE)]) == 2
    said = capsys.readouterr().out
    assert said.startswith("NOT COMPARABLE: ") and " held, " not in said.splitlines()[0]
    assert "last_segment on stdlib nll of none on lexlet at 256, 1024; " in said


def test_wrong_input_gives_2_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder(tmp_path / "run", answers("yarn", right(8, 8)))[0])
    for words, said in (
        (
            ["--baseline", "nowhere.json"],
            "baseline nowhere.json does not exist: write it with lexbench check RUN --baseline nowhere.json --update",
        ),
        (["--baseline", str(BASELINE), "--tolerance", "nll"], "tolerance 'nll' must be METRIC=NUMBER"),
        (["--baseline", str(BASELINE), "--tolerance", "accuracy=100"], "tolerance accuracy must be below 100 points"),
        (
            ["--baseline", str(tmp_path)],
            f"baseline {tmp_path} is a folder: write it with lexbench check RUN --baseline {tmp_path} --update",
        ),
        (["--baseline", "b.json", "--certify", "./b.json"], "--certify b.json is the baseline, which it would replace"),
        (["--baseline", "b.json", "--junit", "b.json"], "--junit b.json is the baseline, which it would replace"),
        (["--baseline", "b.json", "--markdown", "b.json"], "--markdown b.json is the baseline, which it would replace"),
        (
            ["--baseline", "b.json", "--certify", "ledger.jsonl"],
            "--certify must not be a .jsonl file, got ledger.jsonl",
        ),
        (["--baseline", "b.json", "--junit", "c", "--markdown", "./c"], "--markdown c is the file of --junit"),
        (
            ["--baseline", "b.json", "--update", "--certify", "c.json"],
            "--update writes a baseline and compares nothing: leave --certify out",
        ),
        (
            ["--baseline", "b.json", "--update", "--junit", "c.xml"],
            "--update writes a baseline and compares nothing: leave --junit out",
        ),
        (
            ["--baseline", "b.json", "--update", "--allow-changed"],
            "--update writes a baseline and compares nothing: leave --allow-changed out",
        ),
        (
            ["--baseline", "b.json", "--blind"],
            "--blind accepts a baseline in which losses cannot be found",
        ),
        (
            ["--baseline", "b.json", "--update", "--json"],
            "--update writes a baseline and compares nothing: leave --json out",
        ),
        (
            ["--baseline", str(BASELINE)],
            "run has no cell of the baseline: it holds yarn passkey on lexlet, the baseline",
        ),
    ):
        if words == ["--baseline", str(BASELINE)]:
            run = str(folder(tmp_path / "other", answers("pi", right(8, 8)))[0])
            said = said.replace("yarn", "pi")
        assert main(["check", run, *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_method_that_is_broken_in_the_code_fails_the_committed_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ntk forgets its factor: lengths beyond the trained one are lost, and are named."""
    monkeypatch.setattr(ntk, "ntk_base", lambda model, factor: ntk_base(model, 1.0))
    assert main(["run", "method=ntk", *RUN.split(), f"results={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    words = ["check", str(tmp_path / "run"), "--baseline", str(BASELINE), "--tolerance", "chosen=2", "--json"]
    assert main(words) == 1
    page = json.loads(capsys.readouterr().out)
    lost = {(row["task"], row["method"], row["length"]) for row in page["verdicts"] if row["status"] == "regressed"}
    # No key is copied whole at 1,024 tokens, so none is lost; what ntk chooses there is.
    assert ("last_segment", "ntk", 1024) in lost and lost <= {
        (task, "ntk", 1024) for task in ("last_segment", "passkey")
    }
    altered = {(row["method"], length) for row in page["alterations"] for length in row["lengths"]}
    assert altered == {("ntk", 1024), ("ntk(factor=4.0)", 256)}


# The GitHub Action


@pytest.fixture
def action() -> dict[str, Any]:
    return dict(yaml.safe_load(ACTION.read_text()))


def step(action: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in action["runs"]["steps"] if each.get("name") == name)


def test_the_action_is_a_composite_one_that_uses_every_input_once(action: dict[str, Any]) -> None:
    assert set(action) == {"name", "description", "inputs", "outputs", "runs"}
    assert action["runs"]["using"] == "composite"
    assert [name for name, each in action["inputs"].items() if each.get("required")] == ["run", "baseline"]
    for name, each in action["inputs"].items():
        assert set(each) <= {"description", "required", "default"} and each["description"]
        assert ("default" in each) != each.get("required", False)
        assert f"inputs.{name} " in ACTION.read_text(), f"input {name} is not used"
    for each in action["runs"]["steps"]:
        if "run" in each:
            assert each["shell"] == "bash"
            assert "${{" not in each["run"], "an expression in a script runs whatever an input says"


def ran(script: str, folder_: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step's script as the runner runs it (`bash --noprofile --norc -eo pipefail FILE`)."""
    file = folder_ / "step.sh"
    file.write_text(script)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)]
    return subprocess.run(command, cwd=folder_, env=environment, capture_output=True, text=True, check=False)


def on_path(folder_: Path, name: str, script: str) -> None:
    file = folder_ / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("install", "there", "said"),
    [
        ("", True, None),
        ("", False, ["-c", "/action path/../../../constraints.txt", "/action path/../../..[hf]"]),
        ("lexbench==0.2 torch", True, ["lexbench==0.2", "torch"]),
        ("-e .\n--extra-index-url https://x\n", False, ["-e", ".", "--extra-index-url", "https://x"]),
        ("$(touch stolen)", False, ["$(touch", "stolen)"]),
    ],
)
def test_the_action_installs_what_it_is_told(
    action: dict[str, Any], tmp_path: Path, install: str, there: bool, said: list[str] | None
) -> None:
    on_path(tmp_path, "python", 'printf "%s\\n" "$@" > installed')
    if there:
        on_path(tmp_path, "lexbench", "true")
    paths = f"{tmp_path}/bin:/usr/bin:/bin"
    done = ran(
        step(action, "Install lexbench")["run"], tmp_path, PATH=paths, INSTALL=install, SOURCE="/action path/../../.."
    )
    assert done.returncode == 0, done.stderr
    file = tmp_path / "installed"
    head = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    assert (file.read_text().splitlines() if file.exists() else None) == (said and head + said)
    assert not (tmp_path / "stolen").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tolerance", "code", "summary"),
    [
        ("", 1, "## lexbench check: REGRESSED: 1 regressed"),
        ("accuracy=90", 0, "## lexbench check: PASS: no loss found in 1 comparison"),
        ("accuracy=1\nrouge=2", 2, "## lexbench check: NOT COMPARABLE: unknown metric rouge: choose from accuracy"),
    ],
)
def test_the_action_checks_and_says_so(
    action: dict[str, Any], tmp_path: Path, tolerance: str, code: int, summary: str
) -> None:
    old, new = answers("yarn", right(16, 16)), answers("yarn", right(4, 16))
    baseline.update_baseline(folder(tmp_path / "old", old), tmp_path / "b.json")
    folder(tmp_path / "a run", new)
    on_path(tmp_path, "lexbench", f'exec {sys.executable} -m lexbench "$@"')
    (tmp_path / "summary").write_text("before\n")
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(tmp_path)}
    asked = {"RUN": "a run", "BASELINE": "b.json", "TOLERANCE": tolerance, "JUNIT": "out/check.xml"}
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    done = ran(step(action, "Check")["run"], tmp_path, **environment, **asked, **files)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "output").read_text() == f"exit-code={code}\n"
    assert (tmp_path / "summary").read_text().startswith(f"before\n{summary}")
    assert ("::error title=lexbench check" in done.stdout) == (code != 0)
    assert (tmp_path / "out/check.xml").exists() == (code != 2)


# From another repository

FORMS = {"github": ACTION, "gitlab": ROOT / ".gitlab/check.yml"}
MEASURED = "model=lexlet task=passkey lengths=[80] n=8 corpus=synthetic"


def filled(text: str, values: dict[str, str]) -> str:
    """A value of a step with its expressions replaced, as the forge does."""
    return re.sub(r"\$(?:\{\{|\[\[) ([\w.]+) (?:\}\}|\]\])", lambda found: values[found[1]], text)


def steps_of(form: str, values: dict[str, str]) -> list[tuple[str, dict[str, str], bool]]:
    """Scripts of a forge's form in their order, their environment, and whether they run after a failure."""
    if form == "github":
        steps = [each for each in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if "run" in each]
        if not values["inputs.settings"]:
            steps = [each for each in steps if each.get("if") != "inputs.settings != ''"]
        environments = [{name: filled(value, values) for name, value in each["env"].items()} for each in steps]
        always = ["always()" in each.get("if", "") for each in steps]
        return list(zip([each["run"] for each in steps], environments, always, strict=True))
    _, jobs = yaml.safe_load_all(FORMS[form].read_text())
    job = jobs["lexbench-check"]
    environment = {name: filled(value, values) for name, value in job["variables"].items()}
    return [("\n".join(job["script"]), environment, False), ("\n".join(job["after_script"]), environment, True)]


def followed(form: str, place: Path, environment: dict[str, str], values: dict[str, str]) -> int:
    """Exit code of the first step that fails, after all that run; 0."""
    code = 0
    for script, own, always in steps_of(form, values):
        if code == 0 or always:
            done = ran(script, place, **environment, **own)
            code = code or done.returncode
    return code


@pytest.mark.parametrize(("code", "goes_on"), [(0, True), (2, False), (3, True)])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_checks_a_run_in_which_all_cells_are_refused(
    form: str, tmp_path: Path, code: int, goes_on: bool
) -> None:
    on_path(tmp_path, "lexbench", f"echo $1 >> asked; if [ $1 = run ]; then exit {code}; fi")
    on_path(tmp_path, "python", "true")
    if form == "github":
        steps = [each["run"] for each in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if "run" in each]
    else:
        steps = ["\n".join(list(yaml.safe_load_all(FORMS[form].read_text()))[1]["lexbench-check"]["script"])]
    files = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "RUNNER_TEMP": str(tmp_path), "RUN": "r", **files}
    ended = next((each for script in steps if (each := ran(script, tmp_path, **environment).returncode)), 0)
    assert ended == (0 if goes_on else 2)
    assert (tmp_path / "asked").read_text().split() == (["run", "check"] if goes_on else ["run"])


@pytest.mark.parametrize("form", FORMS)
def test_a_form_documents_its_inputs_and_uses_each(form: str) -> None:
    text = FORMS[form].read_text()
    page = next(iter(yaml.safe_load_all(text)))
    inputs = page["inputs"] if form == "github" else page["spec"]["inputs"]
    for name, each in inputs.items():
        assert each["description"].endswith(".") and re.search(rf"inputs\.{name}\b", text)


def test_gitlab_keeps_the_certificate_and_has_the_inputs_that_the_page_names(tmp_path: Path) -> None:
    page, jobs = yaml.safe_load_all(FORMS["gitlab"].read_text())
    job = jobs["lexbench-check"]
    (tmp_path / "mine.json").write_text("proven")
    for certify, kept in (("", False), ("mine.json", True), ("lexbench-certificate.json", True)):
        done = ran("\n".join(job["after_script"]), tmp_path, PATH="/usr/bin:/bin", CERTIFY=certify)
        assert done.returncode == 0
        assert [name for name in job["artifacts"]["paths"] if (tmp_path / name).exists()] == (
            ["lexbench-certificate.json"] if kept else []
        )
    said = (ROOT / "docs/certify.md").read_text().split("The same on GitLab")[1].split("The certificate is")[0]
    assert set(re.findall(r"`([a-z]+)`", said)) == set(page["spec"]["inputs"])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_another_repository_is_gated_by_the_forms_own_steps(form: str, tmp_path: Path) -> None:
    """A scratch repository: lexbench is installed by the step, measures, holds; then a proof is asked, and fails."""
    place, site = tmp_path / "their repository", tmp_path / "site"
    place.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=place, check=True)
    on_path(tmp_path, "python", f'exec {sys.executable} "$@"')
    for name in ("gh", "curl"):  # the forge's own, which write down what they are asked
        on_path(tmp_path, name, f'printf "%s\\n" "$@" >>"{tmp_path}/{name}.said"')
    environment = {
        **{"PATH": f"{site}/bin:{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(site), "HOME": str(tmp_path)},
        # Dependencies are those of the tests; the package itself is built and installed.
        **{"PIP_TARGET": str(site), "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"},
        **{"PIP_COMPILE": "0", "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output")},
        **{"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        **{"LEXBENCH_TOKEN": "t", "CI_MERGE_REQUEST_IID": "7", "CI_API_V4_URL": "api", "CI_PROJECT_ID": "3"},
    }
    inputs = {"run": "runs/gate", "baseline": "baseline.json", "settings": MEASURED, "tolerance": "accuracy=40"}
    inputs |= {"certify": "", "comment": "true", "junit": "check.xml", "install": str(ROOT), "image": "python"}
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {"github.action_path": str(ACTION.parent), "github.token": "t", "github.repository": "they/theirs"}
    values |= {"github.event.pull_request.number": "7"}
    main(["run", *MEASURED.split(), f"results={tmp_path / 'first'}"])
    main(["check", str(tmp_path / "first"), "--baseline", str(place / "baseline.json"), "--update"])
    assert followed(form, place, environment, values) == 0
    assert (site / "lexbench" / "__init__.py").is_file()
    assert "lexbench check: PASS" in (tmp_path / "summary").read_text() if form == "github" else True
    said = (tmp_path / ("gh.said" if form == "github" else "curl.said")).read_text()
    assert (
        "repos/they/theirs/issues/7/comments" if form == "github" else "api/projects/3/merge_requests/7/notes"
    ) in said
    again = {**values, "inputs.certify": "c.json", "inputs.tolerance": ""}
    if form == "github":  # the action installs and measures nothing twice
        again |= {"inputs.install": "", "inputs.settings": ""}
    assert followed(form, place, environment, again) == 2
    assert json.loads((place / "c.json").read_text())["certified"] is False
