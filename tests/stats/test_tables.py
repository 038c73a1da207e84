"""Tables show every value with what a reader must know of it, and never mix what cannot be compared."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report import formats
from lexbench.report import tables as report_tables
from lexbench.report.formats import markdown_columns
from lexbench.report.sheet import Heading, Paragraph
from lexbench.report.tables import setting_heading, table_grid, terminal_tables
from lexbench.report.titles import differences_of, length_heading, table_caption
from lexbench.report.wording import format_record_value, format_share
from lexbench.stats.records import records_of, rows_of
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells, finished, keep


def markdown(table: Table) -> str:
    return formats.grid_markdown(table_grid(table))


def passkey(method: str, length: int, hits: int, n: int = 4, **changed: object) -> FinishedCell:
    samples = [
        Sample(index=i, cluster=str(i), tokens=length, scores={"accuracy": float(i < hits)}, **changed)  # type: ignore[arg-type]
        for i in range(n)
    ]
    return FinishedCell(cell("passkey", method, length, n=4), samples)


def refused(method: str, length: int, reason: str) -> FinishedCell:
    return FinishedCell(cell("passkey", method, length, n=4), [], reason)


def cells_of(page: str) -> list[list[str]]:
    """Contents of a Markdown table, by line."""
    return [[entry.strip() for entry in line.strip("|").split(" | ")] for line in page.splitlines() if line[:1] == "|"]


def test_a_table_reads_as_it_should() -> None:
    [table] = build_tables(
        [
            passkey("pi", 512, 1),
            passkey("none", 512, 4, n=3, truncated=True),
            passkey("none", 256, 2),
            passkey("pi", 256, 3),
            refused("pi", 128, "too short:\nraise length"),
            refused("none", 128, "too short:\nraise length"),
        ]
    )
    # Wilson by hand for 2, 3 and 1 of 4, and 3 of 3: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    assert markdown(table) == (
        "| method |  128 (0.5x) |                     256 (1x) |                           512 (2x) |\n"
        "| ------ | ----------: | ---------------------------: | ---------------------------------: |\n"
        "| none   | refused (1) |     0.50 [0.15, 0.85] 0% cut | **1.00** [0.44, 1.00] 100% cut (2) |\n"
        "| pi     | refused (1) | **0.75** [0.30, 0.95] 0% cut |           0.25 [0.05, 0.70] 0% cut |\n"
        "\n"
        "(1) refused: too short: raise length  \n"
        "(2) 3 samples of 4 asked  \n"
        "cut: share of the samples that were truncated.  \n"
        "Not measured by this version or backend: tokens in place; reached (any key of the text); "
        "chosen (likeliest of the options); forced (key tokens likeliest when taught).\n"
    )


def test_columns_are_aligned_and_pipes_in_labels_do_not_break_them() -> None:
    for table in build_tables([*fake_cells(), passkey("odd|name", 256, 1)]):
        lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
        assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.lengths) + 2}


@pytest.mark.parametrize(
    "changed",
    [
        {"protocol": "another"},
        {"backend": "native"},
        {"dtype": "bfloat16"},
        {"kernel": "eager"},
        {"corpus": "synthetic"},
        {"n": 8},
        {"seed": 1},
        {"model": "other"},
        {"trained_length": 512},
    ],
    ids=str,
)
def test_what_cannot_be_compared_never_shares_a_table(changed: dict[str, Any]) -> None:
    left = finished("last_segment", "none", 512)
    right = FinishedCell(cell("last_segment", "ntk", 512, **changed), left.samples)
    made = build_tables([left, right])
    assert {tuple(map(str, table.methods)) for table in made} == {("none",), ("ntk",)}
    assert len({table.name for table in made}) == len(made) == 8


def test_tables_of_another_revision_are_apart_and_say_so() -> None:
    left = finished("last_segment", "none", 512)
    identity = {**left.cell.identity, "model": {"name": "lexlet", "revision": "77aa"}}
    right = FinishedCell(cell("last_segment", "ntk", 512, identity=identity), left.samples)
    captions = {table_caption(table) for table in build_tables([left, right])}
    assert {said.split("this table: ")[1] for said in captions} == {"model.revision 5f0c", "model.revision 77aa"}
    assert "this table" not in table_caption(build_tables([left])[0])


def test_tables_are_told_apart_by_the_fewest_fields_that_readers_know() -> None:
    cells = []
    for name, n, seed in (("hf", 4, 0), ("hf", 4, 1), ("chance", 2, 0)):
        made = cell("passkey", "none", 256, n=n, seed=seed, backend=name, kernel=f"{name}'s")
        backend = {**made.identity["backend"], "version": f"{name} 1"}
        cells.append(replace(made, identity={**made.identity, "backend": backend}))
    found = build_tables(FinishedCell(each, passkey("none", 256, 1, n=each.n).samples) for each in cells)
    assert sorted({differences_of(table) for table in found}) == [
        "backend.name chance, seed 0",
        "backend.name hf, seed 0",
        "backend.name hf, seed 1",
    ]
    heading, *_ = setting_heading(found[0])
    assert heading == Heading(f"passkey on lexlet ({differences_of(found[0])})")


def test_the_protocol_and_what_cells_share_stand_above() -> None:
    [table] = build_tables([passkey("none", 256, 1)])
    assert table_caption(table) == (
        "passkey of 5 digits in noise, strict: the key comes first, greedy, BOS\n"
        "4 samples a cell, seed 0, hf in float32 (sdpa), trained length 256"
    )


@pytest.mark.parametrize(
    ("name", "corpus"),
    [
        ("stdlib", "stdlib"),
        ("stdlib", "stdlib(split='all')"),
        ("packages", "packages(size=81920)"),
        ("pydoc", "a label of any text"),
    ],
)
def test_a_text_that_only_this_machine_has_is_said_so(name: str, corpus: str) -> None:
    """In the caption of tables and of boards; by the name in the identity, whatever the label."""
    one = finished("last_segment", "none", 512)
    identity = {**one.cell.identity, "corpus": {"name": name}}
    other = FinishedCell(replace(one.cell, corpus=corpus, identity=identity), one.samples)
    assert f"seed 0, corpus {corpus} (this machine's text), hf in" in table_caption(build_tables([other])[0])
    for said in ("novels", "files(path='stdlib')", "stdlibs"):
        portable = FinishedCell(cell("last_segment", "none", 512, corpus=said), one.samples)
        assert f"seed 0, corpus {said}, hf in" in table_caption(build_tables([portable])[0])


def test_the_heading_of_a_setting_is_its_caption_in_full_sentences() -> None:
    [table] = build_tables([passkey("none", 256, 1)])
    assert setting_heading(table) == [
        Heading("passkey on lexlet"),
        Paragraph("Protocol: passkey of 5 digits in noise, strict: the key comes first, greedy, BOS."),
        Paragraph("4 samples a cell, seed 0, hf in float32 (sdpa), trained length 256."),
    ]


def test_rows_of_any_entries_are_aligned_under_the_lengths() -> None:
    [table] = build_tables([passkey("none", 256, 1), passkey("none", 768, 1)])
    head = ["method", *(length_heading(table, each) for each in table.lengths)]
    assert markdown_columns(head, [["none (value)", "1.0", ""], ["a|b", "-0.25 [-0.5, 0.0]", "refused (1)"]]) == [
        "| method       |          256 (1x) |    768 (3x) |",
        "| ------------ | ----------------: | ----------: |",
        "| none (value) |               1.0 |             |",
        "| a\\|b         | -0.25 [-0.5, 0.0] | refused (1) |",
    ]


def test_none_comes_first_then_methods_by_name_and_headlines_before_other_metrics() -> None:
    made = build_tables(fake_cells())
    assert [(table.cell.task, table.metric) for table in made] == [
        ("last_segment", "nll"),
        ("last_segment", "perplexity"),
        ("last_segment", "bits_per_byte"),
        ("last_segment", "word_perplexity"),
        ("passkey", "accuracy"),
        ("passkey", "contains"),
        ("passkey", "in_place"),
        ("passkey", "reached"),
    ]
    assert list(map(str, made[0].methods)) == ["none", "ntk", "pi", "rerope", "yarn(factor=8.0)"]
    [two] = build_tables([passkey("none", 256, 1), passkey("abf", 256, 1)])
    assert list(map(str, two.methods)) == ["none", "abf"]


def test_the_lowest_loss_and_the_highest_accuracy_are_bold() -> None:
    by_metric = {table.metric: table for table in build_tables(fake_cells())}
    for metric, best in (("nll", min), ("perplexity", min), ("accuracy", max)):
        table = by_metric[metric]
        for column, length in enumerate(table.lengths, start=1):
            values = {str(record.method): record.value for record in table.at(length) if record.value is not None}
            page = cells_of(markdown(table))[2:]
            bold = {row[0] for row in page if row[column].startswith("**")}
            top = best(values.values())
            shown = {
                str(record.method): format_record_value(record, record.value or 0.0) for record in table.at(length)
            }
            alike = {name for name in values if shown[name] == format_record_value(table.at(length)[0], top)}
            assert bold == (alike if len({shown[name] for name in values}) > 1 else set())


@pytest.mark.parametrize(
    ("length", "head"),
    [(2, "2 (0.00781x)"), (384, "384 (1.5x)"), (262_144, "262144 (1020x)"), (10**6, "1000000 (3910x)")],
)
def test_a_length_is_named_with_its_multiple_of_256_tokens(length: int, head: str) -> None:
    [table] = build_tables([passkey("none", length, 1)])
    assert length_heading(table, length) == head


def test_an_interval_is_shown_with_its_own_ends() -> None:
    [nll, perplexity, *_] = build_tables([finished("last_segment", "pi", 1024)])
    for table, digits in ((nll, 3), (perplexity, 2)):
        [record] = table.entries.values()
        assert record.value is not None and record.low is not None and record.high is not None
        text = f"{record.value:.{digits}f} [{record.low:.{digits}f}, {record.high:.{digits}f}]"
        assert cells_of(markdown(table))[2][1] == text


def test_failed_truncated_and_short_samples_are_noted() -> None:
    pages = {table.metric: markdown(table) for table in build_tables(fake_cells())}
    assert "1 of 32 samples failed, left out of the value" in pages["nll"]
    assert "1 of 32 samples failed, counted as 0" in pages["accuracy"]
    for page in pages.values():
        assert page.count("] 3% cut") == 1  # one sample of 32, under pi at 2048
        assert "cut: share of the samples that were truncated." in page
        assert "Realised tokens: 2008 to 2048 at 2048." in page


def test_one_cluster_and_no_value_are_said() -> None:
    sample = Sample(index=0, cluster="a", tokens=256, nll=np.ones(3, np.float32), bytes=4, words=1)
    lost = Sample(index=0, cluster="a", tokens=512, nll=np.full(3, np.nan, np.float32), failed="no", bytes=4, words=1)
    [table, *_] = build_tables(
        [FinishedCell(cell("t", "none", 256, n=1), [sample]), FinishedCell(cell("t", "none", 512, n=1), [lost])]
    )
    page = markdown(table)
    assert cells_of(page)[2] == ["none", "1.000 (1)", "no value (2)"]
    assert "(1) no interval: 1 cluster" in page
    assert "(2) 1 of 1 samples failed, left out of the value" in page


def test_two_cells_of_one_label_have_a_row_each() -> None:
    left = passkey("yarn", 256, 1)
    identity = {**left.cell.identity, "attention": {"scale": 2.0}}
    right = FinishedCell(cell("passkey", "yarn", 256, n=4, identity=identity), passkey("yarn", 256, 3).samples)
    [table] = build_tables([left, right])
    assert list(map(str, table.methods)) == ["yarn", "yarn #2"]
    assert {record.value for record in table.entries.values()} == {0.25, 0.75}


def test_cells_that_are_all_refused_still_make_a_table() -> None:
    [table] = build_tables([refused("none", 128, "too short"), refused("pi", 128, "too long")])
    assert table.metric is None
    assert [row[1] for row in cells_of(markdown(table))[2:]] == ["refused (1)", "refused (2)"]


def test_the_csv_holds_every_field_of_every_cell() -> None:
    cells = fake_cells(tasks=["passkey"])
    rows = list(
        csv.DictReader(io.StringIO(formats.rows_as_csv(rows_of(list(build_tables(cells)[0].entries.values())))))
    )
    expected = {record.cell: record for each in cells for record in records_of(each) if record.metric != "contains"}
    assert {row["cell"] for row in rows} == expected.keys()
    for row in rows:
        record = expected[row["cell"]]
        assert row["value"] == ("" if record.value is None else repr(record.value))
        assert float(row["multiple"]) == record.length / 256
        assert row["refused"] == (record.refused or "")


def test_a_terminal_shows_the_headlines_of_the_named_cells(tmp_path: Path) -> None:
    store = keep(tmp_path, fake_cells())
    chosen = [each.cell for each in store.load() if str(each.cell.method) in ("none", "pi") and each.cell.length > 256]
    half = len(chosen) // 2
    page = terminal_tables([(tmp_path, [c.id for c in chosen[:half]]), (tmp_path, [c.id for c in chosen[half:]])])
    assert [line for line in page.splitlines() if line.endswith(", lexlet")] == [
        "last_segment, NLL (nats per token), lexlet",
        "last_segment, perplexity (per token), lexlet",
        "passkey, copied whole, lexlet",
    ]
    assert {row[0] for row in cells_of(page)} - {"method"} == {"none", "pi", "------"}
    assert terminal_tables([]) == ""


@pytest.mark.slow
def test_a_terminal_shows_no_thousands_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [each.cell.id for each in keep(tmp_path, fake_cells()).load()]
    monkeypatch.setattr(report_tables, "MAX_TERMINAL_CELLS", len(ids))
    assert "passkey, copied whole, lexlet" in terminal_tables([(tmp_path, ids)])
    monkeypatch.setattr(report_tables, "MAX_TERMINAL_CELLS", len(ids) - 1)
    assert terminal_tables([(tmp_path, ids)]) == f"{len(ids)} cells: more tables than a terminal shows"


def test_values_that_are_shown_alike_are_none_of_them_the_best() -> None:
    def text(method: str, nll: float) -> FinishedCell:
        sample = Sample(index=0, cluster="0", tokens=256, nll=np.array([nll], np.float32), bytes=4, words=1)
        return FinishedCell(cell("last_segment", method, 256, n=1), [sample])

    [close, *_] = build_tables([text("none", 2.00001), text("yarn", 2.0)])
    assert "**" not in markdown(close)
    [apart, *_] = build_tables([text("none", 2.00001), text("yarn", 2.0), text("pi", 2.5)])
    assert markdown(apart).count("**2.000**") == 2


def guessed(length: int, chance: float | None, method: str = "none") -> FinishedCell:
    scores = {"accuracy": 1.0, "exact": 1.0}
    samples = [Sample(index=i, cluster=str(i), tokens=length, scores=scores, chance=chance) for i in range(2)]
    return FinishedCell(cell("choice", method, length, n=2), samples)


@pytest.mark.parametrize(
    ("chances", "said"),
    [
        ([0.25, 0.25], "Chance: 0.25."),
        ([0.1, 0.05], "Chance: 0.10 at 256, 0.05 at 512."),
        ([None, 0.5], "Chance: 0.50. Not above it: none at 512."),  # two of two: Wilson's interval begins at 0.34
        ([1 / 90_000] * 2, "Chance: below 0.01."),
        ([0.0, None], None),
    ],
    ids=str,
)
def test_what_guessing_gives_is_said_where_it_is_known(chances: list[float | None], said: str | None) -> None:
    found = [guessed(length, chance) for length, chance in zip((256, 512), chances, strict=True)]
    accuracy, exact = (markdown(table) for table in build_tables(found))
    assert [line for line in accuracy.splitlines() if line.startswith("Chance")] == ([said] if said else [])
    assert "Chance" not in exact  # guessing all of many places right is another chance


def test_methods_whose_interval_reaches_chance_are_named_below_their_table() -> None:
    """Wilson's interval of 2 right of 2 begins at 0.342: above 0.3, and not above 0.4."""
    cells = [guessed(length, chance, name) for name in ("none", "pi") for length, chance in ((256, 0.3), (512, 0.4))]
    [line] = [each for each in markdown(build_tables(cells)[0]).splitlines() if each.startswith("Chance")]
    assert line.rstrip() == "Chance: 0.30 at 256, 0.40 at 512. Not above it: all at 512."


def with_steps(each: FinishedCell, *steps: list[list[float]] | None) -> FinishedCell:
    """The cell, whose samples state these steps of a reader of the last tokens."""
    samples = [
        replace(sample, facts={"shortcut": own} if own else {}) for sample, own in zip(each.samples, steps, strict=True)
    ]
    return replace(each, samples=samples)


def test_what_the_last_tokens_alone_tell_is_said_where_it_is_above_chance() -> None:
    """Trained at 256: 64 tokens are read of 128 and 256, and 256 of 512 and more; half is told by one sample of two."""
    far, near = [[0, 0.1], [300, 1.0]], [[0, 0.1], [60, 1.0]]
    cells = [with_steps(guessed(length, 0.1), far, near) for length in (256, 512)]
    accuracy, exact = (markdown(table).splitlines() for table in build_tables([*cells, guessed(1024, 0.1)]))
    assert [line.strip() for line in accuracy if line.startswith("Reading")] == [
        "Reading the last 64 tokens alone: 0.55 at 256, 512."
    ]
    assert not any(line.startswith("Reading") for line in exact)
    wide = with_steps(guessed(1024, 0.1), [[0, 0.1], [200, 1.0]], near)
    [said] = [line for line in markdown(build_tables([*cells, wide])[0]).splitlines() if line.startswith("Reading")]
    assert said == "Reading the last 64 tokens alone: 0.55 at 256, 512; the last 256: 1.00 at 1024."


@pytest.mark.parametrize("steps", [None, [[0, 0.1]], [[0, 0.102], [250, 0.103]]])
def test_nothing_is_said_of_a_task_that_states_none_or_none_above_chance(steps: list[list[float]] | None) -> None:
    [accuracy, _] = build_tables([with_steps(guessed(512, 0.1), steps, steps)])
    assert "Reading" not in markdown(accuracy)


def test_the_chance_of_a_cell_is_the_mean_of_its_questions() -> None:
    each = guessed(256, 0.5)
    record, _ = records_of(replace(each, samples=[each.samples[0], replace(each.samples[1], chance=0.25)]))
    assert record.chance == 0.375


@pytest.mark.parametrize(
    ("count", "of", "said"), [(0, 7, "0%"), (7, 7, "100%"), (1, 500, "1%"), (499, 500, "99%"), (1, 3, "33%")]
)
def test_a_share_is_nothing_or_all_only_where_it_is(count: int, of: int, said: str) -> None:
    assert format_share(count, of) == said


def probed(method: str, distance: float, failed: str | None = None, length: int = 256) -> FinishedCell:
    measures = {
        "attention_distance": distance,
        "entropy": distance / 100,
        "first_mass": 0.5,
        "resolution": 1 / distance,
    }
    samples = [
        Sample(index=i, cluster=str(i), tokens=length, scores={name: (1 + i) * one for name, one in measures.items()})
        for i in range(3)
    ]
    if failed:
        samples[2] = replace(samples[2], failed=failed, scores={})
    return FinishedCell(cell("resolution", method, length, n=3), samples)


def test_measures_of_attention_have_no_better_side_but_resolution() -> None:
    made = {table.metric: table for table in build_tables([probed("none", 100.0), probed("yarn", 50.0)])}
    assert list(made) == ["resolution", "attention_distance", "entropy", "first_mass"]
    assert {metric: markdown(table).count("**") for metric, table in made.items()} == {
        "resolution": 2,
        "attention_distance": 0,
        "entropy": 0,
        "first_mass": 0,
    }
    reach = t.ppf(0.975, 2) * 100 / math.sqrt(3)  # of 100, 200 and 300
    assert cells_of(markdown(made["attention_distance"]))[2] == ["none", f"200 [{200 - reach:.4g}, {200 + reach:.4g}]"]
    assert cells_of(markdown(made["resolution"]))[3][1].startswith("**0.04** [")


def test_a_failed_sample_has_no_measure_and_is_counted() -> None:
    found = {record.metric: record for record in records_of(probed("none", 100.0, failed="not finite"))}
    record = found["attention_distance"]
    assert (record.value, record.n, record.failed, record.interval) == (150.0, 2, 1, "cluster_bootstrap")
    [distance] = [
        table for table in build_tables([probed("none", 100.0, "no")]) if table.metric == "attention_distance"
    ]
    assert "(1) 1 of 3 samples failed, left out of the value\n" in markdown(distance)


def test_a_measure_is_no_proportion() -> None:
    # values 2, 1 and 0 sum to 3 of 3, and are neither right nor wrong
    samples = [
        Sample(index=i, cluster=str(i), tokens=9, scores={"entropy": value}) for i, value in enumerate([1, 2, 0])
    ]
    [record] = records_of(FinishedCell(cell("resolution", "none", 256, n=3), samples))
    reach = t.ppf(0.975, 2) / math.sqrt(3)
    assert (record.value, record.interval) == (1.0, "cluster_bootstrap")
    assert (record.low, record.high) == pytest.approx((1 - reach, 1 + reach))


def test_two_methods_of_one_label_keep_their_rows_at_every_length() -> None:
    found = []
    for right, power in ((1, 0.5), (3, 1.0)):
        for length in (128, 256, 512, 1024):
            made = passkey("mine", length, right)
            identity = {**made.cell.identity, "length": length, "method": {"name": "mine", "power": power}}
            found.append(FinishedCell(cell("passkey", "mine", length, n=4, identity=identity), made.samples))
    [table] = build_tables(found)
    values = [{record.value for record in table.of(parse_label(row))} for row in ("mine", "mine #2")]
    assert values in ([{0.25}, {0.75}], [{0.75}, {0.25}])
    first, second = ("0.5", "1.0") if values[0] == {0.25} else ("1.0", "0.5")
    assert f"mine: power {first}; mine #2: power {second}.  " in markdown(table).splitlines()


def test_rows_that_may_mix_two_states_of_a_method_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    left = passkey("yarn", 256, 1)
    identity = {**left.cell.identity, "attention": {"scale": 2.0}}
    build_tables([left, FinishedCell(cell("passkey", "yarn", 256, n=4, identity=identity), left.samples)])
    assert "cells of yarn on passkey differ in the attention alone" in caplog.text


@pytest.mark.parametrize(
    ("one", "other", "rows"),
    [
        ({"power": 0.5}, {"power": 0.25}, 2),  # a yaml's default has changed
        ({"power": 0.5}, {"power": 0.5, "window": 8}, 1),  # a parameter is new
        ({"power": 0.5, "file": "a"}, {"power": 0.5, "file": "b"}, 2),  # the code has changed
    ],
)
def test_a_row_continues_no_other_state_of_its_method(one: dict[str, Any], other: dict[str, Any], rows: int) -> None:
    found = []
    for length, parameters in ((128, one), (256, other)):
        made = passkey("mine", length, 1)
        identity = {**made.cell.identity, "length": length, "method": {"name": "mine", **parameters}}
        found.append(FinishedCell(cell("passkey", "mine", length, n=4, identity=identity), made.samples))
    [table] = build_tables(found)
    assert len(table.methods) == rows


def test_a_cell_without_the_bytes_of_its_texts_has_no_bits_per_byte_and_no_other_number_in_their_place() -> None:
    lost = finished("last_segment", "none", 512, n=8)
    lost = FinishedCell(lost.cell, [replace(sample, bytes=None) for sample in lost.samples])
    whole = finished("last_segment", "ntk", 512, n=8)
    bits = next(table for table in build_tables([lost, whole]) if table.metric == "bits_per_byte")
    nats = sum(float(np.sum(sample.nll, dtype=np.float64)) for sample in whole.samples if sample.nll is not None)
    per_byte = nats / math.log(2) / sum(sample.bytes or 0 for sample in whole.samples)
    _, _, none, ntk = cells_of(markdown(bits))
    assert none == ["none", "no value"]
    assert ntk[1].split()[0] == f"{per_byte:.3f}"
    assert [(each.metric, each.value, each.low, each.uniform) for each in bits.of(parse_label("none"))] == [
        ("bits_per_byte", None, None, None)
    ]


def test_a_table_of_a_server_says_what_cannot_be_judged_of_it(tmp_path: Path) -> None:
    cells = [finished("passkey", "none", length) for length in (256, 512)]
    served = [replace(each, cell=replace(each.cell, backend="openai", kernel="server")) for each in cells]
    for found, said in ((served, True), (cells, False)):
        [text] = {"\n".join(table_grid(table).below) for table in build_tables(found) if table.metric == "accuracy"}
        assert ("cannot be judged without a reference" in text) is said
