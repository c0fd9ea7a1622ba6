"""Layers without weights as they are deployed: pooling, means, resizing; and attention over channels."""

from functools import partial
from typing import Any, Final

from littledragon.compiler.zoo import vision, vision_conv, vision_resize
from littledragon.compiler.zoo.grids.vision_deployments import CLIPS, IMAGES, case, named, unit
from littledragon.compiler.zoo.grids.vision_listing import ELEMENTWISE, Listing, by, images, short, turn_of, volume
from littledragon.compiler.zoo.models.vision import LAYERS, Layer

DIFFUSION: Final = ("stable-diffusion", "sd", "ddpm", "taesd", "dc-ae", "swin2sr", "hovernet", "smp-unet")
"""Networks, by the beginning of their keys, whose decoders repeat pixels and convolve at once."""


def add(listing: Listing) -> None:
    """List every layer of the table that is one of these; of attentions over channels, those of other widths."""
    widths: list[tuple[int, int]] = []
    for layer in LAYERS:
        number = turn_of(layer.inputs, layer.outputs, *layer.size, *layer.kernel)
        if layer.kind in ("max_pool", "avg_pool"):
            _pool(listing, layer, number)
        elif layer.kind == "mean":
            _mean(listing, layer, number)
        elif layer.kind == "excite" and not any(_near(layer, *pair) for pair in widths):
            widths.append((layer.inputs, layer.outputs))
            _excite(listing, layer, number)
        elif layer.kind in ("nearest", "linear", "cubic"):
            _resize(listing, layer, number)


def _near(layer: Layer, inputs: int, outputs: int) -> bool:
    """Whether both widths are within half as much again of these: its two products do not depend on the size."""
    pairs = ((layer.inputs, inputs), (layer.outputs, outputs))
    return all(2 * max(pair) <= 3 * min(pair) for pair in pairs)


def _pool(listing: Listing, layer: Layer, number: int) -> None:
    mode = layer.kind.removesuffix("_pool")
    window, name = f"{by(layer.kernel)} windows at stride {by(layer.stride)}", named(layer)
    size = vision_conv.conv_size(layer.size, layer.kernel, layer.stride, layer.padding, layer.dilation)
    for turn, way in enumerate(IMAGES if len(layer.size) == 2 else CLIPS):
        # Averages of half precision would be summed in half precision.
        dtype = "float32" if mode == "avg" else ("float16", "float32")[(number + turn) % 2]
        listing.add(
            layer.kind,
            layer.key,
            layer.model,
            partial(vision.pool, mode),
            case(name, way.batch, dtype, way.last),
            f"{'maxima' if mode == 'max' else 'means'} of {window}, {layer.inputs} channels, {by(layer.size)}, "
            f"{images(way.batch, unit(layer))}{', channels last' if way.last else ''}",
            elements=(volume(way.batch, layer.inputs, *layer.size), volume(way.batch, layer.inputs, *size)),
            flops=2 * volume(way.batch, layer.inputs, *size),
            batch=way.batch,
            channels=layer.inputs,
            size=layer.size,
            kernel=layer.kernel,
            stride=layer.stride,
            padding=layer.padding,
            ceil="ceil" in layer.tail,
            dtype=dtype,
            last=way.last,
        )


def _mean(listing: Listing, layer: Layer, number: int) -> None:
    for turn, batch in enumerate((1, 8, 64)):
        dtype = ("float16", "float32", "bfloat16")[(number + turn) % 3]
        elements = volume(batch, layer.inputs, *layer.size)
        listing.add(
            "global_avg_pool",
            layer.key,
            layer.model,
            vision.global_avg_pool,
            f"c{layer.inputs}-{short(layer.size)}-b{batch}-{dtype}-last",
            f"mean of {layer.inputs} channels over {by(layer.size)}, {images(batch, unit(layer))}, channels last",
            elements=(elements,),
            flops=elements,
            images=batch,
            channels=layer.inputs,
            size=layer.size,
            dtype=dtype,
            last=True,
        )


def _excite(listing: Listing, layer: Layer, number: int) -> None:
    inner, gate = layer.tail
    for turn, batch in enumerate((1, 8, 64)):
        # Alone in float32: tensor cores have no product with a vector.
        dtype = "float32" if batch == 1 else ("float16", "float32")[(number + turn) % 2]
        listing.add(
            "squeeze_excite",
            layer.key,
            layer.model,
            vision.squeeze_excite,
            f"c{layer.inputs}-{layer.outputs}-{short(layer.size)}-b{batch}-{dtype}",
            f"channel attention of {layer.inputs} channels through {layer.outputs}, {by(layer.size)}, {images(batch)}",
            elements=(2 * volume(batch, layer.inputs, *layer.size), 2 * layer.inputs * layer.outputs),
            flops=2 * volume(batch, layer.inputs, layer.outputs),
            batch=batch,
            channels=layer.inputs,
            squeezed=layer.outputs,
            size=layer.size,
            inner=inner,
            gate=gate,
            dtype=dtype,
        )


def _resize(listing: Listing, layer: Layer, number: int) -> None:
    height, width = layer.kernel
    shape: dict[str, Any] = {"size": layer.size, "result": layer.kernel}
    doubled = layer.kind == "nearest" and layer.kernel == (2 * layer.size[0], 2 * layer.size[1])
    for turn, batch in enumerate((1, 4, 16)):
        dtype = ("float16", "float32")[(number + turn) % 2]
        result = volume(batch, layer.inputs, height, width)
        if result <= ELEMENTWISE:
            listing.add(
                "upsample_add",
                layer.key,
                layer.model,
                vision_resize.upsample_add,
                f"c{layer.inputs}-{short(layer.size)}-{short(layer.kernel)}-{layer.kind}-b{batch}-{dtype}",
                f"{layer.inputs} channels resized from {by(layer.size)} to {by(layer.kernel)} and added to others, "
                + images(batch),
                elements=(3 * result,),
                flops=result,
                batch=batch,
                channels=layer.inputs,
                method=layer.kind,
                corners="corners" in layer.tail,
                activation="relu" if "relu" in layer.tail else "none",
                dtype=dtype,
                **shape,
            )
        if doubled and layer.key.startswith(DIFFUSION):
            last = (number + turn) % 3 == 0
            listing.add(
                "upsample_conv",
                layer.key,
                layer.model,
                vision_resize.upsample_conv,
                f"c{layer.inputs}-{short(layer.size)}-b{batch}-{dtype}{'-last' if last else ''}",
                f"3 x 3 convolution of {layer.inputs} channels, pixels of {by(layer.size)} repeated twice, "
                + images(batch),
                elements=(2 * result, 9 * layer.inputs**2),
                flops=18 * result * layer.inputs,
                batch=batch,
                inputs=layer.inputs,
                outputs=layer.inputs,
                size=layer.size,
                dtype=dtype,
                last=last,
            )
