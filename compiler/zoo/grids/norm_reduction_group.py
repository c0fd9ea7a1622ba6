"""Configurations of the family before they are sifted: what each one moves, and the cell that it falls in."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from littledragon.compiler.zoo.block import Block, Case, Model, Program, block

MOST_BYTES: Final = 256 << 20
LEAST_ELEMENTS: Final = 4096
MOST_IN_CELL: Final = 6
"""The bounds of what is worth tuning; a run is judged by the tensors that it moves and by what it reduces."""

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


def run(name: str, about: str, form: str, extents: Iterable[int], size: int, **shape: Any) -> Run:
    """A configuration that reduces in the given form (a name of ours) over these extents, and moves `size` bytes."""
    cell = (form, *(extent for extent in extents if extent != 1))
    return Run(Case(name, about, shape), cell, size)


def counted(number: int, what: str) -> str:
    """`1 token`, `8 tokens`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def sifted(groups: Iterable[Group]) -> Iterator[Block]:
    """Blocks of the runs that keep the bounds, each program once, and at most six of a cell; first come, first served."""
    seen: set[Any] = set()
    cells: Counter[tuple[Any, ...]] = Counter()
    for group in groups:
        cases = []
        for run in group.runs:
            program = (group.build, tuple(run.case.shape.items()))
            small = prod(run.cell[1:]) < LEAST_ELEMENTS
            if small or run.bytes > MOST_BYTES or program in seen or cells[run.cell] == MOST_IN_CELL:
                continue
            seen.add(program)
            cells[run.cell] += 1
            cases.append(run.case)
        if cases:
            yield block("norm_reduction", group.operator, group.model, group.part, group.build, *cases)
