"""Attention inside windows of an image, as Swin has it, and over each pixel's neighbourhood. Channels come last.

A window of side w holds w² tokens; windows may be shifted by half a side, round the image's edge.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, export


def window_scores(
    batch: int, windows: int, heads: int, tokens: int, dim: int, *, shifted: bool = False, dtype: str = "float32"
) -> Program:
    """Q·Kᵀ / √dim of each window and head, plus the head's table of relative positions, plus the mask of shifted
    windows; float32.
    """
    from tvm.relax.frontend.nn import op

    def plain(q: Any, keys: Any, position: Any) -> Any:
        scores = op.matmul(q, op.permute_dims(keys, [0, 1, 2, 4, 3]), out_dtype="float32")
        return scores * (dim**-0.5) + position

    def masked(q: Any, keys: Any, position: Any, mask: Any) -> Any:
        return plain(q, keys, position) + mask

    each, table = ((batch, windows, heads, tokens, dim), dtype), ((1, 1, heads, tokens, tokens), "float32")
    if not shifted:
        return export(plain, q=each, keys=each, position=table)
    return export(masked, q=each, keys=each, position=table, mask=((1, windows, 1, tokens, tokens), "float32"))


def window_context(
    batch: int, side: int, heads: int, window: int, dim: int, *, shifted: bool = False, dtype: str = "float32"
) -> Program:
    """Weights times values of each window and head, put back where windows came from: [batch, side, side, width]."""
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
