"""Matrix products of published models: which layers, on how many tokens, in how many shards, in which types.

Decoders while they serve are here; training, encoders, narrow types, other layouts and models that are no
transformers have modules of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from littledragon.compiler.zoo import gemm
from littledragon.compiler.zoo.block import Block, Case
from littledragon.compiler.zoo.grids import (
    gemm_encoders,
    gemm_layouts,
    gemm_narrow,
    gemm_others,
    gemm_training,
)
from littledragon.compiler.zoo.grids.gemm_layers import Kind, Layer, activation_of, dtype_of, latent_layers, layers
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of, tokens
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
    "grok-1": {"factor": 0.5774, "cap": 30.0},
    "command-r-plus": {"factor": 0.8333},
    "command-r": {"factor": 0.0625},
    "granite-3.0-2b": {"factor": 0.125},
    "granite-3.0-8b": {"factor": 0.0625},
    "minicpm-2b": {"factor": 0.1111},
}
"""Logit scales and soft caps, by the start of a model's key."""


def blocks() -> Iterator[Block]:
    """All blocks of the family; the order is that in which equal shapes are given to models."""
    listing = Listing()
    yield from gemm_others.blocks(listing)
    yield from gemm_encoders.blocks(listing)
    yield from gemm_layouts.blocks(listing)
    for latent in LATENTS:
        yield from _latent(listing, latent)
    for model in (*DECODERS, *MIXTURES):
        yield from _decoder(listing, model)
    yield from gemm_training.blocks(listing)
    yield from gemm_narrow.blocks(listing)


def _decoder(listing: Listing, model: Decoder) -> Iterator[Block]:
    """The products of one decoder while it serves."""
    dtype, activation = dtype_of(model), activation_of(model)
    biased, stored = model.bias == "all", "kn" if model.key.startswith("gpt2") else "nk"
    everything = list(layers(model))

    def of(*kinds: Kind) -> list[Layer]:
        return [layer for layer in everything if layer.kind in kinds]

    def cases(chosen: Sequence[Layer], rows: Sequence[int], **options: Any) -> Iterator[Case]:
        return linear_cases(listing, chosen, rows, stored=stored, **options)

    # With shards, biases and residuals join after the sum over the shards, so there the product stands alone.
    whole = [layer for layer in of("o", "down") if layer.shards == 1]
    scale = next((factor for start, factor in SCALED.items() if model.key.startswith(start)), 1.0)
    side_by_side = model.key.startswith(PARALLEL)
    plain = {"dtype": dtype, "bias": biased, "factor": scale}
    found: list[tuple[str, Iterable[Case]]] = [
        ("fused_qkv", cases(of("qkv"), FEWER + PROMPT, dtype=dtype, bias=model.bias != "none")),
        (
            "linear_residual",
            cases([] if side_by_side else whole, DECODING + PROMPT, **plain, join="add"),
        ),
        (
            "parallel_residual",
            cases([x for x in whole if side_by_side and x.kind == "down"], DECODING + PROMPT, **plain, join="add_two"),
        ),
        (f"linear_{activation}", cases(of("up"), DECODING + PROMPT, dtype=dtype, bias=biased, activation=activation)),
        # The gate's product takes the up projection's output, where the two are not one product.
        ("gate_times_up", cases(of("gate"), (32, *PROMPT), dtype="float16", activation=activation, join="times")),
        ("nt_matmul", cases(of("o", "down"), FEWER + PROMPT, dtype="float16")),
        ("nt_matmul-bf16", cases([x for x in of("q", "kv") if x.shards == 1], PROMPT, dtype="bfloat16")),
        ("decode_gemv", cases(of("qkv", "o", "gate_up", "up", "down", "head"), (1,), dtype="float16")),
        ("decode_gemv-bf16", cases([x for x in of("qkv", "o", "gate_up", "up", "down") if x.shards == 1], (1,), dtype="bfloat16")),
    ]
    for operator, some in found:
        name, _, suffix = operator.partition("-")
        yield from blocks_of(name, model, "-".join([model.key, suffix] if suffix else [model.key]), gemm.linear, some)
    yield from blocks_of("gate_up", model, model.key, gemm.gate_up, _gate_up(listing, model, of("gate_up")))
    yield from blocks_of("logits", model, model.key, gemm.logits, _logits(listing, model, of("head")))


def linear_cases(
    listing: Listing, chosen: Iterable[Layer], rows: Sequence[int], *, dtype: str, **options: Any
) -> Iterator[Case]:
    """Each layer on each number of rows."""
    for layer in chosen:
        for m in rows:
            name, about = f"{layer.name}-m{m}-{dtype}", f"{layer.words}, {tokens(m)}"
            yield from listing.linear(name, about, m, layer.n, layer.k, dtype=dtype, **options)


def _gate_up(listing: Listing, model: Decoder, chosen: Iterable[Layer]) -> Iterator[Case]:
    dtype = dtype_of(model)
    for layer in chosen:
        for m in FEWER + PROMPT:
            name, about = f"{layer.name}-m{m}-{dtype}", f"{layer.words}, {tokens(m)}"
            size = 2 * (m * layer.k + layer.n * layer.k + m * layer.n // 2)
            shape = {
                "m": m,
                "inner": layer.n // 2,
                "hidden": layer.k,
                "dtype": dtype,
                "activation": activation_of(model),
            }
            yield from listing.case(gemm.gate_up, name, about, ("nk", m, layer.n, layer.k), size, shape)


def _logits(listing: Listing, model: Decoder, chosen: Iterable[Layer]) -> Iterator[Case]:
    dtype = dtype_of(model)
    options = next((values for start, values in HEADS.items() if model.key.startswith(start)), {})
    for layer in chosen:
        for m in (*DECODING, 512):
            name, about = f"{layer.name}-m{m}-{dtype}", f"{layer.words}, {tokens(m)}"
            size = 2 * (m * layer.k + layer.n * layer.k + 2 * m * layer.n)
            shape = {"m": m, "n": layer.n, "k": layer.k, "dtype": dtype, **options}
            yield from listing.case(gemm.logits, name, about, ("nk", m, layer.n, layer.k), size, shape)


def _latent(listing: Listing, model: Latent) -> Iterator[Block]:
    cases = linear_cases(listing, latent_layers(model), (1, *DECODING, *PROMPT), dtype="bfloat16")
    yield from blocks_of("low_rank_projection", model, model.key, gemm.linear, cases)
