"""`lexbench keys`: find the key tokens of a corpus with an evaluator model (see `lexbench.parts.search.key_tokens`)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lexbench.backends import Backend
from lexbench.core.attention import Attention
from lexbench.core.console import must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_writable
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Loglikelihood, Tokens
from lexbench.core.values import is_whole
from lexbench.core.version import __version__
from lexbench.corpora import Corpus
from lexbench.methods.composition import read_method
from lexbench.methods.scaled import attention_of
from lexbench.parts.search.journal import measuring_conditions, resume_journal
from lexbench.parts.search.key_tokens import FILE_FORMAT_VERSION, KeyTokens, Rule, read_key_tokens, spans_of
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.cells import BackendFacts
from lexbench.taskkit.perplexity import EncodedCorpus, fewer_samples_remedy


def find_in_corpus(
    *,
    model: Model,
    method: Mapping[str, Any],
    corpus: Corpus,
    backend: Mapping[str, Any],
    out: str | Path | None,
    longest: int | None = None,
    short: int | None = None,
    window: int | None = None,
    gain: float = 2.0,
    loss: float = 2.0,
    n: int | None = None,
) -> KeyTokens:
    """Find the key tokens of a corpus and write them to `out`; repeat the command to resume.

    Both contexts use the same Attention, the method's at `longest` tokens, and begin with BOS if the model uses it.
    Until all documents are done, results are in `out`.part.

    Args:
        model: the evaluator.
        method: config with its name; needed if the evaluator reads more than its trained length.
        corpus: of the texts.
        backend: config of the backend that runs the evaluator.
        out: file to write; must not exist.
        longest: see `Rule`, as for the next four.
        short: see `Rule`.
        window: see `Rule`.
        gain: see `Rule`.
        loss: see `Rule`.
        n: documents, chosen by a hash of their names; None: all that are longer than short and window.

    Raises ConfigError for a wrong configuration, Refused if no document is long enough or a likelihood is not finite.
    """
    rule = Rule.of(model, longest, short, window, gain=gain, loss=loss)
    name, built, key = read_method(method)
    file = _check_options(model, name, rule, out, n)
    attention = attention_of(built, model, rule.longest)
    with backend_for_job(model, backend, rule.longest) as loaded:
        texts = EncodedCorpus(corpus, loaded.tokenizer)
        chosen = _documents_to_read(texts, rule, n)
        header = _file_header(loaded, str(key), attention, rule, corpus.fingerprint(), len(chosen))
        part = file.with_name(f"{file.name}.part")
        done = len(resume_journal(part, header))
        loaded.attend(attention)
        with part.open("a", encoding="utf-8") as stream:
            for document in tqdm(chosen[done:], "documents", len(chosen), initial=done, disable=must_hide_bar()):
                stream.write(json.dumps(_document_row(loaded, texts, document, rule), ensure_ascii=False) + "\n")
                stream.flush()
    part.replace(file)
    return read_key_tokens(file)


def key_token_places(backend: Backend, ids: Tokens, rule: Rule, name: str) -> NDArray[np.int64]:
    """Ascending places of the key tokens among a text's tokens, with the backend's present Attention."""
    first = rule.short + rule.window  # earlier tokens have no long context
    full = _tail_nll(backend, ids, first, name)
    # One short context per window: its targets see `short` to `short + window` tokens.
    begins = range(rule.window, len(ids) - rule.short, rule.window)
    cut = [_tail_nll(backend, ids[begin : begin + first], rule.short, name) for begin in begins]
    gain = np.concatenate([*cut, np.empty(0, np.float32)]) - full
    return first + np.flatnonzero((gain > rule.gain) & (full < rule.loss))


def _tail_nll(backend: Backend, ids: Tokens, first: int, name: str) -> NDArray[np.float32]:
    """NLL of ids[first:], each given BOS and all tokens before it."""
    prefix = np.asarray(backend.tokenizer.prefix, np.int64)
    tokens = np.concatenate([prefix, ids])
    question = Loglikelihood(index=0, cluster=name, tokens=tokens, first_target=len(prefix) + first, bytes=0, words=0)
    nll = backend.score(question).nll
    if not np.isfinite(nll).all():
        raise Refused(
            f"the evaluator's likelihoods are not finite in {name}: use another method, or a higher precision"
        )
    return nll


def _check_options(model: Model, method: str, rule: Rule, out: str | Path | None, n: int | None) -> Path:
    """The file to write; ConfigError for wrong options."""
    if out is None:
        raise ConfigError("keys needs a file to write: give out=FILE.jsonl")
    if Path(out).exists():
        raise ConfigError(f"{out} exists: give another out, or remove it")
    if n is not None and not is_whole(n, 1):
        raise ConfigError(f"keys' n must be at least 1 document, got {n}: leave it out for all")
    if rule.longest > model.trained_length and method == "none":
        raise ConfigError(
            f"keys reads {rule.longest} tokens, {model.name} was trained at {model.trained_length}: lower longest, or "
            "give a method=... for this length"
        )
    check_writable("out", Path(out), "give another out=")
    return Path(out)


def _documents_to_read(texts: EncodedCorpus, rule: Rule, n: int | None) -> list[int]:
    """Places of the documents to read, in the corpus's order."""
    # By hash: documents are drawn evenly, and the same ones whatever their order in the corpus.
    order = sorted(range(len(texts)), key=lambda place: hashlib.sha256(texts.name(place).encode()).digest())
    long = [place for place in order if len(texts[place].ids) > rule.short + rule.window]
    if len(long) < (n or 1):
        raise Refused(
            f"keys needs {n or 1} documents of more than {rule.short + rule.window} tokens, the corpus has {len(long)} "
            f"(its longest has {texts.longest()}): lower short, or use longer "
            f"documents{fewer_samples_remedy(len(long))}"
        )
    return sorted(long[:n])


def _file_header(
    backend: Backend, method: str, attention: Attention, rule: Rule, corpus: str, documents: int
) -> dict[str, Any]:
    stated = json.dumps(attention.as_data(), sort_keys=True)
    evaluator = {
        **measuring_conditions(backend),
        "file": BackendFacts.of(backend).file,
        "begins_with": list(backend.tokenizer.prefix),
        "method": method,
        "attention": hashlib.sha256(stated.encode()).hexdigest()[:16],
    }
    return {
        "key_tokens": FILE_FORMAT_VERSION,
        "evaluator": evaluator,
        "rule": asdict(rule),
        "corpus": corpus,
        "documents": documents,
        "lexbench": __version__,
    }


def _document_row(backend: Backend, texts: EncodedCorpus, document: int, rule: Rule) -> dict[str, Any]:
    """A line of the file: one document with its key tokens."""
    encoded, name = texts[document], texts.name(document)
    ids = encoded.ids[: rule.longest - len(texts.prefix)]
    spans = spans_of(encoded, key_token_places(backend, ids, rule, name))
    end = int(encoded.starts[len(ids)]) if len(ids) < len(encoded.ids) else len(encoded.text)
    return {"document": name, "tokens": len(ids), "end": end, "spans": spans}
