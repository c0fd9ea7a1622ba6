"""What scores get before their softmax: windows, linear and relative biases, soft caps, sinks, positions."""

from typing import Any, Literal

from littledragon.compiler.zoo.attention import MASKED, grouped_context, grouped_scores, rounded, softmax, stage, wide
from littledragon.compiler.zoo.block import Program, export

Form = Literal["alibi", "soft_cap", "relative"]


def biased_scores(batch: int, heads: int, queries: int, keys: int, dim: int, dtype: str, *, form: Form) -> Program:
    """S = Q·Kᵀ of the last `queries` of `keys` tokens with what a model adds, float32, heads before tokens, and what
    follows: its softmax.

    alibi: scaled, a slope of each head times the key's position, causal. soft_cap: scaled, c·tanh(S / c), causal.
    relative: not scaled, a number of each head from a table, by the bucket of the distance (T5).
    """
    from tvm import te, tirx

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
        return stage("alibi_scores", "scores", alibi, query, key, slope)

    def forward_soft_cap(query: Any, key: Any) -> Any:
        return stage("soft_cap_scores", "scores", soft_cap, query, key)

    def forward_relative(query: Any, key: Any, table: Any, bucket: Any) -> Any:
        return stage("relative_scores", "scores", relative, query, key, table, bucket)

    arguments = {"query": ((batch, heads, queries, dim), dtype), "key": ((batch, heads, keys, dim), dtype)}
    if form == "alibi":
        return export(forward_alibi, **arguments, slope=((heads,), "float32"))
    if form == "soft_cap":
        return export(forward_soft_cap, **arguments)
    buckets = ((queries + keys - 1,), "int32")
    return export(forward_relative, **arguments, table=((32, heads), "float32"), bucket=buckets)


def window_attention(batch: int, kv_heads: int, group: int, queries: int, window: int, dim: int, dtype: str) -> Program:
    """Sliding-window attention of `queries` new tokens, with the `window` tokens before them in a cache: a token sees
    itself and the `window` - 1 before it. Scores, softmax, context; tokens before heads.
    """
    from tvm import tirx

    def banded(score: Any, b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
        return tirx.Select(tirx.all(t > q, t <= q + window), score, tirx.const(MASKED))

    def forward(query: Any, keys: Any, values: Any) -> Any:
        scores = grouped_scores("window_scores", banded, query, keys)
        return grouped_context("window_context", softmax(scores, dtype), values)

    cache = ((batch, window + queries, kv_heads, dim), dtype)
    return export(forward, query=((batch, queries, kv_heads, group, dim), dtype), keys=cache, values=cache)


def local_attention(batch: int, kv_heads: int, group: int, chunks: int, width: int, dim: int, dtype: str) -> Program:
    """Local attention in chunks of `width` tokens: a chunk sees itself and `width` tokens on either side, by which the
    keys and values are padded. Scores, softmax, context.
    """
    from tvm import te, tirx

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
        return rounded(raw, dtype)

    def forward(query: Any, keys: Any, values: Any) -> Any:
        weights = softmax(stage("local_scores", "scores", scores, query, keys), dtype)
        return stage("local_context", "context", context, weights, values)

    padded = ((batch, (chunks + 2) * width, kv_heads, dim), dtype)
    query = ((batch, chunks * width, kv_heads, group, dim), dtype)
    return export(forward, query=query, keys=padded, values=padded)


def sink_softmax(batch: int, heads: int, queries: int, keys: int, dtype: str) -> Program:
    """Causal softmax of the last `queries` of `keys` tokens, with a learned logit of each head in the sum (gpt-oss)."""
    from tvm import te, tirx

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
        whole = te.compute(shape[:3], lambda b, h, q: total[b, h, q] + te.exp(sink[h] - top[b, h, q]), name="with_sink")
        return te.compute(shape, lambda b, h, q, t: (power[b, h, q, t] / whole[b, h, q]).astype(dtype), name="weights")

    def forward(scores: Any, sink: Any) -> Any:
        return stage("sink_softmax", "weights", compute, scores, sink)

    return export(forward, scores=(shape, dtype), sink=((heads,), "float32"))


def disentangled_scores(batch: int, heads: int, tokens: int, dim: int, span: int, dtype: str) -> Program:
    """DeBERTa's S = (Q·Kᵀ + query-to-position + key-to-position) / √(3·dim): the latter two are products with
    2·`span` relative positions, taken at the clipped distance. Three functions.
    """
    from tvm import te

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
        to_position = stage("query_to_position", "to_position", projected, query, key_positions)
        from_position = stage("key_to_position", "from_position", projected, key, query_positions)
        return stage("disentangled_scores", "scores", scores, query, key, to_position, from_position)

    rows, positions = ((batch, heads, tokens, dim), dtype), ((heads, 2 * span, dim), dtype)
    return export(forward, query=rows, key=rows, key_positions=positions, query_positions=positions)
