"""Folders for a process's own files: gone when it ends, or, where it was killed, when the next one is made.

A folder is locked as long as its process lives, and the kernel lets go of the lock however that process ends.
"""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def folder(name: str) -> Path:
    """A new, empty folder `<name>-…` for temporary files; those of the same name whose process is gone are removed.

    Raises:
        OSError: there is no room for it.
    """
    base = Path(tempfile.gettempdir())
    for old in base.glob(f"{name}-*"):
        _sweep(old)
    for unborn in base.glob(f".{name}-*"):  # not yet locked: of a process that lives, it is left alone
        if not _lives(unborn.name.removeprefix(f".{name}-").partition("-")[0]):
            _sweep(unborn)
    hidden = Path(tempfile.mkdtemp(prefix=f".{name}-{os.getpid()}-"))
    fcntl.flock(_open(hidden), fcntl.LOCK_EX)  # the descriptor stays open as long as the process lives
    made = hidden.rename(base / hidden.name[1:])  # only now may others find it
    atexit.register(_remove, made, os.getpid())
    return made


@contextlib.contextmanager
def temporary(name: str) -> Iterator[Path]:
    """A folder within this process's own, removed at the end of the block, or with the process if that is killed."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=_own(os.getpid())) as made:
        yield Path(made)


def own(name: str) -> Path:
    """A folder of this process by that name, kept until it ends."""
    made = _own(os.getpid()) / name
    made.mkdir(exist_ok=True)
    return made


@functools.cache
def _own(owner: int) -> Path:
    return folder("dragon-scratch")


def _remove(made: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork that ends is not the end
        shutil.rmtree(made, ignore_errors=True)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def _sweep(old: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = _open(old)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
