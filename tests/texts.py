"""Texts made, encoded and counted once for all runs of a process; whoever compares them does it afresh."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.task import Tokenizer
from lexbench.corpora import Corpus, synthetic
from lexbench.corpora.stdlib import Stdlib
from lexbench.corpora.synthetic import Synthetic
from lexbench.taskkit import perplexity
from lexbench.taskkit.perplexity import EncodedCorpus

document = synthetic._document
CORPORA = 8
"""Corpora that are kept, of 10 MB each."""


@contextmanager
def once() -> Iterator[None]:
    """Make each document of the synthetic corpus once; encode corpora once with each tokenizer."""
    corpora: dict[object, EncodedCorpus] = {}

    def encoded_corpus(corpus: Corpus, tokenizer: Tokenizer) -> EncodedCorpus:
        if not isinstance(corpus, Synthetic | Stdlib) or type(tokenizer) is not FastTokenizer:
            return EncodedCorpus(corpus, tokenizer)
        key = (corpus, tokenizer.fingerprint, tokenizer.bos, tokenizer.prefix)
        found = corpora.pop(key) if key in corpora else EncodedCorpus(corpus, tokenizer)
        corpora[key] = found  # the last one used
        if len(corpora) > CORPORA:
            del corpora[next(iter(corpora))]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "_document", functools.cache(document))
        patch.setattr(perplexity, "EncodedCorpus", encoded_corpus)
        yield
