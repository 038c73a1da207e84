"""Models loaded in this process: numbers are those of the model's own logits, and of the model read from its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import lexbench
from lexbench.backends.function import Function, weights_hash
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import FastTokenizer, wrap_loaded_tokenizer
from lexbench.core.task import Choose, ClassifyTokens, Generate, Loglikelihood, ProbeAttention, Tokens

LEXLET = locate_checkpoint("lexbench:lexlet", None)
IDS = np.array([3, 1, 4, 1, 5])


@pytest.fixture(scope="module")
def network() -> Any:
    return AutoModelForCausalLM.from_pretrained(LEXLET, dtype=torch.float32)


def bigram(ids: Tokens) -> NDArray[np.float64]:
    """Logits of token v behind u: -|v - (u + 1)|, over eight tokens; the likeliest is u + 1."""
    return np.array([[-abs(v - u - 1) for v in range(8)] for u in ids], np.float64)


def by_hand(before: int, after: int) -> float:
    logits = [-abs(v - before - 1) for v in range(8)]
    return float(np.log(np.exp(logits).sum()) - logits[after])


class Bigram(nn.Module):
    """The same as a module, [1, T] to [1, T, 8]."""

    def __init__(self) -> None:
        super().__init__()
        table = -(torch.arange(8) - torch.arange(1, 9)[:, None]).abs().double()
        self.rows = nn.Embedding(8, 8, _weight=table)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows(ids)  # type: ignore[no-any-return]


@pytest.fixture(params=[bigram, Bigram()], ids=["function", "module"])
def backend(request: pytest.FixtureRequest, tokenizer: FastTokenizer) -> Function:
    model = lexbench.Model(name="bigram", trained_length=8, head_dim=1)
    return Function(request.param, model, tokenizer, ends=[7])


def test_scores_marks_and_choices_are_those_of_the_table(backend: Function) -> None:
    about: dict[str, Any] = {"index": 0, "cluster": "a"}
    scored = backend.score(Loglikelihood(**about, tokens=IDS, first_target=2, bytes=1, words=1))
    assert scored.nll == pytest.approx([by_hand(1, 4), by_hand(4, 1), by_hand(1, 5)], rel=1e-6)
    marked = backend.mark(ClassifyTokens(**about, tokens=IDS, places=np.array([1, 4]), options=np.array([1, 5])))
    assert marked.nll == pytest.approx(
        np.array([[by_hand(3, 1), by_hand(3, 5)], [by_hand(1, 1), by_hand(1, 5)]]), rel=1e-6
    )
    options = (np.array([6, 7]), np.array([2]))
    chosen = backend.choose(Choose(**about, prompt=IDS, options=options, expected=0))
    assert chosen.nll == pytest.approx([by_hand(5, 6) + by_hand(6, 7), by_hand(5, 2)])


def test_writing_counts_up_to_an_end_token_or_the_room(backend: Function) -> None:
    ended = backend.write(Generate(index=0, cluster="a", prompt=IDS[:3], max_new_tokens=5))
    assert (ended.tokens.tolist(), ended.hit_room) == ([5, 6], False)
    cut = backend.write(Generate(index=0, cluster="a", prompt=IDS[:2], max_new_tokens=3))
    assert (cut.tokens.tolist(), cut.hit_room) == ([2, 3, 4], True)
    said = backend.tokenizer.decode([2])
    stopped = backend.write(Generate(index=0, cluster="a", prompt=IDS[:2], max_new_tokens=3, until=(said,)))
    assert (stopped.tokens.tolist(), stopped.hit_room) == ([2], False)


def test_a_token_is_never_taken_from_logits_that_are_nan(tokenizer: FastTokenizer) -> None:
    """After three tokens: of NaN the largest would be a token like any other."""

    def spoilt(ids: Tokens) -> NDArray[np.float64]:
        return bigram(ids) * (np.nan if len(ids) > 4 else 1.0)

    model = lexbench.Model(name="spoilt", trained_length=8, head_dim=1)
    asked = Generate(index=0, cluster="a", prompt=IDS[:2], max_new_tokens=5)
    with pytest.raises(lexbench.Refused, match="logits are NaN in own: use another dtype"):
        Function(spoilt, model, tokenizer, ends=[7]).write(asked)
    assert Function(spoilt, model, tokenizer, ends=[4]).write(asked).tokens.tolist() == [2, 3]


def test_what_a_function_cannot_show_is_refused(backend: Function) -> None:
    with pytest.raises(lexbench.Refused, match="give a model of transformers"):
        backend.probe(ProbeAttention(index=0, cluster="a", tokens=IDS))
    with pytest.raises(lexbench.Refused, match="use method=none"):
        backend.attend(lexbench.Attention(scale=2.0))
    backend.attend(lexbench.Attention())


def test_logits_of_a_wrong_shape_are_one_line(tokenizer: FastTokenizer) -> None:
    model = lexbench.Model(name="flat", trained_length=8, head_dim=1)
    flat = Function(lambda ids: np.zeros(8), model, tokenizer)
    with pytest.raises(ValueError, match=r"^a function must give logits of shape \[4, V\] for 4 tokens, gave \[8\]"):
        flat.score(Loglikelihood(index=0, cluster="a", tokens=IDS, first_target=2, bytes=1, words=1))


def test_what_is_no_logits_is_one_line(tokenizer: FastTokenizer) -> None:
    model = lexbench.Model(name="f", trained_length=4, head_dim=8)
    score = Loglikelihood(index=0, cluster="", tokens=IDS, first_target=1, bytes=4, words=4)
    for function, said in (
        (lambda ids: None, r"a function must give logits, gave object of shape \[\]"),
        (lambda ids: np.zeros((len(ids), 5)), "gave 5 and is asked for token 5"),
    ):
        with pytest.raises(ValueError, match=said):
            Function(function, model, tokenizer).score(score)


USUAL: dict[str, Any] = {"task": "passkey", "lengths": [64], "n": 1, "backend": "chance", "quiet": True}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": None}, "model must be a name, ./FOLDER, ORG/NAME, facts or a loaded model, got None"),
        ({"method": []}, "method must be a name, a mapping of .* or a list of these, got "),
        ({"task": 5}, "task must be a name, a mapping of .* or a list of these, got 5"),
        ({"corpus": 5}, "corpus must be a name, or a mapping of its name and parameters, got 5"),
        ({"backend": 5}, "backend must be a name, or a mapping of its name and parameters, got 5"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"seed": None}, "seed must be a whole number of at least 0, got None"),
        ({"results": 5}, "results must be a folder, got 5"),
    ],
)
def test_an_argument_of_another_type_is_one_line(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        lexbench.run(**{"model": "lexlet", "results": tmp_path, **USUAL, **changed})


def test_a_run_without_a_model_is_of_the_embedded_one(tmp_path: Path) -> None:
    """As `lexbench run` without model=..., whose yaml names it."""
    default = yaml.safe_load((Path(__file__).parents[1] / "configs/run.yaml").read_text())["defaults"]
    [named] = [each["model"] for each in default if "model" in each]
    found = [lexbench.run(**model, results=tmp_path, **USUAL).records()["model"] for model in ({}, {"model": named})]
    assert [set(each) for each in found] == [{named}, {named}]


@pytest.mark.parametrize("ask", [lexbench.run, lexbench.evaluate])
def test_an_argument_of_an_unknown_name_offers_the_nearest(ask: Any) -> None:
    said = rf"^{ask.__name__} has no argument lenghts: did you mean lengths\? choose from model, "
    with pytest.raises(lexbench.ConfigError, match=said):
        ask("lexlet", task="passkey", lenghts=[64])


def test_a_run_that_is_not_there_and_a_suite_as_a_task_are_one_line(tmp_path: Path) -> None:
    for ask in (lexbench.Run(tmp_path / "none").records, lambda: str(lexbench.Run(tmp_path / "none"))):
        with pytest.raises(ValueError, match=r"run folder .*none does not exist: give one that a run has written"):
            ask()
    with pytest.raises(ValueError, match="task quick is a suite of several: name one of them"):
        lexbench.task("quick")


def test_one_changed_weight_changes_the_revision(network: Any) -> None:
    before = weights_hash(network)
    with torch.no_grad():
        weight = next(network.parameters())
        weight[0, 0] += 1
        assert weights_hash(network) != before
        weight[0, 0] -= 1
    assert weights_hash(network) == before
    plain = [Function(bigram, lexbench.Model(name="b", trained_length=8, head_dim=1), None) for _ in range(2)]  # type: ignore[arg-type]
    assert plain[0].revision != plain[1].revision


@pytest.mark.slow
def test_a_loaded_model_has_the_numbers_of_its_folder(network: Any, tmp_path: Path) -> None:
    """Under a method, too; and the model is left as it was."""
    ids = torch.arange(300)[None] % 97
    network.train()
    with torch.inference_mode():
        before = network(ids).logits
    tokenizer = AutoTokenizer.from_pretrained(LEXLET)
    asked: dict[str, Any] = {"method": ["none", "rerope"], "task": ["last_segment", "passkey"], "lengths": [300]}
    given = lexbench.evaluate(network, tokenizer, n=1, **asked)
    read = lexbench.run("lexlet", n=1, results=tmp_path, quiet=True, **asked)
    columns = ["method", "task", "length", "metric", "value", "low", "high", "chance", "bigram"]
    assert given.records()[columns].sort_values(columns[:4]).to_csv(index=False) == (
        read.records()[columns].sort_values(columns[:4]).to_csv(index=False)
    )
    assert network.training
    with torch.inference_mode():
        assert torch.equal(network(ids).logits, before)


@pytest.mark.everyday("False")
@pytest.mark.parametrize("outer", [True, False])
def test_each_part_of_a_module_has_its_own_mode_after_an_evaluation(outer: bool) -> None:
    learning, frozen = nn.Dropout(), nn.Sequential(nn.Dropout())
    module = nn.Sequential(nn.Embedding(2048, 4), learning, frozen, nn.Linear(4, 2048)).train(outer)
    learning.train()
    frozen.eval()
    seen: list[bool] = []
    module.register_forward_hook(lambda *_: seen.extend(part.training for part in module.modules()))
    lexbench.evaluate(module, LEXLET, lengths=[16], n=1, trained_length=16)
    assert seen and not any(seen)
    assert [part.training for part in module.modules()] == [outer, outer, True, False, False, outer]


@pytest.mark.slow
def test_a_function_has_the_numbers_of_the_model_behind_it(network: Any) -> None:
    network.eval()
    whole = lexbench.evaluate(
        lambda ids: network(torch.from_numpy(ids)[None]).logits, LEXLET, lengths=[300], n=2, trained_length=256
    )
    folder = lexbench.evaluate(network, LEXLET, lengths=[300], n=2)
    assert whole.table().loc["none", 300] == pytest.approx(folder.table().loc["none", 300], abs=1e-5)
    refused = lexbench.evaluate(
        lambda ids: np.zeros((len(ids), 2048)), LEXLET, method="log_n", lengths=[300], n=2, trained_length=256
    )
    assert refused.records()["refused"].str.contains("use method=none").all()
    with pytest.raises(
        lexbench.Refused, match=r"^nothing was measured: log_n on last_segment at 300 .*use method=none"
    ):
        refused.table()


@pytest.mark.slow
def test_a_network_under_extend_is_measured_as_it_is_and_under_no_other_name(network: Any, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"lengths": [512], "n": 1}
    expected = lexbench.evaluate(network, LEXLET, method="log_n", **asked).table().loc["log_n", 512]
    with lexbench.extend(network, "log_n", length=512):
        assert lexbench.evaluate(network, LEXLET, **asked).table().loc["none", 512] == pytest.approx(expected, abs=1e-6)
        with pytest.raises(ValueError, match=r"measured as it is, by method=none, got yarn: restore\(\) it first"):
            lexbench.evaluate(network, LEXLET, method=["none", "yarn"], **asked)
        with pytest.raises(ValueError, match=r"revision of its weights alone: give revision=\.\.\., or restore\(\)"):
            lexbench.evaluate(network, LEXLET, results=tmp_path, **asked)
        lexbench.evaluate(network, LEXLET, results=tmp_path, revision="log_n of 512", **asked)


def test_a_callable_that_cannot_be_hashed_is_measured_as_a_function(network: Any) -> None:
    @dataclass  # it compares by fields, so it has no hash
    class Logits:
        network: Any

        def __call__(self, ids: Tokens) -> Any:
            return self.network(torch.from_numpy(ids)[None]).logits

    network.eval()
    with lexbench.extend(network, "log_n", length=512):  # loads what knows of extended networks
        pass
    asked: dict[str, Any] = {"lengths": [128], "n": 1}
    expected = lexbench.evaluate(network, LEXLET, **asked).table().loc["none", 128]
    found = lexbench.evaluate(Logits(network), LEXLET, trained_length=256, **asked).table().loc["none", 128]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_task_takes_a_corpus_by_name_by_parameters_or_built() -> None:
    built, wrong = lexbench.corpus("synthetic", count=2), cast(Any, 3)
    assert lexbench.task("last_segment", {"name": "synthetic", "count": 2}) == lexbench.task("last_segment", built)
    with pytest.raises(
        ValueError, match=r"^corpus must be a name, a mapping of its name and parameters, or a corpus, got 3$"
    ):
        lexbench.task("last_segment", wrong)


@pytest.mark.slow
def test_texts_that_change_between_two_runs_of_a_process_are_read_anew(tmp_path: Path) -> None:
    def value(corpus: str, text: str, results: str) -> float:
        (tmp_path / corpus).mkdir(exist_ok=True)
        for place in range(2):
            (tmp_path / corpus / f"{place}.txt").write_text(f"{text} {place}. " * 100)
        about: dict[str, Any] = {"corpus": {"name": "files", "path": str(tmp_path / corpus)}, "lengths": [64], "n": 2}
        run = lexbench.run("lexlet", results=tmp_path / results, quiet=True, **about)
        return float(run.table().to_numpy()[0, 0])

    before, after = value("edited", "The cat sat", "one"), value("edited", "Zebra %% xylophone", "one")
    # Another folder with the same texts, and a results folder without cells: nothing kept can stand in.
    assert after == pytest.approx(value("new", "Zebra %% xylophone", "two"), abs=1e-5)
    assert abs(before - after) > 0.1


@pytest.mark.slow
def test_a_run_shows_its_own_cells_only(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"backend": "chance", "lengths": [64, 128], "results": tmp_path, "quiet": True}
    lexbench.run("lexlet", task=["passkey", "last_segment"], n=2, **asked)
    second = lexbench.run("lexlet", method=["none", "yarn"], task=["passkey", "last_segment"], n=3, **asked)
    assert set(second.records()["n"]) == {3}
    assert set(lexbench.Run(tmp_path).records()["n"]) == {2, 3}
    table = second.table("last_segment")
    assert [*table.index, *table.columns] == ["none", "yarn", 64, 128]
    assert table.to_numpy() == pytest.approx(np.log(2048))
    assert second.table().index.names == ["task", "metric", "method"]
    assert second.table(metric="perplexity").to_numpy() == pytest.approx(2048, rel=1e-5)
    assert "passkey, copied whole, lexlet" in str(second)
    assert second._repr_html_().count("<table>") == 3
    assert "<h2></h2>" not in second._repr_html_() and "<h2>passkey, copied whole, " in second._repr_html_()
    assert second.plot("passkey")._repr_png_().startswith(b"\x89PNG")
    assert second.plot("passkey").axes[0].get_ylabel() == "better than the unmodified model by:\ncopied whole, points"
    assert "- B: " in second.compare("none", "yarn")
    with pytest.raises(
        ValueError, match=r"^no table of task nothing, metric any: there are last_segment: bits_per_byte, "
    ):
        second.table("nothing")


@pytest.mark.parametrize("said", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")])
def test_a_length_that_memory_does_not_hold_leaves_the_others(said: Exception) -> None:
    def full(ids: Tokens) -> NDArray[np.float64]:
        if len(ids) > 40:
            raise said
        return np.zeros((len(ids), 2048))

    records = lexbench.evaluate(full, LEXLET, lengths=[32, 64], n=1, trained_length=32, name="full").records()
    refused = records.set_index("length")["refused"]
    assert refused[32].isna().all()
    assert refused[64].startswith("out of memory for 64 tokens of full in own: use fewer tokens")


def test_nothing_is_printed_when_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    lexbench.evaluate(lambda ids: np.zeros((len(ids), 2048)), LEXLET, lengths=[64], n=1, trained_length=64)
    assert capfd.readouterr() == ("", "")


def test_what_is_missing_is_said(network: Any) -> None:
    with pytest.raises(ValueError, match=r"give trained_length="):
        lexbench.evaluate(bigram, LEXLET)
    with pytest.raises(ValueError, match=r"^tokenizer must be a fast tokenizer of transformers"):
        lexbench.evaluate(network, object())
    with pytest.raises(ValueError, match=r"^model must be a module or a function from ids to logits, got str"):
        lexbench.evaluate("lexlet", LEXLET)


def test_tokenizers_of_other_libraries_have_the_tokens_of_the_folder() -> None:
    text = "def f(x):\n    return <s> x + 10\n"
    expected = tokenizers.Tokenizer.from_file(str(LEXLET / "tokenizer.json"))
    bos = json.loads((LEXLET / "tokenizer_config.json").read_text())["bos_token"]
    mine = wrap_loaded_tokenizer(AutoTokenizer.from_pretrained(LEXLET))
    assert mine.prefix == (expected.token_to_id(bos),)
    plain = wrap_loaded_tokenizer(expected)
    assert plain.prefix == ()
    assert mine.encode(text).ids.tolist() == plain.encode(text).ids.tolist()
    assert mine.decode(mine.encode(text).ids) == text


def test_a_function_whose_rows_see_later_tokens_is_refused(tokenizer: FastTokenizer) -> None:
    """With the whole text in each row, the next token could be read off."""

    def peeking(ids: Tokens) -> NDArray[np.float64]:
        return np.where(np.arange(8) == np.append(ids[1:], 0)[:, None], 9.0, 0.0)

    def drawn(ids: Tokens) -> NDArray[np.float64]:
        return np.random.default_rng().normal(size=(len(ids), 8))

    model = lexbench.Model(name="peeking", trained_length=8, head_dim=1)
    with pytest.raises(ValueError, match="a function must be causal, in this one the last token changes the logits"):
        Function(peeking, model, tokenizer).attend(lexbench.Attention())
    for right in (bigram, drawn):
        Function(right, model, tokenizer).attend(lexbench.Attention())


@pytest.mark.slow
def test_frequencies_changed_by_hand_are_measured_anew(tmp_path: Path) -> None:
    """The value is that of a folder of its own, where nothing was measured before."""
    changed = AutoModelForCausalLM.from_pretrained(LEXLET, dtype=torch.float32)

    def value(folder: str) -> float:
        ways: dict[str, Any] = {"lengths": [64], "n": 1, "results": tmp_path / folder, "corpus": "synthetic"}
        return float(lexbench.evaluate(changed, LEXLET, **ways).table()[64]["none"])

    value("both")
    changed.model.rotary_emb.inv_freq /= 8
    assert value("both") == pytest.approx(value("own"), abs=1e-6)


@pytest.mark.slow
def test_a_loaded_model_is_asked_with_names_of_a_folder_of_yamls(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    """All V tokens are equally likely: ln V nats each; the corpus is known by the folder alone."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "own.yaml").write_text("_target_: lexbench.corpora.synthetic.Synthetic\nwords: 400\n")

    def even(ids: Tokens) -> NDArray[np.float64]:
        return np.zeros((len(ids), tokenizer.vocabulary))

    asked: dict[str, Any] = {"corpus": "own", "trained_length": 32, "lengths": 32, "n": 2}
    run = lexbench.evaluate(even, tokenizer, config_dir=tmp_path, **asked)
    assert run.table().loc["none", 32] == pytest.approx(np.log(tokenizer.vocabulary))
    with pytest.raises(lexbench.ConfigError, match="unknown corpus 'own'"):
        lexbench.evaluate(even, tokenizer, **asked)
