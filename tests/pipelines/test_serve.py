"""`dragon serve`: a training loop's side of it, over real sockets."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import targets
from littledragon.pipelines import cli, serve
from littledragon.release import dataset
from littledragon.release.tasks import tasks_of
from littledragon.validators.service import Service

REAL = Path(__file__).parents[1] / "golden" / "release"
FAST, SLOW = ((REAL / f"payload_{name}.txt").read_text(encoding="utf-8") for name in ("fast", "slow"))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release folder of one task, whose anchor the simulated device's latencies lie around."""
    folder = tmp_path_factory.mktemp("release")
    row = {
        "workload_id": "w-1", "module": (REAL / "module.json").read_text(encoding="utf-8"),
        "inputs": (REAL / "inputs.json").read_text(encoding="utf-8"), "target": json.dumps(targets.target("llvm")),
        "environment_id": "e", "default_us": 1e4, "anchor_us": 10.0, "noise_band": 0.01, "margin": 0.05,
        "split": "train",
    }  # fmt: skip
    (folder / "tasks").mkdir()
    pq.write_table(pa.Table.from_pylist([row], dataset.tasks_schema()), folder / "tasks" / "train.parquet")
    return folder


@pytest.fixture(scope="module")
def server(release: Path) -> Iterator[serve.Server]:
    with Service(tasks_of(release), "simulated") as service:
        server = serve.Server(("127.0.0.1", 0), service, "simulated")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()


def ask(
    server: serve.Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"} | headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def evaluate(server: serve.Server, **question: Any) -> tuple[int, dict[str, Any]]:
    asked = {"task_id": "w-1", "completion": FAST, "mode": "construct", "parent_us": None} | question
    return ask(server, "POST", "/evaluate", json.dumps(asked).encode())


def test_a_completion_has_a_verdict_and_a_reward(server: serve.Server) -> None:
    status, answer = evaluate(server)
    verdict, reward = answer["verdict"], answer["reward"]
    assert (status, verdict["gate"], verdict["fault"], verdict["p"]) == (200, "ok", None, 1.0)
    assert answer["task"] == {"default_us": 1e4, "anchor_us": 10.0, "noise_band": 0.01, "margin": 0.05}
    assert (reward["stage"], reward["total"]) == ("correct", 1 + reward["r_lat"])
    assert evaluate(server, completion="no graph")[1]["reward"]["total"] == 0
    again = evaluate(server, mode="refine", parent_us=2 * verdict["latency_us"])[1]["reward"]
    assert (again["b_refine"], again["u"]) == (True, reward["u"])


def test_many_ask_at_once(server: serve.Server) -> None:
    before = server.service.counts()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: evaluate(server, completion=text), [FAST, SLOW] * 16))
    assert {status for status, _ in answers} == {200}
    assert len({json.dumps(answer) for _, answer in answers}) == 2
    status, health = ask(server, "GET", "/health")
    assert (status, health["status"], health["device"], health["tasks"], health["busy"]) == (
        200, "ok", "simulated", 1, 0,
    )  # fmt: skip
    assert health["counts"]["evaluated"] == before["evaluated"] + 32


WRONG: dict[str, tuple[bytes | dict[str, Any], int, str]] = {
    "no JSON": (b"{", 400, "not JSON"),
    "deep JSON": (b"[" * 100_000, 400, "not JSON"),
    "no text": (b"\xff\xfe\x00", 400, "not JSON"),
    "no object": (b"[]", 400, "not a JSON object"),
    "a field less": (b'{"task_id": "w-1"}', 400, "field 'completion' is missing"),
    "another field": ({"reward": 2.0}, 400, "unknown field 'reward'"),
    "no completion": ({"completion": None}, 400, "field 'completion' must be a text"),
    "a number for an id": ({"task_id": 1}, 400, "field 'task_id' must be a text"),
    "a text for a number": ({"parent_us": "1"}, 400, "field 'parent_us' must be a number"),
    "a truth for a number": ({"parent_us": True}, 400, "field 'parent_us' must be a number"),
    "no mode": ({"mode": "guess\nwhat"}, 400, "choose construct or refine"),
    "no parent": ({"mode": "refine"}, 400, "needs the latency of graph A"),
    "a parent without a latency": ({"mode": "refine", "parent_us": float("nan")}, 400, "which is no latency"),
    "a parent without an end": ({"mode": "refine", "parent_us": 10**400}, 400, "which is no latency"),
    "no task": ({"task_id": "w-2\n"}, 404, "no task 'w-2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_asked_wrongly_is_told_in_one_line(server: serve.Server, name: str) -> None:
    body, expected, words = WRONG[name]
    status, answer = ask(server, "POST", "/evaluate", body) if isinstance(body, bytes) else evaluate(server, **body)
    assert (status, list(answer)) == (expected, ["error"])
    assert words in answer["error"]
    assert "\n" not in answer["error"]
    assert len(answer["error"]) <= 500


def test_other_requests(server: serve.Server) -> None:
    assert ask(server, "GET", "/")[0] == 404
    assert ask(server, "POST", "/health", b"{}")[0] == 404
    assert ask(server, "GET", "/evaluate")[0] == 405
    assert ask(server, "POST", "/evaluate", b"{}", **{"Content-Type": "text/plain"})[0] == 415
    assert ask(server, "POST", "/evaluate", None, **{"Transfer-Encoding": "chunked"})[0] == 411
    assert ask(server, "POST", "/evaluate", None, **{"Content-Length": "9" * 40})[0] == 413
    assert ask(server, "POST", "/evaluate", None, **{"Content-Length": str(serve.MAX_BODY + 1)})[0] == 413
    assert ask(server, "POST", "/evaluate", None, **{"Content-Length": "-1"})[0] == 411


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"BREW /evaluate HTTP/1.1\r\n\r\n", 501),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /health HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /he alth HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_told_in_the_same_way(server: serve.Server, sent: bytes, status: int) -> None:
    with socket.create_connection(server.server_address[:2], timeout=20) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.getheader("Content-Type")) == (status, "application/json")
        assert list(json.loads(answer.read())) == ["error"]


def test_who_is_slow_to_ask_loses_the_connection(
    server: serve.Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also who sends a byte now and then, within a header or a body, and who has asked before."""
    monkeypatch.setattr(serve, "SILENCE_S", 0.5)
    whole = b"GET /health HTTP/1.1\r\n\r\n"
    body = b"POST /evaluate HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    for begun in (b"", b"GET /health HTTP/1.1\r\nX: ", body, whole):
        with socket.create_connection(server.server_address[:2], timeout=20) as slow:
            slow.sendall(begun)
            with suppress(ConnectionError):
                while True:
                    slow.settimeout(0.1)
                    try:
                        if not slow.recv(1 << 16):
                            break
                    except TimeoutError:
                        slow.sendall(b" ")
    assert server._asking == {}
    assert evaluate(server, completion=SLOW)[0] == 200  # the seconds that an answer takes do not count
    assert "Traceback" not in capfd.readouterr().err


def test_more_connections_than_it_holds_are_closed(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_CONNECTED", 2)
    with Service(tasks_of(release), "simulated") as service:
        server = serve.Server(("127.0.0.1", 0), service, "simulated")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        address = server.server_address[:2]
        with socket.create_connection(address, timeout=20), socket.create_connection(address, timeout=20) as held:
            with socket.create_connection(address, timeout=20) as third:
                assert third.recv(1) == b""
            held.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert held.recv(8) == b"HTTP/1.1"
        server.shutdown()
        server.server_close()
        thread.join()


def test_what_fails_here_is_answered_and_is_no_reward(
    server: serve.Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server.service, "evaluate", lambda *_: 1 / 0)
    assert evaluate(server) == (500, {"error": "ZeroDivisionError: division by zero"})
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_goes_away_disturbs_nobody(server: serve.Server, capfd: pytest.CaptureFixture[str]) -> None:
    for sent in (b"", b"POST /evaluate HT", b"POST /evaluate HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"):
        with socket.create_connection(server.server_address[:2]) as gone:
            gone.sendall(sent)
    assert evaluate(server)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_more_than_it_can_take_are_told_to_come_again(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_AT_ONCE", 0)
    with Service(tasks_of(release), "simulated") as service:
        server = serve.Server(("127.0.0.1", 0), service, "simulated")
        with pytest.raises(serve._Wrong, match="come again") as caught:
            server.evaluate({"task_id": "w-1", "completion": FAST, "mode": "construct"})
        server.server_close()
    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere"], "not a release"),
        (["{release}", "--split", "test"], "no such rows"),
        (["{release}", "--host", "256.0.0.1"], "cannot listen"),
    ],
)
def test_mistakes_at_the_start(
    release: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", "--device", "simulated", *(one.format(release=release) for one in options)]
    assert cli.call(arguments) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("reading ")]
    assert len(told) == 1
    assert words in told[0]


def test_sigterm_ends_it_and_its_children(release: Path) -> None:
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "serve", str(release)]
    process = subprocess.Popen(
        [*command, "--device", "simulated", "--port", "0", "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url, _, rest = process.stdout.readline().partition(" ")
        assert "answers for 1 tasks" in rest
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        question = {"task_id": "w-1", "completion": FAST, "mode": "construct"}
        connection.request("POST", "/evaluate", json.dumps(question), {"Content-Type": "application/json"})
        assert json.loads(connection.getresponse().read())["verdict"]["gate"] == "ok"
        theirs = psutil.Process(process.pid).children(recursive=True)
        assert theirs
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 143
        assert said.splitlines()[-1].startswith("error: stopped")
        assert "Traceback" not in said
        assert psutil.wait_procs(theirs, timeout=10)[1] == []
    finally:
        process.kill()
        process.wait()
