"""One driver for each stage of a work directory, held by a file with a heartbeat that a dead driver loses.

A lease is taken from its holder when the holder's process is gone (seen at once on the same machine) or has
not touched the file for a minute. The holder looks at the file before it commits, and stops if it lost it.
"""

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error, make_directory, read_regular, replace_text, temporary

HEARTBEAT_S = 5.0
DEAD_AFTER_S = 60.0
LEASE_BYTES = 1 << 16
"""`lease.json` is no longer than that."""


class Lease:
    """A held lease; use it as a context manager, which gives it back."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.token = token
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat {path}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises: UserError: another driver holds the stage now."""
        holder = _read(self.path)
        if holder is None or holder.get("token") != self.token:
            who = f"by {_who(holder)}" if holder else "or its file was removed"
            raise UserError(
                f"{self.path}: this run lost its lease (taken over {who}): what it has finished is kept; "
                f"leave the work to the other run"
            )

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self.check()
                os.utime(self.path)
            except (UserError, OSError):
                continue  # the driver's own check says so, in its own thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        try:
            with _guard(self.path):
                holder = _read(self.path)
                if holder is not None and holder.get("token") == self.token:
                    self.path.unlink(missing_ok=True)
        except (UserError, OSError):
            pass  # a lease that cannot be given back is lost by its heartbeat


def acquire(folder: Path, stage: str) -> Lease:
    """Take the lease of a stage of the work directory `folder`.

    Raises:
        UserError: another driver holds it; who, and what to do.
    """
    path = folder / stage / "lease.json"
    make_directory(path.parent)
    token = secrets.token_hex(8)
    with _guard(path):
        other = _read(path)
        if other is not None and _is_alive(path, other):
            raise UserError(
                f"{folder}: stage {stage} is being run by {_who(other)}: wait for it or stop it; "
                f"to look on meanwhile: dragon status --workdir {folder}"
            )
        replace_text(path, json.dumps({**_myself(), "token": token}) + "\n")
    return Lease(path, token)


@contextmanager
def acquire_all(folder: Path, stages: Sequence[str]) -> Iterator[dict[str, Lease]]:
    """Take the leases of all these stages, or of none."""
    with ExitStack() as held:
        yield {stage: held.enter_context(acquire(folder, stage)) for stage in stages}


def holder(folder: Path, stage: str) -> str | None:
    """Who runs a stage now, in words; None if nobody does."""
    path = folder / stage / "lease.json"
    found = _read(path)
    return f"run by {_who(found)}" if found is not None and _is_alive(path, found) else None


@contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Between looking at a lease and replacing it, nobody else does: of two contenders one wins."""
    lock = path.with_name(".lease.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise disk_error(lock, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise disk_error(lock, error) from error
    finally:
        os.close(handle)


def _myself() -> dict[str, Any]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "space": _process_space(), **_process(os.getpid()), "since": started}


def _process(pid: int) -> dict[str, Any]:
    import psutil

    return {"pid": pid, "process_started": psutil.Process(pid).create_time()}


def _process_space() -> str:
    """Names the set of processes that a pid here belongs to: two containers of one host have two."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads(read_regular(path, LEASE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(path, error) from error
    except (ValueError, RecursionError):
        holder = {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(path: Path, holder: dict[str, Any]) -> bool:
    here = holder.get("host") == socket.gethostname() and holder.get("space") == _process_space()
    if here and not _is_running(holder.get("pid"), holder.get("process_started")):
        return False
    # A heartbeat from far in the future is none either: a living holder would have set it right by now.
    return abs(_silent_s(path)) < DEAD_AFTER_S


def _is_running(pid: Any, started: Any) -> bool:
    import psutil

    if not isinstance(pid, int):
        return False
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < 1
    except (psutil.Error, TypeError, ValueError):
        return False


def _silent_s(path: Path) -> float:
    """Seconds since the last heartbeat by the clock of the file system, which may be another machine's."""
    probe = temporary(path)
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return time.time() - path.stat().st_mtime if path.exists() else DEAD_AFTER_S
    finally:
        with suppress(OSError):  # a disk that cannot be written has no probe either
            probe.unlink(missing_ok=True)


def _who(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')} since {holder.get('since', '?')}"
