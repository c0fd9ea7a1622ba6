"""Images made larger or smaller, with what the network does next, and images sampled at places that are data."""

from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, comparable, export
from littledragon.compiler.zoo.vision_conv import Sizes, activated

Method = Literal["nearest", "linear", "cubic"]


def upsample_add(
    batch: int,
    channels: int,
    size: Sizes,
    result: Sizes,
    *,
    method: Method = "nearest",
    corners: bool = False,
    activation: str = "none",
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """Images resized to `result` and added to others of that size: feature pyramids, fusion of resolutions."""

    def forward(x: Any, lateral: Any) -> Any:
        y = _resized(x, result, method, corners, "NHWC" if last else "NCHW") + lateral
        return y if activation == "none" else activated(y, activation)

    shapes = [(batch, *field, channels) if last else (batch, channels, *field) for field in (size, result)]
    return export(forward, x=(shapes[0], dtype), lateral=(shapes[1], dtype))


def upsample_conv(
    batch: int,
    inputs: int,
    outputs: int,
    size: Sizes,
    *,
    factor: int = 2,
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """A 3 × 3 convolution with bias of images whose pixels are repeated `factor` times each way, as decoders have it.

    In TE, so that the larger images are read without being written.
    """
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    layout = ("NHWC", "OHWI") if last else ("NCHW", "OIHW")

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        def repeated(*i: Any) -> Any:
            rows = 1 if last else 2
            return x[(*i[:rows], i[rows] // factor, i[rows + 1] // factor, *i[rows + 2 :])]

        large = (size[0] * factor, size[1] * factor)
        y = te.compute((batch, *large, inputs) if last else (batch, inputs, *large), repeated, name="repeated")
        y = topi.nn.conv(y, weight, 1, 1, 1, 1, *layout, out_dtype="float32")
        return te.compute(
            y.shape, lambda *i: (y[i] + bias[i[-1] if last else i[1]]).astype(dtype), name="upsampled_conv2d"
        )

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.tensor_expr_op(compute, "upsample_conv2d", [x, weight, bias])

    return export(
        forward,
        x=((batch, *size, inputs) if last else (batch, inputs, *size), dtype),
        weight=((outputs, 3, 3, inputs) if last else (outputs, inputs, 3, 3), dtype),
        bias=((outputs,), "float32"),
    )


def resize_argmax(batch: int, classes: int, size: Sizes, result: Sizes, *, dtype: str = "float32") -> Program:
    """The class of each pixel of the whole image: logits resized bilinearly, then the index of the largest, int32.

    In TE, so that the logits of the whole image are compared without being written.
    """
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def compute(x: Any) -> Any:
        edges = (0.0, 0.0, 0.0, 0.0)
        large = topi.image.resize2d(x, edges, result, method="linear", coordinate_transformation_mode="half_pixel")
        return topi.argmax(comparable(large), axis=1)

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(compute, "resize2d_argmax", [x])

    return export(forward, x=((batch, classes, *size), dtype))


def grid_sample(batch: int, channels: int, size: Sizes, result: Sizes, *, dtype: str = "float32") -> Program:
    """Images read at the places in `grid`, from -1 to 1 across the image, bilinearly, at the border outside."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, grid: Any) -> Any:
        def place(axis: int) -> Any:
            def element(n: Any, h: Any, w: Any) -> Any:
                return (grid[n, h, w, axis].astype("float32") + 1.0) * (0.5 * (size[1 - axis] - 1))

            return te.compute((batch, *result), element, name=("column", "row")[axis])

        column, row = place(0), place(1)
        return te.compute(
            (batch, channels, *result),
            lambda n, c, h, w: bilinear(
                lambda y, x_: x[n, c, y, x_].astype("float32"), row[n, h, w], column[n, h, w], size
            ).astype(dtype),
            name="grid_sample",
        )

    def forward(x: Any, grid: Any) -> Any:
        return op.tensor_expr_op(compute, "grid_sample", [x, grid])

    return export(forward, x=((batch, channels, *size), dtype), grid=((batch, *result, 2), dtype))


def bilinear(pixel: Any, row: Any, column: Any, size: Sizes) -> Any:
    """In TE: the value between four pixels, at a float32 place that is moved inside an image of this size."""
    from tvm import te, tirx

    def inside(place: Any, extent: int) -> tuple[Any, Any, Any]:
        zero, end = tirx.const(0.0, "float32"), tirx.const(extent - 1, "float32")
        held = te.max(te.min(place, end), zero)
        before = te.min(te.floor(held).astype("int32"), tirx.const(max(extent - 2, 0), "int32"))
        return before, te.min(before + 1, tirx.const(extent - 1, "int32")), held - before.astype("float32")

    (top, bottom, down), (left, right, across) = inside(row, size[0]), inside(column, size[1])
    upper = pixel(top, left) * (1.0 - across) + pixel(top, right) * across
    lower = pixel(bottom, left) * (1.0 - across) + pixel(bottom, right) * across
    return upper * (1.0 - down) + lower * down


def correlation(batch: int, channels: int, size: Sizes, *, reach: int, dtype: str = "float32") -> Program:
    """Cost volume of optical flow: mean products of each pixel's features with those up to `reach` pixels away."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    side = 2 * reach + 1

    def compute(first: Any, second: Any) -> Any:
        edge = [0, 0, reach, reach]
        padded = topi.nn.pad(second, edge, edge, name="padded")
        axis = te.reduce_axis((0, channels), name="channel")

        def total(n: Any, d: Any, h: Any, w: Any) -> Any:
            other = padded[n, axis, h + d // side, w + d % side]
            return te.sum(first[n, axis, h, w].astype("float32") * other.astype("float32"), axis=axis)

        sums = te.compute((batch, side * side, *size), total, name="products")
        return te.compute(sums.shape, lambda *i: (sums[i] / channels).astype(dtype), name="correlation")

    def forward(first: Any, second: Any) -> Any:
        return op.tensor_expr_op(compute, "correlation", [first, second])

    field = ((batch, channels, *size), dtype)
    return export(forward, first=field, second=field)


def _resized(x: Any, size: Sizes, method: Method, corners: bool, layout: str) -> Any:
    """As PyTorch's `interpolate` does it: `corners` keeps the corner pixels where they are."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    mode = "asymmetric" if method == "nearest" else "align_corners" if corners else "half_pixel"
    y = relax.op.image.resize2d(
        x._expr,
        size,
        layout=layout,
        method="nearest_neighbor" if method == "nearest" else method,
        coordinate_transformation_mode=mode,
        rounding_method="floor" if method == "nearest" else "",
    )
    return op.wrap_nested(y, "resize2d")
