"""Permits that go to whoever waits with the earliest turn, and among these to whoever came first.

What was begun first ends first: where many share one device, some results are there early instead of all of them late,
and what follows from them is made ready while the others have the device.
"""

import contextlib
import heapq
import itertools
import threading
from collections.abc import Iterator
from typing import Final

Waiting = tuple[int, int, threading.Event]
"""A turn, a number of its own, and what is set once it has a permit."""


class Turns:
    """`count` permits, shared by the threads of this process; see the module's docstring."""

    def __init__(self, count: int) -> None:
        self._idle = list(range(count))
        self._waiting: list[Waiting] = []
        self._given: dict[int, int] = {}  # permits, by the numbers of those who have them
        self._numbers: Final = itertools.count()
        self._lock: Final = threading.Lock()

    @contextlib.contextmanager
    def permit(self, turn: int = 0) -> Iterator[int]:
        """A permit's number, 0 up to `count`, for as long as the block lasts; the one that was used last comes next."""
        mine: Waiting = (turn, next(self._numbers), threading.Event())
        try:
            with self._lock:
                heapq.heappush(self._waiting, mine)
                self._give()
            mine[2].wait()
            yield self._given[mine[1]]
        finally:
            with self._lock:
                if mine[1] in self._given:
                    self._idle.append(self._given.pop(mine[1]))
                else:  # an interrupt: nobody waits for it any more
                    self._waiting = [other for other in self._waiting if other is not mine]
                    heapq.heapify(self._waiting)
                self._give()

    def _give(self) -> None:
        while self._idle and self._waiting:
            _, number, there = self._waiting[0]
            self._given[number] = self._idle.pop()
            heapq.heappop(self._waiting)
            there.set()
