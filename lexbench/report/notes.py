"""Notes in words: of values, differences, summaries, verdicts and limits."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.core.text import count_with_noun, plain_text
from lexbench.report.wording import floor_text
from lexbench.stats import metrics
from lexbench.stats.cell_outcomes import SettingChange
from lexbench.stats.differences import Differences, usual_counts
from lexbench.stats.floors import shared_limit
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, min_sign_flip_p
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import PairedDifference
from lexbench.stats.records import sample_count

BOTH_AT_LIMIT_WORDS = "both at", "the intervals of both reach", "both are worse than"
ALL_AT_LIMIT_WORDS = "every {} is at", "the intervals of all {}s reach", "every {} is worse than"
"""Words for values at a limit, for values whose intervals reach it, and for losses beyond it, by `Reach`."""
CEILING_WORDS = "the ceiling (1.00)"
SAME_ATTENTION_WORDS = "same attention"
LOSS_BEYOND, CLUSTERS_LOSE = "a loss beyond the tolerance", "{:cluster} lose {:.3g} on average"


def treatment_of_failed(metric: str | None) -> str:
    """What becomes of failed samples, in words."""
    value = metrics.failed_value(metric)
    return "left out of the value" if value is None else f"counted as {value:g}"


def note_text(note: Note) -> str:
    """A note in words."""
    words = WORDS_OF_NOTE[note.kind]
    return words.format(*map(_template_value, note.values)) if isinstance(words, str) else words(*note.values)


class _Count(int):
    """A number in the words of a note, where `{:pair}` asks for its noun, too: `1 pair`, `2 pairs`."""

    def __format__(self, spec: str) -> str:
        return count_with_noun(self, spec) if len(spec) > 1 and spec.isalpha() else format(int(self), spec)


def _template_value(value: Any) -> Any:
    """A value of a note for a template."""
    if isinstance(value, Note):
        return note_text(value)
    if isinstance(value, SettingChange):
        return change_text(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int):
        return _Count(value)
    return plain_text(value) if isinstance(value, str) else value


def notes_text(notes: Iterable[Note]) -> str:
    """Notes in a line."""
    return "; ".join(map(note_text, notes))


def change_text(change: SettingChange) -> str:
    """A setting with its two values."""
    return f"{plain_text(change.name)} {plain_text(change.one)} -> {plain_text(change.other)}"


def why_all_alike(found: Iterable[Record], subject: str = "row") -> str | None:
    """Why no row of a column can be told from another: `every row is at chance (0.25)`; None where one can.

    `subject` names a row in these words.
    """
    limit = shared_limit(found)
    if limit is None:
        return None
    reach, *floor = limit.values
    return f"{ALL_AT_LIMIT_WORDS[reach.value].format(subject)} {floor_text(*floor) if floor else CEILING_WORDS}"


def language_sentences(unspoken: Note) -> str:
    """The note that a model has not learned a text's language, and the consequence."""
    certain = unspoken.kind is NoteKind.UNSPOKEN
    rest = "No difference between methods tells anything here" if certain else "No gain is claimed"
    return f"{note_text(unspoken)}. {rest}."


def value_notes(record: Record, n: int | None = None) -> Iterator[str]:
    """Notes on a value. `n`: samples that the cell should have; None: not checked."""
    samples = sample_count(record)
    if record.refused:
        yield f"refused: {' '.join(record.refused.split())}"
        return
    if n is not None and record.metric and not metrics.facts_of(record.metric).of_some and samples != n:
        yield f"{count_with_noun(samples, 'sample')} of {n} asked"
    if record.failed:
        fate = treatment_of_failed(record.metric) if record.metric else "no score"
        yield f"{record.failed} of {samples or n} samples failed, {fate}"
    if record.value is not None and record.low is None:
        yield f"no interval: {count_with_noun(record.clusters, 'cluster')}"


def unchanged_prompts_sentence(methods: Iterable[MethodKey], count: int, of: int, up_to: float) -> str:
    """Count prompts read as by the unmodified model: `24 of 32 prompts fit into 256 tokens, where ntk is none.`

    Args:
        methods: whose prompts these are.
        count: prompts that are read so, above 0.
        of: all prompts.
        up_to: tokens with the answer up to which they are; inf: at every length.
    """
    *others, last = map(str, methods)
    are_none = f"{', '.join(others)} and {last} are none" if others else f"{last} is none"
    fit = "" if up_to == math.inf else f"fit into {up_to:.0f} tokens"
    if count == of:
        return f"{are_none} for {f'all {of} prompts' if of > 1 else 'the prompt'}{fit and f': they {fit}'}."
    return f"{count} of {count_with_noun(of, 'prompt')} {fit}, where {are_none}."


def difference_notes(found: PairedDifference, usual: tuple[int, int], fate: str = "") -> Iterator[str]:
    """Notes on a paired difference.

    Args:
        found: the difference.
        usual: pairs and clusters that need no note.
        fate: how failed pairs count.
    """
    if (found.pairs, found.clusters) != usual:
        yield f"{count_with_noun(found.pairs, 'pair')} in {count_with_noun(found.clusters, 'cluster')}"
    if found.failed:
        yield f"{count_with_noun(found.failed, 'pair')} failed{f', {fate}' if fate else ' on a side'}"
    if found.truncated:
        yield f"{count_with_noun(found.truncated, 'pair')} truncated"
    if found.unpaired:
        yield f"{count_with_noun(found.unpaired, 'sample')} on one side only, left out"
    if found.difference is not None and found.interval is None:
        yield f"no interval: {count_with_noun(found.clusters, 'cluster')}"


def coverage_sentences(found: Differences) -> Iterator[str]:
    """Pairs and clusters of most entries; and whether they are too few for any entry to be significant."""
    usual = usual_counts(found)
    tested = [each.clusters for each in found.entries.values() if each.p is not None]
    if tested:
        yield (
            f"{count_with_noun(usual[0], 'pair')} in {count_with_noun(usual[1], 'cluster')} per entry, unless a note "
            "says otherwise."
        )
        least = min_sign_flip_p(max(tested))
        if least * len(tested) > SIGNIFICANCE_LEVEL:
            limit = f"with {count_with_noun(max(tested), 'cluster')} no p is below {least:.2g}"
            yield (
                f"No entry can be significant: {limit}, before correction for "
                f"{count_with_noun(len(tested), 'comparison')}."
            )


def _unspoken(
    model: str, method: MethodKey, length: int, value: float, floor: float, floor_of: str, *doubt: Any
) -> str:
    says, ends = "does not speak this text", ""
    if doubt:
        low, high, clusters = doubt
        says = f"may not speak this text, {count_with_noun(clusters, 'document')} cannot tell"
        ends = f" [{low:.3f}, {high:.3f}]"
    rival = "a uniform guess" if floor_of == "uniform" else "counting tokens"
    return (
        f"{model} {says}: {method} has {value:.3f}{ends} nats per token at {length} tokens, within its trained length, "
        f"where {rival} has {floor:.3f}"
    )


def unseen_words(share: float) -> str:
    """What a certificate on so few documents cannot see."""
    return f"up to {100 * share:.2g} % of documents may"


def _proven(at: int, clusters: int, above: int, cap: float, unseen: float | None, limit: Note | None) -> str:
    """`unseen`: the share of documents that may lose more than the cap, none of a score."""
    beyond = f", {above or 'none'} of them lost more than {cap:g}, {unseen_words(unseen)}" if unseen is not None else ""
    also = f", {note_text(limit)}" if limit else ""
    return f"proven after {at} of {count_with_noun(clusters, 'cluster')}{beyond}{also}"


WORDS_OF_NOTE: Mapping[NoteKind, str | Callable[..., str]] = {
    NoteKind.FLOOR: lambda reach, *floor: f"{BOTH_AT_LIMIT_WORDS[reach.value]} {floor_text(*floor)}",
    NoteKind.CEILING: lambda reach: f"{BOTH_AT_LIMIT_WORDS[reach.value]} {CEILING_WORDS}",
    NoteKind.UNSPOKEN: _unspoken,
    NoteKind.PERHAPS_UNSPOKEN: _unspoken,
    NoteKind.CANNOT_TELL: "cannot be told: {}",
    # Of pairs of cells.
    NoteKind.BASELINE_REFUSED: "{} is refused at {}",
    NoteKind.BASELINE_NOT_MEASURED: "{} is not measured at {}",
    NoteKind.OTHER_QUESTION: "sample {} is not the question that {} was asked: run both anew",
    NoteKind.OTHER_QUESTION_AT: "sample {} at {} is not the question that {} was asked: run both anew",
    NoteKind.SAME_ATTENTION: SAME_ATTENTION_WORDS,
    NoteKind.SIDE_REFUSED: "{} is refused: {}",
    NoteKind.SETTINGS_DIFFER: "other questions: {}",
    NoteKind.NOTHING_SHARED: "nothing that both sides measured",
    NoteKind.TOKENIZERS_DIFFER: "question {} has {} targets of {} bytes and {} words in A, {} targets of {} bytes "
    "and {} words in B: NLL per token needs one tokenizer",
    NoteKind.QUESTION_DIFFERS: "question {} is not the same in A and B (another tokenizer or sampling): run both anew",
    NoteKind.NO_PAIRED_VALUE: "no question has a value on both sides",
    # Of summaries of curves.
    NoteKind.TOO_FEW_CLUSTERS: "no interval: too few clusters",
    NoteKind.NO_VALUE: "no value at any length",
    NoteKind.BEST_OF_BASELINE: "the best of {} up to {}",
    NoteKind.BEST_OF_ITS_OWN: "the best of its own up to {}",
    NoteKind.NO_LEVEL: "no level: no length up to the trained {} has a value",
    NoteKind.LEVEL_NEAR_CHANCE: "no level to keep: {} is {:.1f} points, and guessing gives {:.1f}",
    NoteKind.NO_BASELINE_VALUE: f"{BASELINE_METHOD} has no value there, and a method that is worse everywhere can look "
    "long",
    NoteKind.SCORE_AT_LEAST: "at least {:g} points",
    NoteKind.WITHIN_NATS: "within {:g} nats of {}",
    NoteKind.WITHIN_POINTS: "within {:g} points of {}",
    NoteKind.RULE: "rule {}",
    NoteKind.LONGEST_MEASURED: ">= {}, the longest measured",
    NoteKind.BELOW_SHORTEST: "< {}, the shortest judged",
    NoteKind.COLLAPSED_SCORE: "less than half of what is above chance in {}",
    NoteKind.COLLAPSED_LOSS: "more than {:g} nats above {}",
    NoteKind.NEVER_UP_TO: "never, up to {}",
    NoteKind.LENGTHS: "{} of {} lengths",
    NoteKind.REFUSED_AT: "refused at {}",
    NoteKind.NO_VALUE_AT: "no value at {}",
    NoteKind.NOTHING_BEYOND: "nothing beyond the trained {} was measured",
    NoteKind.LENGTHS_FROM_TO: "{} of {} lengths: {} to {}",
    NoteKind.ONE_LENGTH: "{} of {} lengths: {}",
    NoteKind.TOO_FEW_LENGTHS: "an area needs two lengths that all methods have, here {}",
    NoteKind.PRICE_NOT_MEASURED: "not measured: run it with price=true",
    NoteKind.SET_FOR: "set for {}",
    NoteKind.FACTOR: "factor {:g}",
    NoteKind.SETTING: "{} at {}",
    NoteKind.SETTING_REFUSED: "{} at {} is refused",
    NoteKind.SETTING_WITHOUT_VALUE: "{} at {} has no value",
    NoteKind.METHOD_WITHOUT_VALUE: "{} has no value at any length",
    NoteKind.NO_SHARED_LENGTH: "no length up to the trained {} that all methods have",
    NoteKind.BASELINE: "the baseline",
    NoteKind.NO_PAIRS: "no pairs with {}",
    NoteKind.PAIRS: "{} pairs",
    NoteKind.ONE_SIDE_OF_TRAINED: "needs lengths up to the trained one and beyond that all methods have",
    NoteKind.OTHER_TARGETS: "{} and {} do not score the same targets",
    NoteKind.TARGETS: "{} to {}, {} targets",
    NoteKind.TARGETS_WITH_FAILED: "{} to {}, {} targets, {} failed",
    NoteKind.NO_SHARED_DEPTHS: "no length at which all methods have needles in both halves of depths",
    # Of costs.
    NoteKind.NO_SHARED_COST: "no length at which all methods have a cost",
    NoteKind.ONE_SHARED_COST: "needs two lengths at which all methods have a cost",
    NoteKind.TIMED_ONCE: "timed once at {}: a comparison needs two timings of a cell",
    NoteKind.AT_LENGTH: "at {}",
    NoteKind.WALL_CLOCK: "wall clock, each cell's answers timed one by one: compare inside one run only",
    NoteKind.UNSEEN_MEMORY: "the model ran in another process, whose memory was not seen",
    NoteKind.SHARED_PEAKS: "peaks were not counted cell by cell: each holds what its process held before",
    NoteKind.BATCHED_MEMORY: "answers were computed in batches, whose memory depends on their size",
    NoteKind.NO_RISE: "the peak does not rise with the length: a token adds less than peaks vary from cell to cell",
    NoteKind.RISE: "rise of the peak from {} to {}",
    NoteKind.BYTES_IN_ALL: "{} bytes in all at {}",
    # Of verdicts of a check.
    NoteKind.NO_SUCH_CELL: "the run has no such cell: run what the baseline was made from, or --update",
    NoteKind.UNFINISHED: "unfinished: repeat the run command to finish it",
    NoteKind.NOT_IN_BASELINE: "not in the baseline",
    NoteKind.OTHER_SETTING: "{}: run it as the baseline was, or --update",
    NoteKind.NOT_MEASURED_YET: "not measured yet, {}: repeat the run command",
    NoteKind.REFUSED_ON_BOTH_SIDES: "refused, as in the baseline: {}",
    NoteKind.NEWLY_REFUSED: "refused, and measured in the baseline: {}",
    NoteKind.REFUSED_IN_BASELINE: "refused in the baseline: {}",
    NoteKind.NOTHING_COMPARED: "nothing that is compared by default",
    NoteKind.METRIC_MISSING: "the run has no {}: --update",
    NoteKind.NO_VALUE_ON_A_SIDE: "no question has a value on one side: --update",
    NoteKind.NO_VALUE_ON_BOTH_SIDES: "no question has a value on both sides: --update",
    NoteKind.NEWLY_FAILED: "{:question} of {} failed that the baseline answers: {}",
    NoteKind.QUESTION_REPLACED: "question {} is another one, though task version, seed and corpus agree (another "
    "tokenizer?): --update",
    NoteKind.QUESTIONS_MISSING: "{0} of the baseline's {1:question} are missing: run with n={1}, or --update",
    NoteKind.TOO_FEW_TO_TEST: f"{LOSS_BEYOND}, and {{:cluster}} are too few to test it among {{:comparison}}: raise n",
    NoteKind.OTHER_SEED: f"{LOSS_BEYOND}, not significant on different questions: run with seed={{}}, or raise n",
    NoteKind.OTHER_CORPUS: f"{LOSS_BEYOND}, not significant on different questions: run on the baseline's corpus, or "
    "raise n",
    NoteKind.PERHAPS_SKEWED: f"{LOSS_BEYOND}, unless the noise of {{:cluster}} is skewed: raise n",
    NoteKind.NOT_SIGNIFICANT: f"{LOSS_BEYOND}, not significant",
    NoteKind.NO_TOLERANCE: "the tolerance is 0: no loss below it can be proven on pairs",
    NoteKind.UNPAIRED_PROOF: "the questions differ from the baseline's: no loss below it can be proven on pairs",
    NoteKind.LOSS_ABOVE_TOLERANCE: f"{CLUSTERS_LOSE}, more than the tolerance: raise n",
    NoteKind.NOT_CERTIFIED: "nothing is certified of it: {}",
    NoteKind.PROVEN: _proven,
    NoteKind.UNPROVABLE: f"{CLUSTERS_LOSE}: if the next ones lose as much, no n proves less than the tolerance",
    NoteKind.NOT_YET_PROVEN: f"{CLUSTERS_LOSE}, too few to prove less than the tolerance: about {{}} more may, raise n",
}
"""Words of each kind: a template of its values, or a function of them."""
