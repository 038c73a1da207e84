"""The sentences of results/README.md, docs/reading.md and README are what the committed records give."""

import functools
import re
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

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
from tools import findings
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
def keys_found(length: int) -> dict[str, int]:
    """Count passkeys found of 32, by method; a setting for 8 times the trained length has a label with brackets."""
    return {
        str(record.method): round(record.value * record.n)
        for record in read_records(REFERENCE / "lexlet.parquet")
        if (record.task, record.metric, record.length) == ("passkey", "accuracy", length) and record.value is not None
    }


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
    names = sorted(
        name for name in registry.registered_names("method") if name in found
    )  # those that are younger are not measured
    window = found["sliding_window"]
    reaching = [name for name in names if found[name] > window]
    alone = [name for name in names if changes_frequencies_alone(name)]
    said = read_page("results/README.md")
    low, high = (pick(found[name] for name in reaching) for pick in (min, max))
    assert all("remap" in slots_set(name) for name in reaching) and len(reaching) == 6
    assert (
        f"A window copies the {window} of 32 keys that stand inside it; six methods copy more, {low} to {high}" in said
    )
    assert set(reaching) == set(findings.REMAPPED)
    assert len(alone) == 20 and max(found[name] for name in alone) == 1
    assert "The 20 methods that change frequencies alone copy at most 1" in said
    assert all("remap" in slots_set(name) and found[name] == 0 for name in ("string", "jet_long"))


@pytest.mark.slow
def test_three_methods_of_frequencies_alone_have_many_digits_in_place() -> None:
    lexlet = findings.Lexlet()
    alone = [name for name in lexlet.methods if changes_frequencies_alone(name)]
    garbling = sorted((name for name in alone if lexlet.digits(name) > 3), key=lexlet.digits, reverse=True)
    said = read_page("results/README.md")
    assert tuple(garbling) == findings.GARBLED and len(alone) == 20
    assert "of the other 17 of them at most 3 digits of 160 are in place" in said
    assert all(lexlet.digits(name) == 0 for name in ("string", "jet_long"))


def test_one_setting_for_all_texts_costs_keys_on_short_ones() -> None:
    short = keys_found(256)
    settings = {label.partition("(")[0]: found for label, found in short.items() if "(" in label}
    alone = {name: found for name, found in settings.items() if changes_frequencies_alone(name)}
    remapped = {name: found for name, found in settings.items() if "remap" in slots_set(name)}
    assert short["none"] == 32
    assert (len(alone), sum(32 - found >= 24 for found in alone.values())) == (12, 9)
    kept = {name: found for name, found in alone.items() if 32 - found < 24}
    assert kept == {"longrope": 32, "longrope2": 32, "llama3": 27}
    assert len(remapped) == 4 and set(remapped.values()) == {32}
    said = read_page("results/README.md")
    assert "Of the twelve methods of frequencies alone with such a setting nine lose 75 points or more" in said
    assert f"yarn with factor 8 copies {settings['yarn']} of 32 keys" in read_page("README.md")


@pytest.mark.slow
def test_the_sentences_and_the_table_of_keys_are_what_the_samples_give() -> None:
    for page, text in findings.pages().items():
        assert page.read_text() == text, f"write it anew: python tools/findings.py ({page.name})"


@pytest.mark.slow
def test_loss_and_keys_agree_over_all_methods_as_scipy_computes_it() -> None:
    lexlet = findings.Lexlet()
    for methods, expected in ((lexlet.methods, 0.76), (lexlet.near, 0.08)):
        loss, keys = [lexlet.loss(each) for each in methods], [lexlet.whole(each) for each in methods]
        found = findings.agreement(methods).value
        assert found == pytest.approx(-spearmanr(loss, keys).statistic) == pytest.approx(expected, abs=0.005)
    assert (len(lexlet.methods), len(lexlet.near)) == (37, 13)


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
    assert right == 84 == findings.Lexlet().digits("yarn")


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
    assert "one of up to 0.166 nats may be missed" in printed
    assert "| 2048 (8x)  |   3.1 |  84.4 |  +81.2* [+61.5, +91.1] |  <0.0001 |" in printed
    found = keys_found(LONG)
    for page in ("results/README.md", "docs/reading.md"):
        said = read_page(page)
        assert f"{found['yarn']} and {found['rerope']} of 32 keys" in said
        assert "+0.007 [-0.068, +0.082]" in said and "0.166 nats" in said and "+61.5, +91.1]" in said


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
