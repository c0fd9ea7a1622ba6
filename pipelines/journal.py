"""JSON-lines files that only grow, each line flushed to the disk: an interrupted run goes on where it stopped."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error
from littledragon.release import published

Row = dict[str, Any]

MAX_LINE: Final = 8 << 20
"""Bytes of a line of a JSONL file: a text of `tsel.MAX_TEXT` letters, each of them escaped."""
MAX_TOTAL: Final = 4 << 30
"""Bytes of a JSONL file."""
MAX_LINES: Final = 10_000_000


class Journal:
    """A JSONL file that only grows, for one run at a time. `rows`: what it held before, the first line left aside.

    Raises:
        UserError: it is of another run, damaged, written to by another, or the disk refuses.
    """

    def __init__(self, path: Path, head: Row) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._stack = contextlib.ExitStack()
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a file: choose another --out")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            self._file: IO[bytes] = self._stack.enter_context(os.fdopen(handle, "r+b", buffering=0))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stack.close()
            raise UserError(f"{path}: another run writes to it: wait for that, or choose another --out") from None
        except OSError as error:
            self._stack.close()
            raise disk_error(path, error) from None
        with self._stack:
            self._cut_torn_line()
            self.rows = list(lines_of(path))
            if not self.rows:
                self.append(head)
            elif (held := self.rows.pop(0)) != head:
                raise UserError(f"{path}: {_difference(held, head)}: choose another --out")
            self._stack = self._stack.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, row: Row) -> None:
        """One more line, on the disk when this returns."""
        try:
            line = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from None

    def _cut_torn_line(self) -> None:
        """A line that a kill left without its end goes."""
        size = end = self._file.seek(0, os.SEEK_END)
        while end:
            first = max(0, end - (1 << 16))
            self._file.seek(first)
            at = self._file.read(end - first).rfind(b"\n")
            if at >= 0:
                end = first + at + 1
                break
            end = first
        if end < size:
            self._file.truncate(end)


def _difference(held: Row, head: Row) -> str:
    run, ours = held.get("run"), head["run"]
    if not isinstance(run, dict):
        return "not a file of dragon eval"
    return f"made with another {', '.join(name for name in ours | run if run.get(name) != ours.get(name))}"


def lines_of(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file. Raises UserError: it is none, or too large."""
    try:
        if not path.is_file():
            raise UserError(f"{path}: not a file: give one of JSON lines")
        if path.stat().st_size > MAX_TOTAL:
            raise UserError(f"{path}: more than {MAX_TOTAL >> 30} GiB")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE or number > MAX_LINES:
                    raise UserError(f"{path}: line {number}: more than {MAX_LINE} bytes, or {MAX_LINES} lines")
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{path}: line {number}: not JSON: {published.short(error)}") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}: line {number}: not a JSON object")
                yield row
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
