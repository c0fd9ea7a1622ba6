"""Normalisations and reductions over the channels and pixels of images, volumes and spectra.

Shapes are [images, channels, *pixels] unless said otherwise: two extents of pixels for images, three for volumes, one
for sound. Sums are float32.
"""

from math import prod
from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, computed
from littledragon.compiler.zoo.norm_reduction_te import (
    along_last,
    elements,
    moments,
    reduced,
    row_moments,
    silu,
    square,
    wide,
)

Pixels = tuple[int, ...]


def group_norm(images: int, channels: int, pixels: Pixels, groups: int, dtype: str, activated: bool) -> Program:
    """Group normalisation with weight and bias, then silu where `activated`; the image is seen as it lies in memory,
    [images, groups, channels / groups, *pixels]."""
    of_group = channels // groups

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        from tvm import te

        mean, variance = moments((images, groups), (of_group, *pixels), lambda at, inner: wide(x(*at, *inner)))

        def element(n: Any, g: Any, c: Any, *pixel: Any) -> Any:
            normal = (wide(x(n, g, c, *pixel)) - mean(n, g)) * te.rsqrt(variance(n, g) + 1e-5)
            value = normal * wide(weight(g, c)) + wide(bias(g, c))
            return (silu(value) if activated else value).astype(dtype)

        return elements(x.shape, element, "normal")

    vector = ((groups, of_group), dtype)
    image = ((images, groups, of_group, *pixels), dtype)
    return computed("group_norm_silu" if activated else "group_norm", compute, x=image, weight=vector, bias=vector)


def instance_norm(
    images: int, channels: int, pixels: Pixels, dtype: str, form: Literal["plain", "relu", "style"]
) -> Program:
    """Each channel of each image by its own mean and variance, with weight and bias; `relu`: a leaky one after it;
    `style`: with a scale and a shift for each image, as AdaIN has it."""

    def compute(x: Any, factor: Any, shift: Any) -> Any:
        from tvm import te

        mean, variance = moments((images, channels), pixels, lambda at, inner: wide(x(*at, *inner)))

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            of = (n, c) if form == "style" else (c,)
            normal = (wide(x(n, c, *pixel)) - mean(n, c)) * te.rsqrt(variance(n, c) + 1e-5)
            value = normal * wide(factor(*of)) + wide(shift(*of))
            return (te.max(value, value * 0.01) if form == "relu" else value).astype(dtype)

        return elements(x.shape, element, "normal")

    vector = ((images, channels) if form == "style" else (channels,), dtype)
    return computed("instance_norm", compute, x=((images, channels, *pixels), dtype), factor=vector, shift=vector)


def batch_norm(images: int, channels: int, pixels: Pixels, dtype: str, relu: bool) -> Program:
    """Batch normalisation as training runs it, by the statistics of the batch, which it gives too; then ReLU."""

    def compute(x: Any, weight: Any, bias: Any) -> list[Any]:
        from tvm import te, tirx

        over = (images, *pixels)
        mean, variance = moments((channels,), over, lambda at, inner: wide(x(inner[0], *at, *inner[1:])))

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            value = (wide(x(n, c, *pixel)) - mean(c)) * te.rsqrt(variance(c) + 1e-5) * weight(c) + bias(c)
            return (te.max(value, tirx.const(0.0, "float32")) if relu else value).astype(dtype)

        return [elements(x.shape, element, "normal"), mean, variance]

    vector = ((channels,), "float32")
    return computed("batch_norm", compute, x=((images, channels, *pixels), dtype), weight=vector, bias=vector)


def batch_norm_gradient(images: int, channels: int, pixels: Pixels, dtype: str) -> Program:
    """Gradients of a batch normalisation's weight and bias: sums of g · normal x and of g over images and pixels."""

    def compute(x: Any, gradient: Any, mean: Any, inverse: Any) -> list[Any]:
        from tvm import te

        over = (images, *pixels)

        def product(at: Any, inner: Any) -> Any:
            place = (inner[0], *at, *inner[1:])
            return wide(gradient(*place)) * (wide(x(*place)) - mean(*at))

        scaled = reduced(te.sum, (channels,), over, product, "scaled")
        shift = reduced(
            te.sum, (channels,), over, lambda at, inner: wide(gradient(inner[0], *at, *inner[1:])), "of_bias"
        )
        return [elements((channels,), lambda c: scaled(c) * inverse(c), "of_weight"), shift]

    image, vector = ((images, channels, *pixels), dtype), ((channels,), "float32")
    return computed("batch_norm_gradient", compute, x=image, gradient=image, mean=vector, inverse=vector)


def channel_norm(images: int, channels: int, pixels: Pixels, dtype: str) -> Program:
    """Layer normalisation of each pixel over the channels, which lie before the pixels (ConvNeXt, SAM)."""

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        from tvm import te

        mean, variance = moments((images, *pixels), (channels,), lambda at, inner: wide(x(at[0], *inner, *at[1:])))

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            normal = (wide(x(n, c, *pixel)) - mean(n, *pixel)) * te.rsqrt(variance(n, *pixel) + 1e-6)
            return (normal * wide(weight(c)) + wide(bias(c))).astype(dtype)

        return elements(x.shape, element, "normal")

    vector = ((channels,), dtype)
    return computed("channel_norm", compute, x=((images, channels, *pixels), dtype), weight=vector, bias=vector)


def pixel_norm(images: int, channels: int, pixels: Pixels, dtype: str, weighted: bool) -> Program:
    """Each pixel's channels divided by their length, with a weight for each channel (SSD, RMS normalisation of images)
    or without (descriptors of SuperPoint, StyleGAN)."""

    def compute(x: Any, *weight: Any) -> Any:
        from tvm import te

        squares = reduced(
            te.sum, (images, *pixels), (channels,), lambda at, inner: square(wide(x(at[0], *inner, *at[1:]))), "squares"
        )

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            normal = wide(x(n, c, *pixel)) * te.rsqrt(squares(n, *pixel) + 1e-8)
            return (normal * wide(weight[0](c)) if weighted else normal).astype(dtype)

        return elements(x.shape, element, "normal")

    more = {"weight": ((channels,), dtype)} if weighted else {}
    return computed("pixel_norm", compute, x=((images, channels, *pixels), dtype), **more)


def response_norm(images: int, pixels: Pixels, channels: int, dtype: str) -> Program:
    """Global response normalisation (ConvNeXt V2), channels last: X · length / mean length · w + b + X, where `length`
    is that of a channel over all pixels, and its mean is over the channels."""

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        from tvm import te

        squares = reduced(
            te.sum, (images, channels), pixels, lambda at, inner: square(wide(x(at[0], *inner, at[1]))), "squares"
        )
        length = elements((images, channels), lambda n, c: te.sqrt(squares(n, c)), "length")
        lengths = along_last(te.sum, length, "lengths")

        def element(n: Any, *at: Any) -> Any:
            c, value = at[-1], wide(x(n, *at))
            share = length(n, c) / (lengths(n) / float(channels) + 1e-6)
            return (value * share * wide(weight(c)) + wide(bias(c)) + value).astype(dtype)

        return elements(x.shape, element, "normal")

    vector = ((channels,), dtype)
    return computed("response_norm", compute, x=((images, *pixels, channels), dtype), weight=vector, bias=vector)


def global_pool(
    images: int, channels: int, pixels: Pixels, dtype: str, how: Literal["mean", "max", "power"]
) -> Program:
    """Mean, maximum or cubic mean (GeM, of image retrieval) of each channel over all pixels."""

    def compute(x: Any) -> Any:
        from tvm import te, tirx

        def value(at: Any, inner: Any) -> Any:
            element = wide(x(*at, *inner))
            if how != "power":
                return element
            positive = te.max(element, tirx.const(1e-6, "float32"))
            return positive * positive * positive

        pooled = reduced(te.max if how == "max" else te.sum, (images, channels), pixels, value, "pooled")

        def finish(n: Any, c: Any) -> Any:
            if how == "max":
                return pooled(n, c).astype(dtype)
            mean = pooled(n, c) / float(prod(pixels))
            return (te.exp(te.log(mean) / 3.0) if how == "power" else mean).astype(dtype)

        return elements((images, channels), finish, how)

    return computed("global_pool", compute, x=((images, channels, *pixels), dtype))


def channel_maps(images: int, channels: int, pixels: Pixels, dtype: str) -> Program:
    """Mean and maximum of each pixel over its channels: what spatial attention (CBAM) looks at."""

    def compute(x: Any) -> list[Any]:
        from tvm import te

        def value(at: Any, inner: Any) -> Any:
            return wide(x(at[0], *inner, *at[1:]))

        like = (images, *pixels)
        total = reduced(te.sum, like, (channels,), value, "total")
        highest = reduced(te.max, like, (channels,), value, "highest")
        return [
            elements(like, lambda *at: (total(*at) / float(channels)).astype(dtype), "mean"),
            elements(like, lambda *at: highest(*at).astype(dtype), "maximum"),
        ]

    return computed("channel_maps", compute, x=((images, channels, *pixels), dtype))


def spread_pool(clips: int, channels: int, frames: int, dtype: str) -> Program:
    """Mean and standard deviation of each channel over all frames, one after the other: pooling of speaker encoders."""

    def compute(x: Any) -> Any:
        from tvm import te, tirx

        mean, variance = row_moments(x)

        def element(n: Any, part: Any, c: Any) -> Any:
            return tirx.Select(part == 0, mean(n, c), te.sqrt(variance(n, c) + 1e-7)).astype(dtype)

        return elements((clips, 2, channels), element, "pooled")

    return computed("spread_pool", compute, x=((clips, channels, frames), dtype))


def standardize(lead: int | tuple[int, ...], columns: int, dtype: str) -> Program:
    """Rows with their mean taken off and divided by their deviation: waveforms and spectra before they enter a model,
    and convolution weights (weight standardisation), a row for each filter."""

    def compute(x: Any) -> Any:
        from tvm import te

        mean, variance = row_moments(x)

        def element(*at: Any) -> Any:
            return ((wide(x(*at)) - mean(*at[:-1])) * te.rsqrt(variance(*at[:-1]) + 1e-7)).astype(dtype)

        return elements(x.shape, element, "standard")

    row = (lead,) if isinstance(lead, int) else lead
    return computed("standardize", compute, x=((*row, columns), dtype))
