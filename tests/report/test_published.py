"""Published figures: made from their sources to the last digit, shown under their own protocol."""

import csv
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lexbench.report.leaderboard import published as module
from lexbench.report.leaderboard.published import (
    PublishedTable,
    find_published_tables,
    narrowest_layout,
    published_caption,
)

FOLDER = Path(__file__).parents[2] / "results" / "published"
TABLES = list(csv.DictReader((FOLDER / "tables.csv").open(encoding="utf-8", newline="")))
NAMES = [row["table"] for row in TABLES]


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_published", FOLDER / "make.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def sources(shared: Path) -> Path:
    """The collected tables."""
    found = shared.parent / "reference" / "published"
    if not found.is_dir():
        pytest.skip("no collected tables here")
    return found


def one(name: str) -> PublishedTable:
    [found] = find_published_tables([name])
    return found


def cells(name: str) -> dict[tuple[str, str], str]:
    """The shown table, by the labels of a row and the head of a column."""
    text = narrowest_layout(one(name))
    return {
        (" ".join(map(str, row[: text.labels])), head): str(value)
        for row in text.rows
        for head, value in zip(text.head[text.labels :], row[text.labels :], strict=True)
    }


def test_the_figures_are_made_from_their_sources(make: ModuleType, sources: Path) -> None:
    found = make.figures(sources)
    assert {path.name for path in FOLDER.glob("*.csv")} == {*found, "tables.csv"}
    assert {name: (FOLDER / name).read_text(encoding="utf-8") for name in found} == found
    assert make.readme(found) == (FOLDER / "README.md").read_text(encoding="utf-8")


def test_no_figure_of_the_sources_is_lost_or_changed(sources: Path) -> None:
    # Another route than make.py: the multiset of numbers by table
    named = {row["of"]: row["table"] for row in TABLES}
    theirs: dict[str, list[float]] = {}
    for file in sources.glob("*.csv"):
        for row in csv.DictReader(file.open(encoding="utf-8", newline="")):
            bound = re.match(r">(\d+)(?:\^(\d+))?", row["flag"])
            limit = int(bound[1]) ** int(bound[2] or 1) if bound else -1
            theirs.setdefault(named[row["table_id"]], []).append(float(row["value"] or limit))
    ours = {name: [float(figure.value or figure.above or -1) for figure in one(name).figures] for name in NAMES}
    assert {name: sorted(values) for name, values in ours.items()} == {name: sorted(v) for name, v in theirs.items()}
    assert sum(map(len, ours.values())) == 2906


def test_figures_stand_where_the_papers_have_them() -> None:
    # YaRN Table 2 and Su's article 9708, as collected
    yarn = cells("yarn-2")
    assert yarn["Llama-2-7B YaRN s=32", "131072"] == "2.37"
    assert yarn["Llama-2-7B PI (Together 32k)", "65536"] == ">100"
    assert yarn["Llama-2-13B YaRN s=16", "98304"] == ">10"
    su = cells("su-9708")
    assert su["ReRoPE-w256-logn", "blog corpus, not repeated 4096"] == "49.07"
    assert su["Baseline", "blog corpus, repeated 4096"] == "24.17"
    # bojone/rerope's README: the same last 4096 tokens
    assert [cells("rerope-readme")["RoPE", str(length)] for length in (4096, 8192)] == ["1.4967", "8.8615"]
    assert cells("rerope-readme")["ReRoPE-w1024", "16384"] == "1.4001"
    assert cells("rerope-readme")["NTK-RoPE(static)", "16384"] == "1.5163"
    assert cells("coca-1")["350M from scratch ALiBi 512", "16384"] == "out of memory"
    # where two tables of one paper disagree, both figures stand, and the table says so
    assert cells("lceg-1")["PI 32768", "PG-19 perplexity 32768"] == "5.85"
    assert cells("lceg-2")["PI 32768", "PG-19 32768"] == "5.95"
    assert "5.95" in one("lceg-1").note


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("4096", ("4096", "", "")),
        ("512(train)", ("512", "", "")),
        ("4096(non-repeated)", ("4096", "", ", not repeated")),
        ("64k", ("65536", "", "")),
        ("1M", ("1048576", "", "")),
        ("25k", ("", "25k", "")),
        ("112k", ("", "112k", "")),
        ("4K-128K", ("", "4K-128K", "")),
        ("<=64k", ("", "up to 64k", "")),
        ("avg", ("", "mean", "")),
        ("-", ("", "", "")),
    ],
)
def test_lengths_are_whole_tokens_only_where_they_are_known(
    make: ModuleType, printed: str, expected: tuple[str, str, str]
) -> None:
    assert make._length(printed) == expected


def test_what_no_rule_knows_is_an_error(make: ModuleType, tmp_path: Path) -> None:
    head = "table_id,dataset,model,method,train_len,eval_len,metric,value,flag,source\n"
    for row in (
        "unknown,d,m,none,1,2,ppl,3,,s",
        "YaRN-T1,d,m,none,1,2,odd,3,,s",
        "YaRN-T1,d,m,none,1,2,ppl,3,news,s",
    ):
        (tmp_path / "a.csv").write_text(head + row + "\n")
        with pytest.raises(KeyError):
            make.figures(tmp_path)
    (tmp_path / "a.csv").write_text(head + "YaRN-T1,d,m,none,1,2,ppl,,,s\n")
    with pytest.raises(ValueError, match="without a value and without a reason"):
        make.figures(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_a_source_a_protocol_and_figures_that_are_all_shown(name: str) -> None:
    table = one(name)
    assert table.source and table.protocol and table.figures
    assert all(figure.shown and figure.metric and (figure.model or figure.method) for figure in table.figures)
    assert (
        ("not read in the original" in published_caption(table)[0]) == table.secondary == ("by others" in table.source)
    )
    text = narrowest_layout(table)
    assert all(len(row) == len(text.head) for row in text.rows)
    shown = [re.sub(r" \(\d+\)$", "", str(part)) for row in text.rows for part in row[text.labels :] if part]
    assert sorted(shown) == sorted(figure.shown for figure in table.figures)
    assert len(text.head) <= 21


def test_notes_on_single_figures_are_shown() -> None:
    text = narrowest_layout(one("giraffe-wikiqa"))
    assert text.below == ["(1) scale 8"]
    assert sum(str(part).endswith("(1)") for row in text.rows for part in row) == 4


def test_an_unknown_table_names_the_nearest_and_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown published table 'yarn2': did you mean yarn-2") as raised:
        find_published_tables(["yarn-1", "yarn2"])
    assert all(name in str(raised.value) for name in NAMES)


def test_an_installation_without_tables_says_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHED_FOLDERS", (tmp_path / "inside", tmp_path / "beside"))
    assert find_published_tables([]) == []
    with pytest.raises(ValueError, match=r"not part of this installation: .*beside is missing, use a checkout"):
        find_published_tables(["yarn-1"])
