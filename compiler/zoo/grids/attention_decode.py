"""Steps that serve published decoders: over static, paged and 8-bit caches, in splits, and of several drafts at once."""

from collections.abc import Iterator
from typing import Final

from littledragon.compiler.zoo import attention, attention_cache, attention_draft
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.attention_listing import (
    MODELS,
    WIDTH,
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
# chat to a long document. Operators share the points among them, so that each is met by some.
STATIC: Final = ((1, 2048), (1, 8192), (1, 32768), (8, 512), (8, 2048), (8, 8192))
LENGTHS: Final = ((1, 16384), (4, 4096), (16, 1024), (16, 4096), (64, 256), (64, 1024), (128, 2048))
SINGLE: Final = ((1, 2048), (1, 8192), (8, 512), (8, 2048), (32, 256), (32, 1024), (128, 512))
FUSED: Final = ((1, 4096), (2, 1024), (4, 16384), (16, 512), (16, 2048), (64, 512))
PAGED: Final = ((1, 1024), (2, 32768), (8, 1024), (8, 4096), (32, 512), (32, 2048), (128, 1024))
FLOAT8: Final = ((1, 65536), (4, 8192), (16, 8192), (32, 4096), (128, 1024))
CHUNKED: Final = ((1, 512, 2048), (1, 512, 8192), (1, 2048, 4096), (4, 128, 1024), (16, 32, 1024))
"""Sequences, tokens of the prompt's chunk, and tokens up to its end."""
SPLITS: Final = ((1, 8, 512), (1, 32, 512), (1, 64, 1024), (4, 16, 512), (16, 4, 512))
"""Sequences, splits of the context of each, tokens of a split: enough splits to fill a GPU of 132 multiprocessors."""
DRAFTS: Final = ((1, 4, 2048), (1, 16, 8192), (1, 64, 2048), (8, 4, 1024), (8, 16, 2048), (32, 4, 512))
"""Sequences, drafted tokens (a chain of 4, trees of 16 and 64), tokens in the cache."""
PAGES: Final = (16, 64, 1)
"""Tokens of a page: in vLLM, in FlashInfer and FlashMLA, in SGLang."""

Points = tuple[tuple[int, int], ...]


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    every = [heads for model in MODELS for heads in shards(model)]
    grouped, single = (Choice(h for h in every if (h.group == 1) is one) for one in (False, True))
    either, length = Choice(every), attention_cache.length_decode
    yield from listed("gqa_decode", attention.gqa_decode, _cached(grouped, STATIC, "in a static cache"))
    yield from listed("length_decode", length, _cached(grouped, LENGTHS, "or fewer"))
    yield from listed("mha_decode", length, _cached(single, SINGLE, "or fewer"))
    yield from listed("fused_decode", attention_cache.fused_decode, _cached(either, FUSED, "in one function", values=2))
    yield from listed("paged_decode", attention_cache.paged_decode, _paged(either))
    yield from listed("paged_prefill", attention_cache.paged_prefill, _chunked(either))
    yield from listed("float8_decode", attention_cache.float8_decode, _cached(either, FLOAT8, "in float8", values=0.5))
    yield from listed("split_decode", attention_draft.split_decode, _split(either))
    yield from listed("tree_verify", attention_draft.tree_verify, _drafted(either))


def _cached(choice: Choice, points: Points, how: str, values: float = 1) -> Iterator[Entry]:
    """values: caches of 16-bit numbers that one function reads."""
    for number, (batch, context) in enumerate(points):
        for one in choice.taken(number):
            dtype = own(one.model)
            yield _entry(
                one,
                f"b{batch}-c{context}",
                f"one decoding step of {words(one)}, {sequences(batch, context)} {how}",
                batch * one.kv_heads * context * (one.dim * values * WIDTH[dtype] + one.group * 6),
                batch * one.kv_heads * one.group * context * one.dim * 4,
                {"batch": batch, "context": context},
                dtype,
            )


def _paged(choice: Choice) -> Iterator[Entry]:
    for number, (batch, context) in enumerate(PAGED):
        for place, one in enumerate(choice.taken(number)):
            page, dtype = PAGES[place % len(PAGES)], own(one.model)
            in_pages = f"in pages of {page}" if page > 1 else "by lists of tokens"
            yield _entry(
                one,
                f"b{batch}-c{context}-p{page}",
                f"one decoding step of {words(one)}, {sequences(batch, context)} {in_pages}",
                batch * one.kv_heads * context * (one.dim * WIDTH[dtype] + one.group * 6),
                batch * one.kv_heads * one.group * context * one.dim * 2,
                {"batch": batch, "context": context, "page": page},
                dtype,
            )


def _chunked(choice: Choice) -> Iterator[Entry]:
    for number, (batch, queries, context) in enumerate(CHUNKED):
        for place, one in enumerate(choice.taken(number)):
            page, dtype, heads = PAGES[place % len(PAGES)], own(one.model), one.kv_heads * one.group
            in_pages = f"in pages of {page}" if page > 1 else "by lists of tokens"
            yield _entry(
                one,
                f"b{batch}-q{queries}-c{context}-p{page}",
                f"the last {queries} tokens of {words(one)}, {sequences(batch, context)} {in_pages}",
                batch * (heads * queries * (context * 4 + one.dim * 2) + one.kv_heads * context * one.dim * 2),
                batch * heads * queries * context * one.dim * 2,
                {"batch": batch, "queries": queries, "context": context, "page": page},
                dtype,
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
                own(one.model),
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
                own(one.model),
            )


def _entry(one: Heads, name: str, about: str, size: float, flops: float, more: dict[str, int], dtype: str) -> Entry:
    shape = {"kv_heads": one.kv_heads, "group": one.group, "dim": one.dim, **more, "dtype": dtype}
    return Entry(one.model, one.model.key, f"tp{one.tp}-{name}", about, size, flops, shape)
