"""Quantised and irregular operators of published models. Each part of the list stands in a module beside this one."""

from collections.abc import Iterator

from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import (
    quant_irregular_cache,
    quant_irregular_counts,
    quant_irregular_features,
    quant_irregular_graph,
    quant_irregular_linear,
    quant_irregular_lookup,
    quant_irregular_points,
    quant_irregular_quantize,
    quant_irregular_sequences,
    quant_irregular_slices,
)


def blocks() -> Iterator[Block]:
    """All blocks of the family, operator by operator."""
    yield from quant_irregular_linear.blocks()
    yield from quant_irregular_quantize.blocks()
    yield from quant_irregular_cache.blocks()
    yield from quant_irregular_lookup.blocks()
    yield from quant_irregular_features.blocks()
    yield from quant_irregular_counts.blocks()
    yield from quant_irregular_graph.blocks()
    yield from quant_irregular_points.blocks()
    yield from quant_irregular_slices.blocks()
    yield from quant_irregular_sequences.blocks()
