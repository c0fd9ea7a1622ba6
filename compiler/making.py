"""From a trace to a built kernel, in one call of a child: replay, post-processing, encoding, then the compiler.

Both in one, because the scheduled module then never leaves the child. What admission found is written to the
artifact's folder before the compiler begins, so that a build that crashes or is late is known for what it is.
"""

import json
from pathlib import Path
from typing import Any, Final

ADMITTED: Final = "admitted.json"
"""In the artifact's folder: what `compiler.traces:admit` said."""


def make(
    module: str,
    target: dict[str, Any],
    folder: str,
    trace: str | None = None,
    text: str | None = None,
    build: bool = True,
) -> dict[str, Any]:
    """Admit a candidate and, where it passed, build it. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        folder: the artifact's own folder, empty but for what an earlier, killed call of the same left.
        trace: the candidate's trace as `save_json` text; or
        text: its text in the language; with neither, the default schedule.
        build: whether to build what was admitted.

    Returns:
        What `compiler.build:build` says, and `"path"`: the kernel's file. Empty where admission refused the candidate:
        see `ADMITTED`.

    Raises:
        RuntimeError: what TVM or the compiler says of a module that does not compile. ValueError: no toolchain.
    """
    from littledragon.compiler import build as compiling
    from littledragon.compiler import traces

    answer = traces.admit(module, trace, target) if text is None else traces.apply(module, text, target)
    scheduled = answer.pop("scheduled")
    (Path(folder) / ADMITTED).write_text(json.dumps(answer), encoding="utf-8")
    if answer["failed"] or not build:
        return {}
    path = str(Path(folder) / f"kernel{compiling.suffix(target)}")
    Path(path).unlink(missing_ok=True)  # of a call that was killed on its way; nobody has loaded it
    return {"path": path, **compiling.build(scheduled, target, path)}


def admitted(folder: Path) -> dict[str, Any] | None:
    """What admission said of the artifact in this folder; None where it came to no end. Runs anywhere."""
    try:
        found: dict[str, Any] = json.loads((folder / ADMITTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
