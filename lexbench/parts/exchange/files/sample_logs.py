"""Results by sample that other programs write: an id, a score or a loss, and a cluster for each sample.

    JSONL with columns       {"id": 7, "score": 1, "cluster": "book"}; `nll` in place of score, with `tokens`; `task`
    lm_eval                  samples_TASK_DATE.jsonl, or a folder of them
    Inspect                  a log, .json or .eval
    vLLM                     the output of run-batch, with `prompt_logprobs: 0` in the requests

Files are not trusted: sizes are bounded, and anything malformed is a ConfigError of one line that names the place.
"""

import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object, read_bytes, why_not_a_folder
from lexbench.parts.exchange.lm_eval.results.files import MAX_FILE_BYTES, numbered_lines

DEFAULT_COLUMNS = {"id": "id", "score": "score", "nll": "nll", "tokens": "tokens", "cluster": "cluster", "task": "task"}
"""Names of the columns of JSONL, by what they hold."""
SCORE_OF_INSPECT_GRADE = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's grades: correct, incorrect, partial, no answer."""
ZIP_METHOD_ZSTANDARD = 93
"""Number of Zstandard among the compression methods of ZIP."""
DATED_LOG_NAME = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+")
SAME_IN_VLLM = "ask for prompt_logprobs: 0, which scores the prompt"


@dataclass(frozen=True)
class Line:
    """Result of one sample under one metric.

    Args:
        task: what was asked; a file may hold several.
        metric: nll, or the name of a score in [0, 1].
        id: of the sample, the same in both files.
        cluster: samples of one cluster are not independent.
        amount: nats over all tokens, or the score; None: failed, without a value.
        tokens: of a loss; None: not known.
    """

    task: str
    metric: str
    id: str
    cluster: str
    amount: float | None
    tokens: int | None = None


def is_log(path: Path) -> bool:
    """Whether a path is results by sample, and not a run folder."""
    return path.is_file() or (path.is_dir() and any(path.glob("samples_*.jsonl")))


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
    if path.suffix == ".eval" and not own:
        return [*_inspect(_unpack_log(path), path)]
    if path.suffix == ".json" and not own:
        return [*_inspect(parse_object(_read_bounded(path), f"results {path}", "give an Inspect log, or JSONL"), path)]
    found = [line for place, row in _rows(path) for line in _of_row(row, place, path, columns, own)]
    if not found:
        raise ConfigError(f"results {path} hold no sample: run the evaluation again")
    return found


def _read_bounded(path: Path) -> bytes:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(f"results {path} are larger than {MAX_FILE_BYTES >> 20} MiB: give JSONL, a line a sample")
    return read_bytes(path)


def _folder(path: Path) -> list[Line]:
    """The samples of every task in a folder of lm_eval's, which holds one evaluation."""
    files = sorted(path.glob("samples_*.jsonl"))
    tasks = [_task_of(file) for file in files]
    if twin := next((task for task in tasks if tasks.count(task) > 1), None):
        raise ConfigError(f"folder {path} holds several evaluations of {twin}: give the samples files of one")
    return [line for file in files for line in read(file, DEFAULT_COLUMNS, False)]


def _task_of(file: Path) -> str:
    dated = DATED_LOG_NAME.fullmatch(file.stem)
    return dated[1] if dated else file.stem.removeprefix("samples_")


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
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise ConfigError(f"{place} has {columns['tokens']} {tokens!r}: it must be a whole number of at least 1")
    name, metric = ("nll", "nll") if "nll" in held else ("score", columns["score"])
    return Line(
        task=str(held.get("task", "all samples")),
        metric=metric,
        id=_text(held["id"]),
        cluster=_text(held.get("cluster", held["id"])),
        amount=_amount(held[name], metric, f"{place}, {columns[name]}"),
        tokens=tokens if metric == "nll" else None,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _amount(value: Any, metric: str, place: str) -> float | None:
    """A score or loss; None where it is null or not finite; ConfigError for anything else, and outside [0, 1]."""
    if value is None:
        return None
    if not isinstance(value, bool | int | float):
        raise ConfigError(f"{place} must be a number, got {str(value)[:60]!r}: write 0 and 1 for wrong and right")
    number = float(value)
    if not math.isfinite(number):
        return None
    if metric != "nll" and not 0 <= number <= 1:
        raise ConfigError(
            f"{place} must be a score in [0, 1], got {number:g}: divide it by its maximum, or name it nll"
        )
    return number


def _lm_eval(row: Mapping[str, Any], place: str, path: Path) -> Iterator[Line]:
    """A line of lm_eval's samples: each metric under each filter is a task of its own.

    A pair is the log-likelihood of a text and its units, words or bytes. Metrics of other forms are left out.
    """
    doc = row.get("doc")
    cluster = doc.get("cluster") if isinstance(doc, Mapping) else None
    told = "" if row.get("filter") in (None, "none") else f",{row['filter']}"
    for name in row["metrics"]:
        value = row.get(str(name))
        shared: dict[str, Any] = {
            "task": f"{_task_of(path)} {name}{told}",
            "id": _text(row["doc_id"]),
            "cluster": _text(cluster if cluster is not None else row.get("doc_hash") or row["doc_id"]),
        }
        if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
            if value[1] < 1:
                raise ConfigError(f"{place} has {name} {value}: the units of a text must be at least 1")
            yield Line(**shared, metric="nll", amount=_amount(-value[0], "nll", place), tokens=int(value[1]))
        elif isinstance(value, bool | int | float) and (not math.isfinite(value) or 0 <= value <= 1):
            yield Line(**shared, metric=str(name), amount=_amount(value, str(name), place))


def _vllm(row: Mapping[str, Any], place: str) -> Line:
    """A line of run-batch: the loss of the prompt's tokens, which both files share."""
    response = row.get("response")
    body = response.get("body") if isinstance(response, Mapping) else None
    shared: dict[str, Any] = {
        "task": "prompts",
        "metric": "nll",
        "id": _text(row["custom_id"]),
        "cluster": _text(row["custom_id"]),
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
    total = math.fsum(nats) if nats and all(map(math.isfinite, nats)) else None
    return Line(**shared, amount=total, tokens=len(nats) or None)


def _unpack_log(path: Path) -> dict[str, Any]:
    """An Inspect log of the form .eval, a ZIP of header.json and samples/*.json, as one object."""
    remedy = "write it again with inspect log convert --to json"
    content = _read_bounded(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            names = [each for each in packed.infolist() if each.filename.startswith("samples/")]
            if sum(each.file_size for each in packed.infolist()) > MAX_FILE_BYTES:
                raise ConfigError(
                    f"results {path} unpack to more than {MAX_FILE_BYTES >> 20} MiB: {remedy}, and take a part"
                )
            texts = [
                (each.filename, _member(packed, each, content)) for each in [packed.getinfo("header.json"), *names]
            ]
    except (zipfile.BadZipFile, KeyError, NotImplementedError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"results {path} cannot be unpacked ({str(error)[:80]}): {remedy}") from None
    header, *samples = (parse_object(text, f"{name} of {path}", remedy) for name, text in texts)
    return {**header, "samples": samples}


def _member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, content: bytes) -> bytes:
    """The bytes of a file in a ZIP; Zstandard, which Inspect uses, is unknown to Python's own reader before 3.14."""
    if member.compress_type != ZIP_METHOD_ZSTANDARD:
        return packed.read(member)
    import pyarrow as pa

    # A local header of 30 bytes, then the name and the extra field, whose lengths are its last 4 bytes.
    name, extra = struct.unpack_from("<HH", content, member.header_offset + 26)
    first = member.header_offset + 30 + name + extra
    unpacked = pa.decompress(
        content[first : first + member.compress_size], decompressed_size=member.file_size, codec="zstd", asbytes=True
    )
    if zlib.crc32(unpacked) != member.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 of {member.filename}")
    return bytes(unpacked)


def _inspect(log: Mapping[str, Any], path: Path) -> Iterator[Line]:
    """The samples of an Inspect log: each scorer, and each value of it, is a task of its own.

    Epochs of one sample are a cluster. A sample that ended by an error has no score and failed.
    """
    about, samples = log.get("eval"), log.get("samples")
    if not isinstance(about, Mapping) or not isinstance(samples, list) or not samples:
        raise ConfigError(f"results {path} are no Inspect log with samples: give its .eval or .json, or JSONL")
    every = [sample for sample in samples if isinstance(sample, Mapping) and "id" in sample]
    names = dict.fromkeys(name for sample in every for name in _scores(sample, path))
    if not names:
        raise ConfigError(f"results {path} have no score in [0, 1]: score them with inspect score")
    for sample in every:
        held = _scores(sample, path)
        for name in names:
            yield Line(
                task=f"{about.get('task', 'task')} {name}",
                metric=name,
                id=f"{_text(sample['id'])} epoch {sample.get('epoch', 1)}",
                cluster=_text(sample["id"]),
                amount=held.get(name),
            )


def _scores(sample: Mapping[str, Any], path: Path) -> dict[str, float | None]:
    """Scores by scorer; a scorer of several values gives each of them a name."""
    found: dict[str, float | None] = {}
    for scorer, score in (sample.get("scores") or {}).items():
        value = score.get("value") if isinstance(score, Mapping) else score
        several = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, each in several:
            number = SCORE_OF_INSPECT_GRADE.get(each, each) if isinstance(each, str) else each
            if isinstance(number, bool | int | float) and (not math.isfinite(number) or 0 <= number <= 1):
                name = f"{scorer}.{part}" if part else str(scorer)
                found[name] = _amount(number, name, f"sample {sample['id']} of {path}")
    return found
