"""The zoo: blocks of published models, from which workloads are extracted. Listing it does not import TVM.

`demo` is small enough for a laptop. `paper` is the dataset's: one module of `grids/` a family says which operators
of which published configurations (`models/`) there are; the operators themselves stand in one module a family here.
"""

from functools import cache
from typing import Literal

from littledragon.compiler.zoo.block import FAMILIES, Block, Case, Family, Model, Program

__all__ = ["FAMILIES", "Block", "Case", "Family", "Model", "Program", "Zoo", "block_of", "blocks"]

Zoo = Literal["demo", "paper"]


@cache
def blocks(zoo: Zoo) -> tuple[Block, ...]:
    """All blocks of a zoo, by family."""
    if zoo == "demo":
        from littledragon.compiler.zoo import demo

        return demo.BLOCKS
    from littledragon.compiler.zoo.grids import attention, gemm, moe, norm_reduction, quant_irregular, vision

    grids = (attention, gemm, moe, norm_reduction, quant_irregular, vision)
    return tuple(block for grid in grids for block in grid.blocks())


@cache
def _by_id(zoo: Zoo) -> dict[str, Block]:
    return {block.id: block for block in blocks(zoo)}


def block_of(zoo: Zoo, block_id: str) -> Block:
    """The block of this id.

    Raises:
        KeyError: there is none.
    """
    return _by_id(zoo)[block_id]
