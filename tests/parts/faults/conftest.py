"""Where valid folders of readers lie."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where valid folders lie, made once."""
    return tmp_path_factory.mktemp("readers")


@pytest.fixture
def inner(tmp_path: Path) -> Path:
    """Deep enough that ../../x is ours to look at."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    return folder
