"""The published grid of normalisations and reductions."""

from collections.abc import Iterator

from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import (
    norm_reduction_images,
    norm_reduction_logits,
    norm_reduction_pooling,
    norm_reduction_states,
    norm_reduction_tokens,
    norm_reduction_training,
)
from littledragon.compiler.zoo.grids.norm_reduction_listing import sifted


def blocks() -> Iterator[Block]:
    """The blocks of the family, operator by operator.

    Raises:
        ValueError: two cases of one block have one name.
    """
    parts = (
        norm_reduction_tokens,
        norm_reduction_logits,
        norm_reduction_images,
        norm_reduction_pooling,
        norm_reduction_states,
        norm_reduction_training,
    )
    return sifted(group for part in parts for group in part.groups())
