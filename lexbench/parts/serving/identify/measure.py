"""Read the texts of a pack under setups of the checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import folder_of, weights_fingerprint
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.console import Lines, must_hide_bar
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, ClassifyTokens, ClassifyTokensAnswer, Loglikelihood, Tokenizer, Tokens
from lexbench.core.text import count_with_noun
from lexbench.core.version import __version__
from lexbench.methods.composition import method_entries
from lexbench.parts.serving.identify.ask import N_END_TARGETS
from lexbench.parts.serving.identify.cut import ignores_beginning
from lexbench.parts.serving.identify.pack import (
    PACK_FORMAT_VERSION,
    Nats,
    ReferencePack,
    continue_texts,
    target_places,
)
from lexbench.parts.serving.identify.prefixes import (
    N_STORED_TOKENS,
    PrefixReference,
    prefix_places,
    prefix_question,
)
from lexbench.parts.serving.identify.readings import KeptReadings, Reading
from lexbench.parts.serving.identify.setups import AttentionSetup
from lexbench.runner.answers import answer_questions
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.job import Job


@dataclass(frozen=True)
class TextPlan:
    """The parts of each text that are measured, in tokens."""

    opening: int
    """First targets."""
    ending: int
    """Last targets."""
    prefixes: int
    first_prefix: int
    """Tokens of the shortest prefix."""
    room: int
    """Tokens that are written in place of the last ones."""


class PlannedTexts:
    """Texts with the questions that are asked of each.

    Args:
        backend: with the checkpoint under its first setup, whose likeliest tokens are taken.
        texts: [texts, length] ids.
        plan: what is measured.
        chat: whether each prefix is a message in the model's chat template.
    """

    def __init__(self, backend: Backend, texts: Tokens, plan: TextPlan, chat: bool) -> None:
        self.texts, self.plan, tokenizer = texts, plan, backend.tokenizer
        whole = tokenizer.frame(chat=chat)
        self.frame = {"before": whole.before.tolist(), "after": whole.after.tolist()} if whole.is_chat else {}
        self._targets = target_places(texts.shape[1], plan.opening, plan.opening + plan.ending)
        if plan.prefixes:
            rows = [prefix_places(tokenizer, row, max(1, plan.first_prefix), plan.prefixes, chat) for row in texts]
            self.places = np.stack(rows)
        else:
            self.places = np.empty((len(texts), 0), np.int64)
        self.ids = self._likeliest_ids(backend)

    def _likeliest_ids(self, backend: Backend) -> Tokens:
        """[texts, prefixes, tokens] of the likeliest tokens, the likeliest first."""
        vocabulary = min(backend.tokenizer.vocabulary, backend.model.vocabulary or backend.tokenizer.vocabulary)
        ids = np.empty((*self.places.shape, min(N_STORED_TOKENS, vocabulary)), np.int64)
        for row, questions in enumerate(self._prefix_questions(backend.tokenizer)):
            asked = [_mark(tokens, places, np.arange(vocabulary)) for tokens, places in questions]
            nll = np.concatenate([_nll(each) for each in answer_questions(backend, asked)]) if asked else ids[row]
            ids[row] = np.argsort(nll, axis=1, kind="stable")[:, : ids.shape[2]]
        return ids

    def _prefix_questions(self, tokenizer: Tokenizer) -> list[list[tuple[Tokens, NDArray[np.int64]]]]:
        """For each text: tokens and places in them; all prefixes of a text in one, where each begins the next."""
        found = []
        for text, places in zip(self.texts, self.places, strict=True):
            if not self.frame:
                found.append([(text, places)] if len(places) else [])
                continue
            prompts = [prefix_question(tokenizer, text, place, self.frame).prompt for place in places.tolist()]
            found.append([(np.append(prompt, prompt[:1]), np.array([len(prompt)])) for prompt in prompts])
        return found

    def read(self, backend: Backend) -> Reading:
        """Read all texts under the present setup: once each, and each message of a chat."""
        asked, counts = [], []
        for row, text in enumerate(self.texts):
            places, options = self._targets, text[self._targets]
            others: list[ClassifyTokens] = []
            if not self.frame:  # prefixes are read with the text
                places = np.union1d(places, self.places[row])
                options = np.concatenate([text[places], self.ids[row].ravel()])
            else:
                marked = self._prefix_questions(backend.tokenizer)[row]
                others = [
                    _mark(*each, np.append(each[0][-1:], ids)) for each, ids in zip(marked, self.ids[row], strict=True)
                ]
            asked += [_mark(text, places, options), *others]
            counts.append(1 + len(others))
        answers = iter(list(answer_questions(backend, asked)))
        asked_of = iter(asked)
        targets, likeliest = [], []
        for row, text in enumerate(self.texts):
            pairs = [(next(asked_of), _nll(next(answers))) for _ in range(counts[row])]
            question, nll = pairs[0]
            targets.append(_nats_of(question, nll, self._targets, text[self._targets]))
            if self.frame:
                rows = [
                    _nats_of(*pair, pair[0].places, ids) for pair, ids in zip(pairs[1:], self.ids[row], strict=True)
                ]
            else:
                rows = [
                    _nats_of(question, nll, np.full(len(ids), place), ids)
                    for place, ids in zip(self.places[row], self.ids[row], strict=True)
                ]
            likeliest.append(np.array(rows).reshape(self.ids.shape[1:]))
        found = Reading(np.stack(targets), np.stack(likeliest))
        if not np.isfinite(found.targets).all() or not np.isfinite(found.likeliest).all():
            raise Refused(f"{backend.name} gave likelihoods that are no numbers: it serves nothing that can be named")
        return found


def _mark(tokens: Tokens, places: NDArray[np.int64], options: Tokens) -> ClassifyTokens:
    """A question for the nats of options at places."""
    return ClassifyTokens(index=0, cluster="", tokens=tokens, places=places, options=np.unique(options))


def _nll(answer: object) -> Nats:
    assert isinstance(answer, ClassifyTokensAnswer)
    return answer.nll.astype(np.float64)


def _nats_of(question: ClassifyTokens, nll: Nats, places: NDArray[np.int64], ids: Tokens) -> Nats:
    """Nats of an id at each place, of nll [places, options] of a question."""
    found: Nats = nll[np.searchsorted(question.places, places), np.searchsorted(question.options, ids)]
    return found


def texts_job(
    model: Model, corpus: Mapping[str, Any] | None, backend: Mapping[str, Any], length: int, n: int, seed: int
) -> Job:
    """The job whose texts are read: last segments of a corpus; None: of the usual one."""
    return Job.of(
        model=model,
        methods=method_entries(["none"]),
        tasks=[{**registry.read_named_config("task", "last_segment"), "name": "last_segment"}],
        corpus=corpus,
        backend=backend,
        lengths=[length],
        multiples=None,
        n=n,
        seeds=[seed],
        results=None,
    )


def texts_of_job(job: Job, tokenizer: Tokenizer) -> Tokens:
    """[texts, length] ids."""
    [length], [seed] = job.lengths, job.seeds
    return np.stack([_tokens_of_question(each) for each in job.tasks[0].obj.questions(tokenizer, length, job.n, seed)])


def measure_texts(
    job: Job, config: Mapping[str, Any], wanted: Sequence[AttentionSetup], plan: TextPlan, kept: KeptReadings
) -> ReferencePack:
    """A pack of the texts of a job, without other texts.

    Args:
        job: with one length, one seed, and last_segment.
        config: of the backend `hf`.
        wanted: setups, the checkpoint's own first.
        plan: what is measured of each text.
        kept: readings of a command before.
    """
    from lexbench.backends.hf.backend import Hf  # torch is loaded only where a pack is made
    from lexbench.parts.serving.mistakes import change_angles, rotate_wrong_pairs, round_to_eight_bits

    [length] = job.lengths
    with backend_for_job(job.model, config, length) as loaded:
        assert isinstance(loaded, Hf), "checked before"
        texts = texts_of_job(job, loaded.tokenizer)
        loaded.attend(wanted[0].attention)
        planned = PlannedTexts(loaded, texts, plan, bool(config.get("chat")))
        asked = [planned.texts.tolist(), planned.places.tolist(), planned.ids.tolist(), planned.frame]
        same = {"plan": plan, "asked": asked, "config": config, "model": [loaded.revision, loaded.version]}
        found, labels = [], []
        lines = Lines(f"fingerprint: {len(wanted)} setups on {count_with_noun(len(texts), 'text')} of {length} tokens")
        for done, each in enumerate(tqdm(wanted, f"setups, {length} tokens", disable=must_hide_bar())):
            lines.show(f"{done} of {len(wanted)} setups", due=False, done=done, left=len(wanted) - done)

            def read(each: AttentionSetup = each) -> Reading:
                loaded.attend(each.attention)
                if each.mispaired:
                    rotate_wrong_pairs(loaded)
                with change_angles(loaded, each.rounded, each.chunk):
                    return planned.read(loaded)

            try:
                others = repr(replace(each, label="", attention=Attention()))
                key = {**same, "setup": [each.attention.as_data(), others]}
                found.append(kept.get(key, read))
                labels.append(each.label)
            except Refused:
                if not found:
                    raise
        # Noise is measured under the first setup, as the config says.
        loaded.attend(wanted[0].attention)
        with round_to_eight_bits(loaded):
            rounded = [kept.get({**same, "rounded": "8 bits"}, lambda: planned.read(loaded))]
        behind = continue_texts(loaded, texts, plan.room) if plan.room else np.empty((len(texts), 0), np.int64)
        about = {
            "format": PACK_FORMAT_VERSION,
            "lexbench": __version__,
            "model": job.model.name,
            "revision": loaded.revision,
            "version": loaded.version,
            "vocabulary": loaded.tokenizer.vocabulary,
            "tokenizer": cast(FastTokenizer, loaded.tokenizer).fingerprint,
            "weights": weights_fingerprint(folder_of(job.model)),
            "corpus": job.corpus.label,
            "labels": labels,
            "opening": plan.opening,
            "frame": planned.frame,
            "ignores_beginning": ignores_beginning(loaded, texts[-1], found[0].targets[-1, -N_END_TARGETS:]),
        }

    def read_in_bfloat16() -> Reading:
        with backend_for_job(job.model, {**config, "dtype": "bfloat16"}, length) as other:
            return planned.read(other)

    rounded.append(kept.get({**same, "rounded": "bfloat16"}, read_in_bfloat16))
    nll, likeliest = np.stack([each.targets for each in found]), np.stack([each.likeliest for each in found])
    prefixes = PrefixReference(
        places=planned.places,
        ids=planned.ids,
        nll=likeliest,
        noise=np.stack([each.likeliest for each in rounded]) - likeliest[0],
        frame=planned.frame,
    )
    return ReferencePack(
        about=about,
        tokens=texts,
        nll=nll,
        noise=np.stack([each.targets for each in rounded]) - nll[0],
        written=behind,
        prefixes=prefixes if plan.prefixes else None,
    )


def _tokens_of_question(question: AnyQuestion) -> Tokens:
    assert isinstance(question, Loglikelihood)
    return question.tokens
