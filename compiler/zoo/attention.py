"""Attention over dense queries, keys and values: scores, context, masked softmax, and whole steps of them."""

from collections.abc import Callable
from typing import Any, Literal

from littledragon.compiler.zoo.block import Program, export

MASKED = -1e4
"""The score of a key that a query must not see: its weight is 0 in float32, and a row of nothing else is no NaN."""

Mask = Literal["none", "causal", "padding"]


def cast(x: Any, dtype: str) -> Any:
    """The `nn` tensor as `dtype`; itself where it is that already."""
    from tvm.relax.frontend.nn import op

    return x if x.dtype == dtype else op.astype(x, dtype)


def wide(element: Any) -> Any:
    """In TE: a value as float32, in which sums are kept."""
    return element if element.dtype == "float32" else element.astype("float32")


def rounded(sums: Any, dtype: str) -> Any:
    """In TE: float32 sums as `dtype`."""
    from tvm import te

    return sums if dtype == "float32" else te.compute(sums.shape, lambda *i: sums[i].astype(dtype), name="rounded")


def stage(name: str, result: str, compute: Callable[..., Any], *tensors: Any) -> Any:
    """A call of the TE function `compute` as an operator of its own, `name`; what it gives is called `result`, as the
    argument of a later stage.
    """
    from tvm.relax import BlockBuilder
    from tvm.relax.frontend.nn import op

    called = BlockBuilder.current().call_te(compute, *(x._expr for x in tensors), primfunc_name_hint=name)
    return op.wrap_nested(called, result)


def softmax(scores: Any, dtype: str, seen: Callable[..., Any] | None = None, *tensors: Any) -> Any:
    """The softmax of float32 scores over the last axis, as `dtype`; `seen` of the tensors and of a score's place says
    which scores are not masked.
    """
    from tvm import te, tirx, topi

    def compute(scores: Any, *tensors: Any) -> Any:
        if seen is None:
            return rounded(topi.nn.softmax(scores), dtype)

        def element(*i: Any) -> Any:
            return tirx.Select(seen(*tensors, *i), scores[i], tirx.const(MASKED))

        return rounded(topi.nn.softmax(te.compute(scores.shape, element, name="masked")), dtype)

    return stage("masked_softmax" if seen else "softmax", "weights", compute, scores, *tensors)


def grouped_scores(name: str, masked: Callable[..., Any], query: Any, keys: Any, *masks: Any) -> Any:
    """S[b, h, g, q, t] = query[b, q, h, g]·keys[b, t, h] / √d in float32, after `masked` of the score, the masks, and
    its place.
    """
    from tvm import te

    def compute(query: Any, keys: Any, *masks: Any) -> Any:
        batch, queries, kv_heads, group, dim = query.shape
        shape, d = (batch, kv_heads, group, queries, keys.shape[1]), te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            shape,
            lambda b, h, g, q, t: te.sum(wide(query[b, q, h, g, d]) * wide(keys[b, t, h, d]), axis=d),
            name="qk",
        )
        scale = int(dim) ** -0.5
        return te.compute(
            shape, lambda b, h, g, q, t: masked(raw[b, h, g, q, t] * scale, *masks, b, h, g, q, t), name="masked"
        )

    return stage(name, "scores", compute, query, keys, *masks)


def grouped_context(name: str, weights: Any, values: Any) -> Any:
    """C[b, q, h, g, d] = Σ over t of weights[b, h, g, q, t]·values[b, t, h, d], summed in float32."""
    from tvm import te

    def compute(weights: Any, values: Any) -> Any:
        batch, kv_heads, group, queries, keys = weights.shape
        t = te.reduce_axis((0, keys), name="t")
        raw = te.compute(
            (batch, queries, kv_heads, group, values.shape[3]),
            lambda b, q, h, g, d: te.sum(wide(weights[b, h, g, q, t]) * wide(values[b, t, h, d]), axis=t),
            name="pv",
        )
        return rounded(raw, values.dtype)

    return stage(name, "context", compute, weights, values)


def qk_scores(heads: int, tokens: int, dim: int) -> Program:
    """S[h] = Q[h]·K[h]ᵀ / √dim, float16 with float32 accumulation."""
    from tvm.relax.frontend.nn import op

    def forward(q: Any, k: Any) -> Any:
        return op.matmul(q, op.permute_dims(k, [0, 2, 1]), out_dtype="float32") * (dim**-0.5)

    shape = (heads, tokens, dim)
    return export(forward, q=(shape, "float16"), k=(shape, "float16"))


def pv_context(heads: int, tokens: int, dim: int) -> Program:
    """C[h] = P[h]·V[h] in float32."""
    from tvm.relax.frontend.nn import op

    def forward(p: Any, v: Any) -> Any:
        return op.matmul(p, v)

    return export(forward, p=((heads, tokens, tokens), "float32"), v=((heads, tokens, dim), "float32"))


def masked_softmax(heads: int, tokens: int) -> Program:
    """P = softmax(where(mask, S, -10⁴)) over the last axis, float32."""
    from tvm import te, tirx, topi

    def compute(scores: Any, mask: Any) -> Any:
        def element(h: Any, q: Any, k: Any) -> Any:
            return tirx.Select(mask[q, k], scores[h, q, k], tirx.const(MASKED, "float32"))

        return topi.nn.softmax(te.compute((heads, tokens, tokens), element, name="masked"), axis=-1)

    def forward(scores: Any, mask: Any) -> Any:
        return stage("masked_softmax", "weights", compute, scores, mask)

    return export(forward, scores=((heads, tokens, tokens), "float32"), mask=((tokens, tokens), "bool"))


def gqa_decode(
    kv_heads: int, group: int, context: int, dim: int, *, batch: int | None = None, dtype: str = "float32"
) -> Program:
    """One decoding step of grouped-query attention: scores, softmax, context; sums in float32.

    The cache is [kv_heads, context, dim], as a static cache of key-value heads is, with `batch` of them in front.
    """
    from tvm.relax.frontend.nn import op

    front = (kv_heads,) if batch is None else (batch, kv_heads)
    turned = [*range(len(front)), len(front) + 1, len(front)]

    def forward(query: Any, key: Any, value: Any) -> Any:
        scores = op.matmul(query, op.permute_dims(key, turned), out_dtype="float32") * (dim**-0.5)
        weights = cast(op.softmax(scores, axis=-1), dtype)
        return cast(op.matmul(weights, value, out_dtype="float32"), dtype)

    cache = ((*front, context, dim), dtype)
    return export(forward, query=((*front, group, dim), dtype), key=cache, value=cache)


def eager_attention(
    batch: int, heads: int, queries: int, keys: int, dim: int, dtype: str, *, mask: Mask, scaled: bool = True
) -> Program:
    """Attention as three operators, heads before tokens: S = Q·Kᵀ / √dim + mask, its softmax, and P·V; sums in float32.

    The mask is added: [queries, keys] for `causal`, [batch, keys] for `padding`. `scaled` is False where the model
    does not divide by √dim (T5).
    """
    from tvm.relax.frontend.nn import op

    def scores(query: Any, key: Any) -> Any:
        found = op.matmul(query, op.permute_dims(key, [0, 1, 3, 2]), out_dtype="float32")
        return found * (dim**-0.5) if scaled else found

    def context(raw: Any, value: Any) -> Any:
        return cast(op.matmul(cast(op.softmax(raw, axis=-1), dtype), value, out_dtype="float32"), dtype)

    def plain(query: Any, key: Any, value: Any) -> Any:
        return context(scores(query, key), value)

    def masked(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return context(scores(query, key) + mask, value)

    shape = (batch, heads, keys, dim)
    arguments = {"query": ((batch, heads, queries, dim), dtype), "key": (shape, dtype), "value": (shape, dtype)}
    if mask == "none":
        return export(plain, **arguments)
    added = (queries, keys) if mask == "causal" else (batch, 1, 1, keys)
    return export(masked, **arguments, mask=(added, "float32"))


def gqa_prefill(batch: int, kv_heads: int, group: int, queries: int, keys: int, dim: int, dtype: str) -> Program:
    """Causal grouped-query attention of the last `queries` of `keys` tokens, tokens before heads: scores, softmax,
    context; each key-value head serves `group` query heads.
    """
    from tvm import tirx

    def causal(score: Any, b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
        return tirx.Select(t <= q + keys - queries, score, tirx.const(MASKED))

    def forward(query: Any, key: Any, value: Any) -> Any:
        scores = grouped_scores("gqa_scores", causal, query, key)
        return grouped_context("gqa_context", softmax(scores, dtype), value)

    cache = ((batch, keys, kv_heads, dim), dtype)
    return export(forward, query=((batch, queries, kv_heads, group, dim), dtype), key=cache, value=cache)


def fused_attention(batch: int, heads: int, queries: int, keys: int, dim: int, dtype: str) -> Program:
    """Attention in one function: scores, largest score, exponentials, context, divided by their sum. Heads stand before
    tokens; `queries` may be those of one decoding step that share a key-value head.
    """
    from tvm import te

    rows, row = (batch, heads, queries), (batch, heads, queries, keys)

    def compute(query: Any, key: Any, value: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        t0, t1, t2 = (te.reduce_axis((0, keys), name=f"t{number}") for number in range(3))
        scores = te.compute(
            row, lambda b, h, q, t: te.sum(wide(query[b, h, q, d]) * wide(key[b, h, t, d]), axis=d), name="scores"
        )
        largest = te.compute(rows, lambda b, h, q: te.max(scores[b, h, q, t0], axis=t0), name="largest")
        power = te.compute(
            row, lambda b, h, q, t: te.exp((scores[b, h, q, t] - largest[b, h, q]) * dim**-0.5), name="power"
        )
        total = te.compute(rows, lambda b, h, q: te.sum(power[b, h, q, t1], axis=t1), name="total")
        raw = te.compute(
            (*rows, dim),
            lambda b, h, q, e: te.sum(power[b, h, q, t2] * wide(value[b, h, t2, e]), axis=t2),
            name="weighted",
        )
        return te.compute(
            raw.shape, lambda b, h, q, e: (raw[b, h, q, e] / total[b, h, q]).astype(dtype), name="context"
        )

    def forward(query: Any, key: Any, value: Any) -> Any:
        return stage("fused_attention", "context", compute, query, key, value)

    cache = ((batch, heads, keys, dim), dtype)
    return export(forward, query=((*rows, dim), dtype), key=cache, value=cache)


def document_attention(kv_heads: int, group: int, tokens: int, dim: int, dtype: str) -> Program:
    """Causal attention in a row of `tokens` packed with documents, none of which sees another: tokens before heads, a
    number of its document for each token. Scores, softmax, context.
    """
    from tvm import tirx

    def inside(score: Any, document: Any, b: Any, h: Any, g: Any, q: Any, t: Any) -> Any:
        return tirx.Select(tirx.all(t <= q, document[t] == document[q]), score, tirx.const(MASKED))

    def forward(query: Any, key: Any, value: Any, document: Any) -> Any:
        scores = grouped_scores("document_scores", inside, query, key, document)
        return grouped_context("document_context", softmax(scores, dtype), value)

    cache = ((1, tokens, kv_heads, dim), dtype)
    query = ((1, tokens, kv_heads, group, dim), dtype)
    return export(forward, query=query, key=cache, value=cache, document=((tokens,), "int32"))


def norm_rotary(tokens: int, heads: int, dim: int, positions: int) -> Program:
    """RMS normalisation of each float16 query, then rotary embedding by tables looked up at the token's position."""
    from tvm import te, tirx

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
        return stage("norm_rotary", "rotated", compute, x, weight, position, cos, sin)

    table = ((positions, dim), "float32")
    return export(
        forward,
        x=((tokens, heads, dim), "float16"),
        weight=((dim,), "float16"),
        position=((tokens,), "int32"),
        cos=table,
        sin=table,
    )


def mla_decode(heads: int, context: int, rank: int, rope: int) -> Program:
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
