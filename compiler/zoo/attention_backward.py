"""Training: the gradients of attention whose weights were kept, or are computed again before them."""

from typing import Any

from littledragon.compiler.zoo.attention import rounded, stage, wide
from littledragon.compiler.zoo.block import Program, export


def attention_backward(batch: int, kv_heads: int, group: int, tokens: int, dim: int, dtype: str) -> Program:
    """The gradients of queries and keys from that of the context, tokens before heads:
    dP = dC·Vᵀ, dS = P·(dP - Σ P·dP) / √dim, dQ = dS·K, dK = dSᵀ·Q, where dK sums over the `group` queries of a
    key-value head too. dV is left out: it is the same function as dK.
    """
    from tvm import te

    grouped, rows = (batch, kv_heads, group, tokens, tokens), (batch, tokens, kv_heads, group, dim)

    def of_keys(score_gradient: Any, query: Any) -> Any:
        g, q = te.reduce_axis((0, group), name="g"), te.reduce_axis((0, tokens), name="q")
        raw = te.compute(
            (batch, tokens, kv_heads, dim),
            lambda b, t, h, d: te.sum(wide(score_gradient[b, h, g, q, t]) * wide(query[b, q, h, g, d]), axis=[g, q]),
            name="of_keys",
        )
        return rounded(raw, dtype)

    def of_weights(gradient: Any, value: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        return te.compute(
            grouped,
            lambda b, h, g, q, t: te.sum(wide(gradient[b, q, h, g, d]) * wide(value[b, t, h, d]), axis=d),
            name="of_weights",
        )

    def of_scores(weights: Any, weight_gradient: Any) -> Any:
        t0 = te.reduce_axis((0, tokens), name="t0")
        total = te.compute(
            grouped[:4],
            lambda b, h, g, q: te.sum(wide(weights[b, h, g, q, t0]) * weight_gradient[b, h, g, q, t0], axis=t0),
            name="total",
        )
        found = te.compute(
            grouped,
            lambda b, h, g, q, t: (
                wide(weights[b, h, g, q, t]) * (weight_gradient[b, h, g, q, t] - total[b, h, g, q]) * dim**-0.5
            ),
            name="of_scores",
        )
        return rounded(found, dtype)

    def of_queries(score_gradient: Any, key: Any) -> Any:
        t = te.reduce_axis((0, tokens), name="t")
        raw = te.compute(
            rows,
            lambda b, q, h, g, d: te.sum(wide(score_gradient[b, h, g, q, t]) * wide(key[b, t, h, d]), axis=t),
            name="of_queries",
        )
        return rounded(raw, dtype)

    def forward(query: Any, key: Any, value: Any, weights: Any, gradient: Any) -> Any:
        weight_gradient = stage("weight_gradient", "weight_gradient", of_weights, gradient, value)
        score_gradient = stage("score_gradient", "score_gradient", of_scores, weights, weight_gradient)
        return (
            stage("query_gradient", "query_gradient", of_queries, score_gradient, key),
            stage("key_gradient", "key_gradient", of_keys, score_gradient, query),
        )

    cache, row = ((batch, tokens, kv_heads, dim), dtype), (rows, dtype)
    return export(forward, query=row, key=cache, value=cache, weights=(grouped, dtype), gradient=row)
