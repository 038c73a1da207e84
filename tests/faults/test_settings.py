"""Words and yamls of any kind: a command ends with 0, or with 2 and one line; nothing that a yaml says is executed."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lexbench.commands import main
from lexbench.core import registry
from tests.faults.readers import called

QUICK = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=30)
NAMES = [
    *("model", "method", "task", "corpus", "backend", "lengths", "multiples", "n", "seed", "length", "encoding"),
    *("method.factor", "task.digits", "task.targets", "model.path", "model.trained_length", "backend.dtype", "a.b.c"),
    *(
        "task.suite",
        "method.compose",
        "corpus.path",
        "recipe.shape.layers",
        "+new",
        "~method",
        "++task.n",
        "méthode",
        "",
    ),
]
VALUES = [
    *("yarn", "passkey", "none", "[none,yarn]", "[passkey,{name:last_segment,targets:4}]", "null", "true", "''", '"'),
    *(
        "8",
        "-1",
        "0",
        "1e400",
        "nan",
        "inf",
        "1_000",
        "0x10",
        "10000000000000000000000",
        "[128]",
        "[[128],[[1]]]",
        "[]",
    ),
    *("{a:b}", "{name:yarn,factor:8}", "[1,", "}", "a=b=c", "${method}", "${oc.env:HOME}", "${n}", "${oc.decode:'1'}"),
    *(
        "${hydra:runtime.cwd}",
        "${a:${b}}",
        "${",
        "../../x",
        "/etc/passwd",
        "é\u2028",
        "\\",
        "choice(1,2)",
        "glob(*)",
        "a,b",
    ),
    *(
        "!!python/object/apply:os.getcwd []",
        "x" * 300,
        "range(1,3)",
        "int('1')",
        "sort(1,2)",
        " ",
        "@",
        "%s %d {0}",
        "\x1b[1m",
    ),
]
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
FITTING = [
    *(
        "method.factor=8",
        "method=yarn",
        "method=[yarn,log_n]",
        "method=yarn+log_n",
        "model.trained_length=128",
        "model=llama2",
        "model.layers=3",
    ),
    *(
        "'method.factor=${oc.env:HOME}'",
        "method.factor=${n}",
        "model.path=${oc.env:HOME}",
        "method.factor=1e400",
        "~method",
    ),
]
"""What `show`, `export` and `run` take, and `study` and `list` refuse."""
odd = st.builds(
    "{}{}{}".format,
    st.sampled_from(NAMES) | text,
    st.just("=") | st.sampled_from(["", "==", ":"]),
    st.sampled_from(VALUES) | text,
)
words = st.lists(st.sampled_from(FITTING) | st.sampled_from(FITTING) | odd, min_size=1, max_size=2)
COMMANDS = {
    "run": ["run", "--dry-run", "model=lexlet", "backend=chance", "task=passkey", "lengths=[128]", "n=1"],
    "show": ["show", "model=lexlet", "method=ntk", "length=512"],
    "export": ["export", "--to", "vllm", "model=lexlet", "method=ntk", "length=512"],
    "study": ["study", "encodings", "--dry-run"],
    "list": ["list"],
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")


def ends_well(arguments: list[str]) -> None:
    """With 0 or 2, in one line, and without a file."""
    before = set(Path().rglob("*"))
    verdict, said = called(lambda: main.main(arguments))
    assert verdict in ("read", "refused"), f"{arguments}: {verdict}\n{said}"
    assert set(Path().rglob("*")) == before, arguments


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_many_words_end_in_one_line(command: str) -> None:
    @LONG
    @given(words)
    def checked(more: list[str]) -> None:
        ends_well([*COMMANDS[command], *more])

    checked()


@pytest.mark.slow
@QUICK
@given(
    st.lists(
        st.sampled_from(["recipe", "encoding", "encoding.base", "recipe.shape", "start", "method", "corpora", "x"]),
        max_size=2,
    ),
    st.sampled_from(VALUES),
)
def test_a_training_is_never_begun_by_words_that_are_wrong(names: list[str], value: str) -> None:
    """`corpora=0` is refused at the end, whatever stands before it."""
    ends_well(["train", *(f"{name}={value}" for name in names), "corpora=0"])


FAMILIAR: list[Any] = [
    {"_target_": "lexbench.methods.yarn.Yarn"},
    {"_target_": "lexbench.methods.longrope.Longrope", "long_factors": [1.0] * 16},
    {"file": "passkey.py"},
    {"suite": ["passkey", {"name": "needle"}]},
    {"compose": ["yarn", "log_n"]},
    {"_target_": "os.system"},
    {"_target_": "lexbench.store.store.Store", "folder": "x"},
    {"_target_": ["a"]},
    {"_target_": "nowhere.X"},
    {"_target_": ""},
    {"file": "/etc/passwd"},
    {"file": "../../../x.py"},
    {"file": 3},
    {"defaults": ["/method: yarn", "_self_"]},
    {"defaults": 3},
    {"suite": "passkey"},
    {"suite": [{"name": 3}, 4, None]},
    {"compose": {"a": 1}},
]
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(VALUES) | text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, "factor", "n", "file"]) | text, inner, max_size=3)
    ),
    max_leaves=6,
)
additions = st.dictionaries(
    st.sampled_from(["factor", "n", "digits", "suite", "_target_", "${a}"]) | text, plain, max_size=2
)
SPELLED = [
    "!!python/object/apply:os.system ['touch MARK']",
    "_target_: !!python/name:os.system\n",
    "factor: !!python/object/apply:os.system ['touch MARK']",
    "a: &a [*a]\n",
    "a: &a {b: *a}\n",
    "? [1]\n: 2\n",
    "- 1\n",
    "factor: 2024-13-45\n",
    "a: 1\na: 2\n",
    "\t",
    "%YAML 9.9\n---\na: 1\n",
    "a: 1\n---\nb: 2\n",
    "<<: [1]\n",
    "'",
    "\ufeff_target_: lexbench.methods.yarn.Yarn\n",
    "_target_: lexbench.methods.yarn.Yarn\nfactor: ${oc.env:HOME}\n",
    "_target_: lexbench.methods.yarn.Yarn\nfactor: ${factor}\n",
    "[" * 600,
    "{a: " * 600,
]
USES = {
    "method": [
        ["show", "model=lexlet", "length=512"],
        ["run", "--dry-run", "backend=chance", "task=passkey", "lengths=[128]"],
    ],
    "task": [["run", "--dry-run", "model=lexlet", "backend=chance", "lengths=[128]", "n=1"]],
    "model": [["show", "method=ntk", "length=512"]],
}


def own_config(group: str, content: bytes, number: int) -> None:
    """A yaml of the user's own ends in one line, listed and used; it leaves no mark."""
    folder = Path("mine")
    (folder / group).mkdir(parents=True, exist_ok=True)
    file = folder / group / "own.yaml"
    file.write_bytes(content.replace(b"MARK", os.fsencode(Path("mark").absolute())))
    assets_path = os.environ["LEXBENCH_CONFIG_PATH"]
    try:
        use = USES[group][number % len(USES[group])]
        ends_well([*use, "--config-dir", str(folder), f"{group}=own"])
        ends_well(["list", group, "--config-dir", str(folder)])
    finally:
        os.environ["LEXBENCH_CONFIG_PATH"] = assets_path
    assert not Path("mark").exists()


@pytest.mark.slow
@pytest.mark.parametrize("group", USES)
def test_many_yamls_end_in_one_line(group: str) -> None:
    @settings(LONG, max_examples=1)
    @given(st.tuples(*([additions] * len(FAMILIAR))).filter(any))  # the first one has none
    def checked(more: tuple[dict[str, Any], ...]) -> None:
        for known, added in zip(FAMILIAR, more, strict=True):
            config = {**known, **added}
            own_config(group, yaml.safe_dump(config, allow_unicode=True).encode(), len(repr(config)))

    checked()


@pytest.mark.slow
@pytest.mark.parametrize("spelled", SPELLED, ids=range(len(SPELLED)))
def test_a_yaml_of_odd_spelling_ends_in_one_line_and_runs_nothing(spelled: str) -> None:
    own_config("method", spelled.encode(), 0)


def test_a_yaml_that_is_no_text_ends_in_one_line() -> None:
    own_config("method", random.Random(0).randbytes(200), 0)


def test_the_marks_are_looked_for_where_they_would_be(tmp_path: Path) -> None:
    """The same words do leave one, where something executes them."""
    mark = tmp_path / "made"
    yaml.unsafe_load(f"!!python/object/apply:os.system ['touch {mark}']")
    assert mark.exists()


@pytest.mark.slow
@QUICK
@given(text, text)
def test_names_are_never_paths(group: str, name: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        registry.read_named_config(group or "method", f"../{name}")
