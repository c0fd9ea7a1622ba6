"""Mixture of experts: which operators of the published mixtures there are, in which shards and for how many tokens."""

from collections.abc import Callable, Iterator

from littledragon.compiler.zoo.block import Block, Case, Model, Program, block
from littledragon.compiler.zoo.grids import moe_moves, moe_products, moe_routing
from littledragon.compiler.zoo.models.language import MIXTURES, Mixture

Build = Callable[..., Program]
Cases = Callable[[Mixture], Iterator[Case]]

_OPERATORS: tuple[tuple[str, Build, Cases], ...] = (
    *moe_routing.OPERATORS,
    *moe_moves.OPERATORS,
    *moe_products.OPERATORS,
)


def blocks() -> Iterator[Block]:
    """The blocks of the family, by operator and model. Of models whose operator has one shape, the first has it."""
    for operator, build, cases in _OPERATORS:
        seen: set[tuple[tuple[str, object], ...]] = set()
        for model in MIXTURES:
            new = []
            for case in cases(model):
                key = tuple(sorted(case.shape.items()))
                if key not in seen:
                    seen.add(key)
                    new.append(case)
            if new:
                yield block("moe", operator, Model(model.name, model.source, model.licence), model.key, build, *new)
