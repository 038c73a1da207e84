"""Texts that are read together are answered as each alone; where memory ends, fewer are read together."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import lexbench
from lexbench.backends import capabilities
from lexbench.backends.hf import backend as hf_backend
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact.extended import model_of
from lexbench.backends.hf.exact.state import KeyValueState
from lexbench.backends.hf.reading.batches import MAX_CPU_PREFILL_TOKENS
from lexbench.backends.hf.reading.reader import Reader
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention, Dynamic
from lexbench.core.record import Refused
from lexbench.core.task import (
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
)
from lexbench.runner.answers import answer_question, answer_questions
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.census import tiny as census
from tests.runner.test_reuse import check_alike
from tools import gpu_sizes

pytestmark = pytest.mark.usefixtures("one_thread", "unverified")
LENGTHS = [200]


def backend(batch: int | str) -> Hf:
    return Hf(read_model(registry.read_named_config("model", "lexlet")), batch=batch)


def run(folder: Path, batch: int, **settings: Any) -> list[FinishedCell]:
    given = {"corpus": "synthetic", "n": 5, "lengths": LENGTHS, "reuse": False, **settings}
    lexbench.run("lexlet", results=folder, backend={"name": "hf", "batch": batch}, **given)
    return Store(folder).load()


def texts(count: int, length: int = 100) -> list[Loglikelihood]:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(3, 500, length) for _ in range(count)]
    return [
        Loglikelihood(index=index, cluster="", tokens=tokens, first_target=length // 2, bytes=1, words=1)
        for index, tokens in enumerate(drawn)
    ]


def prompts(count: int, length: int) -> list[Generate]:
    """Random ones, to be continued by five tokens."""
    rng = np.random.default_rng(1)
    return [
        Generate(index=index, cluster="", prompt=rng.integers(3, 500, length), max_new_tokens=5)
        for index in range(count)
    ]


def choices(count: int) -> list[Choose]:
    """Random ones, among four options of two tokens each."""
    rng = np.random.default_rng(0)
    return [
        Choose(
            index=index,
            cluster="",
            prompt=rng.integers(3, 500, 60),
            options=tuple(rng.integers(3, 500, (4, 2))),
            expected=0,
        )
        for index in range(count)
    ]


def sizes(monkeypatch: pytest.MonkeyPatch, fit: int | None = None) -> list[int]:
    """Texts of every forward pass to come; more than `fit` of them are too many for the memory."""
    read: list[int] = []
    states = Reader.states

    def count(self: Reader, tokens: Any, *more: Any) -> Any:
        read.append(len(tokens))
        if fit is not None and len(tokens) > fit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return states(self, tokens, *more)

    monkeypatch.setattr(Reader, "states", count)
    return read


def losses(given: Sequence[object]) -> list[np.ndarray]:
    return [each.nll for each in given if isinstance(each, LoglikelihoodAnswer)]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sliding", "niah_single_1"])
def test_numbers_of_many_methods_are_those_of_one_text_at_a_time(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ["none", "bca", "dynamic_ntk", "ms_poe", "rerope", "self_extend", "streaming_llm", "yarn+log_n"]
    alone = run(tmp_path / "1", 1, task=task, method=methods)
    read = sizes(monkeypatch)
    together = run(tmp_path / "4", 4, task=task, method=methods)
    assert max(read) == 4
    check_alike(alone, together)


@pytest.mark.slow
def test_a_row_that_has_ended_leaves_the_others_as_they_are() -> None:
    tokenizer = backend(1).tokenizer
    task = lexbench.task("passkey", corpus="synthetic")
    asked = [each for each in task.questions(tokenizer, 200, 6, 0) if isinstance(each, Generate)]
    asked = [replace(each, max_new_tokens=12) for each in asked]
    alone = [backend(1).write(each) for each in asked]
    texts = [each.text for each in alone]
    ends = tuple(text[2:5] for text in texts[:2])  # two of them, and whichever else says so, end early
    asked = [replace(each, until=ends) for each in asked]
    expected = [backend(1).write(each) for each in asked]
    assert not all(each.hit_room for each in expected) and any(each.hit_room for each in expected)
    given = list(answer_questions(backend(6), asked))
    for one, other in zip(given, expected, strict=True):
        assert isinstance(one, GenerateAnswer)
        assert (one.text, one.hit_room) == (other.text, other.hit_room)
        assert one.tokens.tolist() == other.tokens.tolist()


@pytest.mark.slow
def test_only_texts_of_about_one_length_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(8)
    asked: list[AnyQuestion] = [*texts(3, 600), *texts(2, 500), *texts(2, 540)]
    asked.insert(
        1, Choose(index=9, cluster="", prompt=np.arange(5), options=(np.array([1]), np.array([2])), expected=0)
    )
    assert model.reader.can_join_texts()
    read = sizes(monkeypatch)
    assert len(list(answer_questions(model, asked))) == 8
    assert read == [1, 1, 2, 4], "a choice is no text to score; 500 tokens are too few beside 600, not beside 540"


@pytest.mark.slow
def test_memory_that_ends_halves_what_is_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, model = texts(10), backend(8)
    expected = losses([backend(1).score(each) for each in asked])
    read = sizes(monkeypatch, fit=3)
    found = losses(list(answer_questions(model, asked)))
    assert read == [8, 4, 2, 2, 2, 2, 2], "8 and 4 do not fit, and are not tried again"
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    read.clear()
    list(answer_questions(model, texts(8, 50)))
    assert read == [4, 2, 2, 2, 2], "texts of half the length: twice as many, which do not fit either"


@pytest.mark.slow
def test_choices_that_do_not_fit_are_halved_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen options do not fit, eight do."""
    asked, model = choices(4), backend(4)
    assert model.reader.can_join_texts()
    read = sizes(monkeypatch, fit=8)
    assert len(list(model.answer_batch(asked))) == 4
    assert read == [4, 16, 2, 8, 2, 8], "prompts, then options"


def test_the_question_with_most_options_says_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = choices(2)
    few = replace(few, prompt=np.arange(3, 80), options=few.options[:2])  # 2 x 79 tokens, of many 4 x 62
    model = backend(4)
    model._limit = 2 * 4 * many.length
    assert [len(model._fitting_batch(asked)) for asked in ([few, few, many], [many, few, many], [few] * 4)] == [2, 2, 3]


@pytest.mark.slow
def test_options_of_one_question_that_do_not_fit_together_are_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    [asked], model = choices(1), backend(4)
    [expected] = [each.nll for each in model.answer_batch([asked]) if isinstance(each, ChooseAnswer)]
    read = sizes(monkeypatch, fit=3)
    [found] = [each.nll for each in model.answer_batch([asked]) if isinstance(each, ChooseAnswer)]
    assert read == [1, 4, 1, 1, 1, 1, 1], "prompt and options at once, then one by one"
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    read = sizes(monkeypatch, fit=0)
    with pytest.raises(Refused, match="out of memory for 62 tokens"):
        list(model.answer_batch([asked]))
    assert read == [1]


def test_one_text_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(4)
    read = sizes(monkeypatch, fit=0)
    with pytest.raises(Refused, match="out of memory for 100 tokens of lexlet"):
        list(answer_questions(model, texts(4)))
    assert read == [4, 2, 1]


@pytest.mark.slow
def test_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend("auto")
    facts = model.model
    assert facts.width and facts.layers and facts.kv_heads and model.reader.can_join_texts()
    pass_numbers, kept = (
        20 * facts.width * MAX_CPU_PREFILL_TOKENS,
        2 * facts.layers * facts.kv_heads * facts.head_dim * 100,
    )
    monkeypatch.setattr(hf_backend, "free_bytes", lambda device: 2 * 4 * (pass_numbers + 5 * kept))  # half of it: five
    read = sizes(monkeypatch)
    list(answer_questions(model, prompts(12, 95)))
    assert read == [5] * 5 + [5] * 5 + [2] * 5, "prompts, and 4 tokens behind them"
    read.clear()
    list(answer_questions(model, texts(3)))
    assert read == [1, 1, 1], "a CPU scores one at a time"
    model.reader.device = torch.device("cuda")  # of which it scores as many as fit; nothing is put there
    assert model.batch_key(texts(1)[0]) is not None
    assert capabilities(model).batches and not capabilities(model).remote


@pytest.mark.everyday("none-0")
@pytest.mark.parametrize(("method", "views"), [("none", 0), ("rerope", 2)])
def test_keys_behind_windows_take_no_room(method: str, views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3 has windows of 16 tokens here: room for five texts is that of what the model holds of five."""
    model = tiny("gemma3_text")
    attended(model, method)
    [(_, [state])] = model.reader.prefill_batches([prompts(1, 400)[0].prompt], 1)
    layers = cast(KeyValueState, state).cache.layers
    assert {layer.keys.shape[2] for layer in layers} == ({15, 400} if method == "none" else {400})
    # Rotated keys at two further positions are made while writing.
    kept = 8 * sum(layer.keys.numel() + layer.values.numel() + views * layer.keys.numel() for layer in layers)
    passing = 8 * 20 * model.reader.network.config.hidden_size * MAX_CPU_PREFILL_TOKENS
    asked = prompts(1, 395)[0]
    for free, size in ((5, 5), (4.99, 4)):
        monkeypatch.setattr(hf_backend, "free_bytes", lambda device, free=free: 2 * (passing + free * kept))
        assert model._size(asked) == size


def test_a_cpu_writes_to_a_few_thousand_tokens_at_once() -> None:
    model = backend("auto")
    assert [model._size(prompts(1, length - 5)[0]) for length in (2048, 8192, 40000)] == [16, 4, 1]


def test_layers_with_numbers_of_heads_of_their_own_are_answered_together(tmp_path: Path) -> None:
    """dots3.note: layers with a window have two heads, the other four; values of theirs are of another size."""
    own = {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_v_head_dim": 4}
    folder = census.save(tmp_path, "dots3_note_text", **own)
    model = Hf(read_model({"path": str(folder)}), device="cpu")
    assert [model.reader.network.config.per_layer_config[layer].num_attention_heads for layer in (0, 1)] == [4, 2]
    rng = np.random.default_rng(2)
    asked = [replace(each, tokens=rng.integers(0, census.PADDING, 20), first_target=5) for each in texts(3)]
    together = losses(list(model.answer_batch(asked)))
    for one, each in zip(together, asked, strict=True):
        np.testing.assert_allclose(one, model.score(each).nll, rtol=1e-5)
    assert model.reader._continued_by(0) is model.reader.passes[0], "fused attention has values as wide as keys"
    with pytest.raises(Refused, match="does not state one number of attention heads"):
        model.attend(Attention(scale=2.0))


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_padding_is_left_out_where_layers_use_the_keys_of_others(family: str, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    folder = census.save(tmp_path, family, **sizes, num_kv_shared_layers=2)
    model = Hf(read_model({"path": str(folder), "trained_length": 8}), device="cpu")
    attention = lexbench.method("rerope", window=4).attention(model.model, 32)
    model.attend(attention)
    rng = np.random.default_rng(4)
    rows = [rng.integers(0, census.PADDING, length) for length in (20, 13)]
    for row, together in zip(rows, model.logits_together(rows), strict=True):
        torch.testing.assert_close(together, model.logits(row, [len(row)], len(row)), rtol=1e-4, atol=1e-5)


def test_a_config_whose_layers_differ_says_how_many_texts_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen3Config

    model = backend("auto")
    config = Qwen3Config(num_hidden_layers=2, per_layer_config={1: {"num_attention_heads": 2}})
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        assert config.num_attention_heads
    monkeypatch.setattr(model.reader.network, "config", config)
    assert model._size(prompts(1, 2043)[0]) == 16  # 32,768 tokens on a CPU


@pytest.mark.slow
def test_prompts_that_begin_alike_are_read_once_and_written_to_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend(3)
    model.reuse = True
    asked = prompts(6, 60)
    for each in asked[1:]:
        each.prompt[:40] = asked[0].prompt[:40]
    expected = [backend(1).write(each) for each in asked]
    read: list[tuple[int, int]] = []
    states = Reader.states

    def count(self: Reader, tokens: Any, *more: Any) -> Any:
        read.append(tuple(tokens.shape))
        return states(self, tokens, *more)

    assert model.reader.can_join_texts()
    monkeypatch.setattr(Reader, "states", count)
    given = list(answer_questions(model, asked))
    assert read == [(1, 60), (1, 20), (1, 20), *[(3, 1)] * 4, (1, 20), (1, 20), (1, 20), *[(3, 1)] * 4]
    for one, other in zip(given, expected, strict=True):
        assert isinstance(one, GenerateAnswer)
        assert one.tokens.tolist() == other.tokens.tolist()


@pytest.mark.parametrize("batch", [0, -1, "many", 2.5, True])
def test_a_wrong_batch_is_said_in_one_line(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"backend\.batch must be auto or a whole number of at least 1, got"):
        backend(batch)


WRITTEN = ("none", "yarn", "rerope", "self_extend", "dca", "streaming_llm", "bca", "adagrope", "attention_buckets")
"""Methods of each structure, of tables of angles, of several passes; adagrope by the definition alone."""


@functools.cache
def tiny(family: str) -> Hf:
    """A small model with attention that matters; of gpt_oss in float32, as its experts have no float64."""
    return cast(Hf, gpu_sizes.small(family, "cpu", torch.float32 if family == "gpt_oss" else torch.float64))


def attended(model: Hf, method: str) -> None:
    model.reuse = False
    attention = gpu_sizes.attention_of(method, model.model, 128)
    assert attention is not None
    try:
        model.attend(attention)
    except Refused as refusal:
        pytest.skip(refusal.reason)


def uneven(count: int, room: int) -> list[Generate]:
    """Prompts around and beyond windows of 16 tokens, of which two have one length."""
    rng = np.random.default_rng(3)
    rooms = [room + place % 3 for place in range(count)]
    lengths = [5, 60, 60, 21, 15, 90][:count]
    return [
        Generate(index=place, cluster="", prompt=rng.integers(3, 500, lengths[place]), max_new_tokens=rooms[place])
        for place in range(count)
    ]


@pytest.mark.everyday("none-llama", "rerope-gpt_oss")
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("method", ["none", "rerope", pytest.param("rest", marks=pytest.mark.slow)])
def test_prompts_of_many_lengths_are_continued_as_each_alone(family: str, method: str) -> None:
    model = tiny(family)
    for name in WRITTEN if method == "rest" else [method]:
        attended(model, name)
        asked = uneven(6, 4)
        assert model.reader.can_join_texts()
        alone = [model.write(each).tokens.tolist() for each in asked]
        model._look = 3  # as on a GPU: some tokens are made in vain
        try:
            together = [each.tokens.tolist() for each in model.answer_batch(asked) if isinstance(each, GenerateAnswer)]
        finally:
            model._look = 1
        assert together == alone, name
        assert [len(tokens) for tokens in alone] == [each.max_new_tokens for each in asked]


@pytest.mark.everyday("none-llama")
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("method", ["none", "rerope", pytest.param("rest", marks=pytest.mark.slow)])
def test_options_of_many_prompts_cost_what_each_costs_alone(family: str, method: str) -> None:
    model, rng = tiny(family), np.random.default_rng(4)
    for name in WRITTEN if method == "rest" else [method]:
        attended(model, name)
        asked = [
            Choose(
                index=0,
                cluster="",
                prompt=each.prompt,
                options=tuple(rng.integers(3, 500, size) for size in sizes),
                expected=0,
            )
            for each, sizes in zip(uneven(3, 1), [(1, 3, 2), (1, 1), (4, 1, 2, 2)], strict=True)
        ]
        expected = []
        for each in asked:
            texts = [np.concatenate([each.prompt, option]) for option in each.options]
            read = [
                Loglikelihood(index=0, cluster="", tokens=text, first_target=len(each.prompt), bytes=1, words=1)
                for text in texts
            ]
            expected.append([model.score(one).nll.sum(dtype=np.float64) for one in read])
        for chosen, costs in zip(model.answer_batch(asked), expected, strict=True):
            assert isinstance(chosen, ChooseAnswer)
            np.testing.assert_allclose(chosen.nll, costs, rtol=2e-6, err_msg=name)


@pytest.mark.everyday("none-llama", "rerope-gemma3_text")
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("method", ["none", "rerope", pytest.param("rest", marks=pytest.mark.slow)])
def test_texts_of_many_lengths_are_scored_and_marked_as_each_alone(family: str, method: str) -> None:
    model, rng = tiny(family), np.random.default_rng(5)
    scores, marks = list[AnyQuestion](), list[AnyQuestion]()
    for index, (size, start) in enumerate([(70, 20), (61, 60), (33, 1), (16, 7)]):
        tokens = rng.integers(3, 500, size)
        tokens[[start, size - 4]] = 9
        scores.append(Loglikelihood(index=index, cluster="", tokens=tokens, first_target=start, bytes=1, words=1))
        places, options = np.unique([start, size - 4]), np.array([3, 9, 77])
        marks.append(ClassifyTokens(index=index, cluster="", tokens=tokens, places=places, options=options))
    model._batch = 4
    try:
        for name in WRITTEN if method == "rest" else [method]:
            attended(model, name)
            for asked in (scores, marks):
                assert len({model.batch_key(each) for each in asked}) == 1
                assert [len(model._fitting_batch(cast(Any, asked)))] == [4]
                for each, found in zip(asked, model.answer_batch(asked), strict=True):
                    alone = answer_question(model, each)
                    assert isinstance(found, LoglikelihoodAnswer | ClassifyTokensAnswer) and isinstance(
                        alone, LoglikelihoodAnswer | ClassifyTokensAnswer
                    )
                    np.testing.assert_allclose(found.nll, alone.nll, rtol=2e-6, err_msg=name)
    finally:
        model._batch = None


def test_prompts_of_about_one_length_are_read_together_but_not_those_that_share_a_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rng = tiny("llama"), np.random.default_rng(6)
    attended(model, "none")
    base = rng.integers(3, 500, 300)
    texts = [rng.integers(3, 500, size) for size in (300, 260, 150, 120)]
    texts[2:2] = [base, np.concatenate([base[:200], rng.integers(3, 500, 90)])]
    asked = [Generate(index=place, cluster="", prompt=text, max_new_tokens=2) for place, text in enumerate(texts)]
    alone = [model.write(each).tokens.tolist() for each in asked]
    assert model.reader.can_join_texts()
    read: list[tuple[int, ...]] = []
    states = Reader.states

    def count(self: Reader, tokens: Any, *more: Any) -> Any:
        read.append(tuple(tokens.shape))
        return states(self, tokens, *more)

    monkeypatch.setattr(Reader, "states", count)
    for reuse, expected in (
        (True, [(2, 300), (1, 300), (1, 90), (2, 150), (6, 1)]),
        (False, [(4, 300), (2, 150), (6, 1)]),
    ):
        model.reuse = reuse
        assert [each.tokens.tolist() for each in model._write(asked)] == alone
        assert read == expected
        read.clear()
    model.reuse = False


@pytest.mark.parametrize(("family", "ours"), [("llama", True), ("gemma3_text", False)])
def test_a_text_is_continued_by_full_and_causal_attention_where_no_window_drops_keys(
    family: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexbench.backends.hf.reading.reader.MIN_MASKED_PAIRS", 8000)  # 89 tokens behind 100
    model = tiny(family)
    attended(model, "yarn" if ours else "none")
    tokens = np.random.default_rng(7).integers(3, 500, 190)
    stock = model.reader.base.config._attn_implementation
    whole = model.logits(tokens, [190], 100)
    continued = model.logits(tokens, [100, 89, 1], 100)
    torch.testing.assert_close(continued, whole, atol=1e-9, rtol=0)
    assert [each.hook is not None and each.hook.calls > 0 for each in model.reader.continuing.values()] == [True] * ours
    assert model.reader.base.config._attn_implementation == stock
    torch.testing.assert_close(model.logits(tokens, [190], 100), whole, atol=0, rtol=0)


def test_frequencies_that_follow_the_length_keep_lengths_apart() -> None:
    model = tiny("llama")
    model.attend(Attention(dynamic=Dynamic(4.0, 64)))
    one, other, *_ = uneven(2, 3)
    assert model.batch_key(one) != model.batch_key(other)
    model.attend(Attention())
    assert model.batch_key(one) == model.batch_key(other)


def test_a_temperature_that_counts_padding_keeps_lengths_apart() -> None:
    """Llama 4's, which changes every 8 tokens here: longer than the two texts on which joining is tried."""
    torch.manual_seed(0)
    network, rng = census.network_of("llama4_text"), np.random.default_rng(8)
    model = Hf.of(network, model_of(network, 64, "llama4"), backend(1).tokenizer, (), "random")
    asked = [
        Choose(
            index=0,
            cluster="",
            prompt=rng.integers(1, 90, size),
            options=(np.array([1, 2, 3]), np.array([4, 5])),
            expected=0,
        )
        for size in (60, 9)
    ]
    for each, chosen in zip(asked, model._choose(asked), strict=True):
        read = [
            Loglikelihood(
                index=0,
                cluster="",
                tokens=np.concatenate([each.prompt, option]),
                first_target=len(each.prompt),
                bytes=1,
                words=1,
            )
            for option in each.options
        ]
        np.testing.assert_allclose(chosen.nll, [model.score(one).nll.sum() for one in read], rtol=1e-5)
    assert len({model.batch_key(each) for each in prompts(1, 9) + prompts(1, 60)}) == 2
