"""Linear layers of encoders of text, speech and images, and of diffusion transformers, over sequences of their length."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from littledragon.compiler.zoo import gemm, gemm_contractions
from littledragon.compiler.zoo.block import Block, Case
from littledragon.compiler.zoo.gemm import Activation, Join
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of
from littledragon.compiler.zoo.models.language import ENCODERS, Encoder

BATCHES: Final = (1, 8, 32)
"""Inputs of one step, served alone or together, or trained on."""
DENOISED: Final = (1, 2, 8)
"""Images that a diffusion transformer denoises at once: one, one with and without its text, four of these."""
SHORT: Final = 128
"""Tokens of a short text, beside the model's longest."""
LONGEST: Final = 2048
"""Long-context encoders are run on less than their longest text."""
DECODING: Final = (8, 40)
"""Rows of the decoder of an encoder-decoder: sequences, and five beams of each."""

DIFFUSION: Final = ("dit", "pixart", "sd3", "flux")
"""Their layers' outputs are gated by what was computed from time and text."""
UNBIASED: Final = ("t5", "flan-t5", "modernbert")
GATED: Final = ("flan-t5", "modernbert")
LAYER_SCALE: Final = "dinov2"
TANH: Final = ("albert", "siglip", "flan-t5", *DIFFUSION)
"""GELU in its tanh form."""
QUICK: Final = ("clip-b32", "clip-l14")
"""OpenAI's CLIP: x·sigmoid(1.702·x)."""
DECODERS: Final = ("t5", "flan-t5", "bart", "whisper")
"""Encoder-decoders, whose decoders end in the vocabulary."""
POOLED: Final = ("bert", "albert", "minilm", "roberta")
"""The first token's vector goes through one more layer with tanh."""


def blocks(listing: Listing) -> Iterator[Block]:
    """Forward products, the heads, then gradients."""
    for model in ENCODERS:
        yield from _forward(listing, model)
        yield from _heads(listing, model)
    for model in ENCODERS:
        yield from _gradients(listing, model)


def sequences(model: Encoder) -> list[tuple[int, int]]:
    """(batch, tokens) of one step."""
    batches = DENOISED if model.key.startswith(DIFFUSION) else BATCHES
    lengths = [min(model.tokens, LONGEST), *[SHORT] * bool(model.vocab and model.tokens > 2 * SHORT)]
    return [(batch, length) for length in lengths for batch in batches]


def layers(model: Encoder) -> list[tuple[str, str, int, int]]:
    """(name, words, n, k) of the four products of a layer."""
    width = model.heads * model.head
    up = 2 * model.inner if model.key.startswith((*GATED, LAYER_SCALE)) else model.inner
    return [
        ("qkv", "query, key and value projection", 3 * width, model.hidden),
        ("o", "output projection", model.hidden, width),
        ("up", "first feed-forward layer", up, model.hidden),
        ("down", "second feed-forward layer", model.hidden, model.inner),
    ]


def activation_of(model: Encoder) -> Activation:
    """The activation of the feed-forward network, in its exact form."""
    if model.key.startswith(QUICK):
        return "quick_gelu"
    return "gelu_tanh" if model.key.startswith(TANH) else model.activation


def _forward(listing: Listing, model: Encoder) -> Iterator[Block]:
    bias = not model.key.startswith(UNBIASED)
    join: Join = "layer_scale" if model.key.startswith(LAYER_SCALE) else "add"
    join = "gate" if model.key.startswith(DIFFUSION) else join
    residual = {"add": "linear_residual", "layer_scale": "layer_scale_residual", "gate": "gated_residual"}[join]
    activation = activation_of(model)
    by_name = {layer[0]: layer for layer in layers(model)}
    yield from blocks_of("fused_qkv", model, model.key, gemm.linear, _cases(listing, model, [by_name["qkv"]], bias=bias))
    both = [by_name["o"], by_name["down"]]
    yield from blocks_of(residual, model, model.key, gemm.linear, _cases(listing, model, both, bias=bias, join=join))
    if model.key.startswith((*GATED, LAYER_SCALE)):
        _, words, n, k = by_name["up"]
        gate = [("gate", f"{words}, its gate", n // 2, k)]
        form: Activation = "silu" if model.key.startswith(LAYER_SCALE) else activation
        cases = _cases(listing, model, gate, activation=form, join="times", bias=bias)
        yield from blocks_of("gate_times_up", model, model.key, gemm.linear, cases)
        return
    cases = _cases(listing, model, [by_name["up"]], bias=bias, activation=activation)
    operator = f"linear_bias_{activation}" if bias else f"linear_{activation}"
    yield from blocks_of(operator, model, model.key, gemm.linear, cases)


def _cases(
    listing: Listing, model: Encoder, chosen: Sequence[tuple[str, str, int, int]], **options: Any
) -> Iterator[Case]:
    for name, words, n, k in chosen:
        for batch, length in sequences(model):
            yield from listing.linear(
                f"{name}-b{batch}-s{length}", f"{words}, {_many(batch, length)}", length, n, k, batch=batch, **options
            )


def _many(batch: int, length: int) -> str:
    return f"{batch} inputs of {length} tokens" if batch > 1 else f"one input of {length} tokens"


def _heads(listing: Listing, model: Encoder) -> Iterator[Block]:
    """Vocabularies of encoder-decoders, poolers of encoders, and what a diffusion transformer modulates with."""

    def linear(name: str, words: str, n: int, **options: Any) -> Iterator[Case]:
        for m in BATCHES[1:]:
            yield from listing.linear(f"{name}-b{m}", f"{words}, {m} inputs", m, n, model.hidden, bias=True, **options)

    if model.key.startswith(POOLED):
        cases = linear("pooler", "pooler", model.hidden, activation="tanh")
        yield from blocks_of("linear_bias_tanh", model, model.key, gemm.linear, cases)
    if model.key.startswith(DIFFUSION):
        cases = linear("modulation", "shifts, scales and gates of a layer from the time embedding", 6 * model.hidden)
        yield from blocks_of("modulation", model, model.key, gemm.linear, cases)
    if model.key.startswith(DECODERS):
        yield from blocks_of("logits", model, model.key, gemm.logits, _logits(listing, model))


def _logits(listing: Listing, model: Encoder) -> Iterator[Case]:
    n, k = model.vocab, model.hidden
    for m in DECODING:
        for dtype in ("float16", "bfloat16"):
            shape = {"m": m, "n": n, "k": k, "dtype": dtype}
            size = 2 * (m * k + n * k + 2 * m * n)
            about = f"vocabulary head, {m} rows"
            yield from listing.case(gemm.logits, f"head-m{m}-{dtype}", about, ("nk", m, n, k), size, shape)


def _gradients(listing: Listing, model: Encoder) -> Iterator[Block]:
    """Of the same products, over sequences: trained in float16 with float32 accumulation."""
    weights: list[Case] = []
    inputs: list[Case] = []
    for name, words, n, k in layers(model):
        for batch, length in sequences(model):
            if batch == 1:
                continue
            case, what = f"{name}-b{batch}-s{length}", f"of the {words}, {_many(batch, length)}"
            weights += listing.contraction(
                case, f"weight gradient {what}", "bmn,bmk->nk", {"b": batch, "m": length, "n": n, "k": k}
            )
            inputs += listing.linear(case, f"input gradient {what}", length, k, n, batch=batch, stored="kn")
    contraction = gemm_contractions.contraction
    yield from blocks_of("weight_gradient_of_sequences", model, model.key, contraction, weights)
    yield from blocks_of("input_gradient", model, model.key, gemm.linear, inputs)
