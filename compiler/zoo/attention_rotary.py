"""Rotary position embedding of queries and keys: alone, after their projection or normalisation, before scores."""

from typing import Any, Literal

from littledragon.compiler.zoo.attention import stage, wide
from littledragon.compiler.zoo.block import Program, export

Pairs = Literal["halves", "neighbours"]
"""What is turned together: elements d and d + turned/2 (GPT-NeoX, Llama), or 2i and 2i + 1 (GPT-J)."""


def turned_element(x: Any, place: tuple[Any, ...], d: Any, row: Any, table: Any, turned: int, pairs: Pairs) -> Any:
    """In TE: element d of the vector x[place], turned by row `row` of a table of cosines, then sines; elements beyond
    the first `turned` stay as they are.
    """
    from tvm import tirx

    half = turned // 2
    if pairs == "halves":
        angle, first, other = d % half, d < half, (d + half) % turned
    else:
        angle, first, other = d // 2 % half, d % 2 == 0, d ^ 1
    own, paired = wide(x[(*place, d)]), wide(x[(*place, other)])
    cos, sin = wide(table[row, angle]), wide(table[row, half + angle])
    return own * cos + tirx.if_then_else(first, -paired, paired) * sin


def rotary(
    tokens: int, heads: int, others: int, dim: int, turned: int, positions: int, dtype: str, *, pairs: Pairs
) -> Program:
    """Queries and keys, `heads` of both, cut out of packed projections with `others` heads of values after them, and
    turned by a table looked up at each token's position.
    """
    from tvm import te, tirx

    def compute(packed: Any, position: Any, table: Any) -> Any:
        def element(n: Any, h: Any, d: Any) -> Any:
            found = turned_element(packed, (n, h), d, position[n], table, turned, pairs).astype(dtype)
            return found if turned == dim else tirx.if_then_else(d < turned, found, packed[n, h, d])

        return te.compute((tokens, heads, dim), element, name="rotary")

    def forward(packed: Any, position: Any, table: Any) -> Any:
        return stage("rotary", "rotated", compute, packed, position, table)

    return export(
        forward,
        packed=((tokens, heads + others, dim), dtype),
        position=((tokens,), "int32"),
        table=((positions, turned), "float32"),
    )


def qk_norm_rotary(
    tokens: int, heads: int, others: int, dim: int, turned: int, positions: int, dtype: str, *, pairs: Pairs
) -> Program:
    """RMS normalisation of each head's query (or key), with a weight of the head's width, then rotary embedding."""
    from tvm import te, tirx

    def compute(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        e = te.reduce_axis((0, dim), name="e")
        square = te.compute(
            (tokens, heads), lambda n, h: te.sum(wide(packed[n, h, e]) * wide(packed[n, h, e]), axis=e), name="square"
        )
        normal = te.compute(
            (tokens, heads, dim),
            lambda n, h, d: wide(packed[n, h, d]) * te.rsqrt(square[n, h] / dim + 1e-6) * wide(weight[d]),
            name="normal",
        )

        def element(n: Any, h: Any, d: Any) -> Any:
            found = turned_element(normal, (n, h), d, position[n], table, turned, pairs)
            kept = found if turned == dim else tirx.if_then_else(d < turned, found, normal[n, h, d])
            return kept.astype(dtype)

        return te.compute((tokens, heads, dim), element, name="rotary")

    def forward(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        return stage("qk_norm_rotary", "rotated", compute, packed, weight, position, table)

    return export(
        forward,
        packed=((tokens, heads + others, dim), dtype),
        weight=((dim,), dtype),
        position=((tokens,), "int32"),
        table=((positions, turned), "float32"),
    )


def wide_norm_rotary(tokens: int, heads: int, others: int, dim: int, positions: int, dtype: str) -> Program:
    """RMS normalisation of all heads' queries (or keys) as one vector, then rotary embedding in halves (OLMo-2)."""
    from tvm import te

    def compute(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        g, e = te.reduce_axis((0, heads), name="g"), te.reduce_axis((0, dim), name="e")
        square = te.compute(
            (tokens,), lambda n: te.sum(wide(packed[n, g, e]) * wide(packed[n, g, e]), axis=[g, e]), name="square"
        )
        normal = te.compute(
            (tokens, heads, dim),
            lambda n, h, d: wide(packed[n, h, d]) * te.rsqrt(square[n] / (heads * dim) + 1e-6) * wide(weight[h, d]),
            name="normal",
        )
        return te.compute(
            (tokens, heads, dim),
            lambda n, h, d: turned_element(normal, (n, h), d, position[n], table, dim, "halves").astype(dtype),
            name="rotary",
        )

    def forward(packed: Any, weight: Any, position: Any, table: Any) -> Any:
        return stage("wide_norm_rotary", "rotated", compute, packed, weight, position, table)

    return export(
        forward,
        packed=((tokens, heads + others, dim), dtype),
        weight=((heads, dim), dtype),
        position=((tokens,), "int32"),
        table=((positions, dim), "float32"),
    )


def projected_rotary(
    tokens: int, hidden: int, heads: int, dim: int, turned: int, positions: int, dtype: str, *, pairs: Pairs
) -> Program:
    """Keys (or queries) projected from hidden states, summed in float32, and turned before they are rounded."""
    from tvm import te, tirx

    def compute(x: Any, weight: Any, position: Any, table: Any) -> Any:
        c = te.reduce_axis((0, hidden), name="c")
        raw = te.compute(
            (tokens, heads, dim),
            lambda n, h, d: te.sum(wide(x[n, c]) * wide(weight[h, d, c]), axis=c),
            name="projected",
        )

        def element(n: Any, h: Any, d: Any) -> Any:
            found = turned_element(raw, (n, h), d, position[n], table, turned, pairs)
            return (found if turned == dim else tirx.if_then_else(d < turned, found, raw[n, h, d])).astype(dtype)

        return te.compute((tokens, heads, dim), element, name="rotary")

    def forward(x: Any, weight: Any, position: Any, table: Any) -> Any:
        return stage("projected_rotary", "rotated", compute, x, weight, position, table)

    return export(
        forward,
        x=((tokens, hidden), dtype),
        weight=((heads, dim, hidden), dtype),
        position=((tokens,), "int32"),
        table=((positions, turned), "float32"),
    )


def rotary_scores(batch: int, kv_heads: int, group: int, context: int, dim: int, dtype: str) -> Program:
    """Scores of one decoding step over a cache of keys that are turned, in halves, only when they are read: by their
    place in the cache, whatever was dropped from it.
    """
    from tvm import te

    def compute(query: Any, keys: Any, table: Any) -> Any:
        d = te.reduce_axis((0, dim), name="d")
        turned = te.compute(
            (batch, context, kv_heads, dim),
            lambda b, t, h, e: turned_element(keys, (b, t, h), e, t, table, dim, "halves"),
            name="turned",
        )
        raw = te.compute(
            (batch, kv_heads, group, context),
            lambda b, h, g, t: te.sum(wide(query[b, h, g, d]) * turned[b, t, h, d], axis=d),
            name="qk",
        )
        return te.compute(raw.shape, lambda b, h, g, t: raw[b, h, g, t] * dim**-0.5, name="scores")

    def forward(query: Any, keys: Any, table: Any) -> Any:
        return stage("rotary_scores", "scores", compute, query, keys, table)

    return export(
        forward,
        query=((batch, kv_heads, group, dim), dtype),
        keys=((batch, context, kv_heads, dim), dtype),
        table=((context, dim), "float32"),
    )
