"""Recurrences over tokens: causal convolutions, prefix sums in chunks, and the step that updates a state for one token.

A recurrence over a whole sequence is cut into chunks; inside a chunk a prefix sum is a masked sum over all pairs, as
the published kernels have it, and between chunks the states are passed on the same way. States are float32.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, computed
from littledragon.compiler.zoo.norm_reduction_te import along_last, elements, reduced, silu, wide


def causal_conv(sequences: int, channels: int, tokens: int, taps: int, dtype: str) -> Program:
    """silu of a causal depthwise convolution with bias; the first taps - 1 inputs are those before the sequence."""

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        from tvm import te

        def term(at: Any, inner: Any) -> Any:
            s, c, t = at
            return wide(x(s, c, t + inner[0])) * wide(weight(c, *inner))

        like = (sequences, channels, tokens)
        total = reduced(te.sum, like, (taps,), term, "convolved")
        return elements(like, lambda s, c, t: silu(total(s, c, t) + wide(bias(c))).astype(dtype), "activated")

    weight, bias = ((channels, taps), dtype), ((channels,), dtype)
    return computed(
        "causal_conv", compute, x=((sequences, channels, tokens + taps - 1), dtype), weight=weight, bias=bias
    )


def causal_conv_step(sequences: int, channels: int, taps: int, dtype: str) -> Program:
    """`causal_conv` for one token: gives the activated channels, and the last `taps` inputs, moved on by one."""

    def compute(x: Any, state: Any, weight: Any, bias: Any) -> list[Any]:
        from tvm import te, tirx

        def moved(s: Any, c: Any, t: Any) -> Any:
            return tirx.if_then_else(t < taps - 1, state(s, c, te.min(t + 1, tirx.const(taps - 1, t.dtype))), x(s, c))

        new = elements(state.shape, moved, "moved")
        total = along_last(te.sum, new, "convolved", lambda s, c, t: wide(new(s, c, t)) * wide(weight(c, t)))
        return [elements(x.shape, lambda s, c: silu(total(s, c) + wide(bias(c))).astype(dtype), "activated"), new]

    channel = ((sequences, channels), dtype)
    state, weight = ((sequences, channels, taps), dtype), ((channels, taps), dtype)
    return computed("causal_conv_step", compute, x=channel, state=state, weight=weight, bias=((channels,), dtype))


def selective_step(sequences: int, channels: int, size: int, dtype: str) -> Program:
    """One token of Mamba's selective scan: h' = exp(dt·A)·h + dt·B·x, y = (C·h' + D·x) · silu(z), where `rate` is A,
    `entry` B, `exit` C and `skip` D; dt goes through softplus. Gives y and h'."""

    def compute(state: Any, x: Any, dt: Any, rate: Any, entry: Any, exit: Any, skip: Any, gate: Any) -> list[Any]:
        from tvm import te

        step = elements(dt.shape, lambda s, c: te.log(te.exp(wide(dt(s, c))) + 1.0), "step")

        def updated(s: Any, c: Any, n: Any) -> Any:
            # A is negative: what is kept of it is its logarithm.
            decay = te.exp(-te.exp(rate(c, n)) * step(s, c))
            return decay * state(s, c, n) + step(s, c) * wide(entry(s, n)) * wide(x(s, c))

        new = elements(state.shape, updated, "updated")
        total = along_last(te.sum, new, "read", lambda s, c, n: new(s, c, n) * wide(exit(s, n)))

        def output(s: Any, c: Any) -> Any:
            return ((total(s, c) + wide(skip(c)) * wide(x(s, c))) * silu(wide(gate(s, c)))).astype(dtype)

        return [elements(x.shape, output, "output"), new]

    channel, vector = ((sequences, channels), dtype), ((sequences, size), dtype)
    return computed(
        "selective_step",
        compute,
        state=((sequences, channels, size), "float32"),
        x=channel,
        dt=channel,
        rate=((channels, size), "float32"),
        entry=vector,
        exit=vector,
        skip=((channels,), dtype),
        gate=channel,
    )


def head_step(sequences: int, heads: int, dim: int, size: int, groups: int, dtype: str) -> Program:
    """One token of Mamba-2: as `selective_step`, but with one rate for each head of `dim` channels, and with B and C
    for each of `groups` groups of heads. Gives y and h'."""
    of_group = heads // groups

    def compute(state: Any, x: Any, dt: Any, rate: Any, entry: Any, exit: Any, skip: Any) -> list[Any]:
        from tvm import te

        step = elements(dt.shape, lambda s, h: te.log(te.exp(wide(dt(s, h))) + 1.0), "step")

        def updated(s: Any, h: Any, d: Any, n: Any) -> Any:
            kept = te.exp(-te.exp(rate(h)) * step(s, h)) * state(s, h, d, n)
            return kept + step(s, h) * wide(entry(s, h // of_group, n)) * wide(x(s, h, d))

        new = elements(state.shape, updated, "updated")
        total = along_last(te.sum, new, "read", lambda s, h, d, n: new(s, h, d, n) * wide(exit(s, h // of_group, n)))

        def output(s: Any, h: Any, d: Any) -> Any:
            return (total(s, h, d) + skip(h) * wide(x(s, h, d))).astype(dtype)

        return [elements(x.shape, output, "output"), new]

    vector, head = ((sequences, groups, size), dtype), ((heads,), "float32")
    return computed(
        "head_step",
        compute,
        state=((sequences, heads, dim, size), "float32"),
        x=((sequences, heads, dim), dtype),
        dt=((sequences, heads), dtype),
        rate=head,
        entry=vector,
        exit=vector,
        skip=head,
    )


def linear_step(sequences: int, heads: int, dim: int, value: int, dtype: str) -> Program:
    """One token of linear attention with a decay for each head: S' = decay·S + k·vᵀ, y = Sᵀ·q. Gives y and S'."""

    def compute(state: Any, queries: Any, keys: Any, values: Any, decay: Any) -> list[Any]:
        from tvm import te

        def updated(s: Any, h: Any, d: Any, v: Any) -> Any:
            return te.exp(-te.exp(decay(h))) * state(s, h, d, v) + wide(keys(s, h, d)) * wide(values(s, h, v))

        new = elements(state.shape, updated, "updated")
        total = _down_keys(elements(state.shape, lambda *at: new(*at) * wide(queries(*at[:3])), "product"), "read")
        return [elements(total.shape, lambda *at: total(*at).astype(dtype), "output"), new]

    key = ((sequences, heads, dim), dtype)
    return computed(
        "linear_step",
        compute,
        state=((sequences, heads, dim, value), "float32"),
        queries=key,
        keys=key,
        values=((sequences, heads, value), dtype),
        decay=((heads,), "float32"),
    )


def bonus_step(sequences: int, heads: int, dim: int, dtype: str) -> Program:
    """One token of RWKV-6's time mixing: y = r·(S + (bonus·k)·vᵀ), S' = w·S + k·vᵀ with a decay w for each channel of
    each token. Gives y and S'."""

    def compute(state: Any, receptance: Any, keys: Any, values: Any, decay: Any, bonus: Any) -> list[Any]:
        from tvm import te

        def pair(s: Any, h: Any, d: Any, v: Any) -> Any:
            return wide(keys(s, h, d)) * wide(values(s, h, v))

        def term(at: Any, inner: Any) -> Any:
            s, h, v = at
            place = (s, h, *inner, v)
            return wide(receptance(s, h, *inner)) * (state(*place) + bonus(h, *inner) * pair(*place))

        like = (sequences, heads, dim)
        total = reduced(te.sum, like, (dim,), term, "read")

        def updated(s: Any, h: Any, d: Any, v: Any) -> Any:
            return te.exp(-te.exp(wide(decay(s, h, d)))) * state(s, h, d, v) + pair(s, h, d, v)

        output = elements(like, lambda *at: total(*at).astype(dtype), "output")
        return [output, elements(state.shape, updated, "updated")]

    row = ((sequences, heads, dim), dtype)
    return computed(
        "bonus_step",
        compute,
        state=((sequences, heads, dim, dim), "float32"),
        receptance=row,
        keys=row,
        values=row,
        decay=row,
        bonus=((heads, dim), "float32"),
    )


def delta_step(sequences: int, heads: int, dim: int, value: int, dtype: str) -> Program:
    """One token of the gated delta rule (Qwen3-Next): S decays, what it recalls for the key is replaced in part by the
    value, S' = g·S + k·(strength·(v - g·Sᵀ·k))ᵀ, y = S'ᵀ·q. Gives y and S'."""

    def compute(state: Any, queries: Any, keys: Any, values: Any, decay: Any, strength: Any) -> list[Any]:
        from tvm import te

        like = (sequences, heads, value)

        def kept(s: Any, h: Any, d: Any, v: Any) -> Any:
            return te.exp(-te.exp(decay(s, h))) * state(s, h, d, v)

        recalled = _down_keys(elements(state.shape, lambda *at: kept(*at) * wide(keys(*at[:3])), "match"), "recalled")
        written = elements(
            like, lambda s, h, v: te.sigmoid(strength(s, h)) * (wide(values(s, h, v)) - recalled(s, h, v)), "written"
        )
        new = elements(
            state.shape, lambda s, h, d, v: kept(s, h, d, v) + wide(keys(s, h, d)) * written(s, h, v), "updated"
        )
        total = _down_keys(elements(state.shape, lambda *at: new(*at) * wide(queries(*at[:3])), "product"), "read")
        return [elements(like, lambda *at: total(*at).astype(dtype), "output"), new]

    key, head = ((sequences, heads, dim), dtype), ((sequences, heads), "float32")
    return computed(
        "delta_step",
        compute,
        state=((sequences, heads, dim, value), "float32"),
        queries=key,
        keys=key,
        values=((sequences, heads, value), dtype),
        decay=head,
        strength=head,
    )


def chunk_prefix(sequences: int, chunks: int, length: int, heads: int, dtype: str) -> Program:
    """Prefix sums of dt·A inside each chunk (Mamba-2): P[t] is the sum over s ≤ t, float32, heads before chunks."""

    def compute(dt: Any, rate: Any) -> Any:
        from tvm import te, tirx

        def decay(s: Any, h: Any, c: Any, t: Any) -> Any:
            return -te.exp(rate(h)) * te.log(te.exp(wide(dt(s, c, t, h))) + 1.0)

        like = (sequences, heads, chunks, length)
        terms = elements(like, decay, "decay")

        def term(at: Any, inner: Any) -> Any:
            return tirx.Select(inner[0].var <= at[3], terms(*at[:3], *inner), tirx.const(0.0, "float32"))

        return reduced(te.sum, like, (length,), term, "prefix")

    dt = ((sequences, chunks, length, heads), dtype)
    return computed("chunk_prefix", compute, dt=dt, rate=((heads,), "float32"))


def chunk_passing(sequences: int, chunks: int, heads: int, size: int) -> Program:
    """States before each chunk (Mamba-2), float32: the sum over earlier chunks of their own states, decayed by
    exp(P[c] - P[e]), where P is given: the prefix sum of the chunks' decays, decreasing."""

    def compute(states: Any, prefix: Any) -> Any:
        from tvm import te, tirx

        def decay(s: Any, h: Any, c: Any, e: Any) -> Any:
            # Later chunks would grow without bound before they are masked.
            apart = -te.abs(prefix(s, h, c) - prefix(s, h, e))
            return tirx.Select(e <= c, te.exp(apart), tirx.const(0.0, "float32"))

        decays = elements((sequences, heads, chunks, chunks), decay, "decay")

        def term(at: Any, inner: Any) -> Any:
            s, h, c, n = at
            return decays(s, h, c, *inner) * states(s, *inner, h, n)

        return reduced(te.sum, (sequences, heads, chunks, size), (chunks,), term, "passed")

    states = ((sequences, chunks, heads, size), "float32")
    return computed("chunk_passing", compute, states=states, prefix=((sequences, heads, chunks), "float32"))


def _down_keys(x: Any, name: str) -> Any:
    """In TE: the sum over the rows of each head's matrix, [sequences, heads, rows, columns]."""
    from tvm import te

    sequences, heads, rows, columns = x.shape
    return reduced(te.sum, (sequences, heads, columns), (rows,), lambda at, inner: x(*at[:2], *inner, at[2]), name)
