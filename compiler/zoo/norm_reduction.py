"""Normalisations of the rows of language and image transformers, and the reductions that need no file of their own."""

from typing import Any

from littledragon.compiler.zoo.block import Program, comparable, computed, export
from littledragon.compiler.zoo.norm_reduction_te import (
    Lead,
    along_last,
    elements,
    row_moments,
    shape,
    silu,
    square,
    wide,
)


def rms_norm(rows: int, hidden: int) -> Program:
    """Y = X / rms(X) * w, float16."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any) -> Any:
        return op.rms_norm(x, w, axes=-1, epsilon=1e-5)

    return export(forward, x=((rows, hidden), "float16"), w=((hidden,), "float16"))


def add_rms_norm(rows: int, hidden: int) -> Program:
    """Residual addition, then RMS normalisation, float32; both the sum and the normalised rows are kept."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        return op.rms_norm(total, w, axes=-1, epsilon=1e-6), total

    row = ((rows, hidden), "float32")
    return export(forward, x=row, residual=row, w=((hidden,), "float32"))


def fused_add_rms_norm(rows: Lead, hidden: int, dtype: str) -> Program:
    """`add_rms_norm` as one kernel, which serving engines have for it."""

    def compute(x: Any, residual: Any, weight: Any) -> list[Any]:
        total = elements(x.shape, lambda *at: x(*at) + residual(*at), "total")
        return [_rms_normal(total, lambda c: wide(weight(c)), dtype), total]

    row = (shape(rows, hidden), dtype)
    return computed("fused_add_rms_norm", compute, x=row, residual=row, weight=((hidden,), dtype))


def weighted_rms_norm(rows: Lead, hidden: int, dtype: str, around_one: bool = False, residual: bool = False) -> Program:
    """`rms_norm` in the two steps of a fused kernel. `around_one`: Y = X / rms(X) * (1 + w), as Gemma has it;
    `residual`: which is added to Y, after a layer of its later generations."""

    def compute(x: Any, weight: Any, *kept: Any) -> Any:
        normal = _rms_normal(x, lambda c: 1.0 + wide(weight(c)) if around_one else wide(weight(c)), dtype)
        return elements(x.shape, lambda *at: kept[0](*at) + normal(*at), "added") if kept else normal

    row = (shape(rows, hidden), dtype)
    more = {"residual": row} if residual else {}
    return computed("rms_norm", compute, x=row, weight=((hidden,), dtype), **more)


def gated_rms_norm(rows: Lead, groups: int, width: int, dtype: str, before: bool) -> Program:
    """RMS normalisation of each of `groups` parts of a row under a gate z: rms(X · silu(z)) · w as Mamba-2 has it
    (`before`), or rms(X) · w · silu(z) as gated linear attention has it. Shapes are [*rows, groups, width]."""

    def compute(x: Any, gate: Any, weight: Any) -> Any:
        def gated(*at: Any) -> Any:
            return wide(x(*at)) * silu(wide(gate(*at)))

        inner = elements(x.shape, gated if before else lambda *at: wide(x(*at)), "gated")
        squares = along_last(_sum(), inner, "squares", lambda *at: square(inner(*at)))

        def element(*at: Any) -> Any:
            normal = inner(*at) * _inverse_rms(squares(*at[:-1]), width) * wide(weight(*at[-2:]))
            return (normal if before else normal * silu(wide(gate(*at)))).astype(dtype)

        return elements(x.shape, element, "normal")

    row = (shape(shape(rows, groups), width), dtype)
    return computed("gated_rms_norm", compute, x=row, gate=row, weight=((groups, width), dtype))


def layer_norm(rows: Lead, hidden: int, dtype: str = "float32", bias: bool = True) -> Program:
    """Layer normalisation with a weight and, mostly, a bias."""
    from tvm.relax.frontend.nn import op

    row, vector = (shape(rows, hidden), dtype), ((hidden,), dtype)

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.layer_norm(x, hidden, weight, bias, eps=1e-12)

    def compute(x: Any, weight: Any, *bias: Any) -> Any:
        return _layer_normal(x, lambda n, *at: n * wide(weight(at[-1])) + sum(wide(b(at[-1])) for b in bias), dtype)

    if bias and dtype != "bfloat16":  # the operator has no bfloat16, and wants both vectors
        return export(forward, x=row, weight=vector, bias=vector)
    return computed("layer_norm", compute, x=row, weight=vector, **({"bias": vector} if bias else {}))


def add_layer_norm(rows: Lead, hidden: int, dtype: str, bias: bool = True, layer_scale: bool = False) -> Program:
    """Residual addition, then layer normalisation; gives the sum too. With `layer_scale` what is added is multiplied by
    a vector first (CaiT, DINOv2)."""

    def compute(x: Any, residual: Any, weight: Any, *more: Any) -> list[Any]:
        def added(*at: Any) -> Any:
            return residual(*at) + (x(*at) * more[-1](at[-1]) if layer_scale else x(*at))

        def affine(normal: Any, *at: Any) -> Any:
            return normal * wide(weight(at[-1])) + (wide(more[0](at[-1])) if bias else 0.0)

        total = elements(x.shape, added, "sum")
        return [_layer_normal(total, affine, dtype), total]

    row, vector = (shape(rows, hidden), dtype), ((hidden,), dtype)
    more = {name: vector for name, has in (("bias", bias), ("factor", layer_scale)) if has}
    return computed("add_layer_norm", compute, x=row, residual=row, weight=vector, **more)


def modulated_norm(images: int, tokens: int, hidden: int, dtype: str, gated: bool = False) -> Program:
    """Adaptive layer normalisation of a diffusion transformer: no weights of its own, but a shift and a scale for each
    image. `gated`: after a branch that is gated for each image has been added, which is given too."""

    def compute(x: Any, shift: Any, factor: Any, *branch: Any) -> Any:
        def added(image: Any, *at: Any) -> Any:
            return x(image, *at) + branch[1](image, at[-1]) * branch[0](image, *at)

        def modulate(normal: Any, image: Any, _: Any, column: Any) -> Any:
            return normal * (1.0 + wide(factor(image, column))) + wide(shift(image, column))

        total = elements(x.shape, added, "sum") if gated else x
        normal = _layer_normal(total, modulate, dtype)
        return [normal, total] if gated else normal

    row, vector = ((images, tokens, hidden), dtype), ((images, hidden), dtype)
    more = {"branch": row, "gate": vector} if gated else {}
    return computed("modulated_norm", compute, x=row, shift=vector, factor=vector, **more)


def softmax(rows: Lead, columns: int) -> Program:
    """Softmax over the last axis, float32."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.softmax(x, axis=-1)

    return export(forward, x=(shape(rows, columns), "float32"))


def log_softmax(rows: int, columns: int) -> Program:
    """Logarithm of softmax over the last axis, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.nn.log_softmax(x._expr, axis=-1), "log_softmax")

    return export(forward, x=((rows, columns), "float32"))


def argmax(rows: Lead, columns: int, dtype: str = "float32") -> Program:
    """Index of the largest logit of each row, int64; the first of equals."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(lambda a: topi.argmax(comparable(a), axis=len(a.shape) - 1), "argmax", [x])

    return export(forward, x=(shape(rows, columns), dtype))


def variance(rows: int, columns: int) -> Program:
    """Variance of each row, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.variance(x._expr, axis=[1]), "variance")

    return export(forward, x=((rows, columns), "float32"))


def masked_mean(sentences: int, tokens: int, hidden: int) -> Program:
    """Mean over the first length[s] tokens of each sentence s, float32."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(x: Any, length: Any) -> Any:
        axis = te.reduce_axis((0, tokens), name="t")

        def total(s: Any, h: Any) -> Any:
            zero = tirx.const(0.0, "float32")
            return te.sum(tirx.Select(axis.var < length[s], x[s, axis, h], zero), axis=axis)

        kept = te.compute((sentences, hidden), total, name="total")
        one = tirx.const(1, "int32")
        return te.compute(
            (sentences, hidden), lambda s, h: kept[s, h] / te.max(length[s], one).astype("float32"), name="mean"
        )

    def forward(x: Any, length: Any) -> Any:
        return op.tensor_expr_op(compute, "masked_mean", [x, length])

    return export(forward, x=((sentences, tokens, hidden), "float32"), length=((sentences,), "int32"))


def _sum() -> Any:
    from tvm import te

    return te.sum


def _inverse_rms(squares: Any, width: int) -> Any:
    from tvm import te

    return te.rsqrt(squares / float(width) + 1e-6)


def _rms_normal(x: Any, weight: Any, dtype: str) -> Any:
    """In TE: x / rms(x) · weight(column) over the last axis."""
    squares = along_last(_sum(), x, "squares", lambda *at: square(wide(x(*at))))
    width = int(x.shape[-1])
    return elements(
        x.shape,
        lambda *at: (wide(x(*at)) * _inverse_rms(squares(*at[:-1]), width) * weight(at[-1])).astype(dtype),
        "normal",
    )


def _layer_normal(x: Any, finish: Any, dtype: str) -> Any:
    """In TE: finish((x - mean) / deviation, *place) over the last axis."""
    from tvm import te

    mean, spread = row_moments(x)

    def element(*at: Any) -> Any:
        row = at[:-1]
        return finish((wide(x(*at)) - mean(*row)) * te.rsqrt(spread(*row) + 1e-6), *at).astype(dtype)

    return elements(x.shape, element, "normal")
