"""Quantised linear layers of published models, whole and in shards."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_packed as packed
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_formats import EXPERTS, FEW, FORMATS, TERNARY, Format
from littledragon.compiler.zoo.grids.quant_irregular_listing import Entry, apart, listed
from littledragon.compiler.zoo.models.language import (
    DECODERS,
    ENCODERS,
    LATENTS,
    MIXTURES,
    Decoder,
    Encoder,
    Mixture,
)

SHARDS: Final = (1, 2, 4, 8)
"""Tensor-parallel shards: the GPUs of one host."""


class Layer(NamedTuple):
    """A linear layer or a shard of it: Y (m, n) from X (m, k)."""

    name: str
    words: str
    n: int
    k: int


def layers(model: Decoder | Encoder) -> Iterator[Layer]:
    """The linear layers of a block, whole and in tensor-parallel shards; of a mixture, one expert's too."""
    for tp in SHARDS:
        if model.heads % tp or model.inner % tp:
            continue
        shard = f", 1 of {tp} tensor-parallel shards" if tp > 1 else ""
        yield from _attention(model, tp, shard)
        if model.inner:
            yield from _network(model, "", "", model.inner // tp, tp, shard)
        if isinstance(model, Mixture) and model.expert_inner % tp == 0:
            yield from _network(model, "expert-", "one expert's ", model.expert_inner // tp, tp, shard)


def _attention(model: Decoder | Encoder, tp: int, shard: str) -> Iterator[Layer]:
    latent = _LATENT.get(model.key)
    if latent:
        if tp == 1:
            yield Layer("kv-a", "projection to the latent keys and values", latent.rank + latent.rope, latent.hidden)
            yield Layer("q-a", "projection to the latent queries", latent.q_rank or latent.hidden, latent.hidden)
        wide, heads = latent.q_rank or latent.hidden, latent.heads // tp
        yield Layer(f"q-b-tp{tp}", f"queries of all heads{shard}", heads * (latent.nope + latent.rope), wide)
        yield Layer(
            f"kv-b-tp{tp}", f"keys and values of all heads{shard}", heads * (latent.nope + latent.value), latent.rank
        )
        yield Layer(f"o-tp{tp}", f"output projection{shard}", latent.hidden, heads * latent.value)
        return
    # Key-value heads are repeated where there are fewer of them than shards.
    kv_heads = max(1, (model.kv_heads if isinstance(model, Decoder) else model.heads) // tp)
    rows = (model.heads // tp + 2 * kv_heads) * model.head
    yield Layer(f"qkv-tp{tp}", f"query, key and value projection{shard}", rows, model.hidden)
    yield Layer(f"o-tp{tp}", f"output projection{shard}", model.hidden, model.heads * model.head // tp)


def _network(model: Decoder | Encoder, name: str, whose: str, inner: int, tp: int, shard: str) -> Iterator[Layer]:
    gated = isinstance(model, Decoder) and model.gated
    up = f"{whose}gate and up projection" if gated else f"{whose}first feed-forward layer"
    down = f"{whose}down projection" if gated else f"{whose}second feed-forward layer"
    yield Layer(f"{name}up-tp{tp}", f"{up}{shard}", inner * (2 if gated else 1), model.hidden)
    yield Layer(f"{name}down-tp{tp}", f"{down}{shard}", model.hidden, inner)


_LATENT: Final = {model.key: model for model in LATENTS}
_EVERY: Final[tuple[Decoder | Encoder, ...]] = (*MIXTURES, *DECODERS, *ENCODERS)
_MODELS: Final = {model.key: model for model in _EVERY}


def blocks() -> Iterator[Block]:
    """The formats, format by format; then those of a few models only."""
    for form in FORMATS:
        yield from listed(form.operator, form.build, _of_format(form))
    yield from listed("ternary_matmul", packed.ternary_matmul, _ternary())
    yield from listed("mxfp4_experts", packed.mxfp4_experts, _experts())


def _of_format(form: Format) -> Iterator[Entry]:
    found = (
        (model, layer)
        for model in (_MODELS[key] for key in form.models)
        for layer in layers(model)
        if layer.k % form.unit == 0 and layer.n % 64 == 0
    )
    for (model, layer), m in product(apart(found, lambda pair: (pair[1].n, pair[1].k)), form.tokens):
        part = f"{model.key}-{form.variant}" if form.variant else model.key
        yield _product(model, part, layer, m, form.words, form.bits, form.cost, form.options(m))


def _product(
    model: Model, part: str, layer: Layer, m: int, words: str, bits: float, cost: int, options: dict[str, Any]
) -> Entry:
    """A product of one layer on m tokens."""
    return Entry(
        model,
        part,
        f"{layer.name}-m{m}",
        f"{layer.words}, {words}, {m} token{'s' if m > 1 else ''}",
        layer.n * layer.k * bits / 8 + m * (layer.n + layer.k) * 2,
        m * layer.n * layer.k * (cost if m > max(FEW) else 12),
        {"m": m, "n": layer.n, "k": layer.k, **options},
    )


def _ternary() -> Iterator[Entry]:
    found = (
        (model, key, layer)
        for model, key, hidden, kv_width, inner in TERNARY
        for layer in (
            Layer("qkv", "query, key and value projection", hidden + 2 * kv_width, hidden),
            Layer("o", "output projection", hidden, hidden),
            Layer("up", "gate and up projection", 2 * inner, hidden),
            Layer("down", "down projection", hidden, inner),
        )
    )
    unlike = apart(found, lambda one: (one[2].n, one[2].k))
    for (model, key, layer), m in product(unlike, (*FEW, 64, 256, 1024)):
        yield _product(model, key, layer, m, "ternary weights", 2, 2, {"staged": m > max(FEW)})


def _experts() -> Iterator[Entry]:
    for model in (model for model in MIXTURES if model.key in EXPERTS):
        for tp, share, m in product((1, 2), (4, 8, 16, 32), (1, 4, 16, 64, 256)):
            inner, on = model.expert_inner // tp, f"{share} experts on {m} tokens each, MXFP4 weights"
            shard = f", 1 of {tp} tensor-parallel shards" if tp > 1 else ""
            for name, words, n, k in (
                ("up", f"gate and up projection{shard}", 2 * inner, model.hidden),
                ("down", f"down projection{shard}", model.hidden, inner),
            ):
                yield Entry(
                    model,
                    model.key,
                    f"{name}-tp{tp}-e{share}-m{m}",
                    f"{words} of {on}",
                    share * (n * k * 0.54 + m * (n + k) * 2),
                    share * m * n * k * 2,
                    {"experts": share, "m": m, "n": n, "k": k},
                )
