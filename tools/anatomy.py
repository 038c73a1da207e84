"""Make results/anatomy.md from kept samples: python tools/anatomy.py [RUN ...]

With run folders of `lexbench anatomy`, their samples are kept first, in results/anatomy/samples.parquet. What loss
tells of keys is computed from results/reference, as `tools/recompute.py` has it.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.parts.anatomy import page
from lexbench.parts.anatomy.contrasts import Measured, collect_cells, dropped_wordings
from lexbench.parts.anatomy.verdicts import MIN_WORDINGS
from lexbench.parts.anatomy.wordings import KEY_WORDINGS
from lexbench.report import formats
from lexbench.report.grid import Grid, GridEntry
from lexbench.store.store import Store
from tools import recompute

FOLDER = Path(__file__).parents[1] / "results" / "anatomy"
PAGE, SAMPLES = FOLDER.with_suffix(".md"), FOLDER / "samples.parquet"
SCORES_OF_KEYS = ("copied whole", "reached", "chosen")
HEAD = """\
# The anatomy of a far key

A key is stated once and asked for at a distance; the same questions are asked in arms that differ in one cause each
(`lexbench anatomy`). Predictions, rules of verdicts and cuts were [registered](anatomy/PREREGISTRATION.md) before the
first cell; octaves, a control and the wording of (b) were changed later, as it says. On SmolLM2 one prediction of five
fails and four cannot be told; the largest contrasts are distance and four rivals. *adjacent*: no distance; *gap*: the
distance by jumped positions; *near8*: the same behind 8 tokens; *intro*: the words in front of the key. Stars come from
sign flips and Holm's correction, brackets from a bootstrap: one may lack the other. All numbers are made by
`python tools/anatomy.py` from [kept samples](anatomy/samples.parquet).
"""


def keep_samples(runs: Sequence[Path]) -> None:
    """Write the samples of all arms of some run folders."""
    rows = []
    for run in runs:
        finished = Store(run).load()
        [model] = {each.cell.model for each in finished}
        found = collect_cells(finished)
        for (method, octave), arms in found.cells.items():
            place = {"model": model, "trained_length": found.trained_length, "octave": octave}
            place["method"] = json.dumps(method.as_data())
            rows += [
                {
                    **{**place, "arm": arm, "index": each.index, "wording": each.cluster},
                    **{
                        "distance": each.facts["distance"],
                        "chance": each.chance,
                        "scores": json.dumps(dict(each.scores)),
                    },
                }
                for arm, samples in arms.items()
                for each in sorted(samples, key=lambda sample: sample.index)
            ]
    rows.sort(key=lambda row: (row["model"], row["method"], row["octave"], row["arm"], row["index"]))
    pq.write_table(pa.Table.from_pylist(rows), SAMPLES, compression="zstd")


def kept() -> Iterator[tuple[str, Measured]]:
    """Each model's name and samples."""
    rows = pq.read_table(SAMPLES).to_pylist()
    for model in dict.fromkeys(row["model"] for row in rows):
        cells: dict[tuple[MethodKey, int], dict[str, list[Sample]]] = {}
        own = [row for row in rows if row["model"] == model]
        for row in own:
            place = MethodKey.from_data(json.loads(row["method"])), row["octave"]
            sample = Sample(
                index=row["index"],
                cluster=row["wording"],
                tokens=row["distance"],
                scores=json.loads(row["scores"]),
                chance=row["chance"],
            )
            cells.setdefault(place, {}).setdefault(row["arm"], []).append(sample)
        yield model, Measured(own[0]["trained_length"], cells)


def loss_and_keys() -> Grid:
    """Spearman's correlation of a low loss with what is found of keys, over methods of lexlet."""
    rows: list[list[GridEntry | MethodKey | str]] = []
    for near, without in ((False, False), (False, True), (True, False), (True, True)):
        methods = recompute.compared_methods(near, without)
        words = f"{len(methods)}{f' within {recompute.NEAR_NATS} nats of the best' if near else ''}"
        entries = []
        for metric in SCORES_OF_KEYS:
            found = recompute.agreement(metric, methods)
            ends = [f"{end:.2f}" for end in recompute.middle(found.over_methods)]
            entries.append(GridEntry(text=f"{found.value:.2f}", ends=(ends[0], ends[1])))
        rows.append([words + (", without those that hide text" if without else ""), *entries])
    remark = (
        "Brackets: the middle 95 % where methods are drawn. Loss: last_segment; keys: passkey; both at 2,048 tokens. "
        "A text has one key: to reach it is to copy it whole."
    )
    title = "Spearman's correlation of a low loss and keys"
    return Grid(head=["methods of lexlet", *SCORES_OF_KEYS], rows=rows, title=title, remarks=[remark])


def main(runs: Sequence[str]) -> None:
    """Keep samples of runs, if any are given, and write the page and its figures."""
    if runs:
        keep_samples([Path(run) for run in runs])
    parts = [HEAD]
    for model, found in kept():
        stem = FOLDER / model
        told = page.section(found, model, stem, f"anatomy/{stem.name}.svg")
        if len(KEY_WORDINGS) - len(dropped_wordings(found)) < MIN_WORDINGS:  # too few for a table
            told = f"{told.partition('![')[0]}## Controls{told.partition('## Controls')[2]}"
        parts.append(f"# {model}\n\n{told}")
    parts.append(f"# Does loss tell ability?\n\n{formats.grid_markdown(loss_and_keys())}")
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main(sys.argv[1:])
