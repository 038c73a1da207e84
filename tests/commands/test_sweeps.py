"""Jobs of a sweep load a model once, and it is closed."""

from pathlib import Path
from typing import Any

import pytest

from lexbench.commands import main
from lexbench.runner import backend_pool

COMMANDS = {
    "verify": ["method=pi,yarn", "length=64"],
    "keys": ["out={0}/a,{0}/b", "corpus=synthetic", "longest=64", "short=16", "window=8", "n=1"],
    "search": ["out={0}/a.yaml,{0}/b.yaml", "corpus=synthetic", "length=300", "n=1", "iterations=0"],
    "tune": ["out={0}/a,{0}/b", "corpus=synthetic", "length=512", "n=2", "first=2", "budget=1", "methods=[pi]"],
    "run": ["method=pi,yarn", "results={0}", "task=passkey", "lengths=[128]", "n=1"],
}
SLOW = ("keys", "tune")
REFUSED = {"verify": 3}
"""Exit code of what cannot be done without a network: the backend answers by chance."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to backends, in order."""
    seen: list[str] = []
    build = backend_pool._build_backend

    def built(*arguments: Any) -> Any:
        backend: Any = build(*arguments)
        backend.close = lambda: seen.append("close")
        seen.append("load")
        return backend

    monkeypatch.setattr(backend_pool, "_build_backend", built)
    return seen


@pytest.mark.everyday("run")
@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in COMMANDS]
)
def test_a_sweep_loads_a_model_once_and_closes_it(command: str, events: list[str], tmp_path: Path) -> None:
    words = [word.format(tmp_path) for word in COMMANDS[command]]
    assert main.main([command, "-m", "backend=chance", *words]) == REFUSED.get(command, 0)
    assert events == ["load", "close"]


@pytest.mark.everyday("verify", "run")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_single_job_closes_its_model(command: str, events: list[str], tmp_path: Path) -> None:
    words = [word.format(tmp_path).partition(",")[0] for word in COMMANDS[command]]
    assert main.main([command, "backend=chance", *words]) == REFUSED.get(command, 0)
    assert events == ["load", "close"]
