"""Products of quantised matrices, quantisation itself, and reads whose place is data.

More of the kind stands beside this file: `quant_irregular_packed` (weights of a few bits), `…_quantize`, `…_cache` (of
keys and values), `…_lookup` (embeddings and labels), `…_features` (of recommenders), `…_graph` (neighbour lists),
`…_slices` (strided, shifted and masked).
"""

from collections.abc import Callable
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Argument, Program, computed


def stage(shape: tuple[int, ...], element: Callable[..., Any], whole: bool) -> Callable[..., Any]:
    """In TE: elements computed first, as a tensor, or each where it is read. Kernels for many rows do the former."""
    from tvm import te

    tensor: Callable[..., Any] = te.compute(shape, element, name="dequantize") if whole else element
    return tensor


def product(
    x: Any, weight: Callable[..., Any], columns: int, dtype: str, finish: Callable[..., Any] | None = None
) -> Any:
    """In TE: cast(X·Wᵀ), summed in float32, or in int32 where X is int8. Relax would not fuse TE weights into it.

    `weight(column, step)` is an element of W; `finish(sum, row, column)` what is done to a sum before the cast.
    """
    from tvm import te

    rows, depth = x.shape
    wide = "int32" if str(x.dtype) == "int8" else "float32"
    axis = te.reduce_axis((0, depth), name="k")
    total = te.compute(
        (rows, columns),
        lambda r, c: te.sum(x[r, axis].astype(wide) * weight(c, axis).astype(wide), axis=axis),
        name="matmul",
    )

    def last(r: Any, c: Any) -> Any:
        return (finish(total[r, c], r, c) if finish else total[r, c]).astype(dtype)

    return te.compute((rows, columns), last, name="cast")


def w8a16_matmul(m: int, n: int, k: int, dtype: str = "float16") -> Program:
    """Y = X·(scale * W)ᵀ: int8 weights with a scale a row, half-precision activations, float32 accumulation."""
    from tvm import te

    def compute(x: Any, w: Any, scale: Any) -> Any:
        weight = te.compute((n, k), lambda r, c: w[r, c].astype(dtype) * scale[r], name="dequantize")
        return product(x, weight, n, dtype)

    return computed("w8a16_matmul", compute, x=((m, k), dtype), w=((n, k), "int8"), scale=((n,), dtype))


def w4a16_matmul(m: int, n: int, k: int, group: int, dtype: str = "float16") -> Program:
    """The same with 4-bit weights, eight to a uint32, and a scale for each group of the reduction axis."""
    from tvm import te

    def compute(x: Any, packed: Any, scale: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            nibble = (packed[r, c // 8] >> (c % 8 * 4).astype("uint32")) & te.const(15, "uint32")
            return (nibble.astype(dtype) - te.const(8, dtype)) * scale[r, c // group]

        return product(x, te.compute((n, k), element, name="dequantize"), n, dtype)

    return computed(
        "w4a16_matmul", compute, x=((m, k), dtype), packed=((n, k // 8), "uint32"), scale=((n, k // group), dtype)
    )


def w8a8_matmul(m: int, n: int, k: int, bias: bool = False, zero_point: bool = False) -> Program:
    """Y = (X - zero)·Wᵀ * token scale * channel scale (+ b): int8 summed in int32, bfloat16 out (SmoothQuant).

    The zero point of a token is taken off its sums by the sums of the weights' rows, which are known beforehand.
    """

    def compute(x: Any, w: Any, token_scale: Any, scale: Any, *more: Any) -> Any:
        def finish(total: Any, r: Any, c: Any) -> Any:
            if zero_point:
                total = total - more[0][r] * more[1][c]
            y = total.astype("float32") * (token_scale[r] * scale[c])
            return y + more[-1][c].astype("float32") if bias else y

        return product(x, w, n, "bfloat16", finish)

    more: dict[str, Argument] = {"zeros": ((m,), "int32"), "sums": ((n,), "int32")} if zero_point else {}
    if bias:
        more["shift"] = ((n,), "bfloat16")
    return computed(
        "w8a8_matmul",
        compute,
        x=((m, k), "int8"),
        w=((n, k), "int8"),
        token_scale=((m,), "float32"),
        scale=((n,), "float32"),
        **more,
    )


def fp8_matmul(m: int, n: int, k: int, per_token: bool, dtype: str = "bfloat16") -> Program:
    """Y = X·Wᵀ of float8 (e4m3), with a scale for each token and channel, or one for each whole matrix."""

    def compute(x: Any, w: Any, token_scale: Any, scale: Any) -> Any:
        def finish(total: Any, r: Any, c: Any) -> Any:
            return total * (token_scale[r] * scale[c] if per_token else token_scale[0] * scale[0])

        return product(x, w, n, dtype, finish)

    return computed(
        "fp8_matmul",
        compute,
        x=((m, k), "float8_e4m3fn"),
        w=((n, k), "float8_e4m3fn"),
        token_scale=((m if per_token else 1,), "float32"),
        scale=((n if per_token else 1,), "float32"),
    )


def fp8_block_matmul(m: int, n: int, k: int, block: int = 128, tile: int = 128, scales: str = "float32") -> Program:
    """Y = X·Wᵀ of float8 (e4m3), bfloat16 out, with a scale for every `block` steps of a row of X and of W.

    `tile` rows of W share their scales: 128 for DeepSeek-V3's weights, 1 for the microscaling format MXFP8, whose
    scales are powers of two (`float8_e8m0fnu`).
    """
    from tvm import te

    def compute(x: Any, w: Any, token_scale: Any, scale: Any) -> Any:
        outer, inner = te.reduce_axis((0, k // block), name="kb"), te.reduce_axis((0, block), name="ki")

        def element(r: Any, c: Any) -> Any:
            step = outer * block + inner
            scaled = token_scale[r, outer].astype("float32") * scale[c // tile, outer].astype("float32")
            return te.sum(
                x[r, step].astype("float32") * w[c, step].astype("float32") * scaled,
                axis=[outer, inner],
            )

        total = te.compute((m, n), element, name="matmul")
        return te.compute((m, n), lambda r, c: total[r, c].astype("bfloat16"), name="cast")

    return computed(
        "fp8_block_matmul",
        compute,
        x=((m, k), "float8_e4m3fn"),
        w=((n, k), "float8_e4m3fn"),
        token_scale=((m, k // block), scales),
        scale=((-(-n // tile), k // block), scales),
    )


def w4a8_matmul(m: int, n: int, k: int, group: int, staged: bool) -> Program:
    """Y = X·Wᵀ: int8 activations, 4-bit weights made int8 by a step and a zero point a group, float16 out (QServe).

    Two levels of scales: whole steps inside a channel, one float32 for each channel and token outside.
    """
    from tvm import te

    def compute(x: Any, packed: Any, steps: Any, zeros: Any, token_scale: Any, scale: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            nibble = (packed[r, c // 2] >> (c % 2 * 4).astype("uint8")) & te.const(15, "uint8")
            centred = nibble.astype("int32") - zeros[r, c // group].astype("int32")
            return (centred * steps[r, c // group].astype("int32")).astype("int8")

        return product(
            x,
            stage((n, k), element, staged),
            n,
            "bfloat16",
            lambda total, r, c: total.astype("float32") * (token_scale[r] * scale[c]),
        )

    return computed(
        "w4a8_matmul",
        compute,
        x=((m, k), "int8"),
        packed=((n, k // 2), "uint8"),
        steps=((n, k // group), "int8"),
        zeros=((n, k // group), "int8"),
        token_scale=((m,), "float32"),
        scale=((n,), "float32"),
    )


def quantize(rows: int, hidden: int) -> Program:
    """float16 activations made int8 with a scale for each row; both are kept."""
    return computed("quantize", zoo.quantized, x=((rows, hidden), "float16"))


def embedding_norm(tokens: int, vocabulary: int, positions: int, hidden: int) -> Program:
    """layer_norm(E[token] + P[position]), float32: two look-ups, a sum and a normalisation."""
    from tvm import te, topi

    def compute(token: Any, position: Any, words: Any, places: Any, weight: Any, bias: Any) -> Any:
        total = te.compute((tokens, hidden), lambda t, h: words[token[t], h] + places[position[t], h], name="embedding")
        return topi.nn.layer_norm(total, weight, bias, axis=[1], epsilon=1e-12)

    return computed(
        "embedding_norm",
        compute,
        token=((tokens,), "int32"),
        position=((tokens,), "int32"),
        words=((vocabulary, hidden), "float32"),
        places=((positions, hidden), "float32"),
        weight=((hidden,), "float32"),
        bias=((hidden,), "float32"),
    )


def embedding_bag(
    bags: int, size: int, rows: int, dim: int, dtype: str = "float32", weighted: bool = False, mean: bool = False
) -> Program:
    """Y[b] = Σₛ T[index[b, s]], float32: look-ups summed in bags of equal size.

    `weighted` multiplies each row by a float32 of its own; `mean` sums the first length[b] of a bag and divides.
    """
    from tvm import te, tirx

    def compute(table: Any, index: Any, *more: Any) -> Any:
        axis = te.reduce_axis((0, size), name="s")

        def element(b: Any, d: Any) -> Any:
            row = table[index[b, axis], d].astype("float32")
            if weighted:
                row = row * more[0][b, axis]
            if mean:
                row = tirx.Select(axis.var < more[0][b], row, tirx.const(0.0, "float32"))
            return te.sum(row, axis=axis)

        total = te.compute((bags, dim), element, name="embedding_bag")
        if not mean:
            return total
        one = tirx.const(1, "int32")
        return te.compute(
            (bags, dim), lambda b, d: total[b, d] / te.max(more[0][b], one).astype("float32"), name="mean"
        )

    more: dict[str, Argument] = {"weight": ((bags, size), "float32")} if weighted else {}
    if mean:
        more["length"] = ((bags,), "int32")
    return computed("embedding_bag", compute, table=((rows, dim), dtype), index=((bags, size), "int64"), **more)


def paged_scores(tokens: int, page: int, pages: int, heads: int, group: int, dim: int) -> Program:
    """Scores of one decoding step against a paged int8 cache, with a scale for each head of each slot, float32."""
    from tvm import te

    def compute(q: Any, cache: Any, scale: Any, page_table: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(h: Any, g: Any, t: Any) -> Any:
            key = cache[page_table[t // page], t % page, h, axis].astype("float32")
            return te.sum(q[h, g, axis] * key, axis=axis)

        scores = te.compute((heads, group, tokens), dot, name="scores")
        return te.compute(
            (heads, group, tokens),
            lambda h, g, t: scores[h, g, t] * scale[page_table[t // page], t % page, h],
            name="scaled",
        )

    return computed(
        "paged_scores",
        compute,
        q=((heads, group, dim), "float32"),
        cache=((pages, page, heads, dim), "int8"),
        scale=((pages, page, heads), "float32"),
        page_table=((tokens // page,), "int32"),
    )
