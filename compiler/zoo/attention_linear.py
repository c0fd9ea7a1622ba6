"""Attention without softmax: linear attention with decay, state-space duality, the gated delta rule.

A state of each head stands for all tokens before; sequences are worked on in chunks. Decay rates are positive, and
what is multiplied is e to the negative rate times the distance.
"""

from typing import Any

from littledragon.compiler.zoo.attention import rounded, stage, wide
from littledragon.compiler.zoo.block import Program, export


def linear_attention(batch: int, heads: int, chunks: int, width: int, dim: int, dtype: str) -> Program:
    """Lightning attention over chunks of `width` tokens, a fixed decay for each head: decayed scores inside a chunk,
    their context, the state that a chunk adds, and the context from the state before it. Four functions.
    """
    from tvm import te, tirx

    def scores(query: Any, key: Any, rate_scale: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            (batch, heads, chunks, width, width),
            lambda b, h, c, q, t: te.sum(
                wide(query[b, c * width + q, h, d]) * wide(key[b, c * width + t, h, d]), axis=d
            ),
            name="qk",
        )

        def element(b: Any, h: Any, c: Any, q: Any, t: Any) -> Any:
            decay = te.exp(rate_scale[h] * (t - q).astype("float32"))
            kept = tirx.if_then_else(t <= q, raw[b, h, c, q, t] * decay, tirx.const(0.0, "float32"))
            return kept.astype(dtype)

        return te.compute(raw.shape, element, name="decayed")

    def inside(scores: Any, value: Any) -> Any:
        t = te.reduce_axis((0, width), name="t")
        return te.compute(
            (batch, heads, chunks, width, dim),
            lambda b, h, c, q, d: te.sum(wide(scores[b, h, c, q, t]) * wide(value[b, c * width + t, h, d]), axis=t),
            name="inside",
        )

    def added(key: Any, value: Any, rate_scale: Any) -> Any:
        t = te.reduce_axis((0, width), name="t")
        decayed = te.compute(
            (batch, chunks, width, heads, dim),
            lambda b, c, n, h, d: (
                wide(key[b, c * width + n, h, d]) * te.exp(rate_scale[h] * (n - width + 1).astype("float32"))
            ),
            name="decayed",
        )
        return te.compute(
            (batch, heads, chunks, dim, dim),
            lambda b, h, c, d, e: te.sum(decayed[b, c, t, h, d] * wide(value[b, c * width + t, h, e]), axis=t),
            name="state",
        )

    def before(query: Any, state: Any, inner: Any, rate_scale: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        raw = te.compute(
            (batch, heads, chunks, width, dim),
            lambda b, h, c, q, e: te.sum(wide(query[b, c * width + q, h, d]) * state[b, h, c, d, e], axis=d),
            name="before",
        )
        return te.compute(
            raw.shape,
            lambda b, h, c, q, e: (
                raw[b, h, c, q, e] * te.exp(rate_scale[h] * (-1 - q).astype("float32")) + inner[b, h, c, q, e]
            ).astype(dtype),
            name="context",
        )

    def forward(query: Any, key: Any, value: Any, state: Any, rate_scale: Any) -> Any:
        found = stage("decayed_scores", "scores", scores, query, key, rate_scale)
        inner = stage("chunk_context", "inner", inside, found, value)
        return (
            stage("chunk_state", "added", added, key, value, rate_scale),
            stage("state_context", "context", before, query, state, inner, rate_scale),
        )

    rows = ((batch, chunks * width, heads, dim), dtype)
    state = ((batch, heads, chunks, dim, dim), "float32")
    return export(forward, query=rows, key=rows, value=rows, state=state, rate_scale=((heads,), "float32"))


def linear_decode(batch: int, heads: int, dim: int, value: int, dtype: str, *, delta: bool = False) -> Program:
    """One decoding step of linear attention: the state [dim, value] of each head decays, takes the new key and value,
    and is read by the query. With `delta`, what the state already holds of the key is first taken off the value, and
    the rest is gated (gated delta rule).
    """
    from tvm import te

    def decay(rate_scale: Any, b: Any, h: Any) -> Any:
        return te.exp(-rate_scale[b, h])

    def compute(query: Any, key: Any, value_of: Any, state: Any, rate_scale: Any, gate_scale: Any) -> list[Any]:
        d0, d1 = (te.reduce_axis((0, dim), name=f"d{number}") for number in range(2))
        held = te.compute(
            (batch, heads, value),
            lambda b, h, e: te.sum(state[b, h, d0, e] * wide(key[b, h, d0]), axis=d0),
            name="held",
        )
        new = te.compute(
            (batch, heads, value),
            lambda b, h, e: (
                (wide(value_of[b, h, e]) - held[b, h, e] * decay(rate_scale, b, h)) * gate_scale[b, h]
                if delta
                else wide(value_of[b, h, e])
            ),
            name="new",
        )
        after = te.compute(
            (batch, heads, dim, value),
            lambda b, h, d, e: state[b, h, d, e] * decay(rate_scale, b, h) + wide(key[b, h, d]) * new[b, h, e],
            name="after",
        )
        raw = te.compute(
            (batch, heads, value),
            lambda b, h, e: te.sum(wide(query[b, h, d1]) * after[b, h, d1, e], axis=d1),
            name="read",
        )
        return [after, rounded(raw, dtype)]

    def plain(query: Any, key: Any, value_of: Any, state: Any, rate_scale: Any) -> list[Any]:
        return compute(query, key, value_of, state, rate_scale, None)

    def forward(query: Any, key: Any, value_of: Any, state: Any, rate_scale: Any) -> Any:
        return stage("linear_decode", "context", plain, query, key, value_of, state, rate_scale)

    def forward_delta(query: Any, key: Any, value_of: Any, state: Any, rate_scale: Any, gate_scale: Any) -> Any:
        return stage("delta_decode", "context", compute, query, key, value_of, state, rate_scale, gate_scale)

    each = ((batch, heads), "float32")
    arguments = {
        "query": ((batch, heads, dim), dtype),
        "key": ((batch, heads, dim), dtype),
        "value_of": ((batch, heads, value), dtype),
        "state": ((batch, heads, dim, value), "float32"),
        "rate_scale": each,
    }
    return export(forward_delta, **arguments, gate_scale=each) if delta else export(forward, **arguments)


def state_space_duality(
    batch: int, groups: int, group: int, chunks: int, width: int, dim: int, state: int, dtype: str
) -> Program:
    """Mamba-2 over chunks of `width` tokens: `groups` sets of B and C, each for `group` heads of `dim` channels with
    `state` numbers each. Products C·Bᵀ, their decayed context, the state that a chunk adds, the states passed on
    from chunk to chunk, and the context from them. `elapsed_scale` is a chunk's running sum of steps times rates.
    """
    from tvm import te, tirx

    heads, tokens = groups * group, chunks * width

    def scores(read: Any, write: Any) -> Any:
        n = te.reduce_axis((0, state), name="n")
        return te.compute(
            (batch, chunks, groups, width, width),
            lambda b, c, g, q, t: te.sum(
                wide(read[b, c * width + q, g, n]) * wide(write[b, c * width + t, g, n]), axis=n
            ),
            name="scores",
        )

    def inside(scores: Any, x: Any, elapsed_scale: Any) -> Any:
        t = te.reduce_axis((0, width), name="t")

        def weight(b: Any, c: Any, h: Any, q: Any, t: Any) -> Any:
            decay = te.exp(elapsed_scale[b, c, h, t] - elapsed_scale[b, c, h, q])
            return tirx.if_then_else(t <= q, scores[b, c, h // group, q, t] * decay, tirx.const(0.0, "float32"))

        weights = te.compute((batch, chunks, heads, width, width), weight, name="weights")
        return te.compute(
            (batch, chunks, heads, width, dim),
            lambda b, c, h, q, p: te.sum(weights[b, c, h, q, t] * wide(x[b, c * width + t, h, p]), axis=t),
            name="inside",
        )

    def added(write: Any, x: Any, elapsed_scale: Any) -> Any:
        t = te.reduce_axis((0, width), name="t")
        decayed = te.compute(
            (batch, chunks, heads, width, dim),
            lambda b, c, h, n, p: (
                wide(x[b, c * width + n, h, p]) * te.exp(elapsed_scale[b, c, h, n] - elapsed_scale[b, c, h, width - 1])
            ),
            name="decayed",
        )
        return te.compute(
            (batch, chunks, heads, dim, state),
            lambda b, c, h, p, n: te.sum(decayed[b, c, h, t, p] * wide(write[b, c * width + t, h // group, n]), axis=t),
            name="added",
        )

    def passed(states: Any, chunk_decay: Any) -> Any:
        c = te.reduce_axis((0, chunks), name="c")
        return te.compute(
            (batch, chunks, heads, dim, state),
            lambda b, z, h, p, n: te.sum(chunk_decay[b, h, z, c] * states[b, c, h, p, n], axis=c),
            name="passed",
        )

    def before(read: Any, states: Any, inner: Any, elapsed_scale: Any) -> Any:
        n = te.reduce_axis((0, state), name="n")
        raw = te.compute(
            (batch, chunks, heads, width, dim),
            lambda b, c, h, q, p: te.sum(wide(read[b, c * width + q, h // group, n]) * states[b, c, h, p, n], axis=n),
            name="before",
        )
        return te.compute(
            (batch, tokens, heads, dim),
            lambda b, q, h, p: (
                raw[b, q // width, h, q % width, p] * te.exp(-elapsed_scale[b, q // width, h, q % width])
                + inner[b, q // width, h, q % width, p]
            ).astype(dtype),
            name="context",
        )

    def forward(read: Any, write: Any, x: Any, elapsed_scale: Any, chunk_decay: Any) -> Any:
        products = stage("chunk_scores", "scores", scores, read, write)
        inner = stage("chunk_context", "inner", inside, products, x, elapsed_scale)
        states = stage("chunk_state", "states", added, write, x, elapsed_scale)
        states = stage("state_passing", "states", passed, states, chunk_decay)
        return stage("state_context", "context", before, read, states, inner, elapsed_scale)

    sets = ((batch, tokens, groups, state), dtype)
    return export(
        forward,
        read=sets,
        write=sets,
        x=((batch, tokens, heads, dim), dtype),
        elapsed_scale=((batch, chunks, heads, width), "float32"),
        chunk_decay=((batch, heads, chunks, chunks), "float32"),
    )
