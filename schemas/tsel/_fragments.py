"""The `json` notation of one instruction, and back (paper, appendix): `{"k":"Split","i":["t0.2.1",4,null],"o":"LL"}`.

`k` kind, `i` inputs, `a` attributes, `o` signature of what it makes, `d` decision. References are coordinates: edit,
step in it, output; `.0.1` stays in the edit. Left out: inputs and attributes at the end that have their defaults,
a signature that follows from the rest, and all inputs of a split of the tile just before it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from littledragon.schemas.graph import Instruction
from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_OUTPUTS, illegal
from littledragon.schemas.tsel._primitives import NAMED, NEEDED, PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._short import implied_split, probabilities, split_inputs
from littledragon.schemas.tsel._tree import LETTERS, NAME

COORDINATE: Final = re.compile(r"(t[0-9]{1,6})?\.(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})")
_KEYS: Final = ("k", "i", "a", "o", "d")
_BLOCK: Final = Slot("block", "B")


def write(
    instruction: Instruction, before: Instruction | None, coordinates: Mapping[str, str], edit: str
) -> tuple[str, str]:
    """The fragment of a well-formed instruction up to its decision, and the decision's factors or index (or "").

    `coordinates` of all names so far; `before` is the instruction before it in the trace.
    """
    kind, inputs, attrs, _, decision = instruction
    primitive = PRIMITIVES[kind]
    parts: dict[str, Any] = {"k": kind}
    if not implied_split(instruction, before):
        given = [_refer(value, slot, coordinates, edit) for value, slot in _paired(inputs, primitive)]
        _trim(given, primitive.inputs, {})
        if given:
            parts["i"] = given
    fixed = list(attrs)
    _trim(fixed, primitive.attrs, _derived(primitive, attrs, decision))
    if fixed:
        parts["a"] = fixed
    if primitive.outputs.endswith("*") and instruction.outputs:
        parts["o"] = instruction.signature
    text = _json.write(parts)
    if decision is None:
        return text, ""
    if primitive.decision == "tile":
        start = f'{text[:-1]},"d":{{"extent":{decision["extent"]},"factors":'
        return start, _json.write(decision["factors"])
    return f'{text[:-1]},"d":', str(decision)


def _paired(inputs: tuple[Any, ...], primitive: Primitive) -> list[tuple[Any, Slot]]:
    slots = primitive.inputs
    return [(value, slots[min(index, len(slots) - 1)]) for index, value in enumerate(inputs)]


def _refer(value: Any, slot: Slot, coordinates: Mapping[str, str], edit: str) -> Any:
    """A value with coordinates for names; a text that looks like coordinates is spelled out."""
    if type(value) is tuple:
        return tuple([_refer(item, _BLOCK, coordinates, edit) for item in value])
    if type(value) is list and slot.type == "value":
        return [_refer(item, slot, coordinates, edit) for item in value]
    if type(value) is not str or slot.type not in NAMED:
        return value
    if NAME.fullmatch(value):
        where = coordinates[value]
        return where.removeprefix(edit) if where.startswith(f"{edit}.") else where
    return {"str": value} if COORDINATE.fullmatch(value) else value


def _derived(primitive: Primitive, attrs: tuple[Any, ...], decision: Any) -> dict[str, Any]:
    """Defaults that follow from the rest of an instruction."""
    if primitive.decision == "tile" and isinstance(decision, dict) and isinstance(decision.get("factors"), list):
        return {"n": len(decision["factors"]) + 1}
    return {"probs": probabilities(attrs[0])} if primitive.decision == "index" and attrs else {}


def _trim(values: list[Any], slots: tuple[Slot, ...], derived: dict[str, Any]) -> None:
    """Takes defaults off the end."""
    while values and len(values) <= len(slots):
        slot = slots[len(values) - 1]
        default = derived.get(slot.name, slot.default)
        if default is NEEDED or values[-1] != default or type(values[-1]) is not type(default):
            return
        values.pop()


def read(value: Any, before: Instruction | None, names: Mapping[str, str], edit: str, first: int) -> Instruction:
    """The instruction of a fragment. `names` by coordinates; `first` is the number of outputs so far.

    Raises:
        TselError: without a place, gate `wellformed`, rule `grammar`, `kind` or `reference`.
    """
    kind = value.get("k") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not set(value) <= set(_KEYS):
        raise illegal("grammar", "", 'a fragment is an object with "k" and some of i, a, o, d')
    primitive = PRIMITIVES.get(kind)
    if primitive is None:
        raise illegal("kind", "", f"no schedule primitive is called {kind[:40]}")
    for key, of in (("i", list), ("a", list), ("o", str)):
        if key in value and (not isinstance(value[key], of) or not value[key] or len(value[key]) > MAX_OUTPUTS):
            raise illegal("grammar", "", f'"{key}" is left out or a {of.__name__} with content, at most {MAX_OUTPUTS}')
    decision = value.get("d")
    if "d" in value and decision is None:
        raise illegal("grammar", "", '"d" is left out or a decision')
    slots = primitive.inputs
    inputs = [
        _name(v, slots[min(i, len(slots) - 1)], names, edit) for i, v in enumerate(value.get("i", ()) if slots else ())
    ]
    if kind == "Split" and "i" not in value:
        inputs = list(split_inputs(before))
    elif not slots and "i" in value:
        raise illegal("arity", "", "0 inputs are expected")
    _fill(inputs, slots, {})
    attrs = list(value.get("a", ()))
    _fill(attrs, primitive.attrs, _derived(primitive, tuple(attrs), decision))
    signature = value.get("o", "")
    if not primitive.outputs.endswith("*"):
        told = _signature(primitive, inputs, attrs)
        if told is None:
            told = signature
        if signature not in ("", told):
            raise illegal("outputs", "", f"the output signature is {told or 'left out'}")
        signature = told
    if not set(signature) <= set(LETTERS):
        raise illegal("grammar", "", "an output signature is of the letters B, L and E")
    outputs = tuple([f"{LETTERS[letter]}{first + i}" for i, letter in enumerate(signature)])
    return Instruction(kind, tuple(inputs), tuple(attrs), outputs, decision)


def _name(value: Any, slot: Slot, names: Mapping[str, str], edit: str) -> Any:
    """A value with names for coordinates."""
    if type(value) is list and (slot.type == "blocks" or slot.lists):
        return tuple([_name(item, _BLOCK, names, edit) for item in value])
    if slot.type == "value" and type(value) is list:
        return [_name(item, slot, names, edit) for item in value]
    if slot.type == "value" and type(value) is dict and list(value) == ["str"] and type(value["str"]) is str:
        return value["str"] if COORDINATE.fullmatch(value["str"]) else value
    if type(value) is not str or slot.type not in NAMED:
        return value
    if COORDINATE.fullmatch(value):
        name = names.get(f"{edit}{value}" if value[0] == "." else value)
        if name is None:
            raise illegal("reference", "", f"{value} is not defined before this instruction")
        return name
    if NAME.fullmatch(value):
        if slot.type == "value":
            raise illegal("grammar", "", f'a text that looks like a name is written {{"str":"{value}"}}')
        raise illegal("reference", "", f"{slot.name} must be a reference such as t0.1.0")
    return value


def _fill(values: list[Any], slots: tuple[Slot, ...], derived: dict[str, Any]) -> None:
    """Puts defaults that were left out at the end."""
    for slot in slots[len(values) :]:
        default = derived.get(slot.name, slot.default)
        if default is NEEDED:
            return
        values.append(default)


def _signature(primitive: Primitive, inputs: list[Any], attrs: list[Any]) -> str | None:
    """The signature of a kind whose outputs follow from the rest; None where that cannot be told."""
    letters = primitive.outputs
    if not letters.endswith("="):
        return letters
    count = attrs[0] if letters[0] == "E" and attrs else len(inputs) - 1
    return letters[0] * count if type(count) is int and 0 <= count <= MAX_OUTPUTS else None
