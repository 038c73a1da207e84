"""The entry point: help, completion, and wrong words in one line."""

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.commands.command import COMMAND_HEADINGS, list_of_commands
from lexbench.core.errors import ConfigError
from lexbench.core.version import full_version
from tests.commands.program import CHANCE, Command


@pytest.mark.everyday("words0-method.factor=8")
@pytest.mark.parametrize(
    ("words", "said"),
    [(["run", "--help"], "method.factor=8"), (["list"], "Use one distance for all keys beyond the window")],
)
def test_help_and_list_are_quick_and_load_no_torch(words: list[str], said: str) -> None:
    code = f"import sys; from lexbench.commands.main import main\ntry: main({words})\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, 'hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.everyday("lexbench r", "lexbench run method=", "lexbench report ")
@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("lexbench r", {"run", "report"}, {"show"}),
        ("lexbench run method=", {"method=yarn", "method=ntk"}, set()),
        ("lexbench run -m method=yarn,ntk mu", {"multiples="}, {"model="}),
        ("lexbench run ", {"method=", "method.", "n="}, {"recipe=", "length="}),
        ("lexbench study encodings se", {"seeds="}, {"study="}),
        ("lexbench study encodings study.r", {"study.recipe="}, set()),
        ("lexbench tune space.yarn.", {"space.yarn.beta_fast."}, set()),
        ("lexbench leaderboard runs --r", {"--rows", "--rule"}, {"--margin"}),
        ("lexbench report ", set(), {"method="}),
        ("lexbench run method=[ya", set(), set()),
        ("lexbench nothing n", set(), {"n="}),
    ],
)
def test_completion_offers_what_a_command_takes(
    line: str,
    offered: set[str],
    never: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for shell, apart in (("bash", " "), ("fish", "\n")):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        assert main.main(["-sc", f"query={shell}"]) == 0
        found[shell] = {each for each in capsys.readouterr().out.strip("\n").split(apart) if each}
    assert offered <= found["bash"] and not never & found["bash"]
    assert found["fish"] == found["bash"]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_is_installed_by_a_script(shell: str, lexbench: Command) -> None:
    assert "complete" in lexbench("-sc", f"install={shell}").stdout


def test_a_users_own_folder_of_configs_is_seen_by_run_show_and_list(lexbench: Command, tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method/half.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2\n")
    environment = {"LEXBENCH_CONFIG_PATH": str(tmp_path)}
    assert "half" in lexbench("list", "method", **environment).stdout
    shown = lexbench("show", "method=half", "model=llama2", "--json", "--config-dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["attention"]["inv_freq"][0] == 0.5
    done = lexbench("run", *CHANCE, f"results={tmp_path / 'run'}", "method=half", "--config-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_argparse_errors_leave_with_two(lexbench: Command) -> None:
    for words in (["frobnicate"], ["report"], ["list", "methods"]):
        assert lexbench(*words).returncode == 2


@pytest.mark.parts("share", "import", "search", "nativ")
@pytest.mark.everyday("words0", "words3", "words7")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "method=pi", "length=-5"], "length must be a whole number of at least 1 token, got -5"),
        (["verify", "method=pi", "n=4"], "verify reads n=4 with --against only: without it a random text is read"),
        (["verify", "--against", "nativ"], "unknown backend 'nativ': did you mean native?"),
        (["share", "nowhere"], "share has nothing to write: give --card FILE, --samples DIR, or --to FORMAT --out DIR"),
        (["import", "lm_eval", "nowhere", "--into", "here"], "results nowhere do not exist"),
        (["verify", "method=pi", "length=1"], "verify needs a text of at least 2 tokens, got 1"),
        (["verify", "method=pi", "length=abc"], "length must be a whole number of at least 1 token, got abc"),
        (["show", "method=pi", f"length={10**18}"], f"length must be below 2^53 tokens, got {10**18}"),
        (["show", "method=pi", "length=0"], "length must be a whole number of at least 1 token, got 0"),
        (["search", "length=abc", "out=x.yaml"], "length must be a whole number of at least 1 token, got abc"),
        (["search", "length=512"], "out"),
    ],
)
def test_a_wrong_length_is_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    _, err = capfd.readouterr()
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.everyday("words0", "words1", "words3", "words5")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["foo"], "unknown value 'foo': choose from run, "),
        (["reprot"], "unknown value 'reprot': did you mean report? choose from run, "),
        (
            ["leaderboard", "runs", "--formt=html"],
            "unexpected argument --formt=html: did you mean --format? see lexbench",
        ),
        (["run", "--mutirun"], "unknown flag --mutirun: did you mean --multirun? see --help"),
        (["run", "--foo"], "unknown flag --foo"),
        (["run", "+foo=1"], "unknown setting foo: choose from model, method"),
        (["run", "n=x"], "n must be a whole number of at least 1, got 'x'"),
        (["run", "n=1.5"], "n must be a whole number of at least 1, got 1.5"),
        (["run", "seed=x"], "seed must be a whole number of at least 0, got 'x'"),
        (["run", "seed=[]"], "seed must be a whole number"),
        (["run", "multiples=[0.5,x]"], "multiples must be numbers above 0, got 'x'"),
        (["run", "multiples=[-1]"], "multiples must be numbers above 0, got -1"),
        (["run", "task.suite=passkey"], "a suite must be a list of tasks, got 'passkey'"),
        (["score", "longbnch", "X"], "unknown value 'longbnch': did you mean longbench? "),
        (["score", "longbench", "nowhere"], "folder nowhere does not exist"),
        (["score", "longbench", __file__], f"folder {__file__} is a file: give one with predictions"),
        (["score", "babilong", __file__], f"folder {__file__} is a file: give one with predictions"),
        (["report", __file__], f"run folder {__file__} is a file: give one that `lexbench run` has written"),
        (["view", __file__], f"run folder {__file__} is a file: give the results folder of `lexbench run`"),
        (["run", f"results={__file__}"], f"results {__file__} is a file: give results=DIR"),
        (["show", f"model={__file__}"], f"model folder {__file__} is a file: give model.path=DIR"),
        (["show", "model=/tmp.gguf"], "model file /tmp.gguf does not exist: give the path of a GGUF file"),
        (["show", "-m", "method=none"], "-m runs several jobs, and lexbench show makes one answer: leave it out"),
        (["export", "-m", "--to", "vllm"], "-m runs several jobs, and lexbench export makes one answer: leave it out"),
        (["score", "longbench", "X", "--buckets", "8,4"], "bounds must be whole numbers that ascend"),
        (["keys", "model=lexlet"], "keys needs a file to write: give out=FILE"),
        (["tune", "to=vllm"], "unknown setting to: did you mean --to vllm?\n"),
        (["identify", "model=lexlet"], "the pack comes first, got model=lexlet: lexbench identify PACK model=NAME"),
        (["run", "--dry"], "unknown flag --dry: did you mean --dry-run? see --help"),
        (["compare", "a", "b", "--c", "method=yarn"], "unexpected argument --c: did you mean --"),
        (["run", "method=none", "N=4"], "unknown setting N: did you mean n?"),
        (["run", "--method", "yarn"], "unknown flag --method: settings have no dashes, did you mean method=yarn? see"),
        (["run", "--method.factor=8", "n=1"], "settings have no dashes, did you mean method.factor=8? see"),
        (["tune", "--budget"], "settings have no dashes, did you mean budget=VALUE? see --help"),
    ],
)
def test_a_slip_is_said_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main.main(words)
    except SystemExit as ended:  # argparse's way
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_of_nothing_says_so_and_runs_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "-m", *CHANCE, f"results={tmp_path}"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "lexbench: -m has nothing to sweep, so one job runs: give it KEY=A,B"
    assert main.main(["run", "-m", "method=none,pi", *CHANCE, f"results={tmp_path}"]) == 0
    assert "nothing to sweep" not in capsys.readouterr().err


SHORT = ("task=passkey", "lengths=[128]", "n=2")
EXACT = [
    # the name is the one that is typed
    ("tune worth=x", "worth must be a number, got 'x': e.g. worth=4"),
    ("tune budget=0.5", "budget must be a text or a whole number or null, got 0.5: e.g. budget=4"),
    ("tune length=x", "length must be a whole number of at least 1 token, got x: e.g. length=32768"),
    ("search length=512 parents=x", "parents must be a whole number, got 'x': e.g. parents=4"),
    (
        "run ray.worker=2",
        "unknown setting ray.worker: did you mean ray.workers? "
        "choose from address, workers, cpus, gpus, memory_gb, tries, patience",
    ),
    (
        "tune common.factr.high=2",
        "unknown setting common.factr: did you mean common.factor? "
        "choose from factor; +common.factr.high=VALUE adds it",
    ),
    (
        "tune space.yarn.beta_fst.low=1",
        "unknown setting space.yarn.beta_fst: did you mean space.yarn.beta_fast? "
        "choose from beta_fast, beta_slow; +space.yarn.beta_fst.low=VALUE adds it",
    ),
    ("run reuse.x=1", "setting reuse has no parts, got reuse.x: give reuse=VALUE"),
    (
        "run +ray.worker=2",
        "unknown setting ray.worker: did you mean ray.workers? "
        "choose from address, workers, cpus, gpus, memory_gb, tries, patience",
    ),
    ("run method.factor=2", "unknown parameter method.factor: none has no parameters"),
    ("run task=[]", "task must name at least one task, got []: e.g. task=[last_segment,passkey]"),
    ("run method=[]", "method must name at least one method, got []: e.g. method=[none,yarn]"),
    # places are looked at before the work
    ("tune length=512 out=afile budget=2", "out afile is a file: give out=DIR, a folder or a new name"),
    (
        "tune length=512 out=afile/x budget=2",
        "out afile/x cannot be made, afile is a file where a folder is needed: give another out=DIR",
    ),
    (
        "search length=512 out=afile/x.yaml",
        "out afile/x.yaml cannot be made, afile is a file where a folder is needed: give another out=",
    ),
    (
        "keys out=afile/x.jsonl",
        "out afile/x.jsonl cannot be made, afile is a file where a folder is needed: give another out=",
    ),
    (
        "fingerprint --out afile/p",
        "--out afile/p cannot be made, afile is a file where a folder is needed: give another --out",
    ),
    (
        "versus method=yarn --out afile/x",
        "--out afile/x cannot be made, afile is a file where a folder is needed: give another --out DIR",
    ),
    ("study laboratory results=afile", "results afile is a file: give results=DIR, a folder or a new name"),
    ("versus method=yarn --out afile", "--out afile is a file: give --out DIR, a folder or a new name"),
    (
        "run results=afile/x",
        "results afile/x cannot be made, afile is a file where a folder is needed: give another results=DIR",
    ),
    (
        "run results=/proc/x",
        "results /proc/x cannot be made in /proc (No such file or directory): give another results=DIR",
    ),
    (
        "study parity --dry-run results=afile",
        "results afile is a file: give results=DIR, a folder or a new name",
    ),
    (
        "study parity --dry-run results=afile/x",
        "results afile/x cannot be made, afile is a file where a folder is needed: give another results=DIR",
    ),
    # settings are looked at before the plan
    ("run dry_run=x", "dry_run must be true or false, got 'x': e.g. dry_run=true"),
    ("run reuse=maybe", "reuse must be true or false, got 'maybe': e.g. reuse=false"),
    ("study laboratory finetuned=x", "study's finetuned must be true or false, got 'x': e.g. finetuned=true"),
    ("run ray.workers=x", "ray.workers must be a whole number of at least 1, got 'x': e.g. ray.workers=2"),
    (
        "run backend=native backend.dtyp=x",
        "unknown parameter backend.dtyp: did you mean dtype? choose from model, dtype, device",
    ),
    ("run lengths=[64] multiples=[a]", "multiples must be numbers above 0, got 'a': e.g. multiples=[0.5,1,2]"),
    ("run lengths=[64] multiples=[-1]", "multiples must be numbers above 0, got -1: e.g. multiples=[0.5,1,2]"),
    ("run lengths=[64] multiples=0", "multiples must be numbers above 0, got 0: e.g. multiples=[0.5,1,2]"),
    ("run lengths=[64] multiples=[]", "multiples must be numbers above 0, got []: e.g. multiples=[0.5,1,2]"),
    ("run multiples=[]", "multiples must be numbers above 0, got []: e.g. multiples=[0.5,1,2]"),
    ("run multiples=[0.001]", "multiples must give at least 2 tokens, got 0.001 of 256: e.g. multiples=[0.5,1,2]"),
    ("run task=passkey task.digits=0", "passkey's digits must be at least 1, got 0: e.g. task.digits=5"),
    ("keys out=k longest=x", "keys' longest must be a whole number of tokens, got 'x': e.g. longest=8192"),
    # options
    ("board emptyd", "ledger emptyd has no ledger.jsonl: begin it with lexbench board emptyd --add RUN --by NAME"),
    ("board afile", "ledger afile is a file: give the folder with ledger.jsonl and the submissions"),
    (
        "power emptyd --baseline nofile",
        "baseline nofile does not exist: write it with lexbench check RUN --baseline nofile --update",
    ),
    (
        "import lm_eval emptyd --into q --tokenizer nodir",
        "--tokenizer nodir does not exist: give --tokenizer DIR or a hub name like org/name",
    ),
    (
        "import lm_eval emptyd --into q --tokenizer afile",
        "--tokenizer afile is a file: give --tokenizer DIR or a hub name like org/name",
    ),
    (
        "versus method=yarn --against results=vs",
        "--against must name methods, got only results=vs: e.g. --against pi ntk yarn self_extend rerope",
    ),
    ("verify --against n=2", "--against must name backends, got only n=2: e.g. --against native"),
    (
        "verify --against native n=x",
        "n must be a whole number of at least 1, got 'x': samples a cell, e.g. n=32",
    ),
    (
        "figure emptyd --digits -1 --out f.tex",
        "--digits must be a whole number of at least 0, got -1: e.g. --digits 2",
    ),
    ("figure emptyd --interval side", "--interval must be one of below, beside, none, got side"),
    ("figure emptyd --out f.xyz", "--out must end in .pdf, .svg, .png or .tex, got f.xyz: rename it"),
    (
        "figure emptyd --for neurip",
        "--for must be one of neurips, iclr, icml-column, icml, acl-column, acl, ieee-column, ieee, page, slide, "
        "got neurip: did you mean neurips?",
    ),
    (
        "identify emptyd",
        "fingerprint emptyd is a folder: give the file that lexbench fingerprint --out has written",
    ),
    ("report emptyd --figures x", "--figures must be a whole number, got 'x': see lexbench report --help"),
    ("leaderboard emptyd --margin x", "--margin must be a number, got 'x': see lexbench leaderboard --help"),
    ("power emptyd --baseline q --loss x", "--loss must be a number, got 'x': see lexbench power --help"),
    ("view emptyd --port abc", "--port must be a whole number, got 'abc': see lexbench view --help"),
    (
        "export method=rerope length=1024 --to vllm",
        "vllm cannot express remapped distances (rerope): run it with backend=hf",
    ),
]
"""Commands and the whole of what they say."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and an empty folder, to stand in."""
    (tmp_path / "afile").touch()
    (tmp_path / "emptyd").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parts(
    "tune",
    "keys",
    "board",
    "search",
    "train",
    "study",
    "kv",
    "trace",
    "view",
    "identify",
    "fingerprint",
    "import",
    "share",
)
@pytest.mark.everyday(
    "tune worth=x",
    "run ray.worker=2",
    "run task=[]",
    "keys out=afile/x.jsonl",
    "run results=afile/x",
    "run lengths=[64] multiples=[a]",
    "board afile",
    "figure emptyd --for neurip",
    "export method=rerope length=1024 ",
)
@pytest.mark.parametrize(("words", "said"), EXACT, ids=lambda value: value.partition(":")[0])
def test_wrong_words_are_answered_by_one_line_and_nothing_is_written(
    words: str, said: str, lexbench: Command, places: Path
) -> None:
    done = lexbench(*words.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"lexbench: {said}\n")
    assert sorted(each.name for each in places.iterdir()) == ["afile", "emptyd"]


@pytest.mark.slow
def test_a_device_that_is_none_is_said_before_the_plan(lexbench: Command, places: Path) -> None:
    done = lexbench("run", *SHORT, "backend.device=cudaa")
    assert done.returncode == 2
    assert done.stderr.startswith("lexbench: backend.device cudaa is not available (")
    assert done.stderr.endswith("): use auto or cpu\n") and done.stderr.count("\n") == 1


def test_an_option_of_several_words_may_be_repeated() -> None:
    words = ["figure", "runs", "--task", "passkey", "needle", "--out", "a.pdf", "--task", "recall", "--out", "b.tex"]
    options = main.build_parser().parse_args(words)
    assert options.task == ["passkey", "needle", "recall"]
    assert options.out == [Path("a.pdf"), Path("b.tex")]  # in place of the default
    again = main.build_parser().parse_args(["figure", "runs"])
    assert (again.runs, again.task, again.out) == ([Path("runs")], [], [Path("figure.pdf")])


@pytest.mark.slow
def test_an_option_of_several_names_is_not_told_the_settings_behind_it(lexbench: Command, places: Path) -> None:
    done = lexbench("versus", "method=yarn", *SHORT, "backend=chance", "--against", "none", "pi", "results=vs")
    assert done.returncode == 0, done.stderr
    assert (places / "vs/versus/versus.md").is_file()
    done = lexbench("verify", "method=pi", "--against", "native,dtype=float64", "n=1", "backend=native", "length=64")
    assert done.returncode == 0, done.stderr
    assert "native(dtype=float64)" in done.stdout


@pytest.mark.parts("study")
@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("versus", "lexbench versus [-h] [KEY=VALUE ...] [--against NAME [NAME ...]] [--out DIR] [--dry-run]"),
        ("verify", "lexbench verify [-h] [KEY=VALUE ...] [--against BACKEND [BACKEND ...]] [--json]"),
        ("study", "lexbench study [-h] [--gates] [--dry-run] NAME [KEY=VALUE ...]"),
    ],
)
def test_settings_stand_before_options_and_behind_arguments(
    command: str, usage: str, lexbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert lexbench(command, "--help").stdout.splitlines()[0] == f"usage: {usage}"


@pytest.mark.parametrize(
    "error", [ValueError("math domain error"), TypeError("a slip"), AssertionError("a broken promise")]
)
def test_a_bug_of_ours_shows_its_traceback_and_says_that_it_is_ours(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def slip(*given: object) -> int:
        raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(main.COMMANDS_BY_NAME, "doctor", replace(main.COMMANDS_BY_NAME["doctor"], call=slip))
    assert main.main(["doctor", "a folder"]) == 1
    said = capsys.readouterr().err
    (log,) = tmp_path.glob("lexbench-bug-*.log")
    assert said.splitlines()[-1] == f"lexbench: this is a bug of lexbench, please report it, with {log}"
    assert "Traceback" in said and f"{type(error).__name__}: {error}" in said
    assert log.read_text().startswith(f"lexbench {full_version()}, Python ")
    assert "doctor 'a folder'" in log.read_text() and "in slip" in log.read_text()


def test_a_mistake_of_the_user_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> int:
        raise ConfigError("n must be at least 1, got 0: raise n")

    monkeypatch.setitem(main.COMMANDS_BY_NAME, "doctor", replace(main.COMMANDS_BY_NAME["doctor"], call=refuse))
    assert main.main(["doctor", "folder"]) == 2
    assert capsys.readouterr().err == "lexbench: n must be at least 1, got 0: raise n\n"


@pytest.mark.parts
def test_a_loop_of_links_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    assert main.main(["check", str(tmp_path), "--baseline", str(tmp_path / "loop.json")]) == 2
    said = capsys.readouterr().err
    assert said == f"lexbench: Too many levels of symbolic links: {tmp_path / 'loop.json'}\n"


def test_a_name_that_is_too_long_for_a_file_does_not_fill_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "a" * 100_000]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lexbench: File name too long: aaa") and len(said) < 1100


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EFBIG, "File too large"),
            "file larger than this system allows (ulimit -f) while writing results",
        ),
        (OSError(errno.ENOSPC, "No space", "out"), "disk full while writing out: free space"),
        (OSError(errno.EIO, "Input/output error"), "a file cannot be read or written (Input/output error): repeat"),
        (PermissionError(errno.EACCES, "Permission denied"), "a file cannot be read or written (Permission denied)"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "a file cannot be read or written (Not a directory)"),
        (OSError(errno.ENXIO, "No such device", "here"), "No such device: here"),
    ],
)
def test_an_error_of_the_system_names_its_file_or_says_that_it_knows_none(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> int:
        raise error

    monkeypatch.delenv("LEXBENCH_TRACEBACK", raising=False)
    compare = replace(main.COMMANDS_BY_NAME["compare"], call=fails)
    monkeypatch.setitem(main.COMMANDS_BY_NAME, "compare", compare)
    assert main.main(["compare", "a", "b"]) == 2
    told = capsys.readouterr().err
    assert said in told and "None" not in told and told.count("\n") == 1


def test_help_lists_every_command_once_under_its_heading_and_those_of_others_last(lexbench: Command) -> None:
    shown = lexbench("--help").stdout
    for name, command in main.COMMANDS_BY_NAME.items():
        assert command.heading in COMMAND_HEADINGS and len(re.findall(rf"^  {name}  ", shown, re.MULTILINE)) == 1
    first = shown.split("\n\n")[2]
    assert re.findall(r"^  (\w+) ", first, re.MULTILINE) == ["run", "report", "compare", "check", "list"]
    strange = replace(main.COMMANDS_BY_NAME["run"], name="mine", help="100 % mine", heading="none of these")
    assert list_of_commands([strange]).strip() == "Of other packages:\n  mine         100 % mine"
