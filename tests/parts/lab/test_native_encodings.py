"""A trained encoding behind the native backend: its facts, its answers, and what methods may do to it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lexbench
from lexbench import Attention, Choose, Generate, Loglikelihood, Model, ProbeAttention, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.core import registry
from lexbench.core.attention import Shift, Slopes
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import save_model

TRAINED = 32
SHAPE = DecoderShape(vocabulary=2048, layers=2, width=32, heads=4, kv_heads=2, hidden=48)
ROTATING = ("rope", "xpos", "coca", "interleave")
GIVEN: dict[str, dict[str, Any]] = {
    "bipe": {"separators": [10, 20]},
    "abacus": {"digits": list(range(20))},
    "coupling": {"digits": list(range(20))},
    "irope": {"every": 2},
}
PREFIX: dict[str, Any] = {"index": 0, "cluster": ""}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Model]:
    """The facts of a folder with an encoding, weights at random and lexlet's tokenizer."""
    lexlet = local_folder("lexbench:lexlet")
    assert lexlet is not None

    def made(name: str, **parameters: Any) -> Model:
        folder = tmp_path / name
        folder.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(lexlet / file, folder)
        spec = build.resolve_spec({"name": name, **parameters})
        decoder = Decoder(SHAPE, build.build_encoding(spec, SHAPE, TRAINED))
        decoder.initialise(0)
        for weight in decoder.parameters():
            weight.data = weight.data * 5
        save_model(decoder, folder, TRAINED, bos=0, eos=1, dtype=torch.float32, encoding=spec)
        return read_model({"path": str(folder)})

    return made


def tokens(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(0).integers(2, 2048, count)


def test_a_folder_states_its_facts(trained: Callable[..., Model]) -> None:
    alibi = trained("alibi")
    assert (alibi.name, alibi.trained_length, alibi.heads, alibi.rope_base) == ("alibi", TRAINED, 4, None)
    assert trained("xpos", base=500.0).rope_base == 500.0
    assert json.loads((Path(trained("rope").path or "") / "config.json").read_text())["model_type"] == "llama"


def test_scores_follow_alibis_formula(trained: Callable[..., Model]) -> None:
    model, text = trained("alibi"), tokens(60)
    native = Native(model, dtype="float64")
    native.attend(Attention())
    got = native.score(Loglikelihood(tokens=text, first_target=20, bytes=1, words=1, **PREFIX)).nll

    # The same weights without an encoding, under a method that brings the slopes 2^-2, 2^-4, 2^-6, 2^-8.
    config = json.loads((Path(model.path or "") / "config.json").read_text())
    config["encoding"] = {"_target_": "lexbench.parts.lab.encodings.nope.Nope"}
    (Path(model.path or "") / "config.json").write_text(json.dumps(config))
    plain = Native(model, dtype="float64")
    plain.attend(Attention(bias=Slopes((2**-2, 2**-4, 2**-6, 2**-8))))
    expected = plain.score(Loglikelihood(tokens=text, first_target=20, bytes=1, words=1, **PREFIX)).nll
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_written_and_chosen_tokens_are_those_of_full_forward_passes(trained: Callable[..., Model]) -> None:
    native = Native(trained("xpos"), dtype="float64")
    native.attend(lexbench.method("bca").attention(native.model, 80))
    prompt = tokens(70)
    written = native.write(Generate(prompt=prompt, max_new_tokens=6, answer="", **PREFIX)).tokens
    text = list(prompt)
    for token in written:
        logits = native.logits(np.array(text), [len(text)], len(prompt))
        assert int(logits[-1].argmax()) == token
        text.append(token)

    options = (tokens(3), tokens(5)[2:], tokens(1))
    chosen = native.choose(Choose(prompt=prompt, options=options, expected=0, **PREFIX)).nll
    for option, nll in zip(options, chosen, strict=True):
        whole = np.concatenate([prompt, option])
        logits = native.logits(whole, [len(whole)], len(prompt))[len(prompt) - 1 : -1]
        assert float(F.cross_entropy(logits, torch.from_numpy(option), reduction="sum")) == pytest.approx(nll)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.registered_names("encoding"))
def test_prompts_that_begin_alike_give_the_numbers_of_each_alone(name: str, trained: Callable[..., Model]) -> None:
    native, text = Native(trained(name, **GIVEN.get(name, {})), dtype="float64"), tokens(30)
    native.attend(Attention())
    prompts = [text[:20], np.concatenate([text[:12], text[25:]]), text[:9], text[:9], text[:24]]
    options = (tokens(3), tokens(5)[2:])

    def answers() -> list[Any]:
        chosen = [native.choose(Choose(prompt=each, options=options, expected=0, **PREFIX)).nll for each in prompts]
        return [
            chosen,
            [native.write(Generate(prompt=each, max_new_tokens=4, answer="", **PREFIX)).tokens for each in prompts],
        ]

    (alone, written), native.reuse = answers(), True
    again, rewritten = answers()
    np.testing.assert_allclose(again, alone, rtol=1e-9)
    assert [list(each) for each in rewritten] == [list(each) for each in written]
    own_places = ("abacus", "bipe", "cape", "coupling", "clex", "pose", "randomized", "shape")
    assert native.is_causal() == (name not in own_places)
    if native.is_causal():
        long, short = (
            native.score(Loglikelihood(tokens=each, first_target=5, bytes=1, words=1, **PREFIX)).nll
            for each in (text, text[:18])
        )
        np.testing.assert_allclose(long[: len(short)], short, rtol=1e-6)


def test_what_prompts_share_is_read_once(trained: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    native, text, read = Native(trained("rope")), tokens(60), list[int]()
    hidden = Decoder.hidden_states

    def counted(decoder: Decoder, ids: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        read.append(ids.shape[1])
        return hidden(decoder, ids, *more, **named)

    monkeypatch.setattr(Decoder, "hidden_states", counted)

    def reads(*prompts: Any) -> list[int]:
        read.clear()
        for prompt in prompts:
            native.choose(Choose(prompt=prompt, options=(tokens(1), tokens(1)), expected=0, **PREFIX))
        return list(read)

    parted = np.concatenate([text[:25], text[50:]])
    assert reads(text[:40], parted) == [40, 35]
    native.reuse = True
    assert reads(text[:40], parted, parted, text[:10]) == [40, 10, 1, 1]
    assert reads(text[:40], np.concatenate([text[:10], text[40:60]])) == [40, 30], "too little to go on from"
    native.attend(lexbench.method("rerope").attention(native.model, 80))
    assert reads(parted) == [35], "what was read under another Attention is of no use"
    native.attend(lexbench.method("ms_poe", first_layer=0).attention(native.model, 80))
    assert reads(text[:40], parted) == [40, 35], "its heads are ranked by the prompt's last query"


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.registered_names("encoding"))
def test_every_encoding_is_probed_and_takes_masks_or_refuses_with_a_reason(
    trained: Callable[..., Model], name: str
) -> None:
    given = GIVEN.get(name, {})
    native = Native(trained(name, **given))
    longest = native._decoder.encoding.longest
    length = 48 if longest is None else longest
    asked = ProbeAttention(tokens=tokens(length), first=1, **PREFIX)
    native.attend(Attention())
    if name in ("gla", "gated_delta"):
        with pytest.raises(Refused, match=f"{name} has no attention weights to probe: it has no softmax"):
            native.probe(asked)
        return
    found = native.probe(asked).statistics
    assert all(np.isfinite(values).any() for values in found.values())
    np.testing.assert_allclose(found["mass"].sum(-1), 1.0, rtol=1e-5)
    bca = lexbench.method("bca").attention(native.model, length)
    if any(native._decoder.encoding.at(layer).attention.mask is not None for layer in range(SHAPE.layers)):
        with pytest.raises(Refused, match="exclude each other"):
            native.attend(bca)
    else:
        native.attend(bca)
        losses = native.score(Loglikelihood(tokens=tokens(length), first_target=4, bytes=1, words=1, **PREFIX)).nll
        assert np.isfinite(losses).all()


def test_a_table_that_ends_is_refused(trained: Callable[..., Model]) -> None:
    native = Native(trained("learned"))
    native.attend(Attention())
    with pytest.raises(Refused, match="learned has positions for 32 tokens, asked for 33"):
        native.score(Loglikelihood(tokens=tokens(33), first_target=4, bytes=1, words=1, **PREFIX))


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "transformer_xl", "alibi", "tupe"])
def test_positions_that_begin_later_change_absolute_encodings_alone(trained: Callable[..., Model], name: str) -> None:
    """LEX's translation invariance, section 2: relative encodings have it, absolute ones do not."""
    model, text = trained(name, **({"size": 80} if name in ("learned", "tupe") else {})), tokens(24)
    native, asked = (
        Native(model, dtype="float64"),
        Loglikelihood(tokens=text, first_target=4, bytes=1, words=1, **PREFIX),
    )
    found = {}
    for offset in (0, 40):
        native.attend(Attention() if not offset else Attention(remap=Shift(offset)))
        found[offset] = native.score(asked).nll
    with torch.inference_mode():
        where = torch.arange(24, dtype=torch.float64) + 40
        logits = native._decoder(torch.from_numpy(text)[None], positions=where)[0]
    expected = F.cross_entropy(logits[3:-1], torch.from_numpy(text[4:]), reduction="none")
    np.testing.assert_allclose(found[40], expected, rtol=1e-6)
    relative = name in ("transformer_xl", "alibi")
    assert (abs(found[40] - found[0]).max() < 1e-5) == relative
    if name == "learned":
        native.attend(Attention(remap=Shift(60)))
        with pytest.raises(Refused, match="learned has positions for 80 tokens, asked for 84"):
            native.score(asked)


def test_methods_apply_where_there_is_something_to_change(trained: Callable[..., Model]) -> None:
    alibi, xpos = trained("alibi"), trained("xpos")
    with pytest.raises(Refused, match="alibi has no rotary positions"):
        lexbench.method("ntk").attention(alibi, 64)
    assert lexbench.method("ntk").attention(xpos, 64).inv_freq is not None
    remap = lexbench.method("rerope").attention(read_model({"path": "lexbench:lexlet"}), 512)
    for model in (alibi, xpos):
        with pytest.raises(Refused, match="defines its own distances: use a method without remap or head_ratios"):
            Native(model).attend(remap)


def test_other_backends_say_who_runs_it(trained: Callable[..., Model]) -> None:
    with pytest.raises(ValueError, match="has an encoding that needs backend=native"):
        Hf(trained("alibi"))


def test_an_encoding_that_sees_later_tokens_is_refused(trained: Callable[..., Model], tmp_path: Path) -> None:
    """Each token gets the one behind it: all but the last could be read off."""
    (tmp_path / "peeking.py").write_text(
        "from lexbench.parts.lab.encodings import Encoding\n\n\nclass Peeking(Encoding):\n"
        "    def embed(self, embedded, tokens, positions):\n        return embedded + embedded.roll(-1, 1)\n"
    )
    model = trained("nope")
    config = Path(str(model.path), "config.json")
    spec = json.loads(config.read_text())
    config.write_text(json.dumps({**spec, "encoding": {"file": str(tmp_path / "peeking.py")}}))
    with pytest.raises(ValueError, match="must be causal, in this one the last token changes the logits before it"):
        Native(model)
