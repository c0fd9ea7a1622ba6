"""The grid of vision: layers of published networks, and what detectors, window transformers and training add."""

from collections.abc import Iterator

from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import vision_layers


def blocks() -> Iterator[Block]:
    """Every block."""
    yield from vision_layers.blocks()
