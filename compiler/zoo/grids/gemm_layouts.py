"""Projections that keep heads apart, as JAX models and Keras store their weights, with their gradients."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from littledragon.compiler.zoo.block import Block, Case
from littledragon.compiler.zoo.gemm_contractions import contraction
from littledragon.compiler.zoo.grids.gemm_encoders import sequences
from littledragon.compiler.zoo.grids.gemm_listing import Listing, blocks_of, tokens
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, MIXTURES, Decoder, Encoder

ROWS: Final = (8, 128, 2048)
"""Decoding batches, and the tokens of a prompt or a micro-batch."""
MAXTEXT: Final = (
    *("llama-2", "llama-3", "mistral", "mixtral", "gemma", "qwen3", "gpt-oss", "deepseek", "kimi", "gpt2", "olmo"),
)
"""Trained by MaxText or Levanter: kernels of queries and keys are [hidden, heads, head]."""
GEMMA: Final = "gemma"
"""The published code: weights of queries are [heads, hidden, head], of keys and values [2, heads, hidden, head], of
the gate and up projection [2, inner, hidden]."""
FLAX: Final = ("bert", "roberta", "t5", "vit", "deit", "whisper", "siglip", "clip", "bart", "electra", "albert")
"""Published or ported for Flax (DenseGeneral) or Keras (EinsumDense)."""


class Product(NamedTuple):
    """An Einstein sum of a model, its operator, and what it is in words; t is tokens, c one of two halves."""

    operator: str
    part: str
    words: str
    equation: str
    training: bool = False


PROJECTIONS: Final = (
    Product("split_heads", "q", "query projection into heads", "td,dnh->tnh"),
    Product("split_heads", "k", "key projection into heads", "td,dgh->tgh"),
    Product("merge_heads", "o", "output projection from heads", "tnh,nhd->td"),
    Product("split_heads_gradient", "q", "weight gradient of the query projection into heads", "td,tnh->dnh", True),
    Product("merge_heads_gradient", "o", "weight gradient of the output projection from heads", "tnh,td->nhd", True),
    Product("merge_heads", "dq", "input gradient of the query projection into heads", "tnh,dnh->td", True),
    Product("split_heads", "do", "input gradient of the output projection from heads", "td,nhd->tnh", True),
)
EINSUMS: Final = (
    Product("split_heads", "gemma-q", "query projection into heads", "td,ndh->tnh"),
    Product("split_heads", "gemma-kv", "key and value projection into heads", "td,cgdh->ctgh"),
    Product("gate_up_apart", "gemma-gate-up", "gate and up projection, stacked", "td,cfd->tcf"),
)
BATCHED: Final = (
    Product("split_heads", "q", "query projection into heads", "btd,dnh->btnh"),
    Product("merge_heads", "o", "output projection from heads", "btnh,nhd->btd"),
    Product("split_heads_gradient", "q", "weight gradient of the query projection into heads", "btd,btnh->dnh", True),
)


def blocks(listing: Listing) -> Iterator[Block]:
    """Decoders, Gemma's own layouts, encoders."""
    for model in (*DECODERS, *MIXTURES):
        products = [*PROJECTIONS] * model.key.startswith(MAXTEXT) + [*EINSUMS] * model.key.startswith(GEMMA)
        for product in products:
            yield from blocks_of(
                product.operator, model, f"{model.key}-{product.part}", contraction, _decoder(listing, model, product)
            )
    for encoder in ENCODERS:
        if encoder.key.startswith(FLAX):
            for product in BATCHED:
                part = f"{encoder.key}-{product.part}"
                yield from blocks_of(product.operator, encoder, part, contraction, _encoder(listing, encoder, product))


def _decoder(listing: Listing, model: Decoder, product: Product) -> Iterator[Case]:
    widths = {"d": model.hidden, "n": model.heads, "g": model.kv_heads, "h": model.head, "f": model.inner, "c": 2}
    for m in ROWS[-1:] if product.training else ROWS:
        extents = {letter: extent for letter, extent in {"t": m, **widths}.items() if letter in product.equation}
        about = f"{product.words}, {tokens(m)}"
        yield from listing.contraction(f"{product.part}-m{m}", about, product.equation, extents, dtype="bfloat16")


def _encoder(listing: Listing, model: Encoder, product: Product) -> Iterator[Case]:
    for batch, length in sequences(model):
        if batch > 1:
            extents = {"b": batch, "t": length, "d": model.hidden, "n": model.heads, "h": model.head}
            about = f"{product.words}, {batch} inputs of {length} tokens"
            yield from listing.contraction(f"{product.part}-b{batch}-s{length}", about, product.equation, extents)
