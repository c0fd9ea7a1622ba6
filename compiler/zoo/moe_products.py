"""Products of all experts that a device holds, each on an equal share of rows: X is [experts, rows, width].

Weights are [experts, out, in] unless a function says otherwise. Accumulation is in float32, or in int32 for int8.
"""

from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, export

Activation = Literal["silu", "gelu", "relu"]


def expert_gate_up(
    experts: int, rows: int, hidden: int, inner: int, dtype: str, bias: bool = False, turned: bool = False
) -> Program:
    """Gate and up projection as one product: `inner` columns of each. `turned`: weights are [experts, in, out], as
    gpt-oss and Llama 4 keep them."""
    from tvm.relax.frontend.nn import op

    def product(x: Any, w: Any) -> Any:
        return op.matmul(x, w if turned else op.permute_dims(w, [0, 2, 1]), out_dtype="float32")

    def plain(x: Any, w: Any) -> Any:
        return op.astype(product(x, w), dtype)

    def biased(x: Any, w: Any, bias: Any) -> Any:
        return op.astype(product(x, w) + bias, dtype)

    shape = (experts, hidden, 2 * inner) if turned else (experts, 2 * inner, hidden)
    arguments = {"x": ((experts, rows, hidden), dtype), "w": (shape, dtype)}
    if bias:
        return export(biased, **arguments, bias=((experts, 1, 2 * inner), "float32"))
    return export(plain, **arguments)


def expert_up(
    experts: int,
    rows: int,
    hidden: int,
    inner: int,
    dtype: str,
    activation: Activation = "silu",
    gated: bool = True,
    bias: bool = False,
) -> Program:
    """Up projection with what comes after it: activation(G) * (X·Wᵀ), where the gate's product G is there already;
    or activation(X·Wᵀ (+ b)) in a network without a gate (Switch, NLLB)."""
    from tvm.relax.frontend.nn import op

    active = {"silu": op.silu, "gelu": lambda v: op.gelu(v, approximate="tanh"), "relu": op.relu}[activation]

    def product(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(w, [0, 2, 1]), out_dtype="float32")

    def out(y: Any) -> Any:
        return y if dtype == "float32" else op.astype(y, dtype)

    def with_gate(x: Any, w: Any, gate: Any) -> Any:
        wide = gate if dtype == "float32" else op.astype(gate, "float32")
        return out(active(wide) * product(x, w))

    def plain(x: Any, w: Any) -> Any:
        return out(active(product(x, w)))

    def biased(x: Any, w: Any, bias: Any) -> Any:
        return out(active(product(x, w) + bias))

    arguments = {"x": ((experts, rows, hidden), dtype), "w": ((experts, inner, hidden), dtype)}
    if gated:
        return export(with_gate, **arguments, gate=((experts, rows, inner), dtype))
    if bias:
        return export(biased, **arguments, bias=((experts, 1, inner), "float32"))
    return export(plain, **arguments)


def expert_down(
    experts: int,
    rows: int,
    hidden: int,
    inner: int,
    dtype: str,
    weighted: bool = True,
    bias: bool = False,
    turned: bool = False,
) -> Program:
    """Down projection (+ b), each row times its routing weight where `weighted`. `turned` as in `expert_gate_up`."""
    from tvm.relax.frontend.nn import op

    def product(x: Any, w: Any) -> Any:
        return op.matmul(x, w if turned else op.permute_dims(w, [0, 2, 1]), out_dtype="float32")

    def out(y: Any) -> Any:
        return y if dtype == "float32" else op.astype(y, dtype)

    def plain(x: Any, w: Any) -> Any:
        return out(product(x, w))

    def scaled(x: Any, w: Any, weight: Any) -> Any:
        return out(product(x, w) * weight)

    def biased(x: Any, w: Any, weight: Any, bias: Any) -> Any:
        return out((product(x, w) + bias) * weight)

    shape = (experts, inner, hidden) if turned else (experts, hidden, inner)
    arguments = {"x": ((experts, rows, inner), dtype), "w": (shape, dtype)}
    weight = ((experts, rows, 1), "float32")
    if bias:
        return export(biased, **arguments, weight=weight, bias=((experts, 1, hidden), "float32"))
    return export(scaled, **arguments, weight=weight) if weighted else export(plain, **arguments)


def expert_w8a8(experts: int, rows: int, n: int, k: int, dtype: Literal["int8", "float8_e4m3fn"]) -> Program:
    """X·Wᵀ of int8 or fp8, times a scale for each row and one for each output channel, bfloat16 out."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def scaled(y: Any, row_scale: Any, scale: Any) -> Any:
        def element(e: Any, r: Any, c: Any) -> Any:
            return (y[e, r, c].astype("float32") * row_scale[e, r] * scale[e, c]).astype("bfloat16")

        return te.compute((experts, rows, n), element, name="scaled")

    def forward(x: Any, w: Any, row_scale: Any, scale: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [0, 2, 1]), out_dtype="int32" if dtype == "int8" else "float32")
        return op.tensor_expr_op(scaled, "scaled", [y, row_scale, scale])

    return export(
        forward,
        x=((experts, rows, k), dtype),
        w=((experts, n, k), dtype),
        row_scale=((experts, rows), "float32"),
        scale=((experts, n), "float32"),
    )


def tile_w8a8(tiles: int, tile: int, experts: int, n: int, k: int, dtype: Literal["int8", "float8_e4m3fn"]) -> Program:
    """Y[t, r] = X[t, r]·W[expert[t]]ᵀ of int8 or fp8 in tiles of one expert each, with the scales of `expert_w8a8`."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    wide = "int32" if dtype == "int8" else "float32"

    def compute(x: Any, w: Any, expert: Any, row_scale: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")

        def part(t: Any, r: Any, c: Any) -> Any:
            return te.sum(x[t, r, axis].astype(wide) * w[expert[t], c, axis].astype(wide), axis=axis)

        total = te.compute((tiles, tile, n), part, name="tile_w8a8")

        def element(t: Any, r: Any, c: Any) -> Any:
            return (total[t, r, c].astype("float32") * row_scale[t, r] * scale[expert[t], c]).astype("bfloat16")

        return te.compute((tiles, tile, n), element, name="scaled")

    def forward(x: Any, w: Any, expert: Any, row_scale: Any, scale: Any) -> Any:
        return op.tensor_expr_op(compute, "tile_w8a8", [x, w, expert, row_scale, scale])

    return export(
        forward,
        x=((tiles, tile, k), dtype),
        w=((experts, n, k), dtype),
        expert=((tiles,), "int32"),
        row_scale=((tiles, tile), "float32"),
        scale=((experts, n), "float32"),
    )


def expert_fp8_blocks(experts: int, rows: int, n: int, k: int, group: int = 128) -> Program:
    """X·Wᵀ of fp8 with scales inside the sum: one for each `group` elements of a row of X, one for each square of
    `group` by `group` weights (DeepSeek-V3), bfloat16 out."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, row_scale: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")

        def part(e: Any, r: Any, c: Any) -> Any:
            value = x[e, r, axis].astype("float32") * w[e, c, axis].astype("float32")
            both = row_scale[e, r, axis // group] * scale[e, c // group, axis // group]
            return te.sum(value * both, axis=axis)

        total = te.compute((experts, rows, n), part, name="expert_fp8_blocks")
        return te.compute((experts, rows, n), lambda e, r, c: total[e, r, c].astype("bfloat16"), name="cast")

    def forward(x: Any, w: Any, row_scale: Any, scale: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_fp8_blocks", [x, w, row_scale, scale])

    groups = -(-k // group)
    return export(
        forward,
        x=((experts, rows, k), "float8_e4m3fn"),
        w=((experts, n, k), "float8_e4m3fn"),
        row_scale=((experts, rows, groups), "float32"),
        scale=((experts, -(-n // group), groups), "float32"),
    )


def expert_w4a16(
    experts: int, rows: int, n: int, k: int, group: int, dtype: str, kind: Literal["int4", "fp4"]
) -> Program:
    """X·Wᵀ with 4-bit weights, eight to a uint32, and a scale for each `group` elements of the reduction axis.

    int4: nibble - 8, as GPTQ and AWQ keep experts; fp4: sign, two bits of exponent and one of mantissa, as gpt-oss
    does, whose powers of two as scales are widened to `dtype` here.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, packed: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")

        def weight(e: Any, r: Any, c: Any) -> Any:
            nibble = (packed[e, r, c // 8] >> (c % 8 * 4).astype("uint32")) & te.const(15, "uint32")
            value = e2m1(nibble) if kind == "fp4" else nibble.astype(dtype) - te.const(8, dtype)
            return value * scale[e, r, c // group]

        def e2m1(nibble: Any) -> Any:
            size = (nibble & te.const(7, "uint32")).astype("int32")
            # 0, 0.5, 1, 1.5, 2, 3, 4, 6: below 4 the steps are halves, then whole, then 2
            halves = tirx.Select(size < 4, size, tirx.Select(size < 6, size * 2 - 4, size * 4 - 16))
            signed = tirx.Select(nibble > te.const(7, "uint32"), -halves, halves)
            return signed.astype(dtype) * te.const(0.5, dtype)

        weights = te.compute((experts, n, k), weight, name="dequantize")
        total = te.compute(
            (experts, rows, n),
            lambda e, r, c: te.sum(x[e, r, axis].astype("float32") * weights[e, c, axis].astype("float32"), axis=axis),
            name="expert_w4a16",
        )
        return te.compute((experts, rows, n), lambda e, r, c: total[e, r, c].astype(dtype), name="cast")

    def forward(x: Any, packed: Any, scale: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_w4a16", [x, packed, scale])

    return export(
        forward,
        x=((experts, rows, k), dtype),
        packed=((experts, n, k // 8), "uint32"),
        scale=((experts, n, k // group), dtype),
    )
