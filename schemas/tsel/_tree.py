"""A trace as the tree of tagged leaves: what TVM's `save_json` graph of nodes says, whatever it shares.

`tvm.ir.save_json(trace.as_json())` is a list of nodes that refer to each other by index. Its text depends on
which objects were shared in memory, so two equal traces may have two texts. The tree does not:

    ("array", (leaf, …))   ("dict", ((key, leaf), …))   ("str", s)   ("none", None)
    ("int", 1) ("float", 0.5) ("bool", True)            plain values
    ("IntImm:int32", 1) ("IntImm:bool", 1) ("FloatImm:float32", 0.5)   TVM's typed immediates

Formats: TVM 0.25, src of tvm-ffi `ToJSONGraph`.
"""

import json
import math
import re
from typing import Any

from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_LEAVES, MAX_STRING, MAX_TRACE, TselError, malformed

Leaf = tuple[str, Any]

NONE: Leaf = ("none", None)
_INT_DTYPE = re.compile(r"(u?)int(8|16|32|64)")
_FLOAT_DTYPES = ("float16", "float32", "float64", "bfloat16")
_MAX_DEPTH = 16


def array(*items: Leaf) -> Leaf:
    """An `ffi.Array`."""
    return ("array", items)


def parse(text: str) -> tuple[Leaf, str]:
    """The tree of a `save_json` text, and the TVM version that wrote it.

    Raises:
        TselError: gate `parsed`: too large, not such a graph, cyclic, an index out of range, an unknown node type,
            a value that its type cannot hold.
    """
    if not isinstance(text, str):
        raise malformed("type", "trace", "a trace is text")
    if len(text) > MAX_TRACE:
        raise malformed("size", "trace", f"longer than {MAX_TRACE} characters")
    graph = _json.read(text, "trace")
    if not isinstance(graph, dict) or not isinstance(graph.get("nodes"), list) or "root_index" not in graph:
        raise malformed("graph", "trace", "no object with root_index and nodes")
    metadata = graph.get("metadata")
    if set(graph) != {"root_index", "nodes", "metadata"} or not isinstance(metadata, dict):
        raise malformed("graph", "trace", "keys must be root_index, nodes and metadata")
    version = metadata.get("tvm_version")
    if set(metadata) != {"tvm_version"} or not isinstance(version, str) or len(version) > 64:
        raise malformed("version", "trace", "metadata must hold tvm_version and nothing else")
    reader = _Reader(graph["nodes"])
    leaf = reader.leaf(graph["root_index"], 0)
    return leaf, version


class _Reader:
    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.left = MAX_LEAVES

    def leaf(self, index: Any, depth: int) -> Leaf:
        """The tree under a node. A cycle ends at the depth limit; expanding shared nodes at the leaf limit."""
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.nodes):
            raise malformed("index", f"node {str(index)[:20]}", "a reference to a node that is not there")
        place = f"node {index}"
        node = self.nodes[index]
        if not isinstance(node, dict) or not isinstance(node.get("type"), str) or not set(node) <= {"type", "data"}:
            raise malformed("node", place, "not a node with type and data")
        self.left -= 1
        if depth > _MAX_DEPTH or self.left < 0:
            raise malformed("cycle", place, "the graph is cyclic, too deep or too large")
        kind, data = node["type"], node.get("data")
        if kind == "ffi.Array" and isinstance(data, list):
            return ("array", tuple(self.leaf(i, depth + 1) for i in data))
        if kind == "ffi.Map" and isinstance(data, list) and len(data) % 2 == 0:
            return self._dict(data, depth, place)
        if kind in ("ir.IntImm", "ir.FloatImm") and isinstance(data, dict):
            return self._immediate(kind, data, depth, place)
        return _plain(kind, data, place)

    def _dict(self, data: list[Any], depth: int, place: str) -> Leaf:
        items = []
        for key, value in zip(data[::2], data[1::2], strict=True):
            tag, name = self.leaf(key, depth + 1)
            if tag != "str":
                raise malformed("node", place, "a map whose keys are not strings")
            items.append((name, self.leaf(value, depth + 1)))
        if len({name for name, _ in items}) != len(items):
            raise malformed("node", place, "a key stands twice in one map")
        return ("dict", tuple(sorted(items)))

    def _immediate(self, kind: str, data: dict[str, Any], depth: int, place: str) -> Leaf:
        if set(data) != {"span", "dtype", "value"} or self.leaf(data["span"], depth + 1) != NONE:
            raise malformed("node", place, f"{kind} must hold span (None), dtype and value")
        leaf = immediate(kind.removeprefix("ir."), data["dtype"], data["value"])
        if leaf is None:
            raise malformed("value", place, f"{kind} of this dtype cannot hold this value")
        return leaf


def immediate(kind: str, dtype: Any, value: Any) -> Leaf | None:
    """A typed immediate (`IntImm` or `FloatImm`), or None where its dtype cannot hold the value."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(dtype, str) or not number:
        return None
    if kind == "FloatImm":
        fits = dtype in _FLOAT_DTYPES and math.isfinite(value)
        return (f"FloatImm:{dtype}", float(value)) if fits else None
    match = _INT_DTYPE.fullmatch(dtype)
    bits = int(match[2]) - (not match[1]) if match else 1
    low = 0 if not match or match[1] else -(1 << bits)
    fits = (match is not None or dtype == "bool") and isinstance(value, int) and low <= value < 1 << bits
    return (f"IntImm:{dtype}", value) if fits else None


def _plain(kind: str, data: Any, place: str) -> Leaf:
    if kind == "None" and data is None:
        return NONE
    if kind == "ffi.String" and isinstance(data, str) and (len(data) <= MAX_STRING or data[:1] == "{"):
        if not _json.sound(data):
            raise malformed("string", place, "a string with a lone surrogate")
        return ("str", data)
    if kind == "bool" and isinstance(data, bool):
        return ("bool", data)
    if kind == "int" and isinstance(data, int) and not isinstance(data, bool):
        return ("int", data)
    if kind == "float" and isinstance(data, (int, float)) and not isinstance(data, bool):
        return ("float", float(data))
    raise malformed("node", place, f"unknown node type, or data that does not fit it: {kind[:40]}")


def write(leaf: Leaf, version: str) -> str:
    """The canonical `save_json` text of a tree: every node its own, children first. `tvm.ir.load_json` reads it."""
    nodes: list[dict[str, Any]] = []

    def add(kind: str, data: Any = None) -> int:
        nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(nodes) - 1

    def put(leaf: Leaf) -> int:
        tag, value = leaf
        if tag == "array":
            return add("ffi.Array", [put(item) for item in value])
        if tag == "dict":
            return add("ffi.Map", [i for key, item in value for i in (put(("str", key)), put(item))])
        if ":" in tag:
            kind, dtype = tag.split(":")
            return add(f"ir.{kind}", {"span": add("None"), "dtype": dtype, "value": value})
        return add({"none": "None", "str": "ffi.String"}.get(tag, tag), value)

    graph = {"root_index": put(leaf), "nodes": nodes, "metadata": {"tvm_version": version}}
    return json.dumps(graph, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def items(leaf: Leaf, place: str, gate_rule: str = "trace") -> tuple[Leaf, ...]:
    """The items of an array.

    Raises:
        TselError: gate `parsed`: it is no array.
    """
    if leaf[0] != "array":
        raise TselError("parsed", gate_rule, place, "an array is expected here")
    found: tuple[Leaf, ...] = leaf[1]
    return found
