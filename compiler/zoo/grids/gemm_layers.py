"""The linear layers of decoders: their names, extents and shards."""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from littledragon.compiler.zoo.gemm import Activation
from littledragon.compiler.zoo.models.language import LATENTS, Decoder, Latent, Mixture

Kind = Literal["qkv", "q", "kv", "o", "gate_up", "gate", "up", "down", "head"]

SHARDS: Final = (1, 2, 4, 8)
"""Tensor-parallel shards: the GPUs of one host."""
NARROWEST: Final = 1024
"""Hidden size for each shard of a dense decoder, at least: small ones are not split further. Mixtures are."""

_FLOAT16: Final = ("gpt", "pythia", "opt", "bloom-560m", "bloom-1.1b", "bloom-3b", "bloom-7.1b", "llama-2", "command-r")
_FLOAT16_KEYS: Final = ("phi-1.5", "phi-2", "stablelm-2-1.6b")
_ERF: Final = ("gpt-neox", "pythia", "falcon", "mpt")
_LATENT: Final = frozenset(model.key for model in LATENTS)


class Layer(NamedTuple):
    """A linear layer or a shard of it: Y (m, n) from X (m, k)."""

    kind: Kind
    name: str
    words: str
    n: int
    k: int
    shards: int


def dtype_of(model: Decoder) -> str:
    """The half-precision type in which a decoder is published, or run where it is published in float32."""
    half = model.key.startswith(_FLOAT16) and not model.key.startswith("gpt-oss")
    return "float16" if half or model.key in _FLOAT16_KEYS else "bfloat16"


def activation_of(model: Decoder) -> Activation:
    """The activation, with GELU's tanh form where the model has it."""
    if model.activation == "gelu":
        return "gelu" if model.key.startswith(_ERF) else "gelu_tanh"
    return model.activation


def stored_of(model: Decoder) -> Literal["nk", "kn"]:
    """How its weights lie: GPT-2's are transposed."""
    return "kn" if model.key.startswith("gpt2") else "nk"


def layers(model: Decoder) -> Iterator[Layer]:
    """The dense linear layers of a decoder, whole and in shards. Latent attention's are in `latent_layers`."""
    for shards in SHARDS:
        few = model.hidden < NARROWEST * shards and not isinstance(model, Mixture)
        if model.heads % shards or (shards > 1 and few):
            continue
        if model.key not in _LATENT:
            yield from _attention(model, shards)
        if model.inner and model.inner % shards == 0:
            yield from _network(model, model.inner, "", "", shards)
        if isinstance(model, Mixture) and model.shared_inner and model.shared_inner % shards == 0:
            yield from _network(model, model.shared_inner, "shared-", "the shared experts' ", shards)
        # Padded to equal shards.
        yield _layer("head", "", "vocabulary head", -(-model.vocab // shards), model.hidden, shards)


def latent_layers(model: Latent) -> Iterator[Layer]:
    """The low-rank projections of latent attention."""
    yield _layer("kv", "down-", "compression of keys and values", model.rank + model.rope, model.hidden, 1)
    if model.q_rank:
        yield _layer("q", "down-", "compression of queries", model.q_rank, model.hidden, 1)
    for shards in SHARDS:
        heads, wide = model.heads // shards, model.q_rank or model.hidden
        queries, keys = heads * (model.nope + model.rope), heads * (model.nope + model.value)
        yield _layer("q", "up-", "queries from their latent vector", queries, wide, shards)
        yield _layer("kv", "up-", "keys and values from their latent vector", keys, model.rank, shards)
        yield _layer("o", "", "output projection", model.hidden, heads * model.value, shards)


def _layer(kind: Kind, prefix: str, words: str, n: int, k: int, shards: int) -> Layer:
    shard = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
    return Layer(kind, f"{prefix}{kind.replace('_', '-')}-tp{shards}", words + shard, n, k, shards)


def _attention(model: Decoder, shards: int) -> Iterator[Layer]:
    # Key-value heads are repeated where there are fewer of them than shards.
    queries, keys = model.heads // shards * model.head, max(1, model.kv_heads // shards) * model.head
    yield _layer("qkv", "", "query, key and value projection", queries + 2 * keys, model.hidden, shards)
    yield _layer("q", "", "query projection", queries, model.hidden, shards)
    yield _layer("kv", "", "key projection", keys, model.hidden, shards)
    yield _layer("o", "", "output projection", model.hidden, queries, shards)


def _network(model: Decoder, inner: int, prefix: str, whose: str, shards: int) -> Iterator[Layer]:
    part = inner // shards
    if model.gated:
        yield _layer("gate_up", prefix, f"{whose}gate and up projection", 2 * part, model.hidden, shards)
        yield _layer("gate", prefix, f"{whose}gate projection", part, model.hidden, shards)
    else:
        yield _layer("up", prefix, f"{whose}up projection", part, model.hidden, shards)
    yield _layer("down", prefix, f"{whose}down projection", model.hidden, part, shards)
