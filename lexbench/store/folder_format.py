"""The format of a run folder: one number, which rises where an earlier lexbench would read the folder wrongly.

    DIR/cells/.needs_a_newer_lexbench.parquet.format/format.json    {"format": 2, "lexbench": "0.1.0+g3af05f6c"}

A folder without this file has format 1. The file lies in a folder of this name because a lexbench of format 1, which
asks for no number, removes what is named like the rest of a killed process: at a folder it stops, and names it, before
it replaces records.jsonl by the records of the cells that it can read.
"""

import json
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, write_text
from lexbench.core.values import is_whole
from lexbench.core.version import full_version

FOLDER_FORMAT = 2
"""1: until 2026-11-28. 2: samples have the hash of their question and a checksum, an unfinished cell's also a cost."""
FORMAT_FILE = Path("cells/.needs_a_newer_lexbench.parquet.format/format.json")


def check_format(folder: Path) -> None:
    """ConfigError for a run folder of a newer format than this lexbench knows, or whose format cannot be read."""
    file = folder / FORMAT_FILE
    if not file.exists():
        return
    held = read_object(file, "delete it where no newer lexbench has written the folder")
    stated = held.get("format")
    if not isinstance(stated, int) or not is_whole(stated, 1):
        raise ConfigError(f"{file} must name a format: delete it where no newer lexbench has written the folder")
    if stated > FOLDER_FORMAT:
        by = held.get("lexbench")
        raise ConfigError(
            f"run folder {folder} has format {stated}, and this lexbench, {full_version()}, knows none above "
            f"{FOLDER_FORMAT}: "
            f"use the lexbench that wrote it{f', {by}' if isinstance(by, str) else ''}"
        )


def write_format(folder: Path) -> None:
    """Say in a run folder that it has this format, unless it says so."""
    file = folder / FORMAT_FILE
    if not file.exists():
        page = {"format": FOLDER_FORMAT, "lexbench": full_version()}
        write_text(file, f"{json.dumps(page)}\n")
