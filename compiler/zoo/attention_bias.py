"""What scores get before their softmax: windows, linear and relative biases, soft caps, sinks, disentangled positions."""

from typing import Any, Literal

from littledragon.compiler.zoo.attention import MASKED, softmax, wide
from littledragon.compiler.zoo.block import Program, export

Form = Literal["alibi", "soft_cap", "relative"]


def biased_scores(batch: int, heads: int, queries: int, keys: int, dim: int, dtype: str, *, form: Form) -> Program:
    """S = Q·Kᵀ of the last `queries` of `keys` tokens with what a model adds, float32, heads before tokens, and what
    follows: its softmax.

    alibi: scaled, a slope of each head times the key's position, causal. soft_cap: scaled, c·tanh(S / c), causal.
    relative: not scaled, a number of each head from a table, by the bucket of the distance (T5).
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    shape, past = (batch, heads, queries, keys), keys - queries

    def raw_of(query: Any, key: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        return te.compute(
            shape, lambda b, h, q, t: te.sum(wide(query[b, h, q, d]) * wide(key[b, h, t, d]), axis=d), name="qk"
        )

    def causal(q: Any, t: Any, score: Any) -> Any:
        return tirx.Select(t <= q + past, score, tirx.const(MASKED))

    def alibi(query: Any, key: Any, slope: Any) -> Any:
        raw = raw_of(query, key)
        return te.compute(
            shape,
            lambda b, h, q, t: causal(q, t, raw[b, h, q, t] * dim**-0.5 + slope[h] * (t - keys + 1).astype("float32")),
            name="alibi",
        )

    def soft_cap(query: Any, key: Any) -> Any:
        raw = raw_of(query, key)
        return te.compute(
            shape,
            lambda b, h, q, t: causal(q, t, te.tanh(raw[b, h, q, t] * (dim**-0.5 / 50.0)) * 50.0),
            name="soft_cap",
        )

    def relative(query: Any, key: Any, table: Any, bucket: Any) -> Any:
        raw = raw_of(query, key)
        return te.compute(
            shape, lambda b, h, q, t: raw[b, h, q, t] + table[bucket[t - q + queries - 1], h], name="relative"
        )

    def forward_alibi(query: Any, key: Any, slope: Any) -> Any:
        return op.tensor_expr_op(alibi, "alibi_scores", [query, key, slope])

    def forward_soft_cap(query: Any, key: Any) -> Any:
        return op.tensor_expr_op(soft_cap, "soft_cap_scores", [query, key])

    def forward_relative(query: Any, key: Any, table: Any, bucket: Any) -> Any:
        return op.tensor_expr_op(relative, "relative_scores", [query, key, table, bucket])

    arguments = {"query": ((batch, heads, queries, dim), dtype), "key": ((batch, heads, keys, dim), dtype)}
    if form == "alibi":
        return export(forward_alibi, **arguments, slope=((heads,), "float32"))
    if form == "soft_cap":
        return export(forward_soft_cap, **arguments)
    buckets = ((queries + keys - 1,), "int32")
    return export(forward_relative, **arguments, table=((32, heads), "float32"), bucket=buckets)


def window_attention(
    batch: int, kv_heads: int, group: int, queries: int, window: int, dim: int, dtype: str
) -> Program:
    """Sliding-window attention of `queries` new tokens, with the `window` tokens before them in a cache: a token sees
    itself and the `window` - 1 before it. Scores, softmax, context; tokens before heads.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    keys_of = window + queries
    grouped = (batch, kv_heads, group, queries, keys_of)

    def scores(query: Any, keys: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            grouped,
            lambda b, h, g, q, t: te.sum(wide(query[b, q, h, g, d]) * wide(keys[b, t, h, d]), axis=d),
            name="qk",
        )

        def element(b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
            seen = tirx.all(t > q, t <= q + window)
            return tirx.Select(seen, raw[b, h, g, q, t] * dim**-0.5, tirx.const(MASKED))

        return te.compute(grouped, element, name="banded")

    def context(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, keys_of), name="t")
        raw = te.compute(
            (batch, queries, kv_heads, group, dim),
            lambda b, q, h, g, d: te.sum(wide(weights[b, h, g, q, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, q, h, g, d: raw[b, q, h, g, d].astype(dtype), name="context")

    def forward(query: Any, keys: Any, values: Any) -> Any:
        banded = op.tensor_expr_op(scores, "window_scores", [query, keys])
        weights = softmax(banded, dtype)
        return op.tensor_expr_op(context, "window_context", [weights, values])

    cache = ((batch, keys_of, kv_heads, dim), dtype)
    return export(forward, query=((batch, queries, kv_heads, group, dim), dtype), keys=cache, values=cache)


def local_attention(batch: int, kv_heads: int, group: int, chunks: int, width: int, dim: int, dtype: str) -> Program:
    """Local attention in chunks of `width` tokens: a chunk sees itself and `width` tokens on either side, which the keys
    and values are padded by. Scores, softmax, context.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    seen = 3 * width
    row = (batch, kv_heads, group, chunks, width, seen)

    def scores(query: Any, keys: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            row,
            lambda b, h, g, c, q, t: te.sum(
                wide(query[b, c * width + q, h, g, d]) * wide(keys[b, c * width + t, h, d]), axis=d
            ),
            name="qk",
        )

        def element(b: Any, h: Any, g: Any, c: Any, q: Any, t: Any) -> Any:
            near = tirx.all(t >= q, t <= q + 2 * width)
            return tirx.Select(near, raw[b, h, g, c, q, t] * dim**-0.5, tirx.const(MASKED))

        return te.compute(row, element, name="near")

    def context(weights: Any, values: Any) -> Any:
        t = te.reduce_axis((0, seen), name="t")
        raw = te.compute(
            (batch, kv_heads, group, chunks, width, dim),
            lambda b, h, g, c, q, d: te.sum(
                wide(weights[b, h, g, c, q, t]) * wide(values[b, c * width + t, h, d]), axis=t
            ),
            name="pv",
        )
        return te.compute(raw.shape, lambda b, h, g, c, q, d: raw[b, h, g, c, q, d].astype(dtype), name="context")

    def forward(query: Any, keys: Any, values: Any) -> Any:
        near = op.tensor_expr_op(scores, "local_scores", [query, keys])
        weights = softmax(near, dtype)
        return op.tensor_expr_op(context, "local_context", [weights, values])

    padded = ((batch, (chunks + 2) * width, kv_heads, dim), dtype)
    query = ((batch, chunks * width, kv_heads, group, dim), dtype)
    return export(forward, query=query, keys=padded, values=padded)


def sink_softmax(batch: int, heads: int, queries: int, keys: int, dtype: str) -> Program:
    """Causal softmax of the last `queries` of `keys` tokens, with a learned logit of each head in the sum (gpt-oss)."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    shape, past = (batch, heads, queries, keys), keys - queries

    def compute(scores: Any, sink: Any) -> Any:
        t0, t1 = (te.reduce_axis((0, keys), name=f"t{number}") for number in range(2))
        causal = te.compute(
            shape,
            lambda b, h, q, t: tirx.Select(t <= q + past, wide(scores[b, h, q, t]), tirx.const(MASKED)),
            name="causal",
        )
        largest = te.compute(shape[:3], lambda b, h, q: te.max(causal[b, h, q, t0], axis=t0), name="largest")
        top = te.compute(shape[:3], lambda b, h, q: te.max(largest[b, h, q], sink[h]), name="top")
        power = te.compute(shape, lambda b, h, q, t: te.exp(causal[b, h, q, t] - top[b, h, q]), name="power")
        total = te.compute(shape[:3], lambda b, h, q: te.sum(power[b, h, q, t1], axis=t1), name="total")
        whole = te.compute(
            shape[:3], lambda b, h, q: total[b, h, q] + te.exp(sink[h] - top[b, h, q]), name="with_sink"
        )
        return te.compute(
            shape, lambda b, h, q, t: (power[b, h, q, t] / whole[b, h, q]).astype(dtype), name="weights"
        )

    def forward(scores: Any, sink: Any) -> Any:
        return op.tensor_expr_op(compute, "sink_softmax", [scores, sink])

    return export(forward, scores=(shape, dtype), sink=((heads,), "float32"))


def disentangled_scores(batch: int, heads: int, tokens: int, dim: int, span: int, dtype: str) -> Program:
    """DeBERTa's S = (Q·Kᵀ + query-to-position + key-to-position) / √(3·dim): the latter two are products with
    2·`span` relative positions, taken at the clipped distance. Three functions.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    def projected(x: Any, positions: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        return te.compute(
            (batch, heads, tokens, 2 * span),
            lambda b, h, q, p: te.sum(wide(x[b, h, q, d]) * wide(positions[h, p, d]), axis=d),
            name="by_position",
        )

    def scores(query: Any, key: Any, to_position: Any, from_position: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        shape = (batch, heads, tokens, tokens)
        raw = te.compute(
            shape, lambda b, h, q, t: te.sum(wide(query[b, h, q, d]) * wide(key[b, h, t, d]), axis=d), name="qk"
        )

        def clipped(distance: Any) -> Any:
            return te.max(te.min(distance + span, 2 * span - 1), 0)

        return te.compute(
            shape,
            lambda b, h, q, t: (
                (raw[b, h, q, t] + to_position[b, h, q, clipped(q - t)] + from_position[b, h, t, clipped(q - t)])
                * (3 * dim) ** -0.5
            ),
            name="disentangled",
        )

    def forward(query: Any, key: Any, key_positions: Any, query_positions: Any) -> Any:
        to_position = op.tensor_expr_op(projected, "query_to_position", [query, key_positions])
        from_position = op.tensor_expr_op(projected, "key_to_position", [key, query_positions])
        return op.tensor_expr_op(scores, "disentangled_scores", [query, key, to_position, from_position])

    rows, positions = ((batch, heads, tokens, dim), dtype), ((heads, 2 * span, dim), dtype)
    return export(forward, query=rows, key=rows, key_positions=positions, query_positions=positions)
