"""Attention of published models: of decoders as they serve and train, of latent caches, encoders, images, states."""

from collections.abc import Iterator

from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import attention_decode, attention_encode, attention_latent, attention_prefill


def blocks() -> Iterator[Block]:
    """All blocks of the family, by operator."""
    for grid in (attention_decode, attention_prefill, attention_latent, attention_encode):
        yield from grid.blocks()
