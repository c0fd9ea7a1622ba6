"""A work directory that holds the shared rows, as the stages would have written them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import STAGES, Store
from littledragon.schemas.tables import BY_NAME

OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}
Tables = dict[str, list[dict[str, Any]]]
Script = Callable[[BaseHTTPRequestHandler, int], None]


def _placed(workloads: list[dict[str, Any]]) -> Tables:
    kept = {name: [c.name for c in BY_NAME[name].columns] for name in ("extractions", "placements")}
    accepted = [row for row in workloads if row["workload_id"] is not None]
    of = {"extractions": workloads, "placements": accepted}
    return {name: [{column: row[column] for column in kept[name]} for row in of[name]] for name in kept}


@pytest.fixture(scope="session")
def placed() -> Callable[[list[dict[str, Any]]], Tables]:
    """Rows of `workloads`, a view, as rows of the tables that it is a view of."""
    return _placed


@pytest.fixture(scope="session")
def fill() -> Callable[[Path, Tables], Store]:
    """`fill(path, tables)`: a store with a unit in each stage; again, with other rows, a later plan of it."""

    def make(path: Path, tables: Tables) -> Store:
        store = Store.open(path, create=True)
        own = {name: rows for name, rows in tables.items() if name != "workloads"}
        if "workloads" in tables:
            own |= _placed(tables["workloads"])
        for stage in STAGES:
            rows = {name: own[name] for name in own if BY_NAME[name].stage == stage}
            if rows:
                units = [Unit(stage, 1, {}, {"rows": repr(rows)})]
                store.commit(units[0], Result(rows), OBSERVED)
                if stage == "search":  # every unit of search writes the row of its environment
                    units.append(Unit(stage, 1, {}, {"another": repr(rows)}))
                    store.commit(units[1], Result({"environments": rows["environments"]}), OBSERVED)
                store.plan(stage, units)
        return store

    return make


class Endpoint:
    """A real HTTP server on the loopback interface that answers as a script says."""

    @staticmethod
    @contextmanager
    def serve(script: Script) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """An endpoint that answers its nth request (from 0) as the script says; its URL, and the bodies it was sent."""
        asked: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append({"path": self.path, "at": time.monotonic(), "key": self.headers["authorization"], **body})
                script(self, len(asked) - 1)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
        finally:
            server.shutdown()
            server.server_close()

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def completion(text: str | None, **choice: Any) -> bytes:
        message = {"role": "assistant", "content": text, **choice.pop("message", {})}
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
        return json.dumps(
            {**answer, "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}
        ).encode()

    @staticmethod
    def good(handler: BaseHTTPRequestHandler, text: str = "{}") -> None:
        Endpoint.send(handler, 200, Endpoint.completion(text))


@pytest.fixture(scope="session")
def endpoint() -> type[Endpoint]:
    """`with endpoint.serve(script) as (url, asked)`: see Endpoint."""
    return Endpoint
