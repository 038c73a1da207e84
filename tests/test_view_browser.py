"""A running sweep in a real browser: progress moves, new results come when they are asked for, samples on demand."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright import sync_api

from lexbench.view import server
from lexbench.view.pages import Content, Maker
from tests.report.fake_run import finished, keep
from tests.test_view import begun, write_plan

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

SLOW = '''
import time

from lexbench.backends.chance import Chance


class Slow(Chance):
    """Chance, at a third of a second a question."""

    def write(self, question):
        time.sleep(0.33)
        return super().write(question)
'''


@contextmanager
def sweep(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of 6 cells of 12 samples, some 25 seconds, begun in `tmp_path / "run"`."""
    (tmp_path / "configs/backend").mkdir(parents=True)
    (tmp_path / "configs/backend/slow.yaml").write_text("_target_: slow_backend.Slow\n")
    (tmp_path / "slow_backend.py").write_text(SLOW)
    settings = ["backend=slow", "task=passkey", "lengths=[192,256,512]", "seed=[0,1]", "n=12"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lexbench.cli", "run", *settings, f"results={tmp_path / 'run'}"],
        env={
            **os.environ,
            "LEXBENCH_CONFIG_PATH": str(tmp_path / "configs"),
            "PYTHONPATH": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Seen:
    """A page, and what went wrong or elsewhere while it was open."""

    def __init__(self, page: sync_api.Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.addresses: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest) -> Iterator[Seen]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Seen(browser.new_page(color_scheme=request.param, viewport={"width": 1280, "height": 900}))
        browser.close()


def picture(page: sync_api.Page, name: str) -> None:
    """Where LEXBENCH_PICTURES names a folder, what the page looks like."""
    if folder := os.environ.get("LEXBENCH_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_running_sweep(tmp_path: Path, seen: Seen, request: pytest.FixtureRequest) -> None:
    page, scheme = seen.page, request.node.callspec.params["seen"]
    expect = sync_api.expect
    (tmp_path / "run").mkdir()
    with server([tmp_path / "run"], 0) as serving, ExitStack() as ending:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        page.goto(serving.url)
        status = page.locator("#progress").get_by_role("status")
        expect(status).to_have_text("No cell yet: a run that has begun appears here.", timeout=60_000)
        picture(page, f"{scheme}-empty")

        running = ending.enter_context(sweep(tmp_path))
        expect(status).to_have_text(re.compile("^[1-4] of 6 cells finished$"), timeout=60_000)
        bar = page.get_by_role("progressbar", name="Cells finished")
        before = bar.evaluate("bar => bar.value")
        assert bar.evaluate("bar => bar.max") == 6
        region = page.get_by_role("region", name="Jobs")
        expect(region).to_contain_text("none on passkey, lexlet")
        expect(region).to_contain_text(re.compile(r"passkey none at \d+: \d+ of 12 samples"))
        expect(page.locator("#progress")).to_contain_text(re.compile(r"\d+ (s|min)( to \d+ (s|min))? to go\."))
        expect(page.get_by_role("button", name=re.compile("^Show [1-4] new cells?$"))).to_be_visible()
        picture(page, f"{scheme}-running")
        deadline = time.monotonic() + 30
        while bar.evaluate("bar => bar.value") < before + 0.3 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert bar.evaluate("bar => bar.value") >= before + 0.3

        page.get_by_role("button", name=re.compile("^Show [1-5] new cells?$")).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#progress")).to_have_attribute("data-cells", re.compile("[1-6]"), timeout=30_000)
        expect(page.get_by_role("heading", name="Quality over length")).to_be_visible()
        picture(page, f"{scheme}-more")

        page.get_by_label("Metric").select_option(label="contains")  # a choice of the reader

        expect(status).to_have_text("6 of 6 cells finished", timeout=60_000)
        assert running.wait(timeout=60) == 0
        expect(region).to_be_hidden()
        page.get_by_role("button", name=re.compile("^Show [1-5] new cells?$")).click()
        expect(page.locator("#progress")).to_have_attribute("data-cells", "6", timeout=30_000)
        expect(page.locator("#progress")).to_be_hidden()
        expect(page.get_by_label("Metric").locator("option:checked")).to_have_text("contains")

        before_samples = [address for address in seen.addresses if "/samples/" in address]
        page.locator("#sample").scroll_into_view_if_needed()
        page.locator("#sample-length").select_option(index=1)
        expect(page.locator("#sample")).to_contain_text("pass key", timeout=15_000)
        picture(page, f"{scheme}-sample")
        assert len([address for address in seen.addresses if "/samples/" in address]) > len(before_samples)
        serving.shutdown()
    assert seen.errors == []
    assert all(address.startswith((serving.url, "data:")) for address in seen.addresses)


def test_names_of_a_running_sweep_are_text(tmp_path: Path, seen: Seen) -> None:
    planted = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
    keep(tmp_path, [finished("passkey", "pi", 128, n=4)])
    each = finished(planted, "pi", 256, n=8)
    write_plan(tmp_path, [each.cell])
    begun(tmp_path, each, 3, time.time())
    with server([tmp_path], 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        seen.page.goto(serving.url)
        region = seen.page.get_by_role("region", name="Jobs")
        sync_api.expect(region).to_contain_text(planted, timeout=30_000)
        assert "owned" not in seen.page.title()
        assert seen.page.locator("#progress img, #progress script").count() == 0
        serving.shutdown()
    status = seen.page.locator("#progress").get_by_role("status")
    sync_api.expect(status).to_contain_text("does not answer", timeout=60_000)


def test_the_page_that_takes_long_comes_by_itself(tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    make, ready = Maker.__call__, threading.Event()

    def late(maker: Maker) -> Content:
        ready.wait(60)
        return make(maker)

    monkeypatch.setattr(Maker, "__call__", late)
    keep(tmp_path, [finished("passkey", "pi", length, n=8) for length in (128, 256)])
    with server([tmp_path], 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        seen.page.goto(serving.url)
        sync_api.expect(seen.page.get_by_text("The page is being made")).to_be_visible()
        sync_api.expect(seen.page.locator("#progress").get_by_role("status")).to_have_text("2 cells finished")
        picture(seen.page, "waiting")
        ready.set()
        sync_api.expect(seen.page.get_by_role("heading", name="Quality over length")).to_be_visible(timeout=60_000)
        serving.shutdown()
    assert seen.errors == []
