"""The version of lexbench, for records and the package."""

import functools
from contextlib import suppress
from pathlib import Path

__version__ = "0.1.0"
TREE_FOLDER = Path(__file__).resolve().parents[2]
"""Folder of the checkout, or of installed packages."""
COMMIT_DIGITS = 8


@functools.cache
def full_version() -> str:
    """The version, in a tree that has a .git with its commit: `0.1.0+g3af05f6c`. It enters no identity."""
    commit = commit_of(TREE_FOLDER / ".git")
    return __version__ if commit is None else f"{__version__}+g{commit[:COMMIT_DIGITS]}"


def commit_of(git: Path) -> str | None:
    """The commit that a .git names, a folder or a worktree's file; None where it names none, or there is no .git."""
    with suppress(OSError, ValueError):
        if git.is_file():
            git = git.parent / git.read_text().removeprefix("gitdir: ").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        name, common = head.removeprefix("ref: "), git / "commondir"
        home = git / common.read_text().strip() if common.is_file() else git
        for folder in (git, home):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        lines = (home / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
    return None
