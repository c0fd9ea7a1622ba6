"""Matrix products of published models: which layers, on how many tokens, in how many shards, in which types.

Decoders while they serve are here; training, encoders, narrow types, other layouts and models that are no
transformers have modules of their own.
"""

from collections.abc import Iterator
from typing import Any, Final

from littledragon.compiler.zoo import gemm
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids import gemm_encoders, gemm_layouts, gemm_narrow, gemm_others, gemm_training
from littledragon.compiler.zoo.grids.gemm_layers import (
    Kind,
    Layer,
    activation_of,
    dtype_of,
    latent_layers,
    layers,
    stored_of,
)
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner, tokens
from littledragon.compiler.zoo.models.language import DECODERS, LATENTS, MIXTURES, Decoder, Latent

DECODING: Final = (8, 32, 128)
"""Sequences of a decoding batch."""
FEWER: Final = (8, 128)
"""The same, of layers that come in more forms."""
PROMPT: Final = (512, 2048)
"""Tokens of prompts in one step of a serving engine."""

PARALLEL: Final = ("gpt-j", "gpt-neox", "pythia", "falcon", "phi-1.5", "phi-2", "command-r")
"""Attention and network side by side: both outputs join the residual at once."""
SCALED: Final = {"granite": 0.22, "minicpm-2b": 0.2214}
"""What a layer's output is multiplied with before it joins the residual (configuration files: residual_multiplier,
scale_depth / sqrt(layers))."""
HEADS: Final[dict[str, dict[str, float]]] = {
    "gemma-2-": {"cap": 30.0},
    "grok-1": {"factor": 0.5774},
    "command-r-plus": {"factor": 0.8333},
    "command-r": {"factor": 0.0625},
    "granite-3.0-2b": {"factor": 0.125},
    "granite-3.0-8b": {"factor": 0.0625},
    "granite-3.0-1b": {"factor": 0.1667},
    "granite-3.0-3b": {"factor": 0.1667},
    "minicpm-2b": {"factor": 0.1111},
}
"""Logit scales and soft caps, by the start of a model's key."""


def blocks() -> Iterator[Block]:
    """All blocks of the family. What comes first has the cells that others fill too."""
    listing = Listing()
    gemm_others.list_all(listing)
    gemm_encoders.list_all(listing)
    gemm_layouts.list_all(listing)
    for latent in LATENTS:
        _latent(listing, latent)
    for model in (*DECODERS, *MIXTURES):
        _decoder(listing, model)
    gemm_training.list_all(listing)
    gemm_narrow.list_all(listing)
    yield from listing.blocks()


def _latent(listing: Listing, model: Latent) -> None:
    for layer in latent_layers(model):
        for m in (1, *DECODING, *PROMPT):
            _product(listing, "low_rank_projection", model, layer, m, dtype="bfloat16")


def _decoder(listing: Listing, model: Decoder) -> None:
    """The products of one decoder while it serves."""
    dtype, activation = dtype_of(model), activation_of(model)
    everything = list(layers(model))

    def each(operator: str, kinds: tuple[Kind, ...], rows: tuple[int, ...], most: int = 8, **options: Any) -> None:
        for layer in everything:
            for m in rows if layer.kind in kinds and layer.shards <= most else ():
                _product(listing, operator, model, layer, m, stored=stored_of(model), **options)

    biased = model.bias == "all"
    each("fused_qkv", ("qkv",), FEWER + PROMPT, dtype=dtype, bias=model.bias != "none")
    # With shards, biases and residuals join after the sum over the shards: there, the product stands alone.
    scale = next((factor for start, factor in SCALED.items() if model.key.startswith(start)), 1.0)
    joined = {"dtype": dtype, "bias": biased, "factor": scale}
    if model.key.startswith(PARALLEL):
        each("parallel_residual", ("down",), DECODING + PROMPT, most=1, **joined, join="add_two")
    else:
        each("linear_residual", ("o", "down"), DECODING + PROMPT, most=1, **joined, join="add")
    up = f"linear_bias_{activation}" if biased else f"linear_{activation}"
    each(up, ("up",), DECODING + PROMPT, dtype=dtype, bias=biased, activation=activation)
    # The gate's product takes the up projection's output, where the two are not one product.
    each("gate_times_up", ("gate",), (32, *PROMPT), dtype="float16", activation=activation, join="times")
    matmul = "nt_matmul" if stored_of(model) == "nk" else "nn_matmul"
    each(matmul, ("o", "down"), FEWER + PROMPT, dtype="float16")
    each(matmul, ("q", "kv"), PROMPT, most=1, dtype="bfloat16")
    each("decode_gemv", ("qkv", "o", "gate_up", "up", "down", "head"), (1,), dtype="float16")
    each("decode_gemv", ("qkv", "o", "gate_up", "up", "down"), (1,), most=1, dtype="bfloat16")
    owner = Owner(model, model.key)
    head = next((values for start, values in HEADS.items() if model.key.startswith(start)), {})
    for layer in everything:
        n, k = layer.n, layer.k
        for m in FEWER + PROMPT if layer.kind == "gate_up" else ():
            # Products of two sums leave float16's range.
            shape = {"m": m, "inner": n // 2, "hidden": k, "dtype": "bfloat16", "activation": activation}
            size = 2 * (m * k + n * k + m * n // 2)
            about = f"{layer.words}, {tokens(m)}"
            name = f"{layer.name}-m{m}-bfloat16"
            listing.add("gate_up", owner, gemm.gate_up, name, about, ("nk", m, n, k), size, shape)
        for m in (*DECODING, 512) if layer.kind == "head" else ():
            name, about = f"{layer.name}-m{m}-{dtype}", f"{layer.words}, {tokens(m)}"
            listing.logits(owner, name, about, m, n, k, dtype=dtype, **head)


def _product(listing: Listing, operator: str, model: Decoder | Latent, layer: Layer, m: int, **options: Any) -> None:
    name, about = f"{layer.name}-m{m}-{options['dtype']}", f"{layer.words}, {tokens(m)}"
    listing.linear(operator, Owner(model, model.key), name, about, m, layer.n, layer.k, **options)
