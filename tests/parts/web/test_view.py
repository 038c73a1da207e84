"""The served results folder: what it answers and refuses, how far a sweep is, and files that change meanwhile."""

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lexbench.core.record import Cell
from lexbench.parts.web.page import samples
from lexbench.parts.web.view import bind_server, serve
from lexbench.parts.web.view.estimate import cell_seconds, remaining_seconds, seconds_per_token
from lexbench.parts.web.view.folders import FolderWatch, JobCell, WatchedJob
from lexbench.parts.web.view.make import read_cells
from lexbench.parts.web.view.pages import PageCache, PageContent, PageMaker
from lexbench.parts.web.view.progress import progress_data
from lexbench.stats.records import LoadedCells
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.fake_run import cell, finished, keep

NOW = 1_000_000.0


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read().decode()


class Client:
    """Asks a server as no browser would."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, path: str, method: str = "GET", hosts: Sequence[str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for host in [f"127.0.0.1:{self.port}"] if hosts is None else hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        try:
            return Answer(connection.getresponse())
        finally:
            connection.close()


def served(folder: Path) -> Iterator[Client]:
    with bind_server([folder], 0) as serving:
        threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield Client(serving.server_port)
        finally:
            serving.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells, and one that is refused."""
    folder = tmp_path_factory.mktemp("run")
    keep(folder, [finished("passkey", method, 128, n=4) for method in ("none", "pi", "ntk")])
    return folder


@pytest.fixture(scope="module")
def get(run: Path) -> Iterator[Client]:
    yield from served(run)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Client]:
    """A server of `tmp_path`, where nothing is yet."""
    yield from served(tmp_path)


def page_of(get: Client) -> Answer:
    """The page, once it is made."""
    for _ in range(60):
        answer = get("/")
        if "data-waiting" not in answer.body:
            return answer
        time.sleep(0.1)
    raise AssertionError("no page within a minute")


# What is answered


@pytest.mark.slow
def test_the_page_is_the_reports_with_its_policy_as_a_header(get: Client) -> None:
    answer = page_of(get)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    stated = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.body)
    assert stated and answer.headers["Content-Security-Policy"] == f"{stated[1]}; frame-ancestors 'none'"
    assert "unsafe" not in stated[1] and "connect-src 'self'" in stated[1]
    assert "<body data-served>" in answer.body and "progress.json" in answer.body
    [state] = re.findall(r'<section id="progress" data-state="([0-9a-f]{16})" data-cells="3" hidden>', answer.body)
    assert state == json.loads(get("/progress.json").body)["state"]


def test_samples_are_those_of_the_cells_file(get: Client, run: Path) -> None:
    for each in Store(run).load():
        answer = get(f"/samples/{each.cell.id}.json")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert answer.body == samples.samples_json(each)


@pytest.mark.parametrize("path", ["/", "/progress.json", "/favicon.ico", "/nothing", "/samples/0123456789abcdef.json"])
def test_every_answer_carries_the_headers_that_keep_it_here(get: Client, path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        headers = get(path, method).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
        assert headers["Server"] == "lexbench"
        assert "Access-Control-Allow-Origin" not in headers


def test_head_is_get_without_the_body(get: Client, run: Path) -> None:
    page_of(get)
    for path in ("/", f"/samples/{cell('passkey', 'pi', 128, n=4).id}.json", "/nothing"):
        whole, head = get(path), get(path, "HEAD")
        assert head.body == "" and head.status == whole.status
        assert head.headers["Content-Length"] == str(len(whole.body.encode())) == whole.headers["Content-Length"]
    assert spoken(get, f"HEAD / HTTP/1.1\r\nHost: localhost:{get.port}\r\n\r\n".encode()).endswith(b"\r\n\r\n")


def spoken(get: Client, sent: bytes) -> bytes:
    """All that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", get.port), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while part := connection.recv(65536):
            said += part
    return said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_but_reading_is_allowed(get: Client, method: str) -> None:
    answer = get("/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.body == "405 method not allowed\n"


@pytest.mark.parametrize(
    "path",
    [
        *("/cells", "/cells/", "/jobs/", "/records.jsonl", "/costs.jsonl", "/index.html", "//cells", "/?x=1", "*"),
        *("/samples", "/samples/", "/samples/.json", "/samples/0123456789ABCDEF.json", "/samples/0123456789abcde.json"),
        *("/samples/0123456789abcdef0.json", "/samples/0123456789abcdef.parquet", "/samples/0123456789abcdef.json/"),
        *("/../../etc/passwd", "/samples/../costs.jsonl", "/samples/..%2fcosts.jsonl", "/%2e%2e/%2e%2e/etc/passwd"),
        *("/samples/0123456789abcdef.json%0a", "/samples/0123456789abcdef.json%00", "http://elsewhere/", "/\\..\\x"),
        "/samples/0123456789abcdef.json",
    ],
)
def test_only_known_addresses_exist(get: Client, run: Path, path: str) -> None:
    answer = get(path)
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.body in ("404 nothing here\n", "404 no such cell\n")


def test_an_address_is_known_as_a_whole(get: Client) -> None:
    known = f"/samples/{cell('passkey', 'pi', 128, n=4).id}.json"
    assert get(known).status == 200
    for other in (f"{known}/", f"{known}x", f"{known}%00", f"{known}?x", f"/x{known}", f"/.{known}", known.upper()):
        assert get(other).status == 404


def test_only_those_who_mean_this_server_are_answered(get: Client) -> None:
    port = get.port
    for name in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
        assert get("/progress.json", hosts=[f"{name}:{port}"]).status == 200
    wrong = ["evil.example", f"evil.example:{port}", "localhost", f"localhost:{port + 1}", f"0.0.0.0:{port}", ""]
    wrong += [f"localhost.evil.example:{port}", f"localhost:{port}@evil.example", f"127.0.0.1:{port}.evil.example"]
    for hosts in [*([name] for name in wrong), [], [f"localhost:{port}", "evil.example"], [f"localhost:{port}"] * 2]:
        for path in ("/", "/progress.json", "/nothing"):
            answer = get(path, hosts=hosts)
            assert answer.status == 421, hosts
            assert answer.body == f"421 wrong host: open http://127.0.0.1:{port}/\n"


def test_it_listens_on_loopback_alone(run: Path) -> None:
    with bind_server([run], 0) as serving:
        assert serving.server_address[0] == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", serving.server_port), timeout=5)


def test_what_is_no_http_gets_a_line(get: Client) -> None:
    for sent in (b"GET / HTTP/9.9\r\n\r\n", b"nonsense\r\n\r\n", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n"):
        said = spoken(get, sent)
        assert b"Traceback" not in said and b"<" not in said
        assert re.search(rb"(505|400|414) [a-z- ]+\n$", said)
    assert get("/progress.json").status == 200


def test_nothing_in_the_folder_is_written(get: Client, run: Path) -> None:
    def contents() -> dict[Path, tuple[int, bytes]]:
        return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.rglob("*") if file.is_file()}

    before, folders = contents(), {place: place.stat().st_mtime_ns for place in (run, run / "cells")}
    page_of(get)
    get(f"/samples/{cell('passkey', 'pi', 128, n=4).id}.json")
    get("/progress.json")
    assert contents() == before
    assert {place: place.stat().st_mtime_ns for place in folders} == folders


# Beginning and end


def test_a_port_that_cannot_be_had_is_said_with_the_remedy(run: Path) -> None:
    with (
        bind_server([run], 0) as first,
        pytest.raises(ValueError, match=rf"port {first.server_port} is taken: give another, e\.g\. --port 0"),
    ):
        bind_server([run], first.server_port)
    for port in (-1, 65536):
        with pytest.raises(ValueError, match=f"port must be between 0 and 65535, got {port}"):
            bind_server([run], port)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for call in (bind_server, serve):
        with pytest.raises(ValueError, match=r"run folder .*absent does not exist"):
            call([tmp_path, tmp_path / "absent"], 0)


@pytest.mark.slow
def test_ctrl_c_ends_it_without_a_word_of_error(run: Path) -> None:
    code = f"from pathlib import Path; from lexbench.parts.web.view import serve; serve([Path({str(run)!r})], 0)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background shell ignores it
        start_new_session=True,
    )
    assert process.stdout
    said = process.stdout.readline()
    port = int(re.fullmatch(rf"{re.escape(str(run))} at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends\)\n", said)[1])  # type: ignore[index]
    assert Client(port)("/progress.json").status == 200
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all that it began
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")


# How far a sweep is, by hand


def write_plan(folder: Path, planned: Sequence[Cell], name: str = "0123", **changed: Any) -> Path:
    """A job's file as the runner writes it: 10 tokens a sample for each token of length."""
    rows = [
        {
            "cell": each.id,
            "method": str(each.method),
            "task": each.task,
            "length": each.length,
            "seed": each.seed,
            "tokens": each.length * each.n,
        }
        for each in planned
    ]
    file = folder / "jobs" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    page = {"config": {"model": {"name": "lexlet"}, "n": 8}, "provenance": {"git": None}, "cells": rows, **changed}
    file.write_text(json.dumps(page))
    os.utime(file, (NOW - 100, NOW - 100))
    return file


def planned(*lengths: int, method: str = "pi", task: str = "passkey") -> list[FinishedCell]:
    return [finished(task, method, length, n=8) for length in lengths]


def measured(folder: Path, each: FinishedCell, seconds: float, written: float) -> None:
    """A finished cell that took so long, written at that time."""
    store = Store(folder)
    if each.refused:
        store.refuse(each.cell, each.refused)
    else:
        for sample in each.samples:
            store.append(each.cell, sample)
        store.finish(each.cell, [sample.index for sample in each.samples])
    store.cost(each.cell, seconds=seconds, tokens=each.cell.length * each.cell.n, peak_bytes=1)
    os.utime(folder / "cells" / f"{each.cell.id}.parquet", (written, written))


def begun(folder: Path, each: FinishedCell, count: int, written: float) -> Path:
    """An unfinished cell with so many samples more."""
    file = folder / "cells" / f"{each.cell.id}.jsonl"
    there = max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0
    for sample in each.samples[there : there + count]:
        Store(folder).append(each.cell, sample)
    os.utime(file, (written, written))
    return file


def tell(folder: Path, now: float = NOW) -> dict[str, Any]:
    return progress_data(FolderWatch([folder]).read_runs(), now)


def test_progress_by_hand(tmp_path: Path) -> None:
    """Of 4 cells one is finished in 2 s, one begun (2 of 8 samples), two are to come.

    Beyond the measured length, seconds grow with its root to its square: 256 tokens take 2 sqrt(2) to 8 s, of which 3/4
    are left; 512 take 4 to 32 s. The other method at 128 tokens takes 2 s, give or take a factor of 1.7.
    """
    cells = [*planned(128, 256, 512), *planned(128, method="yarn(factor=8.0)")]
    write_plan(tmp_path, [each.cell for each in cells])
    measured(tmp_path, cells[0], 2.0, NOW - 50)
    begun(tmp_path, cells[1], 2, NOW - 5)
    told = tell(tmp_path)
    [job] = told["jobs"]
    assert (told["planned"], told["finished"], told["refused"]) == (4, 1, 0)
    assert told["running"] == [
        {
            "cell": cells[1].cell.id,
            "method": "pi",
            "task": "passkey",
            "length": 256,
            "samples": 2,
            "n": 8,
            "silent": 5.0,
        }
    ]
    assert (job["planned"], job["finished"], job["refused"], job["running"]) == (4, 1, 0, [cells[1].cell.id])
    assert (job["model"], job["methods"], job["tasks"]) == ("lexlet", ["pi", "yarn(factor=8.0)"], ["passkey"])
    assert (job["begun"], job["silent"], job["seconds"], job["state"]) == (100.0, 5.0, 2.0, "running")
    assert job["tokens_per_second"] == 128 * 8 / 2.0
    assert job["remaining"] == told["remaining"]
    assert job["remaining"]["low"] == pytest.approx(0.75 * 2 * math.sqrt(2) + 4 + 2 / 1.7)
    assert job["remaining"]["high"] == pytest.approx(0.75 * 8 + 32 + 2 * 1.7)


def test_other_methods_tell_how_a_method_grows(tmp_path: Path) -> None:
    """pi takes 3 s where ntk takes 1 and yarn 2; ntk grows by 8, yarn by 4: pi to 24 or 12 s, 18 in the middle."""
    pi, ntk, yarn = (planned(128, 1024, method=method) for method in ("pi", "ntk", "yarn(factor=8.0)"))
    write_plan(tmp_path, [each.cell for each in (*pi, *ntk, *yarn)])
    for each, seconds in ((pi[0], 3), (ntk[0], 1), (ntk[1], 8), (yarn[0], 2), (yarn[1], 8)):
        measured(tmp_path, each, seconds, NOW)
    assert tell(tmp_path)["remaining"] == pytest.approx({"low": 18 / 1.7, "high": 18 * 1.7})


def test_a_method_without_any_cell_is_taken_for_one_like_the_others(tmp_path: Path) -> None:
    """Medians of 1, 2 and 9 s."""
    cells = [finished("passkey", method, 256, n=8) for method in ("pi", "ntk", "none", "yarn(factor=8.0)")]
    write_plan(tmp_path, [each.cell for each in cells])
    for each, seconds in zip(cells, (1, 9, 2), strict=False):
        measured(tmp_path, each, seconds, NOW)
    assert tell(tmp_path)["remaining"] == pytest.approx({"low": 2 / 1.7, "high": 2 * 1.7})


def test_twice_the_questions_take_twice_the_time(tmp_path: Path) -> None:
    """8 questions at 128 tokens take 2 s: 16 of them 4 s; 16 at 512 tokens between 2 and 16 times that."""
    few, many, long = (finished("passkey", "pi", length, n=n) for length, n in ((128, 8), (128, 16), (512, 16)))
    write_plan(tmp_path, [few.cell, many.cell])
    measured(tmp_path, few, 2.0, NOW)
    assert tell(tmp_path)["remaining"] == {"low": 4.0, "high": 4.0}
    write_plan(tmp_path, [few.cell, long.cell])
    assert tell(tmp_path)["remaining"] == {"low": 8.0, "high": 64.0}


def test_cells_that_are_refused_from_the_start_take_no_time(tmp_path: Path) -> None:
    one, two = (finished("passkey", method, 256, n=8) for method in ("pi", "ntk"))
    file = write_plan(tmp_path, [one.cell, two.cell])
    page = json.loads(file.read_text())
    page["cells"][1]["tokens"] = 0
    file.write_text(json.dumps({**page, "cells": page["cells"][1:]}))
    assert tell(tmp_path)["remaining"] == {"low": 0.0, "high": 0.0}
    file.write_text(json.dumps(page))
    measured(tmp_path, one, 2.0, NOW)
    assert tell(tmp_path)["remaining"] == {"low": 0.0, "high": 0.0}


def test_cells_alike_in_all_but_the_seed_take_the_same_time(tmp_path: Path) -> None:
    """Means of 2 and 4 s, whatever other methods took."""
    cells = [finished("passkey", "pi", 256, n=8, seed=seed) for seed in range(3)]
    other = finished("passkey", "ntk", 256, n=8)
    write_plan(tmp_path, [each.cell for each in (*cells, other)])
    for each, seconds in ((cells[0], 2), (cells[1], 4), (other, 100)):
        measured(tmp_path, each, seconds, NOW)
    assert tell(tmp_path)["remaining"] == {"low": 3.0, "high": 3.0}


def test_estimates_hold_what_the_committed_run_took() -> None:
    """The run once more, cell by cell: before each the rest of its job is estimated, and compared with the truth."""
    [run] = FolderWatch([Path(__file__).parents[3] / "results" / "reference" / "lexlet"]).read_runs()
    costs = [json.loads(line) for line in (run.folder / "costs.jsonl").read_text().splitlines()]
    cells = {each.cell.id: each.cell for each in heads(run.folder)}
    jobs: dict[tuple[str, str], dict[str, JobCell]] = {}
    for row in costs:
        each = cells[row["cell"]]
        planned = JobCell(str(each.method), each.task, each.length, each.seed, row["tokens"])
        jobs.setdefault((str(each.method), each.task), {})[each.id] = planned
    plan = [WatchedJob(str(number), "lexlet", 32, 0.0, job) for number, job in enumerate(jobs.values())]
    done: dict[str, float] = {}
    held = []
    for job in plan:
        for each_cell in job.planned:
            done[each_cell] = 0.0
            left = {other: planned for other, planned in job.planned.items() if other not in done}
            known = seconds_per_token(replace(run, finished=done, jobs=plan), "lexlet")
            if left and known:
                estimated = remaining_seconds(
                    {other: cell_seconds(planned, known, None) for other, planned in left.items()}, {}
                )
                truth = sum(run.seconds[other] for other in left)
                assert estimated
                held.append(estimated["low"] <= truth <= estimated["high"])
    assert len(held) > 40
    assert sum(held) / len(held) > 0.85


def heads(folder: Path) -> list[FinishedCell]:
    """Cells without their samples."""
    found = []
    for file in (folder / "cells").glob("*.parquet"):
        about = pq.read_metadata(file).metadata
        found.append(FinishedCell(Cell(**json.loads(about[b"cell"])), []))
    return found


def test_a_cells_own_samples_tell_more_than_other_cells(tmp_path: Path) -> None:
    """3 samples in 12 s: 4 s each, 3 more are left."""
    [each] = planned(256)
    write_plan(tmp_path, [each.cell])
    (tmp_path / "cells").mkdir()
    watch = FolderWatch([tmp_path])
    begun(tmp_path, each, 2, NOW - 20)
    assert progress_data(watch.read_runs(), NOW)["remaining"] is None
    begun(tmp_path, each, 3, NOW - 8)
    assert progress_data(watch.read_runs(), NOW)["remaining"] == {"low": 12.0, "high": 12.0}


def test_refused_cells_take_no_time_and_count_as_finished(tmp_path: Path) -> None:
    refused = finished("passkey", "none", 128, n=8)
    one, two = planned(128, 256)
    file = write_plan(tmp_path, [refused.cell, one.cell, two.cell])
    page = json.loads(file.read_text())
    page["cells"][2]["tokens"] = 0  # refused from the start, and not yet written
    file.write_text(json.dumps(page))
    os.utime(file, (NOW, NOW))
    measured(tmp_path, refused, 0.5, NOW)
    told = tell(tmp_path)
    assert (told["finished"], told["refused"], told["remaining"]) == (1, 1, None)
    assert told["jobs"][0]["tokens_per_second"] is None
    measured(tmp_path, one, 3.0, NOW)
    told = tell(tmp_path)
    assert (told["finished"], told["refused"], told["remaining"]) == (2, 1, {"low": 0.0, "high": 0.0})
    assert told["jobs"][0]["tokens_per_second"] == 1024 / 3
    assert told["jobs"][0]["seconds"] == 3.5


def test_jobs_share_cells_and_run_side_by_side(tmp_path: Path) -> None:
    """The longer job is the last to end; a cell of both counts once."""
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    short, long = planned(128, 256), planned(128, 512, method="ntk")
    write_plan(run, [short[0].cell, short[1].cell], "a")
    write_plan(run, [short[0].cell, long[0].cell, long[1].cell], "b")
    measured(run, short[0], 1.0, NOW)
    measured(run, long[0], 1.0, NOW)
    told = tell(tmp_path)
    assert (told["planned"], told["finished"]) == (4, 2)
    root = math.sqrt(2)
    assert [job["remaining"] for job in told["jobs"]] == [
        pytest.approx({"low": root, "high": 4.0}),
        pytest.approx({"low": 2.0, "high": 16.0}),
    ]
    assert told["remaining"] == pytest.approx({"low": 2.0, "high": 16.0})
    assert {job["folder"] for job in told["jobs"]} == {"a"}


@pytest.mark.parametrize(("silence", "state"), [(59, "running"), (71, "running"), (73, "silent")])
def test_a_job_that_has_not_written_for_long_is_said_to_be_silent(tmp_path: Path, silence: float, state: str) -> None:
    """A sample takes at most 32 s / 8: 60 s and three times that are nothing unusual."""
    cells = planned(128, 256)
    write_plan(tmp_path, [each.cell for each in cells])
    measured(tmp_path, cells[0], 8.0, NOW - silence)
    told = tell(tmp_path)
    assert told["jobs"][0]["state"] == state
    assert told["jobs"][0]["silent"] == silence
    assert (told["remaining"] is None) == (state == "silent")


@pytest.mark.parametrize("growth", [0.5, 1.0, 1.5, 2.0])
def test_the_estimate_holds_the_truth_where_time_grows_as_it_may(tmp_path: Path, growth: float) -> None:
    """seconds = (length / 128)^growth, seen after each cell of a run."""
    cells = planned(128, 256, 512, 1024, 2048)
    write_plan(tmp_path, [each.cell for each in cells])
    seconds = [(each.cell.length / 128) ** growth for each in cells]
    for number, each in enumerate(cells[:-1]):
        measured(tmp_path, each, seconds[number], NOW)
        span = tell(tmp_path)["remaining"]
        assert span["low"] <= sum(seconds[number + 1 :]) * (1 + 1e-9)
        assert span["high"] >= sum(seconds[number + 1 :]) * (1 - 1e-9)


def test_a_job_that_names_no_cells_has_no_plan(tmp_path: Path) -> None:
    [each] = planned(128)
    write_plan(tmp_path, [])
    measured(tmp_path, each, 1.0, NOW)
    told = tell(tmp_path)
    assert (told["planned"], told["finished"], told["remaining"]) == (None, 1, None)
    assert (told["jobs"][0]["state"], told["jobs"][0]["planned"]) == ("unknown", None)


def test_cells_of_earlier_plans_are_no_progress_of_this_one(tmp_path: Path) -> None:
    old, new = planned(128, 256)
    write_plan(tmp_path, [new.cell])
    measured(tmp_path, old, 1.0, NOW)
    assert (tell(tmp_path)["planned"], tell(tmp_path)["finished"]) == (1, 0)


def test_the_committed_run_is_finished() -> None:
    folder = Path(__file__).parents[3] / "results" / "reference" / "lexlet"
    told = tell(folder, time.time())
    count = len(list(folder.rglob("cells/*.parquet")))
    assert told["finished"] == count == 66
    assert told["running"] == [] and told["problems"] == [] and told["remaining"] is None


# Files that are written, cut or damaged


def test_lines_are_counted_as_they_come_torn_or_cut(tmp_path: Path) -> None:
    [each] = planned(256)
    watch = FolderWatch([tmp_path])

    def samples() -> int | None:
        running = progress_data(watch.read_runs(), NOW)["running"]
        return running[0]["samples"] if running else None

    (tmp_path / "cells").mkdir()
    file = tmp_path / "cells" / f"{each.cell.id}.jsonl"
    file.write_text('{"method": "p')
    assert samples() is None
    file.unlink()
    begun(tmp_path, each, 1, NOW)
    assert samples() == 1
    begun(tmp_path, each, 1, NOW)
    whole = file.read_bytes()
    line = whole.splitlines()[-1]
    file.write_bytes(whole + line + b"x" * 100)  # torn, and longer than the line that will stand there
    assert samples() == 2
    file.write_bytes(whole)  # cut, and gone on with, before it is looked at again
    begun(tmp_path, each, 3, NOW)
    assert samples() == 5
    file.write_bytes(whole)
    assert samples() == 2


def test_a_finished_cell_is_not_running_whatever_a_killed_process_left(tmp_path: Path) -> None:
    [each] = planned(256)
    measured(tmp_path, each, 1.0, NOW)
    begun(tmp_path, each, 8, NOW)
    assert (tell(tmp_path)["finished"], tell(tmp_path)["running"]) == (1, [])


def test_damaged_files_are_named_and_the_rest_is_told(tmp_path: Path) -> None:
    one, two, three = planned(128, 256, 512)
    write_plan(tmp_path, [one.cell, two.cell, three.cell])
    measured(tmp_path, one, 1.0, NOW)
    (tmp_path / "cells" / f"{two.cell.id}.parquet").write_bytes(b"PAR1 and no more")
    for number, text in enumerate(["", "[]", "{}", '{"config": 1}', '{"config": {"model": {"name": "x"}, "n": 0}}']):
        (tmp_path / "jobs" / f"bad{number}.json").write_text(text)
    write_plan(
        tmp_path, [], "bad5", cells=[{"cell": "x", "method": "a", "task": "b", "length": 0, "seed": 0, "tokens": 1}]
    )
    with (tmp_path / "costs.jsonl").open("a") as stream:
        stream.write(f'{{"cell": "{one.cell.id}", "seconds": NaN}}\n[]\n{{"cell": "{one.cell.id}", "sec')
    told = tell(tmp_path)
    names = [f"cells/{two.cell.id}.parquet", *(f"jobs/bad{number}.json" for number in range(6))]
    assert told["problems"] == [f"{tmp_path.name}/{name}" for name in names]
    assert len(told["jobs"]) == 1 and told["jobs"][0]["seconds"] == 1.0
    assert told["remaining"] == pytest.approx({"low": math.sqrt(2) + 2, "high": 4 + 16})


def test_names_from_files_are_data(fresh: Client, tmp_path: Path) -> None:
    write_plan(tmp_path, [cell("</script><script>alert(1)</script>", "yarn\u202e", 128)])
    answer = fresh("/progress.json")
    assert "<" not in answer.body and "\u202e" not in answer.body
    [job] = json.loads(answer.body)["jobs"]
    assert job["tasks"] == ["</script><script>alert(1)</script>"]
    assert job["methods"] == [r"'yarn\u202e'"]


# The page, made again when cells change


@pytest.mark.slow
def test_an_empty_folder_is_served_and_fills_and_a_damaged_cell_is_named(fresh: Client, tmp_path: Path) -> None:
    assert page_of(fresh).status == 200
    assert json.loads(fresh("/progress.json").body)["cells"] == 0
    keep(tmp_path / "below", planned(128))
    assert json.loads(fresh("/progress.json").body)["cells"] == 1
    (tmp_path / "below/cells/0123456789abcdef.parquet").write_bytes(b"PAR1 and no more")
    cells = json.loads(fresh("/progress.json").body)["cells"]
    for _ in range(60):  # a page that was made of fewer cells grows too old
        if f'data-cells="{cells}"' in (body := page_of(fresh).body):
            break
        time.sleep(0.1)
    assert f'data-cells="{cells}"' in body and cells > 0
    assert "0123456789abcdef.parquet cannot be read" in body
    assert fresh(f"/samples/{planned(128)[0].cell.id}.json").status == 200
    answer = fresh("/samples/0123456789abcdef.json")
    assert (answer.status, answer.body) == (500, "500 this cell's file cannot be read\n")


class Made:
    """Stands for the page's maker: counts, and waits until it may go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.may = threading.Event()
        self.counts: list[int] = []

    def __call__(self) -> PageContent:
        state, count = FolderWatch([self.folder]).folders_state()
        assert self.may.wait(30)
        self.counts.append(count)
        return PageContent(state, count, f"{count} cells")


def test_the_page_is_made_again_only_when_a_finished_cell_changes(tmp_path: Path) -> None:
    one, two, three = planned(128, 256, 512)
    keep(tmp_path, [one])
    made = Made(tmp_path)
    made.may.set()
    pages = PageCache(FolderWatch([tmp_path]), made)

    def shown() -> str:
        page = pages.get(30)
        assert page
        time.sleep(page.seconds + 0.01)  # it is no longer young
        return page.content.html

    assert [shown(), shown()] == ["1 cells"] * 2 and made.counts == [1]
    begun(tmp_path, two, 3, NOW)
    Store(tmp_path).cost(two.cell, seconds=1, tokens=1, peak_bytes=1)
    assert shown() == "1 cells" and made.counts == [1]
    keep(tmp_path, [three])
    assert shown() == "2 cells" and made.counts == [1, 2]
    os.utime(tmp_path / "cells" / f"{three.cell.id}.parquet", (NOW, NOW))
    assert shown() == "2 cells" and made.counts == [1, 2, 2]


def test_readers_wait_for_one_page_and_take_a_young_one(tmp_path: Path) -> None:
    one, two = planned(128, 256)
    keep(tmp_path, [one])
    made = Made(tmp_path)
    pages = PageCache(FolderWatch([tmp_path]), made)
    assert pages.get(0) is None and pages.is_making
    readers = [threading.Thread(target=pages.get, args=(30,)) for _ in range(8)]
    for reader in readers:
        reader.start()
    keep(tmp_path, [two])  # meanwhile
    time.sleep(0.5)
    made.may.set()
    for reader in readers:
        reader.join()
    page = pages.get(0)
    assert page and made.counts[0] in (1, 2) and len(made.counts) == 1
    time.sleep(page.seconds + 0.1)
    page = pages.get(30)
    assert page and page.content.html == "2 cells"


def test_the_page_that_is_not_ready_says_so_and_the_one_that_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()

    def make(maker: PageMaker) -> PageContent:
        ready.wait(30)
        raise RuntimeError(f"secret of {tmp_path}")

    monkeypatch.setattr(PageMaker, "__call__", make)
    monkeypatch.setattr("lexbench.parts.web.view.loopback.PAGE_PATIENCE_SECONDS", 0.05)
    keep(tmp_path / "<b>", planned(128))
    for get in served(tmp_path / "<b>"):
        answer = get("/")
        assert answer.status == 200 and "data-waiting" in answer.body and "&lt;b&gt;" in answer.body
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert json.loads(get("/progress.json").body)["making"] is True
        ready.set()
        answer = page_of(get)
        assert (answer.status, answer.body) == (500, "500 the page cannot be made: see the terminal for the reason\n")


@pytest.mark.slow
def test_a_page_that_cannot_be_made_is_said_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        PageMaker([tmp_path / "absent"])()
    said = capfd.readouterr().err
    assert re.fullmatch(r"lexbench: page cannot be made \(ConfigError: run folder .*absent does not exist.*\)\n", said)


@pytest.mark.slow
def test_what_lies_where_we_are_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A results folder from elsewhere may hold more than results."""
    keep(tmp_path, planned(128))
    (tmp_path / "jinja2.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    assert "<body data-served>" in PageMaker([Path()])().html


def test_closing_ends_the_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    maker = PageMaker([tmp_path])
    failed: list[BaseException] = []

    def make() -> None:
        try:
            maker()
        except subprocess.CalledProcessError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    time.sleep(0.3)
    maker.close()
    thread.join(timeout=300)
    assert not thread.is_alive() and len(failed) == 1
    make()
    assert len(failed) == 2
    begun = time.monotonic()
    with bind_server([tmp_path], 0) as serving:
        assert serving.pages.get(0) is None and serving.pages.is_making
    assert time.monotonic() - begun < 20 and not serving.pages.is_making


def test_ctrl_c_at_the_terminal_is_not_for_the_one_who_makes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = tmp_path / "apart"
    apart.write_text(f"#!{sys.executable}\nimport os\nprint('state', 0, os.getsid(0))\n")
    apart.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(apart))
    assert int(PageMaker([tmp_path])().html) != os.getsid(0)


def test_a_cell_that_finishes_while_it_is_read_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, planned(128))
    asked: list[Any] = []

    def load(folders: Any) -> LoadedCells:
        asked.append(folders)
        if len(asked) < 3:
            raise FileNotFoundError("cells/x.jsonl")
        return LoadedCells([], [], [])

    monkeypatch.setattr("lexbench.stats.records.load_cells", load)
    assert read_cells(FolderWatch([tmp_path])) == LoadedCells([], [], [])
    assert asked == [[tmp_path]] * 3


@pytest.mark.slow
def test_requests_while_cells_are_added(fresh: Client, tmp_path: Path) -> None:
    cells = [finished("passkey", method, length, n=4) for method in ("pi", "ntk") for length in (128, 256, 512)]
    write_plan(tmp_path, [each.cell for each in cells])
    done = threading.Event()
    wrong: list[str] = []

    def ask(path: str) -> None:
        while not done.is_set():
            answer = fresh(path)
            if answer.status not in (200, 404):
                wrong.append(f"{path} {answer.status} {answer.body}")

    def load() -> None:
        while not done.is_set():
            read_cells(FolderWatch([tmp_path]))

    paths = ["/", "/progress.json", "/progress.json", f"/samples/{cells[0].cell.id}.json"]
    threads = [*(threading.Thread(target=ask, args=(path,)) for path in paths), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    for each in cells:
        keep(tmp_path, [each])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    told = json.loads(fresh("/progress.json").body)
    assert (told["finished"], told["planned"], told["problems"]) == (6, 6, [])


def test_a_young_page_is_not_given_to_a_reader_who_has_seen_it(tmp_path: Path) -> None:
    one, two = planned(128, 256)
    keep(tmp_path, [one])
    made = Made(tmp_path)
    made.may.set()
    pages = PageCache(FolderWatch([tmp_path]), made)
    first = pages.get(30)
    assert first
    object.__setattr__(first, "seconds", 1000.0)  # it took long, and stays young
    keep(tmp_path, [two])
    assert pages.get(30) is first, "good enough for others"
    again = pages.get(30, first.content.state)
    assert again and again.content.html == "2 cells"
    assert pages.get(30, again.content.state) is again, "nothing has changed"


def test_what_is_no_file_among_cells_hides_none_of_the_others(tmp_path: Path) -> None:
    good = [finished("passkey", method, 256, n=4) for method in ("none", "ntk")]
    keep(tmp_path, good)
    (tmp_path / "cells" / "0123.parquet").mkdir()
    os.mkfifo(tmp_path / "cells" / "4567.jsonl")  # to open it would wait for ever
    [run] = FolderWatch([tmp_path]).read_runs()
    assert run.finished.keys() == {each.cell.id for each in good}
