"""Naming a setup from the likeliest next tokens alone, up to a far text; and what a server cuts off."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.parts.serving.identify import ask, identify, make, measure, pack, prefixes
from lexbench.parts.serving.identify.readings import KeptReadings, Reading
from lexbench.parts.serving.openai.backend import OpenAI
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tests.parts.serving.test_identify import made
from tools.identify import NONE, llama, window
from tools.serving import LEXLET, Engine


def with_prefixes(one: pack.ReferencePack) -> pack.ReferencePack:
    """The pack with its targets as tokens behind 10 prefixes, 20 each."""
    texts = len(one.tokens)
    shape = (texts, 10, 20)
    found = prefixes.PrefixReference(
        places=np.tile(np.arange(5, 15), (texts, 1)),
        ids=np.arange(np.prod(shape)).reshape(shape),
        nll=one.nll.reshape(3, *shape),
        noise=one.noise.reshape(2, *shape),
        frame={},
    )
    return replace(one, about={**one.about, "vocabulary": int(np.prod(shape))}, prefixes=found)


def test_tokens_that_are_not_told_do_not_count() -> None:
    """NaN at half of the targets says what the other half says alone."""
    one, rng = made(), np.random.default_rng(1)
    served = one.nll[1] + 0.02 * rng.normal(size=one.nll[1].shape)
    half = replace(one, nll=one.nll[:, :, :100], noise=one.noise[:, :, :100])
    alone = identify.identify(half, served[:, :100])
    masked = identify.identify(one, np.where(np.arange(200) < 100, served, np.nan))
    assert masked.verdict == alone.verdict == "near"
    for one_of, other in zip(masked.near, alone.near, strict=True):
        assert one_of.label == other.label and one_of.distance == pytest.approx(other.distance)
        assert (one_of.share, one_of.reach) == pytest.approx((other.share, other.reach))
    with pytest.raises(Exception, match="tells none of the tokens that the pack holds"):
        identify.identify(one, np.full_like(served, np.nan))


def test_next_tokens_are_kept_in_a_pack_and_compared_in_place_of_targets(tmp_path: Path) -> None:
    one, file = with_prefixes(made()), tmp_path / "pack.npz"
    far = replace(one, tokens=one.tokens[:, ::-1])
    file.write_bytes(pack.pack_bytes(replace(one, far=far)))
    again = pack.read_pack(file)
    assert again.far is not None and (again.far.tokens == far.tokens).all() and again.prefixes is not None
    assert one.prefixes is not None and (again.prefixes.ids == one.prefixes.ids).all()
    np.testing.assert_allclose(again.prefixes.nll, one.prefixes.nll, atol=2e-3)
    view = again.of_prefixes()
    np.testing.assert_allclose(view.nll, one.nll, atol=2e-3)
    assert (view.block, view.opening) == (40, 0)
    broken = replace(one.prefixes, places=one.prefixes.places[:, :-1])
    file.write_bytes(pack.pack_bytes(replace(one, prefixes=broken)))
    with pytest.raises(ConfigError, match="its parts do not fit together"):
        pack.read_pack(file)


def test_a_pack_has_as_many_prefixes_as_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spaced ones, the longest among them; its other texts have no more."""
    one = made()
    parts = {name: getattr(one, name)[:2] for name in ("tokens", "written")}
    one = with_prefixes(replace(one, **parts, nll=one.nll[:, :2], noise=one.noise[:, :2]))
    one = replace(one, far=one, longer=one)
    for count, kept in ((10, range(10)), (4, [0, 3, 6, 9]), (1, [9])):
        held = one.with_fewer_prefixes(count)
        for each in (held, held.far, held.longer):
            assert each is not None and each.prefixes is not None and one.prefixes is not None
            assert (each.prefixes.places == one.prefixes.places[:, list(kept)]).all()
            assert (each.prefixes.nll == one.prefixes.nll[:, :, list(kept)]).all()
    none = one.with_fewer_prefixes(0)
    assert none.far is not None and none.prefixes is none.far.prefixes is None
    sizes = [len(pack.pack_bytes(one.with_fewer_prefixes(count))) for count in range(5)]
    for room, count in ((sizes[4], 4), (sizes[4] - 1, 3), (sizes[0], 0)):
        monkeypatch.setattr(make, "MAX_PACK_BYTES", room)
        held, content = make._content_that_fits(one, 4)
        assert len(content) == sizes[count] and (held.prefixes is None) == (count == 0)
    monkeypatch.setattr(make, "MAX_PACK_BYTES", sizes[0] - 1)
    with pytest.raises(ConfigError, match=r"the pack has .* MB, it must have at most .*: lower n or length"):
        make._content_that_fits(one, 4)


def test_a_far_text_denies_setups_or_the_verdict() -> None:
    """Of setups that the texts do not tell apart, those stay from which the far text is at most 3 noises away."""
    one = made(0.1)  # noise of 0.1 allows 0.3; `far` lies 0.5 from the first
    far = replace(one, tokens=np.tile(one.tokens[:1], (1, 3)), nll=one.nll[:, :1], noise=one.noise[:, :1])
    found = identify.identify(one, one.nll[0])
    open_ended = replace(found, alike=["far = away"])
    for place, verdict in enumerate((found.verdict, found.verdict, "far = away")):
        told = identify.decide_by_far_text(far, far.nll[place], open_ended)
        assert (told.verdict, told.alike, told.length, told.odd) == (verdict, [], far.length, ())
    denied = identify.decide_by_far_text(far, far.nll[2], found)
    assert denied.verdict == found.verdict and denied.length == 0
    off = np.sqrt(np.square(far.nll[2] - far.nll[0]).mean())
    assert f"at {far.length} tokens it is {off:.2g} nats off" in denied.odd[0]
    assert denied.odd[0].endswith("there it turns as far = away")
    strange = identify.decide_by_far_text(far, far.nll[2] + 1, found)
    assert "there it turns" not in strange.odd[0]
    none = replace(found, verdict=NONE)
    assert identify.decide_by_far_text(far, far.nll[0], none) == none


def test_the_text_of_a_prefix_has_its_tokens() -> None:
    tokenizer = load_tokenizer(LEXLET)
    text = np.array([*tokenizer.prefix, *tokenizer.encode("The lighthouse keeper counted " * 9).ids])
    places = prefixes.prefix_places(tokenizer, text, 8, 6, chat=False)
    assert len(places) == 6 and places[0] >= 8 and places[-1] < len(text)
    for place in places:
        assert (tokenizer.encode(tokenizer.decode(text[1:place])).ids == text[1:place]).all()


def test_a_reading_is_kept_until_its_pack_is_written(tmp_path: Path) -> None:
    kept, count = KeptReadings(tmp_path / "a.npz.part"), [0]

    def read() -> Reading:
        count[0] += 1
        return Reading(np.full((2, 3), float(count[0])), np.zeros((2, 0, 0)))

    for _ in range(2):
        assert (kept.get({"setup": "a"}, read).targets == 1.0).all()
    assert (KeptReadings(tmp_path / "a.npz.part").get({"setup": "b"}, read).targets == 2.0).all()
    assert count == [2]
    kept.remove()
    assert not (tmp_path / "a.npz.part").exists()


def test_a_pack_without_next_tokens_is_to_be_made_anew() -> None:
    model = read_model({"name": "lexlet", "path": "lexbench:lexlet"})
    with scripted.serving(scripted.next_tokens(20)) as server:
        backend = OpenAI(model, url=server.url, retries=0)
        with pytest.raises(ConfigError, match=r"gives no log-probabilities of a prompt, .* no next tokens to ask for"):
            ask.ask_about_pack(made(), backend)
        backend.close()


Answer = Callable[[scripted.Body], scripted.Reply]


def asked(file: Path, answer: Answer, *words: str, **server: Any) -> tuple[int, dict[str, Any]]:
    """Exit code of identify about a server, and what it prints as JSON."""
    said = io.StringIO()
    with scripted.serving(answer, **server) as serving, contextlib.redirect_stdout(said):
        given = ["model=lexlet", "backend=openai", f"backend.url={serving.url}", "backend.concurrency=1", *words]
        code = main.main(["identify", str(file), "--json", *given])
    return code, json.loads(said.getvalue())


TWIN_LABELS = {"linear 2", "YaRN 4", "base a percent above"}
"""Setups whose kind is asked by another factor or side."""
PLANTED = [
    *(each for each in llama(256, 10_000.0, 32) if each[2] not in TWIN_LABELS),
    ("window of 96 tokens", 96, "window of 96 tokens"),
]
"""One of each kind that `results/benchmarks/identify.md` plants in lexlet, with the window for these texts."""
ASKED_BY_PROMPTS = {"plain", "base a percent below", "window of 96 tokens", NONE}
"""Labels of what is hard to tell, or in the pack under no setup."""


def planted(change: Any) -> dict[str, Any]:
    """Fields of an engine with a planted setup, in bfloat16."""
    fields: dict[str, Any] = {"dtype": torch.bfloat16, "rope": {"rope_type": "default", "rope_theta": 10_000.0}}
    if isinstance(change, int):
        return {**fields, "seen": lambda i, j: (j <= i) & (i - j < change)}
    return (
        {**fields, "weights": change}
        if callable(change)
        else {**fields, "rope": change.get("rope_parameters", fields["rope"])}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_next_tokens_name_each_kind_of_setup_as_prompts_do(lexlet_pack: Path) -> None:
    reference = pack.read_pack(lexlet_pack)
    assert len(reference.labels) > 25
    listed = {"models": scripted.listing("one", **scripted.VLLM), "version": "0.30.0"}
    for name, change, label in PLANTED:
        wanted = label if label == NONE else identify.find_setup_label(reference, label)
        found = {"next tokens": asked(lexlet_pack, PlainServer(**planted(change), form="texts", most=5).answer)[1]}
        if label in ASKED_BY_PROMPTS:
            found["prompts"] = asked(lexlet_pack, Engine(**planted(change)).answer, **listed)[1]
        for route, said in found.items():
            odd = [] if label == NONE else said["odd"]  # other weights may move tokens as a bias does
            assert said["verdict"] == wanted and not (said["alike"] or odd or said["cut"]), (name, route, said)
            assert ("5 likeliest next tokens" in said["route"]) == (route == "next tokens")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("form", ["ids", "llama.cpp"])
def test_tokens_may_be_named_by_ids(lexlet_pack: Path, form: str) -> None:
    engine = PlainServer(form=form)  # NTK of factor 2
    code, found = asked(lexlet_pack, engine.answer, "--expect", "NTK 2")
    assert (code, found["length"]) == (0, 256) and "20 likeliest next tokens behind 64 prefixes" in found["route"]
    # The prefixes of a text share the cache: 4 texts of 192 tokens, the last prefixes again, and a far one.
    assert engine.seen_tokens < 2 * 4 * 192 + 256 + 1000


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_context_that_is_cut_is_named_first(lexlet_pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By next tokens: 224 of 256 tokens are more than the texts have; 100 are less. By prompts: 120."""
    plain: dict[str, Any] = {"rope": {"rope_type": "default", "rope_theta": 10_000.0}}
    for most in (224, 100):
        code, found = asked(lexlet_pack, PlainServer(**plain, window=most).answer)
        assert code == 1 and (found["verdict"] == "as its config says = plain" or most < 192)
        assert found["cut"] == f"your server reads only the last {most} of 255 tokens"
    cut: dict[str, Any] = {"edit": lambda engine, tokens: (tokens[-120:], list(range(len(tokens)))[-120:])}
    listed = {"models": scripted.listing("one", **scripted.VLLM), "version": "0.30.0"}
    code, found = asked(lexlet_pack, Engine(**plain, **cut).answer, **listed)
    assert (code, found["cut"]) == (1, "your server reads only the last 120 of 256 tokens")
    shown = identify.Identification(verdict=NONE, why="", alike=[], noise=1.0, near=[], cut=found["cut"])
    assert identify.identification_text(shown).startswith("your server reads only the last 120 of 256 tokens\n")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_setups")
def test_windows_in_all_layers_cut_no_context(tmp_path: Path) -> None:
    """Tokens beyond a few windows change no answer, of the checkpoint itself either."""
    folder, file, words = tmp_path / "windowed", tmp_path / "windowed.npz", ["corpus=synthetic", "length=192", "n=3"]
    shutil.copytree(LEXLET, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **window(24)}))
    assert main.main(["fingerprint", "model=lexlet", f"model.path={folder}", *words, "--out", str(file)]) == 0
    healthy: dict[str, Any] = {
        "rope": {"rope_type": "default", "rope_theta": 10_000.0},
        "seen": lambda i, j: (j <= i) & (i - j < 24),
    }
    for server in (PlainServer(**healthy), PlainServer(**healthy, dtype=torch.bfloat16)):
        code, found = asked(file, server.answer, f"model.path={folder}")
        assert found["cut"] == "" and "as its config says = plain" in (found["verdict"], *found["alike"]), code


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_that_draws_is_seen_to_slip(lexlet_pack: Path) -> None:
    drawing = PlainServer(next=lambda engine, chances, new: int(chances.topk(2).indices[1]))
    code, found = asked(lexlet_pack, drawing.answer)
    assert code == 1 and found["verdict"] == "NTK 2"
    assert found["odd"][0].startswith("it writes tokens that its own likelihoods rank below others, behind ")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_setups")
def test_a_chat_is_asked_in_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a template that lacks BOS: a server of transformers or vLLM reads none, llama.cpp's puts one in front."""
    folder, file, other = tmp_path / "talking", tmp_path / "chat.npz", tmp_path / "old.npz"
    shutil.copytree(LEXLET, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = "<user>{{ messages[0]['content'] }}<assistant>"
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    chat = [f"model.path={folder}", "backend.chat=true"]
    words = ["model=lexlet", "corpus=synthetic", "length=64", "n=3", "--out", str(file)]
    assert main.main(["fingerprint", *words, *chat]) == 0
    for name, change, label in [each for each in PLANTED if each[2] in ("plain", "NTK 4", "YaRN 8")]:
        server = PlainServer(**{**planted(change), "dtype": torch.float32}, form="chat")
        code, found = asked(file, server.answer, *chat, "--expect", label)
        assert (code, found["odd"]) == (0, []), (name, found)
        assert "20 likeliest next tokens behind 12 prefixes" in found["route"]
    made_now = pack.read_pack(file)
    assert made_now.prefixes is not None and made_now.prefixes.frame["before"][0] != load_tokenizer(folder).bos
    frame = {**made_now.prefixes.frame, "before": [load_tokenizer(folder).bos, *made_now.prefixes.frame["before"]]}
    other.write_bytes(pack.pack_bytes(replace(made_now, about={**made_now.about, "frame": frame})))
    capsys.readouterr()
    for bos, form, lacks, said in (
        (0, "chat", other, "0 BOS in front, the pack's have 1: so its setup cannot be told: make the pack anew with "),
        (1, "silent chat", file, "1 BOS in front, the pack's have 0: so its setup cannot be told: make the pack anew "),
        (2, "chat", other, "2 BOS in front, the pack's have 1: so its setup cannot be told: let it add none to that "),
    ):
        with scripted.serving(PlainServer(form=form, bos=bos).answer) as serving:  # NTK 2
            words = ["model=lexlet", *chat, "backend=openai", f"backend.url={serving.url}", "--expect", "NTK 2"]
            assert main.main(["identify", str(lacks), *words]) == 2
        assert said in capsys.readouterr().err
    with scripted.serving(PlainServer().answer) as plain:
        words = ["model=lexlet", f"model.path={folder}", "backend=openai", f"backend.url={plain.url}"]
        assert main.main(["identify", str(file), *words]) == 2
    assert "the pack was made with backend.chat=true, the server is asked without" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_setups")
def test_a_pack_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, count, most = measure.PlannedTexts.read, [0], [3]

    def counted(self: measure.PlannedTexts, backend: Any) -> Reading:
        if count[0] == most[0]:
            raise KeyboardInterrupt
        count[0] += 1
        return read(self, backend)

    monkeypatch.setattr(measure.PlannedTexts, "read", counted)
    files = [tmp_path / name for name in ("whole.npz", "resumed.npz")]
    words = ["fingerprint", "model=lexlet", "corpus=synthetic", "length=64", "n=2", "--out"]
    assert main.main([*words, str(files[1])]) == 130 and not files[1].exists()
    assert len(list((tmp_path / "resumed.npz.part").iterdir())) == 3
    most[0] = 1000
    assert main.main([*words, str(files[1])]) == 0
    resumed, count[0] = count[0] - 3, 0
    assert main.main([*words, str(files[0])]) == 0
    assert resumed == count[0] - 3 and files[0].read_bytes() == files[1].read_bytes()
    assert not (tmp_path / "resumed.npz.part").exists()
