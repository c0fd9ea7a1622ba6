"""Functions that misbehave, for the tests of the supervisor. The folder above joins the `littledragon` namespace."""

import importlib
import os
import signal
import struct
import subprocess
import sys
import time
from typing import Any


def echo(**arguments: Any) -> dict[str, Any]:
    return arguments


def pid() -> int:
    return os.getpid()


def size(text: str) -> int:
    return len(text)


def text(size: int) -> str:
    return "x" * size


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def die(by: int) -> None:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), by)
    time.sleep(60)


def leave() -> None:
    os._exit(3)


def fail(message: str) -> None:
    raise LookupError(message)


def thing() -> Any:
    return object()


def chatter(lines: int) -> int:
    for _ in range(lines):
        print("y" * 1000)
    return lines


def grow(count: int) -> int:
    globals()["_kept"] = bytearray(os.urandom(1) * count)
    return os.getpid()


def garble(data: str) -> None:
    """Write a frame that is no answer, as a kernel might that writes where it should not."""
    os.write(int(sys.argv[2]), struct.pack("<Q", len(data)) + data.encode())
    time.sleep(60)


def orphan(seconds: float) -> None:
    """Start a grandchild that keeps the pipes' numbers, if they were inherited, and die."""
    subprocess.Popen(["sleep", str(seconds)], close_fds=False)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def grandchild(seconds: float) -> int:
    return subprocess.Popen(["sleep", str(seconds)]).pid


def imported(name: str) -> bool:
    return name in sys.modules


def load(name: str) -> None:
    importlib.import_module(name)
