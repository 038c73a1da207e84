"""Writes the card of a dataset of samples: README.md for the Hugging Face hub, with the head that `datasets` reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import DatasetCardData

from lexbench.core.method_key import sort_by_name
from lexbench.core.text import count_with_noun, join_first_few, join_lengths, plain_text
from lexbench.parts.exchange.hub.card_yaml import BYTE_ORDER_MARK, set_head_key
from lexbench.parts.exchange.hub.dataset_files import SCORE_COLUMN_PREFIX, CellHead
from lexbench.report.formats import escape_markdown

OWN_TEXT_MARK = "<!-- Written by lexbench share, and again each time; without this line your own text stays. -->"
SIZE_CATEGORIES = (
    ("n<1K", 10**3),
    ("1K<n<10K", 10**4),
    ("10K<n<100K", 10**5),
    ("100K<n<1M", 10**6),
    ("1M<n<10M", 10**7),
)
TABLE_HEADING = """\
| configuration | task | models | methods | lengths | cells | samples |
| --- | --- | --- | --- | --- | ---: | ---: |"""
ROWS_EXPLANATION = """\
A row is a sample: one question with the model's answer. A *cell* is (model, method, task, length,
seed); a method changes the positions of a trained model, and `none` changes nothing. Samples of one `cluster` (a
document, a haystack) are not independent.

| column | holds |
| --- | --- |
| `model` `method` `task` `corpus` `seed` | the cell |
| `length` `trained_length` `multiple` | tokens of prompt and answer; the model's trained length; their ratio |
| `protocol` `backend` `dtype` `kernel` | how the cell was measured |
| `version` `cell` | version of lexbench; the cell's id, as in `records.jsonl` |
| `index` `cluster` `tokens` | number of the sample in its cell; its document or haystack; its real length |
| `truncated` `failed` | whether the prompt was truncated; why there is no answer |
| `score_...` `chance` | scores from 0 to 1, attention statistics in their own units; score of a random guess |
| `nll` `bytes` `words` | negative log-likelihood of each target token, nats; bytes and words of the targets |
| `prompt` `output` `hit_room` | prompt (a long one is shortened); written text; whether it was cut at its limit |
| `depth` `parts` `facts` | position of the needle, 0 to 1; groups of samples; other facts, as JSON |

The perplexity of a cell is `exp` of the mean over all `nll` values of its rows without `failed`. A score of a cell is
the mean of its column: a failed row counts as 0, but attention statistics leave it out. Do not average over several
protocols, backends, dtypes, methods or lengths.
"""


def sample_card(card: str, cells: Sequence[CellHead], configurations: Mapping[str, str]) -> str:
    """The card of a dataset; in an existing card only files and size in the head, and our own text, are replaced.

    Raises ConfigError if the existing card cannot be parsed.
    """
    data = _card_head(cells, configurations)
    text = f"{OWN_TEXT_MARK}\n\n{_card_text(cells, configurations)}"
    if not card.removeprefix(BYTE_ORDER_MARK).strip():
        return f"---\n{DatasetCardData(**data).to_yaml()}\n---\n\n{text}"
    own = OWN_TEXT_MARK in card
    for key in ("configs", "size_categories"):
        card = set_head_key(card, key, data[key])
    return card[: card.index(OWN_TEXT_MARK)] + text if own else card


def _card_head(cells: Sequence[CellHead], configurations: Mapping[str, str]) -> dict[str, Any]:
    """The head, for `datasets` and the hub."""

    def files(name: str) -> list[dict[str, str]]:
        return [{"split": "test", "path": f"{name}/test-*.parquet"}]

    every: dict[str, Any] = {"config_name": "all", "default": True, "data_files": files("*")}
    of_tasks = [{"config_name": name, "data_files": files(name)} for name in configurations.values()]
    samples = sum(each.samples for each in cells)
    return {
        "pretty_name": _card_title(cells),
        "tags": ["lexbench", "evaluation", "long-context"],
        "task_categories": ["text-generation"],
        "size_categories": [next((name for name, below in SIZE_CATEGORIES if samples < below), "n>10M")],
        "configs": [every, *of_tasks],
    }


def _card_title(cells: Sequence[CellHead]) -> str:
    return f"lexbench samples of {join_first_few(sorted({each.cell.model for each in cells}), 3)}"


def _card_text(cells: Sequence[CellHead], configurations: Mapping[str, str]) -> str:
    """The text: an example of use, a table of the files, and the columns."""
    rows = []
    for task, name in configurations.items():
        of_task = [each for each in cells if each.cell.task == task and each.samples]
        models = join_first_few(sorted({each.cell.model for each in of_task}), 3)
        methods = sort_by_name({each.cell.method for each in of_task})
        lengths = join_lengths([each.cell.length for each in of_task])
        samples = str(sum(each.samples for each in of_task))
        rows.append(
            [
                name,
                escape_markdown(task),
                escape_markdown(models),
                escape_markdown(join_first_few(methods)),
                lengths,
                str(len(of_task)),
                samples,
            ]
        )
    table = [TABLE_HEADING, *(f"| {' | '.join(row)} |" for row in rows)]
    refused = [each for each in cells if each.refused]
    scores = sorted({SCORE_COLUMN_PREFIX + name for each in cells for name in each.metrics})
    example = next(iter(configurations.values()))
    lines = [
        f"# {escape_markdown(_card_title(cells))}",
        "",
        "Questions, answers and scores behind the tables of lexbench.",
        "",
    ]
    lines += ["```python", "from datasets import load_dataset", ""]
    lines += [f'samples = load_dataset("FOLDER", "{example}", split="test")  # this folder, or its name on the hub']
    code = ", ".join(f"`{plain_text(name).replace('`', '')}`" for name in scores) or "none"
    lines += ["```", "", *table, "", f"`all` is the default and holds all of them. Scores: {code}."]
    if refused:
        reasons = escape_markdown(join_first_few(sorted({str(each.refused) for each in refused}), 3, "; "))
        lines += ["", f"{count_with_noun(len(refused), 'cell')} refused, without samples: {reasons}."]
    return "\n".join([*lines, "", "## Columns", "", ROWS_EXPLANATION])
