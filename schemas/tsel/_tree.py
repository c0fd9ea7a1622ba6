"""A trace as the tree of tagged leaves: what TVM's `save_json` graph of nodes says, whatever it shares.

`tvm.ir.save_json(trace.as_json())` is a list of nodes that refer to each other by index. Its text depends on
which objects were shared in memory, so two equal traces may have two texts. The tree does not:

    ("array", (leaf, …))   ("dict", ((key, leaf), …))   ("str", s)   ("none", None)
    ("int", 1) ("float", 0.5) ("bool", True)            plain values
    ("IntImm:int32", 1) ("IntImm:bool", 1) ("FloatImm:float32", 0.5)   TVM's typed immediates

Formats: TVM 0.25, src of tvm-ffi `ToJSONGraph`.
"""

import json
import re
import sys
from typing import Any

from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_LEAVES, MAX_STRING, MAX_TRACE, TselError, malformed

Leaf = tuple[str, Any]

NONE: Leaf = ("none", None)
NAME = re.compile(r"[blv](0|[1-9][0-9]{0,5})")
"""The name of an output: its type and the number of outputs before it."""
LETTERS = {"B": "b", "L": "l", "E": "v"}
"""The letter of a type in a signature, and in a name."""
_INT_DTYPE = re.compile(r"(u?)int(8|16|32|64)")
_FLOAT_DTYPES = ("float16", "float32", "float64", "bfloat16")
_MAX_DEPTH = 16
_GREATEST = sys.float_info.max


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
    graph = _json.quick(text, "trace")
    if not isinstance(graph, dict) or set(graph) != {"root_index", "nodes", "metadata"}:
        raise malformed("graph", "trace", "an object with root_index, nodes and metadata is expected")
    nodes, metadata = graph["nodes"], graph["metadata"]
    if not isinstance(nodes, list) or not isinstance(metadata, dict):
        raise malformed("graph", "trace", "nodes is a list, metadata an object")
    version = metadata.get("tvm_version")
    if set(metadata) != {"tvm_version"} or not isinstance(version, str) or len(version) > 64:
        raise malformed("version", "trace", "metadata must hold tvm_version and nothing else")
    leaves = _leaves(nodes)
    root = graph["root_index"]
    if type(root) is not int or not 0 <= root < len(leaves):
        raise malformed("index", "trace", "root_index is no node")
    return leaves[root], version


def _leaves(nodes: list[Any]) -> list[Leaf]:
    """The tree under each node. TVM writes the children of a node before it, so one pass is enough and no cycle
    can be. Nodes that share each other may stand for a tree of any size: who walks along one counts (`Budget`)."""
    leaves: list[Leaf] = []
    put, find = leaves.append, leaves.__getitem__
    try:
        for node in nodes:
            kind, data = node["type"], node.get("data")
            if kind == "ffi.String" and type(data) is str and len(data) <= MAX_STRING and data.isascii():
                put(("str", data))
            elif kind == "ffi.Array" and type(data) is list:
                if data and min(data) < 0:
                    raise IndexError
                put(("array", tuple(map(find, data))))
            elif kind in ("ir.IntImm", "ir.FloatImm") and type(data) is dict:
                put(_immediate(kind, data, leaves))
            elif kind == "ffi.Map" and type(data) is list:
                if data and min(data) < 0:
                    raise IndexError
                put(_dict(tuple(map(find, data)), len(leaves)))
            else:
                put(_plain(kind, data, f"node {len(leaves)}"))
            if len(node) > 2:
                raise KeyError
    except IndexError:
        raise malformed("index", f"node {len(leaves)}", "a reference to a node that is not before it") from None
    except (KeyError, TypeError, AttributeError):
        raise malformed("node", f"node {len(leaves)}", "not a node with type and data") from None
    return leaves


class Budget:
    """How much of a tree may still be walked along, where its nodes may share each other."""

    def __init__(self) -> None:
        self.left = MAX_LEAVES

    def take(self, leaf: Leaf) -> None:
        """Takes the size of a tree.

        Raises:
            TselError: gate `parsed`, rule `size`: the tree is deeper or larger than a trace may be.
        """
        stack = [(leaf, 0)]
        while stack:
            (tag, value), depth = stack.pop()
            self.left -= 1
            if self.left < 0 or depth > _MAX_DEPTH:
                raise malformed("size", "trace", f"more than {MAX_LEAVES} leaves, or deeper than {_MAX_DEPTH}")
            if tag == "array":
                stack += [(child, depth + 1) for child in value]
            elif tag == "dict":
                stack += [(child, depth + 1) for _, child in value]

    def count(self, number: int) -> None:
        """Takes that many leaves."""
        self.left -= number
        if self.left < 0:
            raise malformed("size", "trace", f"more than {MAX_LEAVES} leaves")


def _dict(parts: tuple[Leaf, ...], here: int) -> Leaf:
    names = [value for tag, value in parts[::2] if tag == "str"]
    if len(parts) % 2 or len(names) * 2 != len(parts) or len(set(names)) != len(names):
        raise malformed("node", f"node {here}", "a map has a value for each key, and keys that differ and are strings")
    return ("dict", tuple(sorted(zip(names, parts[1::2], strict=True), key=lambda item: item[0])))


def _immediate(kind: str, data: dict[str, Any], leaves: list[Leaf]) -> Leaf:
    span, dtype, value = data.get("span"), data.get("dtype"), data.get("value")
    if type(span) is not int or not 0 <= span < len(leaves) or leaves[span] is not NONE or len(data) != 3:
        raise malformed("node", f"node {len(leaves)}", f"{kind} must hold span (None), dtype and value")
    if dtype == "int32" and type(value) is int and kind == "ir.IntImm" and -(1 << 31) <= value < 1 << 31:
        return ("IntImm:int32", value)
    leaf = immediate(kind.removeprefix("ir."), dtype, value)
    if leaf is None:
        raise malformed("value", f"node {len(leaves)}", f"{kind} of this dtype cannot hold this value")
    return leaf


def immediate(kind: str, dtype: Any, value: Any) -> Leaf | None:
    """A typed immediate (`IntImm` or `FloatImm`), or None where its dtype cannot hold the value."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(dtype, str) or not number:
        return None
    if kind == "FloatImm":
        fits = dtype in _FLOAT_DTYPES and -_GREATEST <= value <= _GREATEST
        return (f"FloatImm:{dtype}", float(value)) if fits else None
    match = _INT_DTYPE.fullmatch(dtype)
    bits = int(match[2]) - (not match[1]) if match else 1
    low = 0 if not match or match[1] else -(1 << bits)
    fits = (match is not None or dtype == "bool") and isinstance(value, int) and low <= value < 1 << bits
    return (f"IntImm:{dtype}", value) if fits else None


def _plain(kind: Any, data: Any, place: str) -> Leaf:
    if kind == "None" and data is None:
        return NONE
    if kind == "ffi.String" and isinstance(data, str) and (len(data) <= MAX_STRING or data[:1] == "{"):
        if not _json.sound(data):
            raise malformed("string", place, "a string with a lone surrogate")
        return ("str", data)
    if kind == "bool" and isinstance(data, bool):
        return ("bool", data)
    if kind == "int" and type(data) is int and -(1 << 63) <= data < 1 << 63:
        return ("int", data)
    if kind == "float" and type(data) in (int, float) and -_GREATEST <= data <= _GREATEST:
        return ("float", float(data))
    raise malformed("node", place, f"unknown node type, or data that does not fit it: {str(kind)[:40]}")


def write(leaf: Leaf, version: str) -> str:
    """The canonical `save_json` text of a tree: every node its own, children first. `tvm.ir.load_json` reads it.

    Raises:
        TselError: gate `parsed`, rule `size`.
    """
    Budget().take(leaf)
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


def items(leaf: Leaf, place: str) -> tuple[Leaf, ...]:
    """The items of an array.

    Raises:
        TselError: gate `parsed`: it is no array.
    """
    if leaf[0] != "array":
        raise TselError("parsed", "trace", place, "an array is expected here")
    found: tuple[Leaf, ...] = leaf[1]
    return found
