"""What training reduces: gradients of normalisations and biases, norms and statistics of gradients and weights."""

from typing import Any

from littledragon.compiler.zoo.block import Program, computed
from littledragon.compiler.zoo.norm_reduction_te import (
    Lead,
    along_last,
    elements,
    moments,
    reduced,
    shape,
    square,
    wide,
)


def rms_norm_gradient(rows: Lead, hidden: int, dtype: str) -> Program:
    """Gradient of an RMS normalisation for its input, given 1 / rms of each row."""

    def compute(x: Any, gradient: Any, weight: Any, inverse: Any) -> Any:
        from tvm import te

        weighted = elements(x.shape, lambda *at: wide(gradient(*at)) * wide(weight(at[-1])), "weighted")
        total = along_last(te.sum, x, "total", lambda *at: weighted(*at) * wide(x(*at)))

        def element(*at: Any) -> Any:
            row = at[:-1]
            along = wide(x(*at)) * square(inverse(*row)) * total(*row) / float(hidden)
            return (inverse(*row) * (weighted(*at) - along)).astype(dtype)

        return elements(x.shape, element, "gradient_of_input")

    row = (shape(rows, hidden), dtype)
    lead = row[0][:-1]
    return computed(
        "rms_norm_gradient", compute, x=row, gradient=row, weight=((hidden,), dtype), inverse=(lead, "float32")
    )


def layer_norm_gradient(rows: Lead, hidden: int, dtype: str) -> Program:
    """Gradient of a layer normalisation for its input, given each row's mean and 1 / deviation."""

    def compute(x: Any, gradient: Any, weight: Any, mean: Any, inverse: Any) -> Any:
        from tvm import te

        def normal(*at: Any) -> Any:
            return (wide(x(*at)) - mean(*at[:-1])) * inverse(*at[:-1])

        weighted = elements(x.shape, lambda *at: wide(gradient(*at)) * wide(weight(at[-1])), "weighted")
        total = along_last(te.sum, weighted, "total")
        along = along_last(te.sum, weighted, "along", lambda *at: weighted(*at) * normal(*at))

        def element(*at: Any) -> Any:
            row = at[:-1]
            rest = weighted(*at) - (total(*row) + normal(*at) * along(*row)) / float(hidden)
            return (inverse(*row) * rest).astype(dtype)

        return elements(x.shape, element, "gradient_of_input")

    row = (shape(rows, hidden), dtype)
    lead = (row[0][:-1], "float32")
    return computed(
        "layer_norm_gradient", compute, x=row, gradient=row, weight=((hidden,), dtype), mean=lead, inverse=lead
    )


def norm_weight_gradient(rows: int, hidden: int, dtype: str, centred: bool) -> Program:
    """Gradients of a normalisation's weight, and where it is `centred` (layer normalisation) of its bias: sums over
    rows of g · normalised x, and of g; float32."""

    def compute(x: Any, gradient: Any, inverse: Any, *mean: Any) -> Any:
        from tvm import te

        def product(r: Any, c: Any) -> Any:
            value = wide(x(r, c)) - mean[0](r) if centred else wide(x(r, c))
            return wide(gradient(r, c)) * value * inverse(r)

        terms = elements(x.shape, product, "product")
        weight = reduced(te.sum, (hidden,), (rows,), lambda at, inner: terms(*inner, *at), "of_weight")
        return [weight, _down(te.sum, gradient, "of_bias")] if centred else weight

    row, lead = ((rows, hidden), dtype), ((rows,), "float32")
    more = {"mean": lead} if centred else {}
    return computed("norm_weight_gradient", compute, x=row, gradient=row, inverse=lead, **more)


def bias_gradient(rows: int, columns: int, dtype: str) -> Program:
    """Gradient of a bias: the sum over rows, accumulated in float32."""

    def compute(gradient: Any) -> Any:
        from tvm import te

        total = _down(te.sum, gradient, "total")
        return elements((columns,), lambda c: total(c).astype(dtype), "of_bias")

    return computed("bias_gradient", compute, gradient=((rows, columns), dtype))


def activation_bias_gradient(rows: int, columns: int, dtype: str, activation: str) -> Program:
    """Gradient of act(X + bias) for X, and its sum over rows, which is the bias's; act is gelu (its sigmoid form,
    x · sigmoid(1.702 · x)), silu, relu or relu2 (the square of relu)."""

    def compute(x: Any, gradient: Any) -> list[Any]:
        from tvm import te, tirx

        def slope(value: Any) -> Any:
            if activation in ("relu", "relu2"):
                zero, one = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
                return tirx.Select(value > zero, value * 2.0 if activation == "relu2" else one, zero)
            steep = 1.702 if activation == "gelu" else 1.0
            gate = te.sigmoid(value * steep)
            return gate + value * steep * gate * (1.0 - gate)

        before = elements(
            x.shape, lambda r, c: (wide(gradient(r, c)) * slope(wide(x(r, c)))).astype(dtype), "gradient_of_input"
        )
        return [before, _down(te.sum, before, "of_bias")]

    row = ((rows, columns), dtype)
    return computed("activation_bias_gradient", compute, x=row, gradient=row)


def square_sum(rows: int, columns: int, dtype: str) -> Program:
    """Sum of the squares of a whole matrix, float32: its part of the norm that gradients are clipped by."""

    def compute(gradient: Any) -> Any:
        from tvm import te

        return reduced(te.sum, (1,), (rows, columns), lambda _, inner: square(wide(gradient(*inner))), "squares")

    return computed("square_sum", compute, gradient=((rows, columns), dtype))


def largest_magnitude(rows: int, columns: int, dtype: str) -> Program:
    """Largest absolute value of a whole matrix, float32: the statistic of per-tensor float8 scaling."""

    def compute(x: Any) -> Any:
        from tvm import te

        return reduced(te.max, (1,), (rows, columns), lambda _, inner: te.abs(wide(x(*inner))), "largest")

    return computed("largest_magnitude", compute, x=((rows, columns), dtype))


def channel_statistics(rows: int, columns: int, dtype: str) -> Program:
    """Largest and mean absolute value of each column over many tokens, float32: SmoothQuant and AWQ calibrate by it."""

    def compute(x: Any) -> list[Any]:
        from tvm import te

        largest = _down(te.max, x, "largest", te.abs)
        total = _down(te.sum, x, "total", te.abs)
        return [largest, elements((columns,), lambda c: total(c) / float(rows), "mean")]

    return computed("channel_statistics", compute, x=((rows, columns), dtype))


def column_variance(rows: int, columns: int, dtype: str) -> Program:
    """Variance of each column over a batch, float32: what VICReg keeps up, and what tells that features collapse."""

    def compute(x: Any) -> Any:
        return moments((columns,), (rows,), lambda at, inner: wide(x(*inner, *at)))[1]

    return computed("column_variance", compute, x=((rows, columns), dtype))


def factored_moments(rows: int, columns: int, dtype: str) -> Program:
    """Means of the squared gradient over columns and over rows, float32: the factored second moment of Adafactor."""

    def compute(gradient: Any) -> list[Any]:
        from tvm import te

        across = along_last(te.sum, gradient, "across", lambda r, c: square(wide(gradient(r, c))))
        down = _down(te.sum, gradient, "down", square)
        return [
            elements((rows,), lambda r: across(r) / float(columns), "of_rows"),
            elements((columns,), lambda c: down(c) / float(rows), "of_columns"),
        ]

    return computed("factored_moments", compute, gradient=((rows, columns), dtype))


def weight_norm(filters: int, taps: int, dtype: str) -> Program:
    """Weight normalisation, magnitude[f] · V[f] / |V[f]|, a row for each filter or output (WaveNet's kin, DoRA)."""

    def compute(direction: Any, magnitude: Any) -> Any:
        from tvm import te

        squares = along_last(te.sum, direction, "squares", lambda f, t: square(wide(direction(f, t))))

        def element(f: Any, t: Any) -> Any:
            return (wide(direction(f, t)) * te.rsqrt(squares(f) + 1e-12) * wide(magnitude(f))).astype(dtype)

        return elements(direction.shape, element, "weight")

    return computed("weight_norm", compute, direction=((filters, taps), dtype), magnitude=((filters,), dtype))


def _down(how: Any, x: Any, name: str, term: Any = None) -> Any:
    """In TE: `how` over the rows of a matrix, of its elements in float32 or of `term` of each."""

    def value(at: Any, inner: Any) -> Any:
        element = wide(x(*inner, *at))
        return term(element) if term else element

    return reduced(how, x.shape[1:], [x.shape[0]], value, name)
