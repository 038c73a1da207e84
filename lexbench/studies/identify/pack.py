"""A reference pack: texts, and their log-probabilities under each setup of a checkpoint, in one file.

A numpy archive (`.npz`, nothing in it is executed), about 10 KB a setup:

    about     JSON: format, model, vocabulary, labels of the setups, clusters, versions, noise
    tokens    [texts, length] ids
    nll       [texts, targets] nats under the first setup, float32; of the first `opening` tokens behind the very first,
              and of the last half
    changes   [setups - 1, texts, targets] nats more under the others, float16
    noise     [kinds, texts, targets] nats that the first setup moves by in bfloat16 and with 8-bit activations, float16
    written   [texts, room] ids that the checkpoint writes in place of each text's last ones; -1 where it has ended

Format 1 had no opening, no written ids, and the larger noise only. It is read as before.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lexbench.backends import Backend
from lexbench.core import registry
from lexbench.core.console import without_bar
from lexbench.core.files import write_bytes
from lexbench.core.method import method_entries
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Score, Scored, Tokens, Write, Written
from lexbench.core.version import __version__
from lexbench.runner.answers import answers
from lexbench.runner.backend_pool import done_with, opened
from lexbench.runner.job import Job
from lexbench.studies.identify.setups import setups

FORMAT = 2
LARGEST = 1 << 20
"""Bytes of a pack, at most."""
LENGTH = 512
"""Usual tokens of a text, where twice the trained length is not less."""
TEXTS = 16
OPENING = 16
"""Targets at the beginning of a text, where a BOS that is lost or a header too many shows."""
ROOM = 16
"""Tokens that are written in place of each text's last ones."""

Nats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """What a file holds."""

    about: Mapping[str, Any]
    tokens: Tokens
    nll: Nats
    """[setups, texts, targets] nats."""
    noise: Nats
    """[kinds, texts, targets] nats."""
    written: Tokens
    """[texts, room] ids; -1: none. No room in format 1."""

    @property
    def labels(self) -> list[str]:
        """Names of the setups."""
        return list(self.about["labels"])

    @property
    def opening(self) -> int:
        """Targets at the beginning of a text; the others are at its end."""
        return int(self.about.get("opening", 0))

    def asked(self, backend: Backend) -> Nats:
        """[texts, targets] nats of a served model; Refused where one is not finite."""
        return losses(backend, self.tokens, self.opening, self.nll.shape[2])

    def of_texts(self, nll: Nats) -> Nats:
        """[texts, targets] of nats [texts, length - 1], those of all tokens but the first."""
        return _targets(nll, self.opening, self.nll.shape[2])


def _targets(nll: Nats, opening: int, targets: int) -> Nats:
    """The first and the last ones."""
    return np.concatenate([nll[:, :opening], nll[:, nll.shape[1] - (targets - opening) :]], axis=1)


def scored(tokens: Tokens, start: int) -> Score:
    """A question for the nats of tokens[start:]."""
    return Score(index=0, cluster="", tokens=tokens, start=start, bytes=0, words=0)


def make(
    *,
    model: Model,
    corpus: Mapping[str, Any] | None,
    backend: Mapping[str, Any],
    length: int | None,
    n: int | None,
    seed: int,
    out: Path,
    quiet: bool = False,
) -> Pack:
    """Ask the checkpoint under every setup, and write the pack.

    Args:
        model: with its checkpoint.
        corpus: config of the texts; None: the usual one.
        backend: config of `hf`; its dtype is float32 if it is `auto`.
        length: tokens of a text; None: 512, at most twice the trained length.
        n: texts; None: 16.
        seed: of the texts.
        out: file to write.
        quiet: show no progress.

    Raises ValueError for wrong settings, Refused for a model without rotary positions.
    """
    from lexbench.backends.hf.backend import Hf  # torch is loaded only where a pack is made
    from lexbench.backends.hf.mistakes import eight_bits, mispair

    if backend.get("name") != "hf":
        raise ValueError(f"a fingerprint is made with backend=hf, got backend={backend.get('name')}: leave it out")
    length = length or min(2 * model.trained_length, LENGTH)
    job = Job.of(
        model=model,
        methods=method_entries(["none"]),
        tasks=[{**registry.read("task", "last_segment"), "name": "last_segment"}],
        corpus=corpus,
        backend=backend,
        lengths=[length],
        multiples=None,
        n=n or TEXTS,
        seeds=[seed],
        results=None,
    )
    wanted = setups(model, length)
    config = {**backend, "dtype": "float32" if backend.get("dtype", "auto") == "auto" else backend["dtype"]}
    loaded = opened(model, config, length)
    try:
        assert isinstance(loaded, Hf), "checked above"
        texts = np.stack(
            [_tokens(each) for each in job.tasks[0].built.questions(loaded.tokenizer, length, job.n, seed)]
        )
        opening = min(OPENING, length // 4)
        targets = opening + length - length // 2
        found, labels = [], []
        for each in tqdm(wanted, "setups", disable=without_bar(quiet)):
            try:
                loaded.attend(each.attention)
                if each.mispaired:
                    mispair(loaded)
                found.append(losses(loaded, texts, opening, targets))
                labels.append(each.label)
            except Refused:
                if not found:
                    raise
        loaded.attend(wanted[0].attention)
        with eight_bits(loaded):
            rounded = [losses(loaded, texts, opening, targets)]
        behind = writes(loaded, texts, min(ROOM, length // 4))
        about = {
            "format": FORMAT,
            "lexbench": __version__,
            "model": model.name,
            "revision": loaded.revision,
            "version": loaded.version,
            "vocabulary": loaded.tokenizer.vocabulary,
            "corpus": job.corpus.label,
            "labels": labels,
            "opening": opening,
        }
    finally:
        done_with(loaded)
    other = opened(model, {**config, "dtype": "bfloat16"}, length)
    try:
        rounded.append(losses(other, texts, opening, targets))
    finally:
        done_with(other)
    nll = np.stack(found)
    made = Pack(about=about, tokens=texts, nll=nll, noise=np.stack(rounded) - nll[0], written=behind)
    content = as_bytes(made)
    if len(content) > LARGEST:
        raise ValueError(
            f"the pack has {len(content) / 1e6:.2f} MB, it must have at most {LARGEST / 1e6:.2f}: lower n or length"
        )
    write_bytes(out, content)
    return made


def _tokens(question: AnyQuestion) -> Tokens:
    assert isinstance(question, Score)
    return question.tokens


def losses(backend: Backend, texts: Tokens, opening: int, targets: int) -> Nats:
    """[texts, targets] nats of the first tokens behind the very first, and of the last; Refused where not finite."""
    start = 1 if opening else texts.shape[1] - targets
    return _targets(nats(backend, [scored(row, start) for row in texts]), opening, targets)


def nats(backend: Backend, questions: Sequence[Score]) -> Nats:
    """[questions, targets] nats; Refused where one is not finite."""
    found = []
    for answer in answers(backend, questions):
        assert isinstance(answer, Scored)
        found.append(answer.nll.astype(np.float64))
    nll = np.stack(found)
    if not np.isfinite(nll).all():
        raise Refused(f"{backend.name} gave likelihoods that are no numbers: it serves nothing that can be named")
    return nll


def writes(backend: Backend, texts: Tokens, room: int) -> Tokens:
    """[texts, room] ids that are written in place of each text's last ones; -1 where the model has ended."""
    whole = np.full((len(texts), room), -1)
    questions = [Write(index=index, cluster="", prompt=row[:-room], room=room) for index, row in enumerate(texts)]
    for row, answer in zip(whole, answers(backend, questions), strict=True):
        assert isinstance(answer, Written)
        row[: len(answer.tokens)] = answer.tokens
    return whole


def as_bytes(pack: Pack) -> bytes:
    """The file's content; the same pack gives the same bytes."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        about=np.frombuffer(json.dumps(pack.about, sort_keys=True).encode(), np.uint8),
        tokens=pack.tokens.astype(np.int32),
        nll=pack.nll[0].astype(np.float32),
        changes=(pack.nll[1:] - pack.nll[:1]).astype(np.float16),
        noise=pack.noise.astype(np.float16),
        written=pack.written.astype(np.int32),
    )
    return content.getvalue()


def read(file: Path) -> Pack:
    """Read a pack; ValueError for anything else."""
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        with np.load(file, allow_pickle=False) as held:
            about = json.loads(held["about"].tobytes())
            nll, changes = held["nll"].astype(np.float64), held["changes"].astype(np.float64)
            tokens, noise = held["tokens"].astype(np.int64), held["noise"].astype(np.float64)
            if about["format"] == 1:
                noise, written = noise[None], np.empty((len(tokens), 0), np.int64)
            else:
                written = held["written"].astype(np.int64)
        whole = np.concatenate([nll[None], nll + changes])
        opening = about.get("opening", 0)
        if not 1 <= about["format"] <= FORMAT or len(about["labels"]) != len(whole) or noise.shape[1:] != nll.shape:
            raise ValueError("its parts do not fit together")
        if not len(nll) == len(tokens) == len(written) or not 0 <= opening < nll.shape[1] < tokens.shape[1]:
            raise ValueError("its parts do not fit together")
        if not np.isfinite(whole).all():
            raise ValueError("its likelihoods are no numbers")
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        said = " ".join(f"{error}".split())[:100]
        raise ValueError(f"{file} is no fingerprint ({said}): make it with lexbench fingerprint") from error
    return Pack(about=about, tokens=tokens, nll=whole, noise=noise, written=written)
