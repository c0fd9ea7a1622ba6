"""Where work runs: in this process, in processes of this machine, or on a Dask scheduler.

An executor only knows "call the stage's work for these items, at most a window of them at once, and give the
answers back as they come". Items and answers are JSON-like; a stage crosses by the name of its module.
"""

import dataclasses
import importlib.metadata
import logging
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from littledragon.compiler import children, slots
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Payload, Result
from littledragon.pipelines.stages import stage

NO_WORKERS_S = 60
"""How long work waits for a worker of a scheduler that has none."""
CONNECT_S = 10
_GONE = "the Dask scheduler is gone: start it and its workers, then run the same command again"
_TRIES = 2
"""How often a unit is begun whose worker dies under it."""


@dataclass(frozen=True)
class Answer:
    """What became of one item: its result, and when (UTC), how long (s) and where it was worked on."""

    id: str
    result: Result
    started_at: str
    wall_s: float
    host: str


class Executor(Protocol):
    """Gives each item's answer as it comes, in no particular order. Items are taken only as the window has room."""

    def run(self, module: str, config: Config, items: Iterator[tuple[str, Payload]]) -> Iterator[Answer]: ...


def work_here(module: str, config: dict[str, Any], id: str, payload: Payload) -> dict[str, Any]:
    """Do one unit's work in this process. What it raises becomes a failed result; the run goes on."""
    started, clock = _now(), time.monotonic()
    try:
        result = stage(module).work(payload, Config(**config))
        if not isinstance(result, Result):
            raise TypeError(f"work gave a {type(result).__name__}, not a Result")
    except Exception as error:
        result = failed(id, error).result
    return dataclasses.asdict(Answer(id, result, started, time.monotonic() - clock, socket.gethostname()))


def failed(id: str, error: Exception) -> Answer:
    """The answer for an item that could not be worked on."""
    result = Result(state="failed", reason=_kind(error), detail=_last_lines(error))
    return Answer(id, result, _now(), 0.0, socket.gethostname())


def _kind(error: Exception) -> str:
    kind = getattr(error, "kind", None)  # ChildError says crashed, deadline or raised
    return kind if isinstance(kind, str) else "raised"


def _last_lines(error: Exception) -> str:
    said = str(getattr(error, "detail", None) or error)
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""  # noqa: PTH119
    return f"{type(error).__name__}: {said[-2000:]}{at}"


def _answer(raw: dict[str, Any]) -> Answer:
    return Answer(**{**raw, "result": Result(**raw["result"])})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Serial:
    """One item after the other, in this process."""

    def run(self, module: str, config: Config, items: Iterator[tuple[str, Payload]]) -> Iterator[Answer]:
        children.go_on()
        settings = dataclasses.asdict(config)
        for id, payload in items:
            yield _answer(work_here(module, settings, id, payload))


class Threads:
    """So many items at once, in threads of this process: for work that waits for children, which they share."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, module: str, config: Config, items: Iterator[tuple[str, Payload]]) -> Iterator[Answer]:
        children.go_on()
        settings = dataclasses.asdict(config)
        pool = ThreadPoolExecutor(self.count, "unit")
        pending: set[Future[dict[str, Any]]] = set()
        try:
            while True:
                for id, payload in _take(items, self.count - len(pending)):
                    pending.add(pool.submit(work_here, module, settings, id, payload))
                if not pending:
                    break
                ended, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield _answer(future.result())
        except BaseException:
            children.stop()  # what the threads wait for, and would start next
            raise
        finally:
            pool.shutdown(wait=not pending, cancel_futures=True)


class Local:
    """This machine: processes, or threads of this process for the stages whose work shares children."""

    def __init__(self, workers: int, held: ExitStack) -> None:
        self.workers = workers
        self._held = held
        self._dask: Dask | None = None

    def run(self, module: str, config: Config, items: Iterator[tuple[str, Payload]]) -> Iterator[Answer]:
        if getattr(stage(module), "SHARED", False):
            # Twice as many as slots: while some wait for the device, others propose.
            yield from Threads(2 * self.workers).run(module, config, items)
            return
        if self._dask is None:
            self._dask = Dask(self._held.enter_context(_local(self.workers)))
        yield from self._dask.run(module, config, items)


class Dask:
    """Through a Dask client. At least once is the contract: what a worker loses is done again."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, module: str, config: Config, items: Iterator[tuple[str, Payload]]) -> Iterator[Answer]:
        from distributed import as_completed

        settings, waiting = (
            dataclasses.asdict(config),
            as_completed(loop=self.client.loop, with_results=True, raise_errors=False),
        )
        pending: dict[Any, tuple[str, float]] = {}
        try:
            while True:
                for id, payload in _take(items, self._window() - len(pending)):
                    future = self.client.submit(work_here, module, settings, id, payload, pure=False)
                    pending[future] = (id, time.monotonic())
                    waiting.add(future)
                if not pending:
                    return
                future, outcome = next(waiting)
                id, since = pending.pop(future)
                # Not the future's state: it may already be lost again, with its worker, once its answer is here.
                yield _answer(outcome) if isinstance(outcome, dict) else _lost(id, since, outcome)
                future.release()
        finally:
            for future in pending:
                future.cancel()

    def _window(self) -> int:
        workers = self.client.scheduler_info(n_workers=-1).get("workers")
        if workers is None:  # the client has lost the scheduler
            raise UserError(_GONE)
        threads = sum(worker["nthreads"] for worker in workers.values())
        return max(2, 2 * int(threads))


def _take(items: Iterator[tuple[str, Payload]], count: int) -> Iterator[tuple[str, Payload]]:
    for _ in range(count):
        try:
            yield next(items)
        except StopIteration:
            return


def _lost(id: str, since: float, outcome: Any) -> Answer:
    """The answer for an item whose worker died with it.

    Raises:
        UserError: it is the cluster that failed, not the item; the item stays undone.
    """
    if not isinstance(outcome, tuple):  # cancelled
        raise UserError(_GONE)
    error = outcome[1]
    kind, said = type(error).__name__, " ".join(str(error).split())[:2000]
    if kind in ("NoValidWorkerError", "NoWorkerError"):
        raise UserError(
            "the Dask scheduler has had no worker for too long: start workers and run the same command again"
        )
    crashed = kind == "KilledWorker"
    detail = f"its worker died {_TRIES} times or more" if crashed else f"{kind}: {said}"
    result = Result(state="failed", reason="crashed" if crashed else "raised", detail=detail)
    return Answer(id, result, _now(), time.monotonic() - since, "")


def require(name: str) -> None:
    """Say that there is no such executor before anything is made for it.

    Raises:
        UserError: no such executor, or nobody answers at the address.
    """
    if name.startswith(("tcp://", "tls://")):
        try:
            # Plainly: a Dask client takes its whole time-out to say that nobody is there.
            host, _, port = name.partition("://")[2].rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise _nobody(name, error) from None
    elif name not in ("serial", "local"):
        raise UserError(f"unknown executor '{name}': choose serial, local, or tcp://host:port of a Dask scheduler")


def _nobody(address: str, error: Exception) -> UserError:
    said = " ".join(str(error).split())[:120]
    return UserError(f"{address}: no Dask scheduler answers there ({said}): start one with `dask scheduler`")


@contextmanager
def executor(name: str, *, workers: int | None = None) -> Iterator[Executor]:
    """The executor of this name: serial, local (this machine, `workers` processes) or tcp://host:port (Dask).

    Raises:
        UserError: no such executor, or nobody answers at the address.
    """
    require(name)
    if name == "serial":
        yield Serial()
    elif name == "local":
        count = workers or len(os.sched_getaffinity(0))
        slots.use(count)
        with ExitStack() as held:
            yield Local(count, held)
    else:
        with _remote(name) as client:
            yield Dask(client)


@contextmanager
def _local(workers: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    settings = {
        "distributed.worker.daemon": False,  # work starts children of its own
        "distributed.scheduler.allowed-failures": _TRIES - 1,
        "distributed.scheduler.worker-saturation": 1.0,  # a dying worker taints only what it was doing
        "distributed.scheduler.no-workers-timeout": f"{NO_WORKERS_S}s",
        "distributed.admin.large-graph-warning-threshold": "1GB",
        "distributed.worker.multiprocessing-method": "spawn",
        "distributed.worker.preload": ["littledragon.pipelines.executor"],
    }
    with dask.config.set(settings), ExitStack() as held:
        with _first_signal_waits():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                host="127.0.0.1",
                local_directory=tempfile.gettempdir(),
                silence_logs=logging.CRITICAL,
            )
            held.enter_context(cluster)
            client = held.enter_context(Client(cluster))
        yield client


@contextmanager
def _first_signal_waits() -> Iterator[None]:
    """Dask cannot end a cluster that is half started: heed a first signal once it stands, but a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    waiting: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: Any) -> None:
        waiting.append(number)
        if len(waiting) > 1:
            restore()
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
    if waiting:
        signal.raise_signal(waiting[0])


@contextmanager
def _remote(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, OverflowError) as error:
        raise _nobody(address, error) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=NO_WORKERS_S)
            theirs = client.submit(installed, pure=False).result(timeout=NO_WORKERS_S)
        except TimeoutError:
            raise UserError(f"{address}: the scheduler has no worker: start one with `dask worker {address}`") from None
        except (ImportError, AttributeError) as error:
            raise UserError(f"{address}: littledragon is not installed where the workers run ({error})") from None
        if theirs != installed():
            raise UserError(
                f"{address}: the workers have littledragon {theirs}, this is {installed()}: install one version"
            )
        yield client


def installed() -> str:
    """The version of littledragon where this is called."""
    return importlib.metadata.version("littledragon")


def dask_setup(worker: Any) -> None:
    """Dask calls this in each new worker of this machine: Ctrl-C is for the driver, which then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
