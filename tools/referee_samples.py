"""Sample files of other programs, for tests/data: 24 sums under a model that is right in some, before and after.

    .venv-exchange/bin/python tools/referee_samples.py tests/data

Inspect, lm_eval and every_eval_ever write them themselves (`make test-exchange` makes their venv). Nothing is drawn
anew but ids and dates, so a second run gives files of the same samples.
"""

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = 24
RIGHT: dict[str, Callable[[int], bool]] = {"before": lambda place: place % 2 == 0, "after": lambda place: place % 8 > 0}
"""Questions that each side answers right: 12, and 21."""


def write_inspect(folder: Path, side: str, form: str, right: Callable[[int], bool], failing: bool = False) -> Path:
    """A log of Inspect; one that fails ends with status error."""
    import inspect_ai
    from inspect_ai import dataset, model, scorer, solver

    @solver.solver  # type: ignore[untyped-decorator]
    def answer() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            place = int(str(state.sample_id)[1:])
            if failing:
                raise RuntimeError("the server is gone")
            written = state.target.text if right(place) else "none of them"
            state.output = model.ModelOutput.from_content("tests/told", written)
            return state

        return solve

    samples = [
        dataset.Sample(input=f"What is {place} + {place}?", target=str(2 * place), id=f"q{place}")
        for place in range(4 if failing else COUNT)
    ]
    task = inspect_ai.Task(
        dataset=dataset.MemoryDataset(samples), solver=answer(), scorer=scorer.match(), name="doubles"
    )
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(folder / side), log_format=form, display="none")
    [file] = (folder / side).glob(f"*.{form}")
    return file


def write_lm_eval(folder: Path, side: str, right: Callable[[int], bool]) -> Path:
    """The samples of lm_eval, of a model that writes what it is told."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    class Told(LM):  # type: ignore[misc]
        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            return [
                str(2 * place) if right(place) else "none"
                for place in (int(each.args[0].split()[2]) for each in requests)
            ]

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    data = folder / "doubles.jsonl"
    data.write_text(
        "".join(
            json.dumps({"question": f"What is {each} + {each}?", "answer": str(2 * each)}) + "\n"
            for each in range(COUNT)
        )
    )
    (folder / "doubles.yaml").write_text(
        f"task: doubles\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
        "metric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n"
    )
    tracker = EvaluationTracker(output_path=str(folder / side))
    found = lm_eval.simple_evaluate(
        model=Told(),
        tasks=["doubles"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        evaluation_tracker=tracker,
    )
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    tracker.save_results_samples(task_name="doubles", samples=samples["doubles"])
    [file] = (folder / side).rglob("samples_doubles_*.jsonl")
    return file


def write_every_eval_ever(folder: Path, side: str, right: Callable[[int], bool]) -> bytes:
    """The samples that every_eval_ever makes of a log of Inspect."""
    log = write_inspect(folder, side, "json", right)
    log.write_text(log.read_text().replace("mockllm/", "hf/"))  # its converter knows no developer of mock models
    words = ["convert", "inspect", "--log_path", str(log), "--output_dir", str(folder / "converted" / side)]
    subprocess.run([sys.executable, "-m", "every_eval_ever", *words], check=True)
    [samples] = (folder / "converted" / side).rglob("*_samples.jsonl")
    return samples.read_bytes()


def main(out: Path) -> None:
    """Write the files of every form into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        before = write_inspect(folder, "before", "eval", RIGHT["before"])
        shutil.copy(before, out / "inspect_before.eval")
        (out / "inspect_after.json.gz").write_bytes(
            gzip.compress(write_inspect(folder, "after", "json", RIGHT["after"]).read_bytes(), mtime=0)
        )
        shutil.copy(write_inspect(folder, "failed", "eval", RIGHT["after"], True), out / "inspect_error.eval")
        (folder / "lm_eval").mkdir()
        for side, right in RIGHT.items():
            file = write_lm_eval(folder / "lm_eval", side, right)
            packed = out / f"lm_eval_{side}" / "samples_doubles_2026-11-29T00-00-00.jsonl.gz"
            packed.parent.mkdir(exist_ok=True)
            packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        for side, right in RIGHT.items():
            text = write_every_eval_ever(folder / "eee", side, right)
            (out / f"every_eval_ever_{side}.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
