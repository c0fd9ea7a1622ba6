"""How this family lists its cases: one by one, near twins left out, one block for each part of an operator."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo.block import Block, Case, Model, Program, block

MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 300e9
APART: Final = 1.25
"""Two shapes of one operator whose numbers all lie within about this factor of each other are near twins."""

WIDTH: Final = {"uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""


class Entry(NamedTuple):
    """A case that may be listed: of a model, in a part of it, with what its arguments take and its sums cost."""

    model: Model
    part: str
    name: str
    about: str
    bytes: float
    flops: float
    shape: Mapping[str, Any]


def listed(
    operator: str, build: Callable[..., Program], entries: Iterable[Entry], apart: float = APART
) -> Iterator[Block]:
    """The blocks of one operator, in order: too large cases and near twins of earlier ones are left out."""
    seen: set[tuple[Any, ...]] = set()
    parts: dict[str, tuple[Model, list[Case]]] = {}
    step = math.log(apart)
    for entry in entries:
        rungs = tuple(round(math.log(v) / step) if type(v) is int and v > 0 else v for v in entry.shape.values())
        if rungs in seen or entry.bytes > MOST_BYTES or entry.flops > MOST_FLOPS:
            continue
        seen.add(rungs)
        parts.setdefault(entry.part, (entry.model, []))[1].append(Case(entry.name, entry.about, entry.shape))
    for part, (model, cases) in parts.items():
        yield block("quant_irregular", operator, model, part, build, *cases)
