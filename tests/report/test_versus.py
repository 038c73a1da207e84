"""`versus`: a method against each other one, by the paired test with Holm's correction, under its display name."""

import re
from pathlib import Path
from typing import Any

import pytest

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD, parse_label
from lexbench.core.record import Sample
from lexbench.report.rivals import lead_sentences
from lexbench.report.tables import headline_tables
from lexbench.report.versus import Versus, check_name, write_versus
from lexbench.stats.differences import leads, paired_differences
from lexbench.store.format import FinishedCell
from tests.report import outcomes
from tests.report.fake_run import keep
from tests.report.outcomes import asked, refused, right

DCA = parse_label("dca")


def answers(method: str, scores: list[float], **changed: Any) -> FinishedCell:
    """Answers under an attention of the method's own: equal ones are not compared."""
    return outcomes.answers(method, scores, identity={"attention": {"scale": method}}, **changed)


def texts(method: str, losses: list[float]) -> FinishedCell:
    return outcomes.texts(method, losses, identity={"attention": {"scale": method}})


def versus(folder: Path, cells: list[FinishedCell], name: str | None = None) -> Versus:
    keep(folder, cells)
    return write_versus(folder, {each.cell.id for each in cells}, DCA, folder / "versus", name)


def said(cells: list[FinishedCell]) -> str:
    """The sentences of the one table of these cells."""
    [table] = [each for each in headline_tables(cells) if each.metric != "perplexity"]
    found = leads(table, {each.cell.id: each.samples for each in cells}, DCA)
    assert found is not None
    return "\n".join(lead_sentences(found))


def test_a_lead_is_above_zero_where_the_method_is_better_whatever_the_metric() -> None:
    """Texts: 3 - 2 = 1 nat less than the other. Answers: 16 of 16 against 8 of 16 are 50 points."""
    for cells, lead in (
        ([texts("dca", [2.0] * 16), texts("yarn", [3.0] * 16)], 1.0),
        ([answers("dca", right(16, 16)), answers("yarn", right(8, 16))], 50.0),
    ):
        table = next(each for each in headline_tables(cells) if each.metric != "perplexity")
        samples = {each.cell.id: each.samples for each in cells}
        found = leads(table, samples, DCA)
        assert found is not None
        [entry] = found.entries.values()
        assert entry.difference == pytest.approx(lead) and entry.significant
        assert entry.low is not None and entry.high is not None and entry.low <= lead <= entry.high
        # Seen from the other side: its difference to this method, of the same p, with the interval of the same width.
        back = paired_differences(table, samples, DCA)
        assert back is not None
        [other] = back.entries.values()
        assert (other.p, other.p_holm) == (entry.p, entry.p_holm)
        assert (other.high or 0.0) - (other.low or 0.0) == pytest.approx(entry.high - entry.low)


def test_each_rival_has_a_verdict_and_all_share_one_correction() -> None:
    """Of C answers that differ to one side sign flips have p = 2^(1-C): 6 of them tell alone, and not beside 5."""
    cells = [answers("dca", right(16, 32)), answers("none", right(0, 32))]
    cells += [answers("yarn", right(32, 32)), answers("ntk", right(10, 32))]
    text = said(cells)
    assert re.search(
        r"dca is better than the unmodified model in passkey at 512 tokens \(2x\): \+50\.0 \[.*?\] points, 32", text
    )
    assert "dca is worse than yarn in passkey at 512 tokens (2x): -50.0 [" in text
    # 2^(1-6) = 0.031 alone, and the largest of three p-values keeps its own: told. With a fourth rival it is not.
    assert "cannot be told" not in text and "better than ntk in passkey at 512 tokens (2x): +18.8" in text
    wider = said([*cells, answers("pi", right(11, 32))])  # 5 differ: 0.0625; so Holm doubles ntk's 0.031
    line = next(each for each in wider.splitlines() if "from ntk" in each)
    more = re.fullmatch(
        r"dca cannot be told from ntk .*: \+18\.8 \[.*\] points, 32 texts; about (\d+) more would decide\.", line
    )
    assert more is not None and 8 <= int(more[1]) <= 60


def test_an_interval_that_excludes_zero_never_stands_without_its_reason() -> None:
    """Four questions allow no p below 1/8, whatever they answer."""
    text = said([answers("dca", right(4, 4)), answers("none", right(0, 4))])
    # From 6 on 2^(1-C) is below 0.05.
    assert re.search(r"cannot be told from the unmodified model .*: \+100\.0 \[.*, 4 texts; about 2 more would", text)


def test_a_rival_without_a_value_is_named_with_the_reason() -> None:
    text = said([answers("dca", right(8, 8)), refused("yarn", reason="out of memory"), answers("ntk", right(0, 8))])
    assert "better than ntk in passkey at 512 tokens (2x): +100.0" in text
    assert "dca is not compared with yarn in passkey at 512 tokens (2x): refused: out of memory." in text
    assert "dca has no value (too short)" in said([refused("dca", reason="too short"), answers("ntk", right(0, 8))])


@pytest.mark.slow
def test_each_seed_has_its_own_verdict(tmp_path: Path) -> None:
    """All of 16 against none: better under one seed, worse under the other."""
    hits = {("dca", 0): 16, ("none", 0): 0, ("dca", 1): 0, ("none", 1): 16}
    found = versus(tmp_path, [answers(name, right(of, 16), seed=seed) for (name, seed), of in hits.items()])
    assert "passkey (seed 0) at 512 tokens (2x): dca has 1.00 [0.81, 1.00] copied whole." in found.text
    for seed, word in enumerate(("better", "worse")):
        assert f"dca is {word} than the unmodified model in passkey (seed {seed}) at 512 tokens (2x)" in found.text


@pytest.mark.slow
def test_the_display_name_stands_everywhere_and_a_terminal_gets_no_headings_of_markdown(tmp_path: Path) -> None:
    cells = [answers("dca", right(16, 16)), answers("none", right(0, 16)), answers("yarn", right(0, 16))]
    found = versus(tmp_path, cells, "CosRamp_2 (ours)")
    assert not re.search(r"^#|!\[|dca", found.text, re.MULTILINE), found.text
    assert "CosRamp_2 (ours) has 1.00" in found.text
    assert [file.name for file in found.files] == ["versus.md", "versus.svg", "versus.pdf", "versus.tex"]
    page, drawn, _, table = found.files
    assert "# CosRamp_2 (ours) against others on lexlet" in page.read_text() and "dca" not in page.read_text()
    assert "CosRamp_2 (ours)" in drawn.read_text()
    latex = table.read_text()
    caption = re.search(r"\\caption\{(.*)\}", latex)
    assert caption is not None and "dca" not in latex
    for part in ("CosRamp\\_2 (ours)", "16 samples a cell", "$\\uparrow$", "95 \\%"):
        assert part in caption[1], part
    assert len(caption[1].split()) <= 60 and "\n% passkey: " in latex and "strict: the key comes first" in latex
    assert "copied whole $\\uparrow$" in latex and "\nYaRN & 0.00* " in latex and "\\textbf{1.00}" in latex


@pytest.mark.slow
def test_a_task_of_several_measures_has_one_sentence(tmp_path: Path) -> None:
    cells = []
    for method, level in {"none": 0.05, "dca": 0.0875}.items():
        scores = {"resolution": level, "attention_distance": 20.0}
        samples = [Sample(index=each, cluster=str(each), tokens=512, scores=scores) for each in range(2)]
        cells.append(FinishedCell(asked("passkey", method, 512, 2), samples))
    text = versus(tmp_path, cells).text
    assert len(re.findall("^passkey at .*dca has 0.0875 \\[0.0875, 0.0875\\]", text, re.MULTILINE)) == 1
    assert re.search("from the unmodified model in passkey .*: \\+0.0375", text)


@pytest.mark.parametrize(("name", "why"), [("", "in one line"), ("a\nb", "in one line"), ("yarn", "another method")])
def test_a_wrong_display_name_is_one_line(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_name(name, [BASELINE_METHOD, parse_label("yarn(factor=8.0)")])


@pytest.mark.slow
def test_the_figure_shows_what_the_sentences_say_and_the_table_has_prices(tmp_path: Path) -> None:
    """All of 16 against 8 at 512: the unmodified model minus dca is -50 points. At T both lose 4 of 16 as deployed."""
    cells = [
        answers(name, right(hits, 16), length=at)
        for name, at, hits in (("none", 256, 16), ("none", 512, 8), ("dca", 256, 12), ("dca", 512, 16))
    ]
    page, drawn, _, table = versus(tmp_path, cells).files
    assert "better than dca by: copied whole" in re.sub(r"\s+", " ", drawn.read_text())
    rows = [line for line in table.read_text().splitlines() if line.startswith(("method &", "DCA &"))]
    assert rows[0].startswith("method & 256 & 512 & price") and rows[1].startswith(
        "DCA & 0.75 & \\textbf{1.00} & -25.0"
    )
    assert "about" not in page.read_text() or "more would decide" in page.read_text()
