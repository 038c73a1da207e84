"""A running sweep in a real browser: progress moves, new results come when they are asked for, samples on demand."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright import sync_api

from lexbench.parts.web.view import bind_server
from lexbench.parts.web.view.pages import PageContent, PageMaker
from tests.parts.web.test_view import begun, write_plan
from tests.report.fake_run import finished, keep

pytestmark = pytest.mark.slow

SLOW = '''
import os
import time
from pathlib import Path

from lexbench.backends.chance import Chance


class Slow(Chance):
    """Chance, at a twentieth of a second a question, and no more questions than the file ALLOWED says."""

    asked = 0

    def write(self, question):
        time.sleep(0.05)
        while self.asked >= int(Path(os.environ["ALLOWED"]).read_text() or 0):
            time.sleep(0.05)
        self.asked += 1
        return super().write(question)
'''


@contextmanager
def sweep(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of 6 cells of 12 samples, begun in `tmp_path / "run"`, which `allow` lets go on."""
    (tmp_path / "configs/backend").mkdir(parents=True)
    (tmp_path / "configs/backend/slow.yaml").write_text("_target_: slow_backend.Slow\n")
    (tmp_path / "slow_backend.py").write_text(SLOW)
    settings = ["backend=slow", "task=passkey", "lengths=[192,256,512]", "seed=[0,1]", "n=12"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lexbench", "run", *settings, f"results={tmp_path / 'run'}"],
        env={
            **os.environ,
            "LEXBENCH_CONFIG_PATH": str(tmp_path / "configs"),
            "PYTHONPATH": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "ALLOWED": str(tmp_path / "allowed"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def allow(tmp_path: Path, samples: int) -> None:
    """So many samples of the sweep, all cells together."""
    (tmp_path / "allowed").write_text(str(samples))


class Seen:
    """A page, and what went wrong or elsewhere while it was open."""

    def __init__(self, page: sync_api.Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.addresses: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))


def opened(chromium: sync_api.Browser, scheme: Literal["light", "dark"]) -> Seen:
    return Seen(chromium.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900}))


@pytest.fixture
def seen(chromium: sync_api.Browser) -> Iterator[Seen]:
    found = opened(chromium, "dark")
    yield found
    found.page.close()


def picture(page: sync_api.Page, name: str) -> None:
    """Where LEXBENCH_PICTURES names a folder, what the page looks like."""
    if folder := os.environ.get("LEXBENCH_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_running_sweep(tmp_path: Path, chromium: sync_api.Browser) -> None:
    """Two readers follow it, one in each theme."""
    both = {"light": opened(chromium, "light"), "dark": opened(chromium, "dark")}
    expect = sync_api.expect
    allow(tmp_path, 2 * 12 + 3)
    (tmp_path / "run").mkdir()
    with bind_server([tmp_path / "run"], 0) as serving, ExitStack() as ending:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        for scheme, seen in both.items():
            seen.page.goto(serving.url)
            said = "No cell yet: a run that has begun appears here."
            expect(seen.page.locator("#progress").get_by_role("status")).to_have_text(said)
            picture(seen.page, f"{scheme}-empty")

        running = ending.enter_context(sweep(tmp_path))
        for scheme, seen in both.items():
            page = seen.page
            status, bar = page.locator("#progress").get_by_role("status"), page.get_by_role("progressbar")
            expect(status).to_have_text("2 of 6 cells finished")
            expect(page.get_by_role("progressbar", name="Cells finished")).to_have_js_property("max", 6)
            region = page.get_by_role("region", name="Jobs")
            expect(region).to_contain_text("none on passkey, lexlet")
            expect(region).to_contain_text(re.compile(r"passkey none at \d+: 3 of 12 samples"))
            expect(bar).to_have_js_property("value", 2 + 3 / 12)
            expect(page.locator("#progress")).to_contain_text(re.compile(r"\d+ (s|min)( to \d+ (s|min))? to go\."))
            expect(page.get_by_role("button", name="Show 2 new cells")).to_be_visible()
            picture(page, f"{scheme}-running")

        allow(tmp_path, 2 * 12 + 9)
        for scheme, seen in both.items():
            page = seen.page
            expect(page.get_by_role("progressbar")).to_have_js_property("value", 2 + 9 / 12)
            page.get_by_role("button", name="Show 2 new cells").focus()
            page.keyboard.press("Enter")
            expect(page.locator("#progress")).to_have_attribute("data-cells", "2")
            expect(page.get_by_role("heading", name="Quality over length")).to_be_visible()
            picture(page, f"{scheme}-more")
            page.get_by_label("Metric").select_option(label="contains")  # a choice of the reader

        allow(tmp_path, 6 * 12)
        assert running.wait(timeout=300) == 0
        for scheme, seen in both.items():
            page = seen.page
            expect(page.locator("#progress").get_by_role("status")).to_have_text("6 of 6 cells finished")
            expect(page.get_by_role("region", name="Jobs")).to_be_hidden()
            page.get_by_role("button", name="Show 4 new cells").click()
            expect(page.locator("#progress")).to_have_attribute("data-cells", "6")
            expect(page.locator("#progress")).to_be_hidden()
            expect(page.get_by_label("Metric").locator("option:checked")).to_have_text("contains")

            before_samples = [address for address in seen.addresses if "/samples/" in address]
            page.locator("#sample").scroll_into_view_if_needed()
            page.locator("#sample-length").select_option(index=1)
            expect(page.locator("#sample")).to_contain_text("pass key")
            picture(page, f"{scheme}-sample")
            assert len([address for address in seen.addresses if "/samples/" in address]) > len(before_samples)
        serving.shutdown()
    for seen in both.values():
        assert seen.errors == []
        assert all(address.startswith((serving.url, "data:")) for address in seen.addresses)
        seen.page.close()


def test_names_of_a_running_sweep_are_text(tmp_path: Path, seen: Seen) -> None:
    planted = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
    keep(tmp_path, [finished("passkey", "pi", 128, n=4)])
    each = finished(planted, "pi", 256, n=8)
    write_plan(tmp_path, [each.cell])
    begun(tmp_path, each, 3, time.time())
    seen.page.clock.install()
    with bind_server([tmp_path], 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        seen.page.goto(serving.url)
        region = seen.page.get_by_role("region", name="Jobs")
        sync_api.expect(region).to_contain_text(planted)
        assert "owned" not in seen.page.title()
        assert seen.page.locator("#progress img, #progress script").count() == 0
        serving.shutdown()
    status = seen.page.locator("#progress").get_by_role("status")
    deadline = time.monotonic() + 300
    while "does not answer" not in status.inner_text():
        assert time.monotonic() < deadline
        seen.page.clock.fast_forward(10_000)  # the seconds between two questions
        seen.page.wait_for_timeout(100)


def test_the_page_that_takes_long_comes_by_itself(tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    make, ready = PageMaker.__call__, threading.Event()

    def late(maker: PageMaker) -> PageContent:
        ready.wait(60)
        return make(maker)

    monkeypatch.setattr(PageMaker, "__call__", late)
    keep(tmp_path, [finished("passkey", "pi", length, n=8) for length in (128, 256)])
    with bind_server([tmp_path], 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        seen.page.goto(serving.url)
        sync_api.expect(seen.page.get_by_text("The page is being made")).to_be_visible()
        sync_api.expect(seen.page.locator("#progress").get_by_role("status")).to_have_text("2 cells finished")
        picture(seen.page, "waiting")
        ready.set()
        sync_api.expect(seen.page.get_by_role("heading", name="Quality over length")).to_be_visible()
        serving.shutdown()
    assert seen.errors == []
