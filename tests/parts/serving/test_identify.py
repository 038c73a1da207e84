"""Naming a setup: by planted numbers, by transformers' own formulas, and by a planted setup on a real model."""

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lexbench.backends import Capabilities
from lexbench.backends.function import Function
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.commands import main
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Answer, AnyQuestion, Encoded, Generate, GenerateAnswer, Tokens
from lexbench.methods.scaled import ropes_of_model
from lexbench.parts.serving.identify import ask, identify, pack, probes
from lexbench.parts.serving.identify.causes import (
    UNKNOWN_CAUSE,
    WRONG_HITS_CAUSE,
    distance_of_told,
    fresh_texts,
    repetition_cause,
)
from lexbench.parts.serving.identify.cut import ignores_beginning
from lexbench.parts.serving.identify.make import make_pack
from lexbench.parts.serving.identify.prefixes import prefix_places
from lexbench.parts.serving.identify.setups import OWN_SETUP_LABEL, possible_setups

PLAIN = Model(name="plain", trained_length=256, head_dim=32, rope_base=10_000.0, layers=2)
TEXTS, TARGETS = 12, 200


def made(noise: float = 0.02) -> pack.ReferencePack:
    """Two near setups and a far one, and the noise of rounding."""
    rng = np.random.default_rng(0)
    own = rng.exponential(2, (TEXTS, TARGETS))
    steps = [0.01 * rng.normal(size=own.shape), 0.5 * rng.normal(size=own.shape)]
    about = {
        "format": pack.PACK_FORMAT_VERSION,
        "labels": [OWN_SETUP_LABEL, "near", "far = away"],
        "model": "one",
        "vocabulary": 9,
    }
    tokens = rng.integers(0, 9, (TEXTS, 2 * TARGETS))
    rounding = noise * rng.normal(size=(2, *own.shape))
    nll = np.stack([own, *(own + each for each in steps)])
    return pack.ReferencePack(about=about, tokens=tokens, nll=nll, noise=rounding, written=tokens[:, :4])


def test_a_setup_is_named_through_noise_twice_its_distance() -> None:
    one, rng = made(), np.random.default_rng(1)
    for place, label in enumerate(one.labels):
        found = identify.identify(one, one.nll[place] + 0.02 * rng.normal(size=(TEXTS, TARGETS)))
        assert (found.verdict, found.alike, found.named) == (label, [], True)
    assert found.near[0].distance == pytest.approx(0.02, rel=0.05)


def test_what_is_none_of_them_is_said_so() -> None:
    one, rng = made(), np.random.default_rng(2)
    other = identify.identify(one, one.nll[0] + 0.1 * rng.normal(size=(TEXTS, TARGETS)))
    assert other.verdict == identify.NO_SETUP_VERDICT and "rounding explains 0.06" in other.why
    for share in (0.5, 0.3):
        served = one.nll[0] + share * (one.nll[1] - one.nll[0])
        between = identify.identify(one, served)
        assert between.verdict == identify.NO_SETUP_VERDICT and f"{100 * share:.0f} % of the way" in between.why


@pytest.mark.parametrize(("texts", "ends", "quantile"), [(12, [200], 3.1058), (6, [64, 128, 200], 2.8982)])
def test_a_setup_is_excluded_where_the_test_of_its_own_says_so(texts: int, ends: list[int], quantile: float) -> None:
    """share + reach of a setup, by hand from sums over texts, or over blocks of few; t of 11 and of 17 at 0.995."""
    one, rng = made(0.1), np.random.default_rng(4)
    one = replace(one, nll=one.nll[:, :texts], noise=one.noise[:, :texts])
    served = one.nll[0] + 0.12 * rng.normal(size=(texts, TARGETS))
    found = identify.identify(one, served)
    towards, starts = one.nll[1] - one.nll[0], [0, *ends[:-1]]
    products, squares = (served - one.nll[0]) * towards, towards**2
    parts = [(text, slice(*part)) for text in range(texts) for part in zip(starts, ends, strict=True)]
    sums, whole = (np.array([each[part].sum() for part in parts]) for each in (products, squares))
    share = sums.sum() / whole.sum()
    count = len(parts)
    spread = np.sqrt(count / (count - 1) * np.square(sums - share * whole).sum()) / whole.sum()
    [near] = [each for each in found.near if each.label == "near"]
    assert (near.share, near.reach) == pytest.approx((share, quantile * spread), rel=1e-4)
    assert (share + quantile * spread >= 0.9) == ("near" in found.alike)


def test_another_softmax_is_seen_beside_any_rotation() -> None:
    """Served: the far setup, moved 0.4 of what the softmax moves the first one by; and without that."""
    one, rng = made(noise=0.05), np.random.default_rng(3)
    softer = 0.1 * rng.normal(size=one.nll[0].shape)
    labels = [OWN_SETUP_LABEL, "NTK 2", "softmax scale times 1.3"]
    held = replace(
        one, about={**one.about, "labels": labels}, nll=np.stack([one.nll[0], one.nll[2], one.nll[0] + softer])
    )
    found = identify.identify(held, one.nll[2] + 0.4 * softer)
    assert found.verdict == identify.NO_SETUP_VERDICT
    assert found.why == "it lies 40 % of the way from NTK 2 to softmax scale times 1.3"
    healthy = identify.identify(held, one.nll[2] + 0.05 * rng.normal(size=softer.shape))
    assert healthy.verdict == "NTK 2" and healthy.named


def test_one_block_tells_no_setups_apart() -> None:
    one = made()
    short = replace(one, nll=one.nll[:, :1, :100], noise=one.noise[:, :1, :100])
    found = identify.identify(short, short.nll[0])
    assert set(found.alike) == {"near", "far = away"} and not found.named


def test_longer_texts_are_asked_for_what_they_hold() -> None:
    """Setups that differ by a 40th of the noise are told where the longer texts move them five times as far."""
    one, rng = made(0.4), np.random.default_rng(3)
    longer = replace(
        one, about={**one.about, "labels": one.labels[:2]}, nll=one.nll[:1] + 5 * (one.nll[:2] - one.nll[:1])
    )
    whole = replace(one, longer=longer)
    noise = 0.4 * rng.normal(size=(TEXTS, TARGETS))
    found = identify.identify(whole, one.nll[1] + noise)
    assert not found.named and set(found.alike) | {found.verdict} == {OWN_SETUP_LABEL, "near"}
    assert identify.longer_texts_to_decide(whole, found) is longer
    told = identify.identify(longer, longer.nll[1] + noise)
    assert (told.verdict, told.alike) == ("near", [])
    assert identify.longer_texts_to_decide(whole, told) is None
    assert identify.longer_texts_to_decide(one, found) is None
    assert (
        identify.longer_texts_to_decide(whole, replace(found, alike=["far = away"])) is None
    )  # not among the longer ones
    assert identify.longer_texts_to_decide(whole, replace(found, verdict=identify.NO_SETUP_VERDICT)) is None


def test_setups_that_the_texts_do_not_tell_apart_are_listed() -> None:
    one = made()
    same = replace(one, nll=one.nll[[0, 0, 2]])
    found = identify.identify(same, same.nll[0])
    assert (found.verdict, found.alike, found.named) == (OWN_SETUP_LABEL, ["near"], False)
    assert "cannot be told on these texts from: near" in identify.identification_text(found)


def test_a_pack_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    one, file = made(), tmp_path / "pack.npz"
    content = pack.pack_bytes(one)
    file.write_bytes(content)
    again = pack.read_pack(file)
    assert again.about == one.about and (again.tokens == one.tokens).all() and (again.written == one.written).all()
    np.testing.assert_allclose(again.nll, one.nll, atol=2e-3)  # changes have 16 bits
    assert content == pack.pack_bytes(one) and len(content) < pack.MAX_PACK_BYTES and again.longer is None
    longer = replace(one, tokens=one.tokens[:, ::-1], written=one.written[:, :0])
    file.write_bytes(pack.pack_bytes(replace(one, longer=longer)))
    both = pack.read_pack(file)
    assert both.longer is not None and both.labels == both.longer.labels == one.labels
    assert (both.tokens == one.tokens).all() and (both.longer.tokens == longer.tokens).all()
    for odd in (b"", b"PK\x03\x04", content[:500], content.replace(b"tokens", b"tokenz")):
        file.write_bytes(odd)
        with pytest.raises(ValueError, match="is no fingerprint"):
            pack.read_pack(file)


@pytest.mark.slow
def test_a_small_file_of_large_parts_is_no_fingerprint(tmp_path: Path) -> None:
    """300 MB of zeros in 300 KB, which would be several times as many bytes as float64."""
    one, file = made(), tmp_path / "pack.npz"
    parts = pack._pack_arrays(one)
    np.savez_compressed(file, **{**parts, "changes": np.zeros((2, 500, 150_000), np.float16)})  # type: ignore[arg-type]
    assert file.stat().st_size < pack.MAX_PACK_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"is no fingerprint \(its parts have more than 67108864 bytes"):
            pack.read_pack(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_what_a_newcomer_gets_wrong_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fingerprint .*none\.npz does not exist: make it with lexbench fingerprint"):
        pack.read_pack(tmp_path / "none.npz")
    with pytest.raises(
        ValueError, match=r"no setup 'nera': did you mean near\? choose from as its .*, near, far, away"
    ):
        identify.find_setup_label(made(), "nera")
    assert identify.find_setup_label(made(), "AWAY") == "far = away"
    given: dict[str, Any] = {"model": PLAIN, "corpus": None, "backend": {"name": "hf"}, "seed": 0}
    with pytest.raises(ValueError, match="one text of 32 tokens leaves no error to estimate: give n=2"):
        make_pack(**given, length=32, n=1, out=tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"is a folder: give --out a file, e\.g\. --out .*model\.npz"):
        make_pack(**given, length=32, n=2, out=tmp_path)
    most = int(
        pack.MAX_PACK_BYTES / (0.75 * 2 * (len(possible_setups(PLAIN, 32)) - 1) * (8 + 16))
    )  # 16 bits, 24 targets a text
    for length, n, said in ((32, 10**5, f"give n={most} at most, or a shorter length"), (10**5, 2, "give a shorter")):
        with pytest.raises(ValueError, match=rf"the pack has .* MB, it must have at most 1.05: {said}"):
            make_pack(**given, length=length, n=n, out=tmp_path / "a.npz")


def test_a_pack_of_the_first_format_is_read(tmp_path: Path) -> None:
    one, file = made(), tmp_path / "pack.npz"
    np.savez_compressed(
        file,
        about=np.frombuffer(json.dumps({**one.about, "format": 1}).encode(), np.uint8),
        tokens=one.tokens.astype(np.int32),
        nll=one.nll[0].astype(np.float32),
        changes=(one.nll[1:] - one.nll[:1]).astype(np.float16),
        noise=one.noise[0].astype(np.float16),
    )
    again = pack.read_pack(file)
    assert (again.opening, again.written.size, again.noise.shape) == (0, 0, (1, TEXTS, TARGETS))
    assert identify.identify(again, one.nll[0]).named


SERVED = np.random.default_rng(5).normal(size=(9, 9))
"""Logits of the next token behind each one."""


class Digits:
    """A token for each digit."""

    prefix = ()

    def encode(self, text: str) -> Encoded:
        ids = np.array([*map(int, text)])
        return Encoded(ids=ids, starts=np.arange(len(ids)), text=text)

    def decode(self, ids: Tokens) -> str:
        return "".join(map(str, ids))


class Served(Function):
    """A served table; or one that writes the second likeliest, changes at the sixth request, or begins oddly; or with
    logits over a temperature, or with something added to token 3."""

    capabilities = Capabilities(remote=True)

    def __init__(
        self, slips: bool = False, mixes: bool = False, bos: bool = True, heat: float = 1.0, bias: float = 0.0
    ) -> None:
        super().__init__(self.read, PLAIN, Digits())  # type: ignore[arg-type]
        self.heat, self.bias = heat, bias
        self.slips, self.mixes, self.bos, self.asked = slips, mixes, bos, 0

    def read(self, ids: Tokens) -> NDArray[Any]:
        self.asked += 1
        found: NDArray[Any] = SERVED[ids] / self.heat + self.bias * (np.arange(9) == 3)
        if self.mixes and self.asked > 5:
            found = found[:, ::-1].copy()
        if not self.bos:
            found[:2, 0] -= 1
        return found

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        for each in questions:
            yield self.write(each) if isinstance(each, Generate) else self.score(each)  # type: ignore[arg-type]

    def write(self, question: Generate) -> GenerateAnswer:
        text = question.prompt
        for _ in range(question.max_new_tokens):
            text = np.append(text, np.argsort(SERVED[text[-1]])[-2 if self.slips else -1])
        return GenerateAnswer(tokens=text[len(question.prompt) :], text="", hit_room=True)


class Drawing(Served):
    """A served table that was seen to draw, and so refuses to write."""

    def write(self, question: Generate) -> GenerateAnswer:
        raise Refused("it does not write greedily")


def test_what_else_is_wrong_with_a_server_is_said() -> None:
    tokens = np.random.default_rng(6).integers(0, 9, (5, 40))
    healthy = Served()
    nll = pack.text_losses(healthy, tokens, 4, 24)
    chances = SERVED - np.log(np.exp(SERVED).sum(axis=1, keepdims=True))
    assert nll.shape == (5, 24)
    assert nll[:, 0] == pytest.approx(-chances[tokens[:, 0], tokens[:, 1]], rel=1e-5)
    assert nll[:, 4] == pytest.approx(-chances[tokens[:, 19], tokens[:, 20]], rel=1e-5)
    written = pack.continue_texts(healthy, tokens, 8)
    assert (written[:, 0] == SERVED[tokens[:, 31]].argmax(axis=1)).all()
    about = {"format": pack.PACK_FORMAT_VERSION, "labels": [OWN_SETUP_LABEL, "far"], "opening": 4}
    one = pack.ReferencePack(
        about=about, tokens=tokens, nll=np.stack([nll, nll + 1]), noise=np.full((2, 5, 24), 0.01), written=written
    )

    def said(server: Served) -> list[str]:
        served = ask.ask_about_pack(one, server)
        return probes.find_faults(one, server, served, identify.identify(one, served.nats))

    assert said(Served()) == []
    [opening] = said(Served(bos=False))
    assert opening.startswith("the first 4 tokens of texts are ") and "rounding explains 0.03" in opening
    [slips] = said(Served(slips=True))
    gaps = np.sort(SERVED, axis=1)[tokens[:, 31]]
    assert f"in 5 of 5 texts, by {np.median(gaps[:, -1] - gaps[:, -2]):.2g} nats" in slips
    assert said(Drawing()) == ["it writes nothing that can be compared: it does not write greedily"]
    by = "it is not that setup alone: "
    assert f"{by}the differences are in proportion to the likelihoods, as of another temperature" in said(
        Served(heat=1.1)
    )
    assert f"{by}a token differs alike wherever it stands, as by a bias or a penalty" in said(Served(bias=0.3))
    assert any(each.startswith("5 of 5 texts have other likelihoods") for each in said(Served(mixes=True)))


class Refusing(Served):
    """A served table that mixes requests up, and can be sent no other texts than the first."""

    def read(self, ids: Tokens) -> NDArray[Any]:
        if self.asked >= 10:
            raise Refused("prompts must be text")
        return super().read(ids)


def test_a_cause_that_cannot_be_asked_for_is_no_refusal() -> None:
    tokens = np.random.default_rng(6).integers(0, 9, (5, 40))
    nll = pack.text_losses(Served(), tokens, 0, 20)[None]
    one = pack.ReferencePack(about={}, tokens=tokens, nll=nll, noise=np.full_like(nll, 0.01), written=tokens[:, :0])
    server = Refusing(mixes=True)
    said = probes.repetition_fault(one, server, one.served_nats(server))
    assert server.asked == 10 and said is not None and said.endswith(UNKNOWN_CAUSE) and said.startswith("5 of 5 texts")


def test_answers_are_compared_by_what_both_tell() -> None:
    assert distance_of_told({1: 1.0, 2: 3.0, 4: 0.0}, {2: 6.0, 1: 5.0}) == pytest.approx(np.sqrt((16 + 9) / 2))
    assert distance_of_told({1: 1.0}, {2: 1.0}) == np.inf
    said = probes._repetition_fault([{1: 1.0}], lambda asked: [{2: 1.0}], ["a"], lambda: ["b"], 0.5)
    assert said is not None and "1 of 1 texts have other likelihoods when asked again (no likely token in co" in said


@pytest.mark.parametrize(("strange", "wrong"), [(True, True), (True, False), (False, True)])
def test_wrong_hits_are_looked_for_where_no_setup_is_named(strange: bool, wrong: bool) -> None:
    """Texts that are no hits do not move, fresh ones do when they are asked a second time."""
    asked: list[str] = []

    def ask(questions: Sequence[str]) -> list[dict[int, float]]:
        asked.extend(questions)
        return [{1: 1.0 + (wrong and "fresh" in each and asked.count(each) > 1)} for each in questions]

    said = probes._repetition_fault([{1: 1.0}], ask, ["a"], lambda: ["fresh 1", "fresh 2"], 0.5, strange)
    assert (said is not None) == (strange and wrong)
    assert said in (None, f"new texts have other likelihoods when asked again: {WRONG_HITS_CAUSE}")
    assert asked.count("a") == 1 and asked.count("fresh 1") == 2 * strange  # nothing is pushed out of a cache


def test_a_fresh_text_has_the_tokens_of_its_words() -> None:
    tokenizer = load_tokenizer(locate_checkpoint("lexbench:lexlet"))
    ids = tokenizer.encode("The lighthouse keeper counted seventeen gulls, and wrote it down. " * 20).ids
    texts = np.stack([[*tokenizer.prefix, *ids[begin : begin + 80]] for begin in (0, 3, 7, 11)])
    found = fresh_texts(tokenizer, texts)
    assert [len(each) for each in found] == [81, 81, 81]
    for text, each in zip(texts, found, strict=False):
        assert each[0] == text[0] and not (each == text).all()
        assert tokenizer.decode(each[1:30]) in tokenizer.decode(text[41:])
        place = int(prefix_places(tokenizer, each, 80, 1, chat=False)[0])
        assert (tokenizer.encode(tokenizer.decode(each[1:place])).ids == each[1:place]).all()


@pytest.mark.parametrize("ignores", [True, False])
def test_a_checkpoint_may_ignore_the_beginning_of_a_text(ignores: bool) -> None:
    """Logits by each token alone, or also by the number of ones so far."""
    tokens = np.random.default_rng(6).integers(0, 9, 200)

    def logits(ids: Tokens) -> NDArray[Any]:
        return SERVED[ids] + (0 if ignores else np.log1p(np.cumsum(ids == 1))[:, None] * np.arange(9))

    digits: Any = Digits()
    backend = Function(logits, replace(PLAIN, vocabulary=9), digits)
    last = pack.question_nats(backend, [pack.loglikelihood_question(tokens, 136)])[0]
    assert ignores_beginning(backend, tokens, last) == ignores
    assert not ignores_beginning(backend, tokens[-70:], last)  # nothing is left to leave out


class Caching:
    """Nats of a server with a cache of four texts, and a slower one of all others."""

    def __init__(self, wrong_hits: bool = False, wrong_restored: bool = False, mixes: bool = False) -> None:
        self.wrong_hits, self.wrong_restored, self.mixes = wrong_hits, wrong_restored, mixes
        self.held: list[bytes] = []
        self.evicted: set[bytes] = set()
        self.rng = np.random.default_rng(7)

    def __call__(self, texts: Sequence[Tokens]) -> list[dict[int, float]]:
        return [self.read(row) for row in texts]

    def read(self, row: Tokens) -> dict[int, float]:
        key = row.tobytes()
        hit, restored = self.wrong_hits and key in self.held, self.wrong_restored and key in self.evicted
        mixed = self.mixes and self.rng.random() < 0.25
        self.evicted.discard(key)
        self.held = [each for each in self.held if each != key] + [key]
        if len(self.held) > 4:
            self.evicted.add(self.held.pop(0))
        return dict(enumerate(row[1:] + (1.0 if hit or restored or mixed else 0.0)))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (Caching(wrong_hits=True), "hits of a prefix cache are not answered as the text was at first"),
        (Caching(wrong_restored=True), "states that were evicted from a cache and restored are others"),
        (Caching(mixes=True), "look for requests that are mixed up"),
        (Caching(), "look for requests that are mixed up"),
    ],
)
def test_a_cache_that_changes_answers_is_named_by_the_step_that_changes_them(server: Caching, said: str) -> None:
    texts = [*np.random.default_rng(8).integers(0, 99, (11, 40))]
    server(texts[3:])
    assert repetition_cause(server, texts[:3], texts[3:], allowed=0.5).startswith(said)


def test_positions_are_changed_in_setups_of_texts_that_are_long_enough() -> None:
    for length, dtypes, chunks in (
        (256, [], []),
        (257, ["bfloat16"], []),
        (2048, ["bfloat16"], [512]),
        (2049, ["bfloat16", "float16"], [512, 2048]),
    ):
        found = possible_setups(PLAIN, length)
        assert [each.rounded for each in found if each.rounded] == dtypes
        assert [each.chunk for each in found if each.chunk] == chunks


def test_a_softmax_is_sharper_flatter_or_scaled_over_positions() -> None:
    """Queries at the last of 512 positions, trained at 256: times 1.3, over 1.3, times ln 512 / ln 256 = 9 / 8."""
    for length, factors in ((256, [1.3, 1 / 1.3]), (512, [1.3, 1 / 1.3, 9 / 8])):
        scales = [each.attention.query_scale for each in possible_setups(PLAIN, length)]
        assert [float(each(np.array([length - 1]))[0]) for each in scales if each] == pytest.approx(factors)


def test_setups_are_transformers_numbers() -> None:
    """Frequencies and scales by transformers' own functions, of a config with the parameters of the label."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = {each.label: each.attention for each in possible_setups(PLAIN, 256)}
    inv_freq = {label: np.asarray(each.inv_freq, np.float64) for label, each in found.items() if each.slots()}
    assert next(iter(found)) == f"{OWN_SETUP_LABEL} = plain"
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
    assert "dynamic NTK 2" not in found and "dynamic NTK 2" in {each.label for each in possible_setups(PLAIN, 512)}


def test_a_scaling_that_is_lost_or_lost_in_part_has_a_name() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = Model(name="scaled", trained_length=256, head_dim=32, rope_base=10_000.0, rope_scaling=yarn)
    found = {each.label: each.attention for each in possible_setups(model, 256)}
    [own] = ropes_of_model(model)
    assert {f"{OWN_SETUP_LABEL} = YaRN 4", "plain (scaling not applied)"} <= found.keys()
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
    labels = {each.label for each in possible_setups(two, 256)}
    assert any("layer types lost: all rotate as full_attention" in label for label in labels)
    with pytest.raises(Refused, match="no rotary positions to name"):
        possible_setups(Model(name="none", trained_length=256, head_dim=32), 256)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "few_setups")
def test_a_planted_setup_is_named_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "lexlet.npz")
    assert main.main(["fingerprint", "model=lexlet", "corpus=synthetic", "length=96", "n=6", "--out", file]) == 0
    said = capsys.readouterr().out
    assert "9 setups, on 6 texts of 96 tokens\n9 setups, on 1 text of 256 tokens\n" in said
    assert "3 that rounding hides there, on 2 texts of 256 tokens\n" in said
    for words, verdict, code in (
        ([], OWN_SETUP_LABEL, 0),
        (["method=yarn", "method.factor=4"], "YaRN 4", 0),
        (["method=pi", "method.factor=3"], identify.NO_SETUP_VERDICT, 1),
        (["--expect", "linear 2"], OWN_SETUP_LABEL, 1),
        (["backend.dtype=bfloat16"], OWN_SETUP_LABEL, 0),  # told from a base a percent off by the longer texts
    ):
        assert main.main(["identify", file, "model=lexlet", *words]) == code
        assert capsys.readouterr().out.startswith(verdict)
    for words, said in ((["--expect", "warp"], "has no setup 'warp'"), (["model.path=./none"], "does not exist")):
        assert main.main(["identify", file, *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_is_named_by_its_log_probabilities_alone(
    lexlet_pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.backends import scripted
    from tools.serving import Engine

    engine, listed = Engine(), scripted.listing("one", **scripted.VLLM)  # NTK of factor 2
    with scripted.serving(engine.answer, models=listed, version="0.30.0") as server:
        words = ["identify", str(lexlet_pack), "model=lexlet", "backend=openai", f"backend.url={server.url}"]
        assert main.main([*words, "--expect", "NTK 2"]) == 0
    assert capsys.readouterr().out.startswith("NTK 2: ")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_faults_of_real_engines_are_named_behind_a_server(tmp_path: Path) -> None:
    """States of other prompts that are restored, and positions that begin at 0 behind a hit, by next tokens as well."""
    from tools.attention_faults import CACHE_FAULTS, verdicts_behind_server
    from tools.serving import write_pack

    file = tmp_path / "lexlet.npz"
    write_pack(file, length=320, n=6)
    for fault in CACHE_FAULTS:
        for verdict in verdicts_behind_server(fault, file):
            assert verdict.named, (fault.thread, verdict)
