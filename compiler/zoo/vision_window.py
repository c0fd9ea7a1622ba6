"""Attention inside windows of an image, as Swin has it, and over each pixel's neighbourhood. Channels come last.

A window of side w holds w² tokens; windows may be shifted by half a side, round the image's edge.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, export

_EPSILON = 1e-5


def window_norm(
    batch: int, side: int, width: int, window: int, *, shifted: bool = False, dtype: str = "float32"
) -> Program:
    """Layer normalisation of each pixel, then the image cut into windows: [batch * windows, tokens, width]."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    count, shift = side // window, window // 2 if shifted else 0

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        normal = topi.nn.layer_norm(x, weight, bias, axis=[3], epsilon=_EPSILON)

        def element(place: Any, token: Any, c: Any) -> Any:
            row = (place // count % count * window + token // window + shift) % side
            column = (place % count * window + token % window + shift) % side
            return normal[place // count**2, row, column, c]

        return te.compute((batch * count**2, window**2, width), element, name="partition")

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.tensor_expr_op(compute, "window_norm", [x, weight, bias])

    vector = ((width,), dtype)
    return export(forward, x=((batch, side, side, width), dtype), weight=vector, bias=vector)


def window_scores(
    batch: int, windows: int, heads: int, tokens: int, dim: int, *, shifted: bool = False, dtype: str = "float32"
) -> Program:
    """Q·Kᵀ / √dim of each window and head, plus the head's table of relative positions, plus the mask of shifted
    windows; float32.
    """
    from tvm.relax.frontend.nn import op

    def forward(q: Any, keys: Any, position: Any, *rest: Any) -> Any:
        scores = op.matmul(q, op.permute_dims(keys, [0, 1, 2, 4, 3]), out_dtype="float32") * (dim**-0.5)
        return scores + position + rest[0] if rest else scores + position

    def plain(q: Any, keys: Any, position: Any) -> Any:
        return forward(q, keys, position)

    def masked(q: Any, keys: Any, position: Any, mask: Any) -> Any:
        return forward(q, keys, position, mask)

    each, table = ((batch, windows, heads, tokens, dim), dtype), ((1, 1, heads, tokens, tokens), "float32")
    if not shifted:
        return export(plain, q=each, keys=each, position=table)
    return export(masked, q=each, keys=each, position=table, mask=((1, windows, 1, tokens, tokens), "float32"))


def window_context(
    batch: int, side: int, heads: int, window: int, dim: int, *, shifted: bool = False, dtype: str = "float32"
) -> Program:
    """Weights times values of each window and head, put back where the windows came from: [batch, side, side, width]."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    count, shift, tokens = side // window, window // 2 if shifted else 0, window**2
    places = batch * count**2

    def compute(weights: Any, values: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="source")

        def product(place: Any, h: Any, t: Any, d: Any) -> Any:
            pair = weights[place, h, t, axis], values[place, h, axis, d]
            return te.sum(pair[0].astype("float32") * pair[1].astype("float32"), axis=axis)

        sums = te.compute((places, heads, tokens, dim), product, name="context")

        def element(n: Any, y: Any, x: Any, c: Any) -> Any:
            row, column = (y - shift + side) % side, (x - shift + side) % side
            place = n * count**2 + row // window * count + column // window
            return sums[place, c // dim, row % window * window + column % window, c % dim].astype(dtype)

        return te.compute((batch, side, side, heads * dim), element, name="reverse")

    def forward(weights: Any, values: Any) -> Any:
        return op.tensor_expr_op(compute, "window_context", [weights, values])

    return export(
        forward,
        weights=((places, heads, tokens, tokens), dtype),
        values=((places, heads, tokens, dim), dtype),
    )


def patch_merging(batch: int, side: int, width: int, *, dtype: str = "float32") -> Program:
    """Each 2 × 2 pixels side by side, 4 * width wide, normalised: what the next stage's projection takes."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    half = side // 2

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        def element(n: Any, h: Any, w: Any, c: Any) -> Any:
            return x[n, h * 2 + c // width % 2, w * 2 + c // (2 * width), c % width]

        merged = te.compute((batch, half, half, 4 * width), element, name="merged")
        return topi.nn.layer_norm(merged, weight, bias, axis=[3], epsilon=_EPSILON)

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.tensor_expr_op(compute, "patch_merging", [x, weight, bias])

    vector = ((4 * width,), dtype)
    return export(forward, x=((batch, side, side, width), dtype), weight=vector, bias=vector)


def neighbour_scores(
    batch: int, side: int, heads: int, dim: int, *, kernel: int, dilation: int = 1, dtype: str = "float32"
) -> Program:
    """Scaled products of each pixel's query with the keys of the kernel × kernel pixels around it, plus their table.

    At the edge of the image the window stops, as in neighbourhood attention; float32.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    reach = kernel // 2 * dilation

    def compute(q: Any, keys: Any, position: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def start(place: Any) -> Any:
            low, high = tirx.const(0, "int32"), tirx.const(side - 1 - (kernel - 1) * dilation, "int32")
            return te.max(low, te.min(place - reach, high))

        def product(n: Any, h: Any, y: Any, x: Any, i: Any) -> Any:
            row, column = start(y) + i // kernel * dilation, start(x) + i % kernel * dilation
            pair = q[n, y, x, h, axis], keys[n, row, column, h, axis]
            return te.sum(pair[0].astype("float32") * pair[1].astype("float32"), axis=axis)

        sums = te.compute((batch, heads, side, side, kernel**2), product, name="products")
        return te.compute(
            sums.shape, lambda n, h, y, x, i: sums[n, h, y, x, i] * (dim**-0.5) + position[h, i], name="scores"
        )

    def forward(q: Any, keys: Any, position: Any) -> Any:
        return op.tensor_expr_op(compute, "neighbour_scores", [q, keys, position])

    each = ((batch, side, side, heads, dim), dtype)
    return export(forward, q=each, keys=each, position=((heads, kernel**2), "float32"))
