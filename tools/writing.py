"""Writing as in LongBench, beside another checkout of lexbench: python tools/writing.py --against DIR

The same model (lexlet, float32), the same questions, the same machine; each side a process of its own, in turns.
Prompts of a data set differ in length, as LongBench's do, and each is answered with all the tokens that the data set
leaves room for, unless the model ends before: qasper 128, gov_report 512. The texts are the standard library's, in
LongBench's format.

`answering` is the time in which a run's cells are answered, without imports, loading and tables; the factor is the
other checkout's time over ours. `same` counts texts that both sides wrote alike: sums in another order move likelihoods
by some 1e-6 nats, and where two tokens are about as likely the texts part.
"""

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import objects, registry
from lexbench.store.store import Store
from tools import sides

SHORTEST = 0.3
"""Share of the length of the shortest context; the longest has it all, with the prompt's words and the room."""


def write_data(folder: Path, name: str, length: int, n: int) -> None:
    """LongBench's file of a data set: n contexts of evenly spread lengths."""
    tokenizer = load_tokenizer(sides.LEXLET, None)
    texts = (
        tokenizer.encode(each.text).ids
        for each in objects.build_object(registry.read_named_config("corpus", "stdlib"), "corpus").documents()
    )
    long = itertools.islice((ids for ids in texts if len(ids) >= length), n)
    sizes = np.linspace(SHORTEST, 1.0, n) * length
    rows = [
        {
            "input": "What is defined first?",
            "context": tokenizer.decode(ids[: int(size)]),
            "answers": ["a function"],
            "length": int(size),
            "dataset": name,
            "language": "en",
            "all_classes": None,
            "_id": str(number),
        }
        for number, (ids, size) in enumerate(zip(long, sizes, strict=True))
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def answers(results: Path) -> dict[str, str]:
    """What was written, by prompt."""
    cells = Store(results).load()
    if refused := [cell.refused for cell in cells if cell.refused]:
        raise SystemExit(f"lexbench refused: {refused[0]}")
    return {str(sample.prompt): str(sample.output) for cell in cells for sample in cell.samples}


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout of lexbench")
    parser.add_argument("--datasets", nargs="+", default=["qasper", "gov_report"])
    parser.add_argument("--methods", nargs="+", default=["none", "rerope"])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if not (options.against / "lexbench" / "__init__.py").is_file():
        parser.error(f"--against must be a checkout of lexbench, got {options.against}")
    sides.header("Writing beside another checkout")
    sides.table(":data set", ":method", "ours, answering s", "the other's", "factor (least to most)", "same")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        for name, method in itertools.product(options.datasets, options.methods):
            write_data(data, name, options.length, options.n)
            spent: dict[str, list[float]] = {"ours": [], "other": []}
            written: dict[str, dict[str, str]] = {}
            for number in range(options.repeat):
                for side, checkout in (("ours", sides.ROOT), ("other", options.against.resolve())):
                    results = Path(folder, f"{name}-{method}-{number}-{side}")
                    words = f"task=longbench task.dataset={name} task.data={data} method={method}"
                    words += f" lengths=[{options.length}] n={options.n}"
                    sides.run(
                        [sys.executable, "-m", "lexbench", "run", *words.split(), f"results={results}"],
                        PYTHONPATH=str(checkout),
                        PYTHONSAFEPATH="1",  # else the working folder's lexbench goes before
                    )
                    spent[side].append(sides.asked(results))
                    written[side] = answers(results)
            factors = [other / own for own, other in zip(spent["ours"], spent["other"], strict=True)]
            same = len(written["ours"].items() & written["other"].items())
            own, other = (sides.median(spent[side]) for side in ("ours", "other"))
            factor = f"{sides.median(factors):.2f} ({min(factors):.2f} to {max(factors):.2f})"
            sides.row(name, method, f"{own:.1f}", f"{other:.1f}", factor, f"{same} of {options.n}")


if __name__ == "__main__":
    main()
