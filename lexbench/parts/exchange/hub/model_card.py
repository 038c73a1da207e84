"""Writes results into the `model-index` of a model card on the Hugging Face hub.

A result is a curve: the headline metric of one task, method and setting at every length.
Format: https://github.com/huggingface/hub-docs/blob/main/modelcard.md
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.core.text import join_first_few, plain_text
from lexbench.parts.exchange.hub.card_yaml import BYTE_ORDER_MARK, read_head, set_head_key
from lexbench.report.leaderboard.leaderboard import headline_metric_tables
from lexbench.report.titles import differences_of
from lexbench.report.wording import format_ratio, metric_label
from lexbench.stats.intervals import CONFIDENCE_LEVEL
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell

SOURCE_NAME, SOURCE_URL = "lexbench", "https://pypi.org/project/lexbench/"
"""Source of the results written here; results with this name are replaced later."""
MAX_CARD_VALUES = 100
"""Most values on a card; with more, only `none` is shown, unless the user names methods."""


@dataclass(frozen=True, eq=False)
class ModelIndex:
    """Results of runs in the form of a model card."""

    models: list[dict[str, Any]]
    """Mapping with `name` and `results` for each model, as in a card's `model-index`."""
    curves: int
    """Number of curves with a value: a task of a model under a method, over the lengths."""
    values: int
    """Number of values of all curves."""
    left_out: list[str]
    """Methods left out, because there would be too many values."""
    refused: int
    """Number of refused cells of the methods shown."""
    without_value: int
    """Number of cells without a value for other reasons: all samples failed, or the perplexity overflows float64."""


@dataclass(frozen=True, eq=False)
class _CardCurve:
    table: Table
    method: MethodKey
    rivals: bool
    """Whether the same model and task have curves of other settings."""

    @property
    def values(self) -> list[Record]:
        return [record for record in self.table.of(self.method) if record.value is not None]


def model_index(finished: Iterable[FinishedCell], *, every_method: bool = False) -> ModelIndex:
    """The headline metric of each task and method over lengths; likelihoods as perplexity.

    Cells are never averaged: another seed, backend, dtype or protocol is another result. Those of `backend=chance` are
    left out: random answers are no results of the model. With more than MAX_CARD_VALUES values only the method `none`
    is kept, unless `every_method`. Raises ConfigError if no cell has a value, or if there are too many values and none
    of them belongs to `none`.
    """
    finished = list(finished)
    answered = [each for each in finished if each.cell.backend != "chance"]
    if finished and not answered:
        raise ConfigError("no cell has a value to share: all are of backend=chance, which answers at random")
    every = headline_metric_tables(build_tables(answered), instead_of_nll="perplexity")
    settings = Counter((table.cell.model, table.cell.task) for table in every)
    curves = [
        _CardCurve(table, method, settings[table.cell.model, table.cell.task] > 1)
        for table in every
        for method in table.methods
    ]
    shown = curves if every_method else _limit_curves(curves)
    names = {curve.method for curve in shown}
    empty = [record for curve in shown for record in curve.table.of(curve.method) if record.value is None]
    refusals = [record.refused for record in empty if record.refused]
    filled = [curve for curve in shown if curve.values]
    if not filled:
        why = f"all are refused: {plain_text(refusals[0])}" if refusals else "every sample failed"
        raise ConfigError(f"no cell has a value to share ({why})")
    models: dict[str, list[EvalResult]] = {}
    for curve in filled:
        models.setdefault(curve.table.cell.model, []).extend(_curve_results(curve))
    return ModelIndex(
        models=[entry for model, results in models.items() for entry in eval_results_to_model_index(model, results)],
        curves=len(filled),
        values=sum(len(results) for results in models.values()),
        left_out=list(map(str, sorted({curve.method for curve in curves} - names))),
        refused=len(refusals),
        without_value=len(empty) - len(refusals),
    )


def _limit_curves(curves: Sequence[_CardCurve]) -> list[_CardCurve]:
    """All curves, or only those of `none` if there are too many values."""
    values = sum(len(curve.values) for curve in curves)
    bare = [curve for curve in curves if curve.method == BASELINE_METHOD]
    if values > MAX_CARD_VALUES and not any(curve.values for curve in bare):
        names = join_first_few(sorted({curve.method for curve in curves}), 40)
        raise ConfigError(
            f"a card with {values} values is too long (at most {MAX_CARD_VALUES}): choose --method from {names}"
        )
    return bare if values > MAX_CARD_VALUES else list(curves)


def _curve_results(curve: _CardCurve) -> list[EvalResult]:
    """One result per length; the configuration's name holds everything that tells this curve from others.

    huggingface_hub merges results with the same type and configuration, whatever their arguments.
    """
    table, cell = curve.table, curve.table.cell
    differs = f" ({plain_text(differences_of(table))})" if table.differs else ""
    corpus = f" on {plain_text(cell.corpus)}" if cell.corpus else ""
    setting = f", setting {table.setting}" if curve.rivals else ""
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Text Generation",
            dataset_type="lexbench",
            dataset_name=f"{plain_text(cell.task)}{corpus}, method {plain_text(curve.method)}{differs}",
            dataset_config=f"{cell.task}, method {curve.method}{setting}",
            dataset_args=_measurement_conditions(curve),
            metric_type=str(record.metric),
            metric_name=(f"{metric_label(record.metric)} at {record.length} tokens ({format_ratio(record.multiple)})"),
            metric_value=record.value,
            metric_args=_interval_and_counts(record),
            verified=False,
            source_name=SOURCE_NAME,
            source_url=SOURCE_URL,
        )
        for record in curve.values
    ]


def _measurement_conditions(curve: _CardCurve) -> dict[str, Any]:
    """Measurement conditions of a curve; `confidence` is that of its intervals."""
    cell = curve.table.cell
    model = cell.identity.get("model")
    return {
        "task": cell.task,
        "method": str(curve.values[0].method),
        **{name: getattr(cell, name) for name in ("corpus", "trained_length", "protocol", "seed")},
        "samples": cell.n,
        **{name: getattr(cell, name) for name in ("backend", "dtype", "kernel")},
        "model_revision": model.get("revision") if isinstance(model, dict) else None,
        "lexbench": curve.values[0].version,
        "confidence": CONFIDENCE_LEVEL,
    }


def _interval_and_counts(record: Record) -> dict[str, Any]:
    """Interval and sample counts of a value."""
    names = ("length", "multiple", "low", "high", "interval", "n", "clusters", "chance", "cell")
    counts = {name: getattr(record, name) or None for name in ("failed", "truncated")}
    return {**{name: getattr(record, name) for name in names}, **counts}


def put_on_card(card: str, models: Sequence[dict[str, Any]]) -> str:
    """Model card with these results in place of earlier ones of lexbench.

    Other keys of the head, results of others and the text stay. A model's results go to the entry with its name, or to
    a new one. Raises ConfigError if the card cannot be parsed by us or by huggingface_hub.
    """
    try:
        before = read_head(card).get("model-index") or []
        entries = [kept for entry in before if (kept := _without_own_results(entry))["results"] or not entry["results"]]
        for model in models:
            mine = next((entry for entry in entries if entry["name"] == model["name"]), None)
            if mine is None:
                mine = {"name": model["name"], "results": []}
                entries.append(mine)
            mine["results"] = [*mine["results"], *model["results"]]
    except KeyError as error:
        raise ConfigError(f"its model-index is malformed: {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"its model-index is malformed: {error}") from error
    made = set_head_key(card, "model-index", entries)
    try:  # other tools load cards with this reader, and fail on a card that it cannot read
        ModelCard(made.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, AttributeError) as error:
        raise ConfigError("its model-index is malformed: huggingface_hub cannot read all results in it") from error
    return made


def _without_own_results(entry: dict[str, Any]) -> dict[str, Any]:
    """A model's entry without results written by lexbench."""
    others = [result for result in entry["results"] if (result.get("source") or {}).get("name") != SOURCE_NAME]
    return {**entry, "name": entry["name"], "results": others}
