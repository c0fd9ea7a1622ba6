"""Linear layers of encoders of text, speech and images, and of diffusion transformers, over whole sequences."""

from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo.gemm import Activation
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner
from littledragon.compiler.zoo.models.language import ENCODERS, Encoder

BATCHES: Final = (1, 8, 32)
"""Inputs of one step, served alone or together, or trained on."""
DENOISED: Final = (1, 2, 8)
"""Images that a diffusion transformer denoises at once: one, one with and without its text, four of these."""
SHORT: Final = 128
"""Tokens of a short text or utterance, beside the longest."""
LONGEST: Final = 2048
"""Tokens of a text, where the model could take more."""
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


class Product(NamedTuple):
    """A linear layer: Y (…, n) from X (…, k)."""

    name: str
    words: str
    n: int
    k: int


def list_all(listing: Listing) -> None:
    """Forward products, the heads, then gradients."""
    for model in ENCODERS:
        _forward(listing, model)
        _heads(listing, model)
    for model in ENCODERS:
        _gradients(listing, model)


def sequences(model: Encoder) -> list[tuple[int, int]]:
    """(batch, tokens) of one step."""
    batches = DENOISED if model.key.startswith(DIFFUSION) else BATCHES
    whole = min(model.tokens, LONGEST) if model.vocab else model.tokens
    lengths = [whole, *[SHORT] * bool(model.vocab and model.tokens > 2 * SHORT)]
    return [(batch, length) for length in lengths for batch in batches]


def layers(model: Encoder) -> tuple[Product, Product, Product, Product]:
    """The four products of a layer: into attention and out of it, into the feed-forward network and out of it."""
    width = model.heads * model.head
    up = 2 * model.inner if model.key.startswith((*GATED, LAYER_SCALE)) else model.inner
    return (
        Product("qkv", "query, key and value projection", 3 * width, model.hidden),
        Product("o", "output projection", model.hidden, width),
        Product("up", "first feed-forward layer", up, model.hidden),
        Product("down", "second feed-forward layer", model.hidden, model.inner),
    )


def activation_of(model: Encoder) -> Activation:
    """The activation of the feed-forward network, in its exact form."""
    if model.key.startswith(QUICK):
        return "quick_gelu"
    return "gelu_tanh" if model.key.startswith(TANH) else model.activation


def inputs_of(batch: int, length: int) -> str:
    """One step's inputs in words."""
    return f"{batch} inputs of {length} tokens" if batch > 1 else f"one input of {length} tokens"


def _forward(listing: Listing, model: Encoder) -> None:
    owner, bias = Owner(model, model.key), not model.key.startswith(UNBIASED)
    qkv, out, up, down = layers(model)

    def each(operator: str, layer: Product, **options: Any) -> None:
        name, words, n, k = layer
        for batch, length in sequences(model):
            case, about = f"{name}-b{batch}-s{length}", f"{words}, {inputs_of(batch, length)}"
            listing.linear(operator, owner, case, about, length, n, k, batch=batch, bias=bias, **options)

    each("fused_qkv", qkv)
    if model.key.startswith((*GATED, LAYER_SCALE)):
        gate = Product("gate", "gate of the feed-forward network", up.n // 2, up.k)
        form: Activation = "silu" if model.key.startswith(LAYER_SCALE) else activation_of(model)
        each("gate_times_up", gate, activation=form, join="times")
    else:
        activation = activation_of(model)
        each(f"linear_bias_{activation}" if bias else f"linear_{activation}", up, activation=activation)
    for layer in (out, down):
        if model.key.startswith(DIFFUSION):
            each("gated_residual", layer, join="gate")
        elif model.key.startswith(LAYER_SCALE):
            each("layer_scale_residual", layer, join="layer_scale")
        else:
            each("linear_residual", layer, join="add")


def _heads(listing: Listing, model: Encoder) -> None:
    """Poolers of encoders, what a diffusion transformer modulates with, vocabularies of encoder-decoders."""
    owner, width = Owner(model, model.key), model.hidden
    for batch in BATCHES[1:]:
        if model.key.startswith(POOLED):
            case, about = f"pooler-b{batch}", f"pooler, {batch} inputs"
            listing.linear("linear_bias_tanh", owner, case, about, batch, width, width, bias=True, activation="tanh")
        if model.key.startswith(DIFFUSION):
            case, about = f"modulation-b{batch}", f"shifts, scales and gates from the time embedding, {batch} images"
            listing.linear("modulation", owner, case, about, batch, 6 * width, width, bias=True)
    for rows in DECODING if model.key.startswith(DECODERS) else ():
        for dtype in ("float16", "bfloat16"):
            case, about = f"head-m{rows}-{dtype}", f"vocabulary head, {rows} rows of the decoder"
            listing.logits(owner, case, about, rows, model.vocab, width, dtype=dtype)


def _gradients(listing: Listing, model: Encoder) -> None:
    """Of the four products, over sequences: trained in float16 with float32 accumulation."""
    owner = Owner(model, model.key)
    for name, words, n, k in layers(model):
        for batch, length in sequences(model):
            if batch > 1:
                case, what = f"{name}-b{batch}-s{length}", f"gradient of the {words}, {inputs_of(batch, length)}"
                listing.linear(
                    *("input_gradient", owner, case, f"input {what}", length, k, n),
                    batch=batch,
                    stored="kn",
                )
                listing.contraction(
                    *("weight_gradient_of_sequences", owner, case, f"weight {what}"),
                    *("bmn,bmk->nk", {"b": batch, "m": length, "n": n, "k": k}),
                )
