"""Attention inside windows and over neighbourhoods, stage by stage: each has half the side and twice the heads."""

from typing import Final, NamedTuple

from littledragon.compiler.zoo import vision_window
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.vision_listing import Listing, images, turn_of, volume

BATCHES: Final = (1, 8, 64)
"""One image at a time, a server's batch, a GPU's share of a training batch."""


class Windows(NamedTuple):
    """The first of so many stages: its width, heads and side in tokens, and the side of its windows."""

    key: str
    model: Model
    width: int
    heads: int
    window: int
    side: int
    stages: int = 4


def _swin(name: str) -> Model:
    return Model(name, "microsoft/Swin-Transformer", "MIT")


_SWINIR: Final = "JingyunLiang/SwinIR"
_MAXVIT: Final = "google-research/maxvit"
_SAM: Final = "facebookresearch/segment-anything"
WINDOWS: Final = (
    Windows("swin-t", _swin("Swin-T"), 96, 3, 7, 56),
    Windows("swin-l", _swin("Swin-L"), 192, 6, 7, 56),
    Windows("swin-b-384", _swin("Swin-B, 384 pixels"), 128, 4, 12, 96),
    Windows("swinv2-t", _swin("SwinV2-T, windows of 16"), 96, 3, 16, 64),
    Windows("swinv2-b", _swin("SwinV2-B, windows of 8"), 128, 4, 8, 64),
    Windows("swinv2-l-384", _swin("SwinV2-L, windows of 24"), 192, 6, 24, 96),
    Windows("swinir", Model("SwinIR", _SWINIR, "Apache-2.0"), 180, 6, 8, 128, 1),
    Windows("swinir-small", Model("SwinIR, lightweight", _SWINIR, "Apache-2.0"), 60, 6, 8, 256, 1),
    Windows("maxvit-t", Model("MaxViT-T", _MAXVIT, "Apache-2.0"), 64, 2, 7, 56),
    Windows("maxvit-l-512", Model("MaxViT-L, 512 pixels", _MAXVIT, "Apache-2.0"), 128, 4, 16, 128),
    Windows("uformer-b", Model("Uformer-B", "ZhendongWang6/Uformer", "MIT"), 32, 1, 8, 128),
    Windows("sam-b", Model("SAM ViT-B", _SAM, "Apache-2.0"), 768, 12, 14, 70, 1),  # 64 tokens a side, padded
    Windows("sam-h", Model("SAM ViT-H", _SAM, "Apache-2.0"), 1280, 16, 14, 70, 1),
)
_NAT: Final = "SHI-Labs/Neighborhood-Attention-Transformer"
NEIGHBOURHOOD: Final = 7
NEIGHBOURS: Final = (
    ("nat-mini", Model("NAT-Mini", _NAT, "MIT"), 2, (1, 1, 1, 1)),
    ("nat-base", Model("NAT-Base", _NAT, "MIT"), 4, (1, 1, 1, 1)),
    ("dinat-mini", Model("DiNAT-Mini", _NAT, "MIT"), 2, (8, 4, 2, 1)),
    ("dinat-base", Model("DiNAT-Base", _NAT, "MIT"), 4, (8, 4, 2, 1)),
    ("dinat-large-384", Model("DiNAT-Large, 384 pixels", _NAT, "MIT"), 6, (13, 6, 3, 1)),
)
"""Heads, 32 wide, of the first of four stages, and how far apart each stage's neighbours are."""


def add(listing: Listing) -> None:
    """List all of them."""
    for each in WINDOWS:
        for stage in range(each.stages):
            _windows(listing, each, stage, turn_of(each.key) + stage)
    for key, model, heads, dilations in NEIGHBOURS:
        side = 96 if "384" in key else 56
        for stage, dilation in enumerate(dilations):
            _neighbours(listing, key, model, (heads << stage, side >> stage, dilation), turn_of(key) + stage)


def _windows(listing: Listing, each: Windows, stage: int, number: int) -> None:
    heads, side, dim = each.heads << stage, each.side >> stage, each.width // each.heads
    window = min(each.window, side)
    count, tokens = (side // window) ** 2, window**2
    for turn, batch in enumerate(BATCHES):
        dtype = ("float16", "float32", "bfloat16")[(number + turn) % 3]
        shifted = count > 1 and (number + turn) % 2 == 1
        name = f"s{side}-w{window}-h{heads}-d{dim}-b{batch}-{dtype}"
        where = f"{count} windows of {window} x {window} tokens{', shifted' if shifted else ''}, {heads} heads"
        field, square = volume(batch, count, heads, tokens, dim), volume(batch, count, heads, tokens, tokens)
        halved = 1 if dtype == "float32" else 2  # scores are float32
        listing.add(
            "window_scores",
            each.key,
            each.model,
            vision_window.window_scores,
            name,
            f"attention scores in {where}, {images(batch)}",
            elements=(2 * field, halved * square),
            flops=2 * square * dim,
            batch=batch,
            windows=count,
            heads=heads,
            tokens=tokens,
            dim=dim,
            shifted=shifted,
            dtype=dtype,
        )
        listing.add(
            "window_context",
            each.key,
            each.model,
            vision_window.window_context,
            name,
            f"attention context of {where}, put back in the image, {images(batch)}",
            elements=(2 * field, square),
            flops=2 * square * dim,
            batch=batch,
            side=side,
            heads=heads,
            window=window,
            dim=dim,
            shifted=shifted,
            dtype=dtype,
        )


def _neighbours(listing: Listing, key: str, model: Model, stage: tuple[int, int, int], number: int) -> None:
    heads, side, dilation = stage
    dim, kernel = 32, min(NEIGHBOURHOOD, side)
    for turn, batch in enumerate(BATCHES):
        dtype = ("float16", "float32")[(number + turn) % 2]
        queries = volume(batch, heads, side, side)
        listing.add(
            "neighbour_scores",
            key,
            model,
            vision_window.neighbour_scores,
            f"s{side}-h{heads}-k{kernel}-r{dilation}-b{batch}-{dtype}",
            f"scores of each token with {kernel} x {kernel} neighbours, {dilation} apart, {heads} heads, "
            f"{side} x {side} tokens, {images(batch)}",
            elements=(2 * queries * dim, 2 * queries * kernel**2),
            flops=2 * queries * kernel**2 * dim,
            batch=batch,
            side=side,
            heads=heads,
            dim=dim,
            kernel=kernel,
            dilation=dilation,
            dtype=dtype,
        )
