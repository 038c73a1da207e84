"""The card of a dataset of samples: its README.md on the Hugging Face hub, with the head that `datasets` reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import DatasetCardData

from lexbench.integrations.hub.card_yaml import MARK, with_key
from lexbench.integrations.hub.dataset_files import SCORE, Head
from lexbench.stats.wording import escaped, listed, plain, several, some

OURS = "<!-- Written by lexbench share, and again each time; without this line your own text stays. -->"
SIZES = (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6), ("1M<n<10M", 10**7))
HEADING = """\
| configuration | task | models | methods | lengths | cells | samples |
| --- | --- | --- | --- | --- | ---: | ---: |"""
ABOUT = """\
A row is a sample: one question that a model was asked, with its answer. A *cell* is (model, method, task, length,
seed); a method changes the positions of a trained model, and `none` changes nothing. Samples of one `cluster` (a
document, a haystack) are not independent.

| column | holds |
| --- | --- |
| `model` `method` `task` `corpus` `seed` | the cell |
| `length` `trained_length` `multiple` | tokens, prompt and answer; tokens that the model was trained at; their ratio |
| `protocol` `backend` `dtype` `kernel` | how the cell was measured |
| `version` `cell` | of lexbench; the cell's id, as in `records.jsonl` |
| `index` `cluster` `tokens` | which sample of the cell it is, and its real length |
| `truncated` `failed` | whether its prompt was cut; why there is no answer |
| `score_...` `chance` | scores from 0 to 1, measures of attention in units of their own; what guessing gives |
| `nll` `bytes` `words` | negative log-likelihood of each target token, nats; what the targets stand for |
| `prompt` `output` `hit_room` | what was asked (of a long one what matters) and written; whether its room ended |
| `depth` `parts` `facts` | where the needle stands, 0 to 1; groups of samples; what else is known, as JSON |

Of a cell, the perplexity is `exp` of the mean over all `nll` values of all its rows without `failed`. A score is the
mean of its column, a failed row counts as 0; measures of attention leave it out. Take no mean over several protocols,
backends, dtypes, methods or lengths.
"""


def sample_card(card: str, cells: Sequence[Head], configurations: Mapping[str, str]) -> str:
    """The card of samples; an old one keeps its head but for the files and the size, and its text where it is not ours.

    Raises ValueError where the old card cannot be parsed.
    """
    data = _head(cells, configurations)
    text = f"{OURS}\n\n{_text(cells, configurations)}"
    if not card.removeprefix(MARK).strip():
        return f"---\n{DatasetCardData(**data).to_yaml()}\n---\n\n{text}"
    own = OURS in card
    for key in ("configs", "size_categories"):
        card = with_key(card, key, data[key])
    return card[: card.index(OURS)] + text if own else card


def _head(cells: Sequence[Head], configurations: Mapping[str, str]) -> dict[str, Any]:
    """What `datasets` and the hub read."""

    def files(name: str) -> list[dict[str, str]]:
        return [{"split": "test", "path": f"{name}/test-*.parquet"}]

    every: dict[str, Any] = {"config_name": "all", "default": True, "data_files": files("*")}
    of_tasks = [{"config_name": name, "data_files": files(name)} for name in configurations.values()]
    samples = sum(each.samples for each in cells)
    return {
        "pretty_name": _title(cells),
        "tags": ["lexbench", "evaluation", "long-context"],
        "task_categories": ["text-generation"],
        "size_categories": [next((name for name, below in SIZES if samples < below), "n>10M")],
        "configs": [every, *of_tasks],
    }


def _title(cells: Sequence[Head]) -> str:
    return f"lexbench samples of {some(sorted({each.cell.model for each in cells}), 3)}"


def _text(cells: Sequence[Head], configurations: Mapping[str, str]) -> str:
    """What is in the files, in words and a table."""
    rows = []
    for task, name in configurations.items():
        of_task = [each for each in cells if each.cell.task == task and each.samples]
        models = some(sorted({each.cell.model for each in of_task}), 3)
        methods = sorted({each.cell.method for each in of_task}, key=lambda method: (method != "none", method))
        lengths = listed([each.cell.length for each in of_task])
        samples = str(sum(each.samples for each in of_task))
        rows.append([name, escaped(task), escaped(models), escaped(some(methods)), lengths, str(len(of_task)), samples])
    table = [HEADING, *(f"| {' | '.join(row)} |" for row in rows)]
    refused = [each for each in cells if each.refused]
    scores = sorted({SCORE + name for each in cells for name in each.metrics})
    example = next(iter(configurations.values()))
    lines = [f"# {escaped(_title(cells))}", "", "Questions, answers and scores behind the tables of lexbench.", ""]
    lines += ["```python", "from datasets import load_dataset", ""]
    lines += [
        f'samples = load_dataset("FOLDER", "{example}", split="test")  # this one, or its name on the hub',
        "```",
        "",
    ]
    lines += [*table, "", f"`all`, the default, holds them together. Scores here: {_code(scores)}."]
    if refused:
        lines += ["", f"{several(len(refused), 'cell')} had no honest answer and no samples: {_reasons(refused)}."]
    return "\n".join([*lines, "", "## Columns", "", ABOUT])


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{plain(name).replace('`', '')}`" for name in names) or "none"


def _reasons(refused: Sequence[Head]) -> str:
    return escaped(some(sorted({str(each.refused) for each in refused}), 3, "; "))
