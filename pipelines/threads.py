"""Work on many things side by side, in threads."""

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from littledragon.compiler import children

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def side_by_side(work: Callable[[_In], _Out], items: Sequence[_In], threads: int) -> Generator[_Out, None, None]:
    """What `work` gives for each, as it comes. Closed early, nothing new begins, and nobody waits for the rest.

    Raises whatever `work` raises.
    """
    waiting: queue.SimpleQueue[_In] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    done: queue.SimpleQueue[tuple[_Out | None, BaseException | None]] = queue.SimpleQueue()
    closed = threading.Event()

    def run() -> None:
        while not closed.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((work(item), None))
            except BaseException as error:
                done.put((None, error))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, name="eval", daemon=True).start()
    try:
        for _ in items:
            result, error = done.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]
    finally:
        closed.set()


def in_children(work: Callable[[_In], _Out], items: Sequence[_In], threads: int) -> Generator[_Out, None, None]:
    """The same of work that waits for children of this process. Closed early, or by an error, they all end at once.

    Raises whatever `work` raises.
    """
    ended = False
    try:
        with contextlib.closing(side_by_side(work, items, threads)) as done:
            yield from done
        ended = True
    finally:
        if not ended:
            with contextlib.suppress(OSError):
                children.stop()
