"""Convolutions of published networks as they are deployed: every one of the table, in batches, precisions and layouts.

A layer runs once in each batch and layout; precisions take turns from layer to layer, so that no two cases compute the
same numbers in two precisions only.
"""

from typing import Final

from littledragon.compiler.zoo import vision_conv, vision_train
from littledragon.compiler.zoo.grids.vision_deployments import (
    ALONE,
    CLIPS,
    IMAGES,
    SERVED,
    SOUNDS,
    TRAINED,
    case,
    named,
    unit,
    worded,
)
from littledragon.compiler.zoo.grids.vision_listing import Listing, Sizes, images, turn_of, volume
from littledragon.compiler.zoo.models.vision import LAYERS, Layer

POINTWISE: Final = (ALONE[0], ALONE[1], SERVED[1], TRAINED[0], TRAINED[1])
GRADIENT_BATCH: Final = 32
"""Images a GPU, as the published recipes train on."""


def add(listing: Listing) -> None:
    """List every layer of the table."""
    for layer in LAYERS:
        number = turn_of(layer.inputs, layer.outputs, *layer.size, *layer.kernel)
        if layer.kind == "conv":
            _convolution(listing, layer, number)
            _gradients(listing, layer, number)
        elif layer.kind == "transposed":
            _transposed(listing, layer, number)


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
    products, size, name, words = (
        volume(*layer.kernel, layer.inputs // layer.groups),
        field(layer),
        named(layer),
        worded(layer),
    )
    quantized = all(word in ("bias", "norm", "relu", "relu6") for word in layer.tail)
    for turn, way in enumerate(ways):
        dtype = way.dtypes[(number + turn) % len(way.dtypes)]
        if dtype == "int8" and not quantized:  # integer kernels have no residual and no other activation
            dtype = "float16"
        result = volume(way.batch, layer.outputs, *size)
        listing.add(
            what,
            layer.key,
            layer.model,
            vision_conv.convolution,
            case(name, way.batch, dtype, way.last),
            f"{words}, {images(way.batch, unit(layer))}{', channels last' if way.last else ''}",
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
            case(named(layer), batch, dtype, False),
            f"{worded(layer)}, laid out {factor} times larger, {images(batch)}",
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
        _list_transposed(listing, "conv_transposed", layer, worded(layer), batch, dtype, padding, more)


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
        case(named(layer), batch, dtype, False),
        f"{words}, {images(batch, unit(layer))}",
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
    size, batch, name, words = field(layer), GRADIENT_BATCH, named(layer), worded(layer, plain=True)
    for last in (False, True):
        dtype = ("float32", "float16")[(number + last) % 2]
        listing.add(
            "depthwise_weight_gradient" if depthwise else "conv_weight_gradient",
            layer.key,
            layer.model,
            vision_train.weight_gradient,
            case(name, batch, dtype, last),
            f"gradient of the weights of a {words}, {images(batch)}" + (", channels last" if last else ""),
            elements=(
                volume(batch, layer.inputs, *layer.size),
                volume(batch, layer.outputs, *size),
                volume(layer.outputs, layer.inputs // layer.groups, *layer.kernel),
            ),
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
        words = f"gradient of the input of a {words}"
        dtype = ("float16", "float32")[number % 2]
        _list_transposed(listing, "conv_input_gradient", back, words, batch, dtype, layer.padding, more)
