"""How layers of published networks are run, and what cases are called: batches, layouts, precisions; names, words."""

from dataclasses import dataclass
from typing import Final

from littledragon.compiler.zoo.grids.vision_listing import by, short
from littledragon.compiler.zoo.models.vision import Layer


@dataclass(frozen=True)
class Deployment:
    """Batches of one size, in one layout, in precisions that take turns."""

    batch: int
    last: bool
    dtypes: tuple[str, ...]


ALONE: Final = (Deployment(1, False, ("float16", "float32")), Deployment(1, True, ("int8", "float16", "float16")))
"""One image at a time: eager float32 or half precision, channels last where tensor cores or int8 are used."""
SERVED: Final = (Deployment(8, False, ("float32", "float16")), Deployment(8, True, ("float16", "int8", "bfloat16")))
"""A server's batch."""
TRAINED: Final = (Deployment(64, False, ("float32", "float16")), Deployment(64, True, ("bfloat16", "float16")))
"""A GPU's share of a training batch, and offline inference."""
IMAGES: Final = (*ALONE, *SERVED, *TRAINED)
CLIPS: Final = (
    Deployment(1, False, ("float16", "float32")),
    Deployment(1, True, ("float16", "bfloat16")),
    Deployment(8, False, ("float32", "float16")),
)
"""Clips and volumes: one at a time, or a GPU's share of a training batch."""
SOUNDS: Final = (
    Deployment(1, False, ("float16", "float32")),
    Deployment(16, False, ("float16", "float32")),
    Deployment(16, True, ("float16", "bfloat16")),
)
"""Utterances: one at a time, or a batch of them."""


def unit(layer: Layer) -> str:
    """What one of a batch is."""
    return {1: "sequence", 2: "image", 3: "volume"}[len(layer.size)]


def case(name: str, batch: int, dtype: str, last: bool) -> str:
    """The name of a layer in one deployment."""
    return f"{name}-b{batch}-{dtype}-last" if last else f"{name}-b{batch}-{dtype}"


def named(layer: Layer) -> str:
    """A name that says what the layer's numbers are."""
    parts = [f"{layer.inputs}-{layer.outputs}", short(layer.size), f"k{short(layer.kernel)}"]
    for letter, value in (("s", layer.stride), ("d", layer.dilation)):
        if max(value) > 1:
            parts.append(letter + short(value))
    if layer.groups > 1:
        parts.append(f"g{layer.groups}")
    if any(layer.padding) and layer.kind == "conv":
        parts.append(f"p{short(layer.padding)}")
    return "-".join(parts)


def worded(layer: Layer, plain: bool = False) -> str:
    """A convolution in words; `plain` without what follows it."""
    width = max(layer.kernel)
    parts = ["pointwise convolution" if width == 1 else f"{by(layer.kernel)} convolution"]
    if layer.kind == "transposed":
        parts[0] = "transposed " + parts[0]
    if max(layer.stride) > 1:
        parts[0] += f" at stride {by(layer.stride)}"
    if max(layer.dilation) > 1:
        parts[0] += f", dilated {by(layer.dilation)}"
    if layer.groups > 1:
        parts.append("depthwise" if layer.groups == layer.inputs else f"{layer.groups} groups")
    parts += [f"{layer.inputs} to {layer.outputs} channels", by(layer.size)]
    known = {"bias": "bias", "norm": "batch norm", "time": "time embedding", "add": "residual"}
    return ", ".join([*parts, *([] if plain else [known.get(w, w) for w in layer.tail if not w.startswith("shuffle")])])
