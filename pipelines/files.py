"""Files that are either whole or absent: written aside, flushed to the disk, and put in place by renaming.

Whatever the disk says (full, read-only, over quota) becomes one line that a user can act on.
"""

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from littledragon.pipelines.errors import UserError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
    errno.EFBIG: "the file may not grow that large here: raise the limit (ulimit -f) and run the same command again",
    errno.EROFS: "the file system is read-only: choose another --workdir or mount it for writing",
    errno.EACCES: "permission denied: choose another --workdir or mend its permissions",
    errno.EPERM: "permission denied: choose another --workdir or mend its permissions",
    errno.EIO: "the disk reports an input/output error: check the disk, then run the same command again",
}


def disk_error(path: Path, error: OSError) -> UserError:
    """What the operating system said about `path`, as one line with what to do."""
    advice = _ADVICE.get(error.errno or 0, f"{error.strerror or error}: mend this and run the same command again")
    return UserError(f"{path}: {advice}")


def disk_error_of(path: Path, error: Exception) -> UserError:
    """The same from a library that gives the operating system's words, but not its number."""
    said = " ".join(str(error).split())
    number = next((code for code in _ADVICE if os.strerror(code) in said), None)
    return disk_error(path, OSError(number, said) if number else OSError(said[:200]))


def is_disk_error_of(error: Exception) -> bool:
    """Whether a library's error says, in the operating system's words, that the disk refused."""
    return any(os.strerror(code) in str(error) for code in _ADVICE)


def is_disk_error(error: OSError) -> bool:
    """Whether it is the disk that refused, and not a mistake of the program."""
    return error.errno in _ADVICE


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that `replace` was writing when it was killed."""
    return name.startswith(".") and name.endswith(".tmp")


def temporary(path: Path) -> Path:
    """A fresh name beside `path` for what is not whole yet."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def replace(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path` (or let `content` write it), then put it in its place in one step, durably.

    Raises:
        UserError: the disk refused; `path` is as it was, and nothing else is left behind.
    """
    aside = temporary(path)
    try:
        with aside.open("wb") as stream:
            if callable(content):
                content(stream)
            else:
                stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        _remove(aside)
        raise disk_error(path, error) from error
    except BaseException:
        _remove(aside)
        raise


def replace_text(path: Path, text: str) -> None:
    """`replace` with a text, as UTF-8."""
    replace(path, text.encode())


def read_regular(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file, which has to be a regular one: a pipe could keep us waiting for ever.

    Raises:
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(handle)


def content_of(path: Path, most: int) -> str:
    """SHA-256 of a regular file of the user's, in hex.

    Raises:
        UserError: it is missing, no regular file, unreadable, or longer than `most` bytes.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"{path}: not a file: give a regular one")
        if about.st_size > most:
            raise UserError(f"{path}: {about.st_size} bytes, more than {most}: give a smaller file")
        return _digest(path, about.st_size, about.st_mtime_ns, about.st_ino)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}): give a file that is there") from None


@functools.cache
def _digest(path: Path, size: int, changed_ns: int, inode: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_unicode(path: Path) -> None:
    """Raises: UserError: the path is no UTF-8, which neither DuckDB nor Arrow can open."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!a}: the name is not UTF-8: rename it, or choose another") from None


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably; fine if it is there.

    Raises:
        UserError: the disk refused, or a file is in the way.
    """
    if path.is_dir():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the first error is the one to report
        path.unlink(missing_ok=True)
