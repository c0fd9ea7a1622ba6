"""Convolutions, pooling and normalisation of images, channels first."""

from typing import Any

from littledragon.compiler.zoo.block import Program, export


def conv_bias_relu(channels: int, filters: int, size: int, kernel: int, stride: int, padding: int) -> Program:
    """relu(conv2d(X, W) + b) of one float32 image."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any, bias: Any) -> Any:
        return op.relu(op.conv2d(x, w, stride=stride, padding=padding) + bias)

    return export(
        forward,
        x=((1, channels, size, size), "float32"),
        w=((filters, channels, kernel, kernel), "float32"),
        bias=((1, filters, 1, 1), "float32"),
    )


def depthwise(channels: int, size: int, kernel: int, clip: bool) -> Program:
    """Each channel of one float32 image convolved with its own kernel, then bias, then relu6 if `clip`."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any, bias: Any) -> Any:
        y = op.conv2d(x, w, padding=kernel // 2, groups=channels) + bias
        return op.relu6(y) if clip else y

    return export(
        forward,
        x=((1, channels, size, size), "float32"),
        w=((channels, 1, kernel, kernel), "float32"),
        bias=((1, channels, 1, 1), "float32"),
    )


def patch_embedding(size: int, patch: int, filters: int) -> Program:
    """The image cut into patches, each projected: a convolution whose stride is its kernel, float32."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, w: Any, bias: Any) -> Any:
        y = op.conv2d(x, w, stride=patch) + bias
        return op.permute_dims(op.reshape(y, (1, filters, (size // patch) ** 2)), [0, 2, 1])

    return export(
        forward,
        x=((1, 3, size, size), "float32"),
        w=((filters, 3, patch, patch), "float32"),
        bias=((1, filters, 1, 1), "float32"),
    )


def max_pool(channels: int, size: int) -> Program:
    """Largest of each 3 × 3 window at stride 2, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        pooled = relax.op.nn.max_pool2d(x._expr, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])
        return op.wrap_nested(pooled, "max_pool2d")

    return export(forward, x=((1, channels, size, size), "float32"))


def global_avg_pool(images: int, channels: int, size: int) -> Program:
    """Mean of each channel, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.mean(x._expr, axis=[2, 3]), "mean")

    return export(forward, x=((images, channels, size, size), "float32"))


def group_norm_silu(channels: int, size: int, groups: int) -> Program:
    """silu(group_norm(X)) of one float32 image."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.silu(op.group_norm(x, groups, weight, bias))

    vector = ((channels,), "float32")
    return export(forward, x=((1, channels, size, size), "float32"), weight=vector, bias=vector)
