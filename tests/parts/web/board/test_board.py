"""The board: numbers recomputed from samples, tampering found, a site that shows both."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lexbench.commands import main
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.parts.web.board import audit, ledger
from lexbench.parts.web.board.board import update_board
from lexbench.parts.web.board.site import write_site
from lexbench.stats import records
from lexbench.stats.records import records_of
from lexbench.store import format
from lexbench.store.format import FinishedCell

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REFERENCE = Path(__file__).parents[4] / "results" / "reference" / "lexlet"


def copied(
    folder: Path, tasks: tuple[str, ...] = ("passkey", "last_segment"), methods: tuple[str, ...] = ("yarn",)
) -> Path:
    """A run folder with some of the committed cells."""
    (folder / "cells").mkdir(parents=True)
    for row in (each.as_row() for each in records.build_records([REFERENCE])):
        if row["task"] in tasks and row["method"] in methods and row["length"] >= 512:
            shutil.copy(REFERENCE / "cells" / f"{row['cell']}.parquet", folder / "cells")
    return folder


@pytest.fixture(scope="module")
def admitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with one submission of six cells."""
    folder = tmp_path_factory.mktemp("ledger")
    copied(folder / "first")
    update_board(folder, add=folder / "first", by="us")
    return folder


@pytest.fixture
def board(admitted: Path, tmp_path: Path) -> Path:
    """Its copy, to be changed."""
    return Path(shutil.copytree(admitted, tmp_path / "ledger"))


def audited(board: Path) -> audit.AuditedBoard:
    return audit.audit_submissions(board, ledger.read_ledger(board))


def rewritten(file: Path, change: Callable[[Sample], Sample]) -> None:
    """Change every sample, with checksums that hold."""
    finished = format.read_cell_file(file)
    file.write_bytes(format.cell_parquet(finished.cell, [change(each) for each in finished.samples], finished.refused))


def file_of(folder: Path, task: str, length: int) -> Path:
    [found] = [
        file
        for file in (folder / "cells").glob("*.parquet")
        if (format.read_cell_file(file).cell.task, format.read_cell_file(file).cell.length) == (task, length)
    ][:1]
    return found


def test_an_honest_submission_is_shown_with_the_numbers_of_the_report(board: Path) -> None:
    found = audited(board)
    assert not found.refused and not any(each.marks for each in found.entries)
    expected = {(each.cell, each.metric): each for each in records.build_records([board / "first"])}
    shown = {each.checked.cell.id: each.checked.record for each in found.entries}
    assert len(shown) == 6
    assert all(expected[cell, record.metric] == record for cell, record in shown.items())
    assert {record.metric for record in shown.values()} == {"accuracy", "nll"}


@pytest.mark.everyday("changed")
@pytest.mark.parametrize("what", ["changed", "missing", "added"])
def test_what_changes_after_the_admission_is_refused(board: Path, what: str) -> None:
    file = file_of(board / "first", "last_segment", 512)
    if what == "changed":
        rewritten(file, lambda each: replace(each, nll=None if each.nll is None else each.nll * np.float32(0.99)))
    elif what == "missing":
        file.unlink()
    else:
        shutil.copy(file, file.with_name("0123456789abcdef.parquet"))
    [finding] = audited(board).refused
    words = {"changed": "changed since", "missing": "missing", "added": "not in the ledger"}
    assert words[what] in finding.why


@pytest.mark.slow
def test_a_run_folder_that_has_grown_is_admitted_again_with_its_new_cells_alone(board: Path) -> None:
    run, old = board / "first", {file.stem for file in (board / "first/cells").glob("[!.]*")}
    with pytest.raises(ValueError, match="first holds no new finished cell"):
        update_board(board, add=run, by="us", name="more")
    copied(board / "other", methods=("none",))
    new = {file.stem for file in (board / "other/cells").glob("[!.]*")}
    shutil.copytree(board / "other/cells", run / "cells", dirs_exist_ok=True)
    update_board(board, add=run, by="us", name="more")
    first, second = ledger.read_ledger(board)
    assert (set(first.cells), set(second.cells)) == (old, new)
    found = audited(board)
    assert not found.refused
    assert {each.checked.cell.id: each.submission.name for each in found.entries} == dict.fromkeys(
        old, "first"
    ) | dict.fromkeys(new, "more")
    shutil.copy(file_of(run, "passkey", 1024), run / "cells/0123456789abcdef.parquet")
    assert [(each.submission, each.cell) for each in audited(board).refused] == [("more", "0123456789abcdef")]


def test_a_line_of_the_ledger_cannot_be_changed_unnoticed(board: Path) -> None:
    copied(board / "second", methods=("none",))
    update_board(board, add=board / "second", by="them")
    text = (board / ledger.LEDGER_FILE_NAME).read_text()
    (board / ledger.LEDGER_FILE_NAME).write_text(text.replace('"by": "us"', '"by": "me"'))
    with pytest.raises(ValueError, match="was changed at line 1"):
        ledger.read_ledger(board)


@pytest.mark.parametrize("old", ['"us"', '"2026-', '"first"'])
def test_an_edit_of_the_last_line_is_found(board: Path, old: str) -> None:
    text = (board / ledger.LEDGER_FILE_NAME).read_text()
    assert text.count("\n") == 1 and old in text
    (board / ledger.LEDGER_FILE_NAME).write_text(text.replace(old, old.replace("2", "3").replace("s", "t")))
    with pytest.raises(ValueError, match="was changed at line 1: restore the line"):
        ledger.read_ledger(board)


def test_lines_without_a_seal_are_read_and_the_next_one_holds_them(board: Path) -> None:
    [line] = map(json.loads, (board / ledger.LEDGER_FILE_NAME).read_text().splitlines())
    del line["seal"]
    (board / ledger.LEDGER_FILE_NAME).write_text(f"{json.dumps(line, sort_keys=True)}\n")
    assert ledger.read_ledger(board)[0].seal is None
    copied(board / "second", methods=("none",))
    update_board(board, add=board / "second", by="them")
    assert "seal" not in (board / ledger.LEDGER_FILE_NAME).read_text().splitlines()[0]
    first, second = ledger.read_ledger(board)
    assert (first.seal, second) == (None, second.with_seal())


def forged(board: Path, **fields: Any) -> None:
    """Write the ledger's one line with other fields, under a seal that holds."""
    [one] = ledger.read_ledger(board)
    ledger.write_ledger(board, [replace(one, **fields).with_seal()])


@pytest.mark.parametrize("folder", ["../outside", "{0}/outside", "first/../../outside", "link", "."])
def test_a_line_leads_to_no_folder_outside_of_the_ledgers(board: Path, tmp_path: Path, folder: str) -> None:
    (board / "first").rename(tmp_path / "outside")
    (board / "link").symlink_to(tmp_path / "outside")
    forged(board, folder=folder.format(tmp_path))
    if folder == ".":  # its own
        assert {each.why for each in audited(board).refused} == {"missing: the ledger has it"}
        return
    with pytest.raises(ValueError, match=r"has the folder '.*', outside of it at line 1"):
        update_board(board)


@pytest.mark.parametrize("field", ["name", "cells"])
def test_names_of_a_line_are_no_paths(board: Path, field: str) -> None:
    name = "../../elsewhere"
    forged(board, **{field: {name: "0" * 32} if field == "cells" else name})
    with pytest.raises(ValueError, match=rf"has the {field.removesuffix('s')} '{name}' at line 1"):
        update_board(board)


def test_a_submission_with_a_score_that_its_answer_has_not_is_not_admitted(board: Path) -> None:
    second = copied(board / "second", methods=("none",))
    rewritten(file_of(second, "passkey", 2048), lambda each: replace(each, scores={"accuracy": 1.0, "contains": 0.0}))
    before = (board / ledger.LEDGER_FILE_NAME).read_bytes()
    with pytest.raises(
        ValueError, match=r"1 cell of .*second cannot be admitted.*accuracy 1.0, where its answer has 0"
    ):
        update_board(board, add=second, by="them")
    assert (board / ledger.LEDGER_FILE_NAME).read_bytes() == before


def test_the_same_cell_measured_elsewhere_is_ranked_if_its_answers_agree_and_marked_if_not(board: Path) -> None:
    second = copied(board / "second", tasks=("last_segment",))
    rewritten(file_of(second, "last_segment", 512), lambda each: replace(each, nll=each.nll + np.float32(0.005)))  # type: ignore[operator]
    rewritten(file_of(second, "last_segment", 1024), lambda each: replace(each, nll=each.nll * np.float32(0.9)))  # type: ignore[operator]
    update_board(board, add=second, by="them")
    marks = {
        each.checked.cell.length: each.marks for each in audited(board).entries if each.submission.name == "second"
    }
    assert marks == {512: [], 1024: ["32 of its answers are not those of the same cell of first"], 2048: []}


def test_a_likelihood_without_its_worst_documents_is_not_ranked(board: Path) -> None:
    """The cell is of a method that nobody else has measured: its questions are known, its answers are not."""
    second = copied(board / "second", tasks=("last_segment",), methods=("none",))
    worst_failed(file_of(second, "last_segment", 512))
    update_board(board, add=second, by="them")
    found = [each for each in audited(board).entries if each.submission.name == "second"]
    marks = {each.checked.cell.length: each.marks for each in found}
    assert marks == {512: ["1 of its answers failed, and are left out of its value"], 1024: [], 2048: []}


def test_a_likelihood_of_its_best_targets_is_not_admitted(board: Path) -> None:
    second = copied(board / "second", tasks=("last_segment",), methods=("none",))
    nats(lambda nll: np.sort(nll)[:32])(file_of(second, "last_segment", 512))
    with pytest.raises(ValueError, match="32 targets, though its identity says 64"):
        update_board(board, add=second, by="them")


def test_claims_beside_the_samples_are_compared(board: Path) -> None:
    rows = [each.as_row() for each in records.build_records([board / "first"])]
    [row] = [row for row in rows if row["metric"] == "accuracy" and row["length"] == 2048]
    true, row["value"] = row["value"], 0.99
    (board / "first" / "records.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    marks = [mark for each in audited(board).entries for mark in each.marks]
    assert marks == [f"records.jsonl claims accuracy 0.99, its samples have {true}"]


def test_the_page_shows_what_is_ranked_and_says_what_is_not(board: Path) -> None:
    """Of another submission two cells are marked, and stand in no table but that of their reasons."""
    second = copied(board / "second", tasks=("last_segment",), methods=("none",))
    worst_failed(file_of(second, "last_segment", 512))
    page, notes, refused = update_board(board, add=second, by="them", url="https://example.org/<b>")
    assert notes == ["9 entries of 2 submissions", "1 marked, not ranked"] and not refused
    assert [file.name for file in page.parent.iterdir()] == ["index.html"]
    shown = page.read_text()
    assert "9 cells of 2 submissions, 1 not ranked; 0 refused" in shown and "https://example.org/&lt;b&gt;" in shown
    below = shown[shown.index("<h2>Not ranked</h2>") :]
    assert "none last_segment at 512 on lexlet" in below and "answers failed, and are left out of its value" in below
    assert "<h2>Refused</h2>" not in below
    # 1,024 and 2,048 of the unmodified model are ranked: yarn is better there, and alone at 512.
    assert "Of 1 method, better than the unmodified model at the longest length: 1 in text" in shown


@pytest.mark.slow
def test_the_page_fits_a_phone_and_a_desk(chromium: "Browser", tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copytree(REFERENCE / "cells", tmp_path / "run" / "cells")
    site, *_ = update_board(tmp_path, add=tmp_path / "run", by="us")
    for width in (390, 1400):
        page = chromium.new_page(viewport={"width": width, "height": 900})
        page.goto(site.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        first = page.locator("table").first
        assert first.evaluate("each => each.getBoundingClientRect().top") < 450  # on the first screen
        yarn = first.locator("tr").filter(has_text="yarn")
        assert yarn.count() == 1 and yarn.locator("td.bad").count() == 2  # its price, in loss and in keys
        page.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--add", "first", "--by", "us"], "is in the ledger already"),
        (["--add", "elsewhere", "--by", "us"], "holds no finished cell"),
        (["--add", "first"], "give --by NAME"),
        (["--name", "x"], "give --add RUN"),
        (["--add", "first", "--by", "us", "--name", "a/b"], "must be letters"),
    ],
)
def test_a_wrong_submission_is_refused_in_one_line(
    board: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(board / word) if word in ("first", "elsewhere") else word for word in words]
    assert main.main(["board", str(board), *given]) == 2
    assert said in capsys.readouterr().err


def test_no_ledger_and_a_malformed_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no ledger\.jsonl"):
        ledger.read_ledger(tmp_path)
    (tmp_path / ledger.LEDGER_FILE_NAME).write_text("{}\n")
    with pytest.raises(ValueError, match="cannot be read at line 1"):
        ledger.read_ledger(tmp_path)


# tamperings of thirty kinds


def sample_wise(change: Callable[[Sample], Sample]) -> Callable[[Path], None]:
    return lambda file: rewritten(file, change)


def with_cell(**changed: Any) -> Callable[[Path], None]:
    """Other shown facts under the same identity, with checksums that hold."""

    def change(file: Path) -> None:
        finished = format.read_cell_file(file)
        file.write_bytes(format.cell_parquet(replace(finished.cell, **changed), finished.samples, None))

    return change


def with_identity(part: str, **changed: Any) -> Callable[[Path], None]:
    """Another identity, under the name that is its hash."""

    def change(file: Path) -> None:
        finished = format.read_cell_file(file)
        identity = {**finished.cell.identity, part: {**finished.cell.identity[part], **changed}}
        cell = replace(finished.cell, identity=identity, model=identity["model"]["name"])
        file.with_name(f"{cell.id}.parquet").write_bytes(format.cell_parquet(cell, finished.samples, None))
        file.unlink()

    return change


def flipped(name: str) -> Callable[[Path], None]:
    """One score of the other value."""

    def change(file: Path) -> None:
        samples = format.read_cell_file(file).samples
        one = samples[0]
        other = replace(one, scores={**one.scores, name: 1.0 - one.scores[name]})
        file.write_bytes(format.cell_parquet(format.read_cell_file(file).cell, [other, *samples[1:]], None))

    return change


def perfect(sample: Sample) -> Sample:
    """Right answers that the model never gave: consistent in themselves."""
    if sample.output is not None:
        said = f" {sample.facts['expected']}"
        return replace(sample, output=said, scores={"accuracy": 1.0, "contains": 1.0})
    losses = sample.statistics["option_nll"].copy()
    losses[sample.facts["expected_option"]] = losses.min() - 1
    return replace(sample, scores={"accuracy": 1.0}, statistics={"option_nll": losses})


def other_expected(sample: Sample) -> Sample:
    """The question whose right answer is what the model said."""
    said = (sample.output or "").strip().split(".")[0].split(" ")[0] or "7"
    return replace(
        sample, output=f" {said}", facts={**sample.facts, "expected": said}, scores={"accuracy": 1.0, "contains": 1.0}
    )


def without_worst(file: Path) -> None:
    finished = format.read_cell_file(file)
    ordered = sorted(finished.samples, key=lambda each: float(each.nll.mean()))  # type: ignore[union-attr]
    file.write_bytes(format.cell_parquet(finished.cell, ordered[:-4], None))


def best_twice(file: Path) -> None:
    finished = format.read_cell_file(file)
    best, *_, worst = sorted(finished.samples, key=lambda each: float(each.nll.mean()))  # type: ignore[union-attr]
    kept = [each for each in finished.samples if each is not worst]
    file.write_bytes(format.cell_parquet(finished.cell, [*kept, replace(best, index=worst.index)], None))


def worst_failed(file: Path) -> None:
    finished = format.read_cell_file(file)
    worst = max(finished.samples, key=lambda each: float(each.nll.mean()))  # type: ignore[union-attr]
    samples = [replace(each, failed="lost", nll=None) if each is worst else each for each in finished.samples]
    file.write_bytes(format.cell_parquet(finished.cell, samples, None))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])


def one_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x40
    file.write_bytes(content)


def renamed(file: Path) -> None:
    file.rename(file.with_name(f"{file.stem[::-1]}.parquet"))


def claimed(file: Path) -> None:
    """A better value in the records beside the samples."""
    [*rows] = map(json.loads, (file.parents[1] / "records.jsonl").read_text().splitlines())
    for row in rows:
        if row["cell"] == file.stem and row["value"] is not None:
            row["value"] *= 0.9
    (file.parents[1] / "records.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def nats(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return sample_wise(lambda each: replace(each, nll=change(each.nll).astype(np.float32)))


LIKELIHOOD, WRITTEN, CHOICE, MARKS, PROBE = (
    "last_segment",
    "passkey",
    "needle(options=4)",
    "running_arithmetic",
    "resolution",
)
TAMPERINGS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "accuracy of one answer": (WRITTEN, flipped("accuracy")),
    "contains of one answer": (WRITTEN, flipped("contains")),
    "accuracy of one choice": (CHOICE, flipped("accuracy")),
    "accuracy of the marks": (MARKS, sample_wise(lambda each: replace(each, scores={**each.scores, "accuracy": 1.0}))),
    "exact of the marks": (MARKS, flipped("exact")),
    "resolution": (PROBE, sample_wise(lambda each: replace(each, scores={**each.scores, "resolution": 0.9}))),
    "a score beyond 1": (WRITTEN, sample_wise(lambda each: replace(each, scores={**each.scores, "accuracy": 2.0}))),
    "perfect answers": (WRITTEN, sample_wise(perfect)),
    "perfect choices": (CHOICE, sample_wise(perfect)),
    "other questions": (WRITTEN, sample_wise(other_expected)),
    "another depth": (WRITTEN, sample_wise(lambda each: replace(each, depth=0.5))),
    "a lower chance": (CHOICE, sample_wise(lambda each: replace(each, chance=0.01))),
    "lower losses": (LIKELIHOOD, nats(lambda nll: nll * 0.9)),
    "negative losses": (LIKELIHOOD, nats(lambda nll: nll - 10)),
    "undefined losses": (LIKELIHOOD, nats(lambda nll: np.where(nll > 5, np.nan, nll))),
    "fewer samples": (LIKELIHOOD, without_worst),
    "a sample twice": (LIKELIHOOD, best_twice),
    "a failure": (LIKELIHOOD, worst_failed),
    "fewer targets": (LIKELIHOOD, nats(lambda nll: np.sort(nll)[:32])),
    "another method": (LIKELIHOOD, with_cell(method=MethodKey.of_method("mine"))),
    "more bytes": (LIKELIHOOD, sample_wise(lambda each: replace(each, bytes=2 * (each.bytes or 0)))),
    "a file that is cut": (LIKELIHOOD, cut),
    "a byte": (LIKELIHOOD, one_byte),
    "another name": (CHOICE, renamed),
    "another length": (LIKELIHOOD, with_cell(length=4096)),
    "another seed": (WRITTEN, with_cell(seed=7)),
    "another protocol": (LIKELIHOOD, with_cell(protocol="NLL of all tokens")),
    "an older task": (WRITTEN, with_identity("task", version=1)),
    "another model's losses": (LIKELIHOOD, with_identity("model", name="mine", revision="0123")),
    "claims": (LIKELIHOOD, claimed),
}


@pytest.mark.slow
def test_two_planted_tamperings_of_each_kind_are_caught_and_nothing_else(tmp_path: Path) -> None:
    """Checksums are made to hold, and the submission is admitted as it is: only its content can tell."""
    first = Path(shutil.copytree(REFERENCE, tmp_path / "first"))
    tasks = "task=[{name: needle, options: 4}, running_arithmetic, resolution]"
    words = ["method=none,yarn,rerope,streaming_llm", tasks, "lengths=[116,120,128]", "n=3"]
    assert main.main(["run", "-m", *words, "price=false", f"results={first}"]) == 0
    second = Path(shutil.copytree(first, tmp_path / "second"))
    cells: dict[str, list[FinishedCell]] = {}
    for file in sorted((second / "cells").glob("*.parquet")):
        finished = format.read_cell_file(file)
        if finished.cell.task != WRITTEN or (records_of(finished)[0].value or 0) < 1:  # nothing is better than perfect
            cells.setdefault(finished.cell.task, []).append(finished)
    planted: dict[str, str] = {}
    for _ in range(2):
        for name, (task, tamper) in TAMPERINGS.items():
            finished = cells[task].pop()
            while name.startswith("perfect") and records_of(finished)[0].value == 1:
                finished = cells[task].pop()
            file = second / "cells" / f"{finished.cell.id}.parquet"
            known = set((second / "cells").glob("[!.]*"))
            tamper(file)
            [now] = (set((second / "cells").glob("[!.]*")) - known) or {file}
            planted[now.stem] = name
    assert Counter(planted.values()) == dict.fromkeys(TAMPERINGS, 2)
    submissions = ledger.propose_submission(tmp_path, first, "first", "us", None, "2026-11-23")
    ledger.write_ledger(tmp_path, submissions)
    found = audit.audit_submissions(
        tmp_path, ledger.propose_submission(tmp_path, second, "second", "them", None, "2026-11-23")
    )
    caught = {each.cell for each in found.refused if each.submission == "second"}
    caught |= {each.checked.cell.id for each in found.entries if each.submission.name == "second" and each.marks}
    assert {planted[cell] for cell in planted.keys() - caught} == set()
    assert caught == planted.keys()
    assert not [each for each in found.refused if each.submission == "first"]
    assert not any(each.marks for each in found.entries if each.submission.name == "first")


def test_a_page_of_somebody_else_is_not_overwritten(board: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    page = tmp_path / "site" / "index.html"
    page.write_text("<title>mine</title>")
    with pytest.raises(ValueError, match=r"site/index.html is not of lexbench board, which would replace it"):
        write_site(board, ledger.read_ledger(board), tmp_path / "site")
    assert page.read_text() == "<title>mine</title>"
    for _ in range(2):  # its own is replaced
        write_site(board, ledger.read_ledger(board), tmp_path / "new")
