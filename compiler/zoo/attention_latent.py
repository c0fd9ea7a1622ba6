"""Multi-head latent attention: a token's cache holds `rank` compressed numbers and `rope` rotary ones."""

from typing import Any

from littledragon.compiler.zoo.attention import rounded, softmax, stage, wide
from littledragon.compiler.zoo.block import Program, export


def latent_decode(batch: int, heads: int, queries: int, context: int, rank: int, rope: int, dtype: str) -> Program:
    """One absorbed decoding step: all heads attend to one cache [batch, context, rank + rope], whose first `rank`
    numbers are the values too; `queries` tokens of a sequence, drafted, at once. Scores, softmax, context.
    """
    from tvm import te

    width = rank + rope

    def scores(query: Any, cache: Any) -> Any:
        d = te.reduce_axis((0, width), name="d")
        raw = te.compute(
            (batch, queries, heads, context),
            lambda b, q, h, t: te.sum(wide(query[b, q, h, d]) * wide(cache[b, t, d]), axis=d),
            name="qk",
        )
        return te.compute(raw.shape, lambda b, q, h, t: raw[b, q, h, t] * width**-0.5, name="scores")

    def context_of(weights: Any, cache: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, queries, heads, rank),
            lambda b, q, h, d: te.sum(wide(weights[b, q, h, t]) * wide(cache[b, t, d]), axis=t),
            name="pv",
        )
        return rounded(raw, dtype)

    def cached(length: Any, b: Any, q: Any, h: Any, t: Any) -> Any:
        return t < length[b] + q

    def forward(query: Any, cache: Any, length: Any) -> Any:
        weights = softmax(stage("latent_scores", "scores", scores, query, cache), dtype, cached, length)
        return stage("latent_context", "context", context_of, weights, cache)

    return export(
        forward,
        query=((batch, queries, heads, width), dtype),
        cache=((batch, context, width), dtype),
        length=((batch,), "int32"),
    )


def latent_absorb(tokens: int, heads: int, nope: int, rank: int, value: int, dtype: str) -> Program:
    """The two products that absorb the decompression while decoding: queries [tokens, heads, nope] into the latent
    space, and contexts [tokens, heads, rank] out of it, by each head's own matrix.
    """
    from tvm import te

    def into(query: Any, key_weight: Any) -> Any:
        d = te.reduce_axis((0, nope), name="d")
        raw = te.compute(
            (tokens, heads, rank),
            lambda n, h, r: te.sum(wide(query[n, h, d]) * wide(key_weight[h, d, r]), axis=d),
            name="into",
        )
        return rounded(raw, dtype)

    def out_of(latent: Any, value_weight: Any) -> Any:
        r = te.reduce_axis((0, rank), name="r")
        raw = te.compute(
            (tokens, heads, value),
            lambda n, h, d: te.sum(wide(latent[n, h, r]) * wide(value_weight[h, d, r]), axis=r),
            name="out_of",
        )
        return rounded(raw, dtype)

    def forward(query: Any, latent: Any, key_weight: Any, value_weight: Any) -> Any:
        first = stage("absorb_query", "absorbed", into, query, key_weight)
        return first, stage("expand_context", "context", out_of, latent, value_weight)

    return export(
        forward,
        query=((tokens, heads, nope), dtype),
        latent=((tokens, heads, rank), dtype),
        key_weight=((heads, nope, rank), dtype),
        value_weight=((heads, value, rank), dtype),
    )


def latent_expand(tokens: int, heads: int, nope: int, rope: int, rank: int, dtype: str) -> Program:
    """Keys of every head for prefill: the first `nope` numbers from the latent cache by the head's matrix, the last
    `rope` copied, the same for all heads.
    """
    from tvm import te, tirx

    def compute(latent: Any, key_rope: Any, key_weight: Any) -> Any:
        r = te.reduce_axis((0, rank), name="r")
        raw = te.compute(
            (tokens, heads, nope),
            lambda n, h, d: te.sum(wide(latent[n, r]) * wide(key_weight[h, d, r]), axis=r),
            name="expanded",
        )

        def element(n: Any, h: Any, d: Any) -> Any:
            own, shared = raw[n, h, te.min(d, nope - 1)], key_rope[n, te.max(d - nope, 0)]
            return tirx.if_then_else(d < nope, own.astype(dtype), shared)

        return te.compute((tokens, heads, nope + rope), element, name="keys")

    def forward(latent: Any, key_rope: Any, key_weight: Any) -> Any:
        return stage("latent_expand", "expanded", compute, latent, key_rope, key_weight)

    return export(
        forward,
        latent=((tokens, rank), dtype),
        key_rope=((tokens, rope), dtype),
        key_weight=((heads, nope, rank), dtype),
    )


def latent_attention(
    batch: int, heads: int, queries: int, keys: int, nope: int, rope: int, value: int, dtype: str
) -> Program:
    """Causal attention over expanded keys: Q·Kᵀ over the `rope` rotary numbers that all heads share; the scores, which
    are that and Q·Kᵀ over `nope` numbers of each head, divided by √(nope + rope); softmax; context of `value` numbers.
    With one query it is a decoding step over a cache that is not compressed.
    """
    from tvm import te

    shape = (batch, heads, queries, keys)

    def shared(query: Any, key_rope: Any) -> Any:
        r = te.reduce_axis((0, rope), name="r")
        return te.compute(
            shape,
            lambda b, h, q, t: te.sum(wide(query[b, q, h, nope + r]) * wide(key_rope[b, t, r]), axis=r),
            name="shared",
        )

    def scores(query: Any, key: Any, shared: Any) -> Any:
        d = te.reduce_axis((0, nope), name="d")
        raw = te.compute(
            shape, lambda b, h, q, t: te.sum(wide(query[b, q, h, d]) * wide(key[b, t, h, d]), axis=d), name="qk"
        )
        return te.compute(
            shape, lambda b, h, q, t: (raw[b, h, q, t] + shared[b, h, q, t]) * (nope + rope) ** -0.5, name="scores"
        )

    def causal(b: Any, h: Any, q: Any, t: Any) -> Any:
        return t <= q + keys - queries

    def context(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, keys), name="t")
        raw = te.compute(
            (batch, queries, heads, value),
            lambda b, q, h, d: te.sum(wide(weights[b, h, q, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return rounded(raw, dtype)

    def forward(query: Any, key: Any, key_rope: Any, values: Any) -> Any:
        found = stage(
            "latent_scores", "scores", scores, query, key, stage("rope_scores", "shared", shared, query, key_rope)
        )
        weights = softmax(found, dtype, causal if queries > 1 else None)
        return stage("latent_context", "context", context, weights, values)

    return export(
        forward,
        query=((batch, queries, heads, nope + rope), dtype),
        key=((batch, keys, heads, nope), dtype),
        key_rope=((batch, keys, rope), dtype),
        values=((batch, keys, heads, value), dtype),
    )


def latent_norm_rotary(tokens: int, rank: int, rope: int, positions: int, dtype: str) -> Program:
    """What goes into the cache: the first `rank` numbers of each row RMS-normalised, the last `rope` turned."""
    from tvm import te, tirx

    def compute(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        e = te.reduce_axis((0, rank), name="e")
        square = te.compute((tokens,), lambda n: te.sum(wide(packed[n, e]) * wide(packed[n, e]), axis=e), name="square")

        def element(n: Any, d: Any) -> Any:
            normal = wide(packed[n, d]) * te.rsqrt(square[n] / rank + 1e-6) * wide(weight[te.min(d, rank - 1)])
            angle, first = (d - rank) // 2, d % 2 == 0
            own, paired = wide(packed[n, d]), wide(packed[n, d ^ 1])
            row = position[n]
            cos, sin = table[row, te.max(angle, 0)], table[row, te.max(angle, 0) + rope // 2]
            turned = own * cos + tirx.if_then_else(first, -paired, paired) * sin
            return tirx.if_then_else(d < rank, normal, turned).astype(dtype)

        return te.compute((tokens, rank + rope), element, name="cached")

    def forward(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        return stage("latent_norm_rotary", "cached", compute, packed, weight, position, table)

    return export(
        forward,
        packed=((tokens, rank + rope), dtype),
        weight=((rank,), dtype),
        position=((tokens,), "int32"),
        table=((positions, rope), "float32"),
    )
