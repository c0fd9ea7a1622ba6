"""JSON from outside, read with bounds; JSON that can stand inside XML, written.

Refused: NaN and infinities, numbers too large for a double or for 64 bits, repeated keys, lone surrogates,
deep nesting (looked for before the recursive reader starts).
"""

import json
import math
import re
from typing import Any, Literal

import orjson

from littledragon.schemas.tsel._error import MAX_JSON_DEPTH, TselError

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or one that is not closed: it always matches, so the search for brackets is linear."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_BRACKETS = re.compile(r"[\[\]{}]")
_UNSAFE = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class _Refused(ValueError):
    pass


def quick(text: str, place: str) -> Any:
    """The value of a long JSON text, ten times as fast as `read`. Whole numbers of more than 64 bits come as floats,
    nesting may be a thousand deep, and of keys that stand twice the last counts: the caller looks for the first two.

    Raises:
        TselError: gate `parsed`, rule `json`.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TselError("parsed", "json", place, f"not JSON: {error}") from None


def read(text: str, place: str, gate: Literal["parsed", "wellformed"] = "parsed") -> Any:
    """The value that a JSON text spells.

    Raises:
        TselError: rule `json`.
    """
    depth = deepest = 0
    for match in _BRACKETS.finditer(_STRING.sub("", text)):
        depth += 1 if match[0] in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_JSON_DEPTH:
        raise TselError(gate, "json", place, f"JSON is nested deeper than {MAX_JSON_DEPTH}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except (ValueError, RecursionError) as error:
        raise TselError(gate, "json", place, f"not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a key stands twice in one object")
    return value


def _constant(text: str) -> Any:
    raise _Refused(f"{text} is not a finite number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"{text[:20]} is too large")
    return value


def _int(text: str) -> int:
    if text == "-0" or len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise _Refused(f"{text[:20]} is no number of 64 bits")
    return int(text)


def sound(text: str) -> bool:
    """Whether a string can be written as UTF-8 (holds no lone surrogate)."""
    return text.isascii() or _SURROGATES.search(text) is None


def write(value: Any) -> str:
    """Compact JSON that needs no escaping in XML: `<`, `>`, `&` and what XML forbids are `\\u` escapes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
