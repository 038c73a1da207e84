"""Cells as JSON: with the key and the purpose as data, and as earlier versions wrote them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexbench.core.method_key import OWN_POLICY, MethodKey, Purpose, parse_label
from lexbench.core.record import Cell
from lexbench.stats import baseline
from lexbench.stats.records import load_cells
from lexbench.store.cell_rows import cell_row, read_cell, read_key, with_purposes
from lexbench.store.store import Store
from tests.report.fake_run import cell, finished, keep

DEPLOYED = Purpose(MethodKey.of_method("ntk"), 8.0, price_only=True)


def written(this: Cell) -> Any:
    return json.loads(json.dumps(cell_row(this)))


def older(this: Cell) -> dict[str, Any]:
    """The row of a version that knew neither keys nor purposes."""
    return {name: value for name, value in written(this).items() if name not in ("method_key", "purpose")}


def test_a_cell_keeps_its_key_and_its_purpose() -> None:
    this = replace(cell("passkey", "ntk(factor=8.0)", 256), purpose=DEPLOYED)
    found = read_cell(written(this), "a cell")
    assert (found.method, found.purpose, found.id) == (this.method, DEPLOYED, this.id)
    assert written(this)["method"] == "ntk(factor=8.0)", "for people"


def test_the_key_in_a_file_counts_whatever_its_label_says() -> None:
    row = written(cell("passkey", "ntk(factor=8.0)", 256)) | {"method": "x7f3"}
    assert read_cell(row, "a cell").method == MethodKey.of_method("ntk", factor=8.0)


@pytest.mark.parametrize(
    "label", ["none", "yarn(rate=1e-05)", "yarn(rate=1e+22)+log_n(at=64)", "mine(note='a (b) + c')"]
)
def test_a_cell_of_an_earlier_version_has_the_key_of_its_label(label: str) -> None:
    found = read_cell(older(cell("passkey", label, 256)), "a cell")
    assert found.method == parse_label(label) and found.purpose is None and str(found.method) == label


def test_a_small_number_in_a_label_makes_no_folder_unreadable(tmp_path: Path) -> None:
    """`1e-05` was read as a number by half: the whole folder could not be reported."""
    from lexbench.report.report import write_report

    cells = [finished("last_segment", "none", length, n=4) for length in (128, 512)]
    small = "ntk(factor=1e-05)"
    cells += [
        replace(each, cell=cell("last_segment", small, length, n=4))
        for each, length in zip(cells, (128, 512), strict=True)
    ]
    keep(tmp_path, cells)
    text = write_report([tmp_path], figures=0).read_text()
    assert text.count(f"| {small}") >= 1 and not load_cells([tmp_path]).problems


@pytest.mark.parametrize(
    ("label", "stated", "key"),
    [
        (
            "ntk+self_extend(at=8)",
            {"name": "ntk+self_extend", "at": 8},
            MethodKey((("ntk", ()), ("self_extend", ())), at=8),
        ),
        (
            "ntk+self_extend(at=8)",
            {"name": "ntk+self_extend", "names": ["ntk", "self_extend"]},
            MethodKey((("ntk", ()), ("self_extend", (("at", 8),)))),
        ),
        ("yarn(factor=8.0) for 2048", {"name": "yarn"}, MethodKey((("yarn", (("factor", 8.0),)),), at=2048)),
        ("yarn at 512", {"name": "yarn", "set_to": 512}, MethodKey((("yarn", ()),), at=512)),
        ("rope(type=yarn, factor=4.0)", {"name": "rope"}, MethodKey.of_method("rope", type="yarn", factor="4.0")),
        ("a label of one's own", {"name": "x"}, MethodKey.of_method("a label of one's own")),
    ],
)
def test_labels_of_earlier_versions_and_of_others(label: str, stated: Any, key: MethodKey) -> None:
    assert read_key(label, None, stated) == key


@pytest.mark.parametrize("broken", [{"method_key": {"parts": []}}, {"purpose": {"deploys": None}}, {"method": 7}])
def test_a_wrong_key_or_purpose_is_a_damaged_cell(broken: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_cell(written(cell("passkey", "none", 256)) | broken, "a cell")


def test_a_run_folder_and_a_baseline_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keep(folder, [finished("passkey", method, 512, n=4) for method in ("none", "pi")])
    names = ("method_key", "purpose")
    baseline.update_baseline([folder], tmp_path / "b.json")
    page = json.loads((tmp_path / "b.json").read_text())
    del page["checksum"]  # younger, too
    for row in page["cells"]:
        row["cell"] = {name: value for name, value in row["cell"].items() if name not in names}
    (tmp_path / "old.json").write_text(json.dumps(page))
    now, before = (baseline.read_baseline(tmp_path / name).cells for name in ("b.json", "old.json"))
    assert [each.cell.method for each in now] == [each.cell.method for each in before]
    assert len(Store(folder).load()) == 2


def stated(label: str, length: int, factor: Any, attention: Any) -> Cell:
    """A cell of a method whose identity states a factor and an attention."""
    this = cell("passkey", label, length)
    return replace(
        this, identity={**this.identity, "method": {"name": "x", "factor": factor}, "attention": {"scale": attention}}
    )


def purposes(*cells: Cell) -> dict[str, Purpose | None]:
    return {str(each.method): each.purpose for each in with_purposes(cells)}


def test_the_deployed_form_of_a_method_that_follows_the_length_is_found() -> None:
    base = [stated("x", 256, None, 1.0), stated("x", 2048, None, 1.2)]
    found = purposes(*base, stated("x(factor=8.0)", 256, 8.0, 1.2))
    assert found == {"x": OWN_POLICY, "x(factor=8.0)": Purpose(MethodKey.of_method("x"), 8.0, price_only=True)}
    beyond = purposes(*base, *(stated("x(factor=8.0)", length, 8.0, 1.2) for length in (256, 2048)))
    assert beyond["x(factor=8.0)"] == Purpose(MethodKey.of_method("x"), 8.0)


def test_a_second_setting_of_a_method_that_does_not_follow_is_a_row_of_its_own() -> None:
    """`dynamic_ntk(factor=2)` beside `dynamic_ntk`: its own factor is 1, so neither deploys the other."""
    base = [stated("x", 256, 1.0, 1.0), stated("x", 2048, 1.0, 1.2)]
    assert purposes(*base, stated("x(factor=2)", 256, 2, 1.1)) == {"x": OWN_POLICY, "x(factor=2)": OWN_POLICY}
    still = [stated("x", 256, None, 1.0), stated("x", 2048, None, 1.0)]
    assert purposes(*still, stated("x(at=2048)", 256, None, 1.1))["x(at=2048)"] == OWN_POLICY


def test_a_stated_purpose_is_kept() -> None:
    base = [stated("x", 256, None, 1.0), stated("x", 2048, None, 1.2)]
    own = replace(stated("x(factor=8.0)", 256, 8.0, 1.2), purpose=OWN_POLICY)
    assert purposes(*base, own)["x(factor=8.0)"] == OWN_POLICY
