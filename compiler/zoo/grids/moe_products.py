"""Products of the published mixtures' experts, of the part that one device holds."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from littledragon.compiler.zoo import moe, moe_products, moe_training
from littledragon.compiler.zoo.block import Case
from littledragon.compiler.zoo.grids.moe_axes import BYTES, HALF, SHARES, Shard, case, shards, tokens_of, worth
from littledragon.compiler.zoo.grids.moe_moves import FP8, FP8_MODELS
from littledragon.compiler.zoo.models.language import Mixture

TURNED = ("gpt-oss-20b", "gpt-oss-120b", "llama-4-scout", "llama-4-maverick", "dbrx")
"""Their checkpoints hold an expert's weights as [in, out]."""
SMALL = (
    "olmoe-1b-7b",
    "granite-3.0-1b-a400m",
    "granite-3.0-3b-a800m",
    "qwen1.5-moe-a2.7b",
    "deepseek-moe-16b",
    "qwen3-30b-a3b",
)
"""Small enough that people run them in float32 on CPUs."""
FP8_BLOCKS = ("deepseek-v3", "kimi-k2", "qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "ernie-4.5-300b-a47b")
"""Published in fp8 with a scale for each square of 128 by 128 weights."""
TRAINED_SHARES = (128, 512)
"""Rows of an expert in a training step."""
TILES = ((8, 16), (512, 64), (8192, 128))
"""Tokens, and rows of a tile, as vLLM sets them by the number of tokens."""


def _equal(model: Mixture, dtype: str, rows: tuple[int, ...], most: int = 9) -> Iterator[tuple[Shard, int, str, str]]:
    """Shards of a model with each number of rows of their experts, and what that is called."""
    for shard in list(shards(model, dtype))[:most]:
        for count in rows:
            yield shard, count, f"{shard.name}-c{count}", f"{shard.about}, {count} rows each"


def _fits(experts: int, rows: int, n: int, k: int, weight: str, row: str = "bfloat16", extra: int = 0) -> bool:
    """Whether the product [rows, k]·[n, k]ᵀ of each expert is within what is tuned."""
    size = experts * (n * k * BYTES[weight] + rows * (k + n + extra) * BYTES[row])
    return worth(size, 2.2 * experts * rows * n * k)


def _gate_up(model: Mixture) -> Iterator[Case]:
    turned = model.key in TURNED
    for shard, rows, name, about in _equal(model, "bfloat16", SHARES) if model.gated else ():
        if _fits(shard.experts, rows, 2 * shard.inner, model.hidden, "bfloat16"):
            shape = {"experts": shard.experts, "rows": rows, "hidden": model.hidden, "inner": shard.inner}
            for dtype in HALF[1:] if model.key.startswith("gpt-oss") else HALF:
                words = f"gate and up projection of {about}"
                yield case(name, words, **shape, bias=model.bias == "all", turned=turned, dtype=dtype)


def _up(model: Mixture) -> Iterator[Case]:
    """The up projection by itself: with the gate's product there already, or in a network without a gate."""
    kinds = ("float32", "bfloat16") if not model.gated else HALF
    for dtype in kinds if model.bias != "all" or not model.gated else ():
        for shard, rows, name, about in _equal(model, dtype, SHARES if not model.gated else SHARES[1::2]):
            if _fits(shard.experts, rows, shard.inner, model.hidden, dtype, dtype, shard.inner):
                shape = {"experts": shard.experts, "rows": rows, "hidden": model.hidden, "inner": shard.inner}
                bias = model.bias == "all"
                words = f"up projection and {model.activation} of {about}"
                how = {"activation": model.activation, "gated": model.gated, "bias": bias}
                yield case(name, words, **shape, **how, dtype=dtype)


def _down(model: Mixture) -> Iterator[Case]:
    turned = model.key in TURNED
    for dtype in HALF if model.gated else ("float32", "bfloat16"):
        for shard, rows, name, about in _equal(model, dtype, SHARES):
            if _fits(shard.experts, rows, model.hidden, shard.inner, dtype, dtype):
                shape = {"experts": shard.experts, "rows": rows, "hidden": model.hidden, "inner": shard.inner}
                words = f"down projection of {about}, weighted"
                yield case(name, words, **shape, bias=model.bias == "all", turned=turned, dtype=dtype)


def _both(model: Mixture, shard: Shard) -> Iterator[tuple[str, str, int, int]]:
    """The gate and up projection, and the down projection: name, words, columns out and in."""
    wide = shard.inner * (2 if model.gated else 1)
    yield "up", "gate and up projection" if model.gated else "up projection", wide, model.hidden
    yield "down", "down projection", model.hidden, shard.inner


def _quantized(model: Mixture, weight: str, words: str, rows: tuple[int, ...], **how: Any) -> Iterator[Case]:
    """Products with quantised weights of one type."""
    unit = how.get("group", 8)
    for shard, count, name, about in _equal(model, weight, rows):
        for part, which, n, k in _both(model, shard):
            if k % unit == 0 and _fits(shard.experts, count, n, k, weight):
                shape = {"experts": shard.experts, "rows": count, "n": n, "k": k}
                yield case(f"{part}-{name}", f"{which} of {about}, {words}", **shape, **how)


def _w8a8(model: Mixture) -> Iterator[Case]:
    if model.gated:
        yield from _quantized(model, "int8", "int8", SHARES[1::2], dtype="int8")
    if model.key in FP8_MODELS:
        yield from _quantized(model, FP8, "fp8", SHARES, dtype=FP8)


def _fp8_blocks(model: Mixture) -> Iterator[Case]:
    for one in _quantized(model, FP8, "fp8 with scales by block", SHARES, group=128) if model.key in FP8_BLOCKS else ():
        experts, rows, n, k = (one.shape[axis] for axis in ("experts", "rows", "n", "k"))
        if worth(0, 4.2 * experts * rows * n * k):
            yield one


def _w4a16(model: Mixture) -> Iterator[Case]:
    if model.key.startswith("gpt-oss"):
        yield from _quantized(model, "int4", "4-bit floats", SHARES, group=32, dtype="bfloat16", kind="fp4")
    elif model.gated:
        yield from _quantized(model, "int4", "4-bit integers", (8, 128), group=128, dtype="float16", kind="int4")


def _rows(model: Mixture) -> Iterator[Case]:
    """Decoding: few rows, each with its expert."""
    for shard in list(shards(model, "bfloat16"))[:3]:
        for tokens in (1, 16):
            rows = tokens * model.top
            for part, which, n, k in _both(model, shard):
                if rows > 1 and worth(shard.experts * n * k * 2 + rows * (n + k) * 2, 2.2 * rows * n * k):
                    words = f"{which} of {shard.about}, {model.top} rows of each of {tokens_of(tokens)}"
                    yield case(
                        f"{part}-{shard.name}-m{tokens}",
                        words,
                        rows=rows,
                        experts=shard.experts,
                        n=n,
                        k=k,
                        dtype="bfloat16",
                    )


def _tiles(model: Mixture, dtype: str = "bfloat16") -> Iterator[Case]:
    """Rows in tiles of one expert each; of all experts' rows this device has its even part. In half precision the
    first product fetches its rows itself."""
    for shard in list(shards(model, "bfloat16", 60e6))[:3]:
        for tokens, tile in TILES:
            slots = max(1, tokens * model.top * shard.experts // model.experts)
            tiles = slots // tile + min(shard.experts, slots)
            for part, which, n, k in _both(model, shard):
                fetched = dtype == "bfloat16" and part == "up"
                moved = (tokens if fetched else tiles * tile) * k * BYTES[dtype] + tiles * tile * n * 2
                if worth(shard.experts * n * k * BYTES[dtype] + moved, 2.2 * tiles * tile * n * k):
                    words = f"{which} of {shard.about} on {tiles} tiles of {tile} rows, {tokens_of(tokens)}"
                    shape = {"tiles": tiles, "tile": tile, "experts": shard.experts, "n": n, "k": k, "dtype": dtype}
                    yield case(
                        f"{part}-{shard.name}-m{tokens}", words, **shape, **({"tokens": tokens} if fetched else {})
                    )


def _tiles_w8a8(model: Mixture) -> Iterator[Case]:
    return _tiles(model, FP8) if model.key in FP8_MODELS else iter(())


def _grad(model: Mixture, *, of: str) -> Iterator[Case]:
    for shard, rows, name, about in _equal(model, "bfloat16", TRAINED_SHARES, 3):
        for part, which, n, k in _both(model, shard):
            size = "float32" if of == "weights" else "bfloat16"
            spare = shard.experts * n * k * BYTES[size] + shard.experts * rows * (n + k) * 2
            if worth(spare, 2.2 * shard.experts * rows * n * k):
                words = f"gradients of the {of} of the {which} of {about}"
                yield case(f"{part}-{name}", words, experts=shard.experts, rows=rows, n=n, k=k, dtype="bfloat16")


def _mlp(model: Mixture) -> Iterator[Case]:
    """The whole network in float32, of models that people run on CPUs."""
    for shard, rows, name, about in _equal(model, "float32", (8, 128), 3) if model.key in SMALL else ():
        if _fits(shard.experts, rows, shard.inner, model.hidden, "float32", "float32", shard.inner):
            shape = {"experts": shard.experts, "rows": rows, "hidden": model.hidden, "inner": shard.inner}
            yield case(name, f"gated networks of {about}", **shape)


OPERATORS = (
    ("expert_gate_up", moe_products.expert_gate_up, _gate_up),
    ("expert_up", moe_products.expert_up, _up),
    ("expert_down", moe_products.expert_down, _down),
    ("expert_w8a8", moe_products.expert_w8a8, _w8a8),
    ("expert_fp8_blocks", moe_products.expert_fp8_blocks, _fp8_blocks),
    ("expert_w4a16", moe_products.expert_w4a16, _w4a16),
    ("grouped_gemm", moe.grouped_gemm, _rows),
    ("tile_gemm", moe.tile_gemm, _tiles),
    ("tile_w8a8", moe_products.tile_w8a8, _tiles_w8a8),
    ("expert_mlp", moe.expert_mlp, _mlp),
    ("expert_weight_grad", moe_training.expert_weight_grad, partial(_grad, of="weights")),
    ("expert_input_grad", moe_training.expert_input_grad, partial(_grad, of="inputs")),
)
