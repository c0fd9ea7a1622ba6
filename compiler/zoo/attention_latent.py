"""Multi-head latent attention: what is done with a compressed cache of `rank` numbers and `rope` rotary ones a token."""

from typing import Any

from littledragon.compiler.zoo.attention import MASKED, softmax, wide
from littledragon.compiler.zoo.attention_rotary import turned_element
from littledragon.compiler.zoo.block import Program, export


def latent_decode(batch: int, heads: int, queries: int, context: int, rank: int, rope: int, dtype: str) -> Program:
    """One absorbed decoding step: all heads attend to one cache [batch, context, rank + rope], whose first `rank`
    numbers are the values too. `queries` tokens of a sequence are verified at once, causally. Scores, softmax, context.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    width = rank + rope
    row = (batch, queries, heads, context)

    def scores(query: Any, cache: Any, length: Any) -> Any:
        d = te.reduce_axis((0, width), name="d")
        raw = te.compute(
            row, lambda b, q, h, t: te.sum(wide(query[b, q, h, d]) * wide(cache[b, t, d]), axis=d), name="qk"
        )
        return te.compute(
            row,
            lambda b, q, h, t: tirx.Select(t < length[b] + q, raw[b, q, h, t] * width**-0.5, tirx.const(MASKED)),
            name="masked",
        )

    def context_of(weights: Any, cache: Any) -> Any:
        t = te.reduce_axis((0, context), name="t")
        raw = te.compute(
            (batch, queries, heads, rank),
            lambda b, q, h, d: te.sum(wide(weights[b, q, h, t]) * wide(cache[b, t, d]), axis=t),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, q, h, d: raw[b, q, h, d].astype(dtype), name="context")

    def forward(query: Any, cache: Any, length: Any) -> Any:
        masked = op.tensor_expr_op(scores, "latent_scores", [query, cache, length])
        weights = softmax(masked, dtype)
        return op.tensor_expr_op(context_of, "latent_context", [weights, cache])

    return export(
        forward,
        query=((batch, queries, heads, width), dtype),
        cache=((batch, context, width), dtype),
        length=((batch,), "int32"),
    )


def sparse_latent_decode(
    batch: int, heads: int, context: int, chosen: int, rank: int, rope: int, dtype: str
) -> Program:
    """Absorbed decoding over `chosen` of `context` cached tokens, by a list of each sequence (DeepSeek sparse
    attention): scores and context over gathered rows, the softmax between them.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    width = rank + rope
    row = (batch, heads, chosen)

    def scores(query: Any, cache: Any, chosen_rows: Any) -> Any:
        d = te.reduce_axis((0, width), name="d")
        raw = te.compute(
            row,
            lambda b, h, t: te.sum(wide(query[b, h, d]) * wide(cache[b, chosen_rows[b, t], d]), axis=d),
            name="qk",
        )
        return te.compute(row, lambda b, h, t: raw[b, h, t] * width**-0.5, name="scores")

    def context_of(weights: Any, cache: Any, chosen_rows: Any) -> Any:
        t = te.reduce_axis((0, chosen), name="t")
        raw = te.compute(
            (batch, heads, rank),
            lambda b, h, d: te.sum(weights[b, h, t] * wide(cache[b, chosen_rows[b, t], d]), axis=t),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, h, d: raw[b, h, d].astype(dtype), name="context")

    def forward(query: Any, cache: Any, chosen_rows: Any) -> Any:
        found = op.tensor_expr_op(scores, "sparse_scores", [query, cache, chosen_rows])
        return op.tensor_expr_op(context_of, "sparse_context", [op.softmax(found, axis=-1), cache, chosen_rows])

    return export(
        forward,
        query=((batch, heads, width), dtype),
        cache=((batch, context, width), dtype),
        chosen_rows=((batch, chosen), "int32"),
    )


def index_scores(queries: int, keys: int, heads: int, dim: int, stored: str) -> Program:
    """The indexer of DeepSeek sparse attention: I[q, t] = sum over heads of weight[q, h]·relu(Q[q, h]·K[t])."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(query: Any, keys_of: Any, weight: Any) -> Any:
        d, h = te.reduce_axis((0, dim), name="d"), te.reduce_axis((0, heads), name="h")
        raw = te.compute(
            (queries, heads, keys), lambda q, g, t: te.sum(wide(query[q, g, d]) * wide(keys_of[t, d]), axis=d), name="qk"
        )
        return te.compute(
            (queries, keys),
            lambda q, t: te.sum(te.max(raw[q, h, t], tirx.const(0.0, "float32")) * weight[q, h], axis=h),
            name="index",
        )

    def forward(query: Any, keys_of: Any, weight: Any) -> Any:
        return op.tensor_expr_op(compute, "index_scores", [query, keys_of, weight])

    return export(
        forward,
        query=((queries, heads, dim), stored),
        keys_of=((keys, dim), stored),
        weight=((queries, heads), "float32"),
    )


def latent_absorb(tokens: int, heads: int, nope: int, rank: int, value: int, dtype: str) -> Program:
    """The two products that absorb the decompression while decoding: queries [tokens, heads, nope] into the latent
    space, and contexts [tokens, heads, rank] out of it, by each head's own matrix.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    def into(query: Any, key_weight: Any) -> Any:
        d = te.reduce_axis((0, nope), name="d")
        raw = te.compute(
            (tokens, heads, rank),
            lambda n, h, r: te.sum(wide(query[n, h, d]) * wide(key_weight[h, d, r]), axis=d),
            name="into",
        )
        return te.compute(raw.shape, lambda n, h, r: raw[n, h, r].astype(dtype), name="absorbed")

    def out_of(latent: Any, value_weight: Any) -> Any:
        r = te.reduce_axis((0, rank), name="r")
        raw = te.compute(
            (tokens, heads, value),
            lambda n, h, d: te.sum(wide(latent[n, h, r]) * wide(value_weight[h, d, r]), axis=r),
            name="out_of",
        )
        return te.compute(raw.shape, lambda n, h, d: raw[n, h, d].astype(dtype), name="context")

    def forward(query: Any, latent: Any, key_weight: Any, value_weight: Any) -> Any:
        first = op.tensor_expr_op(into, "absorb_query", [query, key_weight])
        return first, op.tensor_expr_op(out_of, "expand_context", [latent, value_weight])

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
    from tvm.relax.frontend.nn import op

    def compute(latent: Any, key_rope: Any, key_weight: Any) -> Any:
        r = te.reduce_axis((0, rank), name="r")
        raw = te.compute(
            (tokens, heads, nope),
            lambda n, h, d: te.sum(wide(latent[n, r]) * wide(key_weight[h, d, r]), axis=r),
            name="expanded",
        )
        return te.compute(
            (tokens, heads, nope + rope),
            lambda n, h, d: tirx.if_then_else(d < nope, raw[n, h, te.min(d, nope - 1)].astype(dtype), key_rope[n, te.max(d - nope, 0)]),
            name="keys",
        )

    def forward(latent: Any, key_rope: Any, key_weight: Any) -> Any:
        return op.tensor_expr_op(compute, "latent_expand", [latent, key_rope, key_weight])

    return export(
        forward,
        latent=((tokens, rank), dtype),
        key_rope=((tokens, rope), dtype),
        key_weight=((heads, nope, rank), dtype),
    )


def latent_attention(
    batch: int, heads: int, queries: int, keys: int, nope: int, rope: int, value: int, dtype: str
) -> Program:
    """Causal attention over expanded keys: S = (Q·Kᵀ over `nope` numbers of each head + Q·Kᵀ over the `rope` rotary
    ones that all heads share) / √(nope + rope), softmax, context of `value` numbers. With one query it is a decoding
    step over a cache that is not compressed.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    shape, past = (batch, heads, queries, keys), keys - queries

    def scores(query: Any, key: Any, key_rope: Any) -> Any:
        d, r = te.reduce_axis((0, nope), name="d"), te.reduce_axis((0, rope), name="r")
        own = te.compute(
            shape, lambda b, h, q, t: te.sum(wide(query[b, q, h, d]) * wide(key[b, t, h, d]), axis=d), name="qk"
        )
        shared = te.compute(
            shape, lambda b, h, q, t: te.sum(wide(query[b, q, h, nope + r]) * wide(key_rope[b, t, r]), axis=r), name="qr"
        )

        def element(b: Any, h: Any, q: Any, t: Any) -> Any:
            score = (own[b, h, q, t] + shared[b, h, q, t]) * (nope + rope) ** -0.5
            return tirx.Select(t <= q + past, score, tirx.const(MASKED)) if queries > 1 else score

        return te.compute(shape, element, name="scores")

    def context(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, keys), name="t")
        raw = te.compute(
            (batch, queries, heads, value),
            lambda b, q, h, d: te.sum(wide(weights[b, h, q, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, q, h, d: raw[b, q, h, d].astype(dtype), name="context")

    def forward(query: Any, key: Any, key_rope: Any, values: Any) -> Any:
        found = op.tensor_expr_op(scores, "latent_scores", [query, key, key_rope])
        weights = softmax(found, dtype)
        return op.tensor_expr_op(context, "latent_context", [weights, values])

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
    from tvm.relax.frontend.nn import op

    def compute(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        e = te.reduce_axis((0, rank), name="e")
        square = te.compute(
            (tokens,), lambda n: te.sum(wide(packed[n, e]) * wide(packed[n, e]), axis=e), name="square"
        )

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
        return op.tensor_expr_op(compute, "latent_norm_rotary", [packed, weight, position, table])

    return export(
        forward,
        packed=((tokens, rank + rope), dtype),
        weight=((rank,), dtype),
        position=((tokens,), "int32"),
        table=((positions, rope), "float32"),
    )
