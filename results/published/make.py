"""The figures of this folder, made from collected tables of papers: `python results/published/make.py FOLDER`.

FOLDER holds the collected tables (*.csv with table_id, dataset, model, method, train_len, eval_len, metric, value, flag
and source). What is said of each table (source, protocol, caveats) stands in tables.csv and is written by hand; here
are the rules by which a collected row becomes a figure of our schema (README.md). A row or remark that no rule knows is
an error: nothing is dropped unseen.
"""

import csv
import io
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = (
    *("table", "dataset", "model", "method", "trained_length", "length", "printed_length"),
    *("metric", "value", "above", "note"),
)
METRICS = {
    "ppl": "perplexity",
    "ppl_sw256": "perplexity",
    "ppl_sw512": "perplexity",
    "geo-mean ppl": "perplexity",
    "loss": "nll",
    "acc": "accuracy",
    "acc_%": "accuracy (%)",
    "token_acc_%": "token accuracy (%)",
    "presence_acc": "accuracy",
    "attention_resolution": "attention resolution",
    "tokens": "effective window (tokens)",
    **dict.fromkeys(("avg", "avg13", "score", "longbench_score", "avg 13 tasks x 7 lengths 4K-128K"), "score"),
}
DATASETS = {
    **dict.fromkeys(("(README PPL table)", "(README)", "-"), ""),
    **dict.fromkeys(("PG19", "PG19 val"), "PG-19"),
    "Proof-file": "Proof-pile",
    "Mshots(TREC news)": "many shots (TREC news)",
    "effective window": "passkey",
}
PERCENT = {("LCEG-T1", "acc")}
"""Accuracies that are printed as percentages without a sign."""
KINDS = {
    "(train)": "",
    "(repeated)": ", repeated",
    "(non-repeated)": ", not repeated",
}
"""Of the text at a length, as Su's tables head their columns."""
OF_TABLES = (
    "secondary",
    "ChunkLlama3-70B row is shifted one column versus Table 1/README",
    "trailing cells missing in (blank = not printed / lost)",
    "10B-token mid-training to 128k",
    "10B-token mid-training",
    "only the avg column is copied: some per-task cells are merged in the",
    "training length not stated next to the table",
)
"""Remarks that hold for a whole table: tables.csv says them."""
OF_FIGURES = {
    "fine-tuned": "fine-tuned",
    "fine-tuned to 8k": "fine-tuned to 8k",
    "avg over lengths <= context": "",
    "16k uses inference scale 8": "scale 8",
    'printed as "13,72"': "printed with a comma",
    "WikiText rows attributed by the survey to Sun et al. 2023 but not found in LEX (ACL 2023)": (
        "attributed by the survey to Sun et al. 2023, and not found there"
    ),
    "OOM": "out of memory",
    "inf": "infinite",
    "NaN": "not a number",
}


def figures(folder: Path) -> dict[str, str]:
    """File name to content: every collected row, in its order, by the file that tables.csv gives its table."""
    with (HERE / "tables.csv").open(encoding="utf-8", newline="") as stream:
        tables = {row["of"]: row for row in csv.DictReader(stream)}
    found: dict[str, list[dict[str, str]]] = {row["file"]: [] for row in tables.values()}
    for source in sorted(folder.glob("*.csv")):
        with source.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                table = tables[row["table_id"]]
                found[table["file"]].append({"table": table["table"], **_figure(row)})
    return {f"{name}.csv": _csv(rows) for name, rows in sorted(found.items())}


def _figure(row: Mapping[str, str]) -> dict[str, str]:
    above, notes = "", []
    for remark in _remarks(row["flag"]):
        if remark.startswith(">"):
            base, _, power = remark[1:].partition("^")
            above = str(int(base) ** int(power or 1))
        elif remark not in OF_TABLES:
            notes.append(OF_FIGURES[remark])
    length, printed, kind = _length(row["eval_len"])
    dataset = DATASETS.get(row["dataset"], row["dataset"]) + kind
    if row["table_id"] == "LongRoPE2-T4":
        dataset, printed = f"{dataset}/{printed}", ""
    if row["value"] == "" and not above and not notes:
        raise ValueError(f"{row['table_id']} has a row without a value and without a reason: {dict(row)}")
    percent = (row["table_id"], row["metric"]) in PERCENT
    return {
        "dataset": dataset,
        "model": "" if row["model"] == "-" else row["model"],
        "method": row["method"],
        "trained_length": _whole(row["train_len"]),
        "length": length,
        "printed_length": printed,
        "metric": "accuracy (%)" if percent else METRICS[row["metric"]],
        "value": row["value"],
        "above": above,
        "note": "; ".join(note for note in notes if note),
    }


def _remarks(flag: str) -> Iterator[str]:
    """`>10^2 fine-tuned; other` is three remarks."""
    for part in filter(None, (part.strip() for part in flag.split(";"))):
        bound, space, rest = part.partition(" ") if part.startswith(">") else (part, "", "")
        yield bound
        if space:
            yield rest


def _whole(text: str) -> str:
    return "" if text == "-" else str(int(text)) if text else ""


def _length(text: str) -> tuple[str, str, str]:
    """Whole tokens, or else what is printed; and the kind of text.

    64k is 65536: of powers of two, and of them alone, it is known what k and M mean.
    """
    kind = next((kind for kind in KINDS if text.endswith(kind)), "")
    text = text.removesuffix(kind)
    if text.isdecimal():
        return text, "", KINDS.get(kind, "")
    letter = re.fullmatch(r"(\d+)([kKM])", text)
    if letter and int(letter[1]).bit_count() == 1:
        return str(int(letter[1]) * (1 << (20 if letter[2] == "M" else 10))), "", ""
    return "", {"-": "", "short": "", "<=64k": "up to 64k", "avg": "mean"}.get(text, text), ""


def _csv(rows: list[dict[str, str]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


BEGIN, END = "<!-- tables: made by make.py -->\n", "<!-- end of tables -->\n"


def readme(made: Mapping[str, str]) -> str:
    """README.md with the list of tables, and their numbers of figures, made anew."""
    counts: dict[str, int] = {}
    for content in made.values():
        for figure in csv.DictReader(io.StringIO(content)):
            counts[figure["table"]] = counts.get(figure["table"], 0) + 1
    lines = ["| table | figures | source | protocol |", "| --- | ---: | --- | --- |"]
    with (HERE / "tables.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            said = f"{row['protocol']}; {row['note']}" if row["note"] else row["protocol"]
            source = f"{row['source']} *(secondary)*" if row["secondary"] else row["source"]
            lines.append(f"| `{row['table']}` | {counts[row['table']]} | {source} | {said} |")
    before, _, rest = (HERE / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    made = figures(Path(sys.argv[1]))
    for name, content in {**made, "README.md": readme(made)}.items():
        (HERE / name).write_text(content, encoding="utf-8")
