"""The grid of vision: layers of published networks, and what stands beside them in detection, segmentation and flow."""

from collections.abc import Iterator

from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import vision_boxes, vision_fields, vision_layers, vision_pixels, vision_windows
from littledragon.compiler.zoo.grids.vision_listing import Listing


def blocks() -> Iterator[Block]:
    """Every block."""
    listing = Listing()
    for part in (vision_layers, vision_fields, vision_windows, vision_boxes, vision_pixels):
        part.add(listing)
    yield from listing.blocks()
