"""Training: gradients of linear layers, and low-rank adapters, also while they serve."""

from typing import Final

from littledragon.compiler.zoo.grids.gemm_layers import Layer, dtype_of, layers
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner
from littledragon.compiler.zoo.models.language import DECODERS, MIXTURES, Decoder

TOKENS: Final = (2048, 8192)
"""Tokens of a micro-batch: one short sequence, one long one or four short ones."""
TRAINED: Final = ("qkv", "o", "gate_up", "up", "down")
RANKS: Final = (16, 64)
"""Ranks of adapters: PEFT's examples, and QLoRA's."""
ADAPTERS: Final = ((32, 1), (8, 64), (2, 1024))
"""Adapters of one step, and tokens of each: decoding, and prompts."""
ADAPTED: Final = ("q", "kv", "o", "gate", "up", "down")


def list_all(listing: Listing) -> None:
    """Gradients, then adapters. A layer that another model has too is not looked at twice: there are many."""
    known: set[tuple[int, int, str]] = set()
    for model in (*DECODERS, *MIXTURES):
        for layer in layers(model):
            same = (layer.n, layer.k, dtype_of(model))
            if layer.kind in TRAINED and same not in known:
                _gradients(listing, model, layer)
                known.add(same)
    known.clear()
    for model in DECODERS:
        for layer in layers(model):
            same = (layer.n, layer.k, dtype_of(model))
            if layer.kind in ADAPTED and layer.shards == 1 and same not in known:
                _adapters(listing, model, layer)
                known.add(same)


def _gradients(listing: Listing, model: Decoder, layer: Layer) -> None:
    """dX = dY·W, and dW = dYᵀ·X, added to the float32 gradient of the micro-batches before, as Megatron does."""
    owner, dtype = Owner(model, model.key), dtype_of(model)
    for m in TOKENS:
        name, what = f"{layer.name}-m{m}", f"gradient of the {layer.words}, {m} tokens"
        listing.linear(
            *("input_gradient", owner, name, f"input {what}", m, layer.k, layer.n),
            dtype=dtype,
            stored="kn",
        )
        listing.contraction(
            *("weight_gradient", owner, name, f"weight {what}"),
            *("mn,mk->nk", {"m": m, "n": layer.n, "k": layer.k}),
            dtype=dtype,
            out="float32",
            joined="nk",
        )


def _adapters(listing: Listing, model: Decoder, layer: Layer) -> None:
    """X·Aᵀ of every adapter, and what is added to the layer's output: Y + (X·Aᵀ)·Bᵀ·scale."""
    owner, dtype = Owner(model, model.key), dtype_of(model)
    for rank in RANKS:
        for adapters, rows in ADAPTERS:
            name = f"{layer.name}-r{rank}-a{adapters}-m{rows}"
            about = f"{adapters} adapters of rank {rank} of the {layer.words}, {rows} tokens each"
            extents = {"b": adapters, "m": rows, "r": rank, "k": layer.k, "n": layer.n}
            listing.contraction("lora_shrink", owner, name, about, "bmk,brk->bmr", extents, dtype=dtype)
            listing.contraction(
                *("lora_expand", owner, name, about, "bmr,bnr->bmn", extents),
                dtype=dtype,
                joined="bmn",
                factor=2.0,
            )
