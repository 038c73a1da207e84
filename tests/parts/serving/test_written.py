"""Naming a setup from written tokens alone, where a server gives no log-probabilities."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.record import Refused
from lexbench.core.task import Generate
from lexbench.parts.serving.identify import pack, written
from lexbench.parts.serving.identify.prefixes import PrefixReference
from lexbench.parts.serving.openai.backend import OpenAI
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tests.parts.serving.test_identify import made
from tests.parts.serving.test_prefixes import asked, planted
from tools.identify import llama
from tools.serving import LEXLET

NATS = 0.02
"""Of the measured noise."""


def reference(seed: int = 0) -> tuple[pack.ReferencePack, PrefixReference]:
    """Four setups at 12 x 20 prefixes with 8 tokens, the likeliest two often near: `first`, one that is 0.001 nats
    beside it, one half a nat beside it, and another model."""
    rng = np.random.default_rng(seed)
    shape = (12, 20, 8)
    first = np.sort(rng.exponential(1.0, shape), axis=-1) + 0.5
    nll = np.stack([first, *(first + size * rng.normal(size=shape) for size in (0.001, 0.5))])
    nll = np.concatenate([nll, rng.permuted(first, axis=-1)[None]])
    one = made()
    about = {**one.about, "labels": ["first", "beside it", "far = away", "other"]}
    found = PrefixReference(
        places=np.tile(np.arange(5, 25), (12, 1)),
        ids=np.arange(np.prod(shape)).reshape(shape),
        nll=nll,
        noise=NATS * rng.normal(size=(2, *shape)),
        frame={},
    )
    return replace(one, about=about, nll=found.flat(nll), noise=found.flat(found.noise)), found


def test_the_likelihood_of_a_written_token_is_that_of_the_least_noisy_nats() -> None:
    """Of two tokens 0.3 nats apart with Gumbel noise of 0.1, whose difference is logistic; drawn, too."""
    nll, chance = np.array([[[0.9, 1.2]]]), 1 / (1 + np.exp(-3.0))
    for own, wanted in ((0.9, chance), (1.2, 1 - chance)):
        [found] = written._log_likelihoods(nll, np.array([[own]]), 0.1)
        assert found == pytest.approx(np.log(wanted), abs=1e-12)
    rng = np.random.default_rng(0)
    drawn = -nll[0, 0] + rng.gumbel(scale=0.1, size=(200_000, 2))
    assert (drawn[:, 0] > drawn[:, 1]).mean() == pytest.approx(chance, abs=0.001)
    assert rng.gumbel(scale=written.GUMBEL_SPREAD_PER_NAT, size=200_000).std() == pytest.approx(1, abs=0.01)


def test_written_tokens_name_a_setup_and_what_cannot_be_told_from_it() -> None:
    one, prefixes = reference()
    rng = np.random.default_rng(1)
    for noise in (0.0, NATS):
        for setup, wanted, alike in ((0, "first", ["beside it"]), (2, "far = away", []), (3, "other", [])):
            served = prefixes.nll[setup] + noise * rng.normal(size=prefixes.ids.shape)
            found = written.identify_by_written(one, prefixes, served.argmin(axis=-1))
            assert sorted([found.verdict, *found.alike]) == sorted([wanted, *alike])
            assert found.near[0].label == found.verdict and np.isinf(found.near[-1].reach)


def test_what_no_setup_writes_is_none_of_these() -> None:
    one, prefixes = reference()
    rng = np.random.default_rng(2)
    places = (prefixes.nll[0] + 0.3 * rng.normal(size=prefixes.ids.shape)).argmin(axis=-1)
    found = written.identify_by_written(one, prefixes, places)
    assert (found.verdict, found.alike) == ("none of these", [])
    assert found.why.startswith("the nearest, ") and "more than rounding of 0.02 nats explains" in found.why
    places = prefixes.nll[0].argmin(axis=-1)
    places[:4] = written.UNTOLD_PLACE  # nothing is known of them
    assert written.identify_by_written(one, prefixes, places).verdict in ("first", "beside it")
    with pytest.raises(Refused, match="writes no token that can be told"):
        written.identify_by_written(one, prefixes, np.full_like(places, written.UNTOLD_PLACE))


def test_a_token_that_the_pack_does_not_hold_is_as_likely_as_all_of_those() -> None:
    """Behind 240 prefixes the 7 stored tokens leave nearly nothing, or half of all probability, to others."""
    one, prefixes = reference()
    places = prefixes.nll[0].argmin(axis=-1)
    places[:4] = written.UNHELD_PLACE
    for left, verdict in ((1e-6, "none of these"), (0.5, "first")):
        sums = np.exp(-prefixes.nll).sum(axis=-1, keepdims=True) / (1 - left)
        found = replace(prefixes, nll=prefixes.nll + np.log(sums))
        assert written.identify_by_written(one, found, places).verdict == verdict, left


def test_a_written_text_is_one_stored_token() -> None:
    tokenizer = load_tokenizer(LEXLET)
    before = int(tokenizer.encode("in").ids[-1])
    words = [int(tokenizer.encode(f"in{word}").ids[-1]) for word in (" the", " of", ",", ".")]

    def place(text: str, ids: list[int] = words) -> int:
        return written.place_of_text(tokenizer, text, before, np.array(ids))

    assert [place(text) for text in (" the", " of", ",", ".")] == [0, 1, 2, 3]
    assert place("of") == 1  # a server that strips blanks
    assert place("of", [words[1], words[1]]) == written.UNTOLD_PLACE
    assert place("zebra") == written.UNHELD_PLACE
    assert [place(text) for text in ("", "\N{REPLACEMENT CHARACTER}", "\n\n\n")] == [written.UNTOLD_PLACE] * 3


def test_a_server_without_log_probabilities_is_asked_for_texts() -> None:
    """One as `transformers serve`, which ignores `logprobs`; one that rejects the field."""

    def silent(body: scripted.Body, strict: bool = False) -> scripted.Reply:
        if "echo" in body or not isinstance(body["prompt"], str) or (strict and "logprobs" in body):
            return 400, {"detail": "prompt must be a string."}
        if set(body) - scripted.STANDARD:
            return 422, {"detail": "Unexpected fields in the request"}
        count = len(tokenizer.encode(body["prompt"]).ids) + 1
        choice = {"finish_reason": "length", "index": 0, "text": " of"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": count, "completion_tokens": 1}}

    tokenizer = load_tokenizer(LEXLET)
    text = np.array([*tokenizer.prefix, *tokenizer.encode("The lighthouse keeper counted").ids])
    question = Generate(index=0, cluster="", prompt=text, max_new_tokens=1)
    model = read_model({"name": "lexlet", "path": "lexbench:lexlet"})
    for strict in (False, True):
        with scripted.serving(functools.partial(silent, strict=strict)) as server:
            backend = OpenAI(model, url=server.url, retries=0)
            with pytest.raises(Refused):
                backend.likeliest_next_tokens([[question]])
            assert backend.next_texts([[question]] * 2) == [[" of"]] * 2
            backend.close()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_server_that_only_writes_is_named(lexlet_pack: Path) -> None:
    chosen = {"linear, factor 4": "linear 4", "YaRN, factor 8": "YaRN 8", "linear, factor 3": "none of these"}
    for name, change, label in llama(256, 10_000.0, 32):
        if chosen.get(name) == label:
            code, found = asked(lexlet_pack, PlainServer(**planted(change), form="silent").answer)
            assert found["verdict"] == label and not found["alike"], found
            assert code == (label == "none of these")
            assert found["route"].startswith("the written tokens alone behind 64 prefixes")
    code, found = asked(lexlet_pack, PlainServer(form="silent").answer, "--expect", "NTK 2")
    assert code == 0 and json.loads(json.dumps(found))["length"] == 192
