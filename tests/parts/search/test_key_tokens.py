"""Key tokens: rule, characters, file, and the key tokens of evaluators with known likelihoods."""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from lexbench import Encoded, Model, Refused, api
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import objects, registry
from lexbench.core.attention import Attention
from lexbench.core.task import Loglikelihood, LoglikelihoodAnswer
from lexbench.corpora import hash_documents
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.search import find_key_tokens, key_tokens
from lexbench.parts.search.key_tokens import KeyTokens, Rule

TEXTS = Synthetic(count=6, words=300, reach=128)
RECALL = re.compile(r"The (\w+) of (\w+) is (\w+)")


class Reader(Chance):
    """Predicts the colour of a recall if the whole statement is in its context; 1 nat for all other tokens."""

    dies_after = 10**9
    asked: tuple[int, ...] = ()
    attended: tuple[Attention, ...] = ()

    def attend(self, attention: Attention) -> None:
        Reader.attended += (attention,)

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        Reader.asked += (question.length,)
        if len(Reader.asked) > self.dies_after:
            raise KeyboardInterrupt
        pieces = [self.tokenizer.decode([token]) for token in question.tokens]
        text = "".join(pieces)
        ends = np.cumsum([len(piece) for piece in pieces])
        nll = np.ones(question.length, np.float32)
        for recall in RECALL.finditer(text):
            thing, owner, colour = recall.groups()
            stated = re.search(rf"{owner} owns an? {colour}\w* {thing}\.", text[: recall.start()])
            inside = (ends > recall.start(3)) & (ends - [len(piece) for piece in pieces] < recall.end(3))
            nll[inside] = 0.125 if stated else 4.0
        return LoglikelihoodAnswer(nll=nll[question.first_target :])


@pytest.fixture(autouse=True)
def _fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_reader")
    module.Reader = Reader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_reader", module)
    monkeypatch.setattr(Reader, "asked", ())
    monkeypatch.setattr(Reader, "attended", ())


@pytest.fixture(scope="module")
def lexlet() -> Model:
    return read_model(registry.read_named_config("model", "lexlet"))


def found(model: Model, out: Path | None, **changed: Any) -> KeyTokens:
    asked: dict[str, Any] = {
        "method": {"name": "none", **registry.read_named_config("method", "none")},
        "corpus": TEXTS,
        "backend": {"_target_": "fake_reader.Reader", "name": "reader"},
    }
    return find_key_tokens.find_in_corpus(model=model, out=out, **{**asked, **changed})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_papers_lengths_are_the_defaults_and_shrink_with_the_trained_length() -> None:
    llama = Model(name="llama-3.1", trained_length=131072, head_dim=128)
    rule = Rule.of(llama, None, None, None)
    assert (rule.longest, rule.short, rule.window, rule.gain, rule.loss) == (32768, 4096, 1024, 2.0, 2.0)
    tiny = Rule.of(Model(name="m", trained_length=256, head_dim=8), None, None, None)
    assert (tiny.longest, tiny.short, tiny.window) == (256, 32, 8)
    assert Rule.of(llama, 1000, 10, None, gain=1.0) == Rule(longest=1000, short=10, window=2, gain=1.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"short": 0}, "keys' short must be at least 1, got 0: leave it out for a share of longest"),
        ({"window": 0}, "keys' window must be at least 1, got 0"),
        ({"longest": 40}, r"longest must be above short \+ window = 40, got 40"),
        ({"gain": -1.0}, "gain must be at least 0 and loss above 0, got -1.0 and 2.0"),
        ({"gain": math.nan}, "gain must be at least 0 and loss above 0, got nan and 2.0"),
        ({"loss": math.inf}, "gain must be at least 0 and loss above 0, got 2.0 and inf"),
        ({"loss": 0.0}, "gain must be at least 0 and loss above 0, got 2.0 and 0.0"),
        ({"gain": "much"}, "gain must be at least 0 and loss above 0, got much and 2.0"),
    ],
)
def test_a_rule_that_means_nothing_is_an_error(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**{"longest": 256, "short": 32, "window": 8, **changed})


class Table:
    """Likelihoods from a table: for the whole text, and for a cut context by its first token."""

    def __init__(self, prefix: tuple[int, ...], full: np.ndarray, cut: np.ndarray) -> None:
        self.tokenizer: Any = type("T", (), {"prefix": prefix})
        self.prefix, self.full, self.cut = prefix, full, cut

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        tokens = question.tokens[len(self.prefix) :]
        assert tuple(question.tokens[: len(self.prefix)]) == self.prefix
        assert (np.diff(tokens) == 1).all()
        begin, first = int(tokens[0]), question.first_target - len(self.prefix)
        nll = self.full if begin == 0 else self.cut[begin]
        return LoglikelihoodAnswer(nll=nll[begin + first : begin + len(tokens)])


@pytest.mark.parametrize("prefix", [(), (7,)])
@pytest.mark.parametrize(("count", "short", "window"), [(40, 8, 4), (41, 8, 4), (43, 5, 7), (13, 8, 4), (30, 1, 1)])
def test_key_tokens_are_those_of_the_definition(prefix: tuple[int, ...], count: int, short: int, window: int) -> None:
    """Token by token as in the paper: the context begins with the last window border `short` tokens before i."""
    rng = np.random.default_rng(count)
    full = rng.uniform(0, 4, count).astype(np.float32)
    cut = rng.uniform(0, 8, (count, count)).astype(np.float32)
    expected = []
    for token in range(short, count):
        begin = (token - short) // window * window
        worse = full[token] if begin == 0 else cut[begin, token]
        if worse - full[token] > 2 and full[token] < 2:
            expected.append(token)
    rule = Rule(longest=count + 1, short=short, window=window) if short + window <= count else None
    assert rule is not None
    table: Any = Table(prefix, full, cut)
    assert find_key_tokens.key_token_places(table, np.arange(count), rule, "text").tolist() == expected
    assert len(expected) > 0 or count == 13


def test_gain_and_loss_are_the_thresholds() -> None:
    full = np.full(12, 1.0, np.float32)
    full[[9, 11]] = 2.0
    cut = np.full((12, 12), 3.0, np.float32)
    cut[:, 10] = 3.125
    cut[:, 11] = 9.0
    table: Any = Table((), full, cut)
    for gain, loss, expected in [
        (2.0, 2.0, [10]),
        (1.5, 2.0, [8, 10]),
        (2.0, 2.5, [10, 11]),
        (0.5, 2.5, [8, 9, 10, 11]),
    ]:
        rule = Rule(longest=12, short=4, window=4, gain=gain, loss=loss)
        assert find_key_tokens.key_token_places(table, np.arange(12), rule, "text").tolist() == expected
    full[10] = np.nan
    with pytest.raises(Refused, match="likelihoods are not finite in text: use another method"):
        find_key_tokens.key_token_places(table, np.arange(12), Rule(longest=12, short=4, window=4), "text")


def expected_letters(model: Model, corpus: Synthetic, rule: Rule) -> Iterator[tuple[str, int]]:
    """Document and place of each letter of a colour whose statement is only in the whole context.

    From the text and the places of its tokens alone: the statement begins before the window of the letter's token does,
    and no other of the same stands in it.
    """
    tokenizer = Chance(model).tokenizer
    for document in corpus.documents():
        starts = tokenizer.encode(document.text).starts[: rule.longest - len(tokenizer.prefix) + 1]
        for recall in RECALL.finditer(document.text[: starts[-1]]):
            thing, owner, colour = recall.groups()
            said = re.finditer(rf"{owner} owns an? {colour}\w* {thing}\.", document.text[: recall.start()])
            told = [statement.start() for statement in said]
            for letter in range(*recall.span(3)):
                token = int(np.searchsorted(starts, letter, side="right")) - 1
                begin = starts[max(0, token - rule.short) // rule.window * rule.window]
                if token >= rule.short and told and max(told) < begin:
                    yield document.name, letter


def test_a_reader_of_statements_finds_exactly_the_recalls_of_far_ones(lexlet: Model, tmp_path: Path) -> None:
    """Only planted colours are found; recalls are about one word in eight."""
    keyed = found(lexlet, tmp_path / "keys.jsonl")
    characters = {
        (name, place) for name, spans in keyed.spans.items() for first, end in spans for place in range(first, end)
    }
    expected = set(expected_letters(lexlet, TEXTS, keyed.rule))
    assert len(expected) > 60
    assert characters == expected
    assert keyed.tokens == 6 * 255
    assert 0.01 < keyed.count / keyed.tokens < 0.2


def test_the_file_says_by_whom_and_how(lexlet: Model, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "keys.jsonl"
    keyed = found(lexlet, file, short=40, n=4)
    header, *rows = lines(file)
    assert header["evaluator"]["model"] == "lexlet"
    assert {"revision", "begins_with", "method", "backend", "dtype", "kernel"} <= header["evaluator"].keys()
    assert header["rule"] == {"longest": 256, "short": 40, "window": 10, "gain": 2.0, "loss": 2.0}
    assert header["corpus"] == keyed.corpus == hash_documents(TEXTS.documents())
    assert header["documents"] == len(rows) == len(keyed.spans) == 4
    assert [row["document"] for row in rows] == sorted(row["document"] for row in rows)
    assert keyed.count == sum(len(row["spans"]) for row in rows)
    texts = {document.name: document.text for document in TEXTS.documents()}
    for row in rows:
        read = Chance(lexlet).tokenizer.encode(texts[row["document"]][: row["end"]])
        assert len(read.ids) == row["tokens"] == 255
    whole = found(lexlet, tmp_path / "short.jsonl", corpus=Synthetic(count=2, words=60))
    assert whole.ends == {document.name: len(document.text) for document in Synthetic(count=2, words=60).documents()}
    assert keyed.evaluator == "lexlet, none"
    assert set(keyed.spans) < set(found(lexlet, tmp_path / "more.jsonl", short=40, n=5).spans)
    assert not list(file.parent.glob("*.part"))


def test_a_stopped_command_goes_on_to_the_same_file(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(lexlet, tmp_path / "whole.jsonl")
    asked = len(Reader.asked)
    monkeypatch.setattr(Reader, "dies_after", asked + asked // 2)
    with pytest.raises(KeyboardInterrupt):
        found(lexlet, tmp_path / "keys.jsonl")
    part = tmp_path / "keys.jsonl.part"
    part.write_text(part.read_text() + '{"document": "synth')  # killed while writing
    monkeypatch.setattr(Reader, "dies_after", 10**9)
    monkeypatch.setattr(Reader, "asked", ())
    assert found(lexlet, tmp_path / "keys.jsonl").hash == whole.hash
    assert 0 < len(Reader.asked) < asked
    part.write_text((tmp_path / "keys.jsonl").read_text())
    (tmp_path / "keys.jsonl").unlink()
    with pytest.raises(ValueError, match=r"keys.jsonl.part has rule.gain 2.0, now 1.0: give another out="):
        found(lexlet, tmp_path / "keys.jsonl", gain=1.0)


HALF = """from dataclasses import dataclass

from lexbench import Attention, Model


@dataclass(frozen=True)
class Half:
    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / 2)
"""


def test_a_stopped_command_goes_on_under_the_same_frequencies_only(
    lexlet: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = []
    for divisor in "23":
        code = tmp_path / divisor / "half.py"
        code.parent.mkdir()
        code.write_text(HALF.replace("/ 2", f"/ {divisor}"))
        methods.append({"name": "half", "file": str(code)})
    for _ in range(2):
        monkeypatch.setattr(Reader, "dies_after", len(Reader.asked) + 1)
        with pytest.raises(KeyboardInterrupt):
            found(lexlet, tmp_path / "keys.jsonl", method=methods[0])
    monkeypatch.setattr(Reader, "dies_after", 10**9)
    with pytest.raises(ValueError, match=r"keys.jsonl.part has evaluator.attention \w+, now \w+: give another out="):
        found(lexlet, tmp_path / "keys.jsonl", method=methods[1])


def test_both_contexts_are_read_under_the_methods_attention_at_the_longest(lexlet: Model, tmp_path: Path) -> None:
    yarn = {"name": "yarn", **registry.read_named_config("method", "yarn")}
    keyed = found(lexlet, tmp_path / "keys.jsonl", method=yarn, longest=400, n=1)
    assert keyed.evaluator == "lexlet, yarn"
    assert [attention.as_data() for attention in Reader.attended] == [
        objects.build_object(registry.read_named_config("method", "yarn"), "method").attention(lexlet, 400).as_data()
    ]
    assert sorted(set(Reader.asked), reverse=True)[0] == 400


def test_what_cannot_be_done_is_said_with_a_remedy(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys needs a file to write: give out=FILE"):
        found(lexlet, None)
    (tmp_path / "old.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"old.jsonl exists: give another out"):
        found(lexlet, tmp_path / "old.jsonl")
    with pytest.raises(
        ValueError, match="keys reads 512 tokens, lexlet was trained at 256: lower longest, or give a met"
    ):
        found(lexlet, tmp_path / "keys.jsonl", longest=512)
    for n in (0, 1.5, "all"):
        with pytest.raises(ValueError, match=f"keys' n must be at least 1 document, got {n}"):
            found(lexlet, tmp_path / "keys.jsonl", n=n)
    with pytest.raises(ValueError, match="keys' short must be a whole number of tokens, got 'few'"):
        found(lexlet, tmp_path / "keys.jsonl", short="few")
    with pytest.raises(Refused, match="needs 7 documents of more than 40 tokens, the corpus has 6"):
        found(lexlet, tmp_path / "keys.jsonl", n=7)
    with pytest.raises(Refused, match="needs 1 documents of more than 40 tokens, the corpus has 0"):
        found(lexlet, tmp_path / "keys.jsonl", corpus=Synthetic(count=3, words=4))


def test_a_file_that_is_missing_cut_off_or_something_else_is_an_error(lexlet: Model, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nowhere.jsonl cannot be read \(No such file .*\): make one by `lexbench keys"
    ):
        key_tokens.read_key_tokens(tmp_path / "nowhere.jsonl")
    file = tmp_path / "keys.jsonl"
    found(lexlet, file)
    whole = file.read_text()
    for content in ("", "{}\n", "[]\n", whole[: len(whole) // 2], "".join(whole.splitlines(True)[:-1]), "\x00\n"):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"keys.jsonl must be a whole file of key tokens of format 1: make one"):
            key_tokens.read_key_tokens(file)


def encoded(text: str, starts: list[int]) -> Encoded:
    return Encoded(ids=np.arange(len(starts)), starts=np.asarray(starts), text=text)


def test_a_key_token_of_one_tokenizer_is_every_token_of_another_that_shares_a_letter_with_it() -> None:
    text = "the copper kettle is copper."
    ours = encoded(text, [0, 3, 10, 17, 20, 27])  # the| copper| kettle| is| copper|.
    assert key_tokens.spans_of(ours, np.array([1, 4, 5])) == [(4, 10), (21, 27), (27, 28)]
    letters = encoded(text, list(range(len(text))))
    halves = encoded(text, [0, 4, 7, 11, 18, 21, 25])  # "the |cop|per |kettle |is |copp|er."
    one = encoded(text, [0])
    spans = np.array([(4, 10), (21, 27)])
    assert key_tokens.tokens_within(ours, spans).tolist() == [1, 4]
    assert key_tokens.tokens_within(letters, spans).tolist() == [*range(4, 10), *range(21, 27)]
    assert key_tokens.tokens_within(halves, spans).tolist() == [1, 2, 5, 6]
    assert key_tokens.tokens_within(one, spans).tolist() == [0]
    assert key_tokens.tokens_within(letters, np.empty((0, 2), np.int64)).tolist() == []


def test_pieces_of_one_character_all_have_it_and_blanks_alone_are_kept() -> None:
    pieces = encoded("aé  b", [0, 1, 2, 2, 4])  # a|first half of é|second half|two blanks|b
    assert key_tokens.spans_of(pieces, np.array([1, 2, 3, 4])) == [(1, 2), (1, 2), (2, 4), (4, 5)]
    assert key_tokens.tokens_within(pieces, np.array([(1, 2)])).tolist() == [1, 2]
    assert key_tokens.tokens_within(pieces, np.array([(2, 3)])).tolist() == [3]


def test_spans_of_a_real_tokenizer_lead_back_to_its_tokens(tokenizer: FastTokenizer) -> None:
    """Each token except blanks finds itself, and no token without one of its letters."""
    text = next(iter(TEXTS.documents())).text + "déjà vu: 漢字\n\n"
    tokens = tokenizer.encode(text)
    for place in range(0, len(tokens.ids), 7):
        [(first, end)] = key_tokens.spans_of(tokens, np.array([place]))
        back = key_tokens.tokens_within(tokens, np.array([(first, end)]))
        assert place in back
        assert len(back) == 1 or not text[first:end].isascii()


def test_the_commands_settings_are_those_that_finding_takes() -> None:
    config = yaml.safe_load((registry.command_config_folder("keys") / "keys.yaml").read_text())
    parts = [part for entry in config["defaults"] if isinstance(entry, dict) for part in entry]
    assert set(parts[:4]) == {"model", "method", "corpus", "backend"}
    taken = set(find_key_tokens.find_in_corpus.__annotations__) - {"return", "model", "method", "corpus", "backend"}
    assert set(config) - {"defaults", "hydra"} == taken
    defaults = find_key_tokens.find_in_corpus.__kwdefaults__ or {}
    assert {name: config[name] for name in taken - {"out"}} == {name: defaults[name] for name in taken - {"out"}}
    assert config["out"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_embedded_model_finds_a_few(lexlet: Model, tmp_path: Path) -> None:
    """Distant text helps it little: fewer than one token in a hundred is a key token."""
    backend = {**registry.read_named_config("backend", "hf"), "name": "hf"}
    keyed = found(lexlet, tmp_path / "keys.jsonl", corpus=api.corpus("stdlib"), backend=backend, n=20)
    assert 0 < keyed.count < 0.01 * keyed.tokens
