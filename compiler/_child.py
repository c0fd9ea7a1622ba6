"""The child's side of `compiler/children.py`: answers one function call after the other, on two private pipes.

A child executes `python -m littledragon.compiler._child`. A frame is eight bytes of length, then JSON. Before it
begins a call the child says so with one byte, so that a death in between two calls is not taken for the second's.

A nursery executes the same with other arguments. It imports what its children need, once, and then forks one whenever
it is asked to, so that a child that costs ten seconds of imports starts in milliseconds.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import queue
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn

MAX_FRAME: Final = 1 << 28
"""Largest question or answer, bytes."""
FUNCTION: Final = re.compile(r"littledragon(\.[a-z_]+)+:[a-z]\w*")
"""What may be called: a public function of ours."""
BEGUN: Final = b"\x06"
"""What stands before each answer, sent when the call begins."""
_PR_SET_PDEATHSIG: Final = 1
_ADOPTED_S: Final = 10.0
"""How long a forked child waits to become its parent's."""


def _serve(questions: int, answers: int, parent: int) -> NoReturn:
    _die_with(parent)
    leave_torch_alone()
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


def _nurse(socket_fd: int, parent: int, *modules: str) -> NoReturn:
    """Import the modules, then fork a child for each message on the socket: one byte, with its three descriptors.

    The child is forked twice, so that the parent, which adopts orphans, is its parent and learns how it ends.
    """
    _die_with(parent)
    leave_torch_alone()
    asked = socket.socket(fileno=socket_fd)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 1, 3)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            questions, answers, log = descriptors
            _grow_up(asked, questions, answers, log, parent)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _grow_up(asked: socket.socket, questions: int, answers: int, log: int, parent: int) -> NoReturn:
    """The forked child: its own session, its own log, and then the same as one that was executed."""
    try:
        os.setsid()
        asked.close()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        end = time.monotonic() + _ADOPTED_S
        while os.getppid() != parent and time.monotonic() < end:
            time.sleep(0.001)
        os.write(answers, struct.pack("<Q", os.getpid()))
        _serve(questions, answers, parent)
    finally:
        os._exit(1)  # never back into the nursery's loop


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and die at once if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class _NoTorch:
    """Answers imports of PyTorch as if it were not installed. Libraries look for it among the modules that are loaded,
    so there must be no entry of that name either."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def leave_torch_alone() -> None:
    """TVM imports PyTorch wherever it is installed, 200 MB and seconds; here it finds none. `with_torch` ends that."""
    sys.meta_path.insert(0, _NoTorch())


def with_torch() -> None:
    """Let this process import PyTorch."""
    # A child runs this module as its main one, and whoever imports it has another copy: go by the name.
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != _NoTorch.__name__]


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
    if sys.argv[1] == "nurse":
        _nurse(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    _serve(*(int(argument) for argument in sys.argv[1:4]))
