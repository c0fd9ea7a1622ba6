"""Index maps: TVM's node-graph text of a `tirx.IndexMap`, and the typed expression DAG that stands for it.

    {"in": ["i0", "i1"], "let": {"$0": 16, "$1": ["//", "i1", "$0"]}, "out": ["$1", ["%", "i1", "$0"]]}

An expression is one of

    5, true, 0.5              an immediate of the map's dtype, of bool, of float32
    "i0", "v31", "$1"         an index variable, a number that the trace has sampled, a shared expression of `let`
    ["+", a, b]               an operator of `BINARY`, of the dtype of its operands (comparisons: bool)
    ["!", a], ["select", condition, a, b], ["cast", dtype, a]
    ["call", name, dtype, a, …]     an intrinsic of `CALLS`
    ["float16", 0.5]          an immediate of that dtype; infinities and NaN are "inf", "-inf" and "nan"

The map's dtype is int32, or int64 where `"dtype"` says so: that of the first index variable. Variables of another
one stand in `"types"`. A second variable of one name is spelled `i'1`. `"inverse": {"in", "out"}` is the inverse map,
where TVM keeps one; `"out": "in"` says that TVM holds one list for both.

What is shared in TVM's graph is shared here, so the text comes back character by character: compact where a map is
an input, indented where it is an attribute. A map has one value and a value one text; what has not is refused.
Values are remembered by their text: nobody may change one.
"""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from littledragon.schemas.tsel._error import illegal
from littledragon.schemas.tsel._mapnodes import (
    MAX_DEPTH,
    REFERENCE,
    Refused,
    first_operand,
    index_variables,
    value_of,
)
from littledragon.schemas.tsel._maptext import text

__all__ = ["REFERENCE", "check", "index_variables", "names", "read", "rename", "write"]

_REMEMBERED: Final = 1024
_MAX_TEXT: Final = 1 << 14
_MAX_VALUE: Final = 1 << 11
"""Characters of a text, and of a value as JSON, that are remembered: a value's text may be 30 times as long."""


def read(spelled: str, version: str, place: str) -> dict[str, Any]:
    """The value of a map's text. It is remembered: do not change it.

    Raises:
        TselError: gate `wellformed`, rule `map`: not an index map, or not one that its value gives back exactly.
    """
    try:
        value: dict[str, Any] = (_read if len(spelled) <= _MAX_TEXT else _read.__wrapped__)(spelled, version)
    except Refused as refused:
        raise illegal("map", place, str(refused)) from None
    return value


def check(value: Any, place: str) -> None:
    """Whether a value is a map's, and the one spelling of it.

    Raises:
        TselError: gate `wellformed`, rule `map`.
    """
    key = _key(value, place)
    try:
        (_check if len(key) <= _MAX_VALUE else _check.__wrapped__)(key)
    except Refused as refused:
        raise illegal("map", place, str(refused)) from None


def write(value: Any, version: str, place: str, indent: int | None) -> str:
    """TVM's text of a map. `indent`: None (an input) or 2 (an attribute).

    Raises:
        TselError: gate `wellformed`, rule `map`: not a map's value.
    """
    key = _key(value, place)
    try:
        return _text(key, version, indent is not None)
    except Refused as refused:
        raise illegal("map", place, str(refused)) from None


def names(value: Any) -> frozenset[str]:
    """The sampled numbers that a map refers to, as it spells them: all variables that are no index variables."""
    own = index_variables(value)
    return frozenset(name for name in _variables(value) if name not in own)


def rename(value: Any, f: Callable[[str], str]) -> Any:
    """The value with every sampled number called `f(name)`: from trace names to coordinates, and back.

    Raises:
        TselError: gate `wellformed`, rule `map`: an index variable has the new name, or the value is nested too deep.
    """
    own = index_variables(value)
    if not isinstance(value, dict) or all(name in own for name in _variables(value)):
        return value

    def called(name: str) -> str:
        new = f(name)
        if new in own:
            raise illegal("map", "map", f"an index variable is called {new}, as the trace calls {name[:40]}")
        return new

    def other(item: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise illegal("map", "map", f"an expression deeper than {MAX_DEPTH}")
        if isinstance(item, str):
            return item if item in own or item[:1] == "$" else called(item)
        if not isinstance(item, list):
            return item
        first = first_operand(item)
        return [*item[:first], *(other(part, depth + 1) for part in item[first:])]

    def several(items: Any) -> Any:
        return [other(item) for item in items] if isinstance(items, list) else items

    changed = dict(value)
    for key, part in value.items():
        if key == "out":
            changed[key] = several(part)
        elif key == "inverse" and isinstance(part, dict):
            changed[key] = {k: several(v) if k == "out" else v for k, v in part.items()}
        elif key == "let" and isinstance(part, dict):
            changed[key] = {k: other(v) for k, v in part.items()}
        elif key == "types" and isinstance(part, dict):
            changed[key] = {k if k in own else called(k): v for k, v in part.items()}
    return changed


def _variables(value: Any) -> Iterator[str]:
    """Every variable that an expression of a value names."""
    if not isinstance(value, dict):
        return
    lets, inverse = value.get("let"), value.get("inverse")
    found = [value.get("out"), inverse.get("out") if isinstance(inverse, dict) else None]
    stack = [item for part in found if isinstance(part, list) for item in part]
    stack += lets.values() if isinstance(lets, dict) else ()
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if item[:1] != "$":
                yield item
        elif isinstance(item, list):
            stack += item[first_operand(item) :]


def _key(value: Any, place: str) -> str:
    """A value as text: what it is remembered by."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise illegal("map", place, "not a JSON value, or one that is nested too deep") from None


@lru_cache(_REMEMBERED)
def _check(key: str) -> None:
    again = value_of(json.loads(_text(key, "", False)))
    if key != json.dumps(again, separators=(",", ":")):
        raise Refused("a map that has another spelling")


@lru_cache(_REMEMBERED)
def _read(spelled: str, version: str) -> dict[str, Any]:
    try:
        value = value_of(json.loads(spelled))
        key = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except Refused:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError):
        raise Refused("not an index map") from None
    if _text(key, version, spelled[1:2] == "\n") != spelled:
        raise Refused("an index map that its expressions do not give back exactly")
    return value


def _text(key: str, version: str, indent: bool) -> str:
    found: str = (_write if len(key) <= _MAX_VALUE else _write.__wrapped__)(key, version, indent)
    return found


@lru_cache(_REMEMBERED)
def _write(key: str, version: str, indent: bool) -> str:
    return text(json.loads(key), version, indent)
