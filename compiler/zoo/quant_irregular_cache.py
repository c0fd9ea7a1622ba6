"""Attention over a cache of keys and values that is quantised, paged, pruned or reordered; one step of decoding.

Queries are (batch, key-value heads, queries a head, width); scores come out in float32, before the softmax.
"""

from typing import Any

from littledragon.compiler.zoo.block import Argument, Program, computed


def paged_batch_scores(
    batch: int, tokens: int, page: int, heads: int, group: int, dim: int, cached: str, dtype: str
) -> Program:
    """Scores against a cache in pages that a table names: of int8 with a scale for each head of each slot, or of float8
    with a scale for each head.
    """
    from tvm import te

    def compute(q: Any, cache: Any, page_table: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(b: Any, h: Any, g: Any, t: Any) -> Any:
            key = cache[page_table[b, t // page], t % page, h, axis]
            return te.sum(q[b, h, g, axis].astype("float32") * key.astype("float32"), axis=axis)

        scores = te.compute((batch, heads, group, tokens), dot, name="scores")

        def scaled(b: Any, h: Any, g: Any, t: Any) -> Any:
            key_scale = scale[page_table[b, t // page], t % page, h] if cached == "int8" else scale[h]
            return scores[b, h, g, t] * dim**-0.5 * key_scale

        return te.compute((batch, heads, group, tokens), scaled, name="scaled")

    return computed(
        "paged_scores",
        compute,
        q=((batch, heads, group, dim), dtype),
        cache=((batch * tokens // page, page, heads, dim), cached),
        page_table=((batch, tokens // page), "int32"),
        scale=((batch * tokens // page, page, heads) if cached == "int8" else (heads,), "float32"),
    )


def paged_context(
    batch: int, tokens: int, page: int, heads: int, group: int, dim: int, cached: str, dtype: str
) -> Program:
    """Σₜ P[t]·V[t] over values in pages that a table names, in the same two kinds of cache."""
    from tvm import te

    def compute(p: Any, cache: Any, page_table: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def weighted(b: Any, h: Any, g: Any, d: Any) -> Any:
            place, slot = page_table[b, axis // page], axis % page
            value = cache[place, slot, h, d].astype("float32")
            if cached == "int8":
                value = value * scale[place, slot, h]
            return te.sum(p[b, h, g, axis] * value, axis=axis)

        total = te.compute((batch, heads, group, dim), weighted, name="context")

        def last(b: Any, h: Any, g: Any, d: Any) -> Any:
            return (total[b, h, g, d] if cached == "int8" else total[b, h, g, d] * scale[h]).astype(dtype)

        return te.compute((batch, heads, group, dim), last, name="cast")

    return computed(
        "paged_context",
        compute,
        p=((batch, heads, group, tokens), "float32"),
        cache=((batch * tokens // page, page, heads, dim), cached),
        page_table=((batch, tokens // page), "int32"),
        scale=((batch * tokens // page, page, heads) if cached == "int8" else (heads,), "float32"),
    )


def kv4_scores(batch: int, tokens: int, heads: int, group: int, dim: int, dtype: str) -> Program:
    """Scores against 4-bit keys, two to a byte, with a scale and a zero for each head of each token (QServe)."""
    from tvm import te

    def compute(q: Any, packed: Any, scale: Any, zeros: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(b: Any, h: Any, g: Any, t: Any) -> Any:
            code = (packed[b, h, t, axis // 2] >> (axis % 2 * 4).astype("uint8")) & te.const(15, "uint8")
            key = (code.astype("float32") - zeros[b, h, t].astype("float32")) * scale[b, h, t].astype("float32")
            return te.sum(q[b, h, g, axis].astype("float32") * key, axis=axis)

        scores = te.compute((batch, heads, group, tokens), dot, name="scores")
        return te.compute(scores.shape, lambda b, h, g, t: scores[b, h, g, t] * dim**-0.5, name="scaled")

    return computed(
        "kv4_scores",
        compute,
        q=((batch, heads, group, dim), dtype),
        packed=((batch, heads, tokens, dim // 2), "uint8"),
        scale=((batch, heads, tokens), "float16"),
        zeros=((batch, heads, tokens), "float16"),
    )


def kivi_scores(batch: int, tokens: int, heads: int, group: int, dim: int, bits: int) -> Program:
    """Scores against keys of 2 or 4 bits, 32 / bits tokens to a uint32, with a scale and a least value for each channel
    of each 32 tokens (KIVI); float16.
    """
    from tvm import te

    share, most = 32 // bits, (1 << bits) - 1

    def compute(q: Any, packed: Any, scale: Any, least: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(b: Any, h: Any, g: Any, t: Any) -> Any:
            code = (packed[b, h, t // share, axis] >> (t % share * bits).astype("uint32")) & te.const(most, "uint32")
            key = code.astype("float16") * scale[b, h, t // 32, axis] + least[b, h, t // 32, axis]
            return te.sum(q[b, h, g, axis].astype("float32") * key.astype("float32"), axis=axis)

        scores = te.compute((batch, heads, group, tokens), dot, name="scores")
        return te.compute(scores.shape, lambda b, h, g, t: scores[b, h, g, t] * dim**-0.5, name="scaled")

    channel = ((batch, heads, tokens // 32, dim), "float16")
    return computed(
        "kivi_scores",
        compute,
        q=((batch, heads, group, dim), "float16"),
        packed=((batch, heads, tokens // share, dim), "uint32"),
        scale=channel,
        least=channel,
    )


def kv8_context(batch: int, tokens: int, heads: int, group: int, dim: int, dtype: str) -> Program:
    """Σₜ P[t]·V[t] over int8 values with a scale for each head of each token."""
    from tvm import te

    def compute(p: Any, cache: Any, scale: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def weighted(b: Any, h: Any, g: Any, d: Any) -> Any:
            value = cache[b, h, axis, d].astype("float32") * scale[b, h, axis]
            return te.sum(p[b, h, g, axis] * value, axis=axis)

        total = te.compute((batch, heads, group, dim), weighted, name="context")
        return te.compute(total.shape, lambda b, h, g, d: total[b, h, g, d].astype(dtype), name="cast")

    return computed(
        "kv8_context",
        compute,
        p=((batch, heads, group, tokens), "float32"),
        cache=((batch, heads, tokens, dim), "int8"),
        scale=((batch, heads, tokens), "float32"),
    )


def kv_quantize(tokens: int, heads: int, dim: int, group: int, source: str) -> Program:
    """New keys or values made 4 bits (a byte each, before packing) by a least value and a step for each `group`."""
    from tvm import te, tirx

    def compute(x: Any) -> Any:
        low, high = te.reduce_axis((0, group), name="i"), te.reduce_axis((0, group), name="j")
        shape = (tokens, heads, dim // group)

        def value(t: Any, h: Any, d: Any) -> Any:
            return x[t, h, d].astype("float32")

        least = te.compute(shape, lambda t, h, g: te.min(value(t, h, g * group + low), axis=low), name="least")
        most = te.compute(shape, lambda t, h, g: te.max(value(t, h, g * group + high), axis=high), name="most")
        step = te.compute(
            shape,
            lambda t, h, g: te.max(most[t, h, g] - least[t, h, g], tirx.const(1e-5, "float32")) / 15.0,
            name="step",
        )
        whole = te.compute(
            (tokens, heads, dim),
            lambda t, h, d: te.round((value(t, h, d) - least[t, h, d // group]) / step[t, h, d // group]).astype(
                "uint8"
            ),
            name="quantize",
        )
        return [whole, step, least]

    return computed("kv_quantize", compute, x=((tokens, heads, dim), source))


def rotary_quantize(
    tokens: int, heads: int, dim: int, turned: int, positions: int, interleaved: bool, dtype: str
) -> Program:
    """Rotary embedding of the first `turned` elements of new keys, by a table of cosines and sines looked up at the
    token's position, then int8 with a scale for each head. Pairs are neighbours or half the width apart.
    """
    from tvm import te, tirx

    def compute(x: Any, position: Any, waves: Any) -> Any:
        half = turned // 2

        def rotated(t: Any, h: Any, d: Any) -> Any:
            pair = tirx.min(d // 2 if interleaved else d % half, half - 1)
            first = d % 2 == 0 if interleaved else d < half
            other = tirx.Select(first, d + 1, d - 1) if interleaved else tirx.Select(first, d + half, d - half)
            mine, its = (x[t, h, place].astype("float32") for place in (d, tirx.max(tirx.min(other, dim - 1), 0)))
            cos, sin = (waves[position[t], place].astype("float32") for place in (pair, pair + half))
            both = mine * cos + tirx.Select(first, -its, its) * sin
            return both if turned == dim else tirx.Select(d < turned, both, mine)

        value = te.compute((tokens, heads, dim), rotated, name="rotary")
        axis = te.reduce_axis((0, dim), name="k")
        largest = te.compute((tokens, heads), lambda t, h: te.max(te.abs(value[t, h, axis]), axis=axis), name="absmax")
        scale = te.compute(
            (tokens, heads), lambda t, h: te.max(largest[t, h], tirx.const(1e-6, "float32")) / 127.0, name="scale"
        )
        whole = te.compute(
            (tokens, heads, dim),
            lambda t, h, d: te.round(value[t, h, d] / scale[t, h]).astype("int8"),
            name="quantize",
        )
        return [whole, scale]

    return computed(
        "rotary_quantize",
        compute,
        x=((tokens, heads, dim), dtype),
        position=((tokens,), "int32"),
        waves=((positions, turned), dtype),
    )


def beam_scores(sequences: int, beams: int, tokens: int, heads: int, dim: int, dtype: str) -> Program:
    """Scores of beam search: for each earlier token a table says in which beam's cache it stands."""
    from tvm import te

    def compute(q: Any, cache: Any, beam: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(s: Any, b: Any, h: Any, t: Any) -> Any:
            key = cache[s, beam[s, b, t], h, t, axis]
            return te.sum(q[s, b, h, axis].astype("float32") * key.astype("float32"), axis=axis)

        scores = te.compute((sequences, beams, heads, tokens), dot, name="scores")
        return te.compute(scores.shape, lambda s, b, h, t: scores[s, b, h, t] * dim**-0.5, name="scaled")

    return computed(
        "beam_scores",
        compute,
        q=((sequences, beams, heads, dim), dtype),
        cache=((sequences, beams, heads, tokens, dim), dtype),
        beam=((sequences, beams, tokens), "int32"),
    )


def selected_scores(queries: int, heads: int, selected: int, tokens: int, dim: int, cached: str) -> Program:
    """Scores of queries, all heads of one, against the tokens that were selected for it; one key for all heads.

    Sparse attention over a latent cache (DeepSeek-V3.2); float8 keys have a scale a token.
    """
    from tvm import te

    def compute(q: Any, cache: Any, chosen: Any, *scale: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(t: Any, h: Any, j: Any) -> Any:
            return te.sum(q[t, h, axis].astype("float32") * cache[chosen[t, j], axis].astype("float32"), axis=axis)

        scores = te.compute((queries, heads, selected), dot, name="scores")
        if not scale:
            return scores
        return te.compute(scores.shape, lambda t, h, j: scores[t, h, j] * scale[0][chosen[t, j]], name="scaled")

    more: dict[str, Argument] = {"scale": ((tokens,), "float32")} if cached.startswith("float8") else {}
    return computed(
        "selected_scores",
        compute,
        q=((queries, heads, dim), "bfloat16"),
        cache=((tokens, dim), cached),
        chosen=((queries, selected), "int32"),
        **more,
    )


def index_scores(queries: int, heads: int, tokens: int, dim: int) -> Program:
    """Which tokens to attend to: Σₕ weight[h] * relu(q[h]·k) of float8 queries and keys (DeepSeek-V3.2's indexer)."""
    from tvm import te, tirx

    def compute(q: Any, keys: Any, weight: Any, scale: Any) -> Any:
        axis, head = te.reduce_axis((0, dim), name="d"), te.reduce_axis((0, heads), name="e")
        scores = te.compute(
            (queries, heads, tokens),
            lambda t, h, s: te.sum(q[t, h, axis].astype("float32") * keys[s, axis].astype("float32"), axis=axis),
            name="scores",
        )

        def positive(t: Any, s: Any) -> Any:
            return te.sum(weight[t, head] * te.max(scores[t, head, s], tirx.const(0.0, "float32")), axis=head)

        total = te.compute((queries, tokens), positive, name="total")
        return te.compute((queries, tokens), lambda t, s: total[t, s] * scale[s], name="scaled")

    return computed(
        "index_scores",
        compute,
        q=((queries, heads, dim), "float8_e4m3fn"),
        keys=((tokens, dim), "float8_e4m3fn"),
        weight=((queries, heads), "float32"),
        scale=((tokens,), "float32"),
    )


def block_sparse_scores(
    heads: int, group: int, blocks: int, sources: int, listed: int, size: int, dim: int, dtype: str
) -> Program:
    """Scores of each block of queries against the blocks of keys, of `sources`, that a list names for it.

    `group` heads share keys. Blocks of queries and of keys are of one size.
    """
    from tvm import te

    def compute(q: Any, keys: Any, chosen: Any) -> Any:
        axis = te.reduce_axis((0, dim), name="d")

        def dot(h: Any, b: Any, i: Any, j: Any, s: Any) -> Any:
            key = keys[h // group, chosen[h, b, j], s, axis]
            return te.sum(q[h, b, i, axis].astype("float32") * key.astype("float32"), axis=axis)

        scores = te.compute((heads, blocks, size, listed, size), dot, name="scores")
        return te.compute(scores.shape, lambda h, b, i, j, s: scores[h, b, i, j, s] * dim**-0.5, name="scaled")

    return computed(
        "block_sparse_scores",
        compute,
        q=((heads, blocks, size, dim), dtype),
        keys=((heads // group, sources, size, dim), dtype),
        chosen=((heads, blocks, listed), "int32"),
    )


def block_sparse_context(
    heads: int, group: int, blocks: int, sources: int, listed: int, size: int, dim: int, dtype: str
) -> Program:
    """The weighted sum of the values of the listed blocks, for each block of queries."""
    from tvm import te

    def compute(p: Any, cache: Any, chosen: Any) -> Any:
        block, slot = te.reduce_axis((0, listed), name="j"), te.reduce_axis((0, size), name="s")

        def weighted(h: Any, b: Any, i: Any, d: Any) -> Any:
            value = cache[h // group, chosen[h, b, block], slot, d]
            return te.sum(p[h, b, i, block, slot] * value.astype("float32"), axis=[block, slot])

        total = te.compute((heads, blocks, size, dim), weighted, name="context")
        return te.compute(total.shape, lambda h, b, i, d: total[h, b, i, d].astype(dtype), name="cast")

    return computed(
        "block_sparse_context",
        compute,
        p=((heads, blocks, size, listed, size), "float32"),
        cache=((heads // group, sources, size, dim), dtype),
        chosen=((heads, blocks, listed), "int32"),
    )
