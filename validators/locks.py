"""One lock a device and host: work shares it, timing has it alone.

Files and `flock`, so that it holds between processes and a killed process lets go of it. Whoever waits holds the
turnstile, and later comers queue behind it: neither readers nor writers starve. Of one process's threads that want to
be alone, the earliest turn comes first. Who forks while another thread holds a lock gets a process that holds it, too:
nothing of ours does, whose children come from a process without any.
"""

import contextlib
import fcntl
import functools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from littledragon.validators.turns import Turns

LOCKS: Final = Path("/tmp/littledragon-locks")
"""The same for every process, whatever its TMPDIR and its user: the device is one."""


class HostLock:
    """A fair reader-writer lock of all processes of this host. Not reentrant."""

    def __init__(self, name: str, folder: Path = LOCKS) -> None:
        self._folder = folder
        self._name = name
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o1777)  # other users lock here too

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Held by any number at once, and by nobody while `exclusive` is held."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def exclusive(self, turn: int = 0) -> Iterator[None]:
        """Held by one alone."""
        # Of this process's threads one waits at the files, which cost two descriptors each.
        with _gate(self._folder / self._name).permit(turn), self._held(fcntl.LOCK_EX):
            began = time.monotonic()
            try:
                yield
            finally:
                _held_s[self._name] += time.monotonic() - began

    @contextlib.contextmanager
    def _held(self, how: int) -> Iterator[None]:
        with self._open("lock") as lock:
            with self._open("turnstile") as turnstile:
                fcntl.flock(turnstile, fcntl.LOCK_EX)
                fcntl.flock(lock, how)
            yield  # closing the file lets go

    @contextlib.contextmanager
    def _open(self, kind: str) -> Iterator[int]:
        path, flags = self._folder / f"{self._name}.{kind}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
            with contextlib.suppress(PermissionError):  # somebody else was quicker, and sees to it
                os.fchmod(descriptor, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def held_s() -> float:
    """Seconds for which this process has held locks exclusively, all of them together."""
    return sum(list(_held_s.values()))


_held_s: defaultdict[str, float] = defaultdict(float)  # of each lock, written by whoever holds it


@functools.cache
def _gate(path: Path) -> Turns:
    return Turns(1)


os.register_at_fork(after_in_child=_gate.cache_clear)
