"""What is read is never executed, and names from files never lead out of a folder."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core.record import Cell, Sample
from lexbench.store.store import Store
from lexbench.taskkit.longbench.examples import Source, read_examples
from tests.faults.readers import called, examples, model_folder
from tests.report.fake_run import cell, passkey_sample

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "lexbench").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "dbm"}
"""Reading what these wrote can run code."""
CALLS = {"eval", "exec", "compile", "__import__"}
"""Built in; `re.compile` and `network.eval()` are others."""
ATTRIBUTES = {
    **dict.fromkeys(("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "pty.spawn"), "a shell"),
    **dict.fromkeys(("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader"), "python tags"),
    **dict.fromkeys(("yaml.UnsafeLoader", "yaml.FullLoader", "pd.read_pickle", "pandas.read_pickle"), "objects"),
    **dict.fromkeys(("torch.jit.load", "torch.hub.load", "runpy.run_path", "runpy.run_module"), "code"),
    **dict.fromkeys(("shutil.unpack_archive", "tarfile.open", "numpy.loads"), "files anywhere"),
}
KEYWORDS = {"shell": True, "allow_pickle": True, "trust_remote_code": True, "weights_only": False}
"""What no call may say."""
LOADING = {"objects.py: exec_module", "packages.py: tarfile.open"}
"""A class that the user's own yaml names by `file:`, as an import would load it; no record or model names one. And a
package of Debian with a known SHA-256, whose members are read and never extracted."""


def named(node: ast.expr) -> str:
    """`a.b.c` of an expression; empty of others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = named(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return ""


def dangers(tree: ast.AST) -> Iterator[str]:
    """What a source must not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in modules if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Attribute) and named(node) in ATTRIBUTES:
            yield named(node)
        if isinstance(node, ast.Attribute) and node.attr in ("exec_module", "load_module", "extract", "extractall"):
            yield node.attr
        if isinstance(node, ast.Name) and node.id in CALLS and isinstance(node.ctx, ast.Load):
            yield node.id
        if isinstance(node, ast.Call):
            said = {each.arg: each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)}
            yield from (f"{name}={value}" for name, value in KEYWORDS.items() if said.get(str(name)) is value)
            if named(node.func) == "torch.load" and said.get("weights_only") is not True:
                yield "torch.load without weights_only=True"
            loads = named(node.func).endswith("from_pretrained") and "AutoModel" in named(node.func)
            data_only = said.get("use_safetensors") is True or "gguf_file" in {each.arg for each in node.keywords}
            if loads and not data_only:
                yield "weights that are no safetensors"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("import os\nos.system('x')", "os.system"),
        ("eval('1')", "eval"),
        ("f = exec", "exec"),
        ("yaml.load(text, Loader=yaml.Loader)", "yaml.load"),
        ("np.load(file, allow_pickle=True)", "allow_pickle=True"),
        ("subprocess.run('x', shell=True)", "shell=True"),
        ("torch.load(file)", "torch.load without weights_only=True"),
        ("torch.load(file, weights_only=False)", "torch.load without weights_only=True"),
        ("archive.extractall(folder)", "extractall"),
        ("AutoModelForCausalLM.from_pretrained(folder)", "weights that are no safetensors"),
    ],
)
def test_the_proof_sees_what_it_is_about(source: str, found: str) -> None:
    assert found in set(dangers(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('x')",
        "network.eval()",
        "yaml.safe_load(text)",
        "torch.load(file, weights_only=True)",
        "np.load(file)",
    ],
)
def test_the_proof_lets_pass_what_is_harmless(source: str) -> None:
    assert not set(dangers(ast.parse(source)))


@pytest.mark.slow
def test_no_source_executes_what_it_reads() -> None:
    found = {
        f"{file.name}: {danger}" for file in SOURCES for danger in dangers(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == LOADING
    assert len(SOURCES) > 200


HOSTILE = "!!python/object/apply:os.system ['touch {mark}']"


TEMPLATES = [
    "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}{{ messages[0].content }}",
    "{{ self.__init__.__globals__ }}{{ messages[0].content }}",
    "{% include '/etc/passwd' %}{{ messages[0].content }}",
]


@pytest.mark.everyday("{{ cycler.__init__.__globals__.os.system('touch MARK') }}{{ messages[0].content }}")
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_reaches_no_python(template: str, tmp_path: Path) -> None:
    model_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template.replace("MARK", str(tmp_path / "mark")))
    with pytest.raises(ValueError, match="cannot be rendered"):
        load_tokenizer(tmp_path).frame(chat=True)
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_code_beside_a_models_weights_is_not_run(tmp_path: Path) -> None:
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.runner.backend_pool import open_backend

    model_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "own.Own", "AutoConfig": "own.Own"}, "model_type": "own"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ValueError, match="model_type own"):
        open_backend(read_model({"path": str(tmp_path)}), {"_target_": "lexbench.backends.hf.backend.Hf"}, 16)
    assert not (tmp_path / "mark").exists()


def test_weights_that_are_a_pickle_are_not_read(tmp_path: Path) -> None:
    from lexbench.checkpoints.checkpoint import weight_files

    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch mark'\ntR.")
    with pytest.raises(ValueError, match="other formats can run code"):
        weight_files(tmp_path)


NAMES = [
    "../../x",
    "/tmp/x",
    "a/b",
    "..",
    ".",
    "",
    "a\\b",
    "x" * 400,
    "n\u2028l",
    "a\nb",
    "-rf",
    "CON",
    "$(touch x)",
    "a\0b",
]
"""Of models, methods, tasks."""


def outside(folder: Path) -> set[str]:
    """What lies beside a folder."""
    return {each.name for each in folder.parent.iterdir()}


def everything(folder: Path) -> set[str]:
    return {each.relative_to(folder).as_posix() for each in folder.rglob("*")}


def odd_run(folder: Path, names: list[str]) -> None:
    """A run folder of which every name is odd."""
    store = Store(folder)
    for number, name in enumerate(names):
        each: Cell = cell(f"passkey{name}", name, 256, n=2, model=name, seed=number)
        for index in range(2):
            sample: Sample = passkey_sample(index, 256, 0.1)
            store.append(each, sample)
        store.finish(each, range(2))


@pytest.mark.everyday("leaderboard", "check")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["report", "RUN", "--out", "OUT"], marks=pytest.mark.slow),
        ["leaderboard", "RUN", "--rows", "model", "--format", "html", "--out", "OUT/board.html"],
        [
            "check",
            "RUN",
            "--baseline",
            "OUT/baseline.json",
            "--update",
            "--junit",
            "OUT/junit.xml",
            "--markdown",
            "OUT/x.md",
        ],
    ],
    ids=["report", "leaderboard", "check"],
)
def test_names_in_records_lead_nowhere(words: list[str], inner: Path) -> None:
    check_names_lead_nowhere(words, inner)


def check_names_lead_nowhere(words: list[str], inner: Path) -> None:
    """A command that reads a run of odd names writes where it is told to and nowhere else."""
    run, out = inner / "run", inner / "out"
    out.mkdir()
    odd_run(run, NAMES if words[0] != "report" else NAMES[:6])
    root = inner.parents[2]
    before = everything(root)
    verdict, said = called(
        lambda: main.main([word.replace("RUN", str(run)).replace("OUT", str(out)) for word in words])
    )
    assert verdict in ("read", "refused"), said
    made = everything(root) - before
    assert {name for name in made if not name.startswith(("a/b/c/out/", "a/b/c/run/records.jsonl"))} == set()
    assert verdict == "refused" or made


def test_cells_are_named_by_a_hash_whatever_they_are_called() -> None:
    for name in NAMES:
        assert all(letter in "0123456789abcdef" for letter in cell(name, name, 256, model=name).id)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("", ".", "a\0b")])
def test_names_of_the_registry_open_no_file_elsewhere(name: str, inner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lexbench.core import registry

    (inner / "method").mkdir()
    (inner.parent / "x.yaml").write_text("_target_: lexbench.methods.pi.Pi\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(inner))
    with pytest.raises(ValueError, match="unknown method"):
        registry.read_named_config("method", name)


def test_members_of_an_archive_are_read_in_memory(inner: Path) -> None:
    import zipfile

    examples(inner)
    text = (inner / "hotpotqa.jsonl").read_text()
    with zipfile.ZipFile(inner / "data.zip", "w") as archive:
        archive.writestr("../../../hotpotqa.jsonl", text)
    root = inner.parents[2]
    before = everything(root)
    rows = read_examples(Source.find(inner / "data.zip", "hotpotqa"), False)
    assert [row["_id"] for row in rows] == ["0", "1", "2"]
    assert everything(root) == before
