"""Writes the page of run folders to standard output: python -m lexbench.parts.web.view.make FOLDER..."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.parts.web.page import page
from lexbench.parts.web.view.folders import FolderWatch
from lexbench.stats import records
from lexbench.stats.records import LoadedCells


def read_cells(watch: FolderWatch) -> LoadedCells:
    """All cells of the folders, perhaps none yet; starts again if a file disappears in between."""
    for attempt in range(10):
        try:
            folders = [run for run in watch.find_run_folders() if any((run / "cells").glob("*.parquet"))]
            return records.load_cells(folders) if folders else LoadedCells([], [], [])
        except FileNotFoundError:  # an unfinished cell has just finished
            time.sleep(0.01 * attempt)
    raise ConfigError("run folders change faster than they can be read: reload")


def main(folders: Sequence[Path]) -> int:
    """Write the hash of the files and the number of cells, then the page; on an error one line and exit code 1."""
    try:
        watch = FolderWatch(folders)
        state, cells = watch.folders_state()
        content = page.render_page(read_cells(watch), folders, served=True)
    except Exception as error:  # any error in a run folder is one line
        reason = " ".join(str(error).split())[:200]
        print(f"lexbench: page cannot be made ({type(error).__name__}: {reason})", file=sys.stderr)
        return 1
    try:
        sys.stdout.buffer.write(f"{state} {cells}\n{content}".encode())
        sys.stdout.flush()
    except BrokenPipeError:  # the server has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]]))
