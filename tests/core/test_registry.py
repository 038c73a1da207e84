"""The registry: names, parameters, labels, and a user's own registry."""

from pathlib import Path

import pytest

import lexbench
from lexbench import Model, Task, method
from lexbench.commands.main import main
from lexbench.core import objects, registry
from lexbench.core.named_files import only_class
from lexbench.core.plug_in import source_of_module

TASK = '''
"""Written by a user."""

from dataclasses import dataclass

from lexbench import Sample, Task


@dataclass(frozen=True)
class {name}(Task):
    """Count to a number."""

    up_to: int
    words: tuple = ("one", "two")

    def protocol(self, tokenizer):
        return "counting"

    def questions(self, tokenizer, length, n, seed):
        return []

    def score(self, question, answer):
        return Sample(index=0, cluster="0", tokens=1)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own registry, with a task of one file."""
    for group in ("task", "method", "model"):
        (tmp_path / group).mkdir()
    (tmp_path / "count.py").write_text(TASK.format(name="Count"))
    (tmp_path / "task/count.yaml").write_text(f"file: {tmp_path / 'count.py'}\nup_to: 3\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    return tmp_path


def test_a_second_yaml_of_a_name_is_refused_with_both_files(
    mine: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "task").mkdir()
    (other / "task/count.yaml").write_text("up_to: 4\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", f"{mine}:{mine}/../{mine.name}:{other}")
    assert "count" in registry.registered_names("task")
    with pytest.raises(ValueError, match="two yamls") as refused:
        registry.read_named_config("task", "count")
    assert str(refused.value) == (
        f"task count has two yamls, {mine}/task/count.yaml and {other}/task/count.yaml: rename one"
    )
    (other / "task/count.yaml").rename(other / "task/count_on.yaml")
    assert registry.read_named_config("task", "count_on") == {"up_to": 4}
    assert registry.read_named_config("task", "count")["up_to"] == 3  # a folder that is given twice is one folder


BROKEN = {
    "two yamls": "_target_: lexbench.methods.pi.Pi\n",
    "must be valid yaml": "factor: [",
    "must hold keys and values": "- factor",
    "by its aliases": "a: &a [*a]\n",
}
"""By what is said of it, what a yaml of a user may hold."""
USING = (
    "show method=NAME",
    "show method=[NAME]",
    "show method=NAME+log_n",
    "run -m method=none,NAME",
    "verify method=NAME",
)


@pytest.mark.everyday(
    "two yamls-show method=NAME",
    "by its aliases-run -m method=none,NAME",
    "must be valid yaml-verify method=NAME",
    "must hold keys and values-show method=NAME+log_n",
)
@pytest.mark.parametrize("words", USING)
@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_yaml_stops_the_commands_that_use_it(
    words: str, said: str, mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
    name = "yarn" if said == "two yamls" else "broken"
    (mine / f"method/{name}.yaml").write_text(BROKEN[said])
    assert main([*words.replace("NAME", name).split(), "--config-dir", str(mine)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("lexbench: ") and said in line and f"{mine}/method/{name}.yaml" in line


@pytest.mark.everyday(
    "two yamls-method",
    "must be valid yaml-corpus",
    "by its aliases-model",
    "must hold keys and values-task",
)
@pytest.mark.parametrize("group", ["method", "model", "task", "corpus"])
@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_yaml_leaves_other_commands_alone(
    said: str, group: str, mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
    ours = {"method": "yarn", "model": "llama2", "task": "copy", "corpus": "pg19"}
    name = ours[group] if said == "two yamls" else "broken"
    (mine / group).mkdir(exist_ok=True)
    (mine / f"{group}/{name}.yaml").write_text(BROKEN[said])
    folder = ["--config-dir", str(mine)]
    assert main(["show", "method=ntk", "model=lexlet", "length=512", *folder]) == 0
    assert registry.resolve_model_name("./folder") == ("local", "./folder")
    assert main(["list", group, *folder]) == 0
    [shown] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {name} ")]
    assert "(broken: " in shown and said in shown


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match="unknown method 'yran': did you mean yarn") as raised:
        registry.read_named_config("method", "yran")
    assert "choose from" in str(raised.value)
    assert all(name in str(raised.value) for name in registry.registered_names("method"))


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ValueError, match="unknown model 'qqqqqq': choose from"):
        registry.read_named_config("model", "qqqqqq")


def test_an_unknown_parameter_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match=r"unknown parameter method\.factr: did you mean factor\? choose from factor"):
        method("ntk", factr=8)


@pytest.mark.parts
@pytest.mark.parametrize("value", [{"a": 1}, ["a"]])
@pytest.mark.parametrize("name", ["data", "prompts"])
def test_a_mapping_or_list_is_refused_where_a_text_or_an_object_is_wanted(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^task\.{name} must be a text or null, got "):
        objects.build_object({**registry.read_named_config("task", "mrcr"), name: value}, "task")


def test_a_parameter_that_must_be_given_is_asked_for(mine: Path) -> None:
    with pytest.raises(ValueError, match=r"task needs up_to: give task\.up_to=\.\.\."):
        objects.build_object({"file": str(mine / "count.py")}, "task")


def test_a_users_task_is_found_by_its_absolute_file(mine: Path) -> None:
    assert "count" in registry.registered_names("task")
    assert {"passkey", "demo"} <= set(registry.registered_names("task"))
    task = objects.build_object(registry.read_named_config("task", "count"), "task")
    assert isinstance(task, Task)
    assert type(task).__name__ == "Count"
    assert vars(task)["up_to"] == 3
    assert objects.docstring_summary("task", "count") == "Count to a number. [up_to=3]"


def test_the_file_of_a_yaml_is_the_one_beside_it(
    mine: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours stays ours beside a user's copy of its file; of two users' files of one name each yaml has its own."""
    other = tmp_path_factory.mktemp("other")
    (other / "task").mkdir()
    for folder, name in ((mine, "One"), (other, "Two")):
        (folder / "task/passkey.py").write_text(TASK.format(name=name))
        (folder / f"task/{name.lower()}.yaml").write_text("file: passkey.py\nup_to: 3\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", f"{mine}:{other}")
    assert [type(lexbench.task(name)).__name__ for name in ("one", "two", "passkey")] == ["One", "Two", "Passkey"]
    assert objects.docstring_summary("task", "passkey").startswith("Find one random number in repeated noise")


def test_a_users_yaml_may_set_parameters_of_our_class(mine: Path) -> None:
    (mine / "method/half.yaml").write_text("_target_: lexbench.methods.pi.Pi\nfactor: 2\n")
    model = Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0)
    inv_freq = method("half").attention(model, 16).inv_freq
    assert inv_freq is not None
    assert inv_freq.tolist() == pytest.approx([0.5, 0.05, 0.005, 0.0005])


def test_a_list_in_a_yaml_becomes_a_tuple_that_a_frozen_class_can_hold(mine: Path) -> None:
    task = objects.build_object({**registry.read_named_config("task", "count"), "words": ["three", "four"]}, "task")
    assert vars(task)["words"] == ("three", "four")


def test_what_is_inserted_reaches_only_classes_that_take_it_and_gives_way_to_what_is_written() -> None:
    ntk = {"_target_": "lexbench.methods.ntk.Ntk"}
    assert vars(objects.build_object(ntk, "method", corpus="text", factor=4.0)) == {"factor": 4.0}
    assert vars(objects.build_object({**ntk, "factor": 2.0}, "method", factor=4.0)) == {"factor": 2.0}


@pytest.mark.parametrize(
    ("parameters", "label"),
    [
        ({}, "yarn"),
        ({"factor": None, "beta_fast": 32.0}, "yarn"),
        ({"factor": 8.0}, "yarn(factor=8.0)"),
        ({"truncate": False, "factor": 4}, "yarn(factor=4, truncate=False)"),
    ],
)
def test_a_label_names_the_parameters_that_differ_from_their_defaults(
    parameters: dict[str, float | None], label: str
) -> None:
    assert objects.instance_label(method("yarn", **parameters), "yarn", "method") == label


@pytest.mark.parametrize(("classes", "count"), [("", 0), (TASK.format(name="One") + TASK.format(name="Two"), 2)])
def test_a_task_file_defines_exactly_one_task(classes: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / f"defines_{count}.py"
    file.write_text(f"from lexbench import Task\n{classes}")
    with pytest.raises(ValueError, match=f"must define one class with questions\\(\\.\\.\\.\\), got {count}"):
        objects.build_object({"file": str(file)}, "task")


@pytest.mark.parametrize("file", ["/nowhere/task.py", "nothing_here.py"])
def test_a_task_file_that_is_not_there_is_said_so(file: str) -> None:
    with pytest.raises(ValueError, match=r"task file .* is not in any task/ of the registry: give its --config-dir"):
        objects.build_object({"file": file}, "task")


@pytest.mark.parametrize("target", ["lexbench.methods.yarn.Yran", "lexbench.nothing.Yarn", "Yarn"])
def test_a_target_that_cannot_be_imported_is_said_so(target: str) -> None:
    with pytest.raises(ValueError, match=f"_target_ {target} cannot be imported .*: write package.module.Class"):
        objects.build_object({"_target_": target}, "method")


def test_configs_and_tasks_are_found_beside_or_inside_the_package() -> None:
    assert (registry.asset_folder("configs") / "run.yaml").is_file()
    assert (registry.asset_folder("tasks") / "passkey.py").is_file()


HALVED = """\
from dataclasses import dataclass
from lexbench import Attention, Model


@dataclass(frozen=True)
class Halved:
    factor: float = 2.0

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / self.factor)
"""


def test_a_users_method_is_found_in_the_file_beside_its_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method/halved.py").write_text(HALVED)
    (tmp_path / "method/halved.yaml").write_text("file: halved.py\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    model = Model(name="m", trained_length=16, head_dim=4, rope_base=16.0)
    assert method("halved").attention(model, 64).as_data() == {"inv_freq": [0.5, 0.125]}
    assert objects.instance_label(method("halved", factor=4), "halved", "method") == "halved(factor=4)"


def test_a_recipe_is_not_read_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="recipe cannot be defined by a file: give _target_"):
        objects.build_object({"file": str(tmp_path / "recipe.py")}, "recipe")


@pytest.mark.parametrize("path", ["/home/someone/private/book.txt", "~/private/book.txt", "./private/book.txt"])
def test_the_label_of_a_corpus_names_no_private_folder(path: str) -> None:
    corpus = objects.build_object({"_target_": "lexbench.corpora.files.Files", "path": path, "field": "a/b"}, "corpus")
    assert objects.instance_label(corpus, "files", "corpus") == "files(path='book.txt', field='a/b')"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("llama2", ("llama2", None)),
        ("no_such_name", ("no_such_name", None)),
        ("meta-llama/Llama-2-7b-hf", ("llama2", None)),
        ("org/name", ("local", "org/name")),
        ("./folder", ("local", "./folder")),
        ("/a/b", ("local", "/a/b")),
        ("~/folder", ("local", "~/folder")),
        (".", ("local", ".")),
    ],
)
def test_a_model_is_named_by_its_yaml_or_its_path(given: str, found: tuple[str, str | None]) -> None:
    assert registry.resolve_model_name(given) == found


def test_a_yaml_whose_aliases_multiply_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]  # 10^9 values
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"bomb\.yaml stands for more than 10,000 values by its aliases"):
        registry.check_aliases(file)
    file.write_text("a: &a [1, 2]\nb: [*a, *a]\n")
    registry.check_aliases(file)
    file.write_text("a: &a [*a]\n")  # below itself
    with pytest.raises(ValueError, match="by its aliases"):
        registry.check_aliases(file)


def test_a_folder_of_the_environment_that_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for lost in ("nowhere", "file"):
        monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path / lost))
        with pytest.raises(ValueError, match=f"LEXBENCH_CONFIG_PATH .*/{lost} is no folder: give one with method/"):
            registry.registered_names("method")


def test_a_task_takes_no_mappings(tmp_path: Path) -> None:
    (tmp_path / "weighted.py").write_text(
        """from dataclasses import dataclass, field

from lexbench import Task


@dataclass(frozen=True)
class Weighted(Task):
    weights: dict[str, float] = field(default_factory=dict)

    def questions(self, tokenizer, length, n, seed):
        return []
"""
    )
    said = "task.weights must be a plain value or a list, got a mapping: make its entries parameters"
    with pytest.raises(ValueError, match=said):
        objects.build_object({"file": str(tmp_path / "weighted.py"), "weights": {"a": 1.0}}, "task")


@pytest.mark.parametrize("name", ["at", "compose", "layers", "over", "file", "name"])
def test_a_method_has_no_parameter_that_every_yaml_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`at: 64` of a yaml would set the method for 64 tokens, and never reach the class."""
    (tmp_path / "method").mkdir()
    (tmp_path / "method/halved.py").write_text(HALVED.replace("factor", name))
    (tmp_path / "method/halved.yaml").write_text("file: halved.py\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    said = f"method class .* has a parameter {name}, a key of every method's yaml: rename it"
    with pytest.raises(ValueError, match=said):
        method("halved")


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("(frozen=True)", "", "method class Halved must be frozen: write @dataclass"),
        (": float", ': "Sequence[float]"', "has an annotation that cannot be read .*'Sequence' is not defined"),
    ],
)
def test_a_class_that_changes_or_cannot_be_read_is_one_line(
    was: str, becomes: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "method").mkdir()
    assert was in HALVED
    (tmp_path / "method/halved.py").write_text(HALVED.replace(was, becomes))
    (tmp_path / "method/halved.yaml").write_text("file: halved.py\nfactor: 2.0\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    with pytest.raises(ValueError, match=said):
        method("halved")


def needed(group: str) -> str | None:
    """The method by which a class is recognised; encodings inherit theirs."""
    return None if group == "encoding" else registry.RECOGNISING_ATTRIBUTES[group]


def test_no_yaml_says_only_what_its_file_says() -> None:
    stated = {
        (group, name): registry.read_named_config(group, name)
        for group in registry.CODE_FOLDER_OF_GROUP
        for name in registry.yaml_files(group)
    }
    families = [config.get("file") for config in stated.values()]
    for (group, name), config in stated.items():
        module = str(config.get("_target_", "")).rpartition(".")[0]
        file = registry.source_of({**config, "name": name}, group) if "file" in config else source_of_module(module)
        own = file.stem == name and (only_class(file, needed(group)) or "").lower() == name.replace("_", "")
        assert len(config) > 1 or not own or families.count(f"{name}.py") > 1, f"{name}.yaml can go"


def test_a_missing_file_of_a_yaml_is_said_to_lie_beside_it(mine: Path) -> None:
    (mine / "method").mkdir(exist_ok=True)
    (mine / "method" / "lost.yaml").write_text("file: law.py\n")
    assert objects.docstring_summary("method", "lost") == f"(cannot be read: {mine / 'method' / 'law.py'})"


@pytest.mark.parts
@pytest.mark.parametrize(("name", "part"), [("aggregate", "benchmarks"), ("copy", "lab"), ("long_ppl", "search")])
def test_a_stored_job_finds_a_task_by_the_file_that_it_names(name: str, part: str) -> None:
    """Jobs hold `file: aggregate.py`, from before it lay in a part as well."""
    assert registry.read_named_config("task", name) == {"file": f"{name}.py"}
    found = registry.source_of({"name": name, "file": f"{name}.py"}, "task")
    assert found == registry.PACKAGE_FOLDER / "parts" / part / "tasks" / f"{name}.py" and found.is_file()
