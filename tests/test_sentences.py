"""The sentences of results/README.md, docs/reading.md and README are what the committed records give."""

import functools
import json
import re
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest, spearmanr

from lexbench.checkpoints.checkpoint import read_model
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.methods.composition import named_method
from lexbench.report.headline import headline_sentence
from lexbench.stats.gain import nll_drop
from lexbench.stats.headline import build_headlines
from lexbench.stats.records import load_cells
from lexbench.stats.tables import build_tables
from tools import findings, keys_page, lexlet_keys, recompute
from tools.keep_records import read_records
from tools.keep_samples import read_cells

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "results" / "reference"
LONG = 2048
"""Tokens: eight times the trained length."""


def read_page(name: str) -> str:
    """Return a page as one line."""
    return " ".join((ROOT / name).read_text().split())


@functools.cache
def keys_found(length: int, metric: str = "accuracy") -> dict[str, int]:
    """Count passkeys of 32, by method; a setting for 8 times the trained length has a label with brackets."""
    found: dict[str, float] = {}
    for row in pq.read_table(REFERENCE / "keys" / "lexlet.parquet", columns=["cell", "scores"]).to_pylist():
        cell = json.loads(row["cell"])
        if cell["length"] == length:
            found[cell["method"]] = found.get(cell["method"], 0.0) + json.loads(row["scores"])[metric]
    return {method: round(each) for method, each in found.items()}


def test_keys_copied_whole_are_those_of_the_records_of_all_methods() -> None:
    records = {
        (str(record.method), record.length): round(record.value * record.n)
        for record in read_records(REFERENCE / "lexlet.parquet")
        if (record.task, record.metric) == ("passkey", "accuracy") and record.value is not None
    }
    assert len(records) == 202
    assert {key: keys_found(key[1])[key[0]] for key in records} == records


@pytest.mark.slow
def test_version_3_of_passkey_has_the_questions_and_answers_of_version_2() -> None:
    assert lexlet_keys.answers_of_both_versions() == (6464, 0)


@functools.cache
def slots_set(method: str) -> frozenset[str]:
    """Name the terms of attention that a method changes at eight times the trained length of lexlet."""
    model = read_model({"path": "lexbench:lexlet", "name": "lexlet"})
    attention = named_method(method).attention(model, LONG)
    plain = Attention()
    return frozenset(
        each.name for each in fields(attention) if getattr(attention, each.name) is not getattr(plain, each.name)
    )


def changes_frequencies_alone(method: str) -> bool:
    return "inv_freq" in slots_set(method) <= {"inv_freq", "scale"}


def test_methods_that_find_more_than_a_window_remap_distances() -> None:
    found = keys_found(LONG)
    chosen = keys_found(LONG, "chosen")
    names = sorted(name for name in registry.registered_names("method") if name in found)
    assert len(names) == 39
    window = found["sliding_window"]
    reaching = [name for name in names if found[name] > window]
    alone = [name for name in names if changes_frequencies_alone(name)]
    said = read_page("results/README.md")
    low, high = (pick(found[name] for name in reaching) for pick in (min, max))
    assert all("remap" in slots_set(name) for name in reaching) and len(reaching) == 6
    assert f"a window copies and chooses the {window} that stand inside it" in said
    assert f"Six methods copy more than a window, {low} to {high}; all six remap distances, and choose 31 or 32" in said
    assert set(reaching) == set(findings.REMAPPED) and {chosen[name] for name in reaching} == {31, 32}
    assert len(alone) == 20 and max(found[name] for name in alone) == 1
    assert (min(chosen[name] for name in alone), max(chosen[name] for name in alone)) == (0, 31)
    assert "The 20 that change frequencies alone copy at most 1 and choose 0 to 31" in said
    assert "remap" in slots_set("string") and chosen["string"] == 1


def test_methods_that_hide_text_choose_the_keys_that_they_leave() -> None:
    found = keys_found(LONG, "chosen")
    masked = {name for name in registry.registered_names("method") if name in found and "mask" in slots_set(name)}
    assert masked == set(recompute.HIDING) and {found[name] for name in masked} == {4} == {keys_found(LONG)["bca"]}


def test_methods_that_write_no_number_choose_the_right_key() -> None:
    rows = pq.read_table(REFERENCE / "keys" / "lexlet.parquet", columns=["cell", "output"]).to_pylist()
    for method in findings.SILENT:
        cells = [(json.loads(row["cell"]), row["output"]) for row in rows if f'"{method}"' in row["cell"]]
        written = [output for cell, output in cells if (cell["method"], cell["length"]) == (method, LONG)]
        assert len(written) == 32 and not any(letter.isdigit() for output in written for letter in output)
        assert keys_found(LONG, "chosen")[method] == 31


def test_more_than_a_guess_is_what_scipy_says() -> None:
    found = keys_found(LONG, "chosen")
    p = [binomtest(each, 32, 1 / 32, alternative="greater").pvalue for each in found.values()]
    for each in (0, 4, 5, 31):
        exact = binomtest(each, 32, 1 / 32, alternative="greater").pvalue
        assert recompute.tail_of_guesses(each, 32, 1 / 32) == pytest.approx(exact)
    ranked = sorted(p)
    rejected = 0
    while ranked[rejected] <= 0.05 / (len(ranked) - rejected):  # Holm's steps
        rejected += 1
    assert f"{rejected} of {len(p)} methods choose more than a guess" in read_page("results/README.md")


@pytest.mark.slow
def test_three_methods_of_frequencies_alone_have_many_digits_in_place() -> None:
    lexlet = lexlet_keys.Lexlet()
    alone = {name: lexlet.count("digits in place", name) for name in lexlet.methods if changes_frequencies_alone(name)}
    assert tuple(sorted((name for name in alone if alone[name] > 3), key=lambda each: -alone[each])) == findings.GARBLED


def test_one_setting_for_all_texts_costs_keys_on_short_ones() -> None:
    short = keys_found(256)
    settings = {label.partition("(")[0]: found for label, found in short.items() if "(" in label}
    alone = {name: found for name, found in settings.items() if changes_frequencies_alone(name)}
    remapped = {name: found for name, found in settings.items() if "remap" in slots_set(name)}
    assert short["none"] == 32
    assert (len(alone), sum(32 - found >= 24 for found in alone.values())) == (12, 9)
    kept = {name: found for name, found in alone.items() if 32 - found < 24}
    assert kept == {"longrope": 32, "longrope2": 32, "llama3": 27}
    chosen = {label.partition("(")[0]: each for label, each in keys_found(256, "chosen").items() if "(" in label}
    assert len(remapped) == 5 and set(remapped.values()) == {32} == {chosen[name] for name in remapped}
    assert {name: chosen[name] for name in findings.LOSING} == {"pi": 1, "ntk_mixed": 12, "yarn_paper": 23}
    rest = sorted(chosen[name] for name in alone if name not in findings.LOSING)
    assert (len(rest), rest[0], rest[-1]) == (9, 26, 32)
    said = read_page("results/README.md")
    assert "Of the twelve methods of frequencies alone with such a setting nine lose 75 points or more" in said
    assert f"yarn with factor 8 copies {settings['yarn']}, chooses {chosen['yarn']}" in read_page("README.md")


@pytest.mark.slow
def test_the_sentences_and_the_table_of_keys_are_what_the_samples_give() -> None:
    for page, text in findings.pages().items():
        assert page.read_text() == text, f"write it anew: python tools/findings.py ({page.name})"


@pytest.mark.slow
def test_loss_and_keys_agree_over_all_methods_as_scipy_computes_it() -> None:
    lexlet = lexlet_keys.Lexlet()
    records = {
        str(each.method): each.value
        for each in read_records(REFERENCE / "lexlet.parquet")
        if (each.task, each.metric, each.length, each.part) == ("last_segment", "nll", LONG, None)
        and each.value is not None
    }
    assert records.keys() == set(lexlet.compared)
    near = tuple(sorted(name for name, loss in records.items() if loss <= min(records.values()) + 0.3))
    assert near == lexlet.near and len(near) == 13
    for metric, score, expected in (("chosen", "chosen", (0.59, -0.49)), ("copied whole", "accuracy", (0.76, 0.08))):
        for methods, value in zip((lexlet.compared, lexlet.near), expected, strict=True):
            keys = keys_found(LONG, score)
            told = -spearmanr([records[each] for each in methods], [keys[each] for each in methods]).statistic
            assert recompute.agreement(metric, methods).value == pytest.approx(told) == pytest.approx(value, abs=0.005)


@pytest.mark.slow
def test_predictions_are_judged_by_their_intervals() -> None:
    """By hand: Wilson's interval of 32 in 32 begins at 0.893, below 29 / 32; of 24 at 0.579, above a half."""
    verdicts = [row[-1] for row in keys_page.prediction_rows(lexlet_keys.Lexlet())]
    unsure, fails = "cannot be told", "cannot be told (methods drawn), does not hold (questions drawn)"
    assert verdicts == [unsure, unsure, "holds", "holds", unsure, unsure, unsure, "holds", "holds", fails, fails]


def test_the_figure_is_described_by_its_ends() -> None:
    whole, chosen = keys_found(LONG), keys_found(LONG, "chosen")
    said = [f"{chosen[name]} and {whole[name]}" for name in ("yarn", "rerope")]
    assert f"keys chosen and copied whole of 32: yarn {said[0]}, rerope {said[1]}." in read_page("README.md")


@pytest.mark.slow
def test_digits_in_place_of_yarn_at_eight_times_the_length_are_counted_digit_by_digit() -> None:
    """Every answer holds one number of five digits first, so its digits are compared one by one."""
    rows = [
        row
        for row in pq.read_table(REFERENCE / "samples" / "lexlet.parquet").to_pylist()
        if "passkey" in row["cell"]
        and '"method": "yarn", ' in row["cell"]
        and f'"length": {LONG}, "method"' in row["cell"]
    ]
    assert len(rows) == 32
    written = [re.findall("[0-9]{5}", row["output"])[0] for row in rows]
    right = sum(
        one == other
        for row, text in zip(rows, written, strict=True)
        for one, other in zip(row["expected"][0], text, strict=True)
    )
    assert right == 84 == lexlet_keys.Lexlet().count("digits in place", "yarn")


@pytest.mark.slow
def test_the_headline_of_all_methods_is_what_their_samples_give() -> None:
    cells = read_cells(REFERENCE / "samples" / "lexlet.parquet")
    [found] = build_headlines(build_tables(cells), {each.cell.id: each.samples for each in cells})
    assert headline_sentence(found) in (REFERENCE / "leaderboard.md").read_text()


@pytest.mark.slow
def test_the_pair_of_yarn_and_rerope_is_as_compare_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(REFERENCE / "lexlet")
    assert main.main(["compare", folder, folder, "--a", "method=yarn", "--b", "method=rerope"]) == 0
    printed = capsys.readouterr().out
    assert "| 2048 (8x)  | 3.700 | 3.707 | +0.007 [-0.068, +0.082] |" in printed
    assert "one of 0.24 nats shared by all texts would have been found" in printed
    assert "| 2048 (8x)  |   3.1 |  84.4 |  +81.2* [+61.5, +91.1] |  <0.0001 |" in printed
    found = keys_found(LONG)
    for page in ("results/README.md", "docs/reading.md"):
        said = read_page(page)
        assert "choose 24 and 32 of 32 keys" in said
        assert f"copy {found['yarn']} and {found['rerope']} whole" in said
        assert "+0.007 [-0.068, +0.082]" in said and "0.24 nats" in said and "+61.5, +91.1]" in said


@pytest.mark.slow
def test_more_context_inside_the_trained_length_gains_nothing_on_this_text() -> None:
    """The control of the sentence on cutting; the other figures stand in the tables of reference/leaderboard.md."""
    finished = load_cells([REFERENCE / "lexlet"]).finished
    samples = {each.cell.id: each.samples for each in finished}
    [table] = [each for each in build_tables(finished) if each.metric == "nll"]
    control = nll_drop(table, samples, (BASELINE_METHOD, 128), (BASELINE_METHOD, 256))
    assert control is not None and control.low is not None and control.high is not None and control.p is not None
    shown = f"{control.value:+.3f} [{control.low:+.3f}, {control.high:+.3f}]"
    leaderboard = (REFERENCE / "leaderboard.md").read_text().partition(" on stories260K")[0]
    gains = {row[1].strip(): row[2].strip() for line in leaderboard.splitlines() if len(row := line.split("|")) == 7}
    best = max(gains, key=lambda method: float(gains[method].split()[0]) if "[" in gains[method] else -1.0)
    assert (best, gains[best]) == ("bca", "+0.001 [-0.002, +0.004]")
    for page in ("results/README.md", "docs/reading.md"):
        said = read_page(page).replace("] nats", "]").replace(" nats [", " [")
        assert shown in said and f"p = {control.p:.2f}" in said and "bca, +0.001 [-0.002, +0.004]" in said


MAX_WORDS_OF_README = 500
"""Of its first screen, the figure's description and commands included."""


def test_the_first_screen_of_readme_is_short() -> None:
    shown = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    before, map_of_pages, _ = shown.partition("## Where to go")
    assert map_of_pages and len(before.split()) <= MAX_WORDS_OF_README


STORED_WORDS = ("one window, no stride; NLL in nats",)
"""Words of protocol lines, which stand in the records that pages of results show."""


@pytest.mark.parametrize(
    "old",
    [
        "No gain from context beyond",
        "Price: the method minus the unmodified model",
        "claimed: an interval above 0",
        "one window, no stride; NLL in nats",
        "cannot be told from rerope, none",
        "Floors on the same targets",
        "HELD: ",
        "1= of ",
        "closest is streaming_llm",
        "positive is good in README",
    ],
)
def test_no_page_has_the_words_that_a_reader_did_not_understand(old: str) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if old not in STORED_WORDS:
        pages += sorted((ROOT / "results").rglob("*.md"))
    assert [page.name for page in pages if old in " ".join(page.read_text().split())] == []
