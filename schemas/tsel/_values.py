"""The JSON values of a fragment, and the leaves of the tree that they stand for.

A plain value has the type that is usual in its place; any other type is spelled out:

    5 -> IntImm int32          [5] -> array of plain ints        {"IntImm:int64": 5}, {"int": 5}: just that
    true -> IntImm bool        (Split's flags: plain booleans)   {"bool": true}, {"IntImm:bool": 1}
    0.5 -> FloatImm float32    "x" -> string                     {"float": 0.5}, {"FloatImm:float64": 0.5}
    null -> None               [..] -> array                     {"dict": {"k": …}}: a map with string keys

Among inputs a string that looks like a name (`l17`) is one; a literal that does is `{"str": "l17"}`.
"""

from typing import Any

from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_STRING, illegal
from littledragon.schemas.tsel._tree import NAME, NONE, Leaf, immediate

_MAX_DEPTH = 8
_PLAIN = {"int": int, "float": float, "bool": bool}


def _usual(value: Any, plain: bool) -> str:
    """The tag that a plain number or boolean has in its place."""
    if isinstance(value, bool):
        return "bool" if plain else "IntImm:bool"
    if isinstance(value, int):
        return "int" if plain else "IntImm:int32"
    return "FloatImm:float32"


def spell(leaf: Leaf, plain: bool) -> Any:
    """The value that stands for a leaf. `plain`: numbers and booleans are usually not immediates here."""
    tag, value = leaf
    if tag in ("none", "str"):
        return value
    if tag == "array":
        return [spell(item, True) for item in value]
    if tag == "dict":
        return {"dict": {key: spell(item, True) for key, item in value}}
    shown = bool(value) if tag == "IntImm:bool" else value
    return shown if _usual(shown, plain) == tag else {tag: value}


def mean(value: Any, plain: bool, place: str, depth: int = 0) -> Leaf:
    """The leaf that a value stands for.

    Raises:
        TselError: gate `wellformed`, rule `value`.
    """
    if value is None:
        return NONE
    if isinstance(value, str):
        if not _short(value):
            raise illegal("value", place, "a string that is too long or holds a lone surrogate")
        return ("str", value)
    if depth > _MAX_DEPTH:
        raise illegal("value", place, f"a value nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list):
        return ("array", tuple(mean(item, True, place, depth + 1) for item in value))
    if isinstance(value, dict):
        return _tagged(value, plain, place, depth)
    tag = _usual(value, plain)
    if ":" not in tag:
        return (tag, value)
    kind, _, dtype = tag.partition(":")
    leaf = immediate(kind, dtype, int(value) if isinstance(value, bool) else value)
    if leaf is None:
        raise illegal("value", place, f"{value} does not fit in {tag}")
    return leaf


def _short(text: str) -> bool:
    """Whether a trace can hold a string, with the quotes that it carries among inputs."""
    return len(text) <= MAX_STRING - 2 and _json.sound(text)


def _tagged(value: dict[str, Any], plain: bool, place: str, depth: int) -> Leaf:
    ((tag, inner),) = value.items() if len(value) == 1 else (("", None),)
    leaf: Leaf | None = None
    if tag == "dict" and isinstance(inner, dict) and all(_short(key) for key in inner):
        leaf = ("dict", tuple(sorted((key, mean(item, True, place, depth + 1)) for key, item in inner.items())))
        if list(inner) != sorted(inner):
            raise illegal("value", place, "the keys of a map stand in order")
    if tag == "str" and isinstance(inner, str) and NAME.fullmatch(inner):
        return ("str", inner)
    if tag in _PLAIN and type(inner) is _PLAIN[tag]:
        leaf = (tag, inner)
    elif ":" in tag:
        kind, _, dtype = tag.partition(":")
        leaf = immediate(kind, dtype, inner) if kind == "IntImm" or type(inner) is float else None
    if leaf is None or spell(leaf, plain) != value:
        raise illegal("value", place, f"not a value, or one that has a shorter spelling: {str(value)[:60]}")
    return leaf
