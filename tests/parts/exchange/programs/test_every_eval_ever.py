"""Records of Every Eval Ever, checked by the project's own validator."""

import json
from pathlib import Path

import pytest

from lexbench.parts.exchange.share import share_files

core = pytest.importorskip(
    "every_eval_ever.validator.validation_core", reason="every-eval-ever is not installed here: make test-exchange"
)


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("records")
    share_files([folder], "every_eval_ever", out, by="a laboratory", developer="lexbench")
    return out


def validate(root: Path, file: Path) -> tuple[bool, list[object], list[object]]:
    """The validator's verdict on a file in its place in the datastore."""
    names = frozenset(each.relative_to(root).as_posix() for each in root.rglob("*.json*"))
    report = core.validate_file(
        file,
        repo_path=file.relative_to(root).as_posix(),
        available_files=names,
        read_repo_file=lambda name: (root / name).read_text(),
        run_semantic_checks=True,
    )
    return report.valid, report.errors, report.warnings


def test_the_validator_accepts_every_file_without_a_warning(written: Path) -> None:
    files = sorted(written.rglob("*.json*"))
    assert len(files) == 6  # three methods
    assert [validate(written, file) for file in files] == [(True, [], [])] * 6


def test_the_validator_refuses_a_record_whose_samples_are_of_another(written: Path, tmp_path: Path) -> None:
    file = next(written.rglob("*-*.json"))
    data = json.loads(file.read_text())
    data["detailed_evaluation_results"]["total_rows"] += 1
    other = tmp_path / file.relative_to(written)
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(data))
    samples = file.with_name(f"{file.stem}_samples.jsonl")
    (other.parent / samples.name).write_text(samples.read_text())
    assert not validate(tmp_path, other)[0]
