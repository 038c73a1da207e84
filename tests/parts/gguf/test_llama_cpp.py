"""llama.cpp itself, with the flags of an export, gives hf's numbers: needs `pip install llama-cpp-python`."""

from pathlib import Path

import numpy as np
import pytest

from lexbench import Loglikelihood
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.runner.backend_pool import open_backend, release_backend

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_llama_cpp_scores_texts_as_hf_does_with_what_was_exported(tmp_path: Path) -> None:
    from tests.parts.gguf.test_gguf import write_lexlet
    from tools import engines, llama_cpp

    file = llama_cpp.in_float32(write_lexlet(tmp_path / "half.gguf"), tmp_path / "whole.gguf")
    model = read_model(registry.read_named_config("model", "lexlet"))
    hf = open_backend(model, {**registry.read_named_config("backend", "hf"), "name": "hf", "dtype": "float32"}, 512)
    assert isinstance(hf, Hf)
    try:
        text = hf.tokenizer.encode(Path(__file__).read_text()).ids[:512]
        plain = None
        for given in engines.METHODS:
            label, attention, flags = engines.exported(model, given, len(text), "llama.cpp")
            hf.attend(attention)
            ours = hf.score(Loglikelihood(index=0, cluster="", tokens=text, first_target=1, bytes=0, words=0)).nll
            llama = llama_cpp.engine(file, flags, type_k=0, type_v=0)
            theirs = llama_cpp.losses(llama, text)
            llama.close()
            assert np.abs(theirs - ours).max() < 5e-3, label
            plain = ours if plain is None else plain
            assert label == "none" or np.abs(ours - plain).mean() > 0.05, "the method is not none on this text"
    finally:
        release_backend(hf)
