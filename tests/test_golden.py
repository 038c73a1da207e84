"""The demo gives the numbers that it gave before the code was laid out anew: records of version 0.1.0, as committed.

tests/golden/demo.jsonl.gz holds the records of

    lexbench run -m method=none,pi,ntk,yarn,rerope task=demo corpus=synthetic n=6 multiples=[0.5,2,4]

at the commit c9954eb. Added since: the columns uniform, unigram and bigram, and the price cells `pi(factor=4.0)`,
`ntk(factor=4.0)` and `yarn(factor=4.0)` at 128. Changed since: the ends of intervals, now of the bootstrap-t
(`lexbench.stats.intervals.interval_halfwidths`); names of cells under pi, ntk and yarn, which frequencies enter with 12
digits; version 3 of passkey, with the scores in_place, reached, chosen and forced. A change of these numbers needs a
version of the task or method that says why. The version of lexbench, which a commit enters, is left out.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands import main

GOLDEN = Path(__file__).parent / "golden" / "demo.jsonl.gz"
WORDS = ["method=none,pi,ntk,yarn,rerope", "task=demo", "corpus=synthetic", "n=6", "multiples=[0.5,2,4]"]


def rows(lines: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = [json.loads(line) for line in lines.splitlines()]
    return {(row["method"], row["task"], row["length"], row["metric"]): row for row in found}


@pytest.mark.slow
def test_the_demo_gives_the_committed_records(tmp_path: Path) -> None:
    assert main.main(["run", "-m", *WORDS, f"results={tmp_path}"]) == 0
    ours, theirs = rows((tmp_path / "records.jsonl").read_text()), rows(gzip.decompress(GOLDEN.read_bytes()).decode())
    assert ours.keys() == theirs.keys()
    for key, golden in theirs.items():
        for name, value in golden.items():  # the last bits of sums differ between processors
            same = pytest.approx(value, rel=1e-5, abs=1e-7) if isinstance(value, float) else value
            assert ours[key][name] == same, f"{name} of {key}"
