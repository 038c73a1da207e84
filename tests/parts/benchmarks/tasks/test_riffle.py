"""The last blocks are the same at every length, in both orders, and every block stands behind its own marker."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Loglikelihood, LoglikelihoodAnswer, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from lexbench.taskkit.perplexity import encoded_corpus

CORPUS = Synthetic(count=24, words=900)
LENGTHS = [117, 400, 700]
"""Of lexlet: the least with BOS and one round, 4 x (24 + 5) tokens; two that cut a block."""


def asked(tokenizer: FastTokenizer, length: int, n: int = 5, **given: Any) -> list[Loglikelihood]:
    task = lexbench.task("riffle", corpus=CORPUS, **given).for_lengths(LENGTHS)
    found = task.questions(tokenizer, length, n, 0)
    return [question for question in found if isinstance(question, Loglikelihood)]


def targets(question: Loglikelihood) -> list[int]:
    return [int(token) for token in question.tokens[question.facts["targets"]]]


def test_targets_are_the_same_at_every_length_and_in_both_orders(lexlet: FastTokenizer) -> None:
    known = [targets(question) for question in asked(lexlet, LENGTHS[0])]
    for length in LENGTHS:
        for riffled in (True, False):
            found = asked(lexlet, length, riffled=riffled)
            assert [targets(question) for question in found] == known
            assert {question.length for question in found} == {length} and {len(each) for each in known} == {4 * 24}


def test_one_round_is_the_same_text_in_both_orders(lexlet: FastTokenizer) -> None:
    pairs = zip(asked(lexlet, LENGTHS[0]), asked(lexlet, LENGTHS[0], riffled=False), strict=True)
    assert all((one.tokens == other.tokens).all() for one, other in pairs)


def test_blocks_behind_a_marker_are_a_stretch_of_its_document(lexlet: FastTokenizer) -> None:
    texts = {each.name: each.text for each in CORPUS.documents()}
    orders = set()
    for question in asked(lexlet, 700):
        pieces = re.findall(r"\n\[([A-Z])\] (.*?)(?=\n\[[A-Z]\] |$)", lexlet.decode(question.tokens), re.DOTALL)
        streams: dict[str, str] = {}
        for marker, block in pieces:
            streams[marker] = streams.get(marker, "") + block
        # The cut block at the beginning may have lost its marker with what stands before the first one.
        last = [marker for marker, _ in pieces[-4:]]
        assert sorted(last) == ["A", "B", "C", "D"]
        for marker, name in zip(last, question.facts["documents"], strict=True):
            assert streams[marker] in texts[name]
        orders.add(tuple(marker for marker, _ in pieces[-8:-4]))
        orders.add(tuple(last))
    assert len(orders) > 3, "turns are random"


def test_the_control_has_the_same_tokens_document_by_document(lexlet: FastTokenizer) -> None:
    for one, other in zip(asked(lexlet, 700), asked(lexlet, 700, riffled=False), strict=True):
        assert sorted(one.tokens.tolist()) == sorted(other.tokens.tolist())
        markers = re.findall(r"\n\[([A-Z])\] ", lexlet.decode(other.tokens))
        assert len([a for a, b in itertools.pairwise(markers) if a != b]) == 3, "three changes of document"
        assert one.floors == other.floors and one.bytes == other.bytes


def test_only_the_last_blocks_are_scored_and_their_floors_are_those_of_the_documents(lexlet: FastTokenizer) -> None:
    texts = encoded_corpus(CORPUS, lexlet)
    names = [texts.name(place) for place in range(len(texts))]
    for question in asked(lexlet, 400, n=3):
        nll = np.arange(question.length - question.first_target, dtype=np.float32)
        sample = lexbench.task("riffle", corpus=CORPUS).score(question, LoglikelihoodAnswer(nll=nll))
        assert sample.nll is not None
        assert (sample.nll + question.first_target == question.facts["targets"]).all()
        found = []
        for number, name in enumerate(question.facts["documents"]):
            ids, wanted = texts[names.index(name)].ids, targets(question)[24 * number :][:24]
            at = next(i for i in range(1, len(ids)) if ids[i : i + 24].tolist() == wanted)
            found.append(texts.floors.of(names.index(name), ids[at : at + 24], ids[at - 1 : at + 23])["bigram"])
        assert question.floors["bigram"] == pytest.approx(np.mean(found), rel=0.2), "of any equal stretch"
        assert question.floors["uniform"] == pytest.approx(np.log(lexlet.vocabulary))


def test_groups_share_no_document_and_too_few_documents_are_refused(lexlet: FastTokenizer) -> None:
    found = [frozenset(question.facts["documents"]) for question in asked(lexlet, 400, n=12)]
    assert len(set(found)) == 6 and len(frozenset.union(*found)) == 24, "24 documents are six groups of four"
    with pytest.raises(Refused, match=r"riffle needs 5 places in groups of 26 documents of \d+ tokens, the corpus"):
        asked(lexlet, 700, streams=26, block=2)
    with pytest.raises(Refused, match="riffle needs at least 117 tokens, asked for 116"):
        asked(lexlet, 116)
