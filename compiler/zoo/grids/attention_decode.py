"""Steps that serve published decoders: over static, paged and 8-bit caches, in splits, of several drafts at once."""

from collections.abc import Iterator
from typing import Final

from littledragon.compiler.zoo import attention, attention_cache, attention_draft, attention_rotary
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.attention_listing import (
    LEARNED,
    MODELS,
    Choice,
    Entry,
    Heads,
    listed,
    own,
    sequences,
    shards,
    words,
)

# Sequences that decode together and tokens in the cache of each: one user, a small batch, a busy server; from a short
# chat to a long document. Operators share the points among them: no two that read a cache in one way are near.
STATIC: Final = (
    (1, 512),
    (1, 2048),
    (1, 8192),
    (1, 32768),
    (4, 1024),
    (8, 512),
    (8, 2048),
    (8, 8192),
    (32, 512),
    (32, 2048),
)
LENGTHS: Final = ((1, 16384), (2, 1024), (4, 4096), (16, 1024), (16, 4096), (64, 256), (64, 1024), (128, 2048))
SINGLE: Final = ((1, 2048), (1, 8192), (4, 512), (8, 2048), (32, 256), (32, 1024), (128, 512), (16, 4096), (64, 2048))
FUSED: Final = ((1, 4096), (2, 1024), (4, 16384), (16, 512), (16, 2048), (64, 512), (64, 2048), (1, 16384))
PAGED: Final = ((1, 1024), (1, 8192), (2, 32768), (8, 1024), (8, 4096), (32, 512), (32, 2048), (128, 256), (128, 1024))
FLOAT8: Final = ((1, 4096), (1, 65536), (4, 16384), (8, 1024), (16, 16384), (32, 2048), (64, 4096), (128, 512))
TURNED: Final = ((1, 1024), (1, 131072), (4, 2048), (8, 8192), (32, 1024), (64, 512))
SHARED: Final = ((8, 512), (8, 4096), (8, 32768), (32, 2048), (64, 8192), (128, 1024), (256, 2048))
"""Sequences and tokens that they all begin with: a system's prompt, examples, a document."""
CHUNKED: Final = ((1, 512, 2048), (1, 512, 8192), (1, 2048, 4096), (4, 128, 1024), (16, 32, 1024), (1, 128, 16384))
"""Sequences, tokens of the prompt's chunk, and tokens up to its end."""
SPLITS: Final = ((1, 8, 512), (1, 32, 512), (1, 64, 1024), (1, 128, 256), (4, 16, 512), (8, 8, 1024), (16, 4, 512))
"""Sequences, splits of the context of each, tokens of a split: enough splits to fill a GPU of 132 multiprocessors."""
DRAFTS: Final = ((1, 4, 2048), (1, 16, 8192), (1, 64, 2048), (4, 8, 4096), (8, 4, 1024), (8, 16, 2048), (32, 4, 512))
"""Sequences, drafted tokens (chains of 4 and 8, trees of 16 and 64), tokens in the cache."""
PAGES: Final = (16, 64, 1)
"""Tokens of a page: in vLLM, in FlashInfer and FlashMLA, in SGLang."""

Points = tuple[tuple[int, int], ...]


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    every = [heads for model in MODELS for heads in shards(model)]
    grouped, single = (Choice(h for h in every if (h.group == 1) is one) for one in (False, True))
    either, length, cache = Choice(every), attention_cache.length_decode, attention_cache
    yield from listed("gqa_decode", attention.gqa_decode, _cached(grouped, STATIC, "in a static cache"))
    yield from listed("length_decode", length, _cached(grouped, LENGTHS, "or fewer"))
    yield from listed("mha_decode", length, _cached(single, SINGLE, "or fewer"))
    yield from listed("fused_attention", attention.fused_attention, _fused(either))
    yield from listed("paged_decode", cache.paged_decode, _paged(either))
    yield from listed("paged_prefill", cache.paged_prefill, _chunked(either))
    yield from listed("float8_decode", cache.float8_decode, _cached(either, FLOAT8, "in float8", bytes_of=1))
    turning = Choice(h for h in every if not h.model.key.startswith(LEARNED))
    yield from listed("rotary_scores", attention_rotary.rotary_scores, _cached(turning, TURNED, "not turned yet"))
    yield from listed("prefix_decode", attention_draft.prefix_decode, _shared(either))
    yield from listed("split_decode", attention_draft.split_decode, _split(either))
    yield from listed("tree_verify", attention_draft.tree_verify, _drafted(either))


def _cached(choice: Choice, points: Points, how: str, bytes_of: int = 2) -> Iterator[Entry]:
    """bytes_of: one number in the cache."""
    for number, (batch, context) in enumerate(points):
        for one in choice.taken(number):
            yield _entry(
                one,
                f"b{batch}-c{context}",
                f"one decoding step of {words(one)}, {sequences(batch, context)} {how}",
                batch * one.kv_heads * context * (one.dim * bytes_of + one.group * 6),
                batch * one.kv_heads * one.group * context * one.dim * 4,
                {"batch": batch, "context": context},
            )


def _fused(choice: Choice) -> Iterator[Entry]:
    for number, (batch, context) in enumerate(FUSED):
        for one in choice.taken(number):
            yield Entry(
                one.model,
                one.model.key,
                f"tp{one.tp}-b{batch}-c{context}",
                f"one decoding step in one function, {words(one)}, {sequences(batch, context)}",
                batch * one.kv_heads * context * one.dim * 4.2,
                batch * one.kv_heads * one.group * context * (one.dim + 1) * 4,
                {
                    **{"batch": batch, "heads": one.kv_heads, "queries": one.group, "keys": context},
                    **{"dim": one.dim, "dtype": own(one.model)},
                },
            )


def _shared(choice: Choice) -> Iterator[Entry]:
    for number, (batch, context) in enumerate(SHARED):
        for one in choice.taken(number):
            heads = one.kv_heads * one.group
            yield _entry(
                one,
                f"b{batch}-c{context}",
                f"one decoding step of {words(one)}, {batch} sequences that begin with the same {context} tokens",
                batch * heads * context * 4 + one.kv_heads * context * one.dim * 2,
                batch * heads * context * one.dim * 2,
                {"batch": batch, "context": context},
            )


def _paged(choice: Choice) -> Iterator[Entry]:
    for number, (batch, context) in enumerate(PAGED):
        for place, one in enumerate(choice.taken(number)):
            page = PAGES[place % len(PAGES)]
            in_pages = f"in pages of {page}" if page > 1 else "by lists of tokens"
            yield _entry(
                one,
                f"b{batch}-c{context}-p{page}",
                f"one decoding step of {words(one)}, {sequences(batch, context)} {in_pages}",
                batch * one.kv_heads * context * (one.dim * 2 + one.group * 6),
                batch * one.kv_heads * one.group * context * one.dim * 2,
                {"batch": batch, "context": context, "page": page},
            )


def _chunked(choice: Choice) -> Iterator[Entry]:
    for number, (batch, queries, context) in enumerate(CHUNKED):
        for place, one in enumerate(choice.taken(number)):
            page, heads = PAGES[place % len(PAGES)], one.kv_heads * one.group
            in_pages = f"in pages of {page}" if page > 1 else "by lists of tokens"
            yield _entry(
                one,
                f"b{batch}-q{queries}-c{context}-p{page}",
                f"the last {queries} tokens of {words(one)}, {sequences(batch, context)} {in_pages}",
                batch * (heads * queries * (context * 4 + one.dim * 2) + one.kv_heads * context * one.dim * 2),
                batch * heads * queries * context * one.dim * 2,
                {"batch": batch, "queries": queries, "context": context, "page": page},
            )


def _split(choice: Choice) -> Iterator[Entry]:
    for number, (batch, splits, part) in enumerate(SPLITS):
        for one in choice.taken(number):
            yield _entry(
                one,
                f"b{batch}-s{splits}-t{part}",
                f"decoding of {words(one)} in {splits} splits of {part} tokens, batch {batch}",
                batch * one.kv_heads * splits * part * (one.dim * 2 + one.group * 6),
                batch * one.kv_heads * one.group * splits * part * one.dim * 2,
                {"batch": batch, "splits": splits, "part": part},
            )


def _drafted(choice: Choice) -> Iterator[Entry]:
    for number, (batch, drafts, context) in enumerate(DRAFTS):
        for one in choice.taken(number):
            heads = one.kv_heads * one.group
            yield _entry(
                one,
                f"b{batch}-q{drafts}-c{context}",
                f"verification of {drafts} drafted tokens by {words(one)}, {sequences(batch, context)} cached",
                batch * context * (one.kv_heads * one.dim * 2 + heads * drafts * 6) * 1.1,
                batch * heads * drafts * context * one.dim * 2.2,
                {"batch": batch, "drafts": drafts, "context": context},
            )


def _entry(one: Heads, name: str, about: str, size: float, flops: float, more: dict[str, int]) -> Entry:
    shape = {"kv_heads": one.kv_heads, "group": one.group, "dim": one.dim, **more, "dtype": own(one.model)}
    return Entry(one.model, one.model.key, f"tp{one.tp}-{name}", about, size, flops, shape)
