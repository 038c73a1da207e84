"""What the vLLM backend does with an engine, shown on one that is made up; vllm/ has the real one."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import lexbench
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention, Floats
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Loglikelihood, MeasureDivergence
from lexbench.kernels.reference import Angles
from lexbench.parts.serving.completions import Likely, Reply, Request
from lexbench.parts.serving.vllm import backend as vllm_backend
from lexbench.parts.serving.vllm import engine as vllm_engine
from lexbench.parts.serving.vllm.angles import ExpectedAngles
from lexbench.parts.serving.vllm.backend import Vllm
from lexbench.parts.serving.vllm.engine import CosSinTable

MODEL = read_model(registry.read_named_config("model", "lexlet"))
YARN = lexbench.method("yarn").attention(MODEL, 512)


class Engine:
    """Turns as its config says, in float64; what goes wrong is set from outside."""

    started: ClassVar[list[dict[str, Any]]] = []
    arguments: ClassVar[dict[str, Any]] = {}
    ended = 0
    tables_shown = 1
    writable = True
    interrupted = False
    wrong = 0.0

    def __init__(self, hf_overrides: dict[str, Any], **arguments: Any) -> None:
        self.started.append(hf_overrides)
        type(self).arguments = arguments
        self.rows = arguments["max_model_len"]
        rope = hf_overrides.get("rope_parameters", {})
        divided = np.asarray(rope.get("long_factor", rope.get("factor", 1.0)))
        base = rope.get("rope_theta", 10000.0)
        self.inv_freq: Floats = MODEL.inv_freq(base) / divided
        self.scale, self.first, self.own = rope.get("long_mscale", 1.0), 0, MODEL.inv_freq()

    def tables(self, places: Sequence[int]) -> list[CosSinTable]:
        at = np.asarray(places)[:, None]
        angles = np.where(at < self.first, at * self.own, at * self.inv_freq)
        scale = np.where(at < self.first, 1.0, self.scale) * np.ones_like(angles)
        cos, sin = scale * np.cos(angles) + self.wrong, scale * np.sin(angles)
        return [CosSinTable("Made", self.rows, True, self.writable, cos, sin)] * self.tables_shown

    def turn(self, inv_freq: Floats, scale: float, first: int, own: Floats) -> None:
        self.inv_freq, self.scale, self.first, self.own = inv_freq, scale, first, own

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        if self.interrupted:
            raise KeyboardInterrupt
        return [
            np.zeros(len(each.tokens) - each.first_target, np.float32) for each in requests if isinstance(each, Likely)
        ]

    def close(self) -> None:
        type(self).ended += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    made = type("Made", (Engine,), {"started": [], "ended": 0})
    monkeypatch.setattr(vllm_backend, "Engine", made)
    monkeypatch.setattr(vllm_backend, "_version", lambda: "vllm 0")
    return made  # type: ignore[return-value]


class Requests:
    """vLLM's `LLM.generate`: counts the log-probabilities of prompts that it holds at once."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def generate(self, prompts: list[Any], parameters: list[Any], use_tqdm: bool) -> list[Any]:
        sizes = [len(each["prompt_token_ids"]) for each in prompts]
        self.held.append(sum(n for n, one in zip(sizes, parameters, strict=True) if one["prompt_logprobs"] is not None))
        within = [
            {token: SimpleNamespace(logprob=-float(place)) for token in each["prompt_token_ids"][place : place + 1]}
            for each in prompts
            for place in range(len(each["prompt_token_ids"]))
        ]
        outputs, start = [], 0
        for size, one in zip(sizes, parameters, strict=True):
            last = {one["logprob_token_ids"][0]: SimpleNamespace(logprob=-float(size))}
            outputs.append(
                SimpleNamespace(
                    outputs=[SimpleNamespace(logprobs=[last])], prompt_logprobs=within[start : start + size]
                )
            )
            start += size
        return outputs


def test_log_probabilities_of_prompts_are_held_for_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 texts of 131,072 tokens would be 8.4 million objects. Here with a bound of 100: at most 3 of 31 tokens."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: given))
    monkeypatch.setattr(vllm_engine, "MAX_PROMPT_PLACES", 100)
    made = vllm_engine.Engine.__new__(vllm_engine.Engine)
    made._llm = Requests()
    requests = [Likely(tokens=np.arange(32), first_target=8) for _ in range(7)]
    alone = Likely(tokens=np.arange(32), first_target=31)  # its prompt's likelihoods are not asked for
    long = Likely(tokens=np.arange(400), first_target=1)
    replies: list[Any] = list(made.ask([*requests[:3], alone, *requests[3:], long, requests[0]]))
    # A prompt is a text without its last token: 3, 3, 1 of 31 tokens; 399, more than the bound, by itself; 31.
    assert made._llm.held == [93, 93, 31, 399, 31]
    assert [len(reply) for reply in replies] == [*[24] * 3, 1, *[24] * 4, 399, 24]
    np.testing.assert_array_equal(replies[0], np.arange(8.0, 32.0))


def score(length: int = 64) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="a", tokens=np.arange(length), first_target=8, bytes=1, words=1)


def test_one_engine_is_written_for_every_method(engine: type[Engine]) -> None:
    backend = Vllm(MODEL, longest=512)
    for name in ("ntk_by_parts", "yarn", "none", "pi"):
        backend.attend(lexbench.method(name).attention(MODEL, 512))
    backend.attend(replace(YARN, keep_first=7))
    [stated] = engine.started
    assert stated["rope_parameters"]["rope_type"] == "longrope" and stated["max_position_embeddings"] == 512
    assert engine.ended == 0


def test_engines_are_started_anew_where_that_is_asked_or_tables_cannot_be_written(engine: type[Engine]) -> None:
    for writable, restart in ((True, True), (False, False)):
        engine.started.clear()
        engine.writable, engine.ended = writable, 0
        backend = Vllm(MODEL, longest=512, restart=restart)
        for name in ("none", "ntk_by_parts", "pi"):
            backend.attend(lexbench.method(name).attention(MODEL, 512))
        kinds = [each["rope_parameters"]["rope_type"] for each in engine.started]
        assert kinds == ["default", "longrope", "linear"]
        assert engine.ended == 2
        with pytest.raises(
            Refused, match=r"cannot realise .*keep_first.*: (rope parameters cannot|its rotary module has)"
        ):
            backend.attend(replace(YARN, keep_first=7))


def test_an_engine_that_turns_otherwise_is_refused_once_and_for_all(engine: type[Engine]) -> None:
    engine.wrong = 1e-3
    backend = Vllm(MODEL, longest=512)
    for _ in range(3):
        with pytest.raises(
            Refused, match=r"does not rotate lexlet correctly: cos and sin of pair \d+ at position \d+ di"
        ):
            backend.attend(Attention())
    assert len(engine.started) == 1 and engine.ended == 1


def test_rounding_of_the_dtype_is_allowed_for(engine: type[Engine]) -> None:
    engine.wrong = 2.0**-9  # half of a unit in bfloat16's last place, at 1
    Vllm(MODEL, longest=512, dtype="bfloat16").attend(YARN)
    with pytest.raises(Refused, match="does not rotate"):
        Vllm(MODEL, longest=512, dtype="float16").attend(YARN)


def test_an_engine_without_a_table_proves_nothing(engine: type[Engine]) -> None:
    engine.tables_shown = 0
    with pytest.raises(Refused, match="it has no table of cos and sin to compare"):
        Vllm(MODEL, longest=512).attend(YARN)


def test_a_model_whose_facts_lack_the_base_cannot_be_proved(engine: type[Engine]) -> None:
    with pytest.raises(Refused, match=r"it rotates, and the facts of the model have no base: give model\.rope_b"):
        Vllm(replace(MODEL, rope_base=None), longest=512).attend(Attention())


FAST, SLOW = Angles(np.array([1.0, 0.1])), Angles(np.array([0.5, 0.05]), scale=2.0)
"""Two kinds of layers of a model."""


def table(*inv_freq: float, scale: float = 1.0, rows: int | None = 64, halves: bool = True) -> CosSinTable:
    """By the formula: pair p at position i turns by inv_freq[p] i."""
    angles = [[frequency * place for frequency in inv_freq] for place in range(64)]
    cos, sin = (np.array([[scale * turn(each) for each in row] for row in angles]) for turn in (math.cos, math.sin))
    return CosSinTable("Made", rows, halves, True, cos, sin)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([table(1.0, 0.1), table(0.5, 0.05, scale=2.0)], None),
        ([table(0.5, 0.05, scale=2.0), table(1.0, 0.1), table(1.0, 0.1, rows=None)], None),
        ([table(1.0, 0.1)], "cos and sin of pair"),  # nobody turns as the second kind does
        ([table(1.0, 0.1), table(0.5, 0.05, scale=2.0), table(1.0, 0.2)], "cos and sin of pair 1 at position"),
        ([table(1.0, 0.1), table(0.5, 0.05)], "cos and sin of pair"),
        (
            [table(1.0, 0.1), table(0.5, 0.05, scale=2.0, rows=63)],
            r"its table \(Made\) ends at 63 positions, asked for 64",
        ),
        (
            [table(1.0, 0.1), table(0.5, 0.05, scale=2.0, halves=False)],
            "Made pairs other dimensions than the half layout",
        ),
        ([table(1.0, 0.1, 0.2), table(0.5, 0.05, scale=2.0)], "Made rotates 3 pairs, not 2"),
        ([], "it has no table of cos and sin to compare"),
    ],
)
def test_every_kind_of_layer_has_a_table_and_every_table_its_kind(tables: list[CosSinTable], said: str | None) -> None:
    proof = ExpectedAngles(Attention(), [FAST, SLOW], longest=64, dtype="float32")
    assert proof.places.tolist() == list(range(64))
    fault = proof.find_difference(tables)
    assert fault is None if said is None else fault is not None and re.match(said, fault)


def test_every_token_that_turns_otherwise_is_compared() -> None:
    proof = ExpectedAngles(Attention(keep_first=9), [FAST], longest=10_000, dtype="float32")
    assert {*range(10), 9_999} <= {*proof.places.tolist()} and len(proof.places) == 65 + 9


def test_an_interrupted_question_ends_the_engine(engine: type[Engine]) -> None:
    backend = Vllm(MODEL, longest=512)
    backend.attend(YARN)
    engine.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        backend.score(score())
    assert engine.ended == 1
    engine.interrupted = False
    backend.attend(YARN)
    assert len(engine.started) == 2
    np.testing.assert_array_equal(backend.score(score()).nll, np.zeros(56))


def test_an_engine_that_does_not_start_is_put_off_and_not_tried_again(
    engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fails(**given: Any) -> None:
        tries.append(given)
        raise Deferred("vllm's engine does not start (no memory)")

    monkeypatch.setattr(vllm_backend, "Engine", fails)
    backend = Vllm(MODEL, longest=512)
    for _ in range(2):
        with pytest.raises(Deferred, match="no memory"):
            backend.attend(Attention())
    assert len(tries) == 1


def test_more_tokens_than_it_was_started_for_are_put_off(engine: type[Engine]) -> None:
    backend = Vllm(MODEL, longest=32)
    backend.attend(Attention())
    with pytest.raises(Deferred, match=r"was started for 32 tokens, asked for 64: give backend\.longest"):
        backend.score(score())


def test_options_are_asked_whole_where_no_prefix_is_kept(engine: type[Engine]) -> None:
    assert Vllm(MODEL, longest=32).by_prefix
    assert not Vllm(MODEL, longest=32, prefix_caching=False).by_prefix


def test_a_changed_config_is_another_kernel(engine: type[Engine]) -> None:
    kernels = {Vllm(MODEL, longest=32, hf_overrides=each).kernel for each in ({}, {"rms_norm_eps": 1.0}, {"a": 1})}
    assert len(kernels) == 3 and "vllm+prefix_cache" in kernels


def test_settings_of_the_engine_reach_it_and_name_the_kernel(engine: type[Engine]) -> None:
    settings = {"quantization": "fp8", "kv_cache_dtype": "fp8", "speculative_config": {"method": "ngram"}}
    backend = Vllm(MODEL, longest=32, engine=settings)
    assert re.fullmatch(
        r"vllm\+prefix_cache\+kv_cache_dtype fp8\+quantization fp8\+speculative_config [0-9a-f]{8}", backend.kernel
    )
    backend.attend(Attention())
    assert engine.arguments.items() >= settings.items()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": {"dtype": "half"}}, "backend.engine must leave dtype to lexbench, got 'half': leave it out"),
        ({"engine": {"model": "x"}}, "backend.engine must leave model to lexbench, got 'x': leave it out"),
        (
            {"engine": {"logprobs_mode": "raw_logits"}},
            "backend.engine must leave logprobs_mode to lexbench, got 'raw_l",
        ),
        ({"dtype": "int8"}, "backend.dtype must be one of auto, float32, float16, bfloat16, got int8"),
        ({"at_once": 0}, "backend.at_once must be at least 1, got 0"),
        ({"tensor_parallel": 0}, "backend.tensor_parallel must be at least 1, got 0"),
        ({"memory_share": 1.5}, "backend.memory_share must be above 0 and at most 1, got 1.5: e.g. 0.9"),
    ],
)
def test_bad_parameters_are_one_line(engine: type[Engine], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Vllm(MODEL, **{"longest": 64, **given})


def test_without_vllm_the_line_to_install_it_is_said() -> None:
    try:
        import vllm as installed  # noqa: F401
    except ImportError:
        with pytest.raises(
            ValueError,
            match=r"vLLM, which is not installed: in a clone of lexbench, pip install '\.\[vllm\]', or",
        ):
            Vllm(MODEL, longest=64)


def test_a_compressed_cache_is_the_engines_own_setting(engine: type[Engine]) -> None:
    backend = Vllm(MODEL, longest=512)
    with pytest.raises(
        Refused, match=r"^vllm cannot realise cache on lexlet: its engine has formats of its own, which.*hf$"
    ):
        backend.attend(lexbench.method("kv").attention(MODEL, 512))
    question = MeasureDivergence(index=0, cluster="", tokens=np.arange(8), first_target=4)
    with pytest.raises(Refused, match="vllm does not show the logits of a whole vocabulary: use backend=hf"):
        next(backend.answers([question]))
    given = Vllm(MODEL, longest=512, engine={"kv_cache_dtype": "fp8"})
    assert "kv_cache_dtype" in given.kernel and "fp8" in given.kernel
