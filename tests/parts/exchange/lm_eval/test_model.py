"""The harness itself, run for real through our model; every number again from transformers' own logits."""

import functools
import importlib.metadata
import importlib.util
import json
import logging
import math
import runpy
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.task import GenerateAnswer
from lexbench.parts.exchange import lm_eval as harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"),
]
ROOT = Path(__file__).parents[4]
LEXLET = ROOT / "lexbench" / "lexlet"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
BOS = 0
TEXT = "import math\n\ndef area(radius):\n    return math.pi * radius ** 2\n\nThe circle is round, and so on. " * 12
"""More than two windows of lexlet's 256 tokens."""


@functools.cache
def network(yarn: bool = True) -> Any:
    """The checkpoint in transformers, under its own YaRN or unchanged."""
    from transformers import AutoModelForCausalLM

    changed = {"rope_parameters": YARN, "max_position_embeddings": 1024} if yarn else {}
    return AutoModelForCausalLM.from_pretrained(LEXLET, dtype=torch.float32, **changed).eval()


def from_logits(tokens: Sequence[int], start: int, yarn: bool = True) -> tuple[float, bool]:
    """ln p of tokens[start:] and whether each is the argmax, from one forward pass of transformers."""
    with torch.inference_mode():
        rows = network(yarn)(torch.tensor([list(tokens)])).logits[0, start - 1 : -1].double().log_softmax(-1)
    targets = torch.tensor(list(tokens[start:]))
    return float(rows.gather(1, targets[:, None]).sum()), bool((rows.argmax(-1) == targets).all())


def tokens_of(text: str) -> list[int]:
    return [int(i) for i in load_tokenizer(LEXLET).encode(text).ids]


def rolled(text: str, size: int) -> float:
    """ln p of a text in windows of `size` tokens read at once; the last one is filled up with what is before it."""
    tokens = tokens_of(text)
    begun, total = [BOS, *tokens], 0.0
    for begin in range(0, len(tokens), size):
        end = min(begin + size, len(tokens))
        first = max(0, end - size) if begin else 0
        total += from_logits(begun[first : end + 1], begin + 1 - first)[0]
    return total


@functools.cache
def ours(**arguments: Any) -> Any:
    """Our model as the harness makes it: by name, with its own arguments beside the user's."""
    harness.register_model()
    from lm_eval.api.registry import get_model

    given = {"model": "lexlet", "method": "yarn", "factor": 4, "max_length": 300, **arguments}
    return get_model("lexbench").create_from_arg_obj(given, {"batch_size": 1, "device": "cuda:0"})


def request(*args: Any, task: str = "mine") -> Any:
    return SimpleNamespace(args=args, task_name=task)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of each kind, from local files."""
    folder = tmp_path_factory.mktemp("tasks")
    documents: dict[str, list[dict[str, Any]]] = {
        "choice": [
            {"q": "import numpy as", "choices": [" np", " a sky and some", " 7"], "gold": 0},
            {"q": "def f(x): return ", "choices": ["x", "None"], "gold": 1},  # its last blank is the answer's
            {"q": "", "choices": ["import", "zebra"], "gold": 1},
        ],
        "rolling": [{"text": TEXT}, {"text": "Short."}],
        "writing": [{"q": "import numpy as", "a": "no idea"}, {"q": "for i in", "a": ""}],
    }
    kinds = {
        "choice": "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: choices\ndoc_to_target: gold\n"
        "metric_list: [{metric: acc}]\n",
        "rolling": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list: [{metric: bits_per_byte}]\n",
        "writing": "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "generation_kwargs: {max_gen_toks: 12, until: [' the'], do_sample: false}\n"
        "metric_list: [{metric: exact_match}]\n",
    }
    for name, rows in documents.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        data = (
            f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / name}.jsonl}}}}\ntest_split: test\n"
        )
        (folder / f"{name}.yaml").write_text(f"task: lexbench_{name}\ntarget_delimiter: ''\n{data}{kinds[name]}")
    return folder


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the harness's own tasks, of which there are 14,000."""
    import lm_eval.tasks

    monkeypatch.setattr(
        lm_eval.tasks, "TaskManager", functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    )


def logged(folder: Path, name: str) -> list[dict[str, Any]]:
    """The logged samples of a task."""
    [file] = folder.rglob(f"samples_lexbench_{name}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("few_tasks", "one_thread")
def test_the_command_line_scores_and_writes_under_a_method(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ",".join(f"lexbench_{name}" for name in ("choice", "rolling", "writing"))
    words = ["--model", "lexbench", "--model_args", "model=lexlet,method=yarn,factor=4,max_length=300"]
    words += ["--tasks", names, "--include_path", str(tasks), "--output_path", str(tmp_path), "--log_samples"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("lexbench.parts.exchange.lm_eval", run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().err
    [file] = tmp_path.rglob("results_*.json")
    page = json.loads(file.read_text())

    right = []
    pairs = [("import numpy as", " np| a sky and some| 7"), ("def f(x): return", " x| None"), ("", "import|zebra")]
    for sample, (context, choices) in zip(logged(tmp_path, "choice"), pairs, strict=True):
        start, totals = 1 + len(tokens_of(context)), []
        for [[total, best]], choice in zip(sample["resps"], choices.split("|"), strict=True):
            wanted, is_best = from_logits([BOS, *tokens_of(context + choice)], start)
            assert float(total) == pytest.approx(wanted, abs=1e-3)
            assert best == str(is_best)
            totals.append(wanted)
        right.append(int(np.argmax(totals)) == sample["doc"]["gold"])
    assert page["results"]["lexbench_choice"]["acc,none"] == pytest.approx(np.mean(right))

    totals = [rolled(TEXT, 300), rolled("Short.", 300)]
    for sample, total in zip(logged(tmp_path, "rolling"), totals, strict=True):
        assert float(sample["resps"][0][0]) == pytest.approx(total, rel=1e-5)
    bits = -sum(totals) / math.log(2) / len((TEXT + "Short.").encode())
    assert page["results"]["lexbench_rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)

    for sample in logged(tmp_path, "writing"):
        prompt = torch.tensor([[BOS, *tokens_of(sample["doc"]["q"])]])
        with torch.inference_mode():
            new = network().generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
        assert sample["resps"] == [[load_tokenizer(LEXLET).decode(new.numpy()).split(" the")[0]]]
    matched = [sample["resps"][0][0] == sample["doc"]["a"] for sample in logged(tmp_path, "writing")]
    assert page["results"]["lexbench_writing"]["exact_match,none"] == sum(matched) / 2

    about = page["config"]["lexbench"]
    assert about["method"].items() >= {"name": "yarn", "factor": 4, "beta_fast": 32.0}.items()
    assert (about["label"], about["length"], about["model"]["trained_length"]) == ("yarn(factor=4)", 300, 256)
    assert (about["backend"]["name"], sorted(about["attention"])) == ("hf", ["inv_freq", "scale"])
    assert about["truncated"] == {"loglikelihood": {}, "generate_until": {}}


def test_without_a_method_all_is_as_the_harness_own_model_has_it(tasks: Path) -> None:
    """But that a tokenizer's BOS is before a rolled text once, and no target: theirs is told to add none."""
    harness.register_model()
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def measured(kind: str, *names: str, **arguments: Any) -> list[list[Any]]:
        arguments, wanted = {**arguments, "max_length": 256, "dtype": "float32"}, [f"lexbench_{name}" for name in names]
        found = lm_eval.simple_evaluate(
            kind, arguments, tasks=wanted, task_manager=manager, device="cpu", bootstrap_iters=0
        )
        return [[sample["filtered_resps"] for sample in found["samples"][name]] for name in wanted]

    writing, choice, rolling = measured("lexbench", "writing", "choice", "rolling", model="lexlet")
    theirs = measured("hf", "writing", "choice", pretrained=str(LEXLET))
    assert writing == theirs[0]
    for one, other in zip(choice, theirs[1], strict=True):
        assert [best for _, best in one] == [best for _, best in other]
        np.testing.assert_allclose([total for total, _ in one], [total for total, _ in other], atol=1e-4)
    [theirs] = measured("hf", "rolling", pretrained=str(LEXLET), add_bos_token=False)
    np.testing.assert_allclose(np.ravel(rolling).astype(float), np.ravel(theirs).astype(float), rtol=1e-6, atol=1e-4)


@pytest.mark.usefixtures("few_tasks")
def test_a_wrong_argument_is_one_line(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    words = ["run", "--model", "lexbench", "--model_args", "model=lexlet,fctor=4"]
    assert harness.main([*words, "--tasks", "lexbench_choice", "--include_path", str(tasks)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lexbench: unknown argument fctor: choose from model, path")


def test_long_requests_lose_their_first_tokens_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    lm = ours(dtype="float32")  # a model of its own, whose counts nobody else adds to
    text = TEXT.rstrip()
    tokens, after = tokens_of(text), tokens_of(text + " zebra")
    caplog.set_level(logging.WARNING)
    long, fits = request(text, " zebra"), request("import", " math")
    found = lm.loglikelihood([fits, long, long], disable_tqdm=True)
    kept, start = after[-301:], 301 - (len(after) - len(tokens))  # 300 are read
    assert found[1][0] == found[2][0] == pytest.approx(from_logits(kept, start)[0], abs=2e-3)
    exact = request(load_tokenizer(LEXLET).decode(kept[-300:-1]), load_tokenizer(LEXLET).decode(kept[-1:]))
    assert len(lm.tok_encode(exact.args[0] + exact.args[1])) == 301  # as much as fits: the last one is not read
    lm.loglikelihood([exact], disable_tqdm=True)
    assert "2 of 3 loglikelihood requests are longer than max_length=300" in caplog.text
    [written] = lm.generate_until([request(text, {"max_gen_toks": 20}, task="other")], disable_tqdm=True)
    prompt = torch.tensor([tokens[-280:]])
    with torch.inference_mode():
        new = network().generate(prompt, max_new_tokens=20, do_sample=False)[0, 280:]
    assert written == load_tokenizer(LEXLET).decode(new.numpy())
    assert lm.get_model_info()["lexbench"]["truncated"] == {
        "loglikelihood": {"mine": 2},
        "generate_until": {"other": 1},
    }


def test_what_cannot_be_asked_is_said_in_one_line() -> None:
    lm = ours()
    with pytest.raises(ValueError, match="max_gen_toks must be at least 1 and below max_length 300, got 300"):
        lm.generate_until([request("a", {"max_gen_toks": 300})])
    with pytest.raises(ValueError, match="the task samples"):
        lm.generate_until([request("a", {"do_sample": True})])
    with pytest.raises(ValueError, match=r"a continuation of \d+ tokens does not fit max_length=300"):
        lm.loglikelihood([request("a", TEXT)], disable_tqdm=True)
    with pytest.raises(ValueError, match="the continuation '' adds no token"):
        lm.loglikelihood([request("a", "")], disable_tqdm=True)
    with pytest.raises(ValueError, match="lexlet has no chat template: leave out --apply_chat_template"):
        lm.apply_chat_template([{"role": "user", "content": "a"}])


def test_nothing_before_a_text_is_bos() -> None:
    lm = ours()
    assert lm.loglikelihood_rolling([request("")], disable_tqdm=True) == [0.0]
    blank = lm.loglikelihood([request("  ", "import")], disable_tqdm=True)[0]  # the spaces are the continuation's
    assert blank[0] == pytest.approx(from_logits([BOS, *tokens_of("  import")], 1)[0], abs=1e-3)
    spelled = lm.loglikelihood([request("", "<s>import")], disable_tqdm=True)[0]
    assert spelled[0] == pytest.approx(from_logits([BOS, *tokens_of("import")], 1)[0], abs=1e-3)
    assert lm.tok_encode("import") == [BOS, *tokens_of("import")]
    assert lm.tok_encode("<s>import") == [BOS, *tokens_of("import")]
    assert lm.tok_encode("import", add_special_tokens=False) == tokens_of("import")
    bare = ours(**{"model.bos": False})
    assert bare.tok_encode("import") == tokens_of("import")
    assert bare.loglikelihood([request("  ", "import")], disable_tqdm=True)[0][0] == pytest.approx(blank[0], abs=1e-4)


SOP = {"id": "</s>", "type_id": 0}
FRONTS: dict[str, Any] = {
    "none": [],
    "bos": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
    "two": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"SpecialToken": SOP}],
}
"""Tokens that tokenizer.json puts in front of every text; two, as GLM-4 has them."""


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("stated", [None, True, False])
def test_contexts_begin_by_one_rule_whoever_encodes(front: str, stated: bool | None, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(LEXLET, folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    words["post_processor"]["single"] = [*FRONTS[front], {"Sequence": {"id": "A", "type_id": 0}}]
    words["post_processor"]["special_tokens"]["</s>"] = {"id": "</s>", "ids": [1], "tokens": ["</s>"]}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": stated}))
    lm = ours(model=None, path=str(folder))
    begins = {"none": [], "bos": [BOS], "two": [BOS, 1]}[front] if stated is None else [BOS] * stated
    assert lm._running.tokenizer.prefix == tuple(begins)
    expected = [*begins, *tokens_of("import")]
    assert lm.tok_encode("import") == lm.tokenizer("import")["input_ids"] == lm.tokenizer.encode("import") == expected
    opening = begins or [BOS]  # an empty context is what begins every text, else BOS
    [(total, _)] = lm.loglikelihood([request("", "import")], disable_tqdm=True)
    whole = from_logits([*opening, *tokens_of("import")], len(opening))[0]
    assert total == pytest.approx(whole, abs=1e-3)
    [rolled] = lm.loglikelihood_rolling([request("import")], disable_tqdm=True)
    assert rolled == pytest.approx(whole, abs=1e-3)
    said = lm.get_model_info()["lexbench"].get("tokenizer")
    assert (said is not None) == (stated is not None and begins != {"none": [], "bos": [BOS], "two": [BOS, 1]}[front])


def test_a_tokenizer_without_special_tokens_needs_contexts(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(LEXLET, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "bos_token_id": None, "eos_token_id": None}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    words = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**words, "post_processor": None}))  # it puts BOS in front
    lm = ours(model=None, path=str(folder))
    [(total, _)] = lm.loglikelihood([request("import", " math")], disable_tqdm=True)
    assert total == pytest.approx(from_logits(tokens_of("import math"), len(tokens_of("import")))[0], abs=1e-3)
    with pytest.raises(ValueError, match="plain has neither BOS nor an end token"):
        lm.loglikelihood([request("", "import")], disable_tqdm=True)


def test_an_answer_ends_before_the_first_of_its_ends_and_is_kept_as_it_comes() -> None:
    from lexbench.parts.exchange.lm_eval.model import _cut_at_stop

    both = GenerateAnswer(tokens=np.arange(3), text="one two", hit_room=False)  # a token may bring several ends
    assert (_cut_at_stop(both, ["o", "e"]), _cut_at_stop(both, ["w", "n", "z"]), _cut_at_stop(both, [])) == (
        "",
        "o",
        "one two",
    )
    lm, kept = ours(), []
    lm.set_cache_hook(SimpleNamespace(add_partial=lambda *partial: kept.append(partial)))
    [whole] = lm.generate_until([request("for i in", {"max_gen_toks": 12})], disable_tqdm=True)
    settings = {"max_gen_toks": 12, "until": whole[3:5]}
    assert lm.generate_until([request("for i in", settings)], disable_tqdm=True) == [whole[:3]]
    assert kept[-1] == ("generate_until", ("for i in", settings), whole[:3])
    lm.set_cache_hook(SimpleNamespace(add_partial=lambda *partial: None))


def test_a_conversation_is_rendered_by_the_models_own_template(tmp_path: Path) -> None:
    folder = tmp_path / "chatty"
    shutil.copytree(LEXLET, folder)
    template = (
        "<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    lm = ours(model=None, path=str(folder))
    text = lm.apply_chat_template([{"role": "user", "content": "import"}])
    assert text == "<s>user: import</s>assistant:"
    assert lm.tok_encode(text) == [BOS, *tokens_of("user: import"), 1, *tokens_of("assistant:")]
    with pytest.raises(ValueError, match="cannot be rendered"):
        lm.apply_chat_template([{"role": "system", "content": "be brief"}])


def test_a_template_is_told_not_to_think_and_refused_where_it_opens_a_thought(tmp_path: Path) -> None:
    end = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    for name, opened in (("asked", end), ("always", "<think>\n")):
        folder = Path(shutil.copytree(LEXLET, tmp_path / name))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        template = "{% for m in messages %}{{ m.content }}{% endfor %}assistant:" + opened
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
        lm = ours(model=None, path=str(folder))
        if opened == end:
            assert lm.apply_chat_template([{"role": "user", "content": "import"}]) == "importassistant:"
        else:
            with pytest.raises(ValueError, match=r"opens a thought, which would be scored as the answer: leave out"):
                lm.apply_chat_template([{"role": "user", "content": "import"}])


def test_the_entry_point_is_our_model_and_registers() -> None:
    from lm_eval.api.registry import Registry

    from lexbench.parts.exchange.lm_eval.model import LexbenchModel

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lm_eval.models"]
    registry = Registry("model")
    for name, value in declared.items():
        registry.register(name, target=importlib.metadata.EntryPoint(name, value, "lm_eval.models"))
    assert registry.get("lexbench") is LexbenchModel
