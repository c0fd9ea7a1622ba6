"""The node graph of a `tirx.IndexMap` as TVM writes it, and its value: what `_maps` explains, read and written.

The order of nodes is that of TVM's `ToJSONGraph` (tvm-ffi, extra/serialization): the children of a node before it,
None once, equal strings once, everything else as often as TVM holds it.
"""

import math
import re
from typing import Any, Final

REFERENCE: Final = re.compile(r"(t\d{1,6})\.(\d{1,5})\.(\d{1,5})")
"""Where an output stands, edit, step and number: what JSON fragments call a sampled number."""

BINARY: Final = {
    "+": "tirx.Add",
    "-": "tirx.Sub",
    "*": "tirx.Mul",
    "//": "tirx.FloorDiv",
    "%": "tirx.FloorMod",
    "/t": "tirx.Div",
    "%t": "tirx.Mod",
    "min": "tirx.Min",
    "max": "tirx.Max",
    "==": "tirx.EQ",
    "!=": "tirx.NE",
    "<": "tirx.LT",
    "<=": "tirx.LE",
    ">": "tirx.GT",
    ">=": "tirx.GE",
    "&&": "tirx.And",
    "||": "tirx.Or",
}
_SYMBOLS: Final = {name: symbol for symbol, name in BINARY.items()}
FIELDS: Final = {
    "tirx.Not": ("a",),
    "tirx.Cast": ("value",),
    "tirx.Select": ("condition", "true_value", "false_value"),
    "tirx.Call": (),
}
"""The operands of the nodes that are no binary operators; a call's are in an array."""
_LEAVES: Final = frozenset({"None", "ffi.String", "ir.PrimType", "ir.Op", "tirx.IndexMap"})
"""Nodes that are no expressions."""
_KNOWN: Final = _LEAVES | _SYMBOLS.keys() | FIELDS.keys() | {"ir.IntImm", "ir.FloatImm", "tirx.Var", "ffi.Array"}
CALLS: Final = frozenset(
    (
        *("if_then_else", "likely", "shift_left", "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("bitwise_not", "clz", "popcount", "ceil", "fabs", "floor", "fmod", "nearbyint", "round", "trunc"),
        *("copysign", "isfinite", "isinf", "isnan", "ldexp", "nextafter", "exp", "exp10", "exp2", "log", "log10"),
        *("log1p", "log2", "pow", "rsqrt", "sqrt", "hypot", "erf", "sigmoid", "tanh", "acos", "acosh", "asin"),
        *("asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan"),
    )
)
"""The intrinsics that a map may call: pure arithmetic. Others call foreign code or touch memory."""

NAME: Final = re.compile(r"([^\W\d][\w.]{0,63}+)(?:'[1-9]\d{0,3})?")
SAMPLED: Final = re.compile(r"v\d{1,9}", re.ASCII)
DTYPE: Final = re.compile(r"bool|u?int(?:4|8|16|32|64)|float(?:16|32|64)|bfloat16|float8_e\w{1,12}", re.ASCII)
KEYS: Final = ("in", "let", "out", "dtype", "types", "inverse")
MAX_NODES: Final = 4096
MAX_DEPTH: Final = 40


class Refused(Exception):
    """A text or a value that is no index map; str() says why."""


def value_of(graph: Any) -> dict[str, Any]:
    """The value of a node graph; a graph that is not TVM's gives any value or any error.

    One pass is enough: TVM writes the children of a node before it.
    """
    nodes = graph["nodes"]
    if len(nodes) > MAX_NODES:
        raise Refused(f"an index map of more than {MAX_NODES} nodes")
    root = nodes[graph["root_index"]]
    if root["type"] != "tirx.IndexMap":
        raise Refused("not an index map")
    uses = _uses(nodes)
    inputs = nodes[root["data"]["initial_indices"]]["data"]
    dtype = "int64" if inputs and nodes[inputs[0]]["data"]["dtype"] == "int64" else "int32"
    found: dict[int, Any] = {}
    lets: dict[str, Any] = {}
    types: dict[str, str] = {}
    again: dict[str, int] = {}
    for index, node in enumerate(nodes):
        kind, data = node["type"], node.get("data")
        spelled: Any
        if (symbol := _SYMBOLS.get(kind)) is not None:
            spelled = [symbol, found[data["a"]], found[data["b"]]]
        elif kind == "ir.IntImm":
            spelled = _spell(data["dtype"], data["value"], dtype)
        elif kind == "tirx.Var":
            name = nodes[data["name"]]["data"]
            again[name] = count = again.get(name, -1) + 1
            found[index] = name = f"{name}'{count}" if count else name
            if data["dtype"] != dtype:
                types[name] = data["dtype"]
            continue
        elif kind == "ffi.Array":
            found[index] = [found[i] for i in data]
            continue
        elif kind == "ir.FloatImm":
            spelled = _spell_float(data["dtype"], data["value"])
        elif kind == "tirx.Call":
            name = nodes[data["op"]]["data"]
            # each list of arguments is one call's: shared ones could make a value grow without bound
            spelled = ["call", name.removeprefix("tirx."), data["dtype"], *found.pop(data["args"])]
        elif kind in FIELDS:
            head = ["cast", data["dtype"]] if kind == "tirx.Cast" else ["!" if kind == "tirx.Not" else "select"]
            spelled = head + [found[data[field]] for field in FIELDS[kind]]
        elif kind in _LEAVES:
            continue
        else:
            unknown = [n["type"] for n in nodes if n["type"] not in _KNOWN]
            raise Refused(f"an index map with {unknown[-1][:40]}, which no map may hold")
        if uses[index] > 1:
            name = f"${len(lets)}"
            lets[name] = spelled
            spelled = name
        found[index] = spelled
    value: dict[str, Any] = {"in": found[root["data"]["initial_indices"]]}
    if lets:
        value["let"] = lets
    value["out"] = _outputs(root, found)
    if dtype == "int64":
        value["dtype"] = dtype
    if types:
        value["types"] = types
    inverse = nodes[root["data"]["inverse_index_map"]]
    if inverse["type"] != "None":
        if nodes[inverse["data"]["inverse_index_map"]]["type"] != "None":
            raise Refused("an inverse index map that has an inverse itself")
        value["inverse"] = {"in": found[inverse["data"]["initial_indices"]], "out": _outputs(inverse, found)}
    return value


def _outputs(node: Any, found: dict[int, Any]) -> Any:
    """The results of a map, or `"in"` where they are the very list of its index variables."""
    same = node["data"]["final_indices"] == node["data"]["initial_indices"]
    return "in" if same else found[node["data"]["final_indices"]]


def _uses(nodes: list[Any]) -> list[int]:
    """How often expressions and lists refer to each node."""
    uses = [0] * len(nodes)
    for node in nodes:
        kind = node["type"]
        if kind in _SYMBOLS:
            data = node["data"]
            uses[data["a"]] += 1
            uses[data["b"]] += 1
        elif kind == "ffi.Array":
            for index in node["data"]:
                uses[index] += 1
        elif kind in FIELDS:
            for field in FIELDS[kind]:
                uses[node["data"][field]] += 1
    return uses


def _spell(dtype: str, number: Any, usual: str) -> Any:
    if dtype == usual:
        return number
    return bool(number) if dtype == "bool" and number in (0, 1) else [dtype, number]


def _spell_float(dtype: str, number: Any) -> Any:
    number = float(number)
    if not math.isfinite(number):
        return [dtype, "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"]
    return number if dtype == "float32" else [dtype, number]


def first_operand(item: list[Any]) -> int:
    """Where the operands begin in an expression that is a list; past its end where it is an immediate."""
    head = item[0] if item else None
    if not isinstance(head, str) or head in BINARY or head in ("!", "select"):
        return 1
    return {"cast": 2, "call": 3}.get(head, len(item))


def index_variables(value: Any) -> frozenset[str]:
    """The index variables of a map and of its inverse."""
    maps = (value, value.get("inverse")) if isinstance(value, dict) else ()
    lists = [part.get("in") for part in maps if isinstance(part, dict)]
    return frozenset(name for found in lists if isinstance(found, list) for name in found if isinstance(name, str))
