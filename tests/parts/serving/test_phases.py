"""Faults by the length of a prompt: each planted one is named, a healthy server has none."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.commands import main
from lexbench.parts.serving.phases.find import (
    PhaseReadings,
    find_faults,
    length_classes,
    stands_out,
)
from lexbench.parts.serving.phases.prompts import can_be_text, length_range, questions_of_text
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer
from tools.serving import HEALTHY, Tokens, edited, whole

LENGTHS = range(192, 256)
Reads = Callable[[Tokens], Tokens]


@dataclass
class CopyingServer(PlainServer):
    """Goes on as the text did behind the longest row of tokens that its end repeats, as models that copy do."""

    form: str = "ids"
    reads: Reads = lambda tokens: tokens
    """What it reads in place of a prompt."""
    reads_again: Reads = lambda tokens: tokens
    """What it reads in place of a prompt that it has in its cache."""
    noise: float = 0.0
    """Nats of rounding."""
    known: set[tuple[int, ...]] = field(default_factory=set)

    def open_network(self) -> Any:
        """None."""
        return None

    def likeliest(self, tokens: Tokens) -> Tensor:
        """[V] log-probabilities: 0.9 for the token that follows the longest repeated end."""
        read = self.reads(tokens)
        read = self.reads_again(read) if tuple(tokens) in self.known else read
        self.known.add(tuple(tokens))
        row = np.array(read)
        matches, follows = np.ones(len(row) - 1, bool), int(row[-1])
        for back in range(min(12, len(row) - 1)):
            matches[back:] &= row[: len(row) - 1 - back][: len(matches) - back] == row[-1 - back]
            matches[:back] = False
            if not matches.any():
                break
            follows = int(row[np.flatnonzero(matches)[-1] + 1])
        chances = torch.full((self.tokenizer.vocabulary,), 0.1 / self.tokenizer.vocabulary)
        chances[follows] += 0.9
        logits = chances.log() + self.noise * torch.randn(len(chances), generator=self.rng)
        return logits.log_softmax(-1)


def asked(server: PlainServer, *words: str) -> int:
    """Exit code of the command."""
    with scripted.serving(server.answer) as served:
        return main.main(["phases", served.url, "model=lexlet", "length=255", *words])


def where(test: Callable[[int], bool], reads: Reads) -> Reads:
    return lambda tokens: reads(tokens) if test(len(tokens)) else tokens


def lose_page(tokens: Tokens) -> Tokens:
    """All of the last page but the last token is lost."""
    return [*tokens[:-16], tokens[-1]]


PLANTED: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "3 mod 4": (
        {"reads": where(lambda n: n % 4 == 3, lambda tokens: tokens[:-1])},
        (),
        "wrong where the length is 3 mod 4: 0 of 48 against 144 of 144 right",
    ),
    "last page": ({"reads": where(lambda n: n > 240, lose_page)}, ("page=16",), "wrong behind 240 tokens: "),
    "chunk edge": (
        {"reads": where(lambda n: n > 200, lambda tokens: tokens[200:])},
        ("chunk=100",),
        "wrong behind 200 tokens: ",
    ),
    "first token of a page": (
        {"reads": where(lambda n: n % 64 == 1, lambda tokens: tokens[:-1])},
        ("page=64",),
        "wrong where the length is 1 mod 64: 0 of 3 against 189 of 189 right",
    ),
    "cache hit": (
        {"reads_again": lambda tokens: tokens[:-1]},
        (),
        "wrong when the same prompt is asked again: 0 of 192 against 192 of 192 right",
    ),
    "cache hit of whole pages": (
        {"reads_again": where(lambda n: n % 16 == 0, lambda tokens: tokens[:-1])},
        (),
        "wrong where the length is 0 mod 16 and the prompt is asked again: 0 of 12 against 180 of 180 right",
    ),
}


@pytest.mark.everyday("3 mod 4-ids", "cache hit-texts")
@pytest.mark.parametrize("form", ["ids", "texts"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields, words, said = PLANTED[name]
    assert asked(CopyingServer(form=form, **fields), *words) == 1
    told = capsys.readouterr().out
    assert told.startswith(said) and told.count("wrong") == 1


@pytest.mark.slow
def test_of_a_server_without_likelihoods_its_words_tell(capsys: pytest.CaptureFixture[str]) -> None:
    fields, words, said = PLANTED["3 mod 4"]
    assert asked(CopyingServer(form="silent", **fields), *words) == 1
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_fault_of_a_real_network_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def change(engine: Any, tokens: Tokens) -> list[tuple[int, int]]:
        return [*whole(tokens)[:-16], whole(tokens)[-1]] if len(tokens) % 4 == 3 else whole(tokens)

    assert asked(PlainServer(form="ids", **edited(change))) == 1
    assert capsys.readouterr().out.startswith("wrong where the length is 3 mod 4: ")


@pytest.mark.everyday("texts-0.05-8")
@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("form", ["texts", "silent"])
def test_a_healthy_server_has_no_fault(
    form: str, noise: float, at_once: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"backend.concurrency={at_once}", "page=16", "--json")
    assert asked(CopyingServer(form=form, noise=noise), *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["faults"] == [] and told["visible"] == pytest.approx(0.5)
    assert [told[each] for each in ("shortest", "longest", "again")] == [192, 255, True]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["bfloat16", "float16", "weights in 8 bits, a scale a row"])
def test_precisions_and_batches_are_no_fault(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(PlainServer(form="ids", **HEALTHY[name]), "n=128") == 0, capsys.readouterr()


@pytest.mark.usefixtures("one_thread")
def test_a_checkpoint_is_asked_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["phases", "lexlet", "length=160"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("no fault by length found in ") and "no prompt was asked again" in told


def readings(off: Callable[[int], float], texts: int = 3, noise: float = 0.02) -> PhaseReadings:
    """Of four tokens whose likeliest loses `off` nats at a length."""
    rng, usual = np.random.default_rng(0), -np.log([0.6, 0.2, 0.1, 0.05])
    told = [
        [
            {own: float(usual[own] + noise * rng.normal() + (own == 0) * off(length)) for own in range(4)}
            for length in LENGTHS
        ]
        for _ in range(texts)
    ]
    return PhaseReadings.of(told, [0] * texts)


def test_the_difference_of_a_class_is_that_of_the_formula() -> None:
    """3 nats of a token with 0.6 of 0.95 where it is right: it weighs its mean over 64 lengths, 32 of them wrong."""
    classes = length_classes(LENGTHS, [])
    [fault] = find_faults(readings(lambda length: 3.0 * (length % 2), noise=0.0), classes)
    first = (0.6 + 0.6 * np.exp(-3)) / 2
    assert fault.apart == pytest.approx(3 * np.sqrt(first / (first + 0.35)))
    assert fault.label == "where the length is 1 mod 2" and (fault.right, fault.right_outside) == (0, 96)
    # Of 19999 draws none is as far apart: by Holm times the number of classes.
    assert fault.p == pytest.approx(len(classes) / 20_000)


@pytest.mark.parametrize("label", ["where the length is 5 mod 32", "behind 224 tokens", "unless the length is 0 mod 8"])
def test_lengths_are_named_from_the_side_that_is_wrong(label: str) -> None:
    wrong: dict[str, Callable[[int], bool]] = {
        "where the length is 5 mod 32": lambda n: n % 32 == 5,
        "behind 224 tokens": lambda n: n > 224,
        "unless the length is 0 mod 8": lambda n: n % 8 != 0,
    }
    [fault] = find_faults(readings(lambda length: 3.0 * wrong[label](length)), length_classes(LENGTHS, []))
    assert fault.label == label


def test_two_residues_are_named_one_after_another() -> None:
    found = find_faults(readings(lambda length: 3.0 * (length % 8 in (1, 6))), length_classes(LENGTHS, []))
    assert {each.label for each in found} == {f"where the length is {each} mod 8" for each in (1, 6)}


@pytest.mark.parametrize("drift", [0.0, 0.004])
def test_rounding_and_a_drift_with_length_do_not_stand_out(drift: float) -> None:
    """0.25 nats over the whole range, as a shorter lead moves lexlet at most."""
    assert not stands_out(readings(lambda length: drift * (length - 192)), length_classes(LENGTHS, [16]))


def test_prompts_of_all_lengths_end_in_the_same_tokens_and_begin_otherwise() -> None:
    tokenizer = CopyingServer().tokenizer
    text = np.concatenate([tokenizer.prefix, tokenizer.encode("How the sun sets on a day in May. " * 40).ids])
    [question, *_] = questions_of_text(tokenizer, text, 200)
    prompts = [question.prompt(length) for length in range(137, 201)]
    assert [len(each) for each in prompts] == [*range(137, 201)]
    size = 200 - len(tokenizer.prefix) - 63
    assert all(np.array_equal(each[-size:], prompts[0][-size:]) for each in prompts)
    # What follows is what follows these 12 tokens in the passage.
    body = prompts[0][-size:].tolist()
    place = next(place for place in range(size) if body[place : place + 12] == body[-12:])
    assert body[place + 12] == question.follows
    assert can_be_text(tokenizer, question, range(137, 201))


@pytest.mark.parametrize(
    ("longest", "sizes", "ends"),
    [(255, [], (192, 255)), (255, [16], (192, 255)), (4000, [2048], (2017, 2080)), (4000, [512, 16], (3553, 3616))],
)
def test_the_range_goes_across_an_edge(longest: int, sizes: list[int], ends: tuple[int, int]) -> None:
    found = length_range(longest, sizes)
    assert (found[0], found[-1]) == ends and len(found) == 64


URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([URL], "names no model: give model=NAME, whose tokenizer it has"),
        (["lexlet", "model=lexlet"], "names its model: leave model= out"),
        (["model=lexlet"], "the server or checkpoint comes first, got model=lexlet"),
        (["lexlet", "backend=openai"], "phases asks lexlet by backend=hf, got openai: leave it out"),
        ([URL, "model=lexlet", "backend=hf"], "by backend=openai, got hf: leave it out"),
        (["lexlet", "n=100"], "n must be a multiple of 64, one prompt of each length, got 100"),
        (["lexlet", "page=1"], "page must be a whole number of at least 2 tokens, got 1: e.g. page=16"),
        (["lexlet", "length=100"], "phases needs prompts of at least 108 tokens, and length leaves 100: raise length"),
        (["lexlet", "chunk=4096"], "and an edge of 4096 tokens leaves 32: raise length"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["phases", *words]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told and "\n" not in told


def test_a_chat_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted.serving(PlainServer(form="chat").answer) as served:
        assert main.main(["phases", served.url, "model=lexlet", "backend.chat=true"]) == 2
    assert "set backend.chat=false" in capsys.readouterr().err
