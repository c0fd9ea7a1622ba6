"""Whether one value fits its slot of a primitive, and the leaf that it stands for."""

import math
from typing import Any

from littledragon.schemas.graph import Instruction
from littledragon.schemas.tsel import _values
from littledragon.schemas.tsel._error import MAX_OUTPUTS, TselError, illegal
from littledragon.schemas.tsel._primitives import Slot
from littledragon.schemas.tsel._tree import Leaf


def wrong(rule: str, message: str) -> TselError:
    """An error of the gate `wellformed` whose place `lower` adds."""
    return illegal(rule, "", message)


def number(value: Any) -> int:
    """The number of an integer slot that has been checked, whether it is plain or tagged."""
    return int(next(iter(value.values())) if isinstance(value, dict) else value)


def listed(slot: Slot, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) > MAX_OUTPUTS:
        raise wrong("type", f"{slot.name} must be a list of at most {MAX_OUTPUTS}")
    return list(value)


def _likely(numbers: list[float]) -> bool:
    """Whether these can be probabilities."""
    return all(0 <= number <= 1.001 for number in numbers) and 0 < math.fsum(numbers) <= 1.001


def typed(slot: Slot, value: Any) -> Leaf:
    """The leaf of an integer, flag, string or list, checked against its slot."""
    types = {*map(type, value)} if type(value) is list and len(value) <= MAX_OUTPUTS else set()
    if slot.type == "ints" and types == {int} and slot.low <= min(value) and max(value) <= slot.high:
        return ("array", tuple([("int", item) for item in value]))
    if slot.type == "floats" and types == {float} and _likely(value):
        return ("array", tuple([("FloatImm:float32", item) for item in value]))
    if isinstance(value, dict) and "str" in value:
        raise wrong("value", f"{slot.name}: a text here is written as it stands")
    leaf = _values.mean(value, slot.plain, "")
    tag, inner = leaf
    if slot.type in ("ints", "floats"):
        listed(slot, value)
        if slot.type == "floats":
            fits = all(t.startswith(("FloatImm:", "float")) for t, _ in inner) and _likely([v for _, v in inner])
        else:
            fits = bool(inner or slot.empty) and all(_integer(t) and slot.low <= v <= slot.high for t, v in inner)
    elif slot.type == "str":
        fits = tag == "str" and (slot.pattern is None or slot.pattern.fullmatch(inner) is not None)
    elif slot.type == "flag":
        fits = (_integer(tag) or tag in ("bool", "IntImm:bool")) and inner in (0, 1)
    else:
        fits = _integer(tag) and slot.low <= inner <= slot.high
    if not fits:
        detail = f" from {slot.low} to {slot.high}" if slot.type in ("int", "ints", "factor") else ""
        raise wrong("range", f"{slot.name}: {str(value)[:60]} is not of type {slot.type}{detail}")
    return leaf


def _integer(tag: str) -> bool:
    return tag == "int" or (tag.startswith("IntImm:") and tag != "IntImm:bool")


def tile(instruction: Instruction) -> list[int]:
    """All factors of a sampled tile, the last one derived.

    Raises:
        TselError: gate `wellformed`, rule `tile`.
    """
    decision = instruction.decision
    if not isinstance(decision, dict) or set(decision) != {"extent", "factors"}:
        raise wrong("tile", "a tile's decision holds extent and factors")
    extent, factors = decision["extent"], decision["factors"]
    if type(extent) is not int or not 1 <= extent < 1 << 31:
        raise wrong("tile", "the extent must be an integer of at least 1")
    n = number(instruction.attrs[0])
    if not isinstance(factors, list) or len(factors) != n - 1:
        raise wrong("tile", f"{n - 1} factors are expected, the last of {n} follows from the extent")
    if not all(type(factor) is int and factor >= 1 for factor in factors):
        raise wrong("tile", "a factor must be an integer of at least 1")
    product = math.prod(factors)
    if extent % product:
        raise wrong("tile", f"the factors {' * '.join(map(str, factors))} do not divide the extent {extent}")
    full = [*factors, extent // product]
    if instruction.kind == "SamplePerfectTile":
        limit = number(instruction.attrs[1])
        if limit != -1 and full[-1] > limit:
            raise wrong("tile", f"the last factor is {full[-1]}, at most {limit} is allowed")
    else:
        position, inner = number(instruction.attrs[1]), number(instruction.attrs[2])
        if math.prod(full[position:]) % inner:
            raise wrong("tile", f"the inner part is not a multiple of {inner}")
    return full
