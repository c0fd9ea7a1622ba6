"""Convolutions, pooling and normalisation of images, channels first."""

from functools import partial
from typing import Any

from littledragon.compiler.zoo import block as zoo
from littledragon.compiler.zoo.block import Block, export


def conv_bias_relu(channels: int, filters: int, size: int, kernel: int, stride: int, padding: int) -> Any:
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


def depthwise(channels: int, size: int, kernel: int, clip: bool) -> Any:
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


def patch_embedding(size: int, patch: int, filters: int) -> Any:
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


def max_pool(channels: int, size: int) -> Any:
    """Largest of each 3 × 3 window at stride 2, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        pooled = relax.op.nn.max_pool2d(x._expr, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])
        return op.wrap_nested(pooled, "max_pool2d")

    return export(forward, x=((1, channels, size, size), "float32"))


def global_avg_pool(images: int, channels: int, size: int) -> Any:
    """Mean of each channel, float32."""
    from tvm import relax
    from tvm.relax.frontend.nn import op

    def forward(x: Any) -> Any:
        return op.wrap_nested(relax.op.mean(x._expr, axis=[2, 3]), "mean")

    return export(forward, x=((images, channels, size, size), "float32"))


def group_norm_silu(channels: int, size: int, groups: int) -> Any:
    """silu(group_norm(X)) of one float32 image."""
    from tvm.relax.frontend.nn import op

    def forward(x: Any, weight: Any, bias: Any) -> Any:
        return op.silu(op.group_norm(x, groups, weight, bias))

    vector = ((channels,), "float32")
    return export(forward, x=((1, channels, size, size), "float32"), weight=vector, bias=vector)


_block = partial(zoo.block, family="vision")

BLOCKS: tuple[Block, ...] = (
    _block(
        "conv3x3",
        zoo.RESNET,
        "3 x 3 convolution of the second stage with batch norm folded in, filters cut in 4",
        conv_bias_relu,
        cut="resnet50-s2-tp4",
        channels=128,
        filters=32,
        size=28,
        kernel=3,
        stride=1,
        padding=1,
    ),
    _block(
        "conv1x1",
        zoo.RESNET,
        "1 x 1 convolution of the third stage with batch norm folded in, filters cut in 2",
        conv_bias_relu,
        cut="resnet50-s3-tp2",
        channels=256,
        filters=128,
        size=14,
        kernel=1,
        stride=1,
        padding=0,
    ),
    _block(
        "conv_strided",
        zoo.RESNET,
        "the 7 x 7 stem at stride 2 with batch norm folded in, on a 64 x 64 image",
        conv_bias_relu,
        cut="resnet50-stem-64",
        channels=3,
        filters=64,
        size=64,
        kernel=7,
        stride=2,
        padding=3,
    ),
    _block(
        "depthwise3x3",
        zoo.MOBILENET,
        "3 x 3 depthwise convolution of 144 channels",
        depthwise,
        cut="mobilenet-v2-28",
        channels=144,
        size=28,
        kernel=3,
        clip=True,
    ),
    _block(
        "depthwise7x7",
        zoo.CONVNEXT,
        "7 x 7 depthwise convolution of 96 channels on a 28 x 28 image",
        depthwise,
        cut="convnext-tiny-28",
        channels=96,
        size=28,
        kernel=7,
        clip=False,
    ),
    _block(
        "patch_embedding",
        zoo.VIT,
        "patches of a 112 x 112 image, filters cut in 4",
        patch_embedding,
        cut="vit-b16-112-tp4",
        size=112,
        patch=16,
        filters=192,
    ),
    _block(
        "max_pool",
        zoo.RESNET,
        "3 x 3 max pooling after the stem, 56 x 56 pixels",
        max_pool,
        cut="resnet50-56",
        channels=64,
        size=56,
    ),
    _block(
        "global_avg_pool",
        zoo.RESNET,
        "global mean of 2048 channels of 4 images",
        global_avg_pool,
        cut="resnet50-b4",
        images=4,
        channels=2048,
        size=7,
    ),
    _block(
        "group_norm_silu",
        zoo.UNET,
        "group normalisation of 320 channels in 32 groups, 16 x 16 pixels",
        group_norm_silu,
        cut="sd15-unet-320-16",
        channels=320,
        size=16,
        groups=32,
    ),
)
