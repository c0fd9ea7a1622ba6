"""What the grid of matrix products has listed so far: nothing twice, nothing too small or large, few of one cell."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from littledragon.compiler.zoo import gemm, gemm_contractions, gemm_narrow
from littledragon.compiler.zoo.block import MOST_CASES, Block, Case, Model, Program, block

MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 300e9
LEAST_ITERATIONS: Final = 4096
MOST_IN_CELL: Final = 4
"""Variants of one product by dtype and epilogue; other families have products of these extents too."""

WIDTHS: Final = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float8_e4m3fn": 1}

Build = Callable[..., Program]
Found = tuple[Build, Case] | None


@dataclass
class Listing:
    """The cases so far."""

    seen: set[Any] = field(default_factory=set)
    cells: Counter[Any] = field(default_factory=Counter)

    def linear(self, name: str, about: str, m: int, n: int, k: int, **options: Any) -> Iterator[Case]:
        """A case of `gemm.linear`, if it is a new one."""
        batch, dtype = options.get("batch", 1), options.get("dtype", "float16")
        wholes = {"add": 1, "layer_scale": 1, "gate": 1, "times": 1, "add_two": 2}.get(options.get("join", "none"), 0)
        numbers = batch * m * k + n * k + (1 + wholes) * batch * m * n
        layout = options.get("stored", "nk")
        shape = {"m": m, "n": n, "k": k, **options}
        yield from self.case(gemm.linear, name, about, (layout, batch, m, n, k), WIDTHS[dtype] * numbers, shape)

    def scaled(self, name: str, about: str, m: int, n: int, k: int, **options: Any) -> Iterator[Case]:
        """A case of `gemm_narrow.scaled`, if it is a new one."""
        batch = options.get("batch", 1)
        size = batch * m * k + n * k + WIDTHS[options.get("dtype", "float16")] * batch * m * n
        yield from self.case(
            gemm_narrow.scaled, name, about, ("nk", batch, m, n, k), size, {"m": m, "n": n, "k": k, **options}
        )

    def contraction(
        self, name: str, about: str, equation: str, extents: Mapping[str, int], **options: Any
    ) -> Iterator[Case]:
        """A case of `gemm_contractions.contraction`, if it is a new one."""
        factors, output = equation.split("->")
        dtype = options.get("dtype", "float16")
        stored = options.get("out", dtype)
        sizes = [(term, dtype) for term in factors.split(",")[: 1 if options.get("shared") else 2]]
        sizes += [(term, stored) for term in (output, options.get("joined", "")) if term]
        size = sum(WIDTHS[kind] * prod(extents[letter] for letter in term) for term, kind in sizes)
        cell = (equation, *(extents[letter] for letter in sorted(extents)))
        shape = {"equation": equation, "extents": dict(extents), **options}
        yield from self.case(gemm_contractions.contraction, name, about, cell, size, shape)

    def case(
        self, build: Build, name: str, about: str, cell: tuple[Any, ...], size: int, shape: Mapping[str, Any]
    ) -> Iterator[Case]:
        """The case, if its program is a new one, its cell is not full, and its size is between the bounds.

        cell: the order of axes, then their extents, all of which the product runs over.
        size: bytes of its arguments.
        """
        iterations = prod(cell[1:])
        key = (build, repr(sorted(shape.items())))
        cell = (cell[0], *(extent for extent in cell[1:] if extent > 1))
        if size > MOST_BYTES or 2.05 * iterations > MOST_FLOPS or iterations < LEAST_ITERATIONS:
            return
        if key in self.seen or self.cells[cell] == MOST_IN_CELL:
            return
        self.seen.add(key)
        self.cells[cell] += 1
        yield Case(name, about, shape)


def blocks_of(operator: str, model: Model, part: str, build: Build, cases: Iterable[Case]) -> Iterator[Block]:
    """The block of these cases, or several, where they are too many for one, or none."""
    found = list(cases)
    for start in range(0, len(found), MOST_CASES):
        number = f"-{start // MOST_CASES + 1}" if len(found) > MOST_CASES else ""
        yield block("gemm", operator, model, part + number, build, *found[start : start + MOST_CASES])


def tokens(m: int) -> str:
    """So many rows in words: sequences that are decoded where they are few, tokens of prompts where they are many."""
    return f"decoding {m} sequences" if 1 < m <= 128 else "decoding one sequence" if m == 1 else f"{m} tokens"
