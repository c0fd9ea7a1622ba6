"""Rows on their way to experts and back: by index, by capacity, by products with one-hot tensors."""

from typing import Any

from littledragon.compiler.zoo.block import Program, export


def dispatch(tokens: int, slots: int, hidden: int, dtype: str) -> Program:
    """Y[s] = X[source[s]]: the rows that a device's experts take, one after the other."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, source: Any) -> Any:
        return te.compute((slots, hidden), lambda s, h: x[source[s], h], name="dispatch")

    def forward(x: Any, source: Any) -> Any:
        return op.tensor_expr_op(compute, "dispatch", [x, source])

    return export(forward, x=((tokens, hidden), dtype), source=((slots,), "int32"))


def dispatch_capacity(experts: int, rows: int, tokens: int, hidden: int, dtype: str) -> Program:
    """Y[e, r] = X[source[e, r]] for the first count[e] rows of each expert, 0 in the rest of its `rows`."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, source: Any, count: Any) -> Any:
        def element(e: Any, r: Any, h: Any) -> Any:
            return tirx.if_then_else(r < count[e], x[source[e, r], h], tirx.const(0.0, dtype))

        return te.compute((experts, rows, hidden), element, name="dispatch")

    def forward(x: Any, source: Any, count: Any) -> Any:
        return op.tensor_expr_op(compute, "dispatch_capacity", [x, source, count])

    return export(forward, x=((tokens, hidden), dtype), source=((experts, rows), "int32"), count=((experts,), "int32"))


def combine_shared(tokens: int, top: int, hidden: int, dtype: str, gated: bool = False) -> Program:
    """Y[t] = S[t] + Σₖ weight[t, k] · E[slot[t, k]], summed in float32: the experts' rows and the shared expert's.

    gated: the shared expert's row counts sigmoid(g[t]) times (Qwen's mixtures).
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(rows: Any, slot: Any, weight: Any, shared: Any, *gate: Any) -> Any:
        axis = te.reduce_axis((0, top), name="k")
        total = te.compute(
            (tokens, hidden),
            lambda t, h: te.sum(weight[t, axis] * rows[slot[t, axis], h].astype("float32"), axis=axis),
            name="combine",
        )

        def element(t: Any, h: Any) -> Any:
            other = shared[t, h].astype("float32")
            return (total[t, h] + (tirx.sigmoid(gate[0][t]) * other if gate else other)).astype(dtype)

        return te.compute((tokens, hidden), element, name="add_shared")

    def forward(rows: Any, slot: Any, weight: Any, shared: Any) -> Any:
        return op.tensor_expr_op(compute, "combine_shared", [rows, slot, weight, shared])

    def forward_gated(rows: Any, slot: Any, weight: Any, shared: Any, gate: Any) -> Any:
        return op.tensor_expr_op(compute, "combine_shared", [rows, slot, weight, shared, gate])

    arguments = {
        "rows": ((tokens * top, hidden), dtype),
        "slot": ((tokens, top), "int32"),
        "weight": ((tokens, top), "float32"),
        "shared": ((tokens, hidden), dtype),
    }
    if gated:
        return export(forward_gated, **arguments, gate=((tokens,), "float32"))
    return export(forward, **arguments)


def expert_sum(tokens: int, top: int, hidden: int, dtype: str, weighted: bool, shared: bool = False) -> Program:
    """Y[t] = Σₖ weight[t, k] · E[t, k] (+ S[t]) in float32, where the experts wrote their rows by token: vLLM's last
    step. Without `weighted` the rows come weighted already."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(rows: Any, *others: Any) -> Any:
        axis = te.reduce_axis((0, top), name="k")

        def part(t: Any, h: Any) -> Any:
            row = rows[t, axis, h].astype("float32")
            return te.sum(others[0][t, axis] * row if weighted else row, axis=axis)

        total = te.compute((tokens, hidden), part, name="expert_sum")

        def element(t: Any, h: Any) -> Any:
            return (total[t, h] + others[-1][t, h].astype("float32") if shared else total[t, h]).astype(dtype)

        return te.compute((tokens, hidden), element, name="cast")

    def forward(rows: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_sum", [rows])

    def one_more(rows: Any, other: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_sum", [rows, other])

    def two_more(rows: Any, weight: Any, other: Any) -> Any:
        return op.tensor_expr_op(compute, "expert_sum", [rows, weight, other])

    rows, weight, other = ((tokens, top, hidden), dtype), ((tokens, top), "float32"), ((tokens, hidden), dtype)
    if weighted and shared:
        return export(two_more, rows=rows, weight=weight, other=other)
    if weighted or shared:
        return export(one_more, rows=rows, other=weight if weighted else other)
    return export(forward, rows=rows)


def shared_expert_gate(tokens: int, hidden: int, dtype: str) -> Program:
    """Y[t] = sigmoid(X[t]·w) * S[t]: how much of the shared expert a token takes (Qwen's mixtures)."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, shared: Any) -> Any:
        axis = te.reduce_axis((0, hidden), name="k")
        dot = te.compute(
            (tokens,), lambda t: te.sum(x[t, axis].astype("float32") * w[axis].astype("float32"), axis=axis), name="dot"
        )
        gate = te.compute((tokens,), lambda t: tirx.sigmoid(dot[t]), name="gate")
        return te.compute(
            (tokens, hidden), lambda t, h: (gate[t] * shared[t, h].astype("float32")).astype(dtype), name="scaled"
        )

    def forward(x: Any, w: Any, shared: Any) -> Any:
        return op.tensor_expr_op(compute, "shared_expert_gate", [x, w, shared])

    matrix = ((tokens, hidden), dtype)
    return export(forward, x=matrix, w=((hidden,), dtype), shared=matrix)


def einsum_dispatch(groups: int, tokens: int, experts: int, capacity: int, hidden: int, dtype: str) -> Program:
    """Y[g, e, c] = Σₜ D[g, t, e, c] · X[g, t], float32 accumulation: D is 1 where token t has place c of expert e.

    How GShard, Switch and MaxText move rows: dense, for each group of tokens by itself.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(mask: Any, x: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="k")
        total = te.compute(
            (groups, experts, capacity, hidden),
            lambda g, e, c, h: te.sum(
                mask[g, axis, e, c].astype("float32") * x[g, axis, h].astype("float32"), axis=axis
            ),
            name="einsum_dispatch",
        )
        if dtype == "float32":
            return total
        return te.compute(
            (groups, experts, capacity, hidden), lambda g, e, c, h: total[g, e, c, h].astype(dtype), name="cast"
        )

    def forward(mask: Any, x: Any) -> Any:
        return op.tensor_expr_op(compute, "einsum_dispatch", [mask, x])

    return export(forward, mask=((groups, tokens, experts, capacity), dtype), x=((groups, tokens, hidden), dtype))


def einsum_combine(groups: int, tokens: int, experts: int, capacity: int, hidden: int, dtype: str) -> Program:
    """Y[g, t] = Σₑ Σ꜀ W[g, t, e, c] · E[g, e, c], float32 accumulation: the way back, W holding the weights."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(weight: Any, rows: Any) -> Any:
        expert = te.reduce_axis((0, experts), name="e")
        place = te.reduce_axis((0, capacity), name="c")

        def part(g: Any, t: Any, h: Any) -> Any:
            one, other = weight[g, t, expert, place], rows[g, expert, place, h]
            return te.sum(one.astype("float32") * other.astype("float32"), axis=[expert, place])

        total = te.compute((groups, tokens, hidden), part, name="einsum_combine")
        if dtype == "float32":
            return total
        return te.compute((groups, tokens, hidden), lambda g, t, h: total[g, t, h].astype(dtype), name="cast")

    def forward(weight: Any, rows: Any) -> Any:
        return op.tensor_expr_op(compute, "einsum_combine", [weight, rows])

    return export(
        forward,
        weight=((groups, tokens, experts, capacity), dtype),
        rows=((groups, experts, capacity, hidden), dtype),
    )
