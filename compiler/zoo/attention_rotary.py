"""Rotary position embedding of queries and keys, alone and after their normalisation."""

from typing import Any, Literal

from littledragon.compiler.zoo.attention import wide
from littledragon.compiler.zoo.block import Program, export

Pairs = Literal["halves", "neighbours"]
"""What is turned together: elements d and d + turned/2 (GPT-NeoX, Llama), or 2i and 2i + 1 (GPT-J)."""


def turned_element(
    x: Any, place: tuple[Any, ...], d: Any, row: Any, table: Any, turned: int, pairs: Pairs
) -> Any:
    """In TE: element d of the vector x[place], turned by row `row` of a table of cosines, then sines; elements beyond
    the first `turned` stay as they are.
    """
    from tvm import tirx

    half = turned // 2
    angle, first, other = (d % half, d < half, (d + half) % turned) if pairs == "halves" else (d // 2, d % 2 == 0, d ^ 1)
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
    from tvm.relax.frontend.nn import op

    def compute(packed: Any, position: Any, table: Any) -> Any:
        def element(n: Any, h: Any, d: Any) -> Any:
            found = turned_element(packed, (n, h), d, position[n], table, turned, pairs).astype(dtype)
            return found if turned == dim else tirx.if_then_else(d < turned, found, packed[n, h, d])

        return te.compute((tokens, heads, dim), element, name="rotary")

    def forward(packed: Any, position: Any, table: Any) -> Any:
        return op.tensor_expr_op(compute, "rotary", [packed, position, table])

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
    from tvm.relax.frontend.nn import op

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
        return op.tensor_expr_op(compute, "qk_norm_rotary", [packed, weight, position, table])

    return export(
        forward,
        packed=((tokens, heads + others, dim), dtype),
        weight=((dim,), dtype),
        position=((tokens,), "int32"),
        table=((positions, turned), "float32"),
    )
