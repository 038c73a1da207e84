"""Tests of the real engine and of a real server: run by `make test-vllm`, in a venv of its own."""

import os

import pytest

from lexbench.parts.serving.vllm.engine import VLLM_ENVIRONMENT_DEFAULTS

for name, value in {**VLLM_ENVIRONMENT_DEFAULTS, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}.items():
    os.environ.setdefault(name, value)
pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")
