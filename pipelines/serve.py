"""`dragon serve`: verdicts and rewards over HTTP, for training loops that are not ours.

    POST /evaluate  {"task_id", "completion", "mode": "construct" | "refine", "parent_us": number | null}
                    -> {"verdict": the fields of `validators.service.Verdict`, "reward": those of `Reward`,
                        "task": the numbers of the task that the reward went by}
    GET /health     -> {"status", "device", "tasks", "busy", "counts"}

Requests are answered side by side, each in a thread that waits for the service. What is asked wrongly is answered with
4xx and {"error": one line}, what fails here with 5xx and the same; a fault of the service is a verdict, and 200. There
is no authentication: whoever reaches the port has kernels built and run here, so it is the loopback interface's unless
told otherwise.
"""

import dataclasses
import json
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import children, slots, targets
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import busy
from littledragon.release.published import Unreadable
from littledragon.release.tasks import tasks_of
from littledragon.release.trainers.reward import reward
from littledragon.validators.device import Deadlines
from littledragon.validators.service import Service

MAX_BODY: Final = 4 << 20
"""Bytes of a request; a completion holds at most a quarter of that."""
MOST_AT_ONCE: Final = 256
"""Requests under way; more are told to come again."""
MOST_CONNECTED: Final = 2 * MOST_AT_ONCE
"""Connections that are held, each by a thread and a descriptor; more are closed unheard."""
SILENCE_S: Final = 60.0
"""How long a client may take over its next request, however slowly that comes."""

Answer = tuple[HTTPStatus, dict[str, Any]]


class _Wrong(Exception):
    """A request that cannot be answered: the status, and why, in one line."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(" ".join(why.split())[:500])
        self.status = status


class Server(ThreadingHTTPServer):
    """Answers for a service until `shutdown`, on (host, port); port 0 takes a free one. Raises OSError."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: Service, device: str) -> None:
        super().__init__(address, _Handler)
        self.service, self.device = service, device
        self._places = threading.Semaphore(MOST_AT_ONCE)
        self._busy = 0
        self._lock = threading.Lock()
        self._connected = threading.Semaphore(MOST_CONNECTED)
        self._asking: dict[socket.socket, float] = {}
        """Connections on which a request is awaited, and when that has taken too long."""

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def health(self) -> dict[str, Any]:
        """What GET /health says."""
        return {
            "status": "ok",
            "device": self.device,
            "tasks": len(self.service.tasks),
            "busy": self._busy,
            "counts": self.service.counts(),
        }

    def evaluate(self, question: dict[str, Any]) -> dict[str, Any]:
        """What POST /evaluate says. Raises _Wrong."""
        task_id, completion, asked = _fields(question)
        try:
            task = self.service.task(task_id)
        except KeyError:
            raise _Wrong(HTTPStatus.NOT_FOUND, f"no task '{task_id[:80]}' here") from None
        numbers = {name: getattr(task, name) for name in ("default_us", "anchor_us", "noise_band", "margin")}
        try:
            reward({"fault": ""}, **asked, **numbers)  # before anything is built
        except ValueError as error:
            raise _Wrong(HTTPStatus.BAD_REQUEST, str(error)) from None
        if not self._places.acquire(blocking=False):
            raise _Wrong(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_AT_ONCE} requests are under way: come again")
        try:
            with self._lock:
                self._busy += 1
            verdict = self.service.evaluate(task_id, completion)
        finally:
            with self._lock:
                self._busy -= 1
            self._places.release()
        worth = dataclasses.asdict(reward(verdict, **asked, **numbers))
        return {"verdict": verdict.as_dict(), "reward": worth, "task": numbers}

    def process_request(self, request: Any, client_address: Any) -> None:
        """One more connection, if there is room for it."""
        if not self._connected.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._connected.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connected.release()

    def await_request(self, connection: socket.socket) -> None:
        """Count the seconds from now on until `received`; who is late loses the connection."""
        with self._lock:
            self._asking[connection] = time.monotonic() + SILENCE_S

    def received(self, connection: socket.socket) -> None:
        """The request is here, or the connection has ended."""
        with self._lock:
            self._asking.pop(connection, None)

    def service_actions(self) -> None:
        """Close the connections of those who are late; `serve_forever` calls this again and again."""
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, end in self._asking.items() if end < now]:
                del self._asking[connection]
                with suppress(OSError):  # its thread reads the end of it
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _fields(question: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Task, completion, and what the reward asks for. Raises _Wrong."""
    known = {"task_id": str, "completion": str, "mode": str, "parent_us": (int, float, type(None))}
    if unknown := sorted(set(question) - set(known)):
        raise _Wrong(HTTPStatus.BAD_REQUEST, f"unknown field '{unknown[0][:80]}': {', '.join(known)} are known")
    for name, kind in known.items():
        if name not in question and name != "parent_us":
            raise _Wrong(HTTPStatus.BAD_REQUEST, f"field '{name}' is missing")
        if not isinstance(question.get(name), kind) or isinstance(question.get(name), bool):  # type: ignore[arg-type]
            wanted = "a number or null" if name == "parent_us" else "a text"
            raise _Wrong(HTTPStatus.BAD_REQUEST, f"field '{name}' must be {wanted}")
    asked = {"mode": question["mode"], "parent_us": question.get("parent_us")}
    return question["task_id"], question["completion"], asked


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S
    server: Server

    def handle_one_request(self) -> None:
        self.server.await_request(self.connection)
        try:
            super().handle_one_request()
        finally:
            self.server.received(self.connection)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._say(HTTPStatus.OK, self.server.health())
        elif self.path == "/evaluate":
            self._refuse(_Wrong(HTTPStatus.METHOD_NOT_ALLOWED, "ask POST /evaluate"))
        else:
            self._refuse(_Wrong(HTTPStatus.NOT_FOUND, "ask POST /evaluate or GET /health"))

    def do_POST(self) -> None:
        try:
            if self.path != "/evaluate":
                raise _Wrong(HTTPStatus.NOT_FOUND, "ask POST /evaluate or GET /health")
            answer = self.server.evaluate(self._question())
        except _Wrong as wrong:
            return self._refuse(wrong)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            return self._refuse(_Wrong(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"))
        return self._say(HTTPStatus.OK, answer)

    def _question(self) -> dict[str, Any]:
        """The request's JSON object. Raises _Wrong."""
        if self.headers.get_content_type() != "application/json":  # what a web page could not send unasked
            raise _Wrong(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Wrong(HTTPStatus.LENGTH_REQUIRED, "send Content-Length")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise _Wrong(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request holds at most {MAX_BODY} bytes")
        body = self.rfile.read(int(length))
        self.server.received(self.connection)
        try:
            question = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Wrong(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from None
        if not isinstance(question, dict):
            raise _Wrong(HTTPStatus.BAD_REQUEST, "not a JSON object")
        return question

    def _refuse(self, wrong: _Wrong) -> None:
        self.close_connection = True  # its body may be unread
        self._say(wrong.status, {"error": str(wrong)})

    def _say(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What `http.server` refuses by itself, said as all else is."""
        status = HTTPStatus(code)
        self._refuse(_Wrong(status, message or status.phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a training loop asks thousands of times."""


def serve(
    release: Path,
    *,
    device: str,
    host: str,
    port: int,
    split: str | None,
    environment_id: str | None,
    workers: int | None,
    repeat_ms: float,
    build_s: float,
) -> None:
    """Answer for the tasks of a release folder until interrupted; then end every child.

    Raises:
        UserError: a folder that is no release, no device of its tasks here, or an address that cannot be had.
    """
    slots.use(workers)
    try:
        with busy(f"reading {release}"):
            tasks = tasks_of(release, split=split, environment_id=environment_id)
        service = Service(tasks, device, deadlines=Deadlines(build_s=build_s), repeat_ms=repeat_ms)
    except (Unreadable, targets.DeviceMissing, ValueError) as error:
        raise UserError(str(error)) from None
    with service:
        try:
            server = Server((host, port), service, device)
        except (OSError, OverflowError) as error:
            raise UserError(f"{host}:{port}: cannot listen there: {error}") from None
        try:
            print(f"{server.url} answers for {len(tasks)} tasks of {release} (device {device})", flush=True)
            server.serve_forever(poll_interval=0.2)
        finally:
            server.server_close()
            with suppress(OSError):
                children.stop()  # whoever still waits has a fault
