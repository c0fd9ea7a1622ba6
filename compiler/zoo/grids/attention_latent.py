"""Attention of published models whose cache is compressed, and of those that keep a state instead of one."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import attention_latent, attention_linear
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.attention_listing import Entry, listed, sequences
from littledragon.compiler.zoo.models.language import LATENTS, MIXTURES, Latent

DECODED: Final = ((1, 1, 2048), (1, 1, 8192), (1, 1, 32768), (8, 1, 2048), (8, 1, 8192), (64, 1, 512), (64, 1, 2048))
DRAFTED: Final = ((1, 4, 4096), (8, 4, 4096), (32, 2, 1024))
"""Sequences, tokens of each at once, tokens in the cache; DeepSeek-V3 drafts the next token or more itself."""
PROMPTS: Final = ((1, 512, 512), (1, 2048, 2048), (1, 512, 4096), (4, 256, 256))
UNCOMPRESSED: Final = ((1, 1, 1024), (1, 1, 8192), (8, 1, 2048), (32, 1, 512), (128, 1, 1024))
TOKENS: Final = (1, 8, 32, 128, 512)
EXPANDED: Final = (128, 512, 2048, 8192)
CACHED: Final = (8, 32, 128, 512, 2048, 8192)
DEGREES: Final = (1, 2, 4, 8, 16)
"""Ranks that the heads are spread over; the wide models are served on 8 or 16."""

CHUNKED: Final = ((1, 2), (1, 8), (1, 32), (4, 2), (8, 8))
"""Sequences and chunks of each."""
STREAMS: Final = (1, 8, 32, 128)

HALF: Final = ("bfloat16", "float16")


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("mla_decode", attention_latent.latent_decode, _decoded())
    yield from listed("mla_absorb", attention_latent.latent_absorb, _absorbed())
    yield from listed("mla_expand", attention_latent.latent_expand, _expanded())
    yield from listed("mla_prefill", attention_latent.latent_attention, _attended(PROMPTS, "causal latent attention"))
    about = "decoding over expanded keys and values"
    yield from listed("mla_dense_decode", attention_latent.latent_attention, _attended(UNCOMPRESSED, about))
    yield from listed("mla_norm_rotary", attention_latent.latent_norm_rotary, _turned())
    yield from listed("linear_attention", attention_linear.linear_attention, _linear())
    yield from listed("linear_decode", attention_linear.linear_decode, _streamed())
    yield from listed("state_space_duality", attention_linear.state_space_duality, _dual())


def _ranks() -> Iterator[tuple[Latent, int, int]]:
    """Models, ranks, heads of one."""
    for model, ranks in product(LATENTS, DEGREES):
        least, most = (4, 16) if model.hidden > 4096 else (1, 2)
        if least <= ranks <= most and model.heads % ranks == 0:
            yield model, ranks, model.heads // ranks


def _decoded() -> Iterator[Entry]:
    for (model, ranks, heads), (batch, queries, context), dtype in product(_ranks(), (*DECODED, *DRAFTED), HALF):
        area = batch * queries * heads * context
        shape = {"batch": batch, "heads": heads, "queries": queries, "context": context}
        yield Entry(
            model,
            model.key,
            f"r{ranks}-b{batch}-q{queries}-c{context}-{dtype}",
            f"absorbed decoding of {heads} heads, {_together(batch, queries, context)} in the latent cache",
            batch * context * (model.rank + model.rope) * 2 + area * 6,
            area * (model.rank + model.rope) * 2,
            {**shape, "rank": model.rank, "rope": model.rope, "dtype": dtype},
        )


def _absorbed() -> Iterator[Entry]:
    for (model, ranks, heads), tokens, dtype in product(_ranks(), TOKENS, HALF):
        shape = {"tokens": tokens, "heads": heads, "nope": model.nope, "rank": model.rank, "value": model.value}
        yield Entry(
            model,
            model.key,
            f"r{ranks}-m{tokens}-{dtype}",
            f"queries into the latent space and contexts out of it, {heads} heads, {tokens} tokens",
            heads * model.rank * (model.nope + 2 * tokens) * 2,
            tokens * heads * model.rank * model.nope * 2,
            {**shape, "dtype": dtype},
        )


def _expanded() -> Iterator[Entry]:
    for (model, ranks, heads), tokens, dtype in product(_ranks(), EXPANDED, HALF):
        shape = {"tokens": tokens, "heads": heads, "nope": model.nope, "rope": model.rope, "rank": model.rank}
        yield Entry(
            model,
            model.key,
            f"r{ranks}-m{tokens}-{dtype}",
            f"keys of {heads} heads from the latent cache, {tokens} tokens",
            tokens * heads * (model.nope + model.rope) * 2 + heads * model.nope * model.rank * 2,
            tokens * heads * model.nope * model.rank * 2,
            {**shape, "dtype": dtype},
        )


def _attended(points: tuple[tuple[int, int, int], ...], about: str) -> Iterator[Entry]:
    for (model, ranks, heads), (batch, queries, keys), dtype in product(_ranks(), points, HALF):
        area = batch * heads * queries * keys
        shape = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
        yield Entry(
            model,
            model.key,
            f"r{ranks}-b{batch}-q{queries}-c{keys}-{dtype}",
            f"{about}, {heads} heads, {_together(batch, queries, keys)}",
            area * 6 + batch * heads * keys * (model.nope + model.rope) * 2,
            area * (model.nope + model.rope) * 2,
            {**shape, "nope": model.nope, "rope": model.rope, "value": model.value, "dtype": dtype},
        )


def _turned() -> Iterator[Entry]:
    for model, tokens, dtype in product(LATENTS, CACHED, HALF):
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"{tokens} tokens normalised and turned for the latent cache",
            tokens * (model.rank + model.rope) * 4,
            tokens * model.rank * 16,
            {"tokens": tokens, "rank": model.rank, "rope": model.rope, "positions": model.context, "dtype": dtype},
        )


def _linear() -> Iterator[Entry]:
    """Seven of eight layers of MiniMax-Text-01, in chunks of 256 tokens."""
    model = next(m for m in MIXTURES if m.key.startswith("minimax"))
    for ranks, (batch, chunks), dtype in product((1, 2, 4, 8), CHUNKED, HALF):
        heads, rows = model.heads // ranks, batch * model.heads // ranks * chunks
        shape = {"batch": batch, "heads": heads, "chunks": chunks, "width": 256, "dim": model.head}
        yield Entry(
            model,
            model.key,
            f"r{ranks}-b{batch}-s{256 * chunks}-{dtype}",
            f"linear attention of {heads} heads, {sequences(batch, 256 * chunks)} in chunks of 256",
            rows * (256 * 256 * 2 + model.head * (256 * 10 + model.head * 4)),
            rows * 256 * 256 * model.head * 2,
            {**shape, "dtype": dtype},
        )


def _streamed() -> Iterator[Entry]:
    """MiniMax-Text-01 lets a state decay; Qwen3-Next's three of four layers, of 32 such heads, gate it by a delta."""
    minimax, qwen = (next(m for m in MIXTURES if m.key.startswith(key)) for key in ("minimax", "qwen3-next"))
    for model, ranks, batch, dtype in product((minimax, qwen), (1, 2, 4, 8), STREAMS, HALF):
        heads, delta = (64 if model is minimax else 32) // ranks, model is qwen
        yield Entry(
            model,
            model.key,
            f"r{ranks}-b{batch}-{dtype}",
            f"one step of {'the gated delta rule' if delta else 'linear attention'}, {heads} heads, batch {batch}",
            batch * heads * 128 * 128 * 8,
            batch * heads * 128 * 128 * 8,
            {"batch": batch, "heads": heads, "dim": 128, "value": 128, "dtype": dtype, "delta": delta},
        )


_MAMBA2: Final = (
    # (model, key, groups, heads, channels of a head, state, chunk), from the configuration files.
    (Model("Mamba-2-130M", "state-spaces/mamba2-130m", "Apache-2.0"), "mamba2-130m", 1, 24, 64, 128, 256),
    (Model("Mamba-2-780M", "state-spaces/mamba2-780m", "Apache-2.0"), "mamba2-780m", 1, 48, 64, 128, 256),
    (Model("Mamba-2-2.7B", "state-spaces/mamba2-2.7b", "Apache-2.0"), "mamba2-2.7b", 1, 80, 64, 128, 256),
    (
        Model("Codestral-Mamba-7B", "mistralai/Mamba-Codestral-7B-v0.1", "Apache-2.0"),
        "codestral-7b",
        8,
        128,
        64,
        128,
        256,
    ),
)


def _dual() -> Iterator[Entry]:
    for (model, key, groups, heads, dim, state, width), (batch, chunks), dtype in product(_MAMBA2, CHUNKED, HALF):
        rows = batch * chunks * heads
        shape: dict[str, Any] = {"batch": batch, "groups": groups, "group": heads // groups, "chunks": chunks}
        yield Entry(
            model,
            key,
            f"b{batch}-s{width * chunks}-{dtype}",
            f"state-space duality of {heads} heads, {sequences(batch, width * chunks)} in chunks of {width}",
            rows * (width * dim * 10 + dim * state * 8) + batch * chunks * groups * width * width * 4,
            rows * width * width * dim * 2,
            {**shape, "width": width, "dim": dim, "state": state, "dtype": dtype},
        )


def _together(batch: int, queries: int, context: int) -> str:
    return (f"{queries} tokens at once, " if queries > 1 else "") + sequences(batch, context)
