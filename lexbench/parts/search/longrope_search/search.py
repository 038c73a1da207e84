"""`lexbench search`: search LongRoPE's factors for a model and length by perplexity, and write a method's yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.backends import Backend
from lexbench.core import objects, registry
from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_writable, write_text
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.task import Loglikelihood, Task
from lexbench.core.version import __version__
from lexbench.corpora import Corpus
from lexbench.methods.composition import named_method
from lexbench.methods.rotary import critical_dimension, su_scale
from lexbench.parts.search.journal import measuring_conditions
from lexbench.parts.search.longrope_search.evolution import (
    EvolutionResult,
    EvolutionSettings,
    FactorCandidate,
    search_factors,
)
from lexbench.report.notes import note_text
from lexbench.runner.answers import answer_question, sample_of_answer
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.cells import BackendFacts
from lexbench.stats import floors
from lexbench.stats.pairs import outcomes_of_samples

SEED_METHODS = ("pi", "ntk", "yarn")
"""Methods whose factors start the evolution."""


@dataclass(frozen=True)
class SeedComparison:
    """Mean NLL of one set of factors in nats per token: a line of the final comparison."""

    name: str
    searched: float
    """NLL on the questions of the search: minimised, so no estimate of quality."""
    fresh: float
    """NLL on as many questions of other documents."""


@dataclass(frozen=True)
class FactorSearchResult:
    """Result of `find_factors`: the factors, their file, and a comparison with the seeds."""

    found: EvolutionResult
    file: Path
    rows: tuple[SeedComparison, ...]
    unspoken: str | None = None
    """Sentence that the model has not learned the language of the texts inside its trained length; None: it has."""

    def table(self) -> str:
        """The comparison as a text table."""
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'NLL in nats':{width}}  searched   fresh"]
        lines += [f"{row.name:{width}}  {row.searched:8.4f}  {row.fresh:6.4f}" for row in self.rows]
        lines += [f"No gain is claimed: {self.unspoken}."] if self.unspoken else []
        return "\n".join(lines)


def find_factors(
    *,
    model: Model,
    corpus: Corpus,
    backend: Mapping[str, Any],
    length: int | None,
    out: str | Path | None,
    n: int = 4,
    settings: EvolutionSettings | None = None,
) -> FactorSearchResult:
    """Search factors and write them to `out`, a method's yaml; repeat the command to resume.

    A candidate's value is the mean NLL of the last half of n texts of `length` tokens, each from another document; the
    comparison uses n texts of further documents, too. The journal is beside `out`, with the suffix .jsonl.

    Args:
        model: must have plain RoPE.
        corpus: of the texts; measure the method later on another corpus.
        backend: config of the backend that runs the model.
        length: tokens in use, above the trained length.
        out: MY/method/NAME.yaml; `--config-dir MY` then makes it method=NAME.
        n: texts.
        settings: of the evolution.

    Raises ConfigError for a wrong configuration or the journal of another search, Refused if the corpus has too few
    documents or the backend cannot answer.
    """
    settings = settings or EvolutionSettings()
    length, file = _check_options(model, length, out, n)
    if (most := max(settings.start_tokens)) >= length:
        raise ConfigError(
            f"search's start_tokens must be below the length {length}, got {most}: e.g. start_tokens=[0,4]"
        )
    methods = {name: named_method(name).attention(model, length) for name in SEED_METHODS}
    # Factors lambda of theta_p / lambda_p, from methods that state the frequencies themselves.
    seeds = {name: model.inv_freq() / _attention_frequencies(attention) for name, attention in methods.items()}
    space = settings.space(model.rotated // 2, length / model.trained_length, critical_pair(model))

    with backend_for_job(model, backend, length) as loaded:
        task: Task = objects.build_object(
            registry.read_named_config("task", "last_segment"), "task", corpus=corpus
        ).for_lengths([length])
        questions = [
            question
            for question in task.questions(loaded.tokenizer, length, 2 * n, settings.seed)
            if isinstance(question, Loglikelihood)
        ]
        searched, fresh = questions[:n], questions[n:]
        if shared := {question.cluster for question in searched} & {question.cluster for question in fresh}:
            raise Refused(
                f"search needs {2 * n} different documents of {length} tokens, {min(shared)} is in both halves: "
                f"lower {'n or ' * (n > 1)}length, or use longer documents"
            )

        def evaluate(candidate: FactorCandidate) -> float:
            return mean_nll(loaded, searched, candidate_attention(model, length, candidate))

        identity = {
            **measuring_conditions(loaded),
            "file": BackendFacts.of(loaded).file,
            "corpus": corpus.fingerprint(),
            "length": length,
            "n": n,
            "protocol": task.protocol(loaded.tokenizer),
        }
        journal = file.with_suffix(".jsonl")
        found = search_factors(evaluate, space, list(seeds.values()), settings, journal, identity)

        compared = {"none": Attention(), **methods}
        compared |= {
            f"{name}'s factors": candidate_attention(model, length, space.nearest_candidate(seed))
            for name, seed in seeds.items()
        }
        compared["found"] = candidate_attention(model, length, found.best)
        rows = tuple(
            SeedComparison(name, mean_nll(loaded, searched, attention), mean_nll(loaded, fresh, attention))
            for name, attention in compared.items()
        )
        unspoken = _language_not_learned(loaded, model, corpus, n, settings.seed)
    result = FactorSearchResult(found, file, rows, unspoken)
    write_text(file, _method_yaml(result, model, length, settings, searched))
    return result


def candidate_attention(model: Model, length: int, candidate: FactorCandidate) -> Attention:
    """The Attention of a candidate: theta_p / lambda_p, cos and sin times sqrt(1 + ln s / ln L), s = length / L.

    The first start_tokens tokens keep theta_p, without that factor.
    """
    scale = su_scale(model, length / model.trained_length)
    inv_freq = model.inv_freq() / np.array(candidate.factors)
    return Attention(inv_freq=inv_freq, scale=scale, keep_first=candidate.start_tokens or None)


def critical_pair(model: Model) -> int:
    """The first pair, counted from 0, whose period 2 pi b^(2p/d) exceeds L: ceil(d/2 log_b(L / 2 pi)).

    The critical dimension of Liu et al. (arXiv 2310.05209) as LongRoPE2 (arXiv 2502.20082) counts it: 35 in Llama-3 8B,
    31 in Phi-3 mini. LongRoPE2's own search finds lower ones (30 and 25): set them by `critical_pair`.
    """
    return critical_dimension(model) // 2


def mean_nll(backend: Backend, questions: Sequence[Loglikelihood], attention: Attention) -> float:
    """Mean NLL over all targets of all questions, in nats; summed in float64."""
    backend.attend(attention)
    losses = [backend.score(question).nll for question in questions]
    return float(np.concatenate(losses).astype(np.float64).mean())


def _language_not_learned(loaded: Backend, model: Model, corpus: Corpus, n: int, seed: int) -> str | None:
    """Sentence that the model has not learned the language of n texts; None: it has, or there are no questions."""
    length = model.trained_length
    task: Task = objects.build_object(
        registry.read_named_config("task", "last_segment"), "task", corpus=corpus
    ).for_lengths([length])
    try:
        questions = task.questions(loaded.tokenizer, length, n, seed)
    except Refused:
        return None
    loaded.attend(Attention())
    samples = [
        sample_of_answer(task, loaded.tokenizer, question, answer_question(loaded, question)) for question in questions
    ]
    found, levels = outcomes_of_samples(samples, "nll"), floors.floors_of_samples(samples, "nll")
    unspoken = floors.language_not_learned_by_outcomes(model.name, BASELINE_METHOD, length, found, levels)
    return note_text(unspoken) if unspoken else None


def _check_options(model: Model, length: int | None, out: str | Path | None, n: int) -> tuple[int, Path]:
    """Length and file; ConfigError for wrong options."""
    if length is None or length <= model.trained_length:
        got = "" if length is None else f", got {length}"
        raise ConfigError(
            f"search needs a length above the trained length {model.trained_length}{got}: "
            f"shorter texts need no method, give length={8 * model.trained_length}"
        )
    if n < 1:
        raise ConfigError(f"search's n must be at least 1 text, got {n}: e.g. n=4")
    if out is None or Path(out).suffix != ".yaml":
        got = "" if out is None else f", got {out}"
        raise ConfigError(f"search needs a yaml file to write{got}: give out=my/method/longrope_{model.name}.yaml")
    file = Path(out)
    check_writable("out", file, "give another out=")
    # The journal beside a file says that a search wrote it, or is to go on.
    if not file.with_suffix(".jsonl").exists():
        if file.exists():
            raise ConfigError(f"out {file} is no file of a search, which would replace it: give another out=")
        if file.stem in registry.registered_names("method"):
            raise ConfigError(f"out {file} names a method that there is, {file.stem}: give another out=")
    return length, file


def _attention_frequencies(attention: Attention) -> Floats:
    assert attention.inv_freq is not None, "seeds are methods that change frequencies"
    return attention.inv_freq


def _method_yaml(
    result: FactorSearchResult,
    model: Model,
    length: int,
    settings: EvolutionSettings,
    searched: Sequence[Loglikelihood],
) -> str:
    """The method's yaml: comments on the search, then the parameters.

    It states no factor, so s = length / trained_length: the searched value at the searched length, and 1, no change,
    within the trained length.
    """
    changed = {name: value for name, value in asdict(settings).items() if value != getattr(EvolutionSettings(), name)}
    remarks = [
        f"Factors for {model.name} at {length} tokens (trained at {model.trained_length}), found by lexbench "
        f"{__version__} search",
        f"in {result.found.evaluations} candidates, {changed or 'default settings'}.",
        "Searched on: " + ", ".join(question.cluster for question in searched),
        "",
        *result.table().splitlines(),
    ]
    best = result.found.best
    lines = [
        *(f"# {remark}".rstrip() for remark in remarks),
        "_target_: lexbench.methods.longrope.Longrope",
        f"long_factors: [{', '.join(map(repr, best.factors))}]",
        *([f"start_tokens: {best.start_tokens}"] if best.start_tokens else []),
    ]
    return "\n".join(lines) + "\n"
