"""The networks of vision, speech and diffusion whose layers `make_layers` reads off: how to build each.

Builders import torch and the libraries that define the networks. Weights are random and never used; configurations
are those of the named sources.
"""

from collections.abc import Iterator

from littledragon.compiler.zoo.models.networks import diffusion, images, volumes, written
from littledragon.compiler.zoo.models.networks.network import Network


def networks() -> Iterator[Network]:
    """Every network; of layers that are alike the first is kept, so those that most people run come first."""
    yield from images.famous()
    yield from diffusion.networks()
    yield from images.segmentation()
    yield from images.detection()
    yield from written.networks()
    yield from volumes.networks()
    yield from images.others()
