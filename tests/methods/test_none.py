import pytest

from lexbench.methods.none import NoMethod


@pytest.mark.parametrize("name", ["tiny", "partial", "scaled", "nope"])
def test_nothing_changes_whatever_the_encoding(name: str, request: pytest.FixtureRequest) -> None:
    assert NoMethod().attention(request.getfixturevalue(name), 10**6).as_data() == {}
