"""The same targets at every length, and numbers of a real model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, Loglikelihood, MeasureDivergence, MeasureDivergenceAnswer, Refused, Tokenizer
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.corpora.files import Files

LENGTHS = [16, 33, 64]


def questions_of(task: lexbench.Task, tokenizer: Tokenizer, length: int, n: int, seed: int = 0) -> list[Loglikelihood]:
    questions = task.questions(tokenizer, length, n, seed)
    return [question for question in questions if isinstance(question, Loglikelihood)]


def targets(question: Loglikelihood) -> list[int]:
    return [int(token) for token in question.tokens[question.first_target :]]


def test_targets_are_the_same_tokens_at_every_length(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    for stream in (False, True):
        task = lexbench.task("last_segment", corpus=numbers(100, 70, 300), stream=stream).for_lengths(LENGTHS)
        short, middle, long = (questions_of(task, counting, length, 12) for length in LENGTHS)
        assert [targets(q) for q in short] == [targets(q) for q in middle] == [targets(q) for q in long]
        assert {len(targets(q)) for q in short} == {8}


def test_context_is_the_text_right_before_the_targets(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    task = lexbench.task("last_segment", corpus=numbers(100, 70, 300)).for_lengths(LENGTHS)
    for length in LENGTHS:
        for question in questions_of(task, counting, length, 12):
            begin = len(counting.prefix)
            assert question.length == length
            assert question.tokens[:begin].tolist() == list(counting.prefix)
            assert (np.diff(question.tokens[begin:]) == 1).all()  # of one document, nothing left out
            number = question.facts["first_target"] + 10_000 * (int(question.cluster[1:]) + 1)
            assert question.tokens[question.first_target] == number


def test_the_floors_are_those_of_the_targets_at_every_length(
    numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    task = lexbench.task("last_segment", corpus=numbers(100, 70, 300)).for_lengths(LENGTHS)
    for length in LENGTHS:
        for question in questions_of(task, counting, length, 2):
            others = 470 - {"n0": 100, "n1": 70, "n2": 300}[question.cluster]
            uniform, never = np.log(counting.vocabulary), np.log(others + counting.vocabulary)  # no number stands twice
            assert question.floors == pytest.approx({"uniform": uniform, "unigram": never, "bigram": never})


def test_a_stream_is_cut_out_of_joined_documents(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    corpus = numbers(20, 12, 30, 25)
    task = lexbench.task("last_segment", corpus=corpus, stream=True).for_lengths(LENGTHS)
    begin = [0] if counting.bos is not None else []
    joined = [token for document in corpus.documents() for token in [*begin, *counting.encode(document.text).ids]]
    text = ",".join(map(str, joined))
    for question in questions_of(task, counting, 33, 3):
        assert ",".join(map(str, question.tokens)) in text
        assert 0 not in targets(question)
        assert len({token // 10_000 for token in targets(question)}) == 1
        assert question.cluster == f"n{targets(question)[0] // 10_000 - 1}"


def test_targets_in_a_stream_may_follow_bos_but_never_hold_it(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, counting_without_bos: Tokenizer
) -> None:
    """With BOS all 8 tokens of a document are targets; without BOS the first token has no context."""
    task = lexbench.task("last_segment", corpus=numbers(*[8] * 20), targets=8, longest=27, stream=True)
    for question in questions_of(task, counting_with_bos, 18, 18):
        first = 10_000 * (int(question.cluster[1:]) + 1)
        assert targets(question) == list(range(first, first + 8))
        assert question.tokens[question.first_target - 1] == 0
    with pytest.raises(Refused, match="in a stream of 160 tokens, it has 0 with 27 tokens and 8 targets"):
        task.questions(counting_without_bos, 18, 1, 0)


def test_every_document_gives_a_place_before_one_gives_two(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    task = lexbench.task("last_segment", corpus=numbers(*[200] * 5, 30), targets=10, longest=100)
    questions = questions_of(task, counting, 100, 12)
    for turn in (questions[:5], questions[5:10]):
        assert sorted(q.cluster for q in turn) == ["n0", "n1", "n2", "n3", "n4"]
    assert questions[0].cluster == questions[5].cluster == questions[10].cluster


def test_targets_of_two_places_are_disjoint_and_fill_the_document(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer
) -> None:
    """A place has 100 tokens with BOS: targets may end at text tokens 99 to 199, so 11 places of 10 fit."""
    task = lexbench.task("last_segment", corpus=numbers(199), targets=10, longest=100)
    scored = [token for question in questions_of(task, counting_with_bos, 20, 11) for token in targets(question)]
    assert len(set(scored)) == 110
    assert min(scored) >= 10_000 + 89
    with pytest.raises(
        Refused, match=r"needs 12 places .* of 100 tokens, the corpus has 11 \(.* has 200\): give a corpus .*, or n=11$"
    ):
        task.questions(counting_with_bos, 20, 12, 0)
    assert len(questions_of(task, counting_with_bos, 20, 11)) == 11  # as advised


@pytest.mark.parametrize(
    ("sizes", "advised"),
    [
        ([60], ()),  # nothing to join, nothing to ask fewer of
        ([60, 20], ()),  # together still too short
        ([60, 60], ("task.stream=true", "nll={name:last_segment,stream:true}")),
    ],
)
def test_only_remedies_that_help_are_advised(
    numbers: Callable[..., Corpus], counting_with_bos: Tokenizer, sizes: list[int], advised: Sequence[str]
) -> None:
    task = lexbench.task("last_segment", corpus=numbers(*sizes), targets=10, longest=100)
    with pytest.raises(Refused, match="the corpus has 0") as refused:
        task.questions(counting_with_bos, 100, 2, 0)
    assert [word for word in ("stream", "n=", "lower n") if word in str(refused.value)] == ["stream"] * bool(advised)
    assert all(word in str(refused.value) for word in advised)
    if advised:
        joined = lexbench.task("last_segment", corpus=numbers(*sizes), targets=10, longest=100, stream=True)
        assert joined.questions(counting_with_bos, 100, 1, 0)


def test_places_of_many_seeds_cover_every_target_evenly(
    numbers: Callable[..., Corpus], counting_without_bos: Tokenizer
) -> None:
    """20 tokens may be targets, in five disjoint places of four: each is hit by a fifth of the seeds."""
    task = lexbench.task("last_segment", corpus=numbers(36), targets=4, longest=20)
    hits = np.zeros(36)
    for seed in range(600):
        [question] = questions_of(task, counting_without_bos, 20, 1, seed)
        hits[np.asarray(targets(question)) - 10_000] += 1
    assert hits[:16].sum() == 0
    np.testing.assert_allclose(hits[16:] / 600, 1 / 5, atol=0.07)  # four standard errors


def test_targets_and_places_follow_from_the_runs_lengths(numbers: Callable[..., Corpus]) -> None:
    task = lexbench.task("last_segment", corpus=numbers(100)).for_lengths([64, 512, 128])
    assert (vars(task)["targets"], vars(task)["longest"]) == (32, 512)
    stated = lexbench.task("last_segment", corpus=numbers(100), targets=7, longest=99).for_lengths([64, 512])
    assert (vars(stated)["targets"], vars(stated)["longest"]) == (7, 99)


def test_the_least_length_is_said_and_is_the_least(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    for stream in (False, True):
        task = lexbench.task("last_segment", corpus=numbers(100, 100), targets=16, longest=64, stream=stream)
        assert questions_of(task, counting, 17, 1)
        with pytest.raises(Refused, match="with 16 targets needs at least 17 tokens, asked for 16: raise length"):
            task.questions(counting, 16, 1, 0)
        with pytest.raises(Refused, match="places have 64 tokens, asked for 65: raise longest"):
            task.questions(counting, 65, 1, 0)


def test_a_corpus_of_short_documents_is_refused_with_its_longest(
    numbers: Callable[..., Corpus], counting_without_bos: Tokenizer
) -> None:
    task = lexbench.task("last_segment", corpus=numbers(30, 50), targets=8, longest=64)
    with pytest.raises(Refused, match=r"documents of 64 tokens, the corpus has 0 \(its longest document has 50\)"):
        task.questions(counting_without_bos, 32, 1, 0)


def stories_likelihood(shared: Path, context: int, n: int) -> float:
    """Mean NLL of stories260K as transformers computes it, of 64 targets at n places of the joined stories."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(shared / "stories260K-hf").eval()
    corpus = Files(str(shared / "text/tinystories.txt"))
    task = lexbench.task("last_segment", corpus=corpus, targets=64, longest=8192, stream=True)
    questions = questions_of(task, load_tokenizer(shared / "stories260K-hf"), context + 64, n)
    likelihoods = []
    for first in range(0, n, 8):
        tokens = torch.tensor(np.stack([question.tokens for question in questions[first : first + 8]]))
        with torch.no_grad():
            loss = torch.log_softmax(model(tokens).logits[:, context - 1 : -1].double(), dim=-1)
        likelihoods.append(-loss.gather(-1, tokens[:, context:, None]))
    return float(torch.cat(likelihoods).mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_stories260k_has_its_known_likelihood_inside_the_trained_length(shared: Path) -> None:
    """Known from 96 other places: their standard error is 0.033, and so is ours."""
    assert stories_likelihood(shared, 64, 96) == pytest.approx(1.525, abs=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_stories260k_has_its_known_likelihood_beyond_the_trained_length(shared: Path) -> None:
    assert stories_likelihood(shared, 3072, 16) == pytest.approx(6.228, abs=0.4)


def test_a_divergence_asks_at_the_same_targets(numbers: Callable[..., Corpus], counting: Tokenizer) -> None:
    scored = lexbench.task("last_segment", corpus=numbers(100, 70, 300)).for_lengths(LENGTHS)
    for against, other in (("uncompressed", ""), ("yarn", "yarn")):
        task = lexbench.task("divergence", corpus=numbers(100, 70, 300), against=against).for_lengths(LENGTHS)
        for length in LENGTHS:
            for question, known in zip(
                task.questions(counting, length, 12, 0), questions_of(scored, counting, length, 12), strict=True
            ):
                assert isinstance(question, MeasureDivergence) and question.against == other
                assert question.tokens.tolist() == known.tokens.tolist() and question.first_target == known.first_target
    answer = MeasureDivergenceAnswer(
        divergence=np.array([0.0, 1.0, 2.0, 5.0] * 2, np.float32),
        same_top=np.array([True, True, False, True] * 2),
        nll=np.full(8, 3.0, np.float32),
        other_nll=np.full(8, 2.5, np.float32),
    )
    assert dict(task.score(question, answer).scores) == {"kld": 2.0, "same_top": 0.75, "nll_rise": 0.5}


@pytest.mark.parametrize("shuffled", ["far", "near"])
def test_a_part_of_the_context_stands_in_random_order_before_the_same_targets(
    shuffled: str, numbers: Callable[..., Corpus], counting: Tokenizer
) -> None:
    corpus = numbers(100, 70, 300)
    plain = lexbench.task("last_segment", corpus=corpus).for_lengths(LENGTHS)
    moved = lexbench.task("order_variance", corpus=corpus, shuffled=shuffled, near=5).for_lengths(LENGTHS)
    begin, orders = len(counting.prefix), set()
    for length in LENGTHS:
        for one, two in zip(
            questions_of(plain, counting, length, 12), questions_of(moved, counting, length, 12), strict=True
        ):
            assert (two.first_target, two.facts, two.floors) == (one.first_target, one.facts, one.floors)
            assert sorted(two.tokens) == sorted(one.tokens)
            stays = np.arange(length) >= length - 13 if shuffled == "far" else np.arange(length) < length - 13
            stays |= (np.arange(length) < begin) | (np.arange(length) >= length - 8)
            assert (one.tokens == two.tokens)[stays].all()
            orders.add(tuple((two.tokens - one.tokens)[~stays]))
    assert len(orders) > 8  # of 12 places or more, each has its own
    assert f"in random order: {'all but ' if shuffled == 'far' else ''}the 5 tokens" in moved.protocol(counting)


def test_an_unknown_part_of_the_context_is_an_error(numbers: Callable[..., Corpus]) -> None:
    with pytest.raises(ValueError, match="shuffled must be far or near, got all: leave it out for none"):
        lexbench.task("last_segment", corpus=numbers(100), shuffled="all")
