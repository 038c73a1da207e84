"""Naming a setup: by planted numbers, by transformers' own formulas, and by a planted setup on a real model."""

from pathlib import Path

import numpy as np
import pytest

from lexbench.commands import main
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.scaled import ropes
from lexbench.studies.identify import identify, pack
from lexbench.studies.identify.setups import OWN, setups

PLAIN = Model(name="plain", trained_length=256, head_dim=32, rope_base=10_000.0, layers=2)
TEXTS, TARGETS = 12, 200


def made(noise: float = 0.02) -> pack.Pack:
    """Two near setups and a far one, and the noise of rounding."""
    rng = np.random.default_rng(0)
    own = rng.exponential(2, (TEXTS, TARGETS))
    steps = [0.01 * rng.normal(size=own.shape), 0.5 * rng.normal(size=own.shape)]
    about = {"format": pack.FORMAT, "labels": [OWN, "near", "far = away"], "model": "one", "vocabulary": 9}
    tokens = rng.integers(0, 9, (TEXTS, 2 * TARGETS))
    rounding = noise * rng.normal(size=own.shape)
    return pack.Pack(about=about, tokens=tokens, nll=np.stack([own, *(own + each for each in steps)]), noise=rounding)


def test_a_setup_is_named_through_noise_twice_its_distance() -> None:
    one, rng = made(), np.random.default_rng(1)
    for place, label in enumerate(one.labels):
        found = identify.identify(one, one.nll[place] + 0.02 * rng.normal(size=(TEXTS, TARGETS)))
        assert (found.verdict, found.alike, found.named) == (label, [], True)
    assert found.near[0].distance == pytest.approx(0.02, rel=0.05)


def test_what_is_none_of_them_is_said_so() -> None:
    one, rng = made(), np.random.default_rng(2)
    other = identify.identify(one, one.nll[0] + 0.1 * rng.normal(size=(TEXTS, TARGETS)))
    assert other.verdict == identify.NONE and "rounding explains 0.06" in other.why
    between = identify.identify(one, (one.nll[0] + one.nll[1]) / 2)
    assert between.verdict == identify.NONE and "50 % of the way" in between.why


def test_setups_that_the_texts_do_not_tell_apart_are_listed() -> None:
    one = made()
    same = pack.Pack(about=one.about, tokens=one.tokens, nll=one.nll[[0, 0, 2]], noise=one.noise)
    found = identify.identify(same, same.nll[0])
    assert (found.verdict, found.alike, found.named) == (OWN, ["near"], False)
    assert "cannot be told on these texts from: near" in identify.text(found)


def test_a_pack_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    one, file = made(), tmp_path / "pack.npz"
    content = pack.as_bytes(one)
    file.write_bytes(content)
    again = pack.read(file)
    assert again.about == one.about and (again.tokens == one.tokens).all()
    np.testing.assert_allclose(again.nll, one.nll, atol=2e-3)  # changes have 16 bits
    assert content == pack.as_bytes(one) and len(content) < pack.LARGEST
    for odd in (b"", b"PK\x03\x04", content[:500], content.replace(b"tokens", b"tokenz")):
        file.write_bytes(odd)
        with pytest.raises(ValueError, match="is no fingerprint"):
            pack.read(file)


def test_setups_are_transformers_numbers() -> None:
    """Frequencies and scales by transformers' own functions, of a config with the parameters of the label."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = {each.label: each.attention for each in setups(PLAIN, 256)}
    inv_freq = {label: np.asarray(each.inv_freq, np.float64) for label, each in found.items() if each.slots()}
    assert next(iter(found)) == f"{OWN} = plain"
    original = {"original_max_position_embeddings": 256}
    for label, kind, more in (
        ("linear 4", "linear", {"factor": 4.0}),
        ("YaRN 8", "yarn", {"factor": 8.0, **original}),
        ("llama3 2", "llama3", {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}),
    ):
        rope = {"rope_type": kind, "rope_theta": 10_000.0, **more}
        config = LlamaConfig(head_dim=32, max_position_embeddings=256, rope_parameters=rope)
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        np.testing.assert_allclose(inv_freq[label], frequencies.numpy(), rtol=1e-6)
        assert (found[label].scale or 1.0) == pytest.approx(scale)
    assert found["YaRN 8 without attention factor"].scale is None
    assert inv_freq["base a percent above"] == pytest.approx(10_100.0 ** (-np.arange(0, 32, 2) / 32))
    assert inv_freq["NTK 4"][-1] == pytest.approx(PLAIN.inv_freq()[-1] / 4)  # the slowest pair is interpolated
    assert "dynamic NTK 2" not in found and "dynamic NTK 2" in {each.label for each in setups(PLAIN, 512)}


def test_a_scaling_that_is_lost_or_lost_in_part_has_a_name() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = Model(name="scaled", trained_length=256, head_dim=32, rope_base=10_000.0, rope_scaling=yarn)
    found = {each.label: each.attention for each in setups(model, 256)}
    [own] = ropes(model)
    assert {f"{OWN} = YaRN 4", "plain (scaling not applied)"} <= found.keys()
    dropped = found["YaRN 4 without attention factor = its scaling without attention factor"]
    np.testing.assert_allclose(np.asarray(dropped.inv_freq, np.float64), np.asarray(own.own(256)[0], np.float64))
    assert dropped.scale == 1.0
    kinds = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    two = Model(
        name="two", trained_length=256, head_dim=32, layers=2, rope_scaling=kinds, layer_types=tuple(reversed(kinds))
    )
    labels = {each.label for each in setups(two, 256)}
    assert any("layer types lost: all rotate as full_attention" in label for label in labels)
    with pytest.raises(Refused, match="no rotary positions to name"):
        setups(Model(name="none", trained_length=256, head_dim=32), 256)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_planted_setup_is_named_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "lexlet.npz")
    assert main.main(["fingerprint", "model=lexlet", "corpus=synthetic", "length=96", "n=6", "--out", file]) == 0
    assert "texts of 96 tokens" in capsys.readouterr().out
    for words, verdict, code in (
        ([], OWN, 0),
        (["method=yarn", "method.factor=4"], "YaRN 4", 0),
        (["method=pi", "method.factor=3"], identify.NONE, 1),
        (["--expect", "linear 2"], OWN, 1),
    ):
        assert main.main(["identify", file, "model=lexlet", *words]) == code
        assert capsys.readouterr().out.startswith(verdict)
    for words, said in ((["--expect", "warp"], "has no setup 'warp'"), (["model.path=./none"], "does not exist")):
        assert main.main(["identify", file, *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_is_named_by_its_log_probabilities_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.backends import scripted
    from tests.benchmarks.serving import Engine

    file = str(tmp_path / "lexlet.npz")
    assert main.main(["fingerprint", "model=lexlet", "corpus=synthetic", "length=96", "n=6", "--out", file]) == 0
    engine, listed = Engine(), scripted.listing("one", **scripted.VLLM)  # NTK of factor 2
    with scripted.serving(engine.answer, models=listed, version="0.30.0") as server:
        words = ["identify", file, "model=lexlet", "backend=openai", f"backend.url={server.url}"]
        assert main.main([*words, "--expect", "NTK 2"]) == 0
    assert "\nNTK 2: " in capsys.readouterr().out
