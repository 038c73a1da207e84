"""The page of `lexbench kv`: divergence by length, retrieval, bytes, and what is proven."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lexbench.core.attention import Attention
from lexbench.core.method_key import MethodKey
from lexbench.core.model import Model
from lexbench.core.record import Cell, Refused, Sample
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.methods.composition import Method
from lexbench.methods.scaled import attention_of
from lexbench.parts.kv.compression import Compression
from lexbench.parts.kv.divergence import DivergenceLevel, judge_divergence, level, slope
from lexbench.parts.kv.methods.kv import Kv
from lexbench.report import formats
from lexbench.report.grid import EMPTY_ENTRY, Grid, GridEntry, Line
from lexbench.report.sheet import Paragraph
from lexbench.store.format import FinishedCell

DEFAULT_MARGIN_NATS = 0.01
"""Nats per token that the sentence allows where no margin is asked for."""
DIVERGENCE_METRIC, RETRIEVAL_METRIC = "kld", "accuracy"


@dataclass
class KvRow:
    """Samples of both tasks under one setting, by length in tokens, and the reasons of lengths without."""

    key: MethodKey
    cache: Compression | None
    """Compression of the cache; None: keys and values have 16 bits a number."""
    divergences: dict[int, list[Sample]] = field(default_factory=dict)
    retrievals: dict[int, list[Sample]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    """Layers whose cache is compressed; None: all."""


def row_of(key: MethodKey, method: Method, model: Model, length: int) -> KvRow:
    """The row of a setting, without samples: the cache of its method, and the layers that it compresses at a length."""
    try:
        made = attention_of(method, model, length)
    except Refused:  # its cells say why
        made = Attention()
    one = (made.mixture or (made,))[0]
    layers = (layer for layer in range(len(model.kept_by_layer() or ())) if one.at(layer).cache is not None)
    return KvRow(key, next(_compressions(method), None), layers=tuple(layers))


def _compressions(method: Any) -> Iterator[Compression]:
    """The caches of a method, of its parts, and of what it wraps."""
    if isinstance(method, Kv):
        yield method.compression()
    for part in (*getattr(method, "parts", ()), *([method.method] if hasattr(method, "method") else [])):
        yield from _compressions(part)


def rows_of(finished: Sequence[FinishedCell], empty: Sequence[KvRow]) -> list[KvRow]:
    """The rows with the samples of the cells; of several cells of one length the samples of all."""
    rows = {row.key: row for row in empty}
    for each in finished:
        row, length = rows.get(each.cell.method), each.cell.length
        if row is None:
            continue
        if each.refused is not None:
            row.refused.setdefault(length, each.refused)
        elif each.cell.task_name == "divergence":
            row.divergences.setdefault(length, []).extend(each.samples)
        else:
            row.retrievals.setdefault(length, []).extend(each.samples)
    return list(rows.values())


def page(rows: Sequence[KvRow], about: Cell, model: Model, lengths: Sequence[int], margin: float | None) -> str:
    """The tables and sentences in Markdown.

    Args:
        rows: the settings, the uncompressed cache among them.
        about: one of the measured cells.
        model: whose cache it is.
        lengths: in tokens.
        margin: nats of a certificate; None: without one.
    """
    grids = [_divergences(rows, about, model, lengths)]
    grids += [_retrieval(rows, lengths)] if any(row.retrievals for row in rows) else []
    grids += [_certificate(rows, length, margin) for length in lengths] if margin is not None else []
    said = sentence(rows, model, lengths, margin or DEFAULT_MARGIN_NATS)
    return formats.sheet_markdown([Paragraph(said), *grids])


def sentence(rows: Sequence[KvRow], model: Model, lengths: Sequence[int], margin: float) -> str:
    """Sentence on the setting of fewest bytes a token whose divergence at the longest length is below a margin.

    `margin` is in nats per token. The sentence also gives the rise of that divergence for each doubling of the length.
    """
    longest = max(lengths)
    found = [
        (stored_bytes(row, model, longest), row, level(row.divergences.get(longest, ()))) for row in rows if row.cache
    ]
    full = full_bytes(model, longest)
    held = [(size, row, each) for size, row, each in found if each and each.high is not None and each.high < margin]
    if not held:
        return f"At {longest} tokens no setting has a divergence wholly below {margin:g} nats per token."
    if full is None:
        below = join_first_few([str(row.key) for _, row, _ in held])
        return f"At {longest} tokens the divergence lies below {margin:g} nats per token: {below}. Bytes are not known."
    size, row, each = min(
        ((size, row, each) for size, row, each in held if size is not None), key=lambda entry: entry[0]
    )
    climb = slope(row.divergences)
    more = f"; each doubling of the length adds {_show_value(climb)}" if climb else ""
    return (
        f"At {longest} tokens {row.key} keeps a token in {size:,.0f} bytes ({size / full:.0%} of 16 bits a number) and "
        f"diverges by {_show_value(each)} nats per token: of all settings whose interval lies below {margin:g} the "
        f"smallest{more}."
    )


def _divergences(rows: Sequence[KvRow], about: Cell, model: Model, lengths: Sequence[int]) -> Grid:
    longest = max(lengths)
    head = ["setting", f"bytes a token at {longest}", *(f"KLD at {length}" for length in lengths)]
    head += [f"same top token at {longest}", f"rise of NLL at {longest}", "KLD a doubling"]
    lines = list[Line]()
    for row in rows:
        at_longest = row.divergences.get(longest, ())
        size = stored_bytes(row, model, longest)
        line: Line = [row.key, EMPTY_ENTRY if size is None else GridEntry(text=f"{size:,.0f}")]
        line += [_entry(level(row.divergences.get(length, ())), row.refused.get(length)) for length in lengths]
        top, rise = level(at_longest, "same_top"), level(at_longest, "nll_rise")
        lines.append(
            [*line, _entry(top, None, ".3f"), _entry(rise, None, "+.4f"), _entry(slope(row.divergences), None)]
        )
    remarks = [
        "KLD: KL(p || q) in nats per token over the whole vocabulary, p with an uncompressed cache, q with this one, "
        "at the same targets at every length; 95 % intervals over documents.",
        *byte_remarks(rows, model, longest),
        "The cache is simulated: numbers are rounded, then computed with, so memory and speed here are not those of an "
        "engine.",
        *(f"{row.key}: {row.cache.words()}." for row in rows if row.cache),
    ]
    measured = f"{about.backend} in {about.dtype} ({about.kernel}), trained length {about.trained_length}"
    above = [f"corpus {about.corpus}, {measured}, seed {about.seed}", *_samples(rows)]
    return Grid(
        title=f"What a compressed cache of {about.model} costs", above=above, head=head, rows=lines, remarks=remarks
    )


def _samples(rows: Sequence[KvRow]) -> Iterator[str]:
    counts = {len(samples): None for row in rows for _, samples in sorted(row.divergences.items())}
    if counts:
        yield f"samples a cell: {join_first_few([*counts])}"


def _retrieval(rows: Sequence[KvRow], lengths: Sequence[int]) -> Grid:
    lines: list[Line] = [
        [row.key, *(_entry(level(row.retrievals.get(length, ()), RETRIEVAL_METRIC), None, ".3f") for length in lengths)]
        for row in rows
    ]
    remark = "Accuracy of questions behind a text; the cache is compressed before a question is read."
    return Grid(title="Retrieval", head=["setting", *map(str, lengths)], rows=lines, remarks=[remark])


def _certificate(rows: Sequence[KvRow], length: int, margin: float) -> Grid:
    """The settings proven to diverge by less than a margin, by more, and those undecided."""
    lines = list[Line]()
    for row in [row for row in rows if row.cache]:
        samples = row.divergences.get(length, ())
        found = judge_divergence(samples, margin)
        if found is None:
            lines.append([row.key, GridEntry(text="no value"), EMPTY_ENTRY, EMPTY_ENTRY])
            continue
        words = {"below": f"less than {margin:g}", "above": f"more than {margin:g}", "undecided": "undecided"}
        more = "" if found.kind != "undecided" else f"{found.more:,} more" if found.more else "none foreseen"
        proven = GridEntry(text=str(found.at)) if found.at is not None else EMPTY_ENTRY
        lines.append([row.key, GridEntry(text=words[found.kind]), proven, GridEntry(text=more)])
    return Grid(
        title=f"Proven at {length} tokens: divergence against {margin:g} nats per token",
        head=["setting", "proven", "documents until then", "documents that would decide"],
        rows=lines,
        remarks=["Each at 5 % by betting on documents in turn (lexbench.stats.certificates), valid at any n."],
    )


def _entry(found: DivergenceLevel | None, refused: str | None, digits: str = ".3g") -> GridEntry:
    if found is None:
        return GridEntry(text="refused", notes=(refused,)) if refused else EMPTY_ENTRY
    ends = None if found.low is None or found.high is None else (f"{found.low:{digits}}", f"{found.high:{digits}}")
    return GridEntry(text=f"{found.value:{digits}}", ends=ends)


def _show_value(found: DivergenceLevel) -> str:
    ends = "" if found.low is None or found.high is None else f" [{found.low:.3g}, {found.high:.3g}]"
    return f"{found.value:.3g}{ends}"


def stored_bytes(row: KvRow, model: Model, length: int) -> float | None:
    """Bytes that a token takes in all layers, as a mean over a text of a length; None: not known, or refused."""
    caches = model.kept_by_layer()
    if caches is None or (row.cache is not None and _is_refused(row, length)):
        return None
    bits = 0.0
    for layer, kept in enumerate(caches):
        if kept is not None:
            compressed = row.cache is not None and (row.layers is None or layer in row.layers)
            plain = 16 * kept.numbers * kept.tokens(length)
            bits += row.cache.bits_of_text(kept, length) if row.cache is not None and compressed else plain
    return bits / 8 / length


def _is_refused(row: KvRow, length: int) -> bool:
    """Whether nothing was measured at a length, as a cell was refused."""
    return length in row.refused and not row.divergences.get(length) and not row.retrievals.get(length)


def full_bytes(model: Model, length: int) -> float | None:
    """The same at 16 bits a number."""
    return None if model.kept_by_layer() is None else 2.0 * model.kept_numbers(length) / length


def byte_remarks(rows: Sequence[KvRow], model: Model, length: int) -> Iterator[str]:
    """Sentences on the bytes: of which layers they are, and which layers are compressed."""
    caches = model.kept_by_layer()
    if caches is None:
        yield f"Bytes: not known, as the config of {model.name} does not say what its layers keep."
        return
    kept = [layer for layer, each in enumerate(caches) if each is not None]
    windows = sum(each is not None and each.window is not None for each in caches)
    said = f"Bytes: keys and values as stored behind {length} tokens, a mean over these, in all layers that keep keys"
    said += f", {len(kept)} of {len(caches)}" if len(kept) < len(caches) else ""
    said += f"; {count_with_noun(windows, 'layer')} with a window: the tokens in it only" if windows else ""
    said += "; states of layers without keys are not counted" if len(kept) < len(caches) else ""
    yield f"{said}."
    for row in rows:
        left = set() if row.layers is None or row.cache is None or _is_refused(row, length) else {*kept} - {*row.layers}
        if left:
            yield f"{row.key}: not compressed in {count_with_noun(len(left), 'layer')}."
