"""Quantisation: scales from what is quantised (a reduction), then the rounding; alone, and after a norm or a gate."""

from typing import Any

from littledragon.compiler.zoo.block import Program, computed

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest value of each type that is quantised to."""


def quantize_rows(rows: int, hidden: int, source: str, to: str) -> Program:
    """Each row by a scale of its own, max|x| / largest; gives whole numbers (or float8) and scales."""
    return computed("quantize_rows", lambda x: _by_rows(x, to), x=((rows, hidden), source))


def quantize_groups(rows: int, hidden: int, group: int, source: str, to: str, power_of_two: bool = False) -> Program:
    """Each `group` elements of a row by a scale of their own, a power of two in microscaling formats."""
    return computed("quantize_groups", lambda x: _by_groups(x, group, to, power_of_two), x=((rows, hidden), source))


def silu_mul_quantize_groups(rows: int, inner: int, group: int, to: str) -> Program:
    """silu(A) * B of the halves of a bfloat16 matrix, then each `group` of a row by a scale of its own."""
    from tvm import te, tirx

    def compute(x: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            gate = x[r, c].astype("float32")
            return gate * tirx.sigmoid(gate) * x[r, c + inner].astype("float32")

        return _by_groups(te.compute((rows, inner), element, name="silu_mul"), group, to, False)

    return computed("silu_mul_quantize_groups", compute, x=((rows, 2 * inner), "bfloat16"))


def norm_quantize(rows: int, hidden: int, source: str, to: str, static: bool) -> Program:
    """RMS normalisation, then float8 or int8 by a scale for each row, or (`static`) by one that was calibrated."""
    from tvm import te

    def compute(x: Any, weight: Any, *scale: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")
        square = te.compute(
            (rows,),
            lambda r: te.sum(x[r, axis].astype("float32") * x[r, axis].astype("float32"), axis=axis),
            name="square",
        )
        normal = te.compute(
            (rows, hidden),
            lambda r, c: x[r, c].astype("float32") * te.rsqrt(square[r] / hidden + 1e-6) * weight[c].astype("float32"),
            name="normal",
        )
        if not static:
            return _by_rows(normal, to)
        return te.compute((rows, hidden), lambda r, c: _rounded(normal[r, c] / scale[0][0], to), name="quantize")

    more = {"scale": ((1,), "float32")} if static else {}
    return computed("norm_quantize", compute, x=((rows, hidden), source), weight=((hidden,), source), **more)


def quantize_tiles(rows: int, columns: int, tile: int) -> Program:
    """bfloat16 weights made float8 (e4m3) with a scale for each tile x tile of them (DeepSeek-V3)."""
    from tvm import te

    def compute(w: Any) -> Any:
        down, along = te.reduce_axis((0, tile), name="i"), te.reduce_axis((0, tile), name="j")
        largest = te.compute(
            (rows // tile, columns // tile),
            lambda a, b: te.max(te.abs(w[a * tile + down, b * tile + along].astype("float32")), axis=[down, along]),
            name="absmax",
        )
        scale = te.compute(largest.shape, lambda a, b: _scale(largest[a, b], "float8_e4m3fn"), name="scale")
        whole = te.compute(
            (rows, columns),
            lambda r, c: _rounded(w[r, c].astype("float32") / scale[r // tile, c // tile], "float8_e4m3fn"),
            name="quantize",
        )
        return [whole, scale]

    return computed("quantize_tiles", compute, w=((rows, columns), "bfloat16"))


def quantize_pack(rows: int, columns: int, group: int, source: str) -> Program:
    """Weights made 4 bits by a scale for each group of a row, eight of them packed in a uint32."""
    from tvm import te, tirx

    def compute(w: Any) -> Any:
        axis, part = te.reduce_axis((0, group), name="k"), te.reduce_axis((0, 8), name="part")
        largest = te.compute(
            (rows, columns // group),
            lambda r, g: te.max(te.abs(w[r, g * group + axis].astype("float32")), axis=axis),
            name="absmax",
        )
        scale = te.compute(
            largest.shape, lambda r, g: te.max(largest[r, g], tirx.const(1e-6, "float32")) / 7.0, name="scale"
        )

        def word(r: Any, c: Any) -> Any:
            step = c * 8 + part
            whole = te.round(w[r, step].astype("float32") / scale[r, step // group]) + 8.0
            return te.sum(whole.astype("uint32") << (part * 4).astype("uint32"), axis=part)

        return [te.compute((rows, columns // 8), word, name="pack"), scale]

    return computed("quantize_pack", compute, w=((rows, columns), source))


def quantize_channels(rows: int, columns: int, source: str) -> Program:
    """int8 with a scale for each column, from all rows: keys of a cache, or statistics for calibration."""
    from tvm import te

    def compute(x: Any) -> Any:
        axis = te.reduce_axis((0, rows), name="k")
        largest = te.compute(
            (columns,), lambda c: te.max(te.abs(x[axis, c].astype("float32")), axis=axis), name="absmax"
        )
        scale = te.compute((columns,), lambda c: _scale(largest[c], "int8"), name="scale")
        whole = te.compute(
            (rows, columns), lambda r, c: _rounded(x[r, c].astype("float32") / scale[c], "int8"), name="quantize"
        )
        return [whole, scale]

    return computed("quantize_channels", compute, x=((rows, columns), source))


def cast_transpose(rows: int, columns: int, to: str) -> Program:
    """bfloat16 made float8 by a scale known beforehand, as it is and transposed, and the largest of each row, from
    which the next step's scale follows (training in float8 with delayed scaling).
    """
    from tvm import te

    def compute(x: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, columns), name="k")
        whole = te.compute(
            (rows, columns), lambda r, c: _rounded(x[r, c].astype("float32") / scale[0], to), name="quantize"
        )
        turned = te.compute(
            (columns, rows), lambda c, r: _rounded(x[r, c].astype("float32") / scale[0], to), name="transpose"
        )
        largest = te.compute((rows,), lambda r: te.max(te.abs(x[r, axis].astype("float32")), axis=axis), name="absmax")
        return [whole, turned, largest]

    return computed("cast_transpose", compute, x=((rows, columns), "bfloat16"), scale=((1,), "float32"))


def hadamard_quantize(tokens: int, heads: int, dim: int, source: str) -> Program:
    """Each head's vector turned by an orthogonal matrix, then made int8 by a scale of its own (QuaRot)."""
    from tvm import te

    def compute(x: Any, rotation: Any) -> Any:
        axis, other = te.reduce_axis((0, dim), name="k"), te.reduce_axis((0, dim), name="e")
        turned = te.compute(
            (tokens, heads, dim),
            lambda t, h, d: te.sum(x[t, h, axis].astype("float32") * rotation[d, axis].astype("float32"), axis=axis),
            name="turned",
        )
        largest = te.compute(
            (tokens, heads), lambda t, h: te.max(te.abs(turned[t, h, other]), axis=other), name="absmax"
        )
        scale = te.compute((tokens, heads), lambda t, h: _scale(largest[t, h], "int8"), name="scale")
        whole = te.compute(
            (tokens, heads, dim), lambda t, h, d: _rounded(turned[t, h, d] / scale[t, h], "int8"), name="quantize"
        )
        return [whole, scale]

    return computed("hadamard_quantize", compute, x=((tokens, heads, dim), source), rotation=((dim, dim), source))


def _by_rows(x: Any, to: str) -> list[Any]:
    from tvm import te

    rows, columns = x.shape
    axis = te.reduce_axis((0, columns), name="e")
    largest = te.compute((rows,), lambda r: te.max(te.abs(x[r, axis].astype("float32")), axis=axis), name="absmax")
    scale = te.compute((rows,), lambda r: _scale(largest[r], to), name="scale")
    whole = te.compute(
        (rows, columns), lambda r, c: _rounded(x[r, c].astype("float32") / scale[r], to), name="quantize"
    )
    return [whole, scale]


def _by_groups(x: Any, group: int, to: str, power_of_two: bool) -> list[Any]:
    from tvm import te, tirx

    rows, columns = x.shape
    axis = te.reduce_axis((0, group), name="k")
    largest = te.compute(
        (rows, columns // group),
        lambda r, g: te.max(te.abs(x[r, g * group + axis].astype("float32")), axis=axis),
        name="absmax",
    )

    def rounded_up(r: Any, g: Any) -> Any:
        scale = _scale(largest[r, g], to)
        return tirx.exp2(tirx.ceil(tirx.log2(scale))) if power_of_two else scale

    scale = te.compute(largest.shape, rounded_up, name="scale")
    whole = te.compute(
        (rows, columns), lambda r, c: _rounded(x[r, c].astype("float32") / scale[r, c // group], to), name="quantize"
    )
    return [whole, scale]


def _scale(largest: Any, to: str) -> Any:
    """In TE: what the largest element is divided by to become the largest value of the type; never 0."""
    from tvm import te, tirx

    return te.max(largest, tirx.const(1e-6, "float32")) / LARGEST[to]


def _rounded(value: Any, to: str) -> Any:
    """In TE: a float32 as the type, cut to its range."""
    from tvm import te, tirx

    bound = LARGEST[to]
    kept = te.max(te.min(value, tirx.const(bound, "float32")), tirx.const(-bound, "float32"))
    return (te.round(kept) if to == "int8" else kept).astype(to)
