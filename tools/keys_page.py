"""Write results/reference/keys/README.md from keys/lexlet.parquet: python tools/keys_page.py

Keys of lexlet under every method by four scores of one reading: copied whole, tokens in place, chosen among 32, forced.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.report.formats import markdown_columns
from lexbench.stats.intervals import wilson_interval
from lexbench.store.cell_rows import read_cell

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
TRAINED_LENGTH, FARTHEST_LENGTH = 256, 2048
N_KEYS = 32
INTRODUCTION = """\
# Keys of lexlet: copied whole, in place, chosen, forced

    python tools/keys_page.py

**Copying a key whole says little of reaching it.** At 8 T = 2,048 tokens llama3 and jet_long copy none of 32 keys and
choose the right one of 32 in 31; yarn copies 1 and chooses 24; ntk, pi and the unmodified model copy none and choose
5, 1
and 0 (chance: 1). Control: at T = 256 the unmodified model copies and chooses 32 of 32. n = 32 passkeys, one seed, one
training (lexlet was taught passkeys); no pair is tested here, and most predictions of
[PREREGISTRATION.md](../lexlet/PREREGISTRATION.md) are not judged yet.

`chosen`: the right key is the likeliest of 32 of as many tokens, the others drawn for each sample. *Forced*: share of
the key's tokens that are likeliest when the right ones stand before them. *In place*: share of its digits written at
their place. Brackets hold Wilson's 95 % intervals. Samples: `lexlet.parquet`, measured by
`lexbench run method=NAME task=passkey n=32` with its default lengths.

"""


def main() -> None:
    scores: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    for row in pq.read_table(REFERENCE / "keys" / "lexlet.parquet").to_pylist():
        cell = read_cell(json.loads(row["cell"]), "its identity")
        if cell.method.at is None and cell.length in (TRAINED_LENGTH, FARTHEST_LENGTH):
            scores[str(cell.method), cell.length].append(json.loads(row["scores"]))
    names = {name for name, length in scores if length == FARTHEST_LENGTH}
    names = {name for name in names if "(" not in name}
    order = sorted(names, key=lambda name: (-_sum(scores[name, FARTHEST_LENGTH], "chosen"), name))
    heads = ["method", "chosen at 8 T", "copied whole at 8 T", "in place", "forced", "chosen at T", "copied whole at T"]
    rows = []
    for name in order:
        far, near = scores[name, FARTHEST_LENGTH], scores[name, TRAINED_LENGTH]
        shares = [f"{_sum(far, each) / N_KEYS:.2f}" for each in ("in_place", "forced")]
        counts = [_count(far, "chosen"), _count(far, "accuracy"), *shares]
        rows.append([name, *counts, _count(near, "chosen"), _count(near, "accuracy")])
    page = INTRODUCTION + "\n".join(markdown_columns(heads, rows)) + "\n"
    (REFERENCE / "keys" / "README.md").write_text(page)


def _sum(samples: list[dict[str, float]], name: str) -> float:
    assert len(samples) == N_KEYS, f"{len(samples)} samples"
    return math.fsum(sample[name] for sample in samples)


def _count(samples: list[dict[str, float]], name: str) -> str:
    right = _sum(samples, name)
    ends = wilson_interval(right, N_KEYS)
    return f"{right:.0f} [{100 * ends.low:.0f}, {100 * ends.high:.0f} %]"


if __name__ == "__main__":
    main()
