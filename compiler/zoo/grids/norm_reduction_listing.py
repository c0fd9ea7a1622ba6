"""Configurations of the family before they are sifted: what each one moves, and the cell that it falls in."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Any, Final

from littledragon.compiler.zoo.block import Block, Case, Model, Program, block
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, MIXTURES, Decoder, Encoder

MOST_BYTES: Final = 255 << 20
LEAST_ELEMENTS: Final = 4096
MOST_IN_CELL: Final = 6
"""The bounds of what is worth tuning. A run is judged by the large tensors that it moves, so a mebibyte is left for the
vectors beside them, and by the elements that it reduces."""

LANGUAGE: Final[tuple[Decoder | Encoder, ...]] = (*DECODERS, *MIXTURES, *ENCODERS)
"""Every transformer of the tables."""

APART: Final = log(1.1)
"""Extents are told apart in steps of so much, in logarithms: widths of 4544 and 4608 tell a search nothing new."""

SIZE: Final[Mapping[str, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
HALF: Final = ("bfloat16", "float16")
"""Language and diffusion models are published in one of these and served in either: not every GPU has bfloat16."""
MIXED: Final = ("float16", "float32")
"""Encoders and convolutional networks are published in float32 and served in float16."""


@dataclass(frozen=True)
class Run:
    """One configuration of an operator. `cell` is how its largest reduction reads, and that reduction's extents."""

    case: Case
    cell: tuple[Any, ...]
    bytes: int


@dataclass(frozen=True)
class Group:
    """What becomes one block, if something of it is left: an operator of one model."""

    operator: str
    model: Model
    part: str
    build: Callable[..., Program]
    runs: Iterable[Run]


def run(name: str, about: str, form: str, extents: Iterable[int], size: int, /, **shape: Any) -> Run:
    """A configuration that reduces in the given form (a name of ours) over these extents, and moves `size` bytes."""
    cell = (form, *(extent for extent in extents if extent != 1))
    return Run(Case(name, about, shape), cell, size)


def counted(number: int, what: str) -> str:
    """`1 token`, `8 tokens`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def sifted(groups: Iterable[Group]) -> Iterator[Block]:
    """Blocks of the runs that keep the bounds: each program once, at most six of a cell, and of cells of one operator
    that all but coincide the first alone."""
    seen: set[Any] = set()
    cells: Counter[tuple[Any, ...]] = Counter()
    nearby: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for group in groups:
        cases = []
        for run in group.runs:
            form, *extents = run.cell
            program = (group.build, tuple(run.case.shape.items()))
            if prod(extents) < LEAST_ELEMENTS or run.bytes > MOST_BYTES or program in seen:
                continue
            step = (group.operator, form, *(round(log(extent) / APART) for extent in extents))
            if cells[run.cell] == MOST_IN_CELL or nearby.setdefault(step, run.cell) != run.cell:
                continue
            seen.add(program)
            cells[run.cell] += 1
            cases.append(run.case)
        if cases:
            yield block("norm_reduction", group.operator, group.model, group.part, group.build, *cases)
