"""What the grid of vision networks has listed so far, in blocks of one operator of one network."""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, Final
from zlib import crc32

from littledragon.compiler.zoo.block import MOST_CASES, Block, Case, Model, Program, block

MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 100e9
"""A third of what a workload may have: with more, one run of the plain program takes a CPU minutes."""
LEAST_FLOPS: Final = 2 * 4096
"""So that there are 4,096 iterations, of two operations or more."""
ELEMENTWISE: Final = 256 * 1024
"""Elements up to which the search has a choice for a program without reduction: one thread block of threads each."""
WIDTHS: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}

Sizes = tuple[int, ...]


class Listing:
    """The cases so far, by operator and network."""

    def __init__(self) -> None:
        self._cases: dict[tuple[str, str], tuple[Model, Callable[..., Program], list[Case]]] = {}
        self._seen: set[Any] = set()

    def add(
        self,
        operator: str,
        key: str,
        model: Model,
        build: Callable[..., Program],
        name: str,
        about: str,
        *,
        elements: Iterable[int],
        flops: int,
        **shape: Any,
    ) -> None:
        """List a case, unless it is too small or too large, or equals one that is listed.

        elements: of each argument, counted as of the program's dtype; flops: of its largest loop.
        """
        size = WIDTHS[shape.get("dtype", "float32")] * sum(elements)
        same = (build, *sorted(shape.items()))
        if size > MOST_BYTES or not LEAST_FLOPS <= flops <= MOST_FLOPS or same in self._seen:
            return
        self._seen.add(same)
        _, _, cases = self._cases.setdefault((operator, key), (model, build, []))
        cases.append(Case(name, about, shape))

    def blocks(self) -> Iterator[Block]:
        """What was listed; numbered where there are more cases than a block may have."""
        for (operator, key), (model, build, cases) in self._cases.items():
            for start in range(0, len(cases), MOST_CASES):
                number = f"-{start // MOST_CASES + 1}" if len(cases) > MOST_CASES else ""
                yield block("vision", operator, model, key + number, build, *cases[start : start + MOST_CASES])


def turn_of(*words: object) -> int:
    """Where turns begin for what these words name: a number that depends on nothing else in the grid."""
    return crc32("-".join(map(str, words)).encode())


def by(size: Sizes) -> str:
    """A size in words: `56 x 56`."""
    return " x ".join(map(str, size))


def short(size: Sizes) -> str:
    """A size in names: `56`, or `16.56.56` where extents differ."""
    return str(size[0]) if len(set(size)) == 1 else ".".join(map(str, size))


def images(batch: int, what: str = "image") -> str:
    """How many in words."""
    return f"1 {what}" if batch == 1 else f"{batch} {what}s"


def volume(*extents: int) -> int:
    """The number of elements."""
    return prod(extents)
