"""`dragon tsel check FILE`, `convert FILE` and `apply FILE`: one label's text, read from a file."""

import re
from pathlib import Path
from typing import Any

from littledragon.compiler import children
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import read_regular, require_unicode
from littledragon.schemas import tsel
from littledragon.schemas.graph import Graph

APPLY_DEADLINE_S = 120.0
"""For the start of a child, TVM's import and the replay."""
_NOTATION = re.compile(rb"notation\s*=\s*[\"'](\w+)")


def check(path: Path) -> str:
    """Whether a file holds a well-formed graph, and of what kind, in one line.

    Raises:
        UserError: it cannot be read, or breaks a rule; the text says where, what and which rule.
    """
    graph = _decode(path).graph
    instructions = sum(len(edit.instructions) for edit in graph.edits)
    explained = len(graph.evidence) + len(graph.analyses) + len(graph.effects)
    return (
        f"{path}: well-formed {tsel.VERSION}, notation {_notation(path)}, {_count(len(graph.edits), 'edit')}, "
        f"{_count(instructions, 'instruction')}, {_count(len(graph.maps), 'index map')}, "
        f"{_count(explained, 'explanation')}, {_after(graph)}"
    )


def convert(path: Path, notation: tsel.Notation) -> str:
    """A file's graph in this notation, in its canonical spelling.

    Raises:
        UserError: the file cannot be read or breaks a rule, or its graph is too large for the notation.
    """
    try:
        return tsel.convert(_read(path), notation)
    except tsel.TselError as error:
        raise UserError(f"{path}: {error}; gate {error.gate}") from None


def apply(path: Path, workload_module_json: str, target: dict[str, Any]) -> dict[str, Any]:
    """Apply a file's edits to a workload, in a child process.

    Args:
        path: a label's text.
        workload_module_json: M0, as `tvm.ir.save_json`.
        target: the TVM target.

    Returns:
        What `compiler.traces.apply` says: `failed` is the first gate that refused the edits, or None.

    Raises:
        UserError: the file cannot be read or breaks a rule, or the child died or was late.
    """
    _decode(path)
    try:
        answer: dict[str, Any] = children.once(
            "littledragon.compiler.traces:apply",
            deadline_s=APPLY_DEADLINE_S,
            module=workload_module_json,
            text=_read(path).decode(),
            target=target,
        )
    except children.ChildError as error:
        raise UserError(f"{path}: applying it ended the compiler: {error}") from None
    return answer


def _decode(path: Path) -> tsel.Decoded:
    try:
        return tsel.decode(_read(path))
    except tsel.TselError as error:
        raise UserError(f"{path}: {error}; gate {error.gate}") from None


def _after(graph: Graph) -> str:
    """What becomes of a graph's post-processing."""
    if graph.postproc is not None:
        return f"post-processing derived ({graph.postproc.rules})"
    spelled = any(step.kind == "EnterPostproc" for edit in graph.edits for step in edit.instructions)
    return "post-processing spelled out" if spelled else "no post-processing"


def _notation(path: Path) -> str:
    """The notation of a well-formed text: its first tag says so."""
    found = _NOTATION.search(_read(path))
    return found[1].decode() if found else "unknown"


def _read(path: Path) -> bytes:
    """The file, but not more of it than a label may hold and one byte."""
    require_unicode(path)
    try:
        return read_regular(path, tsel.MAX_TEXT + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
