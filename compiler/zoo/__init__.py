"""The zoo: pieces of published models, from which workloads are extracted. Listing it does not import TVM."""

from littledragon.compiler.zoo import attention, gemm, moe, norm_reduction, quant_irregular, vision
from littledragon.compiler.zoo.block import Block, Family

__all__ = ["BLOCKS", "FAMILIES", "Block", "Family", "block"]

BLOCKS: tuple[Block, ...] = tuple(
    b for m in (attention, gemm, moe, norm_reduction, quant_irregular, vision) for b in m.BLOCKS
)
"""All blocks, by family, each family's most telling ones first: `--limit` takes from the front."""

FAMILIES: tuple[str, ...] = tuple(sorted({b.family for b in BLOCKS}))


def block(block_id: str) -> Block:
    """The block of this id.

    Raises:
        KeyError: there is none.
    """
    return {b.id: b for b in BLOCKS}[block_id]
