"""Writes the page of a study, from measured.parquet and models.json only."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from lexbench.core.files import write_text
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.text import count_with_noun
from lexbench.parts.lab.study.page import beside, expectation, orders, plots, predictions, tables, tokens
from lexbench.parts.lab.study.page.curves import Curve, build_curves
from lexbench.parts.lab.study.page.measured import MeasuredRow, read_page_data
from lexbench.parts.lab.study.page.shapes import SHAPE_RULE_TEXT, shape_of_curve
from lexbench.parts.lab.study.page.tables import format_change, format_value
from lexbench.parts.lab.study.page.texts import (
    FLOORS_TEXT,
    INTERVALS_TEXT,
    LEARNED_TEXT,
    LIMITS_TEXT,
    PAGE_INTRODUCTION,
    PREDICTIONS_TEXT,
    PUBLISHED_ORDERS_TEXT,
    PUBLISHED_TABLES_TEXT,
    RESOLUTION_TEXT,
    SAME_TARGETS_TEXT,
    TOKEN_ACCURACY_TEXT,
)
from lexbench.parts.lab.study.settings import SHAPE_NAMES, Prediction
from lexbench.report.formats import escape_link_text, markdown_columns
from lexbench.report.notes import language_sentences
from lexbench.report.wording import metric_label
from lexbench.stats.floors import language_not_learned
from lexbench.stats.metrics import is_token_loss

BCA_METHOD = MethodKey.of_method("bca")
MAIN_TASK = "last_segment"
TASKS_IN_ORDER = (
    *(MAIN_TASK, "non_overlapping", "copy", "passkey", "repeated"),
    *("running_arithmetic", "sliding", "prefix", "resolution"),
)
"""Order of tasks on the page; others follow."""
TASKS_WITH_FIGURE = (MAIN_TASK,)
"""Tasks whose curves without a method are shown as a figure."""
FINETUNED_FAMILY = "finetuned"
"""Family of the finetuned models."""


def write_page(folder: Path) -> Path:
    """Write README.md, and plots with their numbers, from the folder's files; returns the path of README.md."""
    rows, about = read_page_data(folder)
    lines = _algorithms_page(rows, about, folder) if about["orders"] else _encodings_page(rows, about, folder)
    write_text(folder / "README.md", _without_padding("\n".join(lines).rstrip()) + "\n")
    return folder / "README.md"


def _without_padding(text: str) -> str:
    """A page without the blanks and dashes that align the columns of its tables, a fifth of a long one."""
    lines = text.split("\n")
    return "\n".join(
        re.sub("-{4,}", "---", re.sub(" {2,}", " ", line)) if line.startswith("|") else line for line in lines
    )


def _algorithms_page(rows: Sequence[MeasuredRow], about: Mapping[str, Any], folder: Path) -> list[str]:
    lines = ["# Algorithms under encodings trained alike", "", orders.PAGE_INTRODUCTION.format(study=about["study"])]
    return [
        *lines,
        *_caveat_lines(about),
        *_model_lines(about),
        *orders.page_lines(rows, about, about["orders"], folder),
    ]


def _caveat_lines(about: Mapping[str, Any]) -> list[str]:
    """Faults that were found after the trainings, as models.json states them."""
    return [line for each in about.get("caveats", []) for line in (f"**{each}**", "")]


def _encodings_page(rows: Sequence[MeasuredRow], about: Mapping[str, Any], folder: Path) -> list[str]:
    found = build_curves(rows, about)
    lines = [
        "# Encodings, trained alike",
        "",
        PAGE_INTRODUCTION.format(study=about["study"]),
        *_caveat_lines(about),
        *_model_lines(about),
        *_floors_section(about),
    ]
    lines += _language_not_learned_lines(rows)
    trained = [curve for curve in found if curve.family != FINETUNED_FAMILY]
    compared = _compare_with_published(trained, about)
    lines += _learned_section(trained, about)
    lines += _contradictions_section(trained, about, compared)
    for task in dict.fromkeys((MAIN_TASK, about.get("compare", MAIN_TASK))):
        lines += _shapes_section(trained, about, folder, task)
    lines += _published_section(compared, trained, about, expectation.expectation_section(about, folder))
    lines += _task_sections(trained, about, folder)
    lines += _steepness_section(trained, folder)
    lines += _further_sections(found)
    return [*lines, "## Limits", "", *_learnt_items(trained), LIMITS_TEXT]


def _model_lines(about: Mapping[str, Any]) -> list[str]:
    """Number and size of the models, tokens of their training, and failures."""
    models = [model for model in about["models"] if not model["start"]]
    known = [model for model in models if model.get("parameters")]
    lines = []
    if known:
        sizes, tokens = [m["parameters"] for m in known], sorted({m["tokens"] for m in known if m.get("tokens")})
        seconds = [m["seconds"] for m in known if m.get("seconds")]
        devices = ", ".join(sorted({str(m["device"]) for m in known if m.get("device")}))
        time = f", {median(seconds):.0f} seconds (median; {devices})" if seconds else ""
        weights = " to ".join(f"{size:,}" for size in dict.fromkeys((min(sizes), max(sizes))))
        lines.append(
            f"{_seeds_phrase(known)}; recipe `{about['recipe']}`: trained length {about['trained_length']}, "
            f"{weights} parameters; each trained on {' or '.join(f'{count:,}' for count in tokens)} tokens{time}."
        )
        precisions = Counter(m.get("precision") or "not recorded" for m in known)
        if len(precisions) > 1:
            said = ", ".join(f"{name} ({count_with_noun(count, 'model')})" for name, count in precisions.most_common())
            lines += ["", f"Precision of the trainings: {said}."]
    for start in dict.fromkeys(model["start"] for model in about["models"] if model["start"]):
        further = [m for m in about["models"] if m["start"] == start and m.get("tokens")]
        counts = " or ".join(f"{count:,}" for count in sorted({m["tokens"] for m in further}))
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(m["entry"] for m in further))
        lines += ["", f"Trained further from `{start}`, each on {counts} tokens more: {names}."] if further else []
    failed = [
        f"- `{model['name']}`: {' '.join(model['failed'].split())}" for model in about["models"] if model["failed"]
    ]
    return [*lines, "", *(["**Without a result:**", "", *failed, ""] if failed else []), INTERVALS_TEXT]


def _seeds_phrase(models: Sequence[Mapping[str, Any]]) -> str:
    """Words on the number of encodings and their seeds; first the seeds that most encodings have."""
    seeds: dict[str, list[int]] = {}
    for model in models:
        seeds.setdefault(model["entry"], []).append(model["seed"])
    groups: dict[tuple[int, ...], list[str]] = {}
    for entry, each in seeds.items():
        groups.setdefault(tuple(sorted(each)), []).append(entry)
    (usual, _), *others = sorted(groups.items(), key=lambda group: -len(group[1]))

    def said(numbers: Sequence[int]) -> str:
        return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"

    names = [f"{', '.join(f'`{name}`' for name in entries)} with {said(numbers)}" for numbers, entries in others]
    return "; ".join([f"{count_with_noun(len(seeds), 'encoding')}, {said(usual)}", *names])


def _models_with_floors(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Models with a held-out loss, and with floors to hold it against."""
    return [each for each in about["models"] if each.get("floors") and each["last_loss"].get("held_out") is not None]


def _floors_section(about: Mapping[str, Any]) -> list[str]:
    """Section: held-out losses beside what n-grams of the same training texts reach on the same rows."""
    lines = []
    alike = group_by_key(
        _models_with_floors(about), lambda each: (tuple(each["floors"].items()), each.get("start") is not None)
    )
    for (floors, further), models in alike.items():
        losses = {each["name"]: each["last_loss"]["held_out"] for each in models}
        lowest = min(losses, key=losses.__getitem__)
        seeds = ", ".join(map(str, sorted({each["seed"] for each in models})))
        rows = [
            [name, f"{floor:.3f}", f"{sum(loss < floor for loss in losses.values())} of {len(losses)}"]
            for name, floor in floors
        ]
        names = ", ".join(f"`{each['entry']}`" for each in models)
        lines += [f"Models of seed {seeds}{f' that were trained further: {names}' if further else ''}:", ""]
        lines += [*markdown_columns(["n-grams", "nats per token", "models below it"], rows), ""]
        lines += [f"Median of the models: {median(losses.values()):.3f}; lowest: `{lowest}`, {losses[lowest]:.3f}.", ""]
    judged = {each["name"] for each in _models_with_floors(about)}
    others = [f"`{each['name']}`" for each in about["models"] if each["name"] not in judged and not each.get("failed")]
    lines += [f"In none of these tables, as a held-out loss or n-grams are missing: {', '.join(others)}.", ""] * bool(
        others
    )
    return ["## What the models know", "", FLOORS_TEXT, *lines] if judged else []


def _curves_of(found: Sequence[Curve], task: str, method: MethodKey) -> list[Curve]:
    """Curves of a task, whatever its parameters, and a method."""
    return [each for each in found if each.task_name == task and each.method == method]


def _learned_section(found: Sequence[Curve], about: Mapping[str, Any]) -> list[str]:
    """A table of what each encoding learnt within the trained length, if most were asked for copies or passkeys."""
    plain = _curves_of(found, MAIN_TASK, BASELINE_METHOD)
    asked = [task for task in ("copy", "passkey") if len(_curves_of(found, task, BASELINE_METHOD)) > len(plain) / 2]
    if not asked:
        return []
    rows = []
    for curve in plain:
        half = curve.at(0.5)
        own = [each for each in _models_with_floors(about) if each["entry"] == curve.entry]
        ahead = [each["floors"]["trigram"] - each["last_loss"]["held_out"] for each in own]
        tasks = [
            next((c for c in _curves_of(found, task, BASELINE_METHOD) if c.entry == curve.entry), None)
            for task in asked
        ]
        points = [each.at(1.0) if each else None for each in tasks]
        rows.append(
            [
                curve.entry,
                f"{sum(ahead) / len(ahead):+.3f}" if ahead else "",
                format_change(half.change) if half and half.change else "",
                *(format_value(point.value, "accuracy") if point else "" for point in points),
            ]
        )
    return [LEARNED_TEXT, *markdown_columns(["encoding", "trigram minus model", "gain of context", *asked], rows), ""]


@dataclass(frozen=True)
class _PublishedComparison:
    """Published rows and pairs of rows beside ours."""

    lines: Sequence[beside.PublishedRow]
    pairs: Sequence[beside.PublishedPair]
    resolutions: Sequence[beside.ResolutionRow]
    tokens: Sequence[tokens.TokenAccuracyRow]

    def shape_verdicts(self) -> dict[Hashable, str]:
        """Verdict on each measurement of ours: a curve up to a multiple."""
        return beside.verdict_of_measurement(
            ((line.curve.label, max(line.logs)), line.agrees) for line in self.lines if line.agrees
        )

    def order_verdicts(self) -> dict[Hashable, str]:
        """Verdict on each pair of our curves at a multiple."""
        return beside.verdict_of_measurement((pair.ours, pair.verdict) for pair in self.pairs)


def _compare_with_published(found: Sequence[Curve], about: Mapping[str, Any]) -> _PublishedComparison:
    task = next(
        (curve.task for curve in _curves_of(found, about.get("compare", MAIN_TASK), BASELINE_METHOD)), MAIN_TASK
    )
    known = beside.published_rows(found, about, task)
    return _PublishedComparison(
        known,
        beside.published_pairs(known),
        beside.resolution_rows(found, about),
        tokens.token_accuracy_rows(found, about),
    )


def _contradictions_section(
    found: Sequence[Curve], about: Mapping[str, Any], compared: _PublishedComparison
) -> list[str]:
    """Section: predictions that were stated before the runs, and published rows that ours contradict in their sign."""
    stated: Sequence[Prediction] = about["predictions"]
    against = [line for line in compared.lines if line.agrees == "no"]
    resized = [line for line in compared.lines if line.agrees == "other size"]
    turned = tables.contrary_pairs_table(compared.pairs)
    other = [each for each in compared.resolutions if each.agrees == "no"]
    accuracies = [each for each in compared.tokens if each.agrees == "no"]
    reversed_accuracies = tokens.contrary_pairs(tokens.token_accuracy_pairs(compared.tokens))
    if not stated and not (against or resized or turned or other or accuracies or reversed_accuracies):
        return []
    scale = f"by models trained on {about['trained_length']} tokens"
    lines = ["## What differs from the papers", ""]
    lines += [SAME_TARGETS_TEXT] if compared.lines and compared.lines[0].curve.task_name == MAIN_TASK else []
    if stated:
        judged = predictions.judge_predictions(found, stated)
        lines += [
            PREDICTIONS_TEXT,
            f"{_count_verdicts([row[0] for row in judged], predictions.VERDICTS_IN_ORDER)}, of "
            f"{count_with_noun(len(stated), 'statement')}; "
            "some are judged by two protocols, on the same models.",
            "",
            *predictions.predictions_table(judged),
            "",
            *predictions.deciding_items(found, stated),
        ]
    for head, rows in (
        (
            f"Published shapes that ours contradict: the change has the opposite sign, {scale}:",
            tables.published_shapes_table(against) if against else [],
        ),
        (
            f"Same direction or an open one, other size, {scale}:",
            tables.published_shapes_table(resized) if resized else [],
        ),
        ("Pairs in the reverse order:", turned),
        ("Attention resolution that changes the other way:", tables.resolution_table(other) if other else []),
        ("Token accuracy that changes the other way:", tokens.token_accuracy_table(accuracies) if accuracies else []),
        ("Token accuracies in the reverse order:", reversed_accuracies),
    ):
        lines += [head, "", *rows, ""] if rows else []
    return lines


def _count_verdicts(verdicts: Sequence[str], names: Sequence[str]) -> str:
    return ", ".join(f"{verdicts.count(name)} {name}" for name in names if name in verdicts)


def _language_not_learned_lines(rows: Sequence[MeasuredRow]) -> list[str]:
    """Lines on models that have not learned the language of a text within their trained length."""
    plain = [row.record for row in rows if is_token_loss(row.record.metric) and row.record.method == BASELINE_METHOD]
    asked = group_by_key(
        sorted(plain, key=lambda each: each.length), lambda each: (each.model, each.task, each.protocol)
    )
    said = [f"- {language_sentences(why)}" for records in asked.values() if (why := language_not_learned(records))]
    return [*said, ""] if said else []


def _shapes_section(found: Sequence[Curve], about: Mapping[str, Any], folder: Path, task: str = MAIN_TASK) -> list[str]:
    """Section: shapes of the curves, and plots."""
    plain, under = _curves_of(found, task, BASELINE_METHOD), _curves_of(found, task, BCA_METHOD)
    if not plain:
        return []
    known = [shape for curve in plain if (shape := shape_of_curve(curve))]
    settled = [shape.name for shape in known if not shape.open]
    counts = [f"{settled.count(name)} {name}" for name in SHAPE_NAMES if name in settled]
    if between := len(known) - len(settled):
        counts.append(f"{between} uncertain between several shapes")
    summary = f"Without a method: {', '.join(counts) or 'no length beyond the trained one'}."
    head = "## Shapes" if task == about.get("compare", MAIN_TASK) == MAIN_TASK else f"## Shapes by {task}"
    lines = [
        head,
        "",
        *([SHAPE_RULE_TEXT] if task == MAIN_TASK else []),
        summary,
        "",
        *tables.shapes_table(plain, under, BCA_METHOD),
        "",
    ]
    lines.append("Slope: nats per token per doubling of the length, from the trained length on, by least squares.\n")
    return lines + _figure_lines(plain, about, folder) + _figure_lines(under, about, folder)


def _figure_lines(found: Sequence[Curve], about: Mapping[str, Any], folder: Path, stem: str = "") -> list[str]:
    """Draw the figure of curves with a value, named by the task where no stem is given; show those of
    `TASKS_WITH_FIGURE`."""
    if not any(point.value for curve in found for point in curve.points):
        return []
    name = f"{stem or found[0].task_name}-{found[0].method}"
    plots.plot_small_multiples(found, about["trained_length"], folder / "plots" / name)
    if found[0].method != BASELINE_METHOD or found[0].task_name not in TASKS_WITH_FIGURE:
        return []
    text = f"{metric_label(found[0].metric)} of {found[0].task} over length, {found[0].method}"
    return [f"![{escape_link_text(text)}](plots/{name}.svg)", ""]


def _published_section(
    compared: _PublishedComparison, found: Sequence[Curve], about: Mapping[str, Any], expected: Sequence[str]
) -> list[str]:
    """Section: shapes, order, resolution and token accuracy compared with published tables."""
    if not (compared.lines or compared.resolutions or compared.tokens):
        return []
    lines = ["## Comparison with published tables", "", PUBLISHED_TABLES_TEXT]
    if shaped := compared.shape_verdicts():
        rows = count_with_noun(sum(bool(line.agrees) for line in compared.lines), "row")
        said = _count_verdicts([*shaped.values()], ("yes", "perhaps", "other size", "no", "papers differ"))
        lines += [f"Shapes agree, of {count_with_noun(len(shaped), 'measurement')} beside {rows}: {said}.", ""]
        lines += [*tables.published_shapes_table(compared.lines), ""]
    if ordered := compared.order_verdicts():
        rows = count_with_noun(len(compared.pairs), "pair")
        older = {pair.ours for pair in compared.pairs if pair.older}
        again = [verdict for each, verdict in ordered.items() if each in older]
        said = _count_verdicts([*ordered.values()], (*tables.VERDICTS_IN_ORDER, "papers differ"))
        said += f"; at 1x, too: {again.count('yes')} yes, {again.count('no')} no"
        lines += ["### Order", "", PUBLISHED_ORDERS_TEXT]
        lines += [
            f"Order agrees, of {count_with_noun(len(ordered), 'pair')} of measurements beside {rows} of rows: {said}.",
            "",
        ]
        lines += [*tables.published_orders_table(compared.pairs), ""]
    if compared.resolutions:
        lines += [
            "### Attention resolution",
            "",
            RESOLUTION_TEXT,
            *tables.resolution_table(compared.resolutions),
            "",
            *expected,
        ]
    if compared.tokens:
        asked = [curve for curve in found if curve.task_name == tokens.REPEATED_TASK]
        lines += [
            "### Token accuracy",
            "",
            TOKEN_ACCURACY_TEXT,
            *_fewer_seeds_lines(asked, about),
            *tokens.token_accuracy_table(compared.tokens),
            "",
        ]
        both = tokens.token_accuracy_pairs(compared.tokens)
        distinct = beside.verdict_of_measurement(
            ((frozenset((pair.better.label, pair.worse.label)), pair.better.text), pair.verdict) for pair in both
        )
        said = _count_verdicts([*distinct.values()], (*tables.VERDICTS_IN_ORDER, "papers differ"))
        lines += (
            [f"Order agrees, of {count_with_noun(len(distinct), 'pair')} of measurements: {said}.", ""] if both else []
        )
        lines += [*tokens.count_same_orders(both), ""] if both else []
    return lines


def _task_sections(found: Sequence[Curve], about: Mapping[str, Any], folder: Path) -> list[str]:
    """Sections: every task by length, without a method and with bca."""
    names = {curve.task: curve.task_name for curve in found}
    order = {name: place for place, name in enumerate(TASKS_IN_ORDER)}
    lines = []
    for task in sorted(names, key=lambda task: order.get(names[task], len(order))):
        own = [curve for curve in found if curve.task == task]
        first = own[0]
        asked = next((f"; {curve.asked}" for curve in own if curve.method == BASELINE_METHOD and curve.asked), "")
        lines += [f"## {task}: {metric_label(first.metric)}", "", f"Protocol: {first.protocol}{asked}.", ""]
        lines += _fewer_seeds_lines(own, about)
        for method in _shared_methods(found):
            some = [curve for curve in own if curve.method == method]
            heading = "Without a method:" if method == BASELINE_METHOD else f"Under {method}:"
            lines += [heading, "", *tables.length_table(some), ""] if some else []
            if names[task] not in (MAIN_TASK, about.get("compare"), "resolution"):
                # Two forms of one task have two figures.
                stem = re.sub(r"\W+", "-", task).strip("-") if list(names.values()).count(names[task]) > 1 else ""
                lines += _figure_lines(some, about, folder, stem)
    return lines


def _fewer_seeds_lines(found: Sequence[Curve], about: Mapping[str, Any]) -> list[str]:
    """Lines that name encodings of which fewer seeds were asked than trained; nothing where there are none."""
    trained = Counter(model["entry"] for model in about["models"])
    asked = Counter[str]()
    for curve in found:
        if curve.method == BASELINE_METHOD:
            asked[curve.entry] = max(asked[curve.entry], *(len(point.seeds) for point in curve.points))
    some = group_by_key(
        (name for name in asked if asked[name] < trained[name]), lambda name: (asked[name], trained[name])
    )
    said = [f"{', '.join(f'`{name}`' for name in names)} ({few} of {of})" for (few, of), names in some.items()]
    return [f"Fewer seeds than were trained: {'; '.join(said)}.", ""] if said else []


def _shared_methods(found: Sequence[Curve]) -> list[MethodKey]:
    """Methods under which more than half of the encodings were asked."""
    asked = {(curve.entry, curve.method) for curve in found}
    methods = list(dict.fromkeys(curve.method for curve in found))
    return [each for each in methods if 2 * sum(m == each for _, m in asked) > len({entry for entry, _ in asked})]


def _steepness_section(found: Sequence[Curve], folder: Path) -> list[str]:
    """Section: attention resolution against the slope of the curve."""
    task = next((curve.task for curve in _curves_of(found, MAIN_TASK, BASELINE_METHOD)), None)
    beyond = sorted({p.multiple for c in found if c.metric == "resolution" for p in c.points if p.multiple > 1})
    if task is None or not beyond:
        return []
    known = plots.plot_steepness(found, beyond[0], task, folder / "plots" / "resolution-slope")
    if not known:
        return []
    said = ""
    if rank := plots.rank_correlation(known):
        value, low, high = rank
        holds = ", which holds 0" if low <= 0 <= high else ""
        said = (
            f"Rank correlation (Spearman) over {count_with_noun(len(known), 'encoding')}: {value:+.2f}, "
            f"95 % interval [{low:+.2f}, {high:+.2f}]{holds}. {_leave_one_out_sentence(known)}"
        )
    return [
        "## Attention resolution against the slope",
        "",
        f"{said}LEX predicts a negative one: with higher resolution beyond the trained length, NLL rises less.",
        "",
        "![attention resolution against the slope of the curve](plots/resolution-slope.svg)",
        "",
    ]


def _leave_one_out_sentence(known: Sequence[tuple[str, float, float]]) -> str:
    """Sentence on the rank correlation without one encoding; empty with fewer than five."""
    found = {one[0]: plots.rank_correlation([each for each in known if each is not one]) for one in known}
    ranks = {name: rank for name, rank in found.items() if rank}
    if not ranks:
        return ""
    values = [value for value, _, _ in ranks.values()]
    near = [f"`{name}`" for name, (_, low, high) in ranks.items() if low <= 0 <= high]
    hangs = f"; without {' or '.join(near)} the interval holds 0" if 0 < len(near) < len(ranks) else ""
    return f"Without one of them {min(values):+.2f} to {max(values):+.2f}{hangs}. "


def _further_sections(found: Sequence[Curve]) -> list[str]:
    """Sections: plug-in methods on trained encodings, and finetuned models."""
    lines = []
    extra = [
        c
        for c in found
        if c.family != FINETUNED_FAMILY and c.method not in _shared_methods(found) and is_token_loss(c.metric)
    ]
    for entry in dict.fromkeys(curve.entry for curve in extra):
        own = [c for c in found if c.entry == entry and c.task_name == MAIN_TASK and c.family != FINETUNED_FAMILY]
        by_method = tables.length_table([replace(curve, entry=str(curve.method)) for curve in own], ("method",))
        lines += [f"## Plug-in methods on {entry}: {metric_label('nll')}", "", *by_method, ""]
    further = [curve for curve in found if curve.family == FINETUNED_FAMILY]
    for task in dict.fromkeys(curve.task for curve in further):
        own = [curve for curve in further if curve.task == task and curve.method == BASELINE_METHOD]
        lines += (
            [f"## Finetuned, {task}: {metric_label(own[0].metric)}", "", *tables.length_table(own), ""] if own else []
        )
    return lines


def _learnt_items(found: Sequence[Curve]) -> Iterator[str]:
    """List items: what the models learnt within the trained length."""
    for task, level, share in (("passkey", 0.5, "half of the keys"), ("running_arithmetic", 0.5, "half of the sums")):
        own = [curve.at(1.0) for curve in _curves_of(found, task, BASELINE_METHOD)]
        values = [point.value for point in own if point and point.value]
        if values:
            above = sum(each.ends[0] > level for each in values)
            below = sum(each.ends[1] < level for each in values)
            counts = {f"more than {share}": above, f"less than {share}": below}
            counts["uncertain (the interval contains one half)"] = len(values) - above - below
            yield (
                f"- {task} at the trained length, of {count_with_noun(len(values), 'encoding')}: "
                f"{', '.join(f'{count} {name}' for name, count in counts.items() if count)}; the highest "
                f"{format_value(max(values, key=lambda each: each.value), 'accuracy')}.\n"
            )
    context = []
    for curve in _curves_of(found, MAIN_TASK, BASELINE_METHOD):
        inside = [point for point in curve.points if point.multiple <= 1 and point.value]
        if len(inside) > 1 and inside[0].change and inside[-1].multiple == 1:
            context.append(inside[0].change.value)
    if context:
        yield (
            f"- gain of {MAIN_TASK} from context, between the shortest and the trained length: {median(context):.3f} "
            "nats "
            f"per token (median of {count_with_noun(len(context), 'encoding')}).\n"
        )
