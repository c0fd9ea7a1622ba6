"""Layers of published networks as they are deployed: every layer of the table, in batches, precisions and layouts.

A layer runs once in each batch and layout; precisions take turns from layer to layer, so that no two cases compute the
same numbers in two precisions only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from littledragon.compiler.zoo import vision, vision_conv, vision_resize, vision_train
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.vision_listing import ELEMENTWISE, Listing, Sizes, by, images, short, volume
from littledragon.compiler.zoo.models.vision import LAYERS, Layer


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
POINTWISE: Final = (ALONE[0], ALONE[1], SERVED[1], TRAINED[0], TRAINED[1])
GRADIENT_BATCH: Final = 32
"""Images a GPU, as the published recipes train on."""

DIFFUSION: Final = ("stable-diffusion", "sd", "ddpm", "taesd", "dc-ae", "swin2sr", "hovernet", "smp-unet")
"""Networks, by the beginning of their keys, whose decoders repeat pixels and convolve at once."""


def blocks() -> Iterator[Block]:
    """Every block of the table's layers."""
    listing = Listing()
    for number, layer in enumerate(LAYERS):
        if layer.kind == "conv":
            _convolution(listing, layer, number)
            _gradients(listing, layer, number)
        elif layer.kind == "transposed":
            _transposed(listing, layer, number)
        elif layer.kind in ("max_pool", "avg_pool"):
            _pool(listing, layer, number)
        elif layer.kind == "mean":
            _mean(listing, layer, number)
        elif layer.kind == "excite":
            _excite(listing, layer, number)
        elif layer.kind in ("nearest", "linear", "cubic"):
            _resize(listing, layer, number)
    yield from listing.blocks()


def operator(layer: Layer) -> str:
    """The operator that a convolution of the table is a case of."""
    wide, strided, dilated = max(layer.kernel), max(layer.stride) > 1, max(layer.dilation) > 1
    if layer.tail and layer.tail[-1].startswith("shuffle"):
        return "conv_shuffle"
    if len(layer.size) == 1:
        return "conv1d_pointwise" if wide == 1 else "conv1d_dilated" if dilated else "conv1d"
    if len(layer.size) == 3:
        separable = sum(extent > 1 for extent in layer.kernel) < 3 and wide > 1
        return "conv3d_pointwise" if wide == 1 else "conv3d_separable" if separable else "conv3d"
    if layer.kernel == layer.stride and wide > 2 and not any(layer.padding):
        return "patch_embedding"
    if dilated:
        return "conv_dilated"
    if layer.groups == layer.inputs and layer.groups > 1:
        return "depthwise_strided" if strided else "depthwise_wide" if wide > 3 else "depthwise3x3"
    if layer.groups > 1:
        return "conv_grouped_strided" if strided else "conv_grouped"
    if strided:
        return "conv_stem" if wide > 3 else "conv_strided"
    if "add" in layer.tail:
        return "conv_residual"
    return "conv1x1" if wide == 1 else "conv3x3" if wide == 3 else "conv_wide"


def field(layer: Layer) -> Sizes:
    """The size of a convolution's result."""
    return vision_conv.conv_size(layer.size, layer.kernel, layer.stride, layer.padding, layer.dilation)


def _convolution(listing: Listing, layer: Layer, number: int) -> None:
    what = operator(layer)
    if what == "conv_shuffle":
        _shuffle(listing, layer, number)
        return
    ways = {1: SOUNDS, 2: POINTWISE if what == "conv1x1" else IMAGES, 3: CLIPS}[len(layer.size)]
    products = volume(*layer.kernel, layer.inputs // layer.groups)
    for turn, way in enumerate(ways):
        dtype = _dtype(layer, way, number + turn)
        result = volume(way.batch, layer.outputs, *field(layer))
        listing.add(
            what,
            layer.key,
            layer.model,
            vision_conv.convolution,
            _name(layer, way.batch, dtype, way.last),
            f"{_words(layer)}, {images(way.batch, _unit(layer))}{', channels last' if way.last else ''}",
            elements=(
                volume(way.batch, layer.inputs, *layer.size),
                volume(layer.outputs, products),
                (2 if "add" in layer.tail else 1) * result,
            ),
            flops=2 * result * products,
            batch=way.batch,
            inputs=layer.inputs,
            outputs=layer.outputs,
            size=layer.size,
            kernel=layer.kernel,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            tail=_folded(layer.tail, dtype),
            dtype=dtype,
            last=way.last,
        )


def _dtype(layer: Layer, way: Deployment, turn: int) -> str:
    """The turn's precision; half where integer kernels do not have the activation or the residual."""
    dtype = way.dtypes[turn % len(way.dtypes)]
    plain = all(word in ("bias", "norm", "relu", "relu6") for word in layer.tail)
    return dtype if dtype != "int8" or plain else "float16"


def _folded(tail: tuple[str, ...], dtype: str) -> tuple[str, ...]:
    """The tail as it is run: but in float32 a batch norm is folded into weights and bias."""
    if dtype == "float32" or "norm" not in tail:
        return tail
    return tuple(word if word != "norm" else "bias" for word in tail if word != "bias")


def _shuffle(listing: Listing, layer: Layer, number: int) -> None:
    factor = int(layer.tail[-1].removeprefix("shuffle"))
    for turn, batch in enumerate((1, 4, 16)):  # a picture; tiles of it; a training batch of crops
        dtype = ("float16", "float32")[(number + turn) % 2]
        result = volume(batch, layer.outputs, *layer.size)
        listing.add(
            "conv_shuffle",
            layer.key,
            layer.model,
            vision_conv.shuffled,
            _name(layer, batch, dtype, False),
            f"{_words(layer)}, laid out {factor} times larger, {images(batch)}",
            elements=(volume(batch, layer.inputs, *layer.size), result),
            flops=2 * result * volume(layer.inputs, *layer.kernel),
            batch=batch,
            inputs=layer.inputs,
            outputs=layer.outputs // factor**2,
            size=layer.size,
            kernel=layer.kernel,
            factor=factor,
            dtype=dtype,
        )


def _transposed(listing: Listing, layer: Layer, number: int) -> None:
    space = len(layer.size)
    padding, more = layer.padding[:space], layer.padding[space:]
    for turn, batch in enumerate((1, 8, 32)):
        dtype = ("float16", "float32")[(number + turn) % 2]
        _list_transposed(listing, "conv_transposed", layer, _words(layer), batch, dtype, padding, more)


def _list_transposed(
    listing: Listing, what: str, layer: Layer, words: str, batch: int, dtype: str, padding: Sizes, more: Sizes
) -> None:
    every = zip(layer.size, layer.stride, padding, layer.kernel, more, strict=True)
    size = tuple((n - 1) * s - 2 * p + k + m for n, s, p, k, m in every)
    result, products = volume(batch, layer.outputs, *size), volume(layer.inputs // layer.groups, *layer.kernel)
    listing.add(
        what,
        layer.key,
        layer.model,
        vision_conv.transposed,
        _name(layer, batch, dtype, False),
        f"{words}, {images(batch, _unit(layer))}",
        elements=(volume(batch, layer.inputs, *layer.size), volume(layer.outputs, products), result),
        flops=2 * result * products,
        batch=batch,
        inputs=layer.inputs,
        outputs=layer.outputs,
        size=layer.size,
        kernel=layer.kernel,
        stride=layer.stride,
        padding=padding,
        more=more,
        groups=layer.groups,
        tail=_folded(layer.tail, dtype),
        dtype=dtype,
    )


def _gradients(listing: Listing, layer: Layer, number: int) -> None:
    """Of weights, for windows of more than one pixel; of inputs, where the stride makes it another computation."""
    depthwise = layer.groups == layer.inputs == layer.outputs and layer.groups > 1
    if len(layer.size) != 2 or max(layer.kernel) == 1 or (layer.groups > 1 and not depthwise):
        return
    size, batch = field(layer), GRADIENT_BATCH
    for last in (False, True):
        dtype = ("float32", "float16")[(number + last) % 2]
        listing.add(
            "depthwise_weight_gradient" if depthwise else "conv_weight_gradient",
            layer.key,
            layer.model,
            vision_train.weight_gradient,
            _name(layer, batch, dtype, last),
            f"gradient of the weights of a {_words(layer, plain=True)}, {images(batch)}"
            + (", channels last" if last else ""),
            elements=(volume(batch, layer.inputs, *layer.size), volume(batch, layer.outputs, *size)),
            flops=2 * volume(batch, layer.outputs, *size, layer.inputs // layer.groups, *layer.kernel),
            batch=batch,
            inputs=layer.inputs,
            outputs=layer.outputs,
            size=layer.size,
            kernel=layer.kernel,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            depthwise=depthwise,
            dtype=dtype,
            last=last,
        )
    if max(layer.stride) > 1 and max(layer.dilation) == 1 and layer.inputs > 4:
        every = zip(layer.size, size, layer.stride, layer.padding, layer.kernel, strict=True)
        more = tuple(n - ((m - 1) * s - 2 * p + k) for n, m, s, p, k in every)
        back = Layer(
            layer.key,
            layer.model,
            "transposed",
            layer.outputs,
            layer.inputs,
            size,
            layer.kernel,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            (),
        )
        words = f"gradient of the input of a {_words(layer, plain=True)}"
        dtype = ("float16", "float32")[number % 2]
        _list_transposed(listing, "conv_input_gradient", back, words, batch, dtype, layer.padding, more)


def _pool(listing: Listing, layer: Layer, number: int) -> None:
    mode = layer.kind.removesuffix("_pool")
    window = f"{by(layer.kernel)} windows at stride {by(layer.stride)}"
    for turn, way in enumerate(IMAGES if len(layer.size) == 2 else CLIPS):
        # Averages of half precision would be summed in half precision.
        dtype = "float32" if mode == "avg" else ("float16", "float32")[(number + turn) % 2]
        size = vision_conv.conv_size(layer.size, layer.kernel, layer.stride, layer.padding, layer.dilation)
        listing.add(
            layer.kind,
            layer.key,
            layer.model,
            partial(vision.pool, mode),
            _name(layer, way.batch, dtype, way.last),
            f"{'maxima' if mode == 'max' else 'means'} of {window}, {layer.inputs} channels, {by(layer.size)}, "
            f"{images(way.batch, _unit(layer))}{', channels last' if way.last else ''}",
            elements=(volume(way.batch, layer.inputs, *layer.size),),
            flops=volume(way.batch, layer.inputs, *size, *layer.kernel),
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
            f"mean of {layer.inputs} channels over {by(layer.size)}, {images(batch, _unit(layer))}, channels last",
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
        dtype = ("float16", "float32")[(number + turn) % 2]
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


def _unit(layer: Layer) -> str:
    """What one of a batch is."""
    return {1: "sequence", 2: "image", 3: "volume"}[len(layer.size)]


def _name(layer: Layer, batch: int, dtype: str, last: bool) -> str:
    """A name that says what the layer's numbers are."""
    parts = [f"{layer.inputs}-{layer.outputs}", short(layer.size), f"k{short(layer.kernel)}"]
    for letter, value in (("s", layer.stride), ("d", layer.dilation)):
        if max(value) > 1:
            parts.append(letter + short(value))
    if layer.groups > 1:
        parts.append(f"g{layer.groups}")
    if any(layer.padding) and layer.kind == "conv":
        parts.append(f"p{short(layer.padding)}")
    return "-".join([*parts, f"b{batch}", dtype, *(["last"] if last else [])])


def _words(layer: Layer, plain: bool = False) -> str:
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
    known = {"bias": "bias", "norm": "batch norm", "add": "residual"}
    return ", ".join([*parts, *([] if plain else [known.get(w, w) for w in layer.tail if not w.startswith("shuffle")])])
