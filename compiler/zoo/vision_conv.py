"""Convolutions over one, two or three dimensions, with what the network does to their result.

Half precision is summed in float32 and int8 in int32, as convolution libraries do, and biases are as wide as the sums.
`last` puts channels last, as TensorFlow and PyTorch's channels-last format have them; else they come first.
"""

from collections.abc import Callable
from typing import Any

from littledragon.compiler.zoo.block import Program, export, named

Sizes = tuple[int, ...]

SUMS = {"float32": "float32", "float16": "float32", "bfloat16": "float32", "int8": "int32"}
"""What products of a dtype are summed in."""


def convolution(
    batch: int,
    inputs: int,
    outputs: int,
    size: Sizes,
    kernel: Sizes,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
    tail: tuple[str, ...] = (),
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """A convolution of `batch` fields of `size`, and what follows it at once.

    tail: in order, of `bias`; `norm`, a batch norm as a scale and a shift for each channel; `time`, a vector for each
        field, as blocks of diffusion networks add; `add`, a residual; and last an activation (`activated`).
    int8 results are scaled channel by channel and clipped, a `relu` at 0.
    """
    from tvm import relax
    from tvm.relax.frontend.nn import op

    space, sums = "DHW"[3 - len(size) :], SUMS[dtype]
    convolve = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[len(size) - 1]

    def forward(x: Any, weight: Any, *rest: Any) -> Any:
        y = convolve(
            x._expr,
            weight._expr,
            strides=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            data_layout=f"N{space}C" if last else f"NC{space}",
            kernel_layout=f"O{space}I" if last else f"OI{space}",
            out_dtype=sums,
        )
        return _finished(op.wrap_nested(y, "convolution"), tail, dtype, rest)

    return _exported(
        forward,
        x=(shaped(batch, inputs, size, last), dtype),
        weight=(shaped(outputs, inputs // groups, kernel, last), dtype),
        **_extra(batch, outputs, conv_size(size, kernel, stride, padding, dilation), tail, dtype, last),
    )


def transposed(
    batch: int,
    inputs: int,
    outputs: int,
    size: Sizes,
    kernel: Sizes,
    *,
    stride: Sizes,
    padding: Sizes,
    more: Sizes,
    groups: int = 1,
    tail: tuple[str, ...] = (),
    dtype: str = "float32",
) -> Program:
    """A transposed convolution, channels first, and what follows it at once; the result is larger by `more`."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    space = "DHW"[3 - len(size) :]
    names = (relax.op.nn.conv1d_transpose, relax.op.nn.conv2d_transpose, relax.op.nn.conv3d_transpose)

    def forward(x: Any, weight: Any, *rest: Any) -> Any:
        y = names[len(size) - 1](
            x._expr,
            weight._expr,
            strides=stride,
            padding=padding,
            output_padding=more,
            groups=groups,
            data_layout=f"NC{space}",
            kernel_layout=f"IO{space}",
            out_dtype=SUMS[dtype],
        )
        return _finished(op.wrap_nested(y, "transposed"), tail, dtype, rest)

    field = tuple(
        (n - 1) * s - 2 * p + k + m for n, s, p, k, m in zip(size, stride, padding, kernel, more, strict=True)
    )
    return _exported(
        forward,
        x=((batch, inputs, *size), dtype),
        weight=((inputs, outputs // groups, *kernel), dtype),
        **_extra(batch, outputs, field, tail, dtype, last=False),
    )


def shuffled(
    batch: int, inputs: int, outputs: int, size: Sizes, kernel: Sizes, *, factor: int, dtype: str = "float32"
) -> Program:
    """Sub-pixel convolution: conv2d with bias to outputs * factor² channels, which are laid out as larger images."""
    from tvm import te, topi
    from tvm.relax.frontend.nn import op

    sums, (height, width) = SUMS[dtype], size

    def compute(x: Any, weight: Any, bias: Any) -> Any:
        y = topi.nn.conv2d(x, weight, 1, [n // 2 for n in kernel], 1, out_dtype=sums)

        def element(n: Any, c: Any, h: Any, w: Any) -> Any:
            channel = c * factor**2 + h % factor * factor + w % factor
            return (y[n, channel, h // factor, w // factor] + bias[channel]).astype(dtype)

        return te.compute((batch, outputs, height * factor, width * factor), element, name="pixel_shuffle")

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.tensor_expr_op(compute, "conv2d_pixel_shuffle", [x, weight, bias])

    return export(
        forward,
        x=((batch, inputs, *size), dtype),
        weight=((outputs * factor**2, inputs, *kernel), dtype),
        bias=((outputs * factor**2,), sums),
    )


def conv_size(size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """The size of a convolution's result."""
    every = zip(size, kernel, stride, padding, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in every)


def shaped(batch: int, channels: int, size: Sizes, last: bool) -> Sizes:
    """The shape of a batch of fields."""
    return (batch, *size, channels) if last else (batch, channels, *size)


def activated(y: Any, name: str) -> Any:
    """An `nn` tensor after an activation function.

    Raises:
        KeyError: there is no such function.
    """
    from tvm import te, tirx, topi
    from tvm.relax.frontend.nn import op

    def hard_sigmoid(v: Any) -> Any:
        six, zero = tirx.const(6, v.dtype), tirx.const(0, v.dtype)
        return te.max(te.min(v + tirx.const(3, v.dtype), six), zero) / six

    def each(element: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: te.compute(x.shape, lambda *i: element(x[i]), name=name)

    plain = {"relu": op.relu, "relu6": op.relu6, "silu": op.silu, "gelu": op.gelu, "sigmoid": op.sigmoid}
    if name in plain | {"tanh": op.tanh}:
        return (plain | {"tanh": op.tanh})[name](y)
    tensors: dict[str, Callable[[Any], Any]] = {
        "hardswish": each(lambda v: v * hard_sigmoid(v)),
        "hardsigmoid": each(hard_sigmoid),
        "leaky": lambda x: topi.nn.leaky_relu(x, 0.1),
        "elu": each(lambda v: tirx.Select(v > 0, v, te.exp(v) - tirx.const(1, v.dtype))),
        "mish": each(lambda v: v * te.tanh(te.log(tirx.const(1, v.dtype) + te.exp(v)))),
    }
    return op.tensor_expr_op(tensors[name], name, [y])


def _extra(
    batch: int, outputs: int, field: Sizes, tail: tuple[str, ...], dtype: str, last: bool
) -> dict[str, tuple[Sizes, str]]:
    """What a tail takes, in order, beside the convolution's result."""
    ones = (1,) * len(field)
    sums, each = SUMS[dtype], (outputs,) if last else (1, outputs, *ones)
    found: dict[str, tuple[Sizes, str]] = {}
    for word in tail:
        if word == "bias":
            found["bias"] = (each, sums)
        elif word == "norm":
            found |= {"scale": (each, sums), "shift": (each, sums)}
        elif word == "time":
            found["time"] = (shaped(batch, outputs, ones, last), sums)
        elif word == "add":
            found["residual"] = (shaped(batch, outputs, field, last), dtype)
    if dtype == "int8":
        found["scale"] = (each, "float32")
    return found


def _finished(y: Any, tail: tuple[str, ...], dtype: str, rest: tuple[Any, ...]) -> Any:
    """The result of a tail, of this dtype; `rest` are what `_extra` names."""
    from tvm.relax.frontend.nn import op

    given = iter(rest)
    if dtype == "int8":
        for _ in range(tail.count("bias")):
            y = y + next(given)
        return _requantized(y, next(given), low=0 if tail[-1:] == ("relu",) else -128)
    for word in tail:
        if word in ("bias", "time"):
            y = y + next(given)
        elif word == "norm":
            y = y * next(given) + next(given)
        elif word == "add":
            residual = next(given)
            y = y + (residual if dtype == y.dtype else op.astype(residual, y.dtype))
        else:
            y = activated(y, word)
    return y if dtype == y.dtype else op.astype(y, dtype)


def _requantized(y: Any, scale: Any, low: int) -> Any:
    """int32 sums times a scale for each channel, rounded and clipped to `low` … 127, int8."""
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(sums: Any, factor: Any) -> Any:
        def element(*i: Any) -> Any:
            place = i[-1:] if len(factor.shape) == 1 else (0, i[1], *(0,) * (len(i) - 2))
            value = te.round(sums[i].astype("float32") * factor[place])
            bounds = tirx.const(low, "float32"), tirx.const(127, "float32")
            return te.min(te.max(value, bounds[0]), bounds[1]).astype("int8")

        return te.compute(sums.shape, element, name="requantize")

    return op.tensor_expr_op(compute, "requantize", [y, scale])


def _exported(forward: Callable[..., Any], **arguments: tuple[Sizes, str]) -> Program:
    """`export` of a function with a variable number of parameters, which get these names."""
    return export(named(forward, arguments), **arguments)
