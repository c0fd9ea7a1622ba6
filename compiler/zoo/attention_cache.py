"""Decoding over a cache of keys and values: contiguous, paged, of 8 bits, in splits; and the drafts that it verifies.

Tokens stand before heads, as the caches of serving engines have them. Every step gives float32 sums.
"""

from typing import Any

from littledragon.compiler.zoo.attention import MASKED, softmax, wide
from littledragon.compiler.zoo.block import Program, export


def length_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """One decoding step in which sequence b has `length[b]` of at most `context` cached tokens: scores with softmax's
    input masked, softmax, context.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    row = (batch, kv_heads, group, context)

    def scores(query: Any, keys: Any, length: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row, lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[b, t, h, d]), axis=d), name="qk"
        )
        return te.compute(
            row,
            lambda b, h, g, t: tirx.Select(t < length[b], raw[b, h, g, t] * dim**-0.5, tirx.const(MASKED)),
            name="masked",
        )

    def context_of(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, kv_heads, group, dim),
            lambda b, h, g, d: te.sum(wide(weights[b, h, g, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, h, g, d: raw[b, h, g, d].astype(dtype), name="context")

    def forward(query: Any, keys: Any, values: Any, length: Any) -> Any:
        masked = op.tensor_expr_op(scores, "decode_scores", [query, keys, length])
        weights = softmax(masked, dtype)
        return op.tensor_expr_op(context_of, "decode_context", [weights, values])

    cache = ((batch, context, kv_heads, dim), dtype)
    query = ((batch, kv_heads, group, dim), dtype)
    return export(forward, query=query, keys=cache, values=cache, length=((batch,), "int32"))


def fused_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """One decoding step in one function: scores, largest score, sum of exponentials, context divided by it."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    row = (batch, kv_heads, group, context)

    def compute(query: Any, keys: Any, values: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        t0, t1, t2 = (te.reduce_axis((0, context), name=f"t{number}") for number in range(3))
        scores = te.compute(
            row, lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[b, t, h, d]), axis=d), name="scores"
        )
        largest = te.compute(row[:3], lambda b, h, g: te.max(scores[b, h, g, t0], axis=t0), name="largest")
        power = te.compute(
            row, lambda b, h, g, t: te.exp((scores[b, h, g, t] - largest[b, h, g]) * dim**-0.5), name="power"
        )
        total = te.compute(row[:3], lambda b, h, g: te.sum(power[b, h, g, t1], axis=t1), name="total")
        raw = te.compute(
            (*row[:3], dim),
            lambda b, h, g, e: te.sum(power[b, h, g, t2] * wide(values[b, t2, h, e]), axis=t2),
            name="weighted",
        )
        return te.compute(raw.shape, lambda b, h, g, e: (raw[b, h, g, e] / total[b, h, g]).astype(dtype), name="context")

    def forward(query: Any, keys: Any, values: Any) -> Any:
        return op.tensor_expr_op(compute, "fused_decode", [query, keys, values])

    cache = ((batch, context, kv_heads, dim), dtype)
    return export(forward, query=((batch, kv_heads, group, dim), dtype), keys=cache, values=cache)


def paged_decode(
    batch: int, kv_heads: int, group: int, context: int, dim: int, page: int, dtype: str
) -> Program:
    """One decoding step over pages of `page` tokens, which a table finds for each sequence: scores and context, with
    the softmax between them.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

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
                weights[b, h, g, t] * wide(pages[table[b, t // page], t % page, h, d]), axis=t
            ),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, h, g, d: raw[b, h, g, d].astype(dtype), name="context")

    def forward(query: Any, keys: Any, values: Any, table: Any, length: Any) -> Any:
        masked = op.tensor_expr_op(scores, "paged_scores", [query, keys, table, length])
        return op.tensor_expr_op(context_of, "paged_context", [op.softmax(masked, axis=-1), values, table])

    pages = ((batch * context // page, page, kv_heads, dim), dtype)
    return export(
        forward,
        query=((batch, kv_heads, group, dim), dtype),
        keys=pages,
        values=pages,
        table=((batch, context // page), "int32"),
        length=((batch,), "int32"),
    )


def page_gather(batch: int, kv_heads: int, context: int, dim: int, page: int, stored: str, dtype: str) -> Program:
    """Pages of `page` tokens made one run of `context` tokens for each sequence, as `dtype`; 8-bit ones are scaled by
    a number of each head.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    shape = (batch, context, kv_heads, dim)

    def plain(pages: Any, table: Any) -> Any:
        return te.compute(
            shape, lambda b, t, h, d: pages[table[b, t // page], t % page, h, d].astype(dtype), name="gathered"
        )

    def scaled(pages: Any, table: Any, scale: Any) -> Any:
        return te.compute(
            shape,
            lambda b, t, h, d: (wide(pages[table[b, t // page], t % page, h, d]) * scale[h]).astype(dtype),
            name="gathered",
        )

    def forward(pages: Any, table: Any) -> Any:
        return op.tensor_expr_op(plain, "page_gather", [pages, table])

    def forward_scaled(pages: Any, table: Any, scale: Any) -> Any:
        return op.tensor_expr_op(scaled, "page_gather", [pages, table, scale])

    arguments = {
        "pages": ((batch * context // page, page, kv_heads, dim), stored),
        "table": ((batch, context // page), "int32"),
    }
    if stored == dtype:
        return export(forward, **arguments)
    return export(forward_scaled, **arguments, scale=((kv_heads,), "float32"))


def eight_bit_decode(batch: int, kv_heads: int, group: int, context: int, dim: int, stored: str, dtype: str) -> Program:
    """One decoding step over a cache of 8-bit numbers: float8 with a scale for each head, int8 with one for each token
    and head. Scores and context; the softmax between them is the usual one.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    row, whole = (batch, kv_heads, group, context), stored == "int8"

    def scores(query: Any, keys: Any, key_scale: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row, lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * wide(keys[b, t, h, d]), axis=d), name="qk"
        )
        return te.compute(
            row,
            lambda b, h, g, t: raw[b, h, g, t] * ((key_scale[b, t, h] if whole else key_scale[h]) * dim**-0.5),
            name="scores",
        )

    def context_of(weights: Any, values: Any, value_scale: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")

        def term(b: Any, h: Any, g: Any, d: Any) -> Any:
            value = wide(values[b, t, h, d])
            return wide(weights[b, h, g, t]) * (value * value_scale[b, t, h] if whole else value)

        raw = te.compute(
            (batch, kv_heads, group, dim), lambda b, h, g, d: te.sum(term(b, h, g, d), axis=t), name="pv"
        )
        return te.compute(
            raw.shape,
            lambda b, h, g, d: (raw[b, h, g, d] if whole else raw[b, h, g, d] * value_scale[h]).astype(dtype),
            name="context",
        )

    def forward(query: Any, keys: Any, values: Any, weights: Any, key_scale: Any, value_scale: Any) -> Any:
        found = op.tensor_expr_op(scores, "eight_bit_scores", [query, keys, key_scale])
        return found, op.tensor_expr_op(context_of, "eight_bit_context", [weights, values, value_scale])

    cache = ((batch, context, kv_heads, dim), stored)
    scale = ((batch, context, kv_heads) if whole else (kv_heads,), "float32")
    return export(
        forward,
        query=((batch, kv_heads, group, dim), dtype),
        keys=cache,
        values=cache,
        weights=(row, dtype),
        key_scale=scale,
        value_scale=scale,
    )
