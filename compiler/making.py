"""From a trace to a built kernel, in one call of a child: replay, post-processing, encoding, then the compiler.

Both in one, because the scheduled module then never leaves the child. What admission found is written to the
artifact's folder before the compiler begins, so that a build that crashes or is late is known for what it is.
"""

import json
from pathlib import Path
from typing import Any, Final

ADMITTED: Final = "admitted.json"
"""In the artifact's folder: what `compiler.traces:admit` said."""
APPLIED: Final = "applied"
"""In the artifact's folder, of a text: 8 bytes that count the instructions applied so far, should the child die."""


def make(
    module: str,
    target: dict[str, Any],
    folder: str,
    trace: str | None = None,
    text: str | None = None,
    build: bool = True,
    claims: str | None = None,
) -> dict[str, Any]:
    """Admit a candidate and, where it passed, build it. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        target: the TVM target.
        folder: the artifact's own folder, empty but for what an earlier, killed call of the same left.
        trace: the candidate's trace as `save_json` text; or
        text: its text in the language; with neither, the default schedule.
        build: whether to build what was admitted.
        claims: a folder that several calls share: of those whose scheduled modules are equal, only the first builds.

    Returns:
        What `compiler.build:build` says, and `"path"`: the kernel's file. Empty where admission refused the candidate
        (see `ADMITTED`), and where another call builds the same module (see `claimed`).

    Raises:
        RuntimeError: what TVM or the compiler says of a module that does not compile. ValueError: no toolchain.
    """
    from littledragon.compiler import build as compiling
    from littledragon.compiler import traces

    if text is None:
        answer = traces.admit(module, trace, target)
    else:
        progress = Path(folder) / APPLIED
        progress.write_bytes(bytes(8))
        answer = traces.apply(module, text, target, str(progress))
    scheduled = answer.pop("scheduled")
    (Path(folder) / ADMITTED).write_text(json.dumps(answer), encoding="utf-8")
    if answer["failed"] or (claims is not None and not _claim(Path(claims), answer["module_hash"], folder)):
        return {}
    if not build:
        return {}
    path = str(Path(folder) / f"kernel{compiling.suffix(target)}")
    Path(path).unlink(missing_ok=True)  # of a call that was killed on its way; nobody has loaded it
    return {"path": path, **compiling.build(scheduled, target, path)}


def _claim(claims: Path, module_hash: str, folder: str) -> bool:
    """Whether this folder's module is the first of its hash. Who was killed and is called again finds its own claim."""
    try:
        (claims / module_hash).symlink_to(folder)
    except FileExistsError:
        return claimed(claims, module_hash) == folder
    return True


def claimed(claims: Path, module_hash: str) -> str | None:
    """The folder whose call builds the module of this hash, or has built it; None: nobody's. Runs anywhere."""
    try:
        return str((claims / module_hash).readlink())
    except OSError:
        return None


def applied(folder: Path) -> int:
    """How many instructions of the text in this folder were applied, however its child ended. Runs anywhere."""
    try:
        return int.from_bytes((folder / APPLIED).read_bytes(), "little")
    except OSError:
        return 0


def admitted(folder: Path) -> dict[str, Any] | None:
    """What admission said of the artifact in this folder; None where it came to no end. Runs anywhere."""
    try:
        found: dict[str, Any] = json.loads((folder / ADMITTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
