import json
from pathlib import Path

import pytest

from lexbench.core.errors import ConfigError
from lexbench.parts.search.journal import resume_journal


def test_a_journal_of_version_0_1_goes_on(tmp_path: Path) -> None:
    """Its header has paths of classes that have moved since, also inside lists."""
    file, row = tmp_path / "trace.jsonl", {"nll": 1.5}
    older = {"backend": {"_target_": "lexbench.backends.native.Native"}, "tasks": [{"_target_": "lexbench.native.x.X"}]}
    file.write_text(f"{json.dumps(older)}\n{json.dumps(row)}\n")
    now = {
        "backend": {"_target_": "lexbench.parts.lab.backend.Native"},
        "tasks": [{"_target_": "lexbench.parts.lab.native.x.X"}],
    }
    assert resume_journal(file, now) == [row]
    with pytest.raises(ConfigError, match=r"has backend._target_ lexbench.parts.lab.backend.Native, now mine.Native: "):
        resume_journal(file, {**now, "backend": {"_target_": "mine.Native"}})
