"""A pack takes a reading for each setup, longer than what is asked about it: it is made once, or of few setups."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lexbench.core.model import Model
    from lexbench.parts.serving.identify.setups import AttentionSetup

FEW_LABELS = {
    *("linear 2", "linear 4", "NTK 2", "NTK 4", "YaRN 4", "YaRN 8"),
    *("base a percent above", "base a percent below"),
}


@pytest.fixture(scope="session")
def lexlet_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 texts of 192 tokens, and a far one of 256."""
    import torch

    from lexbench.commands import main

    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("packs") / "lexlet.npz"
    assert main.main(["fingerprint", "model=lexlet", "corpus=synthetic", "length=192", "n=4", "--out", str(file)]) == 0
    return file


@pytest.fixture
def few_setups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of the model's own setup and eight others, for tests of what does not depend on their number."""
    from lexbench.parts.serving.identify import make, setups

    def few(model: "Model", length: int) -> list["AttentionSetup"]:
        own, *others = setups.possible_setups(model, length)
        return [own, *(each for each in others if FEW_LABELS & set(each.label.split(" = ")))]

    monkeypatch.setattr(make, "possible_setups", few)
