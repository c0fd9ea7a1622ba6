"""The child's side of `compiler/children.py`: answers one function call after the other, on two private pipes.

A child executes `python -m littledragon.compiler._child`. A frame is eight bytes of length, then JSON. Before it
begins a call the child says so with one byte, so that a death in between two calls is not taken for the second's.
"""

import contextlib
import ctypes
import importlib
import json
import os
import queue
import re
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn

MAX_FRAME: Final = 1 << 28
"""Largest question or answer, bytes."""
FUNCTION: Final = re.compile(r"littledragon(\.[a-z_]+)+:[a-z]\w*")
"""What may be called: a public function of ours."""
BEGUN: Final = b"\x06"
"""What stands before each answer, sent when the call begins."""
_PR_SET_PDEATHSIG: Final = 1


def _serve(questions: int, answers: int, parent: int) -> NoReturn:
    _die_with(parent)
    _leave_torch_alone()
    os.set_inheritable(questions, False)
    os.set_inheritable(answers, False)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(questions, frames), daemon=True).start()
    while True:
        frame = frames.get()
        os.write(answers, BEGUN)
        answer = _answer(json.loads(frame))
        sys.stdout.flush()
        sys.stderr.flush()
        rest = memoryview(struct.pack("<Q", len(answer)) + answer)
        while rest:
            rest = rest[os.write(answers, rest) :]


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and die at once if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _leave_torch_alone() -> None:
    """TVM imports PyTorch wherever it is installed, 200 MB and seconds; here it finds none. `with_torch` ends that."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # None: an import of it raises


def with_torch() -> None:
    """Let this process import PyTorch."""
    if sys.modules.get("torch", ...) is None:
        del sys.modules["torch"]


def _receive(questions: int, frames: queue.SimpleQueue[bytes]) -> NoReturn:
    """Pass frames on; when the parent has closed the pipe, end the process even in the middle of a call."""
    with contextlib.suppress(OSError, EOFError), os.fdopen(questions, "rb") as pipe:
        while True:
            frames.put(_exactly(pipe, struct.unpack("<Q", _exactly(pipe, 8))[0]))
    os._exit(0)


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _answer(question: dict[str, Any]) -> bytes:
    try:
        answer = json.dumps({"ok": _find(question["call"])(**question["with"])}).encode()
        if len(answer) > MAX_FRAME:
            raise ValueError(f"an answer of {len(answer)} bytes exceeds the largest frame, {MAX_FRAME}")
    except BaseException as error:
        return json.dumps({"error": type(error).__name__, "message": str(error)[-10_000:]}).encode()
    return answer


def _find(function: str) -> Callable[..., Any]:
    if not FUNCTION.fullmatch(function):
        raise ValueError(f"{function!r} may not be called")
    module, name = function.split(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


if __name__ == "__main__":
    _serve(*(int(argument) for argument in sys.argv[1:4]))
