"""How far a text comes without the compiler: partial credit for a reward (paper, two-stage training)."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from littledragon.schemas.graph import Graph
from littledragon.schemas.tsel import _json, _line, _lower, _parse, _xml
from littledragon.schemas.tsel._error import TselError
from littledragon.schemas.tsel._xml import Document

_TILES: Final = ("SamplePerfectTile", "SamplePartitionedTile")


@dataclass(frozen=True)
class Diagnosis:
    """What the rules of the language say of a text.

    gate: the first gate that refuses it, or None. rule, place, reason: of that refusal; the reason is one line.
    f_div: the share of the tiles in its payload whose factors multiply to their extent; 0 where there are none.
    instructions: those that it spells, derived post-processing left aside; 0 where a gate refuses it.
    """

    gate: Literal["parsed", "wellformed"] | None
    rule: str | None
    place: str | None
    reason: str | None
    f_div: float
    instructions: int


def diagnose(text: str | bytes) -> Diagnosis:
    """The diagnosis of a text, whatever it is."""
    try:
        document = _xml.read(text)
    except TselError as error:
        return Diagnosis(error.gate, error.rule, error.place, str(error), 0.0, 0)
    try:
        graph = _parse.parse(document)
        _lower.lower(graph)
    except TselError as error:
        return Diagnosis(error.gate, error.rule, error.place, str(error), _share(_emitted(document)), 0)
    tiles = [i.decision for edit in graph.edits for i in edit.instructions if i.kind in _TILES]
    return Diagnosis(None, None, None, None, _share(tiles), _count(graph))


def _count(graph: Graph) -> int:
    return sum(len(edit.instructions) for edit in graph.edits)


def _share(tiles: list[Any]) -> float:
    return sum(map(_divides, tiles)) / len(tiles) if tiles else 0.0


def _divides(decision: Any) -> bool:
    """Whether a tile's factors, the last one derived, multiply to its extent."""
    if not isinstance(decision, dict) or not isinstance(decision.get("factors"), list):
        return False
    if len(decision["factors"]) > 64:
        return False
    numbers = [decision.get("extent"), *decision["factors"]]
    if not all(type(number) is int and number >= 1 for number in numbers):
        return False
    return bool(numbers[0] % math.prod(numbers[1:]) == 0)


def _emitted(document: Document) -> list[Any]:
    """The decisions of all tiles of a text that breaks a rule; None for a tile that cannot be read."""
    found: list[Any] = []
    json = document.attributes["notation"] == "json"
    for node in document.nodes:
        if node.tag != "trace_sequence":
            continue
        for line in node.text.split("\n"):
            if json:
                found += _of_fragment(line)
            elif _line.kind(line) in _TILES:
                found.append(_of_line(line))
    return found


def _of_fragment(line: str) -> list[Any]:
    try:
        value = _json.read(line, "")
    except TselError:
        return [None] if any(f'"k":"{kind}"' in line for kind in _TILES) else []
    return [value.get("d")] if isinstance(value, dict) and value.get("k") in _TILES else []


def _of_line(line: str) -> Any:
    try:
        extent, factors = _line.tile(line)
    except TselError:
        return None
    return {"extent": extent, "factors": factors}
