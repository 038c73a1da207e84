"""Steps of writing that a GPU records: here each is called as it is, from the same buffers and tables."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact.extended import model_of
from lexbench.backends.hf.fast.graphs import MIN_RECORDED_STEPS, RepeatedStep
from lexbench.core.attention import Attention, Bands, Dynamic, HeadRatios, LogScale, PositionMap, Remap, Window
from lexbench.core.memory import OutOfMemory
from lexbench.core.task import Generate, GenerateAnswer
from lexbench.kernels import looped
from lexbench.runner.answers import answer_questions
from tests.backends.test_batches import attended, tiny, uneven
from tests.census import tiny as census
from tests.kernels.on_device import on_device

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "recordable")]


@pytest.fixture(name="recordable")
def _recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at what keeps a GPU from recording a step, from the second call on."""
    call = RepeatedStep.__call__

    def watched(self: RepeatedStep, given: torch.Tensor) -> Any:
        with on_device() if self.done else nullcontext():
            return call(self, given)

    monkeypatch.setattr(RepeatedStep, "__call__", watched)


@contextmanager
def recording(model: Hf) -> Iterator[None]:
    """Steps as on a GPU, but for the recording itself."""
    model.reader.graphs = True
    try:
        yield
    finally:
        model.reader.graphs = False


def written(model: Hf, asked: list[Generate]) -> list[list[int]]:
    return [each.tokens.tolist() for each in answer_questions(model, asked) if isinstance(each, GenerateAnswer)]


def check_alike(model: Hf, asked: list[Generate], repeats: bool) -> None:
    """Steps are repeated or not, and tokens are those of single steps, of prompts together and one by one."""
    alone = [model.write(each).tokens.tolist() for each in asked]
    with recording(model):
        assert written(model, asked) == alone
        assert [model.write(each).tokens.tolist() for each in asked] == alone
        assert model.reader.repeats(MIN_RECORDED_STEPS) is repeats
        assert not model.reader.repeats(MIN_RECORDED_STEPS - 1)
    assert [model.write(each).tokens.tolist() for each in asked] == alone


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("method", ["log_n", "leaky_rerope", "dca", "streaming_llm", "lambda_mask"])
def test_repeated_steps_write_what_single_ones_do(family: str, method: str) -> None:
    model = tiny(family)
    attended(model, method)
    # Blocks of chunks inside gpt-oss' windows are no few ranges.
    check_alike(model, uneven(6, 2 * MIN_RECORDED_STEPS), repeats=not (family == "gpt_oss" and method == "dca"))


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_steps_whose_bands_of_pairs_see_distances_of_their_own_are_repeated(family: str) -> None:
    model = tiny(family)
    query = Bands((PositionMap(4.0, 12.0, floor=True), PositionMap(2.0, 8.0, floor=True)))
    model.attend(Attention(remap=Remap(16, query, Bands((PositionMap(4.0, floor=True), PositionMap(2.0, floor=True))))))
    check_alike(model, uneven(6, 2 * MIN_RECORDED_STEPS), repeats=True)


def test_a_models_own_attention_is_repeated_where_it_drops_no_keys() -> None:
    for family, repeats in (("llama", True), ("qwen3", True), ("gemma3_text", False), ("gpt_oss", True)):
        model = tiny(family)  # gpt-oss' own is eager, and ours reads it: it needs all keys
        attended(model, "none")
        stock = model.reader.base.config._attn_implementation
        check_alike(model, uneven(3, 2 * MIN_RECORDED_STEPS), repeats)
        assert model.reader.base.config._attn_implementation == stock


@pytest.mark.parametrize(
    "attention",
    [Attention(dynamic=Dynamic(4.0, 64)), Attention(head_ratios=HeadRatios((1.2, 1.8), 3.0))],
    ids=["frequencies that follow the length", "ranked heads"],
)
def test_what_depends_on_a_whole_text_is_not_repeated(attention: Attention) -> None:
    model = tiny("qwen3")
    model.attend(attention)
    check_alike(model, uneven(2, 2 * MIN_RECORDED_STEPS), repeats=False)


def test_a_temperature_that_counts_the_room_of_the_cache_is_not_repeated() -> None:
    """Llama 4's: it changes every 8,192 tokens, so that no trial of a few tokens shows it."""
    torch.manual_seed(0)
    network = census.network_of("llama4_text")
    for module in network.modules():
        if hasattr(module, "floor_scale"):
            module.floor_scale = 8192
    model = Hf.of(network, model_of(network, 64, "llama4"), tiny("llama").tokenizer, (), "random")
    attended(model, "log_n")
    with recording(model):
        assert not model.reader.repeats(MIN_RECORDED_STEPS)
        network.config.attn_temperature_tuning = False
        model.reader.repeated = None
        assert model.reader.repeats(MIN_RECORDED_STEPS)


def test_windows_in_which_keys_stand_in_no_few_ranges_are_found_before_texts_reach_them() -> None:
    """Layers see 16 tokens, and blocks of 64 inside them are no few ranges: texts of the trial are shorter."""
    model = tiny("gpt_oss")
    attended(model, "bca")
    check_alike(model, uneven(6, 2 * MIN_RECORDED_STEPS), repeats=False)


def test_an_attention_that_has_few_ranges_inside_windows_alone_is_not_repeated() -> None:
    """Short texts, shorter than the layers' window of 16, would end in a refusal where single steps answer."""
    torch.manual_seed(0)
    network = census.network_of("mistral").double()
    model = Hf.of(network, model_of(network, 64, "mistral"), tiny("llama").tokenizer, (), "random")
    far = Remap(20, PositionMap(math.inf, 20), PositionMap(math.inf))
    short = [Generate(index=0, cluster="", prompt=np.arange(3, 7), max_new_tokens=MIN_RECORDED_STEPS + 2)]
    model.attend(Attention(remap=far, mask=Window(24, 2), query_scale=LogScale(5)))
    check_alike(model, short, repeats=False)
    model.attend(Attention(remap=far, query_scale=LogScale(5)))
    check_alike(model, short, repeats=True)


def test_a_trial_without_memory_says_nothing_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    attended(model, "none")
    model.reader._pads.clear()
    with monkeypatch.context() as patch:
        patch.setattr(model.reader, "_joins_right", raising(MemoryError()))
        with pytest.raises(OutOfMemory):
            model.reader.can_join_texts()
    assert model.reader.can_join_texts()
    with monkeypatch.context() as patch:
        patch.setattr(model.reader, "_joins_right", raising(RuntimeError("no padding")))
        model.reader._pads.clear()
        assert not model.reader.can_join_texts()
    assert not model.reader.can_join_texts()
    model.reader._pads.clear()


def raising(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_rows_that_end_leave_the_others_as_they_are() -> None:
    model = tiny("llama")
    attended(model, "leaky_rerope")
    asked = uneven(6, 3 * MIN_RECORDED_STEPS)
    alone = [model.write(each).tokens.tolist() for each in asked]
    # The longest two, and whichever else writes these tokens, end early.
    model._ends = frozenset((alone[5][3], alone[1][5], alone[2][5]))
    try:
        expected = [model.write(each).tokens.tolist() for each in asked]
        assert 2 * sum(len(each) < 3 * MIN_RECORDED_STEPS for each in expected) >= len(asked)
        with recording(model):
            assert written(model, asked) == expected
    finally:
        model._ends = frozenset()


def test_a_kept_prompt_serves_the_next_question() -> None:
    model = tiny("llama")
    attended(model, "rerope")
    rng = np.random.default_rng(5)
    tokens = rng.integers(3, 500, 80)
    asked = [
        Generate(index=place, cluster="", prompt=np.append(tokens[:size], place + 3), max_new_tokens=room)
        for place, (size, room) in enumerate(
            ((60, 2 * MIN_RECORDED_STEPS), (60, 9 * MIN_RECORDED_STEPS), (80, 3 * MIN_RECORDED_STEPS))
        )
    ]
    alone = [model.write(each).tokens.tolist() for each in asked]
    with recording(model):
        model.reuse = True
        try:
            assert [model.write(each).tokens.tolist() for each in asked] == alone
        finally:
            model.reuse = False


def test_code_that_sees_the_buffers_length_as_the_texts_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = looped.attend

    def wrong(*given: Any) -> Any:
        found = attend(*given)
        return found * (1 + given[1].values.shape[2] / 1000)

    model = tiny("llama")
    model.attend(Attention(mask=Window(8)))
    monkeypatch.setattr(looped, "attend", wrong)
    check_alike(model, uneven(1, 2 * MIN_RECORDED_STEPS), repeats=False)
    model.attend(Attention())


class OnGpu:
    """Stands for a tensor on a GPU, as far as `RepeatedStep` asks."""

    is_cuda = True
    device = "cuda:0"

    def clone(self) -> Any:
        return self

    def copy_(self, other: Any) -> None: ...


@pytest.mark.parametrize("tried", [False, True])
def test_a_trial_takes_one_step_that_may_not_wait_before_one_is_recorded(
    tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, seen = ["default"], list[tuple[str, str]]()
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def record(self: RepeatedStep, given: Any) -> None:
        seen.append(("record", modes[-1]))
        self.recorded = False

    monkeypatch.setattr(RepeatedStep, "_record", record)

    def step(given: Any) -> tuple[Any, ...]:
        seen.append(("step", modes[-1]))
        return ()

    given: Any = OnGpu()
    repeated = RepeatedStep(step, tried)
    for _ in range(4):
        repeated(given)
    single, watched = ("step", "default"), ("step", "error")
    assert seen == [single, *([watched] if tried else []), ("record", "default"), *([single] * (2 if tried else 3))]
    assert repeated.done == 4 and modes[-1] == "default"


def test_a_step_gets_what_it_is_given_each_time() -> None:
    repeated = RepeatedStep(lambda given: (given + 1, given * 2))
    for number in (3, 7, -1):
        more, twice = repeated(torch.tensor([number]))
        assert (int(more), int(twice)) == (number + 1, 2 * number)
