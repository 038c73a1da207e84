"""Documents are compared here: each is made when it is asked for."""

import pytest


@pytest.fixture(autouse=True)
def _documents_afresh(documents_afresh: None) -> None:
    """For every corpus."""
