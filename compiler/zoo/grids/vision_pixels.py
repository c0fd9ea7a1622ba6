"""Classes of pixels and losses over them, flow between two images, contrast, and generators' weights."""

from typing import Final

from littledragon.compiler.zoo import vision, vision_resize, vision_train
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.vision_listing import (
    ELEMENTWISE,
    Listing,
    Sizes,
    by,
    images,
    short,
    turn_of,
    volume,
)

BATCHES: Final = (1, 4, 16)
"""One image at a time, a GPU's share of a training batch, a whole training batch."""
_SMP: Final = "segmentation_models_pytorch"
SEGMENTATION: Final[tuple[tuple[str, Model, int, Sizes, Sizes], ...]] = (
    (
        "deeplabv3-r50",
        Model("DeepLabV3 R50", "torchvision deeplabv3_resnet50", "BSD-3-Clause"),
        21,
        (65, 65),
        (520, 520),
    ),
    ("deeplabv3p-r101", Model("DeepLabV3+ R101", f"{_SMP} DeepLabV3Plus", "MIT"), 21, (128, 128), (512, 512)),
    ("pspnet-r101", Model("PSPNet R101, ADE20K", "hszhao/semseg", "MIT"), 150, (60, 60), (473, 473)),
    ("pspnet-city", Model("PSPNet R101, Cityscapes", "hszhao/semseg", "MIT"), 19, (90, 90), (713, 713)),
    (
        "segformer-b0",
        Model("SegFormer-B0, ADE20K", "NVlabs/SegFormer", "NVIDIA Source Code License"),
        150,
        (128, 128),
        (512, 512),
    ),
    (
        "segformer-b5",
        Model("SegFormer-B5, Cityscapes", "NVlabs/SegFormer", "NVIDIA Source Code License"),
        19,
        (256, 256),
        (1024, 1024),
    ),
    ("bisenetv2", Model("BiSeNetV2", "CoinCheung/BiSeNet", "MIT"), 19, (64, 128), (512, 1024)),
    ("coco-stuff", Model("DeepLabV2, COCO-Stuff", "kazuto1011/deeplab-pytorch", "MIT"), 182, (41, 41), (321, 321)),
    ("u2net", Model("U2-Net", "xuebinqin/U-2-Net", "Apache-2.0"), 2, (160, 160), (320, 320)),
    ("lraspp", Model("LR-ASPP", "torchvision lraspp_mobilenet_v3_large", "BSD-3-Clause"), 21, (33, 33), (257, 257)),
    ("enet", Model("ENet, CamVid", "arXiv:1606.02147", "none stated"), 12, (90, 120), (360, 480)),
    ("zoedepth", Model("ZoeDepth", "isl-org/ZoeDepth", "MIT"), 64, (192, 256), (384, 512)),
)
"""Classes, the size of the logits, and of the image."""
VOLUMES: Final[tuple[tuple[str, Model, int, Sizes], ...]] = (
    (
        "brats",
        Model("SegResNet, brain tumours", "Project-MONAI/model-zoo brats_mri_segmentation", "Apache-2.0"),
        3,
        (112, 112, 72),
    ),
    (
        "btcv",
        Model("Swin UNETR, organs", "Project-MONAI/model-zoo swin_unetr_btcv_segmentation", "Apache-2.0"),
        14,
        (96, 96, 96),
    ),
    ("totalsegmentator", Model("TotalSegmentator", "wasserth/TotalSegmentator", "Apache-2.0"), 25, (128, 128, 128)),
    (
        "spleen",
        Model("3D U-Net, spleen", "Project-MONAI/model-zoo spleen_ct_segmentation", "Apache-2.0"),
        2,
        (160, 160, 160),
    ),
)
FLOW: Final = (
    (
        "pwc-net",
        Model("PWC-Net", "NVlabs/PWC-Net", "CC-BY-NC-SA-4.0"),
        4,
        ((196, (7, 16)), (96, (28, 64)), (32, (112, 256))),
    ),
    ("liteflownet", Model("LiteFlowNet", "twhui/LiteFlowNet", "research only"), 3, ((192, (12, 16)), (64, (48, 64)))),
    ("flownet-c", Model("FlowNetC", "NVIDIA/flownet2-pytorch", "Apache-2.0"), 10, ((256, (48, 64)),)),
    ("vcn", Model("VCN", "gengshan-y/VCN", "MIT"), 6, ((128, (24, 40)), (32, (96, 160)))),
)
"""How far they look, and the channels and sizes of their pyramids."""
RESPONSES: Final = (
    ("alexnet-2012", Model("AlexNet", "BVLC/caffe bvlc_alexnet", "BSD-2-Clause"), ((96, (55, 55)), (256, (27, 27)))),
    (
        "googlenet-2014",
        Model("GoogLeNet", "BVLC/caffe bvlc_googlenet", "BSD-2-Clause"),
        ((64, (56, 56)), (192, (56, 56))),
    ),
    ("zfnet", Model("ZFNet", "arXiv:1311.2901", "none stated"), ((96, (110, 110)),)),
)
STYLES: Final = ((512, 512), (512, 256), (256, 128), (128, 64), (64, 32))
"""Inputs and filters of StyleGAN2's layers, from 4 x 4 to 1024 x 1024 pixels."""


def add(listing: Listing) -> None:
    """List all of them."""
    for key, model, classes, small, large in SEGMENTATION:
        _segmented(listing, key, model, classes, small, large, turn_of(key))
    for key, model, classes, size in VOLUMES:
        for turn, batch in enumerate((1, 4)):
            dtype = ("float16", "float32")[(turn_of(key) + turn) % 2]
            count = volume(batch, classes, *size)
            about = f"sums of the Dice loss of {classes} classes, {by(size)}, {images(batch, 'volume')}"
            name = f"c{classes}-{short(size)}-b{batch}-{dtype}"
            listing.add(
                "dice_sums",
                key,
                model,
                vision_train.dice_sums,
                name,
                about,
                elements=(2 * count,),
                flops=4 * count,
                batch=batch,
                classes=classes,
                size=size,
                dtype=dtype,
            )
    for key, model, reach, levels in FLOW:
        for level, (channels, size) in enumerate(levels):
            _flow(listing, key, model, reach, channels, size, turn_of(key) + level)
    _responses(listing)
    stylegan = Model("StyleGAN2", "NVlabs/stylegan2-ada-pytorch", "NVIDIA Source Code License")
    for inputs, outputs in STYLES:
        for turn, batch in enumerate((1, 8, 32)):
            for kernel in (3, 1):
                dtype = ("float16", "float32")[(inputs // outputs + turn + kernel) % 2]
                filters = outputs if kernel == 3 else 3  # to colours
                count = volume(batch, inputs, filters, kernel, kernel)
                listing.add(
                    "modulated_weight",
                    "stylegan2",
                    stylegan,
                    vision_train.modulated_weight,
                    f"{inputs}-{filters}-k{kernel}-b{batch}-{dtype}",
                    f"weights of {kernel} x {kernel} filters from {inputs} to {filters} channels for "
                    f"{images(batch, 'style')}",
                    elements=(count,),
                    flops=2 * count,
                    batch=batch,
                    inputs=inputs,
                    outputs=filters,
                    kernel=kernel,
                    dtype=dtype,
                )


def _segmented(listing: Listing, key: str, model: Model, classes: int, small: Sizes, large: Sizes, number: int) -> None:
    for turn, batch in enumerate(BATCHES):
        dtype = ("float16", "float32")[(number + turn) % 2]
        whole, part = volume(batch, classes, *large), volume(batch, classes, *small)
        listing.add(
            "resize_argmax",
            key,
            model,
            vision_resize.resize_argmax,
            f"c{classes}-{short(small)}-{short(large)}-b{batch}-{dtype}",
            f"best of {classes} classes at {by(large)} pixels from logits at {by(small)}, {images(batch)}",
            elements=(part, volume(batch, *large)),
            flops=10 * whole,
            batch=batch,
            classes=classes,
            size=small,
            result=large,
            dtype=dtype,
        )
        for size, count in ((large, whole), (small, part)):
            name = f"c{classes}-{short(size)}-b{batch}-{dtype}"
            about = f"{classes} classes at {by(size)} pixels, {images(batch)}"
            listing.add(
                "pixel_cross_entropy",
                key,
                model,
                vision_train.pixel_cross_entropy,
                name,
                f"cross entropy of {about}",
                elements=(count, 2 * count // classes),
                flops=4 * count,
                batch=batch,
                classes=classes,
                size=size,
                dtype=dtype,
            )
            other = "float32" if dtype == "float16" else "float16"
            listing.add(
                "pixel_softmax",
                key,
                model,
                vision.pixel_softmax,
                f"c{classes}-{short(size)}-b{batch}-{other}",
                f"probabilities of {about}",
                elements=(2 * count,),
                flops=4 * count,
                batch=batch,
                classes=classes,
                size=size,
                dtype=other,
            )


def _flow(listing: Listing, key: str, model: Model, reach: int, channels: int, size: Sizes, number: int) -> None:
    for turn, batch in enumerate((1, 8)):
        dtype, side = ("float16", "float32")[(number + turn) % 2], 2 * reach + 1
        result = volume(batch, side**2, *size)
        listing.add(
            "correlation",
            key,
            model,
            vision_resize.correlation,
            f"c{channels}-{short(size)}-r{reach}-b{batch}-{dtype}",
            f"cost volume of {channels} channels, {reach} pixels each way, {by(size)}, {images(batch, 'pair')}",
            elements=(2 * volume(batch, channels, *size), result),
            flops=2 * result * channels,
            batch=batch,
            channels=channels,
            size=size,
            reach=reach,
            dtype=dtype,
        )
        pixels = volume(batch, channels, *size)
        if pixels <= ELEMENTWISE:
            listing.add(
                "warp",
                key,
                model,
                vision_resize.grid_sample,
                f"c{channels}-{short(size)}-b{batch}-{dtype}",
                f"{channels} channels warped by a flow, {by(size)}, {images(batch, 'pair')}",
                elements=(2 * pixels,),
                flops=20 * pixels,
                batch=batch,
                channels=channels,
                size=size,
                result=size,
                dtype=dtype,
            )


def _responses(listing: Listing) -> None:
    for key, model, layers in RESPONSES:
        for place, (channels, size) in enumerate(layers):
            for turn, batch in enumerate((1, 8, 64)):
                dtype = ("float32", "float16")[(turn_of(key) + place + turn) % 2]
                count = volume(batch, channels, *size)
                listing.add(
                    "local_response_norm",
                    key,
                    model,
                    vision.local_response_norm,
                    f"c{channels}-{short(size)}-b{batch}-{dtype}",
                    f"normalisation across 5 of {channels} channels, {by(size)}, {images(batch)}",
                    elements=(2 * count,),
                    flops=10 * count,
                    batch=batch,
                    channels=channels,
                    size=size,
                    dtype=dtype,
                )
