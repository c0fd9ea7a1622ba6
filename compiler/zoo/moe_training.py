"""What training runs backwards through a mixture of experts. Gradients are accumulated in float32."""

from typing import Any

from littledragon.compiler.zoo.block import Program, export


def expert_weight_grad(experts: int, rows: int, n: int, k: int, dtype: str) -> Program:
    """dW[e] = dY[e]ᵀ·X[e], float32: the sum over each expert's rows."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(dy: Any, x: Any) -> Any:
        axis = te.reduce_axis((0, rows), name="k")
        return te.compute(
            (experts, n, k),
            lambda e, a, b: te.sum(dy[e, axis, a].astype("float32") * x[e, axis, b].astype("float32"), axis=axis),
            name="expert_weight_grad",
        )

    def forward(dy: Any, x: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_weight_grad", [dy, x])

    return export(forward, dy=((experts, rows, n), dtype), x=((experts, rows, k), dtype))


def expert_input_grad(experts: int, rows: int, n: int, k: int, dtype: str) -> Program:
    """dX[e] = dY[e]·W[e], the weights as the forward product has them, [experts, n, k]."""
    from tvm.relax.frontend.nn import op

    def forward(dy: Any, w: Any) -> Any:
        if dtype == "float32":
            return op.matmul(dy, w)
        return op.astype(op.matmul(dy, w, out_dtype="float32"), dtype)

    return export(forward, dy=((experts, rows, n), dtype), w=((experts, n, k), dtype))


def silu_mul_grad(rows: int, inner: int, dtype: str) -> Program:
    """Gradients of silu(A) * B by A and by B, from that of the product; A and B are halves of one matrix."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, dy: Any) -> Any:
        # Each gradient takes its own sigmoid: TVM 0.25 inlines a block with two consumers into one of them only.
        def by_gate(r: Any, c: Any) -> Any:
            value = x[r, c].astype("float32")
            share = tirx.sigmoid(value)
            slope = share * (1.0 + value * (1.0 - share))
            return (dy[r, c].astype("float32") * x[r, c + inner].astype("float32") * slope).astype(dtype)

        def by_up(r: Any, c: Any) -> Any:
            value = x[r, c].astype("float32")
            return (dy[r, c].astype("float32") * value * tirx.sigmoid(value)).astype(dtype)

        return [te.compute((rows, inner), by_gate, name="gate_grad"), te.compute((rows, inner), by_up, name="up_grad")]

    def forward(x: Any, dy: Any) -> Any:
        return op.tensor_expr_op(compute, "silu_mul_grad", [x, dy])

    return export(forward, x=((rows, 2 * inner), dtype), dy=((rows, inner), dtype))


def dispatch_grad(tokens: int, top: int, hidden: int, dtype: str) -> Program:
    """dX[t] = Σₖ dR[slot[t, k]]: what the copies of a token's row that went to experts send back."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(rows: Any, slot: Any) -> Any:
        axis = te.reduce_axis((0, top), name="k")
        total = te.compute(
            (tokens, hidden),
            lambda t, h: te.sum(rows[slot[t, axis], h].astype("float32"), axis=axis),
            name="dispatch_grad",
        )
        return te.compute((tokens, hidden), lambda t, h: total[t, h].astype(dtype), name="cast")

    def forward(rows: Any, slot: Any) -> Any:
        return op.tensor_expr_op(compute, "dispatch_grad", [rows, slot])

    return export(forward, rows=((tokens * top, hidden), dtype), slot=((tokens, top), "int32"))


def combine_rows_grad(tokens: int, top: int, hidden: int, dtype: str) -> Program:
    """dE[s] = weight[s] · dY[token[s]] for each slot s: what the weighted sum sends back to the experts' rows."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(dy: Any, token: Any, weight: Any) -> Any:
        return te.compute(
            (tokens * top, hidden),
            lambda s, h: (weight[s] * dy[token[s], h].astype("float32")).astype(dtype),
            name="combine_rows_grad",
        )

    def forward(dy: Any, token: Any, weight: Any) -> Any:
        return op.tensor_expr_op(compute, "combine_rows_grad", [dy, token, weight])

    slots = (tokens * top,)
    return export(forward, dy=((tokens, hidden), dtype), token=(slots, "int32"), weight=(slots, "float32"))


def combine_weight_grad(tokens: int, top: int, hidden: int, dtype: str) -> Program:
    """dw[s] = Σₕ dY[token[s], h] · E[s, h], float32: what the weighted sum sends back to the routing weights."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    slots = tokens * top

    def compute(dy: Any, rows: Any, token: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")
        return te.compute(
            (slots,),
            lambda s: te.sum(dy[token[s], axis].astype("float32") * rows[s, axis].astype("float32"), axis=axis),
            name="combine_weight_grad",
        )

    def forward(dy: Any, rows: Any, token: Any) -> Any:
        return op.tensor_expr_op(compute, "combine_weight_grad", [dy, rows, token])

    return export(forward, dy=((tokens, hidden), dtype), rows=((slots, hidden), dtype), token=((slots,), "int32"))


def router_grad(tokens: int, experts: int, dtype: str) -> Program:
    """dL = P * (dP - Σ P·dP): the gradient of a softmax over the experts."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(probabilities: Any, dp: Any) -> Any:
        axis = te.reduce_axis((0, experts), name="k")
        dot = te.compute(
            (tokens,),
            lambda t: te.sum(probabilities[t, axis].astype("float32") * dp[t, axis].astype("float32"), axis=axis),
            name="dot",
        )

        def element(t: Any, e: Any) -> Any:
            part = probabilities[t, e].astype("float32")
            return (part * (dp[t, e].astype("float32") - dot[t])).astype(dtype)

        return te.compute((tokens, experts), element, name="router_grad")

    def forward(probabilities: Any, dp: Any) -> Any:
        return op.tensor_expr_op(compute, "router_grad", [probabilities, dp])

    matrix = ((tokens, experts), dtype)
    return export(forward, probabilities=matrix, dp=matrix)
