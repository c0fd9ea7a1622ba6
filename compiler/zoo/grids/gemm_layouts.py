"""Projections that keep heads apart, as JAX models and Keras store their weights, with their gradients."""

from typing import Final, NamedTuple

from littledragon.compiler.zoo.grids.gemm_encoders import inputs_of, sequences
from littledragon.compiler.zoo.grids.gemm_listing import Listing, Owner, tokens
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


def list_all(listing: Listing) -> None:
    """Decoders, Gemma's own layouts, encoders."""
    for model in (*DECODERS, *MIXTURES):
        products = [*PROJECTIONS] * model.key.startswith(MAXTEXT) + [*EINSUMS] * model.key.startswith(GEMMA)
        for product in products:
            # With as many key heads as query heads, the key projection is the query projection again.
            if "g" not in product.equation or model.kv_heads != model.heads:
                _decoder(listing, model, product)
    for encoder in ENCODERS:
        for product in BATCHED if encoder.key.startswith(FLAX) else ():
            _encoder(listing, encoder, product)


def _decoder(listing: Listing, model: Decoder, product: Product) -> None:
    extents = {"d": model.hidden, "n": model.heads, "g": model.kv_heads, "h": model.head, "f": model.inner, "c": 2}
    for m in ROWS[-1:] if product.training else ROWS:
        case, about = f"{product.part}-m{m}", f"{product.words}, {tokens(m)}"
        owner, sizes = Owner(model, model.key), {"t": m, **extents}
        listing.contraction(product.operator, owner, case, about, product.equation, sizes, dtype="bfloat16")


def _encoder(listing: Listing, model: Encoder, product: Product) -> None:
    for batch, length in sequences(model):
        if batch > 1:
            extents = {"b": batch, "t": length, "d": model.hidden, "n": model.heads, "h": model.head}
            case, about = f"{product.part}-b{batch}-s{length}", f"{product.words}, {inputs_of(batch, length)}"
            listing.contraction(product.operator, Owner(model, model.key), case, about, product.equation, extents)
