"""Mixture of experts: the router, the experts' products, the gate, and the moves of tokens between them."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def router(tokens: int, experts: int, hidden: int) -> Any:
    """softmax(X·Wᵀ) over the experts, float16 in and float32 out."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        logits = op.matmul(x, op.permute_dims(w, [1, 0]), out_dtype="float32")
        return op.softmax(logits, axis=-1)

    return export(forward, x=((tokens, hidden), "float16"), w=((experts, hidden), "float16"))


def grouped_gemm(rows: int, experts: int, n: int, k: int) -> Any:
    """Y[r] = X[r]·W[expert[r]]ᵀ, float16 with float32 accumulation: the weight is chosen row by row."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, w: Any, expert: Any) -> Any:
        axis = te.reduce_axis((0, k), name="k")
        product = te.compute(
            (rows, n),
            lambda r, c: te.sum(x[r, axis].astype("float32") * w[expert[r], c, axis].astype("float32"), axis=axis),
            name="grouped_gemm",
        )
        return te.compute((rows, n), lambda r, c: product[r, c].astype("float16"), name="cast")

    def forward(x: Any, w: Any, expert: Any) -> Any:
        return op.tensor_expr_op(compute, "grouped_gemm", [x, w, expert])

    return export(forward, x=((rows, k), "float16"), w=((experts, n, k), "float16"), expert=((rows,), "int32"))


def silu_mul_quantize(rows: int, inner: int) -> Any:
    """silu(A) * B of the halves of one float16 matrix, then int8 with a scale for each row."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any) -> Any:
        def element(r: Any, c: Any) -> Any:
            gate = x[r, c].astype("float32")
            return gate * tirx.sigmoid(gate) * x[r, c + inner].astype("float32")

        return zoo.quantized(te.compute((rows, inner), element, name="silu_mul"))

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(compute, "silu_mul_quantize", [x])

    return export(forward, x=((rows, 2 * inner), "float16"))


def combine(tokens: int, top: int, hidden: int) -> Any:
    """Y[t] = Σₖ weight[t, k] · E[slot[t, k]]: the experts' rows come back to their tokens, float32."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(rows: Any, slot: Any, weight: Any) -> Any:
        axis = te.reduce_axis((0, top), name="k")
        return te.compute(
            (tokens, hidden),
            lambda t, h: te.sum(weight[t, axis] * rows[slot[t, axis], h], axis=axis),
            name="combine",
        )

    def forward(rows: Any, slot: Any, weight: Any) -> Any:
        return op.tensor_expr_op(compute, "combine", [rows, slot, weight])

    return export(
        forward,
        rows=((tokens * top, hidden), "float32"),
        slot=((tokens, top), "int32"),
        weight=((tokens, top), "float32"),
    )


def dispatch_quantize(tokens: int, top: int, hidden: int) -> Any:
    """Row source[s] of X for each slot s of an expert, made int8 with a scale for each slot."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(x: Any, source: Any) -> Any:
        rows = te.compute((tokens * top, hidden), lambda s, h: x[source[s], h].astype("float32"), name="gather")
        return zoo.quantized(rows)

    def forward(x: Any, source: Any) -> Any:
        return op.tensor_expr_op(compute, "dispatch_quantize", [x, source])

    return export(forward, x=((tokens, hidden), "float16"), source=((tokens * top,), "int32"))


def expert_mlp(experts: int, rows: int, hidden: int, inner: int) -> Any:
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


_block = partial(zoo.block, family="moe")

BLOCKS: tuple[Block, ...] = (
    _block(
        "router",
        zoo.OLMOE,
        "router over 64 experts, 256 tokens, hidden size cut in 2",
        router,
        cut="olmoe-1b-7b-b256",
        tokens=256,
        experts=64,
        hidden=1024,
    ),
    _block(
        "grouped_gemm",
        zoo.MIXTRAL,
        "first product of 8 experts on 24 routed rows, one of 128 row shards, hidden size cut in 4",
        grouped_gemm,
        cut="mixtral-8x7b-tp128-r24",
        rows=24,
        experts=8,
        n=112,
        k=1024,
    ),
    _block(
        "silu_mul_quantize",
        zoo.MIXTRAL,
        "gate of the experts and int8 quantisation of 64 rows, one of 32 shards",
        silu_mul_quantize,
        cut="mixtral-8x7b-tp32-r64",
        rows=64,
        inner=448,
    ),
    _block(
        "combine",
        zoo.OLMOE,
        "weighted sum of the 8 experts of each of 96 tokens",
        combine,
        cut="olmoe-1b-7b-b96",
        tokens=96,
        top=8,
        hidden=2048,
    ),
    _block(
        "dispatch_quantize",
        zoo.OLMOE,
        "rows of 16 tokens sent to 8 experts each, quantised to int8",
        dispatch_quantize,
        cut="olmoe-1b-7b-b16",
        tokens=16,
        top=8,
        hidden=2048,
    ),
    _block(
        "expert_mlp",
        zoo.DEEPSEEK,
        "gated networks of 8 of 64 experts on 6 rows each, inner size one of 16 shards, hidden size cut in 2",
        expert_mlp,
        cut="deepseek-v2-lite-tp16-e8",
        experts=8,
        rows=6,
        hidden=1024,
        inner=88,
    ),
)
