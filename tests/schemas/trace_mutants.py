"""Mutants of traces as `save_json` text: graphs of nodes that refer to each other by index."""

import json
import random
from collections.abc import Callable
from typing import Any

from text_mutants import TEXTS

_CHANGES = dict(TEXTS)
_DTYPES = ("int32", "int64", "bool", "uint8", "float32", "float64", "handle", "int7", "int32x4", "")
_STRINGS = (
    "b0",
    "l1",
    "v5",
    "l99",
    "None",
    '"x"',
    "root",
    "Fuse",
    "EnterPostproc",
    "{}",
    '{"root_index":0}',
    "",
    '"',
    "\x00",
)


def retrace(draw: random.Random, text: str) -> tuple[str, str]:
    """Another trace, and what was done."""
    if draw.random() < 0.15:
        name = draw.choice(("text number", "text odd", "text cut", "text swap", "text string"))
        return f"trace {name}", _CHANGES[name](draw, text)
    graph = json.loads(text)
    done = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        name, change = draw.choice(_TRACES)
        change(draw, graph, graph["nodes"])
        done.append(name)
    return "+".join(done), json.dumps(graph)


def _any(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    """Whatever a node holds replaced by something odd."""
    node = draw.choice(nodes)
    data = node.get("data")
    odd = draw.choice((None, True, -1, 0, 1, len(nodes), len(nodes) - 1, 2**70, 0.5, 1e308, "x", "b0", "None", [], {}))
    if isinstance(data, list) and data:
        data[draw.randrange(len(data))] = odd
    elif isinstance(data, dict) and data:
        data[draw.choice(list(data))] = odd
    else:
        node[draw.choice(("type", "data", "x"))] = odd


def _arrays(nodes: list[Any]) -> list[dict[str, Any]]:
    return [node for node in nodes if node.get("type") == "ffi.Array" and isinstance(node.get("data"), list)]


def _redirect(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    """One index of an array names another node, of the same type where it can."""
    arrays = [node["data"] for node in _arrays(nodes) if node["data"]]
    if arrays:
        data = draw.choice(arrays)
        at = draw.randrange(len(data))
        old = data[at] if isinstance(data[at], int) and 0 <= data[at] < len(nodes) else 0
        same = [i for i, node in enumerate(nodes) if node.get("type") == nodes[old].get("type")]
        data[at] = draw.choice(same) if draw.random() < 0.8 else draw.randrange(len(nodes))


def _list(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    """An item of an array away, twice, or two exchanged: instructions, inputs, outputs, decisions."""
    arrays = [node["data"] for node in _arrays(nodes) if node["data"]]
    if not arrays:
        return
    data = draw.choice((draw.choice(arrays), max(arrays, key=len), arrays[-1]))
    at, to, change = draw.randrange(len(data)), draw.randrange(len(data)), draw.randrange(3)
    if change == 0:
        del data[at]
    elif change == 1:
        data.insert(to, data[at])
    else:
        data[at], data[to] = data[to], data[at]


def _string(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    strings = [node for node in nodes if node.get("type") == "ffi.String"]
    if strings:
        node = draw.choice(strings)
        node["data"] = draw.choice((draw.choice(strings).get("data"), draw.choice(_STRINGS), f"{node.get('data')}0"))


def _number(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    numbers = [node for node in nodes if node.get("type") in ("int", "float", "ir.IntImm", "ir.FloatImm")]
    if not numbers:
        return
    node = draw.choice(numbers)
    value: Any = draw.choice((0, 1, -1, 2, 4, 64, 1 << 31, 1 << 40, 1 << 63, 0.5, 1e308, True, None))
    if isinstance(node.get("data"), dict):
        node["data"][draw.choice(("value", "value", "value", "dtype"))] = value
        if draw.random() < 0.2:
            node["data"]["dtype"] = draw.choice(_DTYPES)
    else:
        node["data"] = value


def _type(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    draw.choice(nodes)["type"] = draw.choice(
        ("int", "float", "bool", "None", "ffi.String", "ffi.Array", "ffi.Map", "x")
    )


def _cycle(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    arrays = _arrays(nodes)
    if arrays:
        draw.choice(arrays)["data"].append(nodes.index(draw.choice(arrays)))


def _blown(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    """Few nodes that stand for very many, or for a deep tree."""
    width = draw.choice((1, 2, 50))
    for _ in range(draw.choice((4, 14, 40, 2000))):
        nodes.append({"type": "ffi.Array", "data": [len(nodes) - 1] * width})
    if draw.random() < 0.5:
        graph["root_index"] = len(nodes) - 1
    else:
        _redirect(draw, graph, nodes)


def _head(draw: random.Random, graph: dict[str, Any], nodes: list[Any]) -> None:
    key = draw.choice(("root_index", "metadata", "x"))
    graph[key] = draw.choice((0, -1, len(nodes), [], {}, {"tvm_version": "0.27.0.post1"}, None, "x"))


_TRACES: list[tuple[str, Callable[[random.Random, dict[str, Any], list[Any]], None]]] = [
    *(("trace any", _any), ("trace redirect", _redirect), ("trace redirect", _redirect), ("trace list", _list)),
    *(("trace list", _list), ("trace string", _string), ("trace string", _string), ("trace number", _number)),
    *(("trace number", _number), ("trace type", _type)),
    *(("trace cycle", _cycle), ("trace blown", _blown), ("trace head", _head)),
]
