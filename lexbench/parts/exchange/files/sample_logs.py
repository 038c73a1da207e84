"""Results by sample that other programs write: an id, a score or a loss, and a cluster for each sample.

    JSONL with columns       {"id": 7, "score": 1, "cluster": "book"}; `nll` in place of score, with `tokens`; `task`
    lm_eval                  samples_TASK_DATE.jsonl, or a folder of them
    Inspect                  a log, .json or .eval
    Every Eval Ever          UUID_samples.jsonl
    vLLM                     the output of run-batch, with `prompt_logprobs: 0` in the requests

Each may be packed by gzip, and so named .gz. Files are not trusted: sizes are bounded, and anything malformed is a
ConfigError of one line that names the place.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object, why_not_a_folder
from lexbench.core.values import MAX_EXACT_INTEGER, is_whole
from lexbench.parts.exchange.files.every_eval_ever_samples import is_every_eval_ever, lines_of_every_eval_ever
from lexbench.parts.exchange.files.inspect_samples import lines_of_log, unpack_log
from lexbench.parts.exchange.files.sample_line import (
    ALL_SAMPLES,
    LOWER_IS_BETTER,
    Line,
    amount_of,
    hashes_of,
    refuse_lower_is_better,
    text_of,
)
from lexbench.parts.exchange.lm_eval.results.files import MAX_FILE_BYTES, numbered_lines, open_unpacked
from lexbench.parts.exchange.lm_eval.results.metrics import OTHER_SCALES_PATTERN
from lexbench.stats.metrics import is_token_loss

DEFAULT_COLUMNS = {"id": "id", "score": "score", "nll": "nll", "tokens": "tokens", "cluster": "cluster", "task": "task"}
"""Names of the columns of JSONL, by what they hold."""
LOG_GLOB = "samples_*.jsonl*"
"""Files of lm_eval in a folder, packed or not."""
DATED_LOG_NAME = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+")
MAX_TOKEN_LOGPROB = 1e-3
"""What rounding may leave above 0."""
SAME_IN_VLLM = "ask for prompt_logprobs: 0, which scores the prompt"


def is_log(path: Path) -> bool:
    """Whether a path is results by sample, and not a run folder."""
    return path.is_file() or (path.is_dir() and any(path.glob(LOG_GLOB)))


def columns_of(words: Sequence[str]) -> dict[str, str]:
    """The columns of `--columns id=question score=correct`; ConfigError for a word that is none."""
    given = dict(DEFAULT_COLUMNS) if not words else {}
    for word in words:
        name, equals, column = word.partition("=")
        if name not in DEFAULT_COLUMNS or not equals or not column:
            raise ConfigError(
                f"--columns takes NAME=COLUMN with {', '.join(DEFAULT_COLUMNS)}, got {word}: e.g. score=correct"
            )
        given[name] = column
    if words and ("score" in given) == ("nll" in given):
        raise ConfigError("--columns must name a score or an nll, and not both: e.g. id=question score=correct")
    return {"id": "id", **given}


def read(path: Path, columns: Mapping[str, str], own: bool) -> list[Line]:
    """The samples of a file, or of a folder that lm_eval wrote.

    Args:
        path: of them.
        columns: of JSONL, by what they hold.
        own: whether the user has named the columns: then nothing is recognised.

    Raises ConfigError for a file of none of the kinds, a malformed line, and a score outside [0, 1].
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise ConfigError(f"results {path} {why_not_a_folder(path)}: give a file of samples, or a run folder")
    suffix = _name(path).suffix
    if suffix == ".eval" and not own:
        return [*lines_of_log(unpack_log(path, _read_bounded(path)), path)]
    if suffix == ".json" and not own:
        log = parse_object(_read_bounded(path), f"results {path}", "give an Inspect log, or JSONL")
        return [*lines_of_log(log, path)]
    rows = _rows(path)
    first = next(rows, None)
    if first and not own and is_every_eval_ever(first[1]):
        return lines_of_every_eval_ever(chain([first], rows))
    found = (
        [line for place, row in chain([first], rows) for line in _of_row(row, place, path, columns, own)]
        if first
        else []
    )
    if not found:
        raise ConfigError(f"results {path} hold no sample: run the evaluation again")
    return found


def _name(path: Path) -> Path:
    """A file's name, without the .gz of a packed one."""
    return Path(path.stem if path.suffix == ".gz" else path.name)


def _read_bounded(path: Path) -> bytes:
    with open_unpacked(path) as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"results {path} are larger than {MAX_FILE_BYTES >> 20} MiB: give JSONL, a line a sample")
    return content


def _folder(path: Path) -> list[Line]:
    """The samples of every task in a folder of lm_eval's, which holds one evaluation."""
    files = sorted(path.glob(LOG_GLOB))
    tasks = [_task_of(file) for file in files]
    if twin := next((task for task in tasks if tasks.count(task) > 1), None):
        raise ConfigError(f"folder {path} holds several evaluations of {twin}: give the samples files of one")
    return [line for file in files for line in read(file, DEFAULT_COLUMNS, False)]


def _task_of(file: Path) -> str:
    name = _name(file).stem
    dated = DATED_LOG_NAME.fullmatch(name)
    return dated[1] if dated else name.removeprefix("samples_")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line that is not blank, with its place."""
    for place, line in numbered_lines(path, "write a line a sample"):
        if line.strip():
            yield place, parse_object(line, place, "write a JSON object a line")


def _of_row(row: Mapping[str, Any], place: str, path: Path, columns: Mapping[str, str], own: bool) -> Iterator[Line]:
    if not own and isinstance(row.get("metrics"), list) and "doc_id" in row:
        yield from _lm_eval(row, place, path)
    elif not own and "custom_id" in row and "response" in row:
        yield _vllm(row, place)
    else:
        yield _line_of_columns(row, place, columns)


def _line_of_columns(row: Mapping[str, Any], place: str, columns: Mapping[str, str]) -> Line:
    """A sample of JSONL with columns."""
    held = {name: row[column] for name, column in columns.items() if column in row}
    if "id" not in held:
        known = ", ".join(map(str, [*row][:8])) or "nothing"
        raise ConfigError(f"{place} has no column {columns['id']}, only {known}: name it, --columns id=COLUMN")
    if ("score" in held) == ("nll" in held):
        wanted = " or ".join(columns[name] for name in ("score", "nll") if name in columns)
        both = "both score and nll" if "score" in held else f"no column {wanted}"
        raise ConfigError(f"{place} has {both}: name one, --columns score=COLUMN or nll=COLUMN")
    tokens = held.get("tokens")
    if tokens is not None and not (is_whole(tokens, 1) and tokens < MAX_EXACT_INTEGER):
        raise ConfigError(f"{place} has {columns['tokens']} {tokens!r}: it must be a whole number of at least 1")
    name, metric = ("nll", "nll") if "nll" in held else ("score", columns["score"])
    refuse_lower_is_better(metric, place)
    return Line(
        task=str(held.get("task", ALL_SAMPLES)),
        metric=metric,
        id=text_of(held["id"]),
        cluster=text_of(held.get("cluster", held["id"])),
        amount=amount_of(held[name], metric, f"{place}, {columns[name]}"),
        tokens=tokens if is_token_loss(metric) else None,
    )


def _lm_eval(row: Mapping[str, Any], place: str, path: Path) -> Iterator[Line]:
    """A line of lm_eval's samples: each metric under each filter is a task of its own.

    A pair is the log-likelihood of a text and its units, words or bytes. Metrics of other forms are left out, and those
    that are not on a scale from 0 to 1, or whose lower values are better.
    """
    doc = row.get("doc")
    cluster = doc.get("cluster") if isinstance(doc, Mapping) else None
    told = "" if row.get("filter") in (None, "none") else f",{row['filter']}"
    for name in row["metrics"]:
        value = row.get(str(name))
        shared: dict[str, Any] = {
            "task": f"{_task_of(path)} {name}{told}",
            "id": text_of(row["doc_id"]),
            "cluster": text_of(cluster if cluster is not None else row.get("doc_hash") or row["doc_id"]),
            "question": hashes_of({"document": row.get("doc_hash"), "target": row.get("target_hash")}),
            "prompt": row.get("prompt_hash") and text_of(row["prompt_hash"]),
        }
        if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
            if not 1 <= value[1] < MAX_EXACT_INTEGER:
                raise ConfigError(f"{place} has {name} {value}: the units of a text must be at least 1")
            yield Line(**shared, metric="nll", amount=amount_of(-value[0], "nll", place), tokens=int(value[1]))
        elif _has_other_scale(str(name)):
            continue
        elif isinstance(value, bool | int | float) and not (value < 0 or value > 1):
            yield Line(**shared, metric=str(name), amount=amount_of(value, str(name), place))


def _has_other_scale(name: str) -> bool:
    """Whether a metric of lm_eval is no score in [0, 1] of which more is better."""
    words = name.split("_")
    return LOWER_IS_BETTER.search(name) is not None or (
        words[-1] != "acc" and any(map(OTHER_SCALES_PATTERN.fullmatch, words))
    )


def _vllm(row: Mapping[str, Any], place: str) -> Line:
    """A line of run-batch: the loss of the prompt's tokens, which both files share."""
    response = row.get("response")
    body = response.get("body") if isinstance(response, Mapping) else None
    shared: dict[str, Any] = {
        "task": "prompts",
        "metric": "nll",
        "id": text_of(row["custom_id"]),
        "cluster": text_of(row["custom_id"]),
    }
    if row.get("error") or not isinstance(body, Mapping):
        return Line(**shared, amount=None)
    choices = body.get("choices") or [{}]
    first = choices[0] if isinstance(choices, list) and isinstance(choices[0], Mapping) else {}
    given = body.get("prompt_logprobs") or first.get("prompt_logprobs")
    if not isinstance(given, list):
        raise ConfigError(
            f"{place} has no prompt_logprobs, and two models' own answers have no loss in common: {SAME_IN_VLLM}"
        )
    found = [each for each in given if each is not None]  # the first token has none
    if any(not isinstance(each, Mapping) or len(each) != 1 for each in found):
        raise ConfigError(f"{place} has several tokens at a place of prompt_logprobs: {SAME_IN_VLLM} alone")
    try:
        nats = [-float(token["logprob"]) for each in found for token in each.values()]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{place} has prompt_logprobs without logprob: {SAME_IN_VLLM}") from None
    if any(math.isnan(each) or each < -MAX_TOKEN_LOGPROB for each in nats):
        raise ConfigError(f"{place} has a logprob above 0 or NaN, which is none of a probability: {SAME_IN_VLLM}")
    read = [name for each in found for name in each]
    total = amount_of(math.fsum(nats), "nll", place) if nats else None
    return Line(**shared, amount=total, tokens=len(nats) or None, question=hashes_of({"tokens of the prompt": read}))
