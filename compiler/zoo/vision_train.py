"""What training adds: gradients of weights, losses over classes and pixels, the weights of generators.

The gradient of a convolution's input is `vision_conv.transposed` with the same weight.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, export
from littledragon.compiler.zoo.vision_conv import Sizes, conv_size, shaped


def weight_gradient(
    batch: int,
    inputs: int,
    outputs: int,
    size: Sizes,
    kernel: Sizes,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    depthwise: bool = False,
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """dW of a convolution: products of the result's gradient and the shifted input, summed over images and places."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    field, space = conv_size(size, kernel, stride, padding, dilation), len(size)

    def compute(x: Any, gradient: Any) -> Any:
        edge = [0, *padding, 0] if last else [0, 0, *padding]
        padded = topi.nn.pad(x, edge, edge, name="padded") if any(padding) else x
        image = te.reduce_axis((0, batch), name="image")
        places = [te.reduce_axis((0, extent), name=f"place{number}") for number, extent in enumerate(field)]

        def at(channel: Any, inner: Any) -> Any:
            return (image, *inner, channel) if last else (image, channel, *inner)

        def total(*i: Any) -> Any:
            offset = i[1 : 1 + space] if last or depthwise else i[2:]
            read = [p * s + r * d for p, s, r, d in zip(places, stride, offset, dilation, strict=True)]
            channel = i[0] if depthwise else i[-1] if last else i[1]
            product = gradient[at(i[0], places)].astype("float32") * padded[at(channel, read)].astype("float32")
            return te.sum(product, axis=[image, *places])

        shape = (outputs, *kernel) if depthwise else shaped(outputs, inputs, kernel, last)
        sums = te.compute(shape, total, name="weight_gradient")
        return sums if dtype == "float32" else te.compute(shape, lambda *i: sums[i].astype(dtype), name="cast")

    def forward(x: Any, gradient: Any) -> Any:
        return op.tensor_expr_op(compute, "weight_gradient", [x, gradient])

    return export(
        forward,
        x=(shaped(batch, inputs, size, last), dtype),
        gradient=(shaped(batch, outputs, field, last), dtype),
    )


def pixel_cross_entropy(batch: int, classes: int, size: Sizes, *, dtype: str = "float32") -> Program:
    """-log softmax at the label of each pixel, float32; classes come first."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    def compute(logits: Any, label: Any) -> Any:
        peak, axis = te.reduce_axis((0, classes), name="peak"), te.reduce_axis((0, classes), name="class_")
        shape = (batch, *size)
        largest = te.compute(
            shape, lambda n, h, w: te.max(logits[n, peak, h, w].astype("float32"), axis=peak), name="largest"
        )
        total = te.compute(
            shape,
            lambda n, h, w: te.sum(te.exp(logits[n, axis, h, w].astype("float32") - largest[n, h, w]), axis=axis),
            name="total",
        )
        return te.compute(
            shape,
            lambda n, h, w: (
                te.log(total[n, h, w]) + largest[n, h, w] - logits[n, label[n, h, w], h, w].astype("float32")
            ),
            name="loss",
        )

    def forward(logits: Any, label: Any) -> Any:
        return op.tensor_expr_op(compute, "pixel_cross_entropy", [logits, label])

    return export(forward, logits=((batch, classes, *size), dtype), label=((batch, *size), "int32"))


def focal_loss(batch: int, anchors: int, classes: int, *, dtype: str = "float32") -> Program:
    """Sigmoid focal loss (α = ¼, γ = 2) of each anchor, summed over classes, float32; label `classes` is background."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(logits: Any, label: Any) -> Any:
        axis = te.reduce_axis((0, classes), name="class_")

        def total(n: Any, a: Any) -> Any:
            hit = label[n, a] == axis.var
            logit = logits[n, a, axis].astype("float32")
            chosen = tirx.Select(hit, logit, -logit)  # log p = -softplus(-chosen), stable for either sign
            weight = tirx.Select(hit, tirx.const(0.25, "float32"), tirx.const(0.75, "float32"))
            loss = te.max(-chosen, tirx.const(0.0, "float32")) + te.log(1.0 + te.exp(-te.abs(chosen)))
            miss = 1.0 - te.exp(-loss)
            return te.sum(weight * miss * miss * loss, axis=axis)

        return te.compute((batch, anchors), total, name="focal_loss")

    def forward(logits: Any, label: Any) -> Any:
        return op.tensor_expr_op(compute, "focal_loss", [logits, label])

    return export(forward, logits=((batch, anchors, classes), dtype), label=((batch, anchors), "int32"))


def dice_sums(batch: int, classes: int, size: Sizes, *, dtype: str = "float32") -> Program:
    """For each image and class the sums of p * t and of p + t over all places, of which the Dice loss is made."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def identity(*dtypes: str) -> tuple[Any, ...]:
        return tuple(tirx.const(0, kind) for kind in dtypes)

    def compute(prediction: Any, truth: Any) -> Any:
        places = [te.reduce_axis((0, extent), name=f"place{number}") for number, extent in enumerate(size)]
        both = te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), identity, name="two_sums")

        def pair(n: Any, c: Any) -> Any:
            p, t = (tensor[(n, c, *places)].astype("float32") for tensor in (prediction, truth))
            return both((p * t, p + t), axis=places)

        return list(te.compute((batch, classes), pair, name="dice"))

    def forward(prediction: Any, truth: Any) -> Any:
        return op.tensor_expr_op(compute, "dice_sums", [prediction, truth])

    field = ((batch, classes, *size), dtype)
    return export(forward, prediction=field, truth=field)


def modulated_weight(batch: int, inputs: int, outputs: int, *, kernel: int = 3, dtype: str = "float32") -> Program:
    """StyleGAN2's weights for each image: scaled by its style input by input, then to length 1 filter by filter."""
    from tvm import te
    from tvm.relax.frontend.nn import op

    shape = (batch, outputs, inputs, kernel, kernel)

    def compute(weight: Any, style: Any) -> Any:
        axes = [te.reduce_axis((0, extent), name=f"inner{number}") for number, extent in enumerate(shape[2:])]

        def square(n: Any, o: Any) -> Any:
            value = weight[(o, *axes)] * style[n, axes[0]]
            return te.sum(value * value, axis=axes)

        length = te.compute((batch, outputs), square, name="length")
        return te.compute(
            shape,
            lambda n, o, i, r, s: (weight[o, i, r, s] * style[n, i] * te.rsqrt(length[n, o] + 1e-8)).astype(dtype),
            name="modulated",
        )

    def forward(weight: Any, style: Any) -> Any:
        return op.tensor_expr_op(compute, "modulated_weight", [weight, style])

    return export(forward, weight=((outputs, inputs, kernel, kernel), "float32"), style=((batch, inputs), "float32"))
