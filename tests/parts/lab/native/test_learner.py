"""One update: pieces, halves, compiled networks, what decays."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.encodings.base import RotaryEncoding
from lexbench.parts.lab.encodings.kerple import MIN_WEIGHT, Kerple
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder
from lexbench.parts.lab.native.learner import Learner, copied_targets
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, train

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48}
STAGES = ({"steps": 4, "lessons": {"text": 1.0}},)
NAMES = registry.registered_names("encoding")
GIVEN: dict[str, dict[str, object]] = {
    "bipe": {"separators": [3, 5]},
    "abacus": {"digits": list(range(20))},
    "coupling": {"digits": list(range(20))},
    "irope": {"every": 2},
}


def learner(name: str, **changed: object) -> Learner:
    settings = {"stages": STAGES, "shape": SHAPE, "vocabulary": 97, "trained_length": 24, "batch": 7, **changed}
    recipe = Recipe(**settings)  # type: ignore[arg-type]
    spec = {"name": name, **GIVEN.get(name, {})}
    decoder = Decoder(recipe.sizes(), build.build_encoding(spec, recipe.sizes(), recipe.length))
    decoder.initialise(0)
    return Learner(decoder, recipe, None)


def rows() -> torch.Tensor:
    return torch.randint(0, 97, (7, 24), generator=torch.Generator().manual_seed(0))


def gradients(own: Learner) -> dict[str, torch.Tensor]:
    own.add_gradient(rows(), 3)
    return {name: weight.grad for name, weight in own.decoder.named_parameters() if weight.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pieces_have_the_gradient_of_the_whole_batch(name: str) -> None:
    whole, pieces = gradients(learner(name)), gradients(learner(name, accumulate=3))  # 3, 2 and 2 rows
    assert whole.keys() == pieces.keys()
    for key, gradient in whole.items():
        torch.testing.assert_close(pieces[key], gradient, atol=2e-6, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_has_nearly_the_same_losses(name: str) -> None:
    own = learner(name)
    with torch.no_grad():
        exact = own.losses(rows())
        own.half = True
        half = own.losses(rows())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.03, rtol=0.01)  # bfloat16 keeps 8 bits
    own.add_gradient(rows(), 0)


@pytest.mark.parametrize(("precision", "without", "with_them"), [("bfloat16", False, True), (None, False, False)])
def test_half_precision_is_for_processors_that_have_it(
    precision: str | None, without: bool, with_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for slow, half in ((True, without), (False, with_them)):
        monkeypatch.setattr("lexbench.parts.lab.native.learner.half_matmul_is_slow", lambda dtype, slow=slow: slow)
        assert learner("rope", precision=precision).half == half


def test_losses_are_the_cross_entropy_of_the_next_token() -> None:
    own = learner("rope")
    with torch.no_grad():
        found = own.losses(rows())
        logits = own.decoder(rows()[:, :-1]).double()
    expected = logits.logsumexp(-1) - logits.gather(-1, rows()[:, 1:, None])[..., 0]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def test_copied_targets_repeat_a_pair_of_neighbours() -> None:
    found = copied_targets(torch.tensor([[0, 5, 6, 7, 5, 6, 8, 6, 7, 7, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]))
    assert found[0].nonzero().flatten().tolist() == [4, 7, 9]  # 5 6, then 6 7, then 7 7 (overlapping)
    assert not found[1].any()


def test_only_copied_targets_of_random_rows_count() -> None:
    """A row of text counts as before; a row of copies has the mean loss of its copied targets."""
    tokens = torch.tensor([[0, 5, 6, 7, 5, 6, 8], [0, 5, 6, 7, 5, 6, 8]])
    own = learner("rope", counted="copied")
    with torch.no_grad():
        losses = own.losses(tokens)
    found = own.add_gradient(tokens, 0, ["block_pieces", "text"]).mean(1)
    torch.testing.assert_close(found, torch.stack([losses[0, 4], losses[1].mean()]), atol=1e-6, rtol=0)


def test_only_answers_of_a_question_count() -> None:
    """The mean loss of the two answers, given the whole row; rows that do not tell count as under `copied_targets`."""
    tokens = torch.tensor([[0, 5, 6, 7, 5, 6, 8], [0, 5, 6, 7, 5, 6, 8]])
    own = learner("rope", counted="answers")
    with torch.no_grad():
        losses = own.losses(tokens)
    asked = tokens.clone()
    asked[0, 1:5] = ~asked[0, 1:5]
    found = own.add_gradient(asked, 0, ["copy", "text_pieces"]).mean(1)
    torch.testing.assert_close(found, torch.stack([losses[0, 4:].mean(), losses[1, 4]]), atol=1e-6, rtol=0)


def test_only_matrices_of_the_decoder_decay() -> None:
    own = learner("t5")
    decaying, others = own.optimizer.param_groups
    names = {id(weight): name for name, weight in own.decoder.named_parameters()}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(names[id(weight)].endswith(("_proj.weight", "embed_tokens.weight")) for weight in decaying["params"])
    left = {names[id(weight)] for weight in others["params"]}
    assert any(name.startswith("encoding.") for name in left)
    assert all(name.startswith("encoding.") or "norm" in name for name in left)


def test_gains_have_their_own_rate() -> None:
    """The first step of AdamW is its rate in each coordinate, whatever the gradient."""
    own = learner("rope", optimizer="muon", rate=0.001, gain_rate=0.02, warmup=0, last=1.0)
    before = {name: weight.detach().clone() for name, weight in own.decoder.named_parameters()}
    own.step(rows(), 0)
    for name, weight in own.decoder.named_parameters():
        if "norm" in name or "embed" in name:
            moved = (weight.detach() - before[name]).abs()
            assert float(moved.median()) == pytest.approx(0.02 if "norm" in name else 0.001, rel=1e-3), name


def test_weights_have_the_order_of_the_decoder_in_every_process() -> None:
    """A checkpoint tells moments by the place of their weight; the order of a set is another in each process."""
    own = learner("rope", shape={**SHAPE, "layers": 4}, optimizer="muon", gain_rate=0.005)
    [gains] = [group["params"] for group in own.optimizer.param_groups if group["lr"] == 0.005]
    parts = ("input_layernorm", "post_attention_layernorm")
    named = [f"layers.{layer}.{part}.weight" for layer in range(4) for part in parts]
    names = {id(weight): name for name, weight in own.decoder.named_parameters()}
    assert [names[id(weight)] for weight in gains] == [*named, "norm.weight"]


def test_held_out_rows_go_through_in_no_more_pieces_than_there_are() -> None:
    """Pieces do not change a mean: 20 of 24 rows of training, and as many as there are of 7 held-out rows."""
    whole, pieces = learner("alibi", batch=24), learner("alibi", batch=24, accumulate=20)
    assert pieces.held_out_loss(rows()) == pytest.approx(whole.held_out_loss(rows()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "alibi", "xpos"])
def test_a_network_compiles_without_a_break(name: str) -> None:
    """A break leaves all layers to plain PyTorch, at half the speed."""
    own = learner(name)
    traced = torch.compile(own._losses, backend="eager", fullgraph=True)
    positions = own._draw_positions(rows()[:, :-1], 0)
    torch.testing.assert_close(traced(rows(), positions), own._losses(rows(), positions))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kerple", "dape"])
def test_a_compiled_network_has_the_gradient_of_the_plain_one(name: str) -> None:
    """Weights with a range are brought into it before the graph, which may not change what it goes back over."""
    own, plain = learner(name), gradients(learner(name))
    own._fast = torch.compile(own._losses, backend="aot_eager")
    found = gradients(own)
    assert found.keys() == plain.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(found[key], gradient, msg=key)


def test_weights_are_in_their_range_before_each_step() -> None:
    own = learner("dape")  # over KERPLE
    held = [part for part in own.decoder.modules() if isinstance(part, Kerple)]
    assert held
    for kerple in held:
        kerple.p.data.fill_(-1.0)
    own.add_gradient(rows(), 0)
    for kerple in held:
        assert kerple.p.tolist() == pytest.approx([MIN_WEIGHT] * len(kerple.p))


def test_random_positions_follow_seed_and_step() -> None:
    tokens = rows()[:, :-1]
    own = learner("shape")
    first = own._draw_positions(tokens, 5)
    assert torch.equal(first, own._draw_positions(tokens, 5))
    assert torch.equal(first, learner("shape")._draw_positions(tokens, 5))
    assert not torch.equal(first, own._draw_positions(tokens, 6))
    assert not torch.equal(first, learner("shape", seed=1)._draw_positions(tokens, 5))


def test_a_methods_frequencies_are_those_of_the_network() -> None:
    """Positions divided by 4, where the frequencies are."""
    own = learner("rope")
    assert isinstance(own.decoder.encoding, RotaryEncoding)
    frequencies = own.decoder.encoding.inv_freq.numpy()
    own.method = Attention(inv_freq=frequencies / 4)
    with torch.no_grad():
        found = own.losses(rows())
        own.method = None
        expected = own.losses(rows(), torch.arange(23, dtype=torch.float64) / 4)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_no_compiler_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ValueError, match=r"recipe\.compile needs a C\+\+ compiler"):
        learner("rope", compile=True)


@pytest.mark.everyday("kerple", "clex")
@pytest.mark.parametrize("name", ["t5", "kerple", "fire", "tisa", "clex", "floater"])
def test_held_out_rows_see_the_weights_of_the_last_step(name: str) -> None:
    """What an encoding keeps of its weights between texts must not outlive an update; a copy has kept nothing."""
    own = learner(name, rate=0.05, warmup=0)
    for step in range(2):
        own.step(rows(), step)
        fresh = Learner(copy.deepcopy(own.decoder), own.recipe, None)
        assert own.held_out_loss(rows()) == fresh.held_out_loss(rows())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_network_learns_the_same_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Synthetic(count=2, words=200)]

    def run(folder: Path, compile: bool) -> list[float]:
        recipe = Recipe(
            stages=STAGES,
            shape={**SHAPE, "layers": 1},
            vocabulary=300,
            trained_length=24,
            batch=4,
            save=2,
            evaluate=9,
            compile=compile,
        )
        train(PreparedTraining(TrainingJob(recipe=recipe, corpora=texts, held_out=texts)), folder)
        return [json.loads(line)["loss"]["all"] for line in (folder / "training.jsonl").read_text().splitlines()]

    step = Learner.step

    def dies(self: Learner, rows: torch.Tensor, number: int, *kinds: Sequence[str]) -> list[float]:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, rows, number, *kinds)

    plain, whole = run(tmp_path / "plain", False), run(tmp_path / "whole", True)
    assert whole == pytest.approx(plain, abs=1e-4)
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "killed", True)
    assert run(tmp_path / "killed", True) == whole
