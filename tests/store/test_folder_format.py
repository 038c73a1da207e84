"""A folder says its format: a newer one is refused before anything is written, and stops a lexbench that asks none."""

import json
import subprocess
from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.core.files import clear_leftovers
from lexbench.core.version import __version__, commit_of, full_version
from lexbench.store.folder_format import FOLDER_FORMAT, FORMAT_FILE
from lexbench.store.store import Store
from tests.report.fake_run import finished, keep

ROOT = Path(__file__).parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_in_which_a_cell_begins_has_the_format_of_this_version(tmp_path: Path) -> None:
    keep(tmp_path / "new", [finished("passkey", "none", 256)])
    assert json.loads((tmp_path / "new" / FORMAT_FILE).read_text()) == {
        "format": FOLDER_FORMAT,
        "lexbench": full_version(),
    }
    Store(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{0}"],
        ["doctor", "{0}"],
        ["leaderboard", "{0}"],
        ["check", "{0}", "--baseline", "{0}/baseline.json", "--update"],
        ["run", "backend=chance", "task=passkey", "corpus=synthetic", "lengths=[128]", "n=1", "results={0}"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_of_a_newer_format_is_refused_in_one_line_and_stays_as_it_is(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, [finished("passkey", "none", 256)])
    (tmp_path / FORMAT_FILE).write_text(json.dumps({"format": FOLDER_FORMAT + 1, "lexbench": "9.9.9+g12345678"}))
    before = contents(tmp_path)
    assert main.main([word.format(tmp_path) for word in words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"has format {FOLDER_FORMAT + 1}" in said and "9.9.9+g12345678" in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize("content", ["", "[]", '{"format": "2"}', '{"format": 0}', "\0" * 4096])
def test_a_format_that_cannot_be_read_is_said_in_one_line(content: str, tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "none", 256)])
    (tmp_path / FORMAT_FILE).write_text(content)
    with pytest.raises(ConfigError, match=r"format\.json must"):
        Store(tmp_path)


def test_the_mark_stays_where_leftovers_are_removed(tmp_path: Path) -> None:
    """It has a leftover's name: a lexbench that asks for no format opens it as a file, and stops at the folder."""
    keep(tmp_path, [finished("passkey", "none", 256)])
    cells = tmp_path / "cells"
    mark = tmp_path / FORMAT_FILE.parent
    assert mark in cells.glob(".*.parquet.*")
    clear_leftovers(cells)
    assert (tmp_path / FORMAT_FILE).is_file()
    with pytest.raises(IsADirectoryError):
        mark.open("rb")


def test_a_tree_says_its_commit_as_git_does_and_identities_do_not() -> None:
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    commit = asked.stdout.strip()
    assert commit_of(ROOT / ".git") == (commit or None)
    assert full_version() == (f"{__version__}+g{commit[:8]}" if commit else __version__)


def test_a_commit_is_found_in_a_worktree_behind_packed_names_and_without_a_branch(tmp_path: Path) -> None:
    home, tree = tmp_path / "main/.git", tmp_path / "main/.git/worktrees/side"
    tree.mkdir(parents=True)
    (home / "packed-refs").write_text(
        f"# pack-refs with: peeled\n{'a' * 40} refs/heads/other\n{'b' * 40} refs/heads/x\n"
    )
    (tree / "HEAD").write_text("ref: refs/heads/x\n")
    (tree / "commondir").write_text("../..\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {tree}\n")
    assert commit_of(tmp_path / "side/.git") == "b" * 40
    (home / "HEAD").write_text(f"{'c' * 40}\n")
    assert commit_of(home) == "c" * 40
    assert commit_of(tmp_path / "nowhere") is None
