"""The anchor of a module: the block that the search will spend its time on, and what it looks like.

Signature and extents together are the module's cell, by which splits are made (`release/splits.py`). The
signature says how iterators are used, and nothing of dtype, names, epilogue, constants or sizes.
"""

from collections.abc import Sequence
from typing import Any

from littledragon.compiler.features import children, constant, kind

Json = dict[str, Any]


def anchor(features: Json) -> Json | None:
    """A block that reduces, if there is one, with the most operations, then iterations; the first of equals."""

    def weight(block: Json) -> tuple[bool, int, int]:
        reduces = any(axis["kind"] == "reduce" for axis in block["iterators"])
        return reduces, block["flops"], block["iterations"]

    return max(features["blocks"], key=weight, default=None)


def cell(features: Json, nodes: Sequence[Any]) -> tuple[str, list[int]]:
    """The anchor's signature and the extents of its iterators; iterators of extent 1 are left out of both.

    Example: a matrix product X·Wᵀ has `SSR w:0,1 r:0,2 r:1,2` and [m, n, k].

    nodes: the syntax-tree node of each block, as `features.read` gives them.

    Raises:
        ValueError: the module has no block.
    """
    block = anchor(features)
    if block is None:
        raise ValueError("module: no block")
    node = nodes[features["blocks"].index(block)]
    kept = [axis for axis in node.iter_vars if constant(axis.dom.extent) != 1]
    place = {axis.var: str(index) for index, axis in enumerate(kept)}
    kinds = "".join("R" if int(axis.iter_type) == 2 else "S" for axis in kept)
    writes = sorted({f"w:{_access(region, place)}" for region in node.writes})
    reads = sorted({f"r:{_access(region, place)}" for region in node.reads})
    return " ".join([kinds, *writes, *reads]), [constant(axis.dom.extent) or 0 for axis in kept]


def _access(region: Any, place: dict[Any, str]) -> str:
    indices = (_index(part.min, place) for part in region.region)
    return ",".join(index for index in indices if index)


def _index(expression: Any, place: dict[Any, str]) -> str:
    """Iterators by position, strides kept, added constants and unit iterators dropped; `*(…)` for a loaded index."""
    name = kind(expression)
    if name in ("Var", "SizeVar"):
        return place.get(expression, "")
    if name in ("IntImm", "FloatImm"):
        return ""
    if name == "Cast":
        return _index(expression.value, place)
    if name == "Mul":
        factor = constant(expression.b)
        inner = _index(expression.a, place)
        if factor is not None:
            return f"{factor}*{_bracket(inner)}" if inner else ""
    if name in ("FloorDiv", "FloorMod") and constant(expression.b) is not None:
        inner = _index(expression.a, place)
        symbol = "//" if name == "FloorDiv" else "%"
        return f"{_bracket(inner)}{symbol}{constant(expression.b)}" if inner else ""
    parts = sorted(part for part in (_index(child, place) for child in children(expression)) if part)
    if name == "BufferLoad":
        return f"*({','.join(parts)})"
    if name in ("Add", "Sub"):
        return "+".join(parts)
    return f"{name}({','.join(parts)})" if parts else ""


def _bracket(inner: str) -> str:
    return f"({inner})" if "+" in inner else inner
