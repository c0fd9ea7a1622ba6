"""One lock a device and host: work shares it, timing has it alone.

Files and `flock`, so that it holds between processes and a killed process lets go of it. Whoever waits holds the
turnstile, and later comers queue behind it: neither readers nor writers starve.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class HostLock:
    """A fair reader-writer lock of all processes of this user on this host. Not reentrant."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._folder = folder or _folder()
        self._name = name

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Held by any number at once, and by nobody while `exclusive` is held."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Held by one alone."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, how: int) -> Iterator[None]:
        with self._open("lock") as lock:
            with self._open("turnstile") as turnstile:
                fcntl.flock(turnstile, fcntl.LOCK_EX)
                fcntl.flock(lock, how)
            yield  # closing the file lets go

    @contextlib.contextmanager
    def _open(self, kind: str) -> Iterator[int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / f"{self._name}.{kind}", flags, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _folder() -> Path:
    """This user's folder of locks, made where it is missing.

    Raises:
        PermissionError: the folder belongs to someone else.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    if not (base.is_dir() and os.access(base, os.W_OK)):
        base = Path(tempfile.gettempdir())
    folder = base / f"littledragon-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder}: belongs to another user: remove it, or set TMPDIR")
    return folder
