"""Convolutions over one, two or three dimensions, with what the network does to their result, and their gradients.

Half precision is summed in float32 and int8 in int32, as convolution libraries do; biases are kept as wide as the sums.
`last` puts channels last, as TensorFlow and the channels-last format of PyTorch have them; otherwise they come first.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, export

Sizes = tuple[int, ...]

SUMS = {"float32": "float32", "float16": "float32", "bfloat16": "float32", "int8": "int32"}
"""What products of a dtype are summed in."""


def convolution(
    *,
    batch: int,
    inputs: int,
    outputs: int,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    size: Sizes,
    tail: tuple[str, ...] = (),
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """A convolution of `batch` images of `size` and what follows it at once.

    tail: in order, of `bias`; `norm`, a batch norm as scale and shift a channel; `time`, a vector a channel and image,
        as the blocks of a diffusion network add; `add`, a residual of the result's shape; an activation of `activated`.
    int8 results are scaled channel by channel and clipped; a `relu` clips at 0.
    """
    from tvm import relax
    from tvm.relax.frontend.nn import op

    space, sums = "DHW"[3 - len(size) :] if len(size) > 1 else "W", SUMS[dtype]
    convolve = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[len(size) - 1]
    each = (outputs,) if last else (1, outputs, *(1,) * len(size))

    def forward(x: Any, weight: Any, **rest: Any) -> Any:
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
        return _finished(op.wrap_nested(y, "conv"), tail, dtype, rest)

    field, front = _sizes(size, kernel, stride, padding, dilation), (batch, *size, inputs)
    result = (batch, *field, outputs) if last else (batch, outputs, *field)
    shapes = {
        "bias": {"bias": (each, sums)},
        "norm": {"scale": (each, sums), "shift": (each, sums)},
        "time": {"time": ((batch, *(1,) * len(size), outputs) if last else (batch, outputs, *(1,) * len(size)), sums)},
        "add": {"residual": (result, dtype)},
    }
    extra = {name: spec for word in tail for name, spec in shapes.get(word, {}).items()}
    if dtype == "int8":
        extra["scale"] = (each, "float32")
    return export(
        _named(forward, ("x", "weight", *extra)),
        x=(front if last else (batch, inputs, *size), dtype),
        weight=((outputs, *kernel, inputs // groups) if last else (outputs, inputs // groups, *kernel), dtype),
        **extra,
    )
