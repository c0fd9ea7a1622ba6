"""Training: gradients of linear layers, and low-rank adapters, also while they serve."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from littledragon.compiler.zoo import gemm, gemm_contractions
from littledragon.compiler.zoo.block import Block, Case
from littledragon.compiler.zoo.grids.gemm_layers import Layer, dtype_of, layers
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of
from littledragon.compiler.zoo.models.language import DECODERS, MIXTURES, Decoder

TOKENS: Final = (2048, 8192)
"""Tokens of a micro-batch: one short sequence, one long one or four short ones."""
RANKS: Final = (16, 64)
"""Ranks of adapters: PEFT's examples, and QLoRA's."""
ADAPTERS: Final = ((32, 1), (8, 64), (2, 1024))
"""Adapters of one step, and tokens of each: decoding, and prompts."""


def blocks(listing: Listing) -> Iterator[Block]:
    """Gradients, then adapters."""
    for model in (*DECODERS, *MIXTURES):
        trained = [layer for layer in layers(model) if layer.kind in ("qkv", "o", "gate_up", "up", "down")]
        yield from blocks_of(
            "weight_gradient",
            model,
            model.key,
            gemm_contractions.contraction,
            _weight_gradients(listing, trained, dtype_of(model)),
        )
        yield from blocks_of(
            "input_gradient", model, model.key, gemm.linear, _input_gradients(listing, trained, dtype_of(model))
        )
    for model in (*DECODERS, *MIXTURES):
        whole = [layer for layer in layers(model) if layer.shards == 1 and layer.kind in _ADAPTED]
        for operator, equation in _ADAPTER_PARTS.items():
            yield from blocks_of(
                operator,
                model,
                model.key,
                gemm_contractions.contraction,
                _adapters(listing, model, whole, equation),
            )


def _weight_gradients(listing: Listing, trained: Sequence[Layer], dtype: str) -> Iterator[Case]:
    """dW = dYᵀ·X, added to the float32 gradient of the micro-batches before, as Megatron does."""
    for layer in trained:
        for m in TOKENS:
            yield from listing.contraction(
                f"{layer.name}-m{m}",
                f"weight gradient of the {layer.words}, {m} tokens",
                "mn,mk->nk",
                {"m": m, "n": layer.n, "k": layer.k},
                dtype=dtype,
                out="float32",
                joined="nk",
            )


def _input_gradients(listing: Listing, trained: Sequence[Layer], dtype: str) -> Iterator[Case]:
    """dX = dY·W."""
    for layer in trained:
        for m in TOKENS:
            yield from listing.linear(
                f"{layer.name}-m{m}",
                f"input gradient of the {layer.words}, {m} tokens",
                m,
                layer.k,
                layer.n,
                dtype=dtype,
                stored="kn",
            )


_ADAPTED: Final = ("q", "kv", "o", "gate", "up", "down")
_ADAPTER_PARTS: Final = {"lora_shrink": "bmk,brk->bmr", "lora_expand": "bmr,bnr->bmn"}


def _adapters(listing: Listing, model: Decoder, whole: Sequence[Layer], equation: str) -> Iterator[Case]:
    """X·Aᵀ of every adapter, or its output added to the layer's: Y + (X·Aᵀ)·Bᵀ·scale."""
    shrink = equation.endswith("r")
    for layer in whole:
        for rank in RANKS:
            for adapters, rows in ADAPTERS:
                extents = {"b": adapters, "m": rows, "r": rank, "k" if shrink else "n": layer.k if shrink else layer.n}
                options: dict[str, Any] = {} if shrink else {"joined": "bmn", "factor": 2.0}
                yield from listing.contraction(
                    f"{layer.name}-r{rank}-a{adapters}-m{rows}",
                    f"rank-{rank} adapters of the {layer.words}, {adapters} of them with {rows} tokens each",
                    equation,
                    extents,
                    dtype=dtype_of(model),
                    **options,
                )
