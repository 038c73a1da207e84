"""Engines that start no worker processes, each of which loads torch and vLLM again."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def without_workers() -> Iterator[None]:
    """Start engines inside this process, and servers' engines in one process; test_demo.py starts one as users do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setattr("vllm.v1.engine.core.enable_envs_cache", lambda: None)  # it would keep the 0 for later engines
        yield
