"""Yamls by which the harness finds tasks of lexbench: one for each task and length."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from lexbench.core.files import check_folder
from lexbench.parts.exchange.lm_eval.questions import HarnessCell

TASK_CLASS_PATH = f"{__name__.rpartition('.')[0]}.task.LexbenchTask"


def write_task_files(
    names: Sequence[str], lengths: Sequence[int], n: int | None, seed: int, corpus: str | None, out: Path
) -> list[str]:
    """Write the yamls, and return the names of the harness's tasks: `lexbench_passkey_512`.

    Args:
        names: of tasks.
        lengths: of their questions, in tokens.
        n: questions of each task and length; None: as in a run.
        seed: of the questions.
        corpus: name; None: the usual one of the longest length.
        out: folder.
    """
    check_folder("--out", out, "give --out DIR")
    texts: dict[str, str] = {}
    for name in dict.fromkeys(names):
        for length in sorted(set(lengths)):
            named = None if corpus is None else {"name": corpus}
            cell = HarnessCell(task={"name": name}, length=length, lengths=lengths, n=n, seed=seed, corpus=named)
            job = cell.job()  # which checks them
            settings = {
                "task": {"name": name},
                "length": length,
                "lengths": [*job.lengths],
                "n": job.n,
                "seed": seed,
                "corpus": {"name": job.corpus.name},
            }
            texts[f"lexbench_{name}_{length}"] = _text(f"lexbench_{name}_{length}", name, settings)
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (out / f"{file}.yaml").write_text(text, encoding="utf-8")
    return list(texts)


def _text(name: str, task: str, settings: dict[str, object]) -> str:
    """A yaml of the harness; parameters may be added under `task` and `corpus`."""
    config = {"task": name, "tag": ["lexbench", f"lexbench_{task}"], "metadata": {"lexbench": settings}}
    # The harness's own tag, which no dumper knows.
    return f"class: !function {TASK_CLASS_PATH}\n{yaml.safe_dump(config, sort_keys=False)}"
