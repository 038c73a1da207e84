"""Four gates of a recipe: what its RoPE model must do before differences between encodings say anything.

    text      NLL of the trigram of its own training text minus NLL of the model, at the trained length   >= 0.3 nats
    context   NLL at half the trained length minus NLL at the trained length                              >= 0.1 nats
    tasks     accuracy of passkey and of copy, at three quarters and at the whole of the trained length   >= 0.95
    beyond    NLL at 8 times the trained length minus NLL at the trained length                           >= ln 2

All NLLs are of the same held-out tokens (task last_segment). The trigram is Witten and Bell's
(`lexbench.parts.lab.native.ngrams.WittenBell`), of all documents that the rows of text were drawn from, each once.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import objects, registry
from lexbench.core.files import read_object
from lexbench.core.record import Refused, Sample
from lexbench.core.task import Loglikelihood
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.native.recipe import Recipe
from lexbench.parts.lab.native.train import build_corpora, count_ngrams
from lexbench.report.formats import markdown_columns
from lexbench.runner.answers import answer_question
from lexbench.stats.intervals import Interval, cluster_bootstrap, mean_interval

THRESHOLD_OF_GATE = {"text": 0.3, "context": 0.1, "tasks": 0.95, "beyond": math.log(2)}
N_TARGET_TOKENS = 24
N_TEXT_PLACES, N_QUESTIONS_PER_CELL = 96, 48
"""Places of text, and questions of each task and length."""
BEYOND_MULTIPLE = 8
"""Multiple of the trained length."""


@dataclass(frozen=True, kw_only=True)
class GateFigure:
    """Figure of a study, and the least value that it must have."""

    gate: str
    figure: str
    value: float | None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    """Least value of the figure; None: no gate, the figure is only shown."""
    refused: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the value is at least the gate's; None without a gate."""
        return None if self.least is None else self.value is not None and self.value >= self.least


def measure_gates(
    folder: Path,
    corpus: Any,
    corpora: Sequence[Any] | None,
    places: int = N_TEXT_PLACES,
    questions: int = N_QUESTIONS_PER_CELL,
) -> list[GateFigure]:
    """The gates of a trained folder.

    Args:
        folder: of `lexbench train`.
        corpus: of the held-out texts: a name, or a name with parameters.
        corpora: texts of the training; None: those of `lexbench train`.
        places: of text.
        questions: of each task and length.
    """
    record = read_object(folder / "training.json", "train it again")
    recipe = Recipe(**record["recipe"])
    backend = Native(read_model({"path": str(folder), "name": folder.name}))
    length = recipe.length
    task = objects.build_object(
        {**registry.read_named_config("task", "last_segment"), "targets": N_TARGET_TOKENS},
        "task",
        corpus=build_corpora([corpus], "test", "corpus")[0],
    ).for_lengths([length // 2, length, BEYOND_MULTIPLE * length])
    losses, found = {}, []
    scored: list[Loglikelihood] = []
    for at in (length // 2, length, BEYOND_MULTIPLE * length):
        scored = task.questions(backend.tokenizer, at, places, 0)
        losses[at] = np.stack([backend.score(question).nll for question in scored]).astype(np.float64)
    clusters = [question.cluster for question in scored]
    trained_on = build_corpora(list(corpora or _default_corpora()), "train", "corpora")
    floors = count_ngrams(trained_on, backend.tokenizer).nll(
        np.stack([question.tokens for question in scored]), N_TARGET_TOKENS
    )
    for name, nll in (("model", losses[length]), *floors.items()):
        said = f"nats per token at {length} tokens" if name == "model" else "nats per token by counting"
        found.append(_mean_gate(name, said, nll, clusters, None))
    for gate, said, difference in (
        ("text", "trigram minus model", floors["trigram"] - losses[length]),
        ("context", f"NLL at {length // 2} minus NLL at {length}", losses[length // 2] - losses[length]),
        (
            "beyond",
            f"NLL at {BEYOND_MULTIPLE * length} minus NLL at {length}",
            losses[BEYOND_MULTIPLE * length] - losses[length],
        ),
    ):
        found.append(_mean_gate(gate, said, difference, clusters, THRESHOLD_OF_GATE[gate]))
    for name in ("passkey", "copy"):
        found += [_accuracy_gate(backend, name, at, questions) for at in (3 * length // 4, length)]
    return found


def _default_corpora() -> list[Any]:
    config = yaml.safe_load((registry.command_config_folder("train") / "train.yaml").read_text(encoding="utf-8"))
    return list(config["corpora"])


def _mean_gate(gate: str, figure: str, nats: Any, clusters: Sequence[str], least: float | None) -> GateFigure:
    """The mean of [places, targets] nats, with an interval over documents."""
    sums, counts = nats.sum(1), np.full(len(nats), nats.shape[1])
    return _build_gate(gate, figure, float(nats.mean()), cluster_bootstrap(sums, counts, clusters), least)


def _accuracy_gate(backend: Native, name: str, length: int, n: int) -> GateFigure:
    figure = f"{name} at {length} tokens"
    task = objects.build_object(registry.read_named_config("task", name), "task")
    try:
        questions = task.questions(backend.tokenizer, length, n, 0)
    except Refused as refusal:
        return GateFigure(
            gate="tasks", figure=figure, value=None, least=THRESHOLD_OF_GATE["tasks"], refused=refusal.reason
        )
    samples: list[Sample] = [task.score(question, answer_question(backend, question)) for question in questions]
    right = [sample.scores["accuracy"] for sample in samples]
    interval = mean_interval(right, [sample.cluster for sample in samples])
    return _build_gate("tasks", figure, float(np.mean(right)), interval, THRESHOLD_OF_GATE["tasks"])


def _build_gate(gate: str, figure: str, value: float, interval: Interval | None, least: float | None) -> GateFigure:
    low, high = (round(interval.low, 4), round(interval.high, 4)) if interval else (None, None)
    return GateFigure(gate=gate, figure=figure, value=round(value, 4), low=low, high=high, least=least)


def gates_markdown(name: str, found: Sequence[GateFigure]) -> str:
    """A table of one model."""
    rows = [
        [
            each.gate,
            each.figure,
            f"refused: {each.refused}" if each.value is None else f"{each.value:.3f}",
            "" if each.low is None else f"{each.low:.3f} to {each.high:.3f}",
            "" if each.least is None else f"{each.least:.2f}",
            {None: "", True: "yes", False: "**no**"}[each.holds],
        ]
        for each in found
    ]
    table = markdown_columns(["gate", "figure", "value", "95 % interval", "at least", "holds"], rows)
    return "\n".join([f"## {name}", "", *table]) + "\n"


def gates_json(found: Sequence[GateFigure]) -> str:
    """All figures as data."""
    return json.dumps([{**asdict(each), "holds": each.holds} for each in found], indent=1) + "\n"
