"""Mixture of experts: the router, products that choose their expert by index, gates, and the moves of tokens.

What is decided from the router's scores stands in `moe_routing`, further moves in `moe_moves`, products of experts
with an equal share of rows in `moe_products`, and what only training runs in `moe_training`.
"""

from typing import Any, Final, Literal

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Program, export

Gate = Literal["silu", "gelu", "clamped"]
"""What a gated network does to its two halves: silu(a) * b, gelu(a) * b by tanh, or gpt-oss's
min(a, 7) * sigmoid(1.702 * a) * (clip(b, -7, 7) + 1)."""

LARGEST: Final = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest number of each type that activations are quantised to."""


def router(
    tokens: int,
    experts: int,
    hidden: int,
    dtype: str = "float16",
    score: Literal["none", "bias", "softmax", "sigmoid", "corrected"] = "softmax",
) -> Program:
    """Scores of the experts, float32, from X·Wᵀ.

    none: the products as they are; bias: plus a bias an expert (gpt-oss); softmax over the experts; sigmoid of each
    (Llama 4); corrected: the sigmoid plus a correction, by which DeepSeek-V3 and its kin choose.
    """
    from tvm.relax.frontend.nn import op

    def scores(x: Any, w: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="float32")
        if score == "softmax":
            return op.softmax(y, axis=-1)
        return op.sigmoid(y) if score in ("sigmoid", "corrected") else y

    def plain(x: Any, w: Any) -> Any:
        return scores(x, w)

    def biased(x: Any, w: Any, bias: Any) -> Any:
        return scores(x, w) + bias

    arguments = {"x": ((tokens, hidden), dtype), "w": ((experts, hidden), dtype)}
    if score in ("bias", "corrected"):
        return export(biased, **arguments, bias=((experts,), "float32"))
    return export(plain, **arguments)


def grouped_gemm(rows: int, experts: int, n: int, k: int, dtype: str = "float16") -> Program:
    """Y[r] = X[r]·W[expert[r]]ᵀ, half precision with float32 accumulation: the weight is chosen row by row."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, expert: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")
        product = te.compute(
            (rows, n),
            lambda r, c: te.sum(x[r, axis].astype("float32") * w[expert[r], c, axis].astype("float32"), axis=axis),
            name="grouped_gemm",
        )
        return te.compute((rows, n), lambda r, c: product[r, c].astype(dtype), name="cast")

    def forward(x: Any, w: Any, expert: Any) -> Any:
        return op.tensor_expr_op(compute, "grouped_gemm", [x, w, expert])

    return export(forward, x=((rows, k), dtype), w=((experts, n, k), dtype), expert=((rows,), "int32"))


def tile_gemm(tiles: int, tile: int, experts: int, n: int, k: int, tokens: int = 0, dtype: str = "bfloat16") -> Program:
    """Y[t, r] = X[t, r]·W[expert[t]]ᵀ: rows come in tiles of one expert each, padded, as fused kernels want them.

    Half precision with float32 accumulation. Where `tokens` is not 0, the rows are not moved beforehand:
    Y[t, r] = X[source[t, r]]·W[expert[t]]ᵀ, as vLLM's kernel has it.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    def product(row: Any, w: Any, expert: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")
        total = te.compute(
            (tiles, tile, n),
            lambda t, r, c: te.sum(row(t, r, axis).astype("float32") * w[expert[t], c, axis].astype("float32"), axis),
            name="tile_gemm",
        )
        return te.compute((tiles, tile, n), lambda t, r, c: total[t, r, c].astype(dtype), name="cast")

    def moved(x: Any, w: Any, expert: Any) -> Any:
        return op.tensor_expr_op(lambda a, b, c: product(lambda t, r, v: a[t, r, v], b, c), "tile_gemm", [x, w, expert])

    def in_place(x: Any, w: Any, expert: Any, source: Any) -> Any:
        def compute(a: Any, b: Any, c: Any, d: Any) -> Any:
            return product(lambda t, r, v: a[d[t, r], v], b, c)

        return op.tensor_expr_op(compute, "tile_gemm", [x, w, expert, source])

    weight, expert = ((experts, n, k), dtype), ((tiles,), "int32")
    if tokens:
        return export(in_place, x=((tokens, k), dtype), w=weight, expert=expert, source=((tiles, tile), "int32"))
    return export(moved, x=((tiles, tile, k), dtype), w=weight, expert=expert)


def silu_mul(rows: int, inner: int, dtype: str, gate: Gate = "silu") -> Program:
    """The gate of a network whose gate and up projection are one product: halves of a row, or, where the gate is
    `clamped`, elements by turns. Computed in float32."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any) -> Any:
        by_turns = gate == "clamped"

        def first(r: Any, c: Any) -> Any:
            return x[r, 2 * c if by_turns else c].astype("float32")

        def second(r: Any, c: Any) -> Any:
            return x[r, 2 * c + 1 if by_turns else c + inner].astype("float32")

        active = te.compute((rows, inner), lambda r, c: activation(first(r, c), gate), name="active")
        return te.compute(
            (rows, inner), lambda r, c: (active[r, c] * passed(second(r, c), gate)).astype(dtype), name="mul"
        )

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(compute, f"{gate}_mul", [x])

    return export(forward, x=((rows, 2 * inner), dtype))


def silu_mul_masked(experts: int, rows: int, inner: int, dtype: str, gate: Gate = "silu") -> Program:
    """The gate on each expert's first count[e] of `rows` rows; the others become 0. Computed in float32."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, count: Any) -> Any:
        active = te.compute(
            (experts, rows, inner), lambda e, r, c: activation(x[e, r, c].astype("float32"), gate), name="active"
        )

        def element(e: Any, r: Any, c: Any) -> Any:
            value = (active[e, r, c] * x[e, r, c + inner].astype("float32")).astype(dtype)
            return tirx.Select(r < count[e], value, tirx.const(0.0, dtype))

        return te.compute((experts, rows, inner), element, name="mul")

    def forward(x: Any, count: Any) -> Any:
        return op.tensor_expr_op(compute, f"{gate}_mul_masked", [x, count])

    return export(forward, x=((experts, rows, 2 * inner), dtype), count=((experts,), "int32"))


def activation(value: Any, gate: Gate) -> Any:
    """The half of a pair that is the gate, in TE, float32."""
    from tvm import te, tirx

    if gate == "gelu":
        cube = value * value * value
        return value * 0.5 * (1.0 + te.tanh(0.7978845608028654 * (value + 0.044715 * cube)))
    if gate == "clamped":
        low = te.min(value, tirx.const(7.0, "float32"))
        return low * tirx.sigmoid(low * 1.702)
    return value * tirx.sigmoid(value)


def passed(value: Any, gate: Gate) -> Any:
    """The half of a pair that the gate lets pass, in TE, float32."""
    from tvm import te, tirx

    if gate != "clamped":
        return value
    return te.max(te.min(value, tirx.const(7.0, "float32")), tirx.const(-7.0, "float32")) + 1.0


def silu_mul_quantize(
    rows: int, inner: int, dtype: str = "float16", to: str = "int8", group: int = 0, gate: Gate = "silu"
) -> Program:
    """The gate of the halves of one matrix, then int8 or fp8 with a scale for each row, or each `group` elements."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            value = x[r, c].astype("float32")
            first = value * tirx.sigmoid(value) if gate == "silu" else activation(value, gate)
            return first * x[r, c + inner].astype("float32")

        return quantized(te.compute((rows, inner), element, name="silu_mul"), to, group)

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(compute, "silu_mul_quantize", [x])

    return export(forward, x=((rows, 2 * inner), dtype))


def quantized(x: Any, to: str, group: int = 0) -> Any:
    """In TE: a float32 matrix made int8 or fp8 with a scale for each row, or each `group` elements of it.

    Gives [y, scale]; scale = max|x| / `LARGEST`.

    Raises:
        ValueError: the groups do not fill a row.
    """
    from tvm import te, tirx

    if to == "int8" and not group:
        return zoo.quantized(x)
    rows, columns = (int(extent) for extent in x.shape)
    width = group or columns
    if columns % width:
        raise ValueError(f"{columns} elements are not in groups of {width}")
    axis, most = te.reduce_axis((0, width), name="k"), LARGEST[to]
    groups = columns // width
    largest = te.compute((rows, groups), lambda r, g: te.max(te.abs(x[r, g * width + axis]), axis=axis), name="absmax")
    scale = te.compute(
        (rows, groups), lambda r, g: te.max(largest[r, g], tirx.const(1e-6, "float32")) / most, name="scale"
    )

    def element(r: Any, c: Any) -> Any:
        value = te.max(
            te.min(x[r, c] / scale[r, c // width], tirx.const(most, "float32")), tirx.const(-most, "float32")
        )
        return (te.round(value) if to == "int8" else value).astype(to)

    return [te.compute((rows, columns), element, name="quantize"), scale]


def combine(tokens: int, top: int, hidden: int, dtype: str = "float32") -> Program:
    """Y[t] = Σₖ weight[t, k] · E[slot[t, k]]: the experts' rows come back to their tokens, summed in float32."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(rows: Any, slot: Any, weight: Any) -> Any:
        axis = te.reduce_axis((0, top), name="k")
        total = te.compute(
            (tokens, hidden),
            lambda t, h: te.sum(weight[t, axis] * rows[slot[t, axis], h].astype("float32"), axis=axis),
            name="combine",
        )
        if dtype == "float32":
            return total
        return te.compute((tokens, hidden), lambda t, h: total[t, h].astype(dtype), name="cast")

    def forward(rows: Any, slot: Any, weight: Any) -> Any:
        return op.tensor_expr_op(compute, "combine", [rows, slot, weight])

    return export(
        forward,
        rows=((tokens * top, hidden), dtype),
        slot=((tokens, top), "int32"),
        weight=((tokens, top), "float32"),
    )


def dispatch_quantize(
    tokens: int, top: int, hidden: int, dtype: str = "float16", to: str = "int8", group: int = 0
) -> Program:
    """Row source[s] of X for each slot s of an expert, made int8 or fp8 with a scale for each slot, or each `group`
    elements of it."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, source: Any) -> Any:
        rows = te.compute((tokens * top, hidden), lambda s, h: x[source[s], h].astype("float32"), name="gather")
        return quantized(rows, to, group)

    def forward(x: Any, source: Any) -> Any:
        return op.tensor_expr_op(compute, "dispatch_quantize", [x, source])

    return export(forward, x=((tokens, hidden), dtype), source=((tokens * top,), "int32"))


def expert_mlp(experts: int, rows: int, hidden: int, inner: int) -> Program:
    """Every expert's gated network on an equal share of rows, float32: three batched products and a gate."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, gate: Any, up: Any, down: Any) -> Any:
        left = op.matmul(x, op.permute_dims(gate, [0, 2, 1]))
        right = op.matmul(x, op.permute_dims(up, [0, 2, 1]))
        return op.matmul(op.silu(left) * right, op.permute_dims(down, [0, 2, 1]))

    weight = ((experts, inner, hidden), "float32")
    return export(
        forward,
        x=((experts, rows, hidden), "float32"),
        gate=weight,
        up=weight,
        down=((experts, hidden, inner), "float32"),
    )
