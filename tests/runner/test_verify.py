"""The self-check passes sound methods, and catches each fault that reference implementations shipped with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import lexbench
from lexbench import Attention
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact import hook
from lexbench.backends.hf.exact.rotary import AttentionInstaller
from lexbench.backends.hf.exact.state import KeyValueState
from lexbench.backends.hf.reading.reader import Reader
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Blocks, LogScale, PositionMap, Remap, Shift, Slopes, Window
from lexbench.core.task import Encoded
from lexbench.corpora.synthetic import Synthetic
from lexbench.kernels import dense
from lexbench.runner.verify import MethodCheck, Preflight, check_cached_reading, failure_of_checks, verify_attention

LENGTH = 280
"""Of texts; lexlet is trained at 256."""
HALVED = Remap(64, PositionMap(2.0, 32.0), PositionMap(2.0))
SHIFTED = Remap(64, PositionMap(offset=-32.0), PositionMap())
"""Distance 64 is seen as 32: not as in the near window."""


@pytest.fixture(scope="module")
def hf() -> Any:
    return Hf(read_model({**registry.read_named_config("model", "lexlet")}))


pytestmark = pytest.mark.usefixtures("one_thread")


def results(hf: Any, attention: Attention, length: int = LENGTH) -> dict[str, bool | None]:
    return {check.name: check.passed for check in verify_attention(hf, attention, length)}


@pytest.mark.everyday("none", "remap")
@pytest.mark.parametrize(
    "attention",
    [
        Attention(),
        Attention(remap=HALVED),
        Attention(mask=Window(64, sinks=2)),
        Attention(mask=Blocks(64)),
        Attention(bias=Slopes((0.5, 0.25, 0.1, 0.05, 0.5, 0.25, 0.1, 0.0))),
        Attention(query_scale=LogScale(256), layers=(0, 2), otherwise=Attention(remap=HALVED, scale=1.1)),
        Attention(mixture=(Attention(remap=HALVED), Attention(mask=Window(200)))),
    ],
    ids=lambda attention: "+".join(attention.slots()) or "none",
)
def test_sound_attentions_pass(hf: Any, attention: Attention) -> None:
    found = results(hf, attention)
    assert False not in found.values()
    assert found["cached"] is True and found["realised"] is True and found["batch"] is True


@pytest.mark.slow
def test_what_is_promised_depends_on_the_length(hf: Any) -> None:
    rerope = lexbench.method("rerope", window=200).attention(hf.model, LENGTH)
    pi = lexbench.method("pi", factor=2).attention(hf.model, LENGTH)
    for attention, length, applied, identity in (
        (rerope, 128, None, True),
        (rerope, LENGTH, True, True),
        (pi, LENGTH, True, None),
    ):
        found = results(hf, attention, length)
        assert (found["applied"], found["identity"]) == (applied, identity)


def sabotage(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    """Replaces our kernel by `change(kernel, queries, keys, values, positions, attention, rotate, scaling)`."""
    kernel = hook.kernel

    def wrong(*arguments: Any, form: str) -> Any:
        return change(kernel, *arguments)

    monkeypatch.setattr(hook, "kernel", wrong)


def window_beyond_by_one(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any) -> Any:
    """Near where rel <= window, as STRING's released code counts."""
    if isinstance(attention.remap, Remap):
        attention = replace(attention, remap=replace(attention.remap, window=attention.remap.window + 1))
    return kernel(q, k, v, at, attention, *rest)


def only_in_prefill(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any) -> Any:
    """Decoding forgets the method, as patches of a prefill path do."""
    return kernel(q, k, v, at, attention if q.shape[2] == k.shape[2] else Attention(), *rest)


def positions_in_bfloat16(
    kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, rotate: Any, *rest: Any
) -> Any:
    return kernel(q, k, v, at, attention, lambda x, p: rotate(x, p.to(torch.bfloat16).to(p.dtype)), *rest)


def nothing(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any) -> Any:
    return kernel(q, k, v, at, Attention(), *rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        (window_beyond_by_one, {"realised"}),
        (only_in_prefill, {"cached"}),
        (positions_in_bfloat16, {"realised"}),
        (nothing, {"realised"}),
    ],
)
def test_faults_of_kernels_are_caught(
    hf: Any, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any], caught: set[str]
) -> None:
    hf.attend(Attention(remap=SHIFTED))  # the way in is checked before, with a sound kernel
    sabotage(monkeypatch, fault)
    found = results(hf, Attention(remap=SHIFTED))
    assert caught <= {name for name, passed in found.items() if passed is False}


def nearer_by_one(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any) -> Any:
    """One key a query is seen as a far one: where that place is the window itself, nothing else differs."""
    if isinstance(attention.remap, Remap):
        attention = replace(attention, remap=replace(attention.remap, window=attention.remap.window - 1))
    return kernel(q, k, v, at, attention, *rest)


class OnePlaceLess(LogScale):
    """ln i in place of ln(i + 1): logits move by 1e-4 of their spread."""

    def __call__(self, positions: Any) -> Any:
        return super().__call__(np.maximum(positions - 1, 0))


def scaled_as_one_before(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, *rest: Any) -> Any:
    if attention.query_scale is not None:
        attention = replace(attention, query_scale=OnePlaceLess(128))
    return kernel(q, k, v, at, attention, *rest)


@pytest.mark.parametrize(
    ("attention", "fault"),
    [
        (Attention(remap=Remap(64, PositionMap(offset=64.0, cap=64.0), PositionMap(cap=0.0))), nearer_by_one),
        (Attention(query_scale=LogScale(128)), scaled_as_one_before),
    ],
    ids=["window", "scale"],
)
def test_faults_of_a_single_key_or_of_one_part_in_a_thousand_are_caught(
    hf: Any, monkeypatch: pytest.MonkeyPatch, attention: Attention, fault: Callable[..., Any]
) -> None:
    hf.attend(attention)
    assert results(hf, attention)["realised"] is True
    sabotage(monkeypatch, fault)
    assert results(hf, attention)["realised"] is False


def test_one_layer_without_the_method_is_named(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ntk = lexbench.method("ntk", factor=2).attention(hf.model, LENGTH)
    attend = Hf.attend
    monkeypatch.setattr(Hf, "attend", lambda self, held: attend(self, replace(held, layers=(0, 1, 2))))
    [found] = [each for each in verify_attention(hf, ntk, LENGTH) if each.name == "realised"]
    assert (found.passed, found.explanation) == (False, "layer 3 has another Attention")
    monkeypatch.undo()

    def unturned(module: Any, given: Any, named: Any) -> Any:
        cos, sin = named["position_embeddings"]
        return given, {**named, "position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}

    layer = hf.reader.network.model.layers[3].self_attn
    with layer.register_forward_pre_hook(unturned, with_kwargs=True):
        [found] = [each for each in verify_attention(hf, ntk, LENGTH) if each.name == "realised"]
    assert found.passed is False and "layers.3.self_attn" in found.explanation


@pytest.mark.slow
def test_memory_of_earlier_texts_is_caught(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that only grows, as transformers' dynamic rope keeps it from one text to the next."""
    longest = [0]

    def grows(kernel: Any, q: Any, k: Any, v: Any, at: Any, attention: Attention, rotate: Any, scaling: float) -> Any:
        longest[0] = max(longest[0], k.shape[2])
        return kernel(q, k, v, at, attention, lambda x, p: rotate(x, p * 200 / max(200, longest[0])), scaling)

    attention = Attention(remap=HALVED)
    hf.attend(attention)
    sabotage(monkeypatch, grows)
    short = hf.logits(range_of(200), [200], 200)
    assert False in results(hf, attention).values()
    assert not torch.allclose(hf.logits(range_of(200), [200], 200), short)


def range_of(length: int) -> Any:
    import numpy as np

    return np.arange(length) % 100


def test_a_rotary_module_that_is_not_changed_is_caught(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pi = lexbench.method("pi", factor=2).attention(hf.model, LENGTH)
    monkeypatch.setattr(AttentionInstaller, "_install", lambda self, rotary: None)
    assert results(hf, pi)["applied"] is False


@pytest.mark.slow
def test_logits_that_are_no_numbers_are_caught(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.attend(Attention(remap=HALVED))
    sabotage(monkeypatch, lambda kernel, *arguments: kernel(*arguments) * float("nan"))
    found = results(hf, Attention(remap=HALVED))
    assert found["finite"] is False and found["cached"] is False


def test_a_failing_method_is_refused_with_what_failed() -> None:
    checks = [
        MethodCheck("finite", True, "yes"),
        MethodCheck("cached", False, "3e-01"),
        MethodCheck("identity", None, "not promised"),
    ]
    assert failure_of_checks(checks) == "failed its self-check: cached (3e-01)"
    assert failure_of_checks(checks[:1]) is None


def test_a_run_refuses_the_cells_of_a_failing_method(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = [MethodCheck("cached", False, "3e-01")]
    monkeypatch.setattr("lexbench.runner.verify.verify_attention", lambda *_: checks)
    run = lexbench.run("lexlet", ["none", "pi"], "passkey", lengths=[128], n=2, results=tmp_path)
    records = run.records().set_index("method")
    assert records.loc["pi", "refused"] == "pi failed its self-check: cached (3e-01)"
    assert list(records.loc[["none"], "refused"].isna().unique()) == [True]


def forgets(self: KeyValueState, tower: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Each piece is read as if nothing were before it."""
    self.cache = DynamicCache()
    return read_on(self, tower, tokens)


read_on = KeyValueState.read


@pytest.mark.slow
def test_a_model_whose_cache_forgets_is_scored_and_neither_writes_nor_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a family whose state transformers keeps wrongly: the model without a method is checked, too."""
    tasks: list[Any] = ["last_segment", "passkey", {"name": "needle", "options": 4}]
    monkeypatch.setattr(
        Reader, "_state_of", lambda self: KeyValueState
    )  # the few tokens read at the opening show it, too
    monkeypatch.setattr(KeyValueState, "read", forgets)
    run = lexbench.run("lexlet", "none", tasks, lengths=[128], n=2, corpus="synthetic", results=tmp_path)
    refused = run.records().drop_duplicates("task").set_index("task").refused
    assert refused.isna().to_dict() == {"last_segment": True, "passkey": False, "needle(options=4)": False}
    assert refused.dropna().str.fullmatch(r"none failed its self-check: cached \(\de[+-]\d+\): .*").all()


class Counted:
    calls = 0

    def __call__(self, *arguments: Any) -> list[MethodCheck]:
        self.calls += 1
        return check_cached_reading(*arguments)


@pytest.mark.slow
def test_checks_of_a_run_are_made_once(hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*arguments: Any) -> list[MethodCheck]:
        asked.append(arguments)
        return verify_attention(*arguments)

    monkeypatch.setattr("lexbench.runner.verify.verify_attention", counted)
    attention = Attention(mask=Window(16))
    for _ in range(2):
        preflight = Preflight(tmp_path, hf, "1")
        assert preflight.failure(attention, 100) is None
        assert preflight.failure(attention, 100) is None
    assert len(asked) == 1
    with monkeypatch.context() as elsewhere:  # what holds on one device is tried anew on another
        elsewhere.setattr(hf, "device", "cuda:0", raising=False)
        assert Preflight(tmp_path, hf, "1").failure(attention, 100) is None
    assert len(asked) == 2
    # Angles of a million lose precision in float32: a task measures that, and the check is one of nearer positions.
    assert Preflight(tmp_path, hf, "1").failure(Attention(remap=Shift(1 << 20)), 1 << 20) is None
    asked.clear()
    assert Preflight(tmp_path, hf, "1").failure(Attention(), 100) is None
    assert not asked  # the empty attention changes nothing
    monkeypatch.setattr("lexbench.runner.verify.check_cached_reading", counted_cache := Counted())
    hf.attend(Attention())
    for length in (600, 900):  # from 512 tokens on, one check holds for all lengths
        assert Preflight(tmp_path, hf, "1").failure_of_cache(Attention(), length) is None
    assert counted_cache.calls == 1


@pytest.mark.slow
def test_tokens_that_keep_their_rotation_are_no_fault(hf: Any) -> None:
    slow = hf.model.inv_freq() / 4
    assert results(hf, Attention(inv_freq=slow, keep_first=16), 300)["applied"] is True
    assert results(hf, Attention(inv_freq=slow, keep_first=16), 300)["identity"] is True
    assert results(hf, Attention(inv_freq=slow, keep_first=400), 300)["applied"] is None


@pytest.mark.slow
def test_a_change_no_larger_than_rounding_is_none(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch, lambda kernel, q, k, v, at, attention, *rest: dense.attend(q, k, v, at, Attention(), *rest))
    found = results(hf, Attention(mask=Window(128)))
    assert found["applied"] is False and found["realised"] is False


def test_checks_read_sentences_and_random_tokens_where_the_tokenizer_has_no_words_for_them(
    hf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    logits = hf.logits

    def recorded(tokens: Any, *rest: Any) -> torch.Tensor:
        read.append(tokens)
        made: torch.Tensor = logits(tokens, *rest)
        return made

    monkeypatch.setattr(hf, "logits", recorded)
    check_cached_reading(hf, 64)
    (document,) = Synthetic(count=1, words=64).documents()
    assert document.text.startswith(hf.tokenizer.decode(read[-1])) and len(read[-1]) == 64
    nothing = Encoded(np.zeros(500, np.int64), np.arange(500), "")
    monkeypatch.setattr(hf, "tokenizer", SimpleNamespace(encode=lambda text: nothing, vocabulary=512))
    check_cached_reading(hf, 64)
    assert len(set(read[-1].tolist())) > 32  # 64 draws among 512 tokens


@pytest.mark.parametrize("content", ['{"a": ', "[]", '{"a": 3}'])
def test_a_damaged_memory_of_checks_is_one_line(hf: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "verified.json").write_text(content)
    with pytest.raises(ValueError, match=r"verified\.json must be .*JSON.*: delete it"):
        Preflight(tmp_path, hf, "1")
