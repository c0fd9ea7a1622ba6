"""Strided, dilated, rolled, padded and masked reads under a sum or a norm."""

from typing import Any

from littledragon.compiler.zoo.block import Program, computed


def merge_norm(batch: int, height: int, width: int, channels: int, dtype: str) -> Program:
    """layer_norm of 2 x 2 neighbouring patches side by side, 4·C wide, in float32 (Swin's patch merging)."""
    from tvm import te, topi

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        def merged(b: Any, i: Any, j: Any, c: Any) -> Any:
            return x[b, i * 2 + c // channels % 2, j * 2 + c // (2 * channels), c % channels].astype("float32")

        whole = te.compute((batch, height // 2, width // 2, 4 * channels), merged, name="merge")
        normal = topi.nn.layer_norm(whole, weight, bias, axis=[3], epsilon=1e-5)
        return te.compute(normal.shape, lambda b, i, j, c: normal[b, i, j, c].astype(dtype), name="cast")

    vector = ((4 * channels,), "float32")
    return computed("merge_norm", compute, x=((batch, height, width, channels), dtype), weight=vector, bias=vector)


def merge_matmul(batch: int, height: int, width: int, stack: int, channels: int, n: int, dtype: str) -> Program:
    """Product of stack x stack neighbouring patches with a matrix: what joins image and language models."""
    from tvm import te

    def compute(x: Any, weight: Any) -> Any:
        down, along = te.reduce_axis((0, stack), name="p"), te.reduce_axis((0, stack), name="q")
        axis = te.reduce_axis((0, channels), name="k")

        def element(b: Any, i: Any, j: Any, c: Any) -> Any:
            part = x[b, i * stack + down, j * stack + along, axis].astype("float32")
            return te.sum(
                part * weight[c, (down * stack + along) * channels + axis].astype("float32"), axis=[down, along, axis]
            )

        total = te.compute((batch, height // stack, width // stack, n), element, name="matmul")
        return te.compute(total.shape, lambda b, i, j, c: total[b, i, j, c].astype(dtype), name="cast")

    return computed(
        "merge_matmul",
        compute,
        x=((batch, height, width, channels), dtype),
        weight=((n, stack * stack * channels), dtype),
    )


def shifted_window_norm(batch: int, size: int, channels: int, window: int, dtype: str) -> Program:
    """layer_norm of an image rolled by half a window and cut into windows (Swin)."""
    from tvm import te, topi

    across, shift = size // window, window // 2

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        def rolled(v: Any, t: Any, c: Any) -> Any:
            row = (v // across % across * window + t // window + shift) % size
            column = (v % across * window + t % window + shift) % size
            return x[v // (across * across), row, column, c].astype("float32")

        windows = te.compute((batch * across * across, window * window, channels), rolled, name="roll")
        normal = topi.nn.layer_norm(windows, weight, bias, axis=[2], epsilon=1e-5)
        return te.compute(normal.shape, lambda v, t, c: normal[v, t, c].astype(dtype), name="cast")

    vector = ((channels,), "float32")
    return computed(
        "shifted_window_norm", compute, x=((batch, size, size, channels), dtype), weight=vector, bias=vector
    )


def chunk_scores(chunks: int, heads: int, size: int, dim: int, decay: str, dtype: str) -> Program:
    """Scores inside chunks of linear attention, causal and decayed: exp(a[i] - a[j]) by `data` (Mamba-2), or a power
    that falls with the distance, `fixed` for each head (RetNet, Lightning attention).
    """
    from tvm import te, tirx

    def compute(q: Any, keys: Any, rate: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")
        scores = te.compute(
            (chunks, heads, size, size),
            lambda c, h, i, j: te.sum(
                q[c, h, i, axis].astype("float32") * keys[c, h, j, axis].astype("float32"), axis=axis
            ),
            name="scores",
        )

        def kept(c: Any, h: Any, i: Any, j: Any) -> Any:
            fall = rate[c, h, i] - rate[c, h, j] if decay == "data" else (j - i).astype("float32") * rate[h]
            return tirx.Select(j <= i, scores[c, h, i, j] * te.exp(fall), tirx.const(0.0, "float32")).astype(dtype)

        return te.compute(scores.shape, kept, name="decay")

    part = ((chunks, heads, size, dim), dtype)
    rate = ((chunks, heads, size) if decay == "data" else (heads,), "float32")
    return computed(
        "chunk_scores", compute, q=part, keys=part, **({"rate": rate} if decay == "data" else {"scale": rate})
    )


def chunk_context(chunks: int, heads: int, size: int, dim: int, dtype: str) -> Program:
    """Σ over j ≤ i of S[i, j]·V[j] inside chunks: a lower triangle times a matrix."""
    from tvm import te, tirx

    def compute(scores: Any, values: Any) -> Any:
        axis = te.reduce_axis((0, size), name="j")

        def element(c: Any, h: Any, i: Any, d: Any) -> Any:
            part = scores[c, h, i, axis].astype("float32") * values[c, h, axis, d].astype("float32")
            return te.sum(tirx.Select(axis.var <= i, part, tirx.const(0.0, "float32")), axis=axis)

        total = te.compute((chunks, heads, size, dim), element, name="context")
        return te.compute(total.shape, lambda c, h, i, d: total[c, h, i, d].astype(dtype), name="cast")

    return computed(
        "chunk_context",
        compute,
        scores=((chunks, heads, size, size), dtype),
        values=((chunks, heads, size, dim), dtype),
    )


def chunk_state(chunks: int, heads: int, size: int, dim: int, state: int, dtype: str) -> Program:
    """Σⱼ exp(a[last] - a[j]) · K[j]·V[j]ᵀ: what a chunk of linear attention hands to the next, float32."""
    from tvm import te

    def compute(keys: Any, values: Any, rate: Any) -> Any:
        axis = te.reduce_axis((0, size), name="k")
        fall = te.compute(
            (chunks, heads, size), lambda c, h, j: te.exp(rate[c, h, size - 1] - rate[c, h, j]), name="decay"
        )

        def element(c: Any, h: Any, d: Any, s: Any) -> Any:
            part = values[c, h, axis, d].astype("float32") * keys[c, h, axis, s].astype("float32")
            return te.sum(fall[c, h, axis] * part, axis=axis)

        return te.compute((chunks, heads, dim, state), element, name="state")

    return computed(
        "chunk_state",
        compute,
        keys=((chunks, heads, size, state), dtype),
        values=((chunks, heads, size, dim), dtype),
        rate=((chunks, heads, size), "float32"),
    )


def dropout_norm(rows: int, hidden: int, dtype: str) -> Program:
    """layer_norm(residual + keep * X / 0.9): dropout by a mask that was drawn, in float32 (training)."""
    from tvm import te, tirx, topi

    def compute(x: Any, residual: Any, keep: Any, weight: Any, bias: Any) -> Any:
        def total(r: Any, c: Any) -> Any:
            kept = tirx.Select(keep[r, c], x[r, c].astype("float32") * (1 / 0.9), tirx.const(0.0, "float32"))
            return kept + residual[r, c].astype("float32")

        normal = topi.nn.layer_norm(
            te.compute((rows, hidden), total, name="dropout"), weight, bias, axis=[1], epsilon=1e-5
        )
        return te.compute((rows, hidden), lambda r, c: normal[r, c].astype(dtype), name="cast")

    row, vector = ((rows, hidden), dtype), ((hidden,), "float32")
    return computed(
        "dropout_norm", compute, x=row, residual=row, keep=((rows, hidden), "bool"), weight=vector, bias=vector
    )


def dropout_context(heads: int, queries: int, tokens: int, dim: int, dtype: str) -> Program:
    """Σₜ keep[t] * P[t]·V[t] / 0.9: attention's second product with dropout of its probabilities (training)."""
    from tvm import te, tirx

    def compute(p: Any, keep: Any, values: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def element(h: Any, q: Any, d: Any) -> Any:
            part = p[h, q, axis].astype("float32") * values[h, axis, d].astype("float32")
            return te.sum(tirx.Select(keep[h, q, axis], part, tirx.const(0.0, "float32")), axis=axis)

        total = te.compute((heads, queries, dim), element, name="context")
        return te.compute(total.shape, lambda h, q, d: (total[h, q, d] * (1 / 0.9)).astype(dtype), name="scaled")

    return computed(
        "dropout_context",
        compute,
        p=((heads, queries, tokens), dtype),
        keep=((heads, queries, tokens), "bool"),
        values=((heads, tokens, dim), dtype),
    )


def window_scores(heads: int, tokens: int, window: int, dilation: int, dim: int, causal: bool, dtype: str) -> Program:
    """Scores of each query against the `window` keys about it, or (`causal`) up to it, `dilation` apart; -10⁴ outside.

    A band of scores instead of a square, as Longformer keeps it. The keys come padded at both ends, or before.
    """
    from tvm import te, tirx

    before = (window - 1 if causal else window // 2) * dilation

    def compute(q: Any, keys: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(h: Any, t: Any, w: Any) -> Any:
            return te.sum(
                q[h, t, axis].astype("float32") * keys[h, t + w * dilation, axis].astype("float32"), axis=axis
            )

        scores = te.compute((heads, tokens, window), dot, name="scores")

        def inside(h: Any, t: Any, w: Any) -> Any:
            place = t + w * dilation - before
            kept = tirx.all(place >= 0, place < tokens)
            return tirx.Select(kept, scores[h, t, w] * dim**-0.5, tirx.const(-1e4, "float32"))

        return te.compute(scores.shape, inside, name="masked")

    return computed(
        "window_scores",
        compute,
        q=((heads, tokens, dim), dtype),
        keys=((heads, tokens + (window - 1) * dilation, dim), dtype),
    )


def shift_matmul(tokens: int, hidden: int, n: int, dtype: str) -> Program:
    """Product of the mixture of each token with the one before it, mixed channel by channel, with a matrix (RWKV)."""
    from tvm import te, tirx

    def compute(x: Any, mix: Any, weight: Any) -> Any:
        def mixture(t: Any, c: Any) -> Any:
            before = tirx.if_then_else(t > 0, x[tirx.max(t - 1, 0), c], tirx.const(0.0, dtype))
            return x[t, c] + (before - x[t, c]) * mix[c]

        mixed = te.compute((tokens, hidden), mixture, name="mixture")
        axis = te.reduce_axis((0, hidden), name="k")
        total = te.compute(
            (tokens, n),
            lambda t, c: te.sum(mixed[t, axis].astype("float32") * weight[c, axis].astype("float32"), axis=axis),
            name="matmul",
        )
        return te.compute((tokens, n), lambda t, c: total[t, c].astype(dtype), name="cast")

    return computed(
        "shift_matmul", compute, x=((tokens, hidden), dtype), mix=((hidden,), dtype), weight=((n, hidden), dtype)
    )


def frame_spectrum(batch: int, samples: int, size: int, hop: int) -> Program:
    """|STFT|², float32: frames of `size` samples every `hop`, times windowed waves; the sound comes padded."""
    from tvm import te

    frames, bins = 1 + samples // hop, size // 2 + 1

    def compute(audio: Any, waves: Any) -> Any:
        axis = te.reduce_axis((0, size), name="k")
        parts = te.compute(
            (batch, 2, frames, bins),
            lambda b, p, f, q: te.sum(audio[b, f * hop + axis] * waves[p, q, axis], axis=axis),
            name="stft",
        )
        return te.compute(
            (batch, frames, bins),
            lambda b, f, q: parts[b, 0, f, q] * parts[b, 0, f, q] + parts[b, 1, f, q] * parts[b, 1, f, q],
            name="power",
        )

    return computed(
        "frame_spectrum", compute, audio=((batch, samples + size), "float32"), waves=((2, bins, size), "float32")
    )


def trend_remainder(batch: int, steps: int, channels: int, kernel: int) -> Program:
    """X minus its moving mean over `kernel` steps, ends repeated; both are kept, float32 (Autoformer, DLinear)."""
    from tvm import te, tirx

    def compute(x: Any) -> Any:
        axis = te.reduce_axis((0, kernel), name="k")

        def element(b: Any, t: Any, c: Any) -> Any:
            return te.sum(x[b, tirx.max(tirx.min(t + axis - kernel // 2, steps - 1), 0), c], axis=axis)

        total = te.compute((batch, steps, channels), element, name="total")
        trend = te.compute(total.shape, lambda b, t, c: total[b, t, c] * (1.0 / kernel), name="trend")
        rest = te.compute(total.shape, lambda b, t, c: x[b, t, c] - total[b, t, c] * (1.0 / kernel), name="remainder")
        return [trend, rest]

    return computed("trend_remainder", compute, x=((batch, steps, channels), "float32"))


def delayed_sum(batch: int, steps: int, channels: int, delays: int) -> Program:
    """Σₖ weight[b, k]·V[(t + delay[b, k]) mod steps]: series rolled by what data says, float32 (Autoformer)."""
    from tvm import te

    def compute(values: Any, delay: Any, weight: Any) -> Any:
        axis = te.reduce_axis((0, delays), name="k")

        def element(b: Any, t: Any, c: Any) -> Any:
            return te.sum(weight[b, axis] * values[b, (t + delay[b, axis]) % steps, c], axis=axis)

        return te.compute((batch, steps, channels), element, name="delayed")

    return computed(
        "delayed_sum",
        compute,
        values=((batch, steps, channels), "float32"),
        delay=((batch, delays), "int32"),
        weight=((batch, delays), "float32"),
    )


def strided_mean(batch: int, frames: int, channels: int, stride: int, dtype: str) -> Program:
    """Mean of each `stride` frames, but for masked ones; `share_scale` is one over how many are left."""
    from tvm import te, tirx

    def compute(x: Any, keep: Any, share_scale: Any) -> Any:
        axis = te.reduce_axis((0, stride), name="k")

        def element(b: Any, t: Any, c: Any) -> Any:
            frame = x[b, t * stride + axis, c].astype("float32")
            return te.sum(tirx.Select(keep[b, t * stride + axis], frame, tirx.const(0.0, "float32")), axis=axis)

        total = te.compute((batch, frames // stride, channels), element, name="total")
        return te.compute(total.shape, lambda b, t, c: (total[b, t, c] * share_scale[b, t]).astype(dtype), name="mean")

    return computed(
        "strided_mean",
        compute,
        x=((batch, frames, channels), dtype),
        keep=((batch, frames), "bool"),
        share_scale=((batch, frames // stride), "float32"),
    )
