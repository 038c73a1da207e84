"""Haystacks have exact lengths and are cut between sentences; needles are whole and at their depths."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from lexbench import Document, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.corpora import hash_documents
from lexbench.taskkit import haystack
from lexbench.taskkit.haystack import Haystack
from lexbench.taskkit.perplexity import EncodedCorpus, encoded_corpus


@dataclass(frozen=True)
class Texts:
    """Documents of these texts."""

    texts: tuple[str, ...]

    def documents(self) -> Iterator[Document]:
        for place, text in enumerate(self.texts):
            yield Document(f"d{place}", text)

    def fingerprint(self) -> str:
        return hash_documents(self.documents())


THREE = Texts(("The sky is blue. It is. So be it!", "Here we go.\nThere we go\n\nand back. ", "Remember it."))


def texts(tokenizer: FastTokenizer, *contents: str) -> EncodedCorpus:
    return encoded_corpus(Texts(contents) if contents else THREE, tokenizer)


def straw(length: int, *ends: int) -> Haystack:
    """Tokens 0, 1, 2, ..."""
    return Haystack(np.arange(length), np.asarray(ends), "straw")


def needle(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(tokens, dtype=np.int64)


@pytest.mark.parametrize("space", [0, 1, 7, 40, 41, 1000])
def test_noise_has_so_many_tokens_and_ends_behind_whole_sentences(tokenizer: FastTokenizer, space: int) -> None:
    noise = haystack.noise_haystack(tokenizer, space, "n")
    assert (len(noise.tokens), noise.name) == (space, "n")
    text = tokenizer.decode(noise.tokens)
    whole = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again." * 40
    assert whole.startswith(text)
    assert [tokenizer.decode(noise.tokens[:end]) for end in noise.ends] == [
        text[: found.end()] for found in re.finditer(r"^|\.", text)
    ]


def test_noise_may_be_of_other_sentences(tokenizer: FastTokenizer) -> None:
    noise = haystack.noise_haystack(tokenizer, 12, "n", sentences=[" One.", " Two."])
    assert " One. Two. One. Two. One.".startswith(tokenizer.decode(noise.tokens))


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("A b. C d? E", [" C d? E", " E"]),
        ("a\nb\n\n  c\n", ["\nb\n\n  c\n", "\n\n  c\n"]),
        ('He said "no." (Yes!) And 3.5 of v.2', [" (Yes!) And 3.5 of v.2", " And 3.5 of v.2"]),
        ("\n\n First. Second", [" Second"]),
        ("他说。「好。」她走了！\n\n完", ["「好。」她走了！\n\n完", "她走了！\n\n完", "\n\n完"]),
        ("né\nà", ["\nà"]),
        ("one line", []),
        ("Ends. ", []),
        ("", []),
    ],
)
@pytest.mark.parametrize("kind", ["ours", "stories260K"])
def test_a_break_is_where_a_sentence_or_a_line_begins(
    kind: str, text: str, begun: list[str], request: pytest.FixtureRequest
) -> None:
    """Also if a character is several tokens, or several lines are one token."""
    tokenizer: FastTokenizer = request.getfixturevalue("tokenizer")
    if kind == "stories260K":
        tokenizer = load_tokenizer(request.getfixturevalue("shared") / "stories260K-hf")
    corpus = texts(tokenizer, text)
    ids, breaks = corpus[0].ids, corpus.breaks(0)
    assert [tokenizer.decode(ids[place:]).lstrip() for place in breaks] == [each.lstrip() for each in begun]
    if kind == "ours":
        assert [tokenizer.decode(ids[place:]) for place in breaks] == begun


@pytest.mark.slow
def test_a_long_run_of_blanks_takes_no_time(tokenizer: FastTokenizer) -> None:
    """A search with backtracking at each blank would take minutes."""
    assert texts(tokenizer, "a" + " " * 300_000 + "b.\nc").breaks(0).shape == (1,)


def test_running_text_begins_at_a_sentence_and_goes_on_through_all_documents(tokenizer: FastTokenizer) -> None:
    corpus = texts(tokenizer)
    parts = [corpus[place].ids for place in range(3)]
    whole = sum(map(len, parts))
    lengths = [len(own) for own in THREE.texts]
    starts = {sum(lengths[:each]) + begin: (each, begin) for each in range(3) for begin in range(lengths[each])}
    seen = set()
    for seed in range(40):
        hay = haystack.text_haystack(corpus, whole, np.random.default_rng(seed))
        text = tokenizer.decode(hay.tokens)
        [place] = [place for place in starts if text == "".join(THREE.texts)[place:] + "".join(THREE.texts)[:place]]
        seen.add(starts[place])
        short = haystack.text_haystack(corpus, 11, np.random.default_rng(seed))
        assert short.tokens.tolist() == hay.tokens[:11].tolist()
        assert short.ends.tolist() == [end for end in hay.ends if end <= 11]
    assert seen == {(0, 0), (0, 16), (0, 23), (1, 0), (1, 11), (1, 23), (2, 0)}


def test_running_text_may_be_cut_at_sentences_and_documents(tokenizer: FastTokenizer) -> None:
    corpus = texts(tokenizer)
    hay = haystack.text_haystack(corpus, sum(len(corpus[place].ids) for place in range(3)), np.random.default_rng(3))
    cuts = [tokenizer.decode(hay.tokens[:end]) for end in hay.ends]
    assert cuts[0] == "" and cuts[-1] == tokenizer.decode(hay.tokens)
    sentences = [later[len(cut) :] for cut, later in itertools.pairwise(cuts)]
    found = [
        *("The sky is blue.", " It is.", " So be it!"),
        *("Here we go.", "\nThere we go", "\n\nand back. "),
        "Remember it.",
    ]
    assert Counter(sentences) == Counter(found)


def test_running_text_has_no_bos(tokenizer: FastTokenizer) -> None:
    hay = haystack.text_haystack(texts(tokenizer), 30, np.random.default_rng(0))
    assert tokenizer.bos not in hay.tokens


def test_too_small_a_corpus_is_refused_wherever_the_text_begins(tokenizer: FastTokenizer) -> None:
    corpus = texts(tokenizer)
    whole = sum(len(corpus[place].ids) for place in range(3))
    for seed in range(20):
        with pytest.raises(
            Refused, match=f"a haystack needs {whole + 1} tokens, the corpus has {whole}: take a larger"
        ):
            haystack.text_haystack(corpus, whole + 1, np.random.default_rng(seed))


def test_running_text_is_named_by_its_stretch_of_the_corpus(tokenizer: FastTokenizer) -> None:
    """A document of ten sentences of four tokens: its names at 8 tokens are d0 0 to d0 4, two sentences each."""
    corpus = texts(tokenizer, "\n".join(["0123"] + ["123"] * 9))
    assert len(corpus[0].ids) == 40 and len(corpus.breaks(0)) == 9
    rng = np.random.default_rng(0)
    names = Counter(haystack.text_haystack(corpus, 8, rng).name for _ in range(500))
    assert set(names) == {f"stretch {stretch}" for stretch in range(5)}
    assert stats.chisquare(list(names.values())).pvalue > 0.001


def test_needles_stand_whole_at_the_ends_nearest_to_their_depths() -> None:
    """Depths 0.26, 0.9 and 0.24 of 10 tokens are nearest to ends 3, 10 and 3; ties keep their order."""
    needles = [needle(90, 91), needle(80), needle(70)]
    tokens, depths = haystack.insert_needles(straw(10, 0, 3, 10), needles, [0.26, 0.9, 0.24])
    assert tokens.tolist() == [0, 1, 2, 90, 91, 70, 3, 4, 5, 6, 7, 8, 9, 80]
    assert depths == [0.3, 1.0, 0.3]


def test_a_needle_stays_in_its_stratum_where_that_has_an_end() -> None:
    """0.49 of 10 is nearest to end 5, which is in the second half; end 2 is in the first."""
    hay = straw(10, 0, 2, 5)
    assert haystack.insert_needles(hay, [needle(9)], [0.49])[1] == [0.5]
    assert haystack.insert_needles(hay, [needle(9)], [0.49], strata=2)[1] == [0.2]
    assert haystack.insert_needles(hay, [needle(9)], [0.99], strata=10)[1] == [0.5]
    assert haystack.insert_needles(straw(100, 0, 89, 100), [needle(9)], [0.91])[1] == [0.89]
    assert haystack.insert_needles(straw(100, 0, 89, 100), [needle(9)], [0.91], strata=10)[1] == [1.0]


def test_without_a_haystack_needles_stand_in_their_order() -> None:
    tokens, depths = haystack.insert_needles(straw(0, 0), [needle(7, 8), needle(6)], [0.9, 0.1])
    assert (tokens.tolist(), depths) == ([7, 8, 6], [0.0, 0.0])
    assert haystack.insert_needles(straw(2, 0, 2), [], [])[0].tolist() == [0, 1]


def test_what_is_put_into_a_haystack_is_a_part_of_it() -> None:
    first, place = haystack.insert_needle(straw(6, 0, 2, 6), needle(90, 91), 0.4)
    assert (first.tokens.tolist(), first.ends.tolist(), place) == ([0, 1, 90, 91, 2, 3, 4, 5], [0, 2, 4, 8], 2)
    second, place = haystack.insert_needle(first, needle(80), 0.5)
    assert (second.tokens.tolist(), second.ends.tolist(), place) == ([0, 1, 90, 91, 80, 2, 3, 4, 5], [0, 2, 4, 5, 9], 4)
    unchanged, place = haystack.insert_needle(first, needle(), 0.99, strata=4)
    assert (unchanged.tokens.tolist(), unchanged.ends.tolist(), place) == (first.tokens.tolist(), [0, 2, 4, 8], 8)
    assert unchanged.name == "straw"


@pytest.mark.parametrize("strata", [None, 5])
def test_one_needle_is_put_where_it_is_inserted(strata: int | None) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        hay = straw(40, *sorted({0, *range(4, 41, 8), *rng.integers(0, 41, 6).tolist()}))  # an end in each fifth
        depth = float(rng.random())
        tokens, [realised] = haystack.insert_needles(hay, [needle(99)], [depth], strata)
        body, place = haystack.insert_needle(hay, needle(99), depth, strata)
        assert body.tokens.tolist() == tokens.tolist()
        assert place / 40 == realised


def test_a_sentence_is_cut_where_none_ends_in_the_stratum() -> None:
    """Fifths of 40 tokens are 8 long; sentences end at 0, 3 and 40 only."""
    hay = straw(40, 0, 3, 40)
    assert [haystack.insert_needle(hay, needle(9), depth, 5)[1] for depth in (0.1, 0.19, 0.3, 0.41, 0.79, 0.9)] == [
        *(3, 3),  # the first fifth has an end
        *(12, 16, 31),  # round(0.79 x 40) = 32 is in the next fifth
        40,
    ]


def test_no_needle_is_put_inside_another() -> None:
    hay = straw(8, 0, 8)
    body, place = haystack.insert_needle(
        hay, needle(*range(90, 98)), 0.5, 4
    )  # of 16 tokens, places 5 to 11 are inside it
    assert (place, body.whole) == (4, ((4, 12),))
    assert haystack.insert_needle(body, needle(9), 0.49, 2)[1] == 4
    assert haystack.insert_needle(body, needle(9), 0.51, 2)[1] == 12
    assert haystack.insert_needle(body, needle(9), 0.13, 8)[1] == 2
    assert haystack.insert_needle(body, needle(9), 0.44, 8)[1] == 4  # the needle fills the stratum, places 6 and 7
    joined = haystack.join_pieces([needle(*range(80, 88))], straw(8, 0, 8))
    assert haystack.insert_needle(joined, needle(9), 0.3, 4)[1] == 8  # places 4 to 7 are inside the first piece
    after, _ = haystack.insert_needle(body, needle(70, 71), 0.0, 2)
    assert sorted(after.whole) == [(0, 2), (6, 14)]


def test_joined_pieces_may_be_parted_again() -> None:
    hay = haystack.join_pieces([needle(7, 8), needle(9)], straw(3, 0, 2))
    assert (hay.tokens.tolist(), hay.ends.tolist(), hay.name) == ([7, 8, 9, 0, 1, 2], [0, 2, 3, 5], "straw")
    assert haystack.join_pieces([], straw(3, 0, 2)).ends.tolist() == [0, 2]


def test_depths_are_uniform_in_equally_many_of_each_stratum() -> None:
    """Kolmogorov and Smirnov: the place within a stratum is uniform; all strata have equally many."""
    depths = np.asarray([haystack.stratified_depth(index, 7, np.random.default_rng(index)) for index in range(700)])
    assert np.bincount((depths * 7).astype(int), minlength=8).tolist() == [100] * 7 + [0]
    assert [int(depth * 7) for depth in depths[:9]] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert stats.kstest(depths * 7 % 1, "uniform").pvalue > 0.001
