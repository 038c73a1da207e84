"""One server over HTTP: retries within their bound, at the pace allowed, and no key anywhere."""

import base64
import email.utils
import gzip
import json
import socket
import threading
import time
import tracemalloc
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lexbench.core.record import Deferred, Refused
from lexbench.parts.serving.openai import http
from lexbench.parts.serving.openai.http import Fault, Rejected, ServerClient, checked_url, is_loopback
from lexbench.parts.serving.openai.network import Pace
from tests.backends import scripted

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http, "LONGEST_PAUSE", 0.03)


def client(url: str, **changed: Any) -> ServerClient:
    settings = {"key": None, "key_variable": "OPENAI_API_KEY", "timeout": 5.0, "retries": 3}
    return ServerClient(url, **{**settings, "requests_per_minute": None, **changed})


def failing(times: int, reply: scripted.Reply) -> Callable[[scripted.Body], scripted.Reply]:
    """The reply so many times, then a good one."""
    left = iter(range(times))
    return lambda _: reply if next(left, None) is not None else (200, {"fine": True})


DOWN = [
    (500, {"error": {"message": "out of\norder"}}),
    (503, b"<html>starting</html>"),
    (429, {"message": "slow down"}),
    (408, {}),
    None,
    (200, {"error": {"message": "Provider returned error", "code": 502}}),  # of a router
    (409, {}),
    (425, {}),
    (200, {"choices": [], "error": {"message": "Provider returned error", "code": 502}}),
    (200, {"choices": [{"text": " half an answer"}], "error": {"message": "Provider returned error"}}),
    (200, b'{"fine": ', {"Content-Length": "50"}),  # it breaks in the middle
]


@pytest.mark.parametrize("reply", DOWN)
def test_what_fails_for_a_while_is_asked_again(reply: scripted.Reply) -> None:
    with scripted.serving(failing(3, reply)) as server:
        assert client(server.url).post("completions", {"a": 1}) == {"fine": True}
        assert server.asked == [{"a": 1}] * 4


@pytest.mark.parametrize("reply", DOWN[:10])
def test_the_bound_holds_and_later_one_attempt_is_enough_until_one_succeeds(reply: scripted.Reply) -> None:
    with scripted.serving(failing(4 + 1, reply)) as server:
        one = client(server.url)
        with pytest.raises(Deferred, match=r"4 attempts.*repeat the command") as refusal:
            one.post("completions", {})
        assert "\n" not in refusal.value.reason and len(server.asked) == 4
        with pytest.raises(Deferred):
            one.post("completions", {})
        assert len(server.asked) == 5
        assert one.post("completions", {}) == {"fine": True}
        server.answer = failing(3, reply)
        assert one.post("completions", {}) == {"fine": True}


def test_a_server_that_is_down_is_first_asked_for_no_more_than_its_list() -> None:
    with scripted.serving(lambda _: (500, {})) as server:
        one = client(server.url, retries=0)
        with pytest.raises(Deferred):
            one.post("completions", {})
        server.models = (503, {})
        with pytest.raises(Deferred, match="503"):
            one.post("completions", {})
        assert len(server.asked) == 1
        server.models, server.answer = (404, {}), failing(0, None)  # it has no list, but it answers
        assert one.post("completions", {}) == {"fine": True}


def test_pauses_double_up_to_the_longest_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(ServerClient, "_sleep", lambda self, seconds, reason: pauses.append(seconds))
    monkeypatch.setattr(http, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(http, "LONGEST_PAUSE", 30.0)
    with scripted.serving(failing(8, (500, {}))) as server:
        client(server.url, retries=8).post("completions", {})
    pauses = pauses[1::2]  # before each attempt comes its turn
    for pause, usual in zip(pauses, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
        assert 0.75 * usual <= pause <= 1.25 * usual
    assert len(set(pauses)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("dated", [False, True])
def test_a_server_that_says_when_to_come_back_is_obeyed(dated: bool) -> None:
    seconds = 2 if dated else 0.4  # a date has whole seconds
    said = email.utils.formatdate(time.time() + seconds, usegmt=True) if dated else str(seconds)
    with scripted.serving(failing(1, (429, {}, {"Retry-After": said}))) as server:
        assert client(server.url).post("completions", {}) == {"fine": True}
        assert server.at[1] - server.at[0] > (0.9 if dated else 0.39)


def test_a_date_that_is_none_asks_for_no_pause() -> None:
    odd = {"Retry-After": f"Mon, 01 Jan 2030 00:00:00 +{'9' * 13}"}
    with scripted.serving(failing(1, (429, {}, odd))) as server:
        assert client(server.url).post("completions", {}) == {"fine": True}


def test_a_server_that_wants_more_patience_than_we_have_is_not_waited_for() -> None:
    later: scripted.Reply = (429, {}, {"Retry-After": "3600"})
    with scripted.serving(failing(1, later)) as server, pytest.raises(Deferred, match="429"):
        client(server.url).post("completions", {})
    assert len(server.asked) == 1


def test_an_answer_that_takes_too_long_is_none() -> None:
    said = r"no answer within 0\.1 seconds \(2 attempts\)"
    with scripted.serving(failing(0, None), seconds=0.5) as server, pytest.raises(Deferred, match=said):
        client(server.url, timeout=0.1, retries=1).post("completions", {})


def test_nobody_there_is_said_with_the_address() -> None:
    with scripted.serving(failing(0, None)) as server:
        url = server.url
    with pytest.raises(Deferred, match=rf"{url} does not answer \(.*refused.*\) \(4 attempts\)"):
        client(url).post("completions", {})
    with pytest.raises(Fault):
        client(url).get("models")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((400, {"error": {"message": "too\nlong: 9 tokens"}}), "says HTTP 400: too long: 9 tokens"),
        ((422, {"detail": [{"loc": "prompt"}]}), 'says HTTP 422: [{"loc": "prompt"}]'),
        ((413, b"Payload | Too Large"), "says HTTP 413: Payload | Too Large"),
        ((404, {"error": "no such model"}), "says HTTP 404: no such model"),
        ((501, {}), "says HTTP 501: {}"),
        ((200, {"error": {"message": "unknown field", "code": 400}}), "says: unknown field"),
        ((500, {"error": {"message": "11 validation errors: {}"}}), "says HTTP 500: 11 validation errors"),
        ((307, b"", {"Location": "http://b/v1"}), "it has moved to http://b/v1, give that as backend.url"),
    ],
)
def test_a_no_is_passed_on_in_one_line_and_not_asked_again(reply: scripted.Reply, said: str) -> None:
    with scripted.serving(failing(9, reply)) as server:
        with pytest.raises(Rejected) as refusal:
            client(server.url).post("completions", {})
        assert said in refusal.value.reason and "\n" not in refusal.value.reason
        assert not isinstance(refusal.value, Deferred) and len(server.asked) == 1


NO_OBJECT = [b"<html>hello</html>", b"[1, 2]", b"", b'"text"', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("said", NO_OBJECT)
def test_a_page_in_place_of_an_answer_is_asked_again(said: bytes) -> None:
    with scripted.serving(failing(2, (200, said))) as server:
        assert client(server.url).post("completions", {}) == {"fine": True}
    with scripted.serving(failing(9, (200, said))) as server:
        with pytest.raises(Deferred, match=r"malformed answer.* is no JSON object \(4 attempts\)") as refusal:
            client(server.url).post("completions", {})
        assert len(refusal.value.reason) < 500 and len(server.asked) == 4


def test_halves_of_surrogate_pairs_become_replacement_characters() -> None:
    said = b'{"a": ["x\\ud83d", {"\\uDE00": "\\ud83d\\ude00"}], "b": 1}'
    with scripted.serving(failing(9, (200, said))) as server:
        assert client(server.url).post("completions", {}) == {"a": ["x\ufffd", {"\ufffd": "\U0001f600"}], "b": 1}
    lost = b'{"a": "Paris \\ud83d, France"}'  # inside a text the other half was not cut off
    with (
        scripted.serving(failing(9, (200, lost))) as server,
        pytest.raises(Refused, match=r"malformed answer of .*: it is no UTF-8"),
    ):
        client(server.url).post("completions", {})


@pytest.mark.parametrize("content", ["M\u00fcller".encode("latin-1"), b"half \xe6\x9d", b"\xed\xa0\xbd\xed\xb8\x80"])
def test_a_text_that_is_no_utf_8_is_not_taken_for_what_was_written(content: bytes) -> None:
    with scripted.serving(failing(9, (200, b'{"text": "' + content + b'"}'))) as server:
        with pytest.raises(Refused, match=r"^malformed answer of .*: it is no UTF-8") as refusal:
            client(server.url).post("completions", {})
        assert not isinstance(refusal.value, Deferred) and len(server.asked) == 1
    with scripted.serving(failing(9, (200, '{"text": "M\u00fcller \ufffd"}'.encode()))) as server:
        assert client(server.url).post("completions", {}) == {"text": "M\u00fcller \ufffd"}  # the model's own


@pytest.mark.parametrize("status", [200, 400])
def test_control_characters_of_a_server_do_not_reach_the_terminal(status: int) -> None:
    said = b"\x1b]0;owned\x07\x1b[31mred\x9b1m"
    with scripted.serving(failing(9, (status, said))) as server, pytest.raises(Refused) as refusal:
        client(server.url, retries=0).post("completions", {})
    assert refusal.value.reason.isprintable() and "?]0;owned??[31mred" in refusal.value.reason


@pytest.mark.parametrize(
    "begins", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Header: "]
)
def test_an_answer_without_end_is_given_up_in_time(begins: bytes) -> None:
    """A blank every 20 ms, of the content or of a header: each read is in time, the answer is not."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def drip() -> int:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(begins)
                for sent in range(500):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return sent
                    time.sleep(0.02)
            return 500

        dripped = pool.submit(drip)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(Deferred, match=r"no answer within 0\.3 seconds"):
            client(url, timeout=0.3, retries=0).post("completions", {})
        assert dripped.result() < 250  # half of the 10 seconds that it would take


BOMB = b'{"data": [' + b"[]," * (10 << 20) + b"[]]}"
"""30 MiB, and some hundred more as lists."""


@pytest.mark.everyday("get")
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_small_body_that_unpacks_to_a_large_one_never_takes_its_room(method: str) -> None:
    """The whole must stay below the bound of what was asked, and what it takes below some times the bound."""
    packed = gzip.compress(BOMB, 9)
    reply: scripted.Reply = (200, packed, {"Content-Encoding": "gzip"})
    assert len(packed) < 1 << 16
    with scripted.serving(lambda _: reply, models=reply) as server:
        one = client(server.url)
        tracemalloc.start()
        try:
            with pytest.raises(
                Refused, match=r"sends more than (1|16) MiB in one answer: check backend.url"
            ) as refusal:
                one.get("models") if method == "get" else one.post("completions", {}, most=1 << 20)
            assert not isinstance(refusal.value, Deferred)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < (40 << 20 if method == "get" else 6 << 20)


def test_compressed_answers_are_read_and_broken_ones_asked_again() -> None:
    packed = gzip.compress(json.dumps({"fine": "\u6771\u4eac" * 1000}).encode())
    headers = {"Content-Encoding": "gzip"}
    for broken in (packed[:-9], b"no gzip"):
        left = iter([(200, broken, headers)])
        with scripted.serving(lambda _, left=left: next(left, (200, packed, headers))) as server:  # type: ignore[misc]
            assert client(server.url).post("completions", {}) == {"fine": "\u6771\u4eac" * 1000}
            assert len(server.asked) == 2
    with scripted.serving(failing(9, (200, packed, {"Content-Encoding": "br"}))) as server:
        with pytest.raises(Refused, match="compresses answers by br, which was not asked for"):
            client(server.url).post("completions", {})
        assert server.headers[-1]["Accept-Encoding"] == "gzip"


def test_a_long_answer_of_a_server_is_cut() -> None:
    said = (400, {"message": "x " * 9999})
    with scripted.serving(failing(9, said)) as server, pytest.raises(Rejected) as refusal:
        client(server.url).post("completions", {})
    assert len(refusal.value.reason) < 400


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_said_by_the_name_of_its_variable_and_never_shown(status: int) -> None:
    said = {"error": {"message": f"Incorrect API key provided: {KEY}."}}
    with scripted.serving(failing(9, (status, said))) as server:
        with pytest.raises(Deferred, match=r"provided: \*\*\*\.: .*set MY_KEY") as refusal:
            client(server.url, key=KEY, key_variable="MY_KEY").post("completions", {})
        assert KEY not in refusal.value.reason and len(server.asked) == 1
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [200, 307, 400, 429, 500])
def test_a_key_that_the_server_says_back_is_starred_out(status: int) -> None:
    echoed = f"{'a' * 290} {KEY} {KEY}".encode()  # also where the line is cut
    with scripted.serving(lambda _: (status, echoed, {"Location": KEY})) as server:
        one = client(server.url, key=KEY, retries=1)
        with pytest.raises(Refused) as refusal:
            one.post("completions", {})
        assert "sk-" not in refusal.value.reason and KEY not in repr(one) + repr(refusal.value)


ODD = 'pk/live+9f~"&%0123456789-abcdef'
"""A key of characters that are written otherwise in URLs, JSON and HTML."""
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "URL": lambda key: urllib.parse.quote(key, safe=""),
    "URL in lower case": lambda key: urllib.parse.quote(key, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "JSON": lambda key: json.dumps({"key": key}),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 of user and key": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "base64 in an URL": lambda key: base64.urlsafe_b64encode(f"x{key}".encode()).decode(),
    "its first half": lambda key: key[: len(key) // 2],
    "its last half": lambda key: key[-(len(key) // 2) :],
    "its middle": lambda key: f"a{key[8:20]}b",
}


@pytest.mark.parametrize("key", [KEY, ODD])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_key_is_known_in_every_spelling_and_in_part(name: str, key: str) -> None:
    """In no message are 8 characters in a row of what was sent back."""
    said = SPELLINGS[name](key)
    one = client("http://127.0.0.1:1/v1", key=key)
    assert one.holds_key(f"before {said} behind") and not one.holds_key("an answer of other words, sk-very and 0123")
    shown = one.one_line_message(f"before {said} behind {said}, twice")
    secret = SPELLINGS["as it is" if name.startswith("its") else name](key)[8:-8]  # what is no word of the spelling
    assert not [place for place in range(len(secret) - 7) if secret[place : place + 8] in shown], shown
    assert shown.startswith("before ") and shown.endswith(", twice") and "***" in shown


@pytest.mark.parametrize("place", range(250, 301, 5))
def test_a_key_where_a_message_is_cut_is_starred_out(place: int) -> None:
    one = client("http://127.0.0.1:1/v1", key=KEY)
    assert "sk-v" not in one.one_line_message("a" * place + KEY + " and more" * 9)


def test_a_page_of_megabytes_is_cut_before_it_is_read() -> None:
    one, page = client("http://127.0.0.1:1/v1", key=KEY), "<p> " * (4 << 20)
    tracemalloc.start()
    try:
        assert len(one.one_line_message(page)) < 310
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_placeholder_is_no_secret() -> None:
    one = client("http://127.0.0.1:1/v1", key="EMPTY")
    assert not one.holds_key("EMPTY") and not client("http://127.0.0.1:1/v1").holds_key("")
    assert client("http://127.0.0.1:1/v1", key=KEY).holds_key(f"it is {KEY}!")


def test_requests_are_as_far_apart_as_the_rate_says() -> None:
    with scripted.serving(failing(0, None)) as server:
        one = client(server.url, requests_per_minute=600)
        threads = [threading.Thread(target=one.post, args=("completions", {})) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(server.at) - min(server.at) > 0.2  # of 0.4: under load the first request may come late


def test_turns_are_taken_once_and_held_back_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    pace = Pace(2.0)
    assert [pace.reserve_turn() for _ in range(3)] == [0.0, 2.0, 4.0]
    pace.hold_back(30.0)
    assert pace.reserve_turn() == 30.0
    assert [Pace(0.0).reserve_turn() for _ in range(2)] == [0.0, 0.0]


def test_a_thread_that_is_told_to_stop_gives_up_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 60.0)
    monkeypatch.setattr(http, "LONGEST_PAUSE", 60.0)
    stop = threading.Event()
    with scripted.serving(failing(9, (500, {}))) as server:
        one = client(server.url)
        one.give_up_when(stop)
        threading.Timer(0.1, stop.set).start()
        begin = time.monotonic()
        with pytest.raises(Deferred, match="500"):
            one.post("completions", {})
        assert time.monotonic() - begin < 5 and len(server.asked) == 1


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("proxied")
def test_a_proxy_of_the_environment_is_not_asked_for_this_machine() -> None:
    with scripted.serving(failing(0, None)) as server:
        assert client(server.url).post("completions", {}) == {"fine": True}


def test_what_is_this_machine() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]")))
    assert not any(map(is_loopback, ("example.com", "10.0.0.1", "localhost.example.com", "0.0.0.0")))


UNKNOWN = ["http://256.1.1.1/v1", "http://a..b/v1", f"http://{'a' * 64}.org/v1", "http://a/v1\n", "http://a/\x00"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/v1", "localhost", "ftp://a/v1", "http://", "", "http://a:x/v1", *UNKNOWN]
)
def test_an_address_must_be_whole(url: str) -> None:
    with pytest.raises(ValueError, match=r"backend\.url must be a complete address: e\.g\."):
        checked_url(url)


@pytest.mark.parametrize(
    "url", [f"http://me:{KEY}@a/v1", f"http://{KEY}@a/v1", f"http://a/v1?key={KEY}", "http://a/#b"]
)
def test_an_address_that_goes_into_records_must_hold_no_secret(url: str) -> None:
    with pytest.raises(ValueError, match="must not have a password") as error:
        checked_url(url)
    assert KEY not in str(error.value)


def test_beside_the_interface_and_behind_it() -> None:
    with scripted.serving(failing(0, None), version="0.1") as server:
        assert client(f"{server.url}/").get("models") == scripted.listing("one")
        assert client(server.url).get("/version") == {"version": "0.1"}
        one = client(server.url)
        one.close()
        one.close()


def test_an_account_that_is_used_up_defers() -> None:
    said = r"HTTP 402: Insufficient Balance: its account is used up, pay, then repeat the command"
    with scripted.serving(failing(1, (402, {"error": {"message": "Insufficient Balance"}}))) as server:
        with pytest.raises(Deferred, match=said):
            client(server.url).post("completions", {})
        assert len(server.asked) == 1
