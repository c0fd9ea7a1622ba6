"""Products whose axes lie in other orders than those of X·Wᵀ: gradients, heads apart, pairs of residues."""

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import mul
from typing import Any, Final

from littledragon.compiler.zoo.block import Program, export
from littledragon.compiler.zoo.gemm import named

EQUATIONS: Final[Mapping[str, str]] = {
    # A linear layer's weight gradient: over tokens, or over sequences and their tokens.
    "weight_gradient": "mn,mk->nk",
    "weight_gradient_of_sequences": "bmn,bmk->nk",
    # One pair of matrices for each b.
    "batched": "bmk,bkn->bmn",
    "batched_nt": "bmk,bnk->bmn",
    "batched_tn": "bkm,bkn->bmn",
}


def contraction(
    equation: str,
    extents: Mapping[str, int],
    *,
    dtype: str = "float16",
    out: str | None = None,
    factor: float = 1.0,
    joined: str = "",
) -> Program:
    """The Einstein sum of one or two tensors, accumulated in float32: `tnh,nhd->td` sums over n and h.

    extents: of each letter.
    out: dtype of the result, that of the tensors where it is None.
    joined: letters of one more tensor, of dtype `out`, that is added.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    inputs, output = equation.split("->")
    terms = inputs.split(",")
    summed = sorted(set(inputs) - {","} - set(output))
    stored = out or dtype

    def compute(*tensors: Any) -> Any:
        axes = {letter: te.reduce_axis((0, extents[letter]), name=letter) for letter in summed}

        def element(*place: Any) -> Any:
            at = dict(zip(output, place, strict=True)) | axes
            read = [
                tensor[tuple(at[letter] for letter in term)].astype("float32")
                for tensor, term in zip(tensors, terms, strict=False)
            ]
            return te.sum(reduce(mul, read), axis=list(axes.values()))

        product = te.compute([extents[letter] for letter in output], element, name="contraction")
        if stored == "float32" and factor == 1.0 and not joined:
            return product

        def finish(*place: Any) -> Any:
            value = product[place] if factor == 1.0 else product[place] * factor
            if joined:
                at = dict(zip(output, place, strict=True))
                value = tensors[-1][tuple(at[letter] for letter in joined)].astype("float32") + value
            return value if stored == "float32" else value.astype(stored)

        return te.compute(product.shape, finish, name="finish")

    def forward(*tensors: Any) -> Any:
        return op.tensor_expr_op(compute, "contraction", list(tensors))

    names = [*("left", "right")[: len(terms)], *["addend"] * bool(joined)]
    shapes = [tuple(extents[letter] for letter in term) for term in [*terms, *[joined] * bool(joined)]]
    dtypes = [*[dtype] * len(terms), *[stored] * bool(joined)]
    return export(named(forward, names), **dict(zip(names, zip(shapes, dtypes, strict=True), strict=True)))
