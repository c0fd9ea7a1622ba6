"""TVM's tensor intrinsics, registered when this module is imported, as importing TVM's own module registers them.

TVM writes them in TVMScript and parses them at every import, which takes ten seconds and more in each fresh process.
Here the first process of a machine keeps what they became as JSON in the user's cache folder, and those after it read
that, in a second. `tvm.s_tir.tensor_intrin` is then in `sys.modules` by name alone, so that nothing imports it after
all.
"""

import contextlib
import json
import os
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_THEIRS: Final = "tvm.s_tir.tensor_intrin"
_MOST_BYTES: Final = 1 << 26


def file() -> Path:
    """Where they are kept, for this version of TVM."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "littledragon" / f"intrinsics-{version('apache-tvm')}-{version('apache-tvm-ffi')}.json"


def _register() -> None:
    if _THEIRS in sys.modules:
        return
    try:
        with file().open("rb") as stream:
            _recall(stream.read(_MOST_BYTES))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        _keep(_imported())
    else:
        sys.modules[_THEIRS] = types.ModuleType(_THEIRS)


def _recall(text: bytes) -> None:
    import tvm
    from tvm.s_tir import TensorIntrin

    kept = json.loads(text)
    for name, (desc, impl) in zip(kept["names"], tvm.ir.load_json(kept["functions"]), strict=True):
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


def _keep(found: list[tuple[str, Any, Any]]) -> None:
    """Put them in the cache, in one step; where that is not possible, the next process imports them as well."""
    import tvm

    functions = str(tvm.ir.save_json(tvm.runtime.convert([[desc, impl] for _, desc, impl in found])))
    place = file()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump({"names": [name for name, _, _ in found], "functions": functions}, stream)
            Path(aside).replace(place)
        except OSError:
            Path(aside).unlink(missing_ok=True)


_register()
