"""Attention to a cache of keys and values, contiguous, in pages, or of 8 bits; tokens stand before heads in it."""

from typing import Any

from littledragon.compiler.zoo.attention import MASKED, rounded, softmax, stage, wide
from littledragon.compiler.zoo.block import Program, export


def length_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """One decoding step of sequences of different lengths: scores, a softmax over the first `length[b]` of `context`
    tokens, context.
    """
    from tvm import te

    def scores(query: Any, keys: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            (batch, kv_heads, group, context),
            lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[b, t, h, d]), axis=d),
            name="qk",
        )
        return te.compute(raw.shape, lambda b, h, g, t: raw[b, h, g, t] * dim**-0.5, name="scores")

    def context_of(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, kv_heads, group, dim),
            lambda b, h, g, d: te.sum(wide(weights[b, h, g, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return rounded(raw, dtype)

    def cached(length: Any, b: Any, h: Any, g: Any, t: Any) -> Any:
        return t < length[b]

    def forward(query: Any, keys: Any, values: Any, length: Any) -> Any:
        found = stage("decode_scores", "scores", scores, query, keys)
        weights = softmax(found, dtype, cached, length)
        return stage("decode_context", "context", context_of, weights, values)

    cache = ((batch, context, kv_heads, dim), dtype)
    query = ((batch, kv_heads, group, dim), dtype)
    return export(forward, query=query, keys=cache, values=cache, length=((batch,), "int32"))


def paged_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, page: int, dtype: str) -> Program:
    """One decoding step over pages of `page` tokens, which a table finds for each sequence: scores of the first
    `length[b]` tokens, and the context by given weights. The softmax between them is the usual one.
    """
    from tvm import te, tirx

    row = (batch, kv_heads, group, context)

    def scores(query: Any, pages: Any, table: Any, length: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row,
            lambda b, h, g, t: te.sum(
                wide(query[b, h, g, d]) * wide(pages[table[b, t // page], t % page, h, d]), axis=d
            ),
            name="qk",
        )
        return te.compute(
            row,
            lambda b, h, g, t: tirx.Select(t < length[b], raw[b, h, g, t] * dim**-0.5, tirx.const(MASKED)),
            name="masked",
        )

    def context_of(weights: Any, pages: Any, table: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, kv_heads, group, dim),
            lambda b, h, g, d: te.sum(
                wide(weights[b, h, g, t]) * wide(pages[table[b, t // page], t % page, h, d]), axis=t
            ),
            name="pv",
        )
        return rounded(raw, dtype)

    def forward(query: Any, keys: Any, values: Any, table: Any, length: Any, weights: Any) -> Any:
        found = stage("paged_scores", "scores", scores, query, keys, table, length)
        return found, stage("paged_context", "context", context_of, weights, values, table)

    pages = ((batch * context // page, page, kv_heads, dim), dtype)
    return export(
        forward,
        query=((batch, kv_heads, group, dim), dtype),
        keys=pages,
        values=pages,
        table=((batch, context // page), "int32"),
        length=((batch,), "int32"),
        weights=(row, dtype),
    )


def paged_prefill(
    batch: int, kv_heads: int, group: int, queries: int, context: int, dim: int, page: int, dtype: str
) -> Program:
    """Causal attention of a chunk of `queries` tokens to the `context` tokens up to its end, all of them in pages of
    `page`, which a table finds: scores, and the context by given weights. The softmax between them is the usual one.
    """
    from tvm import te, tirx

    grouped = (batch, kv_heads, group, queries, context)

    def scores(query: Any, pages: Any, table: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            grouped,
            lambda b, h, g, q, t: te.sum(
                wide(query[b, q, h, g, d]) * wide(pages[table[b, t // page], t % page, h, d]), axis=d
            ),
            name="qk",
        )

        def element(b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
            return tirx.Select(t <= q + context - queries, raw[b, h, g, q, t] * dim**-0.5, tirx.const(MASKED))

        return te.compute(grouped, element, name="causal")

    def context_of(weights: Any, pages: Any, table: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, queries, kv_heads, group, dim),
            lambda b, q, h, g, d: te.sum(
                wide(weights[b, h, g, q, t]) * wide(pages[table[b, t // page], t % page, h, d]), axis=t
            ),
            name="pv",
        )
        return rounded(raw, dtype)

    def forward(query: Any, keys: Any, values: Any, table: Any, weights: Any) -> Any:
        found = stage("paged_scores", "scores", scores, query, keys, table)
        return found, stage("paged_context", "context", context_of, weights, values, table)

    pages = ((batch * context // page, page, kv_heads, dim), dtype)
    return export(
        forward,
        query=((batch, queries, kv_heads, group, dim), dtype),
        keys=pages,
        values=pages,
        table=((batch, context // page), "int32"),
        weights=(grouped, dtype),
    )


def float8_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """One decoding step over a cache of float8_e4m3fn with a scale for each key-value head: scores, and the context by
    given weights. The softmax between them is the usual one.
    """
    from tvm import te

    row = (batch, kv_heads, group, context)

    def scores(query: Any, keys: Any, key_scale: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row, lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[b, t, h, d]), axis=d), name="qk"
        )
        return te.compute(row, lambda b, h, g, t: raw[b, h, g, t] * (key_scale[h] * dim**-0.5), name="scores")

    def context_of(weights: Any, values: Any, value_scale: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, kv_heads, group, dim),
            lambda b, h, g, d: te.sum(wide(weights[b, h, g, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return te.compute(
            raw.shape, lambda b, h, g, d: (raw[b, h, g, d] * value_scale[h]).astype(dtype), name="context"
        )

    def forward(query: Any, keys: Any, values: Any, weights: Any, key_scale: Any, value_scale: Any) -> Any:
        found = stage("float8_scores", "scores", scores, query, keys, key_scale)
        return found, stage("float8_context", "context", context_of, weights, values, value_scale)

    cache, scale = ((batch, context, kv_heads, dim), "float8_e4m3fn"), ((kv_heads,), "float32")
    return export(
        forward,
        query=((batch, kv_heads, group, dim), dtype),
        keys=cache,
        values=cache,
        weights=(row, dtype),
        key_scale=scale,
        value_scale=scale,
    )
