"""The client against a real HTTP server on the loopback interface that misbehaves in every way it knows."""

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


def test_a_key_that_is_a_word_is_no_secret(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    with endpoint.serve(lambda handler, _: endpoint.good(handler, "EMPTY")) as (url, _):
        assert ask(url).text == "EMPTY"


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
        (400, b'{"error": {"message": "no"}}', "declined"),
        (422, b"{}", "declined"),
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


def test_a_huge_answer_is_cut_off(endpoint: Any) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * (1 << 16))
        except OSError:
            pass

    with endpoint.serve(script) as (url, asked), pytest.raises(LlmError) as error:
        ask(url)
    assert error.value.kind == "too_long"
    assert len(asked) == 1


@pytest.mark.parametrize("drip", [False, True])
def test_a_hang_ends_at_the_deadline(endpoint: Any, drip: bool) -> None:
    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(100):
                if drip:
                    handler.wfile.write(b" ")
                    handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    with endpoint.serve(script) as (url, _):
        started = time.monotonic()
        with pytest.raises(LlmError) as error:
            ask(url, deadline_s=0.6)
    assert error.value.kind == "deadline"
    assert time.monotonic() - started < 2


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
