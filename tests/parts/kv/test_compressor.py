"""Compressors by name: ours, a file of the user's and one of a package."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lexbench
from lexbench import ConfigError
from lexbench.commands import main
from lexbench.core.registry import with_config_dirs
from lexbench.parts.kv import settings
from lexbench.parts.kv.compressor import Compressor, compressor_named, compressor_names
from lexbench.parts.kv.methods.kv import Kv

LAST = '''"""Keep the last tokens."""

from dataclasses import dataclass

import torch

from lexbench.parts.kv.compressor import Compressor


@dataclass(frozen=True)
class Last(Compressor):
    """Keep the last tokens of a prompt."""

    choosing_queries = 0

    def score(self, keys, values, queries, rotate, scaling):
        """[B, KV, P] places."""
        return torch.arange(keys.shape[2], dtype=torch.float32).expand(keys.shape[:3])
'''
MODEL = lexbench.Model(name="m", trained_length=64, head_dim=64, kv_heads=2, layers=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "compressor").mkdir()
    (tmp_path / "compressor" / "last.py").write_text(LAST)
    return tmp_path


def test_each_of_ours_is_a_file_that_says_which_queries_it_needs() -> None:
    assert compressor_names() == ["norm", "expected", "snapkv"]
    found = {name: compressor_named(name) for name in compressor_names()}
    assert all(isinstance(each, Compressor) for each in found.values())
    needs = {name: (each.choosing_queries, each.needs_rotation) for name, each in found.items()}
    assert needs == {"norm": (0, False), "snapkv": (64, False), "expected": (None, True)}


def test_the_settings_compared_are_those_of_what_is_registered(folder: Path) -> None:
    ours = settings.default_settings()
    assert len(ours) == 13
    assert {"keep=0.5", "keep=0.5,by=snapkv", "keep=0.5,by=expected", "bits=4,keep=0.5,by=snapkv"} <= {*ours}
    with with_config_dirs(folder):
        assert {*settings.default_settings()} - {*ours} == {"keep=0.5,by=last"}


def test_a_file_of_the_users_chooses_tokens_and_its_code_is_in_the_identity(folder: Path) -> None:
    with with_config_dirs(folder):
        method: Any = lexbench.method("kv", keep=0.25, by="last")
        attention = method.attention(MODEL, 64)
        keys = torch.randn(1, 2, 20, 64, generator=torch.Generator().manual_seed(0))
        held = attention.cache.held_tokens(keys, keys, keys, lambda x, _: x, 1.0)
        assert held.sum(-1).tolist() == [[5, 5]] and held[..., 15:].all()
        before = attention.as_data()["cache"]
        (folder / "compressor" / "last.py").write_text(LAST.replace("torch.arange", "0 + torch.arange"))
        os.utime(folder / "compressor" / "last.py", (0, 0))
        after = lexbench.method("kv", keep=0.25, by="last").attention(MODEL, 64).as_data()["cache"]
        assert before.pop("file") != after.pop("file") and before == after
    own: Any = Kv(keep=0.25).attention(MODEL, 64)
    assert "file" not in own.as_data()["cache"]


def test_an_unknown_one_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"method\.by of kv must be norm or expected or snapkv, got last"):
        Kv(keep=0.5, by="last")


def test_the_help_of_kv_names_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with with_config_dirs(folder), pytest.raises(SystemExit):
        main.main(["kv", "--help"])
    assert "by is norm or expected or last or snapkv" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_package_brings_one_by_its_entry_point(tmp_path: Path) -> None:
    package = tmp_path / "lexbench_last"
    (package / "compressors").mkdir(parents=True)
    for file in (package / "__init__.py", package / "compressors" / "__init__.py"):
        file.touch()
    (package / "compressors" / "last.py").write_text(LAST)
    part = 'from lexbench.core.parts import Part\n\nPART = Part(name="last", package="lexbench_last")\n'
    (package / "part.py").write_text(part)
    about = tmp_path / "lexbench_last-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lexbench-last\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lexbench.parts]\nlast = lexbench_last.part:PART\n")
    asked = "import lexbench; from lexbench.parts.kv.compressor import compressor_names; print(compressor_names()); "
    asked += "m = lexbench.Model(name='m', trained_length=64, head_dim=64, layers=1); "
    asked += "print(lexbench.method('kv', keep=0.5, by='last').attention(m, 64).as_data()['cache']['file'] is not None)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path(lexbench.__file__).parents[1])])
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['norm', 'expected', 'last', 'snapkv']", "True"]
