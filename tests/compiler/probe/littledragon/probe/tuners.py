"""Peers of `compiler.stock:tune` that do as they are told, by a file: "raise", "die", "fill" the disk, or an answer.

Each call adds a letter to the file's neighbour, NAME.calls.
"""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any


def tune(**_: Any) -> Any:
    told = Path(os.environ["DRAGON_TUNER"])
    with Path(f"{told}.calls").open("a", encoding="utf-8") as calls:
        calls.write("x")
    answer = json.loads(told.read_text(encoding="utf-8"))
    if answer == "raise":
        raise RuntimeError("no such intrinsic")
    if answer == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if answer == "fill":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return answer
