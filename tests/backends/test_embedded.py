"""Tokens beyond a model's embedding are refused where a question holds them, and nowhere else."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import lexbench
from lexbench import Refused
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core.task import Choose, ClassifyTokens, Generate, Loglikelihood
from tests.backends.named import backend_class

LEXLET = Path(lexbench.__file__).parent / "lexlet"
WORD = "zebra"
ROWS = 2048
SAID = f"cannot read token {ROWS}, its embedding has {ROWS} rows: its folder holds another model's tokenizer"
ASKED: dict[str, Any] = {"index": 0, "cluster": "0"}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def grown(tmp_path: Path) -> str:
    """Folder of lexlet, with one more token in its tokenizer than in its embedding."""
    folder = tmp_path / "grown"
    shutil.copytree(LEXLET, folder)
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.add_tokens([WORD])
    assert words.token_to_id(WORD) == ROWS
    words.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.everyday("native")
@pytest.mark.parametrize("name", ["hf", "native"])
def test_a_token_beyond_the_embedding_is_refused(grown: str, name: str) -> None:
    backend, known, beyond = backend_class(name)(read_model({"path": grown})), np.arange(8), np.array([3, ROWS])
    for ids in (np.append(beyond, known), np.append(known, beyond)):
        with pytest.raises(Refused, match=SAID):
            backend.score(Loglikelihood(tokens=ids, first_target=4, bytes=0, words=0, **ASKED))
    with pytest.raises(Refused, match=SAID):
        backend.write(Generate(prompt=beyond, max_new_tokens=2, **ASKED))
    with pytest.raises(Refused, match=SAID):
        backend.choose(Choose(prompt=known, options=(known, beyond), expected=0, **ASKED))
    text = np.append(known, 3)
    with pytest.raises(Refused, match=SAID):
        backend.mark(ClassifyTokens(tokens=text, places=np.array([8]), options=beyond, **ASKED))


def nll_of(path: str, text: str, tmp_path: Path) -> Any:
    """The record of a cell: its NLL, or why it is refused."""
    (tmp_path / "text.txt").write_text(text * 300)
    run = lexbench.run(
        {"path": path, "name": "m"},
        task={"name": "last_segment", "targets": 16},
        lengths=[64],
        n=2,
        corpus={"name": "files", "path": str(tmp_path / "text.txt")},
        results=tmp_path / "runs",
        price=False,
        quiet=True,
    )
    return next(row for _, row in run.records().iterrows() if row["metric"] == "nll" or row["refused"])


@pytest.mark.slow
def test_a_run_records_the_reason_and_measures_texts_without_such_tokens(grown: str, tmp_path: Path) -> None:
    refused = nll_of(grown, f"a {WORD} ran. ", tmp_path)
    assert SAID in str(refused["refused"])
    own, same = (nll_of(path, "a horse ran. ", tmp_path) for path in (str(LEXLET), grown))
    assert own["value"] == same["value"] and np.isfinite(own["value"])
