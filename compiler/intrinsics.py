"""TVM's tensor intrinsics, registered when this module is imported, as importing TVM's own module registers them.

TVM writes them in TVMScript and parses them at every import, which takes ten seconds and more in each fresh process.
Here the first process of a machine keeps what they became as JSON in the user's cache folder, and those after it read
that, in a second; only what this user alone can have written, and wrote whole, is believed. `tvm.s_tir.tensor_intrin`
is then in `sys.modules` by name alone, so that nothing imports it after all; whoever wants its functions must do so
first.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_THEIRS: Final = "tvm.s_tir.tensor_intrin"
_MOST_BYTES: Final = 1 << 26


def file() -> Path:
    """Where they are kept, for this version of TVM. Without a home it raises, as importing TVM does."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "littledragon" / f"intrinsics-{version('apache-tvm')}-{version('apache-tvm-ffi')}.json"


def _register() -> None:
    if _THEIRS in sys.modules:
        return
    place = file()
    try:
        _recall(_read(place))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        found = _imported()
        if found:
            with contextlib.suppress(OSError):
                _keep(found, place)
    else:
        sys.modules[_THEIRS] = types.ModuleType(_THEIRS)


def _read(place: Path) -> bytes:
    """The file's content.

    Raises:
        OSError: it is not there, or somebody else may have written it.
    """
    with os.fdopen(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "not this user's own file", str(place))
        return stream.read(_MOST_BYTES)


def _recall(text: bytes) -> None:
    import tvm
    from tvm.s_tir import TensorIntrin

    digest, _, kept = text.partition(b"\n")
    if digest != hashlib.sha256(kept).hexdigest().encode():
        raise ValueError("cut short, or changed")
    known = json.loads(kept)
    for name, (desc, impl) in zip(known["names"], tvm.ir.load_json(known["functions"]), strict=True):
        TensorIntrin.register(name, desc, impl, override=True)


def _imported() -> list[tuple[str, Any, Any]]:
    """Import TVM's module: names, descriptions and implementations of what it registers."""
    from tvm.s_tir import TensorIntrin

    found: list[tuple[str, Any, Any]] = []
    register = TensorIntrin.register

    def watch(name: str, desc: Any, impl: Any, override: bool = True) -> None:
        register(name, desc, impl, override=True)  # some may be here already, from a file that was cut short
        found.append((name, desc, impl))

    TensorIntrin.register = staticmethod(watch)
    try:
        __import__(_THEIRS)
    finally:
        TensorIntrin.register = staticmethod(register)
    return found


def _keep(found: list[tuple[str, Any, Any]], place: Path) -> None:
    """Put them in the cache, in one step. Raises OSError; then the next process imports them as well."""
    import tvm

    functions = str(tvm.ir.save_json(tvm.runtime.convert([[desc, impl] for _, desc, impl in found])))
    kept = json.dumps({"names": [name for name, _, _ in found], "functions": functions}).encode()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}-", delete=False) as stream:
        try:
            stream.write(hashlib.sha256(kept).hexdigest().encode() + b"\n" + kept)
            stream.close()
            Path(stream.name).replace(place)
        except OSError:
            Path(stream.name).unlink(missing_ok=True)
            raise


_register()
