"""Do the steps of a page of the documentation with the lexbench of this Python: python page_steps.py STEPS OUTPUTS.

STEPS is JSON: `figures` and `self_check`, whether reports draw and runs check themselves, and `steps`, each one of
{"file": NAME, "text": ...}, {"line": WORDS OF A COMMAND, "code": THE EXIT CODE THAT IT MUST HAVE} and {"python": CODE}.
OUTPUTS is written: a list of what each step printed. It runs in a venv of README's lines, so it imports lexbench and
Python's own library alone.
"""

import contextlib
import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest import mock


def do_steps(steps: list[dict[str, Any]]) -> list[str]:
    """What each step printed; AssertionError for a command that is none of lexbench or ends with another code."""
    from lexbench.commands import main

    namespace: dict[str, object] = {"__name__": "page"}
    outputs = []
    for step in steps:
        printed = io.StringIO()
        if "file" in step:
            Path(step["file"]).parent.mkdir(parents=True, exist_ok=True)
            Path(step["file"]).write_text(step["text"])
        with contextlib.redirect_stdout(printed):
            if "line" in step:
                os.environ["LEXBENCH_CONFIG_PATH"] = ""
                program, *words = shlex.split(step["line"])
                code = main.main(words) if program == "lexbench" else f"{program} is not lexbench"
                assert code == step["code"], f"{step['line']}: exit code {code}"
            elif "python" in step:
                exec(compile(step["python"], "page", "exec"), namespace)
        outputs.append(printed.getvalue())
    return outputs


def main_of_steps(asked: dict[str, Any]) -> list[str]:
    """What each step printed, with less work where nothing of it is read: no figures, no checks of a run by itself."""
    with contextlib.ExitStack() as less:
        if not asked["figures"]:
            less.enter_context(mock.patch("lexbench.report.report.MAX_TABLES_WITH_FIGURES", 0))
        if not asked["self_check"]:
            for name in ("verify_attention", "check_cached_reading"):
                less.enter_context(mock.patch(f"lexbench.runner.verify.{name}", return_value=[]))
        return do_steps(asked["steps"])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main_of_steps(json.loads(Path(sys.argv[1]).read_text()))))
