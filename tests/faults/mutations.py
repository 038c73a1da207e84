"""Damaged files: valid ones changed at random, as bytes, as JSON, as Parquet, as safetensors, and in what they are."""

import contextlib
import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RAW = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000, "1" + "0" * 400, "[" * 100_000 + "]" * 100_000)
"""What JSON may spell and no plain value gives."""
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 10**30, 2**63, -(2**63), 1e308, 3.7),
    *("", "x", "nan", "../../x", "/etc/passwd", "a\0b", "\ud800", "\u2028", "x" * 100_000, "__import__('os').getcwd()"),
    *([], [[]], [None], ["x"], [1, 2], {}, {"x": 1}, {"__class__": "x"}, {"py/object": "os.system"}),
)
MARK = "@@raw {}@@"


def damaged(content: bytes, name: str, rng: random.Random) -> bytes:
    """The file's content after one change, which its form may or may not survive."""
    kinds: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": of_json,
        ".jsonl": of_lines,
        ".parquet": of_parquet,
        ".safetensors": of_safetensors,
    }
    structured = kinds.get(Path(name).suffix)
    if structured is None or rng.random() < 0.35:
        return of_bytes(content, rng)
    return structured(content, rng)


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, filled up, doubled or empty."""
    place = rng.randrange(len(content) + 1)
    kind = rng.randrange(8)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return b""
    if kind == 2:
        changed = bytearray(content)
        for _ in range(rng.choice((1, 4, 64))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 3:
        return content[:place] + rng.randbytes(rng.choice((1, 16, 4096))) + content[place:]
    if kind == 4:
        return content[:place] + bytes(rng.choice((1, 512))) + content[place:]
    if kind == 5:
        return content[place:]
    if kind == 6:
        return content + content
    return rng.choice(
        (b"\xff\xfe", b"\xef\xbb\xbf" + content, b"\n\n\n", b"null", b"[]", b"{}", b"PK\x05\x06" + bytes(18))
    )


def of_json(content: bytes, rng: random.Random) -> bytes:
    """One value, key or item of a JSON document changed."""
    return changed_json(json.loads(content), rng).encode(errors="surrogatepass")


def of_lines(content: bytes, rng: random.Random) -> bytes:
    """One line of JSON lines changed, removed, doubled or moved."""
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    kind = rng.randrange(8)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[place])
    elif kind == 2:
        rng.shuffle(lines)
    elif kind == 3:
        lines.insert(place, rng.choice((b"", b" ", b"\x0c", b"not json", b"[1]", b'"text"', b"7", b"null")))
    else:
        with contextlib.suppress(ValueError):
            lines[place] = of_json(lines[place], rng)
    return b"\n".join(lines) + rng.choice((b"\n", b"\n", b""))


def changed_json(value: Any, rng: random.Random) -> str:
    """JSON text of a value of which one part is another: an odd value, a key less, more or renamed."""
    raw: list[str] = []
    changed = _changed(value, rng, raw)
    text = json.dumps(changed, ensure_ascii=rng.random() < 0.5)
    for place, spelled in enumerate(raw):
        text = text.replace(json.dumps(MARK.format(place)), spelled)
    return text


def _changed(value: Any, rng: random.Random, raw: list[str]) -> Any:
    inside = isinstance(value, dict | list) and value and rng.random() < 0.8
    if not inside:
        if rng.random() < 0.35:
            raw.append(rng.choice(RAW))
            return MARK.format(len(raw) - 1)
        return rng.choice(ODD)
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {name: each for name, each in value.items() if name != key}
        if kind == 1:
            return {**value, rng.choice(("extra", "", "self", "index", "../x")): rng.choice(ODD)}
        if kind == 2:
            return {("other" if name == key else name): each for name, each in value.items()}
        return {**value, key: _changed(value[key], rng, raw)}
    place = rng.randrange(len(value))
    kind = rng.randrange(6)
    if kind == 0:
        return [*value[:place], *value[place + 1 :]]
    if kind == 1:
        return [*value, value[place]]
    return [*value[:place], _changed(value[place], rng, raw), *value[place + 1 :]]


def of_parquet(content: bytes, rng: random.Random) -> bytes:
    """A whole Parquet file with another value, column, type or description."""
    table = pq.read_table(io.BytesIO(content))
    about = {key: value for key, value in (table.schema.metadata or {}).items() if key != b"ARROW:schema"}
    name = rng.choice(table.column_names)
    place = table.column_names.index(name)
    kind = rng.randrange(7)
    with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
        if kind < 2 and about:
            key = rng.choice(sorted(about))
            about[key] = changed_json(json.loads(about[key]), rng).encode(errors="surrogatepass")
        elif kind == 2 and about:
            del about[rng.choice(sorted(about))]
        elif kind == 3:
            table = table.drop_columns([name])
        elif kind == 4:
            table = table.rename_columns(["other" if each == name else each for each in table.column_names])
        elif kind == 5:
            other = rng.choice((pa.string(), pa.int64(), pa.float64(), pa.list_(pa.int64()), pa.binary()))
            filler = {pa.string(): "x", pa.int64(): -1, pa.float64(): float("nan"), pa.binary(): b"\xff"}.get(other)
            table = table.set_column(place, name, pa.array([filler] * len(table), other))
        elif len(table):
            values = table.column(name).to_pylist()
            row = rng.randrange(len(values))
            text = isinstance(values[row], str) and values[row][:1] in ("{", "[")
            values[row] = changed_json(json.loads(values[row]), rng) if text else rng.choice(ODD)
            table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(about), sink)
    return bytes(sink.getvalue())


def of_safetensors(content: bytes, rng: random.Random) -> bytes:
    """A safetensors file with another head: 8 bytes of its size, JSON, then the numbers."""
    [size] = struct.unpack("<Q", content[:8])
    head, rest = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.3:
        return struct.pack("<Q", rng.choice((0, 1, size - 1, size + 1, 2**40, 2**63, 2**64 - 1))) + head + rest
    changed = of_json(head, rng)
    return struct.pack("<Q", len(changed)) + changed + rest


def replaced(file: Path, rng: random.Random) -> str:
    """Make something else of a file, on disk; what it is now."""
    kind = rng.choice(("missing", "folder", "loop", "dangling"))
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "dangling":
        file.symlink_to("nowhere/at/all")
    return kind


def damage(folder: Path, files: list[Path], rng: random.Random) -> str:
    """Change one of the files of a folder, or more rarely two; what was changed."""
    names = []
    for file in rng.sample(files, min(len(files), rng.choice((1, 1, 1, 2)))):
        name = file.relative_to(folder).as_posix()
        if rng.random() < 0.1:
            names.append(f"{name} is {replaced(file, rng)}")
        else:
            file.write_bytes(damaged(file.read_bytes(), file.name, rng))
            names.append(name)
    return ", ".join(names)


def contents(folder: Path) -> dict[str, bytes | str]:
    """All that lies in a folder: bytes of files, and what else there is."""
    return dict(_contents(folder, folder))


def _contents(folder: Path, root: Path) -> Iterator[tuple[str, bytes | str]]:
    for each in sorted(folder.iterdir()):
        name = each.relative_to(root).as_posix()
        if each.is_symlink():
            yield name, f"-> {each.readlink()}"
        elif each.is_dir():
            yield name, "folder"
            yield from _contents(each, root)
        else:
            yield name, each.read_bytes()
