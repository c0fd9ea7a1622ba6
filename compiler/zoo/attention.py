"""The parts of attention: scores, context, masked softmax, rotary embedding, and whole decode steps."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def qk_scores(heads: int, tokens: int, dim: int) -> Any:
    """S[h] = Q[h]·K[h]ᵀ / √dim, float16 with float32 accumulation."""
    from tvm.relax.frontend.nn import op

    def forward(q: Any, k: Any) -> Any:
        return op.matmul(q, op.permute_dims(k, [0, 2, 1]), out_dtype="float32") * (dim**-0.5)

    shape = (heads, tokens, dim)
    return export(forward, q=(shape, "float16"), k=(shape, "float16"))


def pv_context(heads: int, tokens: int, dim: int) -> Any:
    """C[h] = P[h]·V[h] in float32."""
    from tvm.relax.frontend.nn import op

    def forward(p: Any, v: Any) -> Any:
        return op.matmul(p, v)

    return export(forward, p=((heads, tokens, tokens), "float32"), v=((heads, tokens, dim), "float32"))


def masked_softmax(heads: int, tokens: int) -> Any:
    """P = softmax(where(mask, S, -10⁴)) over the last axis, float32."""
    from tvm import te, tirx, topi
    from tvm.relax.frontend.nn import op

    def compute(scores: Any, mask: Any) -> Any:
        def element(h: Any, q: Any, k: Any) -> Any:
            return tirx.Select(mask[q, k], scores[h, q, k], tirx.const(-1e4, "float32"))

        return topi.nn.softmax(te.compute((heads, tokens, tokens), element, name="masked"), axis=-1)

    def forward(scores: Any, mask: Any) -> Any:
        return op.tensor_expr_op(compute, "masked_softmax", [scores, mask])

    return export(forward, scores=((heads, tokens, tokens), "float32"), mask=((tokens, tokens), "bool"))


def gqa_decode(kv_heads: int, group: int, context: int, dim: int) -> Any:
    """One decoding step of grouped-query attention, float32: scores, softmax, context."""
    from tvm.relax.frontend.nn import op

    def forward(q: Any, k: Any, v: Any) -> Any:
        scores = op.matmul(q, op.permute_dims(k, [0, 2, 1])) * (dim**-0.5)
        return op.matmul(op.softmax(scores, axis=-1), v)

    cache = ((kv_heads, context, dim), "float32")
    return export(forward, q=((kv_heads, group, dim), "float32"), k=cache, v=cache)


def norm_rotary(tokens: int, heads: int, dim: int, positions: int) -> Any:
    """RMS normalisation of each float16 query, then rotary embedding by tables looked up at the token's position."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, weight: Any, position: Any, cos: Any, sin: Any) -> Any:
        half, axis = dim // 2, te.reduce_axis((0, dim), name="k")
        wide = te.compute((tokens, heads, dim), lambda t, h, d: x[t, h, d].astype("float32"), name="wide")
        square = te.compute(
            (tokens, heads), lambda t, h: te.sum(wide[t, h, axis] * wide[t, h, axis], axis=axis), name="square"
        )
        normal = te.compute(
            (tokens, heads, dim),
            lambda t, h, d: wide[t, h, d] * te.rsqrt(square[t, h] / dim + 1e-6) * weight[d].astype("float32"),
            name="normal",
        )

        def element(t: Any, h: Any, d: Any) -> Any:
            turned = tirx.if_then_else(d < half, -normal[t, h, d + half], normal[t, h, d - half])
            return (normal[t, h, d] * cos[position[t], d] + turned * sin[position[t], d]).astype("float16")

        return te.compute((tokens, heads, dim), element, name="rotary")

    def forward(x: Any, weight: Any, position: Any, cos: Any, sin: Any) -> Any:
        return op.tensor_expr_op(compute, "norm_rotary", [x, weight, position, cos, sin])

    table = ((positions, dim), "float32")
    return export(
        forward,
        x=((tokens, heads, dim), "float16"),
        weight=((dim,), "float16"),
        position=((tokens,), "int32"),
        cos=table,
        sin=table,
    )


def mla_decode(heads: int, context: int, rank: int, rope: int) -> Any:
    """One decoding step over a compressed cache, float16 with float32 accumulation.

    Scores are the sum of a product with the latent cache and one with the rotary keys.
    """
    from tvm.relax.frontend.nn import op

    def forward(q: Any, q_rope: Any, latent: Any, k_rope: Any) -> Any:
        scores = op.matmul(q, op.permute_dims(latent, [1, 0]), out_dtype="float32")
        scores = scores + op.matmul(q_rope, op.permute_dims(k_rope, [1, 0]), out_dtype="float32")
        weights = op.astype(op.softmax(scores * (192**-0.5), axis=-1), "float16")
        return op.astype(op.matmul(weights, latent, out_dtype="float32"), "float16")

    return export(
        forward,
        q=((heads, rank), "float16"),
        q_rope=((heads, rope), "float16"),
        latent=((context, rank), "float16"),
        k_rope=((context, rope), "float16"),
    )


_block = partial(zoo.block, family="attention")

BLOCKS: tuple[Block, ...] = (
    _block(
        "qk_scores",
        zoo.LLAMA2,
        "attention scores of 4 of 32 heads, 64 tokens",
        qk_scores,
        cut="llama-2-7b-tp8-s64",
        heads=4,
        tokens=64,
        dim=128,
    ),
    _block(
        "pv_context",
        zoo.BERT,
        "attention context of all 12 heads, 96 tokens",
        pv_context,
        cut="bert-base-s96",
        heads=12,
        tokens=96,
        dim=64,
    ),
    _block(
        "masked_softmax",
        zoo.GPT2,
        "causal softmax of all 12 heads, 64 tokens",
        masked_softmax,
        cut="gpt2-s64",
        heads=12,
        tokens=64,
    ),
    _block(
        "gqa_decode",
        zoo.QWEN,
        "one decoding step over 2048 cached tokens, 2 key-value heads with 7 queries each",
        gqa_decode,
        cut="qwen2.5-0.5b-c2048",
        kv_heads=2,
        group=7,
        context=2048,
        dim=64,
    ),
    _block(
        "norm_rotary",
        zoo.QWEN3,
        "normalisation and rotary embedding of the queries of 32 tokens",
        norm_rotary,
        cut="qwen3-0.6b-s32",
        tokens=32,
        heads=16,
        dim=128,
        positions=2048,
    ),
    _block(
        "mla_decode",
        zoo.DEEPSEEK,
        "one decoding step of latent attention over 1024 cached tokens, 16 heads",
        mla_decode,
        cut="deepseek-v2-lite-c1024",
        heads=16,
        context=1024,
        rank=512,
        rope=64,
    ),
)
