"""Decoding in pieces: over splits of the context, over a prefix that all share, and of several drafts at once."""

from typing import Any

from littledragon.compiler.zoo.attention import MASKED, grouped_context, grouped_scores, softmax, stage, wide
from littledragon.compiler.zoo.block import Program, export


def split_decode(batch: int, kv_heads: int, group: int, splits: int, part: int, dim: int, dtype: str) -> Program:
    """Flash decoding: each of `splits` parts of the context is attended to alone, then the parts are combined.

    Three functions: the softmax of a part with the logarithm of its sum, its context in float32, and the combination
    of all parts, each weighted by that logarithm.
    """
    from tvm import te

    row, heads = (batch, kv_heads, group, splits, part), (batch, kv_heads, group)

    def normalised(scores: Any) -> list[Any]:
        t0, t1 = (te.reduce_axis((0, part), name=f"t{number}") for number in range(2))
        largest = te.compute(row[:4], lambda b, h, g, s: te.max(scores[b, h, g, s, t0], axis=t0), name="largest")
        power = te.compute(row, lambda b, h, g, s, t: te.exp(scores[b, h, g, s, t] - largest[b, h, g, s]), name="power")
        total = te.compute(row[:4], lambda b, h, g, s: te.sum(power[b, h, g, s, t1], axis=t1), name="total")
        weights = te.compute(
            row, lambda b, h, g, s, t: (power[b, h, g, s, t] / total[b, h, g, s]).astype(dtype), name="weights"
        )
        return [
            weights,
            te.compute(row[:4], lambda b, h, g, s: largest[b, h, g, s] + te.log(total[b, h, g, s]), name="log_total"),
        ]

    def context(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, part), name="t")
        return te.compute(
            (*row[:4], dim),
            lambda b, h, g, s, d: te.sum(wide(weights[b, h, g, s, t]) * wide(values[b, s * part + t, h, d]), axis=t),
            name="context",
        )

    def combined(parts: Any, log_total: Any) -> Any:
        s0, s1, s2 = (te.reduce_axis((0, splits), name=f"s{number}") for number in range(3))
        largest = te.compute(heads, lambda b, h, g: te.max(log_total[b, h, g, s0], axis=s0), name="largest")
        power = te.compute(row[:4], lambda b, h, g, s: te.exp(log_total[b, h, g, s] - largest[b, h, g]), name="power")
        total = te.compute(heads, lambda b, h, g: te.sum(power[b, h, g, s1], axis=s1), name="total")
        raw = te.compute(
            (*heads, dim),
            lambda b, h, g, d: te.sum(power[b, h, g, s2] * parts[b, h, g, s2, d], axis=s2),
            name="weighted",
        )
        return te.compute(raw.shape, lambda b, h, g, d: (raw[b, h, g, d] / total[b, h, g]).astype(dtype), name="whole")

    def forward(scores: Any, values: Any) -> Any:
        weights, log_total = stage("split_softmax", "weights", normalised, scores)
        parts = stage("split_context", "context", context, weights, values)
        return stage("split_combine", "context", combined, parts, log_total)

    cache = ((batch, splits * part, kv_heads, dim), dtype)
    return export(forward, scores=(row, "float32"), values=cache)


def prefix_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """One decoding step over a prompt that all sequences begin with, whose keys and values are kept once: scores, and
    the context, in float32, by given weights. What follows the prompt is attended to apart.
    """
    from tvm import te

    row = (batch, kv_heads, group, context)

    def scores(query: Any, keys: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row, lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[t, h, d]), axis=d), name="qk"
        )
        return te.compute(row, lambda b, h, g, t: raw[b, h, g, t] * dim**-0.5, name="scores")

    def context_of(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        return te.compute(
            (batch, kv_heads, group, dim),
            lambda b, h, g, d: te.sum(wide(weights[b, h, g, t]) * wide(values[t, h, d]), axis=t),
            name="context",
        )

    def forward(query: Any, keys: Any, values: Any, weights: Any) -> Any:
        found = stage("prefix_scores", "scores", scores, query, keys)
        return found, stage("prefix_context", "context", context_of, weights, values)

    cache = ((context, kv_heads, dim), dtype)
    query = ((batch, kv_heads, group, dim), dtype)
    return export(forward, query=query, keys=cache, values=cache, weights=(row, dtype))


def tree_verify(batch: int, kv_heads: int, group: int, drafts: int, context: int, dim: int, dtype: str) -> Program:
    """Verification of a tree of `drafts` tokens after `context` cached ones: a draft sees the context and, by a mask,
    its ancestors. Scores, softmax, context.
    """
    from tvm import te, tirx

    def ancestors(score: Any, tree: Any, b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
        drafted = tirx.if_then_else(tree[b, q, te.max(t - context, 0)], score, tirx.const(MASKED))
        return tirx.if_then_else(t < context, score, drafted)

    def forward(query: Any, keys: Any, values: Any, tree: Any) -> Any:
        scores = grouped_scores("tree_scores", ancestors, query, keys, tree)
        return grouped_context("tree_context", softmax(scores, dtype), values)

    cache = ((batch, context + drafts, kv_heads, dim), dtype)
    return export(
        forward,
        query=((batch, drafts, kv_heads, group, dim), dtype),
        keys=cache,
        values=cache,
        tree=((batch, drafts, drafts), "bool"),
    )
