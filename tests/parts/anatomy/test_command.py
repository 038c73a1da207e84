"""`lexbench anatomy` on lexlet, and causes that are planted in its attention."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.checkpoints.checkpoint import read_model
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.attention import Attention, Window
from lexbench.kernels import dense
from lexbench.parts.anatomy.arms import ARM_FORMS
from lexbench.parts.anatomy.tasks.anatomy import Anatomy
from lexbench.parts.anatomy.wordings import KEY_WORDINGS
from tests.backends.named import backend_class

pytestmark = pytest.mark.usefixtures("one_thread", "unverified")


def test_the_command_measures_controls_and_arms_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    words = ["n=2", "lengths=[256]", f"results={tmp_path}", "corpus=synthetic", "--haystack", "noise", "--arms"]
    assert main.main(["anatomy", *words, "adjacent", "gap", "near8"]) == 0
    said = capsys.readouterr().out
    assert said.count("**cannot be told**") == 5 and str(tmp_path / "anatomy.md") in said
    text = (tmp_path / "anatomy.md").read_text()
    assert "| distance: the distance, with 8 tokens" in text and "| neighbourhood: no text" in text
    assert "1 question of 1 wording a contrast. Trained length 256." in text and "| sink:" not in text
    assert text.count(" holds |") == 4 and (tmp_path / "anatomy.svg").is_file()
    assert "Wordings that were dropped, as they are not chosen right at distance zero: safe." in text
    # Arms of a later command join them.
    assert main.main(["anatomy", *words, "gap_unsunk"]) == 0
    assert "| sink: the question sees" in (tmp_path / "anatomy.md").read_text()
    assert "measured before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arms", "gap", "some"], "--arms must be some of adjacent"),
    ],
)
def test_wrong_words_are_refused_in_a_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["anatomy", *words]) == 2
    assert said in capsys.readouterr().err


def heavy_sink(
    queries: Tensor, keys: Tensor, values: Tensor, places: dense.Places, attention: Attention, rotate: object,
    scaling: float, sinks: Tensor | None = None, cap: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention whose first position has logits that are 5 larger; queries and keys arrive rotated."""
    shared = queries.shape[1] // keys.shape[1]
    scores = queries @ keys.repeat_interleave(shared, 1).mT * scaling
    scores[..., places.keys == 0] += 5.0
    scores = scores.masked_fill(~torch.from_numpy(places.seen), -torch.inf)
    return scores.softmax(-1) @ values.repeat_interleave(shared, 1)


def test_causes_planted_in_attention_move_what_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexbench.parts.anatomy.tasks.anatomy.KEY_WORDINGS", KEY_WORDINGS[:1])  # what lexlet knows
    model = read_model(registry.read_named_config("model", "lexlet"))
    backend = backend_class("hf")(model)

    def losses(arm: str) -> np.ndarray:
        task = Anatomy(haystack="noise", **ARM_FORMS[arm])
        asked = task.questions(backend.tokenizer, 256, 4, 0)
        return np.array([task.score(each, backend.choose(each)).scores["nats"] for each in asked])

    def contrast(arm: str, base: str) -> np.ndarray:
        return np.asarray(losses(arm) - losses(base))

    backend.attend(Attention())
    assert abs(contrast("gap", "adjacent")).max() < 0.1 and abs(contrast("gap", "gap_unsunk")).max() < 0.1
    # A window shorter than the distance, with the first token: only the distance hurts, near text or not.
    backend.attend(Attention(mask=Window(72, 1)))
    assert contrast("gap", "adjacent").min() > 5 and contrast("near8", "adjacent").min() > 5
    # A first token that takes too much: to block it helps.
    backend.attend(Attention())
    monkeypatch.setattr(dense, "attend_at", heavy_sink)
    assert contrast("gap", "gap_unsunk").min() > 5 and abs(contrast("near8_blind", "near8")).max() < 2.5
