"""A value of an index map written as TVM's node graph, and checked on the way: the other half of `_mapnodes`."""

import json
from typing import Any, Final

from littledragon.schemas.tsel._error import MAX_TRACE
from littledragon.schemas.tsel._mapnodes import (
    BINARY,
    CALLS,
    DTYPE,
    FIELDS,
    KEYS,
    MAX_DEPTH,
    MAX_NODES,
    NAME,
    REFERENCE,
    SAMPLED,
    Refused,
    first_operand,
    index_variables,
)
from littledragon.schemas.tsel._tree import immediate

_TRUTHS: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "&&", "||"})
"""Operators whose dtype is bool."""
_DIVISIONS: Final = frozenset({"//", "%", "/t", "%t"})
_BAD_FLOATS: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
_MAX_ARGUMENTS: Final = 8


def text(value: Any, version: str, indent: bool) -> str:
    """TVM's text of a value, compact or indented by 2.

    Raises:
        Refused: not a map's value.
    """
    writer = _Writer(value)
    root = writer.root()
    found = (_indented if indent else _compact)(writer.nodes, root, json.dumps(version))
    if len(found) > MAX_TRACE:
        raise Refused("an index map that is too large")
    return found


class _Writer:
    """Writes the nodes of a value in the order of `ToJSONGraph`, children first, None once; checks it on the way."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict) or not {"in", "out"} <= set(value) <= set(KEYS):
            raise Refused(f"a map is an object with {', '.join(KEYS)}")
        self.value = value
        self.dtype = value.get("dtype", "int32")
        self.lets, self.types = value.get("let", {}), value.get("types", {})
        self.inverse = value.get("inverse")
        if self.dtype not in ("int32", "int64"):
            raise Refused("the dtype of a map is int32 or int64")
        if not isinstance(self.lets, dict) or not isinstance(self.types, dict):
            raise Refused("let and types are objects")
        if "inverse" in value and (not isinstance(self.inverse, dict) or set(self.inverse) != {"in", "out"}):
            raise Refused("an inverse map is an object with in and out")
        for part in (value, self.inverse or value):
            if not isinstance(part["in"], list) or not all(isinstance(name, str) for name in part["in"]):
                raise Refused("in is a list of names")
            if part["out"] != "in" and not isinstance(part["out"], list):
                raise Refused('out is a list of expressions, or "in"')
        self.own = index_variables(value)
        if len(self.own) != len(value["in"]) + (len(self.inverse["in"]) if self.inverse else 0):
            raise Refused("an index variable that stands twice")
        if self.inverse and (
            self._reached(value) & set(self.inverse["in"]) or self._reached(self.inverse) & set(value["in"])
        ):
            raise Refused("a map that uses an index variable of its inverse")
        self.nodes: list[tuple[str, Any]] = []
        self.dtypes: dict[int, str] = {}
        self.heights: dict[int, int] = {}
        self.zeros: set[int] = set()
        self.done: dict[str, int] = {}
        """Nodes that stand once: None, names and operators of calls, each with a mark before it."""
        self.named: dict[str, int] = {}
        """Variables and shared expressions, which stand once too."""

    def root(self) -> int:
        first = self._arrays(self.value)
        inverse = self._none()
        if self.inverse:
            fields = self._arrays(self.inverse)
            fields["inverse_index_map"] = inverse
            inverse = self._add("tirx.IndexMap", fields)
        first["inverse_index_map"] = inverse
        return self._add("tirx.IndexMap", first)

    def _arrays(self, value: dict[str, Any]) -> dict[str, Any]:
        inputs = self._add("ffi.Array", [self._variable(name) for name in value["in"]])
        outputs = inputs
        if value["out"] != "in":
            outputs = self._add("ffi.Array", [self._expression(item, 0) for item in value["out"]])
        return {"initial_indices": inputs, "final_indices": outputs}

    def _reached(self, value: dict[str, Any]) -> set[str]:
        """The variables and shared expressions that the results of a map or of its inverse need."""
        seen: set[str] = set()
        stack = list(value["out"]) if value["out"] != "in" else []
        while stack:
            item = stack.pop()
            if isinstance(item, list):
                stack += item[first_operand(item) :]
            elif isinstance(item, str) and item not in seen:
                seen.add(item)
                stack.append(self.lets.get(item))
        return seen

    def _add(self, kind: str, data: Any = None) -> int:
        if len(self.nodes) >= MAX_NODES:
            raise Refused(f"more than {MAX_NODES} nodes")
        self.nodes.append((kind, data))
        return len(self.nodes) - 1

    def _none(self) -> int:
        if "" not in self.done:
            self.done[""] = self._add("None")
        return self.done[""]

    def _string(self, text: str) -> int:
        key = f'"{text}'
        if key not in self.done:
            self.done[key] = self._add("ffi.String", json.dumps(text, ensure_ascii=False))
        return self.done[key]

    def _variable(self, spelled: str) -> int:
        if (known := self.named.get(spelled)) is not None:
            return known
        match = NAME.fullmatch(spelled)
        if match is None or (spelled in self.own and REFERENCE.fullmatch(spelled)):
            raise Refused(f"{spelled[:40]} is no name of a variable")
        if spelled not in self.own and not SAMPLED.fullmatch(spelled):
            raise Refused(f"{spelled[:40]} is neither an index variable nor a sampled number")
        dtype = self._dtype(self.types.get(spelled, self.dtype))
        fields: dict[str, Any] = {"span": self._none(), "dtype": f'"{dtype}"'}
        fields["name"] = self._string(match[1])
        fields["type_annotation"] = self._add("ir.PrimType", {"span": self._none(), "dtype": f'"{dtype}"'})
        self.named[spelled] = self._add("tirx.Var", fields)
        return self._as(self.named[spelled], dtype, 0)

    def _as(self, index: int, dtype: str, height: int) -> int:
        if height > MAX_DEPTH:
            raise Refused(f"an expression deeper than {MAX_DEPTH}")
        self.dtypes[index], self.heights[index] = dtype, height
        return index

    def _dtype(self, dtype: Any) -> str:
        if not isinstance(dtype, str) or not DTYPE.fullmatch(dtype):
            raise Refused(f"{str(dtype)[:40]} is no dtype of an expression")
        return dtype

    def _expression(self, item: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise Refused(f"an expression deeper than {MAX_DEPTH}")
        if isinstance(item, str):
            if item[:1] != "$":
                return self._variable(item)
            if item not in self.lets:
                raise Refused(f"{item[:40]} does not stand in let")
            if item not in self.named:
                self.named[item] = self._expression(self.lets[item], depth + 1)
            return self.named[item]
        if not isinstance(item, list):
            return self._immediate(item)
        head = item[0] if item else None
        if not isinstance(head, str) or len(item) > _MAX_ARGUMENTS + 3:
            raise Refused("an expression begins with what it does")
        fields: dict[str, Any] = {"span": self._none(), "dtype": ""}
        if head in BINARY:
            return self._binary(item, fields, depth + 1)
        if head == "call":
            return self._call(item, fields, depth + 1)
        if head in ("!", "cast", "select"):
            return self._other(item, fields, depth + 1)
        if len(item) != 2:
            raise Refused(f"{head[:40]} is no operator, or has another number of operands")
        return self._typed(self._dtype(head), item[1])

    def _binary(self, item: list[Any], fields: dict[str, Any], depth: int) -> int:
        if len(item) != 3:
            raise Refused(f"{item[0]} has two operands")
        symbol, a, b = item[0], self._expression(item[1], depth), self._expression(item[2], depth)
        dtype = self.dtypes[a]
        if dtype != self.dtypes[b] or (dtype != "bool" and symbol in ("&&", "||")):
            raise Refused(f"the operands of {symbol} are {dtype} and {self.dtypes[b]}")
        if b in self.zeros and symbol in _DIVISIONS:
            raise Refused("a division by zero")
        dtype = "bool" if symbol in _TRUTHS else dtype
        fields |= {"dtype": f'"{dtype}"', "a": a, "b": b}
        return self._as(self._add(BINARY[symbol], fields), dtype, 1 + max(self.heights[a], self.heights[b]))

    def _call(self, item: list[Any], fields: dict[str, Any], depth: int) -> int:
        if len(item) < 4 or not isinstance(item[1], str) or item[1] not in CALLS:
            raise Refused("a call of an intrinsic that no map may call, or without operands")
        dtype, key = self._dtype(item[2]), f"call {item[1]}"
        if key not in self.done:
            self.done[key] = self._add("ir.Op", f'"tirx.{item[1]}"')
        arguments = [self._expression(part, depth) for part in item[3:]]
        fields |= {"dtype": f'"{dtype}"', "op": self.done[key]}
        fields |= {"args": self._add("ffi.Array", arguments), "attrs": fields["span"]}
        height = 1 + max(self.heights[index] for index in arguments)
        return self._as(self._add("tirx.Call", fields), dtype, height)

    def _other(self, item: list[Any], fields: dict[str, Any], depth: int) -> int:
        kind = {"!": "tirx.Not", "cast": "tirx.Cast", "select": "tirx.Select"}[item[0]]
        first = first_operand(item)
        if len(item) - first != len(FIELDS[kind]):
            raise Refused(f"{item[0]} has {len(FIELDS[kind])} operands")
        parts = [self._expression(part, depth) for part in item[first:]]
        dtypes = [self.dtypes[index] for index in parts]
        if (kind != "tirx.Cast" and dtypes[0] != "bool") or len(set(dtypes[1:])) > 1:
            raise Refused(f"the operands of {item[0]} are {', '.join(dtypes)}")
        dtype = self._dtype(item[1]) if kind == "tirx.Cast" else dtypes[-1]
        fields |= {"dtype": f'"{dtype}"', **dict(zip(FIELDS[kind], parts, strict=True))}
        return self._as(self._add(kind, fields), dtype, 1 + max(self.heights[index] for index in parts))

    def _immediate(self, item: Any) -> int:
        if isinstance(item, bool):
            return self._typed("bool", int(item))
        if isinstance(item, (int, float)):
            return self._typed(self.dtype if isinstance(item, int) else "float32", item)
        raise Refused("an expression is a number, a name or a list")

    def _typed(self, dtype: str, number: Any) -> int:
        bad = isinstance(number, str) and number in _BAD_FLOATS and "float" in dtype
        kind = "FloatImm" if bad or isinstance(number, float) else "IntImm"
        if not bad and immediate(kind, dtype, number) is None:
            raise Refused(f"{str(number)[:40]} is no {dtype}")
        shown = _BAD_FLOATS[number] if bad else _float(number) if kind == "FloatImm" else str(number)
        fields = {"span": self._none(), "dtype": f'"{dtype}"', "value": shown}
        index = self._add(f"ir.{kind}", fields)
        if number == 0:
            self.zeros.add(index)
        return self._as(index, dtype, 0)


def _float(number: float) -> str:
    """A float as TVM's JSON writer spells it."""
    return f"{number:.1f}" if number.is_integer() and abs(number) < 1 << 53 else f"{number:.17g}"


def _compact(nodes: list[tuple[str, Any]], root: int, version: str) -> str:
    parts = []
    for kind, data in nodes:
        if isinstance(data, dict):
            inner = ",".join([f'"{name}":{value}' for name, value in data.items()])
            parts.append(f'{{"type":"{kind}","data":{{{inner}}}}}')
        elif data is None:
            parts.append(f'{{"type":"{kind}"}}')
        else:
            inner = f"[{','.join(map(str, data))}]" if isinstance(data, list) else data
            parts.append(f'{{"type":"{kind}","data":{inner}}}')
    return f'{{"root_index":{root},"nodes":[{",".join(parts)}],"metadata":{{"tvm_version":{version}}}}}'


def _indented(nodes: list[tuple[str, Any]], root: int, version: str) -> str:
    parts = []
    for kind, data in nodes:
        text = f'    {{\n      "type": "{kind}"'
        if isinstance(data, dict):
            inner = ",\n".join([f'        "{name}": {value}' for name, value in data.items()])
            text += f',\n      "data": {{\n{inner}\n      }}'
        elif isinstance(data, list):
            inner = ",\n".join([f"        {index}" for index in data])
            text += f',\n      "data": [\n{inner}\n      ]' if data else ',\n      "data": []'
        elif data is not None:
            text += f',\n      "data": {data}'
        parts.append(text + "\n    }")
    body = ",\n".join(parts)
    head = f'{{\n  "root_index": {root},\n  "nodes": [\n{body}\n  ],\n'
    return f'{head}  "metadata": {{\n    "tvm_version": {version}\n  }}\n}}'
