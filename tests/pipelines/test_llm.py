"""The client against a real HTTP server on the loopback interface that misbehaves in every way it knows."""

import contextlib
import gzip
import itertools
import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from littledragon.pipelines.llm import Answer, Client, LlmError


def ask(url: str, deadline_s: float = 8.0, rpm: int = 60_000) -> Answer:
    client = Client(url, "some-model", rpm, deadline_s)
    try:
        return client.ask([{"role": "user", "content": "hello"}])
    finally:
        client.close()


def test_an_answer_and_its_cost(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with endpoint.serve(lambda handler, _: endpoint.good(handler)) as (url, asked):
        assert ask(url) == Answer("{}", 11, 7)
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["model"] == "some-model"
    assert asked[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert asked[0]["response_format"] == {"type": "json_object"}
    assert asked[0]["key"] == "Bearer sesame"


@pytest.mark.parametrize("status", [200, 401, 402, 404, 405])
def test_an_echo_of_the_key_is_blotted_out(endpoint: Any, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    text = "your key is sk-0123456789abcdef, is it not?"
    body = endpoint.completion(text) if status == 200 else json.dumps({"error": {"message": text}}).encode()
    with endpoint.serve(lambda handler, _: endpoint.send(handler, status, body)) as (url, asked):
        if status == 200:
            assert ask(url).text == "your key is (key), is it not?"
        else:
            with pytest.raises(LlmError, match=r"your key is \(key\)") as error:
                ask(url)
            assert error.value.kind == "unauthorized"
            assert "sk-" not in str(error.value)
    assert asked[0]["key"] == "Bearer sk-0123456789abcdef"


@pytest.mark.parametrize("key", ["EMPTY", "none", "x"])
def test_a_key_that_is_a_word_is_no_secret(endpoint: Any, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with endpoint.serve(lambda handler, _: endpoint.good(handler, key)) as (url, _):
        assert ask(url).text == key


ESCAPED = "".join(f"\\u{ord(c):04X}" for c in "sesame")


@pytest.mark.parametrize("shown", ["sesame", ESCAPED, ESCAPED.replace("\\u00", "\\x"), "s\\u0065same"])
@pytest.mark.parametrize("place", ["reply", "refusal", "error", "body", "cut", "retried"])
def test_no_echo_of_a_short_key_is_told(endpoint: Any, monkeypatch: pytest.MonkeyPatch, shown: str, place: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame\n")
    error = json.dumps({"error": {"message": f"key {shown}"}}).encode()
    status, body = {
        "reply": (200, endpoint.completion(f'{{"a": "{shown}"}}')),
        "refusal": (200, endpoint.completion("{", message={"refusal": f"no {shown}"})),
        "error": (400, error),
        "body": (451, f"<p>{shown}".encode()),
        "cut": (402, b"y" * (290 - len("HTTP 402: ")) + shown.encode()),
        "retried": (503, error),
    }[place]
    with endpoint.serve(lambda handler, _: endpoint.send(handler, status, body)) as (url, asked):
        if place == "reply":
            told = ask(url).text
        else:
            with pytest.raises(LlmError) as caught:
                ask(url, deadline_s=0.6)
            told = f"{caught.value} {caught.value.detail} {caught.value!r}"
    assert asked[0]["key"] == "Bearer sesame"
    assert "(key)" in told
    assert "sesa" not in told
    assert "\\" not in told


@pytest.mark.parametrize("key", ["cl\u00e9-0123456789", "sk-0123\n456789", "sk-0123\x01456789"])
def test_a_key_that_no_header_can_carry_is_refused_untold(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(LlmError, match="OPENAI_API_KEY holds letters that no key has") as error:
        ask("http://127.0.0.1:9/v1")
    assert error.value.kind == "unauthorized"
    assert "0123" not in repr(error.value)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("status", [400, 422])
def test_an_endpoint_without_response_format_is_asked_without(endpoint: Any, status: int, knows: bool) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 0 or not knows:
            endpoint.send(handler, status, b'{"error": {"message": "what is that?"}}')
        else:
            endpoint.good(handler)

    with endpoint.serve(script) as (url, asked):
        client = Client(url, "some-model", 60_000, 8)
        try:
            if knows:
                assert [client.ask([]).text for _ in range(2)] == ["{}", "{}"]
            else:
                with pytest.raises(LlmError, match="what is that") as error:
                    client.ask([])
                assert error.value.kind == "declined"
        finally:
            client.close()
    assert ["response_format" in body for body in asked] == [True, False, False][: 2 + knows]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("retry_after", value) for value in ("nan", "0", "-5", "inf", "1e999", "Thu, 01 Jan 1970 00:00:00 GMT")),
        *(("retry_after_ms", value) for value in ("nan", "0", "-5")),
    ],
)
def test_a_wait_that_is_none_is_an_ordinary_one(endpoint: Any, name: str, value: str) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        endpoint.send(handler, 429, b"{}", **{name: value})

    with endpoint.serve(script) as (url, asked), pytest.raises(LlmError) as error:
        ask(url, deadline_s=0.6)
    assert error.value.kind in ("rate_limited", "deadline")
    assert 1 <= len(asked) <= 4
    assert all(later["at"] - earlier["at"] >= 0.25 for earlier, later in itertools.pairwise(asked))


def test_too_many_requests_waits_as_long_as_it_is_told(endpoint: Any) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 0:
            endpoint.send(handler, 429, b'{"error": {"message": "slow down"}}', retry_after="1")
        else:
            endpoint.good(handler)

    with endpoint.serve(script) as (url, asked):
        assert ask(url).text == "{}"
    assert 1.0 <= asked[1]["at"] - asked[0]["at"] < 3


def test_a_long_wait_beyond_the_deadline_is_not_begun(endpoint: Any) -> None:
    with endpoint.serve(lambda handler, _: endpoint.send(handler, 429, b"{}", retry_after="3600")) as (url, asked):
        started = time.monotonic()
        with pytest.raises(LlmError) as error:
            ask(url)
    assert error.value.kind == "rate_limited"
    assert time.monotonic() - started < 3
    assert len(asked) == 1


def test_what_may_pass_is_tried_again(endpoint: Any) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 0:
            endpoint.send(handler, 500, b"oops")
        elif number == 1:
            endpoint.send(handler, 200, endpoint.completion("{}")[:-40])
        elif number == 2:
            handler.send_response(200)
            handler.send_header("content-length", "1000")
            handler.end_headers()
            handler.wfile.write(b"{")
            handler.close_connection = True
        else:
            endpoint.good(handler)

    with endpoint.serve(script) as (url, asked):
        assert ask(url, deadline_s=20).text == "{}"
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (451, b'{"error": {"message": "no"}}', "declined"),
        (401, b"{}", "unauthorized"),
        (404, b"{}", "unauthorized"),
        (413, b"{}", "too_long"),
        (200, {"message": {"refusal": "I will not"}}, "declined"),
        (200, {"finish_reason": "content_filter"}, "declined"),
        (200, {"finish_reason": "length"}, "too_long"),
    ],
)
def test_what_is_for_good_is_asked_once(endpoint: Any, status: int, body: Any, kind: str) -> None:
    sent = body if isinstance(body, bytes) else endpoint.completion("{", **body)
    with (
        endpoint.serve(lambda handler, _: endpoint.send(handler, status, sent)) as (url, asked),
        pytest.raises(LlmError) as error,
    ):
        ask(url)
    assert error.value.kind == kind
    assert len(asked) == 1


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"null", b'{"choices": []}', b'{"choices": [{"message": {}}]}', b"[" * 100_000, b"\xff"]
)
def test_what_is_no_completion_is_garbled(endpoint: Any, body: bytes) -> None:
    with (
        endpoint.serve(lambda handler, _: endpoint.send(handler, 200, body)) as (url, _),
        pytest.raises(LlmError) as error,
    ):
        ask(url, deadline_s=0.5)
    assert error.value.kind in ("garbled", "deadline")


STATUSES = [200, 302, 400, 401, 500]


@pytest.mark.parametrize("status", STATUSES)
def test_a_huge_answer_is_cut_off(endpoint: Any, status: int) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(status)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b" " * (1 << 16))

    with endpoint.serve(script) as (url, asked), pytest.raises(LlmError) as error:
        ask(url)
    assert error.value.kind == "too_long"
    assert len(asked) == 1


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_unfolds_is_not_unfolded(endpoint: Any, status: int) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    with (
        endpoint.serve(lambda handler, _: endpoint.send(handler, status, bomb, content_encoding="gzip")) as (url, _),
        pytest.raises(LlmError) as error,
    ):
        ask(url, deadline_s=0.5)
    assert (error.value.kind, "compressed" in error.value.detail) == ("garbled", True)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("part", ["status line", "header", "headers", "hints", "body", "nothing", "tail"])
def test_a_hang_ends_at_the_deadline(endpoint: Any, part: str, status: int) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        line = f"HTTP/1.1 {status} X\r\n".encode()
        start, drip = {
            "status line": (b"HTTP/1.1 ", b"2"),
            "header": (line + b"x: ", b"y"),
            "headers": (line, b"x: y\r\n"),
            "hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
            "body": (line + b"\r\n", b" "),
            "nothing": (b"", b""),
            "tail": (line + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
        }[part]
        with contextlib.suppress(OSError):
            handler.wfile.write(start)
            for _ in range(100):
                handler.wfile.write(drip)
                time.sleep(0.05)

    with endpoint.serve(script) as (url, _):
        started = time.monotonic()
        with pytest.raises(LlmError) as error:
            ask(url, deadline_s=0.4)
    assert error.value.kind == "deadline"
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("status", [200, 429])
def test_a_hang_of_a_later_request_ends_at_the_deadline(endpoint: Any, status: int) -> None:
    """Also where the endpoint would have kept the first one's connection."""

    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 0:
            handler.protocol_version, handler.close_connection = "HTTP/1.1", False
            endpoint.send(handler, status, endpoint.completion("{}"))
            return
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
            for _ in range(100):
                handler.wfile.write(b"y")
                time.sleep(0.05)

    with endpoint.serve(script) as (url, asked):
        client = Client(url, "some-model", 60_000, 1.2)
        try:
            if status == 200:
                client.ask([])
            started = time.monotonic()
            with pytest.raises(LlmError) as error:
                client.ask([])
        finally:
            client.close()
    assert error.value.kind == "deadline"
    assert time.monotonic() - started < 2.2
    assert len(asked) == 2


def test_nobody_there(endpoint: Any) -> None:
    with pytest.raises(LlmError) as error:
        ask("http://127.0.0.1:9/v1", deadline_s=1)
    assert error.value.kind == "network"


def test_the_limit_of_requests_a_minute_holds_over_clients(endpoint: Any) -> None:
    with endpoint.serve(lambda handler, _: endpoint.good(handler)) as (url, asked):
        for _ in range(4):
            ask(url, rpm=200)
        times = [a["at"] for a in asked]
        assert all(later - earlier >= 0.28 for earlier, later in itertools.pairwise(times))
        with pytest.raises(LlmError) as error:
            for _ in range(2):
                ask(url, rpm=1, deadline_s=1)
    assert error.value.kind == "deadline"
