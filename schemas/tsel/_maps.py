"""Index maps: TVM's node-graph text of a `tirx.IndexMap`, and the typed expression DAG that stands for it.

    {"in": ["i0", "i1"], "let": {"$0": 16, "$1": ["//", "i1", "$0"]}, "out": ["$1", ["%", "i1", "$0"]]}

An expression is an integer, the name of an index variable, `$n` for a shared sub-expression, a reference to a
sampled variable (`t3.0.1`), or `[operator, a, b]`. Every node has one dtype, int32 unless `"dtype"` says another.
What is shared in TVM's graph is shared here, so the text comes back exactly: compact where a map is an input,
indented where it is an attribute. Maps that this form cannot hold (casts, inverse maps) are refused.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_TRACE, TselError, illegal

OPERATORS = {
    "+": "tirx.Add",
    "-": "tirx.Sub",
    "*": "tirx.Mul",
    "//": "tirx.FloorDiv",
    "%": "tirx.FloorMod",
    "/t": "tirx.Div",
    "%t": "tirx.Mod",
    "min": "tirx.Min",
    "max": "tirx.Max",
}
_SYMBOLS = {name: symbol for symbol, name in OPERATORS.items()}
REFERENCE = re.compile(r"(t\d{1,6})\.(\d{1,5})\.(\d{1,5})")
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_DTYPES = ("int32", "int64")
_MAX_NODES = 4096
_MAX_DEPTH = 32


def read(text: str, resolve: Callable[[str], str | None], version: str, place: str) -> dict[str, Any]:
    """The DAG of a map's text; `resolve` gives the reference of a name that the trace has sampled, or None.

    Raises:
        TselError: gate `wellformed`, rule `map`: not an index map, or not one that the DAG gives back exactly.
    """
    graph = _json.read(text, place, "wellformed")
    try:
        value = _read(graph, resolve, place)
        names = {reference: name for name, reference in value.pop("sampled").items()}
        again = write(value, names.__getitem__, version, place, indent=2 if text[1:2] == "\n" else None)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise _refused(place, "not an index map of integer expressions") from None
    if again != text:
        raise _refused(place, "an index map that the expression form does not give back exactly")
    return value


def _refused(place: str, message: str) -> TselError:
    return illegal("map", place, message)


def _read(graph: Any, resolve: Callable[[str], str | None], place: str) -> dict[str, Any]:
    nodes = graph["nodes"]
    if len(nodes) > _MAX_NODES:
        raise _refused(place, f"an index map of more than {_MAX_NODES} nodes")
    root = nodes[graph["root_index"]]
    if root["type"] != "tirx.IndexMap":
        raise _refused(place, "not an index map")
    uses: dict[int, int] = {}
    for node in nodes:
        data = node.get("data")
        inner = data if isinstance(data, list) else [data["a"], data["b"]] if node["type"] in _SYMBOLS else []
        for index in inner:
            uses[index] = uses.get(index, 0) + 1
    inputs = [nodes[nodes[i]["data"]["name"]]["data"] for i in nodes[root["data"]["initial_indices"]]["data"]]
    sampled: dict[str, str] = {}
    lets: dict[str, Any] = {}
    named: dict[int, str] = {}
    dtypes: set[str] = set()

    def expression(index: int, depth: int) -> Any:
        if index in named:
            return named[index]
        if depth > _MAX_DEPTH:
            raise _refused(place, f"an expression deeper than {_MAX_DEPTH}")
        kind, data = nodes[index]["type"], nodes[index]["data"]
        dtypes.add(data["dtype"])
        if kind == "tirx.Var":
            name = str(nodes[data["name"]]["data"])
            reference = None if name in inputs else resolve(name)
            if reference is not None:
                sampled[name] = reference
            return reference or name
        value = data["value"] if kind == "ir.IntImm" else None
        if value is None:
            value = [_SYMBOLS[kind], expression(data["a"], depth + 1), expression(data["b"], depth + 1)]
        if uses.get(index, 0) > 1:
            named[index] = f"${len(lets)}"
            lets[named[index]] = value
            return named[index]
        return value

    for i in nodes[root["data"]["initial_indices"]]["data"]:
        dtypes.add(nodes[i]["data"]["dtype"])
    outputs = [expression(i, 0) for i in nodes[root["data"]["final_indices"]]["data"]]
    (dtype,) = dtypes
    value = {"in": inputs, "let": lets, "out": outputs, "dtype": dtype, "sampled": sampled}
    if not lets:
        del value["let"]
    if dtype == "int32":
        del value["dtype"]
    return value


def check(value: Any, place: str) -> None:
    """Whether a value is a map's DAG.

    Raises:
        TselError: gate `wellformed`, rule `map`.
    """
    if not isinstance(value, dict) or not set(value) <= {"in", "let", "out", "dtype"}:
        raise _refused(place, "a map is an object with in, let, out and dtype")
    inputs, lets, outputs = value.get("in"), value.get("let", {}), value.get("out")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not isinstance(lets, dict):
        raise _refused(place, "in and out are lists, let is an object")
    if len(inputs) > _MAX_NODES or not all(isinstance(name, str) and _VARIABLE.fullmatch(name) for name in inputs):
        raise _refused(place, f"index variables are names, at most {_MAX_NODES}")
    variables = frozenset(inputs)
    if len(variables) != len(inputs) or value.get("dtype", "int32") not in _DTYPES:
        raise _refused(place, "a name that stands twice, or a dtype that is not int32 or int64")
    if ("let" in value and not lets) or value.get("dtype") == "int32":
        raise _refused(place, "an empty let and dtype int32 are left out")
    bits = 63 if value.get("dtype") == "int64" else 31
    known: dict[str, int] = {}
    uses: dict[str, int] = {}
    count = 0

    def depth(item: Any) -> int:
        nonlocal count
        count += 1
        if count > _MAX_NODES:
            raise _refused(place, f"more than {_MAX_NODES} nodes")
        if isinstance(item, int) and not isinstance(item, bool) and -(1 << bits) <= item < 1 << bits:
            return 0
        if isinstance(item, str) and (item in variables or REFERENCE.fullmatch(item)):
            return 0
        if isinstance(item, str) and item in known:
            uses[item] = uses.get(item, 0) + 1
            return known[item]
        if isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and item[0] in OPERATORS:
            if item[0] in ("//", "%", "/t", "%t") and item[2] == 0 and not isinstance(item[2], bool):
                raise _refused(place, "a division by zero")
            return 1 + max(depth(item[1]), depth(item[2]))
        raise _refused(place, "an expression is an integer, a variable, a shared one before it, or [operator, a, b]")

    for name, item in lets.items():
        if name != f"${len(known)}":
            raise _refused(place, "shared expressions are called $0, $1, …, in this order")
        known[name] = depth(item)
    found = [depth(item) for item in outputs] + list(known.values())
    if max(found, default=0) > _MAX_DEPTH:
        raise _refused(place, f"an expression deeper than {_MAX_DEPTH}")
    if any(uses.get(name, 0) < 2 for name in lets):
        raise _refused(place, "an expression in let that stands less than twice")


def write(value: Any, name: Callable[[str], str], version: str, place: str, indent: int | None) -> str:
    """TVM's text of a map that `check` accepts; `name` gives the trace's name of a sampled variable.

    The order of nodes is that of `ToJSONGraph`: the children of a node before it, None once, as node 0.
    """
    nodes: list[dict[str, Any]] = []
    done: dict[str, int] = {}
    dtype = value.get("dtype", "int32")
    lets = value.get("let", {})
    variables = frozenset(value["in"])

    def add(kind: str, data: Any = None) -> int:
        nodes.append({"type": kind} if kind == "None" else {"type": kind, "data": data})
        if len(nodes) > _MAX_NODES:
            raise _refused(place, f"more than {_MAX_NODES} nodes")
        return len(nodes) - 1

    def span() -> int:
        if "" not in done:
            done[""] = add("None")
        return done[""]

    def variable(text: str) -> int:
        if text not in done:
            fields = {"span": span(), "dtype": dtype}
            fields["name"] = add("ffi.String", text)
            fields["type_annotation"] = add("ir.PrimType", {"span": span(), "dtype": dtype})
            done[text] = add("tirx.Var", fields)
        return done[text]

    def expression(item: Any) -> int:
        if isinstance(item, int):
            return add("ir.IntImm", {"span": span(), "dtype": dtype, "value": item})
        if isinstance(item, str) and item in lets:
            if item not in done:
                done[item] = expression(lets[item])
            return done[item]
        if isinstance(item, str) and REFERENCE.fullmatch(item):
            sampled = name(item)
            if sampled in variables:
                raise _refused(place, f"an index variable is called {sampled}, as the trace calls {item}")
            return variable(sampled)
        if isinstance(item, str):
            return variable(item)
        fields = {"span": span(), "dtype": dtype, "a": expression(item[1]), "b": expression(item[2])}
        return add(OPERATORS[item[0]], fields)

    fields = {"initial_indices": add("ffi.Array", [variable(text) for text in value["in"]])}
    fields["final_indices"] = add("ffi.Array", [expression(item) for item in value["out"]])
    fields["inverse_index_map"] = span()
    root = add("tirx.IndexMap", fields)
    graph = {"root_index": root, "nodes": nodes, "metadata": {"tvm_version": version}}
    text = json.dumps(graph, separators=None if indent else (",", ":"), ensure_ascii=False, indent=indent)
    if len(text) > MAX_TRACE:
        raise _refused(place, "an index map that is too large")
    return text
