"""What both notations leave out, because the rest of a text tells it, and short spellings that both have."""

import re
from collections.abc import Iterable
from typing import Any, Final

from littledragon.schemas.graph import Instruction
from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import illegal
from littledragon.schemas.tsel._primitives import PRIMITIVES

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*( [A-Za-z_][A-Za-z0-9_]*)* -( [A-Za-z_][A-Za-z0-9_]*)+")


def implied_split(instruction: Instruction, before: Instruction | None) -> bool:
    """Whether an instruction splits the loop of the tile sampled just before it, by that tile's numbers."""
    return instruction.kind == "Split" and _is_tile(before) and instruction.inputs == split_inputs(before)


def split_inputs(before: Instruction | None) -> tuple[Any, ...]:
    """The inputs of a split that has none of its own: the loop and the numbers of the tile sampled just before it.

    Raises:
        TselError: without a place, gate `wellformed`, rule `grammar`: there is no such tile.
    """
    if before is None or not _is_tile(before):
        raise illegal("grammar", "", "a split without inputs follows the tile whose numbers it takes")
    return (before.inputs[0], *before.outputs)


def _is_tile(instruction: Instruction | None) -> bool:
    return instruction is not None and instruction.kind.endswith("Tile") and bool(instruction.inputs)


def probabilities(candidates: Any) -> list[float]:
    """Even ones, as TVM's rules write them."""
    return [1.0 / len(candidates)] * len(candidates) if isinstance(candidates, list) and candidates else []


def kind(instructions: Iterable[Instruction]) -> str:
    """The kind of an edit that its first instruction tells, look-ups and numbers drawn left aside."""
    for instruction in instructions:
        primitive = PRIMITIVES.get(instruction.kind)
        if primitive is not None and primitive.edit not in ("lookup", "sample"):
            return primitive.edit
    return "lookup"


def write_map(value: dict[str, Any]) -> str:
    """A map as text: `i j k - k j` where it only picks and orders variables, its JSON otherwise."""
    names, results = value["in"], value["out"]
    plain = set(value) == {"in", "out"} and type(results) is list
    if plain and all(type(result) is str and result in names for result in results):
        text = f"{' '.join(names)} - {' '.join(results)}"
        if _PLAIN.fullmatch(text):
            return text
    return _json.write(value)


def read_map(text: str, place: str) -> Any:
    """The value of a map's text.

    Raises:
        TselError: gate `wellformed`, rule `json`.
    """
    if _PLAIN.fullmatch(text):
        names, _, results = text.partition(" - ")
        return {"in": names.split(" "), "out": results.split(" ")}
    return _json.read(text, place, "wellformed")
