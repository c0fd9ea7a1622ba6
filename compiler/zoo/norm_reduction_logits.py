"""What is computed from logits: probabilities to sample from, choices, losses and their gradients.

Rows are tokens or samples, columns the vocabulary, or the shard of it that one device holds. Everything is computed in
float32, after the row's largest logit has been taken off.
"""

from collections.abc import Callable
from typing import Any

from littledragon.compiler.zoo.block import Program, comparable, computed, export
from littledragon.compiler.zoo.norm_reduction_te import Lead, along_last, elements, reduced, shape, wide

Element = Callable[..., Any]


def sampling_softmax(rows: int, columns: int, dtype: str, cap: bool = False) -> Program:
    """Probabilities at a temperature of each row, float32; `cap`: of logits that 30·tanh(x / 30) bounds (Gemma 2)."""
    from tvm import te

    def compute(logits: Any, temperature: Any) -> Any:
        def value(r: Any, c: Any) -> Any:
            logit = wide(logits(r, c))
            return (te.tanh(logit / 30.0) * 30.0 if cap else logit) / temperature(r)

        return _probabilities(logits.shape, value)

    return computed("sampling_softmax", compute, logits=((rows, columns), dtype), temperature=((rows,), "float32"))


def log_probabilities(rows: Lead, columns: int) -> Program:
    """Logarithm of softmax over the last axis, float32."""
    from tvm import te

    def compute(logits: Any) -> Any:
        value, peak, total = _exponentials(logits)
        return elements(
            logits.shape, lambda *at: value(*at) - peak(*at[:-1]) - te.log(total(*at[:-1])), "log_probabilities"
        )

    return computed("log_softmax", compute, logits=(shape(rows, columns), "float32"))


def min_p_softmax(rows: int, columns: int, dtype: str) -> Program:
    """Probabilities at a temperature, of the tokens that are at least `least`[row] times as likely as the likeliest."""
    from tvm import te, tirx

    def compute(logits: Any, temperature: Any, least: Any) -> Any:
        def value(r: Any, c: Any) -> Any:
            return wide(logits(r, c)) / temperature(r)

        peak = along_last(te.max, logits, "peak", value)

        def likely(r: Any, c: Any) -> Any:
            ratio = te.exp(value(r, c) - peak(r))
            return tirx.Select(ratio >= least(r), ratio, tirx.const(0.0, "float32"))

        kept = elements(logits.shape, likely, "kept")
        total = along_last(te.sum, kept, "total")
        # The likeliest token's ratio is 1, which `least` may be above.
        return elements(logits.shape, lambda r, c: kept(r, c) / te.max(total(r), tirx.const(1e-9, "float32")), "normal")

    row = ((rows,), "float32")
    return computed("min_p_softmax", compute, logits=((rows, columns), dtype), temperature=row, least=row)


def gumbel_argmax(rows: int, columns: int, dtype: str) -> Program:
    """A sample of each row: the index of the largest probability divided by exponential noise, int32."""
    from tvm import te

    def compute(logits: Any, noise: Any) -> Any:
        peak = along_last(te.max, logits, "peak")
        draw = elements(logits.shape, lambda r, c: te.exp(wide(logits(r, c)) - peak(r)) / noise(r, c), "draw")
        highest = along_last(te.max, draw, "highest")
        return _first(draw, highest)

    return computed("gumbel_argmax", compute, logits=((rows, columns), dtype), noise=((rows, columns), "float32"))


def argmin(rows: Lead, columns: int, dtype: str = "float32") -> Program:
    """Index of the smallest distance of each row, int32: the nearest code of a vector quantiser."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(lambda a: topi.argmin(comparable(a), axis=len(a.shape) - 1), "argmin", [x])

    return export(forward, x=(shape(rows, columns), dtype))


def nearest_code(rows: int, codes: int, dtype: str) -> Program:
    """Index of the nearest of `codes` codes, int32: of the smallest |c|² - 2·x·c, given the products x·c."""
    from tvm import te

    def compute(products: Any, norms: Any) -> Any:
        far = elements(products.shape, lambda r, c: wide(norms(c)) - 2.0 * wide(products(r, c)), "distance")
        return _first(far, along_last(te.min, far, "least"))

    return computed("nearest_code", compute, products=((rows, codes), dtype), norms=((codes,), dtype))


def log_sum_exp(rows: int, columns: int, dtype: str) -> Program:
    """Logarithm of each row's sum of exponentials, float32, and its square, which the z-loss adds."""

    def compute(logits: Any) -> list[Any]:
        from tvm import te

        _, peak, total = _exponentials(logits)
        normaliser = elements((rows,), lambda r: te.log(total(r)) + peak(r), "normaliser")
        return [normaliser, elements((rows,), lambda r: normaliser(r) * normaliser(r), "z_loss")]

    return computed("log_sum_exp", compute, logits=((rows, columns), dtype))


def cross_entropy(rows: int, columns: int, dtype: str, smoothed: bool = False) -> Program:
    """Each row's negative log-probability of its label, float32; `smoothed`: by a tenth spread over all columns."""

    def compute(logits: Any, label: Any) -> Any:
        from tvm import te

        _, peak, total = _exponentials(logits)
        every = [along_last(te.sum, logits, "every")] if smoothed else []

        def loss(r: Any) -> Any:
            normaliser = te.log(total(r)) + peak(r)
            hit = normaliser - wide(logits(r, label(r)))
            return hit * 0.9 + (normaliser - every[0](r) / float(columns)) * 0.1 if smoothed else hit

        return elements((rows,), loss, "loss")

    return computed("cross_entropy", compute, logits=((rows, columns), dtype), label=((rows,), "int32"))


def sharded_cross_entropy(rows: int, columns: int, dtype: str) -> Program:
    """The first shard's part of a vocabulary-parallel cross-entropy, given each row's largest logit over all shards:
    its sum of exponentials, and the label's logit where the label is its own, else 0."""

    def compute(logits: Any, peak: Any, label: Any) -> list[Any]:
        from tvm import te, tirx

        total = along_last(te.sum, logits, "total", lambda r, c: te.exp(wide(logits(r, c)) - peak(r)))

        def own(r: Any) -> Any:
            logit = wide(logits(r, te.min(label(r), tirx.const(columns - 1, "int32"))))
            return tirx.Select(label(r) < columns, logit - peak(r), tirx.const(0.0, "float32"))

        return [total, elements((rows,), own, "own")]

    row = (rows,)
    logits = ((rows, columns), dtype)
    return computed("sharded_cross_entropy", compute, logits=logits, peak=(row, "float32"), label=(row, "int32"))


def cross_entropy_gradient(rows: int, columns: int, dtype: str) -> Program:
    """Gradient of the cross-entropy for the logits, (softmax - one-hot(label)) · gradient[row]."""

    def compute(logits: Any, label: Any, gradient: Any) -> Any:
        from tvm import te, tirx

        value, peak, total = _exponentials(logits)
        one, zero = tirx.const(1.0, "float32"), tirx.const(0.0, "float32")

        def element(r: Any, c: Any) -> Any:
            hit = tirx.Select(label(r) == c, one, zero)
            return ((te.exp(value(r, c) - peak(r)) / total(r) - hit) * gradient(r)).astype(dtype)

        return elements(logits.shape, element, "gradient_of_logits")

    logits, row = ((rows, columns), dtype), (rows,)
    return computed("cross_entropy_gradient", compute, logits=logits, label=(row, "int32"), gradient=(row, "float32"))


def entropy(rows: int, columns: int, dtype: str) -> Program:
    """Entropy of each row's distribution, float32, in nats."""

    def compute(logits: Any) -> Any:
        from tvm import te

        value, peak, total = _exponentials(logits)
        weighted = along_last(te.sum, logits, "weighted", lambda r, c: te.exp(value(r, c) - peak(r)) * value(r, c))
        return elements((rows,), lambda r: te.log(total(r)) + peak(r) - weighted(r) / total(r), "entropy")

    return computed("entropy", compute, logits=((rows, columns), dtype))


def divergence(rows: int, columns: int, dtype: str) -> Program:
    """Kullback-Leibler divergence of a student's distribution from its teacher's, row by row, float32: distillation."""

    def compute(student: Any, teacher: Any) -> Any:
        from tvm import te

        value, peak, total = _exponentials(student, "student")
        target, high, mass = _exponentials(teacher, "teacher")

        def term(r: Any, c: Any) -> Any:
            likely = te.exp(target(r, c) - high(r))
            return likely * ((target(r, c) - high(r)) - (value(r, c) - peak(r)))

        apart = along_last(te.sum, teacher, "apart", term)
        return elements((rows,), lambda r: apart(r) / mass(r) + te.log(total(r)) - te.log(mass(r)), "divergence")

    logits = ((rows, columns), dtype)
    return computed("divergence", compute, student=logits, teacher=logits)


def softmax_gradient(rows: Lead, columns: int, dtype: str) -> Program:
    """Gradient of a softmax for what it was taken of: y · (g - sum(g · y))."""

    def compute(y: Any, gradient: Any) -> Any:
        from tvm import te

        product = elements(y.shape, lambda *at: wide(y(*at)) * wide(gradient(*at)), "product")
        total = along_last(te.sum, product, "total")

        def element(*at: Any) -> Any:
            return (product(*at) - wide(y(*at)) * total(*at[:-1])).astype(dtype)

        return elements(y.shape, element, "gradient_of_scores")

    row = (shape(rows, columns), dtype)
    return computed("softmax_gradient", compute, y=row, gradient=row)


def pixel_softmax(images: int, classes: int, pixels: tuple[int, ...]) -> Program:
    """Softmax over the classes of each pixel, float32, classes before pixels."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.softmax(x, axis=1)

    return export(forward, x=((images, classes, *pixels), "float32"))


def pixel_argmax(images: int, classes: int, pixels: tuple[int, ...], dtype: str) -> Program:
    """Index of the likeliest class of each pixel, int32."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(lambda a: topi.argmax(comparable(a), axis=1), "pixel_argmax", [x])

    return export(forward, x=((images, classes, *pixels), dtype))


def contrastive_loss(batch: int, dtype: str) -> Program:
    """The symmetric loss of CLIP over the similarities of `batch` pairs: cross-entropy of each row and of each column,
    whose label is its own number; float32."""

    def compute(similarity: Any) -> Any:
        from tvm import te

        _, peak, total = _exponentials(similarity)

        def down(r: Any, inner: Any) -> Any:
            return wide(similarity(*inner, *r))

        high = reduced(te.max, (batch,), (batch,), down, "column_peak")
        mass = reduced(te.sum, (batch,), (batch,), lambda r, inner: te.exp(down(r, inner) - high(*r)), "column_total")

        def loss(r: Any) -> Any:
            both = te.log(total(r)) + peak(r) + te.log(mass(r)) + high(r)
            return both * 0.5 - wide(similarity(r, r))

        return elements((batch,), loss, "loss")

    return computed("contrastive_loss", compute, similarity=((batch, batch), dtype))


def _exponentials(logits: Any, name: str = "row") -> tuple[Element, Any, Any]:
    """In TE: the logits in float32, each row's largest one, and its sum of exponentials."""
    from tvm import te

    def value(*at: Any) -> Any:
        return wide(logits(*at))

    peak = along_last(te.max, logits, f"{name}_peak")
    total = along_last(te.sum, logits, f"{name}_total", lambda *at: te.exp(value(*at) - peak(*at[:-1])))
    return value, peak, total


def _probabilities(like: Any, value: Element) -> Any:
    """In TE: softmax of `value` over the last of two axes."""
    from tvm import te

    scaled = elements(like, value, "scaled")
    peak = along_last(te.max, scaled, "peak")
    total = along_last(te.sum, scaled, "total", lambda r, c: te.exp(scaled(r, c) - peak(r)))
    return elements(like, lambda r, c: te.exp(scaled(r, c) - peak(r)) / total(r), "probabilities")


def _first(x: Any, best: Any) -> Any:
    """In TE: the first column of each row that equals the row's best one, int32."""
    from tvm import te, tirx

    rows, columns = x.shape

    def place(at: Any, inner: Any) -> Any:
        column = inner[0].var
        return tirx.Select(x(*at, *inner) == best(*at), column, tirx.const(int(columns), column.dtype))

    return reduced(te.min, (rows,), (columns,), place, "first")
