"""Products whose axes lie in other orders than those of X·Wᵀ: gradients, heads apart, pairs of residues, patches."""

from collections.abc import Mapping
from functools import reduce
from operator import mul
from typing import Any

from littledragon.compiler.zoo.block import Program, export, named
from littledragon.compiler.zoo.gemm import Activation, activated


def contraction(
    equation: str,
    extents: Mapping[str, int],
    *,
    dtype: str = "float16",
    out: str | None = None,
    shared: bool = False,
    factor: float = 1.0,
    joined: str = "",
    activation: Activation = "none",
) -> Program:
    """act(sum·factor + addend), `sum` an Einstein sum of two tensors in float32: `tnh,nhd->td` sums over n and h.

    extents: of each letter.
    out: dtype of the result and of what is added, that of the factors where it is None.
    shared: one tensor is both factors.
    joined: letters of the addend; none where it is empty.
    """
    from tvm import te
    from tvm.relax.frontend.nn import op

    factors, output = equation.split("->")
    terms = factors.split(",")
    stored = out or dtype
    summed = sorted(set(factors) - {","} - set(output))
    plain = stored == "float32" and factor == 1.0 and not joined and activation == "none"

    def compute(*tensors: Any) -> Any:
        axes = {letter: te.reduce_axis((0, extents[letter]), name=letter) for letter in summed}
        read = (tensors[0], tensors[0] if shared else tensors[1])

        def element(*place: Any) -> Any:
            at = dict(zip(output, place, strict=True)) | axes
            wide = (tensor[_at(term, at)].astype("float32") for tensor, term in zip(read, terms, strict=True))
            return te.sum(reduce(mul, wide), axis=list(axes.values()))

        product = te.compute([extents[letter] for letter in output], element, name="contraction")

        def finished(*place: Any) -> Any:
            value = product[place] if factor == 1.0 else product[place] * factor
            if joined:
                value = value + tensors[-1][_at(joined, dict(zip(output, place, strict=True)))].astype("float32")
            value = activated(activation, value)
            return value if stored == "float32" else value.astype(stored)

        return product if plain else te.compute(product.shape, finished, name="finish")

    def forward(*tensors: Any) -> Any:
        return op.tensor_expr_op(compute, "contraction", list(tensors))

    arguments = dict(zip(("left", "right"), ((term, dtype) for term in terms[: 1 if shared else 2]), strict=False))
    if joined:
        arguments["addend"] = (joined, stored)
    return export(
        named(forward, arguments),
        **{name: (_at(letters, extents), kind) for name, (letters, kind) in arguments.items()},
    )


def _at(letters: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[letter] for letter in letters)
