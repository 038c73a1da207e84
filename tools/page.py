"""The HTML page of a run of 500,000 samples: python tools/page.py

Makes 1000 cells of 500 samples (100 methods, 5 lengths, NLL and passkey with prompts and answers), and prints the time
to load and to build, the page's size, and in headless chromium the time from opening the file to the first curve that
answers the keyboard, to the first sample, and to the next task.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.core.files import write_bytes
from lexbench.core.record import Cell, Sample
from lexbench.parts.web.page import page
from lexbench.stats import records
from lexbench.store.format import cell_parquet
from tests.report import fake_run

METHODS = ("none", *(f"yarn(factor={number}.0)" for number in range(2, 101)))
SENTENCES = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


def samples(cell: Cell, place: int) -> list[Sample]:
    """Losses that grow past the trained length, by method."""
    loss = 0.02 * (place + 1) * max(0.0, (cell.length / cell.trained_length - 1))
    if cell.task == "last_segment":
        return [fake_run.likelihood_sample(index, cell.length, loss) for index in range(cell.n)]
    return [with_prompt(fake_run.passkey_sample(index, cell.length, loss)) for index in range(cell.n)]


def with_prompt(sample: Sample) -> Sample:
    """Some thousand characters around the key, no two alike."""
    words = [SENTENCES[(sample.index * 7 + number * number) % len(SENTENCES)] for number in range(60)]
    words.insert(int((sample.depth or 0.0) * 60), f"The pass key is {sample.facts['expected']}. Remember it.")
    return replace(sample, prompt=" ".join(words))


def make(folder: Path, n: int) -> int:
    """The run folder; its number of cells."""
    made = 0
    for task in ("last_segment", "passkey"):
        for place, method in enumerate(METHODS):
            for length in fake_run.LENGTHS:
                cell = fake_run.cell(task, method, length, n=n)
                write_bytes(folder / "cells" / f"{cell.id}.parquet", cell_parquet(cell, samples(cell, place), None))
                made += 1
    return made


def opened(file: Path) -> None:
    """Times in the browser, from the start of navigation."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = os.environ.get("LEXBENCH_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(2):
            tab = browser.new_page()
            tab.goto(file.resolve().as_uri(), wait_until="commit")
            tab.wait_for_selector("#curve-chart .curve .point")
            tab.focus("#curve-chart")
            tab.keyboard.press("ArrowRight")
            while "tokens" not in tab.inner_text("#curve-said"):
                tab.wait_for_timeout(5)
            curve = tab.evaluate("performance.now()")
            tab.wait_for_selector("#sample h3")
            sample = tab.evaluate("performance.now()")
            before = tab.evaluate("performance.now()")
            tab.select_option("#setting", "1")
            tab.wait_for_selector("#depth-chart .field")
            task = tab.evaluate("performance.now()") - before
            print(f"first curve {curve:.0f} ms, first sample {sample:.0f} ms, next task {task:.0f} ms", flush=True)
            tab.close()
        browser.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500, help="samples a cell")
    parser.add_argument("--keep", type=Path, help="folder for the run and the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        if not (folder / "cells").is_dir():
            cells = make(folder, options.n)
            print(f"{cells} cells of {options.n} samples", flush=True)
        started = time.perf_counter()
        loaded = records.load_cells([folder])
        print(f"load {time.perf_counter() - started:.1f} s", flush=True)
        started = time.perf_counter()
        html = page.render_page(loaded, [folder])
        print(f"build {time.perf_counter() - started:.1f} s, page {len(html.encode()) / 1e6:.1f} MB", flush=True)
        file = folder / "report.html"
        file.write_text(html, encoding="utf-8")
        opened(file)


if __name__ == "__main__":
    main()
