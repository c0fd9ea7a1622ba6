"""Linear layers: X·Wᵀ and what models do to it before it is stored. Half precision accumulates in float32.

Other orders of axes stand in `gemm_contractions`, narrow types with scales in `gemm_narrow`.
"""

from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, export, named

Activation = Literal["none", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "tanh"]
Join = Literal["none", "add", "add_two", "layer_scale", "gate", "times", "cross"]
"""What a layer's output Y is joined with, each a further argument: nothing; R + Y; R + S + Y, where attention and
network run side by side; R + g·Y with a g for each feature (LayerScale), or for each sequence and feature (adaptive
normalisation); U·Y; R + U·Y, a cross layer of a recommendation model."""


def linear(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float16",
    batch: int = 1,
    stored: Literal["nk", "kn"] = "nk",
    bias: bool = False,
    activation: Activation = "none",
    factor: float = 1.0,
    join: Join = "none",
) -> Program:
    """act(X·Wᵀ + b)·factor, joined with something. X is [m, k], or [batch, m, k] where `batch` is above 1.

    stored: how the weight lies, [n, k] or, as in GPT-2, [k, n].
    """
    from tvm.relax.frontend.nn import op

    rows = (batch, m) if batch > 1 else (m,)
    whole = (*rows, n)
    joined: dict[Join, dict[str, tuple[int, ...]]] = {
        "none": {},
        "add": {"residual": whole},
        "add_two": {"residual": whole, "attention": whole},
        "layer_scale": {"residual": whole, "gamma": (n,)},
        "gate": {"residual": whole, "gates": (batch, n)},
        "times": {"up": whole},
        "cross": {"residual": whole, "up": whole},
    }
    others = ({"bias": (n,)} if bias else {}) | joined[join]
    shapes = {"x": (*rows, k), "w": (n, k) if stored == "nk" else (k, n)} | others
    steps = ("bias" * bias, activation, "scale" * (factor != 1.0), join)
    what = "_".join(step for step in steps if step not in ("", "none"))

    def finish(y: Any, *tensors: Any) -> Any:
        from tvm import te

        given = dict(zip(others, tensors, strict=True))

        def element(*place: Any) -> Any:
            at = {(n,): place[-1:], (batch, n): (place[0] if batch > 1 else 0, place[-1])}
            wide = {name: given[name][at.get(shape, place)].astype("float32") for name, shape in others.items()}
            value = activated(activation, y[place] + wide["bias"] if bias else y[place])
            value = value if factor == 1.0 else value * factor
            if join in ("layer_scale", "gate"):
                value = value * wide["gamma" if join == "layer_scale" else "gates"]
            if join in ("times", "cross"):
                value = wide["up"] * value
            for name in ("residual", "attention"):
                value = wide[name] + value if name in wide else value
            return value if dtype == "float32" else value.astype(dtype)

        return te.compute(y.shape, element, name=what)

    def forward(x: Any, w: Any, *tensors: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]) if stored == "nk" else w, out_dtype="float32")
        if what:
            return op.tensor_expr_op(finish, what, [y, *tensors])
        return y if dtype == "float32" else op.astype(y, dtype)

    return export(named(forward, shapes), **{name: (shape, dtype) for name, shape in shapes.items()})


def gate_up(m: int, inner: int, hidden: int, *, dtype: str, activation: Activation = "silu") -> Program:
    """act(X·Gᵀ) * (X·Uᵀ) of one product with the rows of G above those of U."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")
        both = te.compute(
            (m, 2 * inner),
            lambda r, c: te.sum(x[r, axis].astype("float32") * w[c, axis].astype("float32"), axis=axis),
            name="matmul",
        )
        return te.compute(
            (m, inner),
            lambda r, c: (activated(activation, both[r, c]) * both[r, c + inner]).astype(dtype),
            name="gate",
        )

    def forward(x: Any, w: Any) -> Any:
        return op.tensor_expr_op(compute, "gate_up", [x, w])

    return export(forward, x=((m, hidden), dtype), w=((2 * inner, hidden), dtype))


def logits(m: int, n: int, k: int, *, dtype: str, factor: float = 1.0, cap: float = 0.0) -> Program:
    """The float32 logits X·Eᵀ·factor of a vocabulary of n words, and cap·tanh(·/cap) of them where cap is not 0."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        y = op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="float32")
        y = y if factor == 1.0 else y * factor
        return op.tanh(y * (1.0 / cap)) * cap if cap else y

    return export(forward, x=((m, k), dtype), w=((n, k), dtype))


def nt_matmul_cast(m: int, n: int, k: int) -> Program:
    """Y = cast_fp16(X·Wᵀ) with float32 accumulation: the paper's own example."""
    return linear(m, n, k)


def linear_bias_gelu(m: int, n: int, k: int) -> Program:
    """Y = gelu(X·Wᵀ + b) in float32, operator by operator."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any, bias: Any) -> Any:
        return op.gelu(op.matmul(x, op.permute_dims(w, [1, 0])) + bias)

    return export(forward, x=((m, k), "float32"), w=((n, k), "float32"), bias=((n,), "float32"))


def gated_mlp(m: int, hidden: int, inner: int) -> Program:
    """down(silu(gate(X)) * up(X)) in float32: three products and a gate."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, gate: Any, up: Any, down: Any) -> Any:
        left = op.matmul(x, op.permute_dims(gate, [1, 0]))
        right = op.matmul(x, op.permute_dims(up, [1, 0]))
        return op.matmul(op.silu(left) * right, op.permute_dims(down, [1, 0]))

    weight = ((inner, hidden), "float32")
    return export(forward, x=((m, hidden), "float32"), gate=weight, up=weight, down=((hidden, inner), "float32"))


def batched_matmul(batch: int, m: int, n: int, k: int) -> Program:
    """Y[b] = X[b]·W[b] in float32, one pair of matrices for each adapter."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.matmul(x, w)

    return export(forward, x=((batch, m, k), "float32"), w=((batch, k, n), "float32"))


def int8_matmul(m: int, n: int, k: int) -> Program:
    """Y = X·Wᵀ of int8 with int32 accumulators."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="int32")

    return export(forward, x=((m, k), "int8"), w=((n, k), "int8"))


def activated(name: Activation, x: Any) -> Any:
    """In TE: the activation of one float32 value."""
    from tvm import te, tirx

    if name == "gelu":
        return 0.5 * x * (1.0 + tirx.erf(x * 0.5**0.5))
    if name == "gelu_tanh":
        return 0.5 * x * (1.0 + tirx.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    if name == "quick_gelu":
        return x * tirx.sigmoid(1.702 * x)
    if name == "silu":
        return x * tirx.sigmoid(x)
    if name == "tanh":
        return tirx.tanh(x)
    if name in ("relu", "relu2"):
        positive = te.max(x, tirx.const(0.0, "float32"))
        return positive if name == "relu" else positive * positive
    return x
