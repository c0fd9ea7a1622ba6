"""How this family lists its cases: one by one, near twins left out, one block for each part of an operator."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from littledragon.compiler.zoo.block import Block, Case, Model, Program, block

T = TypeVar("T")

MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 300e9
APART: Final = 1.5
"""Shapes of one operator whose numbers all lie within this factor of each other are near twins."""

WIDTH: Final = {"uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""
SHORT: Final = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""Types as case names have them, where they differ."""


class Entry(NamedTuple):
    """A case that may be listed: of a model, in a part of it, with what its arguments take and its sums cost."""

    model: Model
    part: str
    name: str
    about: str
    bytes: float
    flops: float
    shape: Mapping[str, Any]


def apart(found: Iterable[T], numbers: Callable[[T], tuple[int, ...]], factor: float = APART) -> list[T]:
    """What is found, without near twins: one whose numbers all lie within a factor of an earlier one's is left out."""
    kept: list[T] = []
    seen: set[tuple[int, ...]] = set()
    bounds: list[list[tuple[float, float]]] = []
    for one in found:
        place = numbers(one)
        if place in seen:
            continue
        seen.add(place)
        for other in bounds:
            if all(low < number < high for number, (low, high) in zip(place, other, strict=True)):
                break
        else:
            kept.append(one)
            bounds.append([(number / factor, number * factor) for number in place])
    return kept


def listed(operator: str, build: Callable[..., Program], entries: Iterable[Entry]) -> Iterator[Block]:
    """The blocks of one operator, in order; a case that is too large, or that was listed before, is left out."""
    seen: set[tuple[Any, ...]] = set()
    parts: dict[str, tuple[Model, list[Case]]] = {}
    for entry in entries:
        values = tuple(entry.shape.values())
        if values in seen or entry.bytes > MOST_BYTES or entry.flops > MOST_FLOPS:
            continue
        seen.add(values)
        parts.setdefault(entry.part, (entry.model, []))[1].append(Case(entry.name, entry.about, entry.shape))
    for part, (model, cases) in parts.items():
        yield block("quant_irregular", operator, model, part, build, *cases)
