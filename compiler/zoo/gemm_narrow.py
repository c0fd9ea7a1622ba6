"""Products of int8 and fp8 matrices, whose scales come after the accumulation or, by blocks, into it."""

from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, export, named

E4M3 = "float8_e4m3fn"


def scaled(
    m: int,
    n: int,
    k: int,
    *,
    narrow: Literal["int8", "float8_e4m3fn"],
    dtype: str,
    batch: int = 1,
    scales: Literal["row", "tensor"] = "row",
    bias: bool = False,
) -> Program:
    """(X·Wᵀ) * s * t (+ b), accumulated in int32 or float32: s of each row of X and t of each row of W, or one each."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    rows = (batch, m) if batch > 1 else (m,)
    of_x, of_w = (rows, (n,)) if scales == "row" else ((1,), (1,))
    what = "dequantize_bias" if bias else "dequantize"

    def finish(y: Any, x_scale: Any, w_scale: Any, *biases: Any) -> Any:
        def element(*place: Any) -> Any:
            factors = x_scale[place[:-1] if scales == "row" else 0], w_scale[place[-1] if scales == "row" else 0]
            value = y[place].astype("float32") * factors[0] * factors[1]
            return (value + biases[0][place[-1]].astype("float32") if bias else value).astype(dtype)

        return te.compute(y.shape, element, name=what)

    def forward(x: Any, w: Any, *others: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="int32" if narrow == "int8" else "float32")
        return op.tensor_expr_op(finish, what, [y, *others])

    arguments = {
        "x": ((*rows, k), narrow),
        "w": ((n, k), narrow),
        "x_scale": (of_x, "float32"),
        "w_scale": (of_w, "float32"),
    }
    if bias:
        arguments["bias"] = ((n,), dtype)
    return export(named(forward, arguments), **arguments)


def block_scaled(m: int, n: int, k: int, *, block: int = 128, dtype: str = "bfloat16") -> Program:
    """Y = Σₖ s[m, k/block]·X·t[n/block, k/block]·W in fp8, as DeepSeek-V3 scales: X by runs, W by squares."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, x_scale: Any, w_scale: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")

        def dot(r: Any, c: Any) -> Any:
            left = x[r, axis].astype("float32") * x_scale[r, axis // block]
            return te.sum(left * (w[c, axis].astype("float32") * w_scale[c // block, axis // block]), axis=axis)

        product = te.compute((m, n), dot, name="matmul")
        return te.compute((m, n), lambda r, c: product[r, c].astype(dtype), name="cast")

    def forward(x: Any, w: Any, x_scale: Any, w_scale: Any) -> Any:
        return op.tensor_expr_op(compute, "block_scaled", [x, w, x_scale, w_scale])

    return export(
        forward,
        x=((m, k), E4M3),
        w=((n, k), E4M3),
        x_scale=((m, -(-k // block)), "float32"),
        w_scale=((-(-n // block), -(-k // block)), "float32"),
    )
