"""Reads the samples of Inspect's logs, .json or .eval; the files are not trusted."""

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.files import parse_object
from lexbench.core.text import plain_text
from lexbench.parts.exchange.files.sample_line import LOWER_IS_BETTER, Line, amount_of, hashes_of, text_of
from lexbench.parts.exchange.lm_eval.results.files import MAX_FILE_BYTES

SCORE_OF_INSPECT_GRADE = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's grades: correct, incorrect, partial, no answer."""
ZIP_METHOD_ZSTANDARD = 93
"""Number of Zstandard among the compression methods of ZIP."""


def unpack_log(path: Path, content: bytes) -> dict[str, Any]:
    """An Inspect log of the form .eval, a ZIP of header.json and samples/*.json, as one object."""
    remedy = "write it again with inspect log convert --to json"
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


def lines_of_log(log: Mapping[str, Any], path: Path) -> Iterator[Line]:
    """The samples of an Inspect log: each scorer, and each value of it, is a task of its own.

    Epochs of one sample are a cluster. A sample that ended by an error has no score and failed; one that a scorer left
    unscored, NaN, is left out. ConfigError for a log that did not end well: its samples are those that were quick.
    """
    about, samples = log.get("eval"), log.get("samples")
    if not isinstance(about, Mapping) or not isinstance(samples, list) or not samples:
        raise ConfigError(f"results {path} are no Inspect log with samples: give its .eval or .json, or JSONL")
    status = log.get("status", "success")
    if status != "success":
        raise ConfigError(
            f"results {path} ended with status {plain_text(str(status)[:20])}, so samples may be missing: finish them "
            "with inspect eval-retry"
        )
    every = [sample for sample in samples if isinstance(sample, Mapping) and "id" in sample]
    scored = [(sample, _scores(sample, path)) for sample in every]
    names = dict.fromkeys(name for _, held in scored for name in held)
    if not names:
        raise ConfigError(f"results {path} have no score in [0, 1]: score them with inspect score")
    for sample, held in scored:
        for name in names:
            amount = held.get(name)
            if amount is None or not math.isnan(amount):
                yield Line(
                    task=f"{about.get('task', 'task')} {name}",
                    metric=name,
                    id=f"{text_of(sample['id'])} epoch {sample.get('epoch', 1)}",
                    cluster=text_of(sample["id"]),
                    amount=amount,
                    prompt=_prompt(sample),
                    question=hashes_of(
                        {
                            "input": _without_ids(sample.get("input")),
                            "target": sample.get("target"),
                            "choices": sample.get("choices"),
                        }
                    ),
                )


def _prompt(sample: Mapping[str, Any]) -> str | None:
    """Hash of the messages before the model's first answer: a system's, examples, the question as it was put."""
    messages = sample.get("messages")
    if not isinstance(messages, list):
        return None
    asked = takewhile(lambda each: not isinstance(each, Mapping) or each.get("role") != "assistant", messages)
    return dict(hashes_of({"prompt": _without_ids([*asked])}))["prompt"]


def _without_ids(asked: Any) -> Any:
    """An input without the ids that Inspect draws for each message."""
    if not isinstance(asked, list):
        return asked
    names = ("role", "content")
    return [{name: each.get(name) for name in names} if isinstance(each, Mapping) else each for each in asked]


def _scores(sample: Mapping[str, Any], path: Path) -> dict[str, float | None]:
    """Scores by scorer, NaN where one left it unscored; a scorer of several values gives each of them a name.

    Values outside [0, 1] and measures whose lower values are better are left out.
    """
    found: dict[str, float | None] = {}
    given = sample.get("scores")
    for scorer, score in given.items() if isinstance(given, Mapping) else ():
        value = score.get("value") if isinstance(score, Mapping) else score
        several = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, each in several:
            number = SCORE_OF_INSPECT_GRADE.get(each, each) if isinstance(each, str) else each
            name = f"{scorer}.{part}" if part else str(scorer)
            if not isinstance(number, bool | int | float) or LOWER_IS_BETTER.search(name):
                continue
            if math.isnan(number):
                found[name] = math.nan
            elif 0 <= number <= 1:
                found[name] = amount_of(number, name, f"sample {sample['id']} of {path}")
    return found
