"""Images: the convolution of a layer, pooling, normalisation across channels, squeeze and excitation.

Channels come first unless `last` says otherwise. Half precision is summed in float32.
"""

from typing import Any

from littledragon.compiler.zoo.block import Program, export
from littledragon.compiler.zoo.vision_conv import Sizes, activated, shaped


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
    return pool("max", 1, channels, (size, size), (3, 3), stride=(2, 2), padding=(1, 1))


def pool(
    mode: str,
    batch: int,
    channels: int,
    size: Sizes,
    kernel: Sizes,
    *,
    stride: Sizes,
    padding: Sizes,
    ceil: bool = False,
    dtype: str = "float32",
    last: bool = False,
) -> Program:
    """The `max` or the `avg` of each window of two or three dimensions; `ceil` keeps windows that reach outside."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    name = f"{mode}_pool{len(size)}d"
    layout = "NHWC" if len(size) == 2 else "NDHWC"

    def forward(x: Any) -> Any:
        pooled = getattr(relax.op.nn, name)(
            x._expr,
            pool_size=list(kernel),
            strides=list(stride),
            padding=[*padding, *padding],
            ceil_mode=ceil,
            layout=layout if last else layout[0] + "C" + layout[1:-1],
        )
        return op.wrap_nested(pooled, name)

    return export(forward, x=(shaped(batch, channels, size, last), dtype))


def global_avg_pool(
    images: int, channels: int, size: int | Sizes, *, dtype: str = "float32", last: bool = False
) -> Program:
    """Mean of each channel."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    sizes = (size, size) if isinstance(size, int) else size
    axes = [axis + (1 if last else 2) for axis in range(len(sizes))]

    def forward(x: Any) -> Any:
        if dtype == "float32":
            return op.wrap_nested(relax.op.mean(x._expr, axis=axes), "mean")
        return op.tensor_expr_op(lambda tensor: _mean(tensor, axes, keep=False), "mean", [x])

    return export(forward, x=(shaped(images, channels, sizes, last), dtype))


def _mean(x: Any, axes: list[int], keep: bool) -> Any:
    """In TE: the mean over these axes, summed in float32; `keep` puts as many axes of extent 1 at the end."""
    from tvm import te

    inner = {axis: te.reduce_axis((0, x.shape[axis]), name=f"space{axis}") for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in inner]
    count = 1
    for axis in axes:
        count *= int(x.shape[axis])

    def total(*place: Any) -> Any:
        at = dict(zip(kept, place, strict=True)) | inner
        return te.sum(x[tuple(at[axis] for axis in range(len(x.shape)))].astype("float32"), axis=list(inner.values()))

    sums = te.compute([x.shape[axis] for axis in kept], total, name="total")
    shape = [*sums.shape, *(1 for _ in axes if keep)]
    return te.compute(shape, lambda *place: (sums[place[: len(kept)]] / count).astype(x.dtype), name="mean")


def squeeze_excite(
    batch: int,
    channels: int,
    squeezed: int,
    size: Sizes,
    *,
    inner: str = "relu",
    gate: str = "sigmoid",
    dtype: str = "float32",
) -> Program:
    """Channels weighted by two small layers of their means: X * gate(W₂·inner(W₁·mean(X) + b₁) + b₂)."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def layer(x: Any, weight: Any, bias: Any, activation: str) -> Any:
        sums = relax.op.nn.conv2d(x._expr, weight._expr, out_dtype="float32")
        y = op.wrap_nested(sums, "layer") + bias
        y = y if activation == "none" else activated(y, activation)
        return y if dtype == "float32" else op.astype(y, dtype)

    def forward(x: Any, reduce: Any, reduce_bias: Any, expand: Any, expand_bias: Any) -> Any:
        mean = op.tensor_expr_op(lambda tensor: _mean(tensor, [2, 3], keep=True), "mean", [x])
        return x * layer(layer(mean, reduce, reduce_bias, inner), expand, expand_bias, gate)

    return export(
        forward,
        x=((batch, channels, *size), dtype),
        reduce=((squeezed, channels, 1, 1), dtype),
        reduce_bias=((1, squeezed, 1, 1), "float32"),
        expand=((channels, squeezed, 1, 1), dtype),
        expand_bias=((1, channels, 1, 1), "float32"),
    )


def group_norm_silu(channels: int, size: int, groups: int) -> Program:
    """silu(group_norm(X)) of one float32 image."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.silu(op.group_norm(x, groups, weight, bias))

    vector = ((channels,), "float32")
    return export(forward, x=((1, channels, size, size), "float32"), weight=vector, bias=vector)


def local_response_norm(batch: int, channels: int, size: Sizes, *, window: int = 5, dtype: str = "float32") -> Program:
    """X / (2 + α·Σ X²)^¾ with the sum over neighbouring channels, as AlexNet has it."""
    from tvm import topi
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.tensor_expr_op(lambda t: topi.nn.lrn(t, window, 1, 1e-4, 0.75, 2.0), "lrn", [x])

    return export(forward, x=((batch, channels, *size), dtype))


def pixel_softmax(batch: int, classes: int, size: Sizes, *, dtype: str = "float32") -> Program:
    """Probabilities of the classes of each pixel; classes come first."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.softmax(x, axis=1)

    return export(forward, x=((batch, classes, *size), dtype))
