"""What the grid of matrix products has listed so far: nothing twice, nothing too small or large, few of one cell."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo import gemm, gemm_contractions, gemm_narrow
from littledragon.compiler.zoo.block import MOST_CASES, Block, Case, Model, Program, block

MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 300e9
LEAST_ITERATIONS: Final = 4096
MOST_IN_CELL: Final = 4
"""Variants of one product by dtype and epilogue. The rule is six, but other families have products too."""
EPILOGUE: Final = 1.05
"""Operations of a whole program against those of its product, at most."""

WIDTHS: Final = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1, gemm_narrow.E4M3: 1}
_JOINED: Final = {"none": 0, "add": 1, "layer_scale": 1, "gate": 1, "times": 1, "add_two": 2, "cross": 2}
_IN_CELL: Final = frozenset({"m", "n", "k", "batch", "stored", "equation", "extents"})

Build = Callable[..., Program]


class Owner(NamedTuple):
    """A model, and its name in ids."""

    model: Model
    key: str


class Listing:
    """The cases so far, in blocks of one operator of one model."""

    def __init__(self) -> None:
        self._cases: dict[tuple[str, str], tuple[Owner, Build, list[Case]]] = {}
        self._seen: set[Any] = set()
        self._cells: Counter[Any] = Counter()

    def blocks(self) -> Iterator[Block]:
        """What was listed; numbered where there are more cases than a block may have."""
        for (operator, _), (owner, build, cases) in self._cases.items():
            for start in range(0, len(cases), MOST_CASES):
                number = f"-{start // MOST_CASES + 1}" if len(cases) > MOST_CASES else ""
                part = cases[start : start + MOST_CASES]
                yield block("gemm", operator, owner.model, owner.key + number, build, *part)

    def linear(
        self, operator: str, owner: Owner, name: str, about: str, m: int, n: int, k: int, **options: Any
    ) -> None:
        """List a case of `gemm.linear`."""
        options = {"dtype": "float16", **options}
        batch = options.get("batch", 1)
        numbers = batch * m * k + n * k + (1 + _JOINED[options.get("join", "none")]) * batch * m * n
        cell, shape = (options.get("stored", "nk"), batch, m, n, k), {"m": m, "n": n, "k": k, **options}
        self.add(operator, owner, gemm.linear, name, about, cell, WIDTHS[options["dtype"]] * numbers, shape)

    def logits(self, owner: Owner, name: str, about: str, m: int, n: int, k: int, **options: Any) -> None:
        """List a case of `gemm.logits`."""
        size, shape = 2 * (m * k + n * k + 2 * m * n), {"m": m, "n": n, "k": k, **options}
        self.add("logits", owner, gemm.logits, name, about, ("nk", m, n, k), size, shape)

    def scaled(
        self, operator: str, owner: Owner, name: str, about: str, m: int, n: int, k: int, **options: Any
    ) -> None:
        """List a case of `gemm_narrow.scaled`."""
        batch, shape = options.get("batch", 1), {"m": m, "n": n, "k": k, **options}
        size = batch * m * k + n * k + WIDTHS[options["dtype"]] * batch * m * n
        self.add(operator, owner, gemm_narrow.scaled, name, about, ("nk", batch, m, n, k), size, shape)

    def contraction(
        self,
        operator: str,
        owner: Owner,
        name: str,
        about: str,
        equation: str,
        extents: Mapping[str, int],
        **options: Any,
    ) -> None:
        """List a case of `gemm_contractions.contraction`; `extents` may have more letters than are used."""
        options = {"dtype": "float16", **options}
        left, right, output, letters = _parts(equation)
        size = prod([extents[letter] for letter in left])
        if not options.get("shared"):
            size += prod([extents[letter] for letter in right])
        size *= WIDTHS[options["dtype"]]
        for term in (output, options.get("joined")):
            if term:
                size += WIDTHS[options.get("out", options["dtype"])] * prod([extents[letter] for letter in term])
        used = {letter: extents[letter] for letter in letters}
        cell, shape = (equation, *used.values()), {"equation": equation, "extents": used, **options}
        self.add(operator, owner, gemm_contractions.contraction, name, about, cell, size, shape)

    def add(
        self,
        operator: str,
        owner: Owner,
        build: Build,
        name: str,
        about: str,
        cell: tuple[Any, ...],
        size: int,
        shape: Mapping[str, Any],
        operations: int = 2,
    ) -> None:
        """List a case, if its program is a new one, its cell is not full, and its size is between the bounds.

        cell: the order of axes, then the extents that the product runs over.
        size: bytes of the arguments.
        operations: of each of the product's points.
        """
        iterations = prod(cell[1:])
        if size > MOST_BYTES or operations * EPILOGUE * iterations > MOST_FLOPS or iterations < LEAST_ITERATIONS:
            return
        told = (build, cell, frozenset(_told(shape)))
        cell = tuple([extent for extent in cell if extent != 1])
        if told in self._seen or self._cells[cell] == MOST_IN_CELL:
            return
        self._seen.add(told)
        self._cells[cell] += 1
        self._cases.setdefault((operator, owner.key), (owner, build, []))[2].append(Case(name, about, shape))


@cache
def _parts(equation: str) -> tuple[str, str, str, tuple[str, ...]]:
    """The letters of both factors and of the result, then all of them in order."""
    factors, output = equation.split("->")
    left, right = factors.split(",")
    return left, right, output, tuple(sorted({*left, *right}))


def _told(shape: Mapping[str, Any]) -> Iterator[str]:
    """What else tells programs apart: no values of constants, and nothing that is left at its default."""
    for name, value in shape.items():
        if type(value) is float:
            if value not in (0.0, 1.0):
                yield name
        elif name not in _IN_CELL and value is not False and value not in ("none", "row"):
            yield f"{name} {value}"


def tokens(m: int) -> str:
    """So many rows in words: sequences that are decoded where they are few, tokens of prompts where they are many."""
    return f"decoding {m} sequences" if 1 < m <= 128 else "decoding one sequence" if m == 1 else f"{m} tokens"
