"""CPU slots: so many lasting children that propose, admit and build, shared by all threads of this process.

Whoever has work waits for a free slot. Urgent work goes first (what the device is waiting for goes before what will
only be built later), as long as enough of it waits; when it runs low, what makes more of it. Among both goes first what
belongs to the earlier turn: rounds that were begun together end one after the other, and the next ones begin meanwhile.

A slot's child has TVM and, for cuda, the tensor intrinsics, imported once by the nursery that all of them come from; it
is replaced when it has grown, and whatever it dies of is a `ChildError` of the one call. It leaves the CPU to whoever
measures.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from littledragon.compiler.children import Child

MODULES: Final = {
    "llvm": ("tvm", "littledragon.compiler.proposals", "littledragon.compiler.traces", "littledragon.compiler.build"),
    "cuda": (
        "tvm",
        "littledragon.compiler.intrinsics",
        "littledragon.compiler.proposals",
        "littledragon.compiler.traces",
        "littledragon.compiler.build",
    ),
}
"""What the children of a kind of target have imported before their first call."""

NICE: Final = 5
"""So much lower is the priority of the slots' children: who launches kernels must not wait for who compiles."""

AHEAD: Final = 2
"""Urgent work goes first where so much of it waits, for each slot."""

Ticket = tuple[int, int, int]
"""0 for urgent work and 1 for other, its turn, and a number of its own."""


class Slots:
    """`count` children for a kind of target; see the module's docstring."""

    def __init__(self, kind: str, count: int) -> None:
        self.count = count
        self._idle = [Child(MODULES[kind], limited=True) for _ in range(count)]
        self._waiting: list[Ticket] = []
        self._next: Ticket | None = None
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def call(
        self,
        function: str,
        *,
        deadline_s: float,
        urgent: bool = False,
        turn: int = 0,
        within: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        **arguments: Any,
    ) -> Any:
        """Call `function` in a free child, waiting for one, in the context `within`; the deadline counts from then.

        Raises:
            ChildError, OSError: as `Child.call`.
        """
        child = self._take(urgent, turn)
        try:
            with within():
                child.start()
                _step_back(child.pid)
                return child.call(function, deadline_s=deadline_s, **arguments)
        finally:
            with self._changed:
                self._idle.append(child)  # the last one used comes next: its caches are warm
                self._changed.notify_all()

    def _take(self, urgent: bool, turn: int) -> Child:
        with self._changed:
            ticket = (0 if urgent else 1, turn, next(self._numbers))
            self._waiting.append(ticket)
            self._choose()
            self._changed.notify_all()  # it may be another's turn by that, who sleeps
            try:
                self._changed.wait_for(lambda: self._idle and self._next == ticket)
                child = self._idle.pop()
            finally:
                self._waiting.remove(ticket)
                self._choose()
                self._changed.notify_all()
            return child

    def _choose(self) -> None:
        """Choose who is next."""
        later = [ticket for ticket in self._waiting if ticket[0]]
        low = len(self._waiting) - len(later) < AHEAD * self.count
        self._next = min(later if low and later else self._waiting, default=None)

    def close(self) -> None:
        """End the children that are idle; those that are busy end with the process."""
        with self._changed:
            idle = list(self._idle)
        for child in idle:
            child.close()


def _step_back(process: int | None) -> None:
    """Lower a child's priority, where that is not done and may be done."""
    with contextlib.suppress(OSError):  # it may have died, and the call that comes next start another
        wanted = os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICE
        if process is not None and os.getpriority(os.PRIO_PROCESS, process) < wanted:
            os.setpriority(os.PRIO_PROCESS, process, wanted)


def use(count: int | None) -> None:
    """Have so many slots of each kind of target in this process; None: one a core."""
    global _count  # noqa: PLW0603
    with _lock:
        old = list(_slots.values())
        _count = count
        _slots.clear()
    for one in old:
        one.close()


def of(kind: str) -> Slots:
    """This process's slots for a kind of target, llvm or cuda."""
    with _lock:
        if kind not in _slots:
            _slots[kind] = Slots(kind, _count or len(os.sched_getaffinity(0)))
        return _slots[kind]


def _forget() -> None:
    """After a fork the children are the other process's."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _slots.clear()


_count: int | None = None
_slots: dict[str, Slots] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget)
