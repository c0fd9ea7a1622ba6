"""Steps of attention over caches of published models: quantised, paged, pruned, reordered."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_cache as cache
from littledragon.compiler.zoo import quant_irregular_slices as slices
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import SHORT, WIDTH, Entry, apart, listed
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, LATENTS, MIXTURES, Decoder

SERVED: Final = ((1, 8192), (4, 32768), (8, 2048), (64, 1024))
"""Sequences that decode together, and tokens in the cache of each."""
NEW: Final = (16, 128, 1024, 4096)
"""Tokens whose keys and values are new: a decoding batch, chunks of a prompt."""
FLOAT8: Final = "float8_e4m3fn"

_LATENT: Final = {model.key for model in LATENTS}
MODELS: Final = tuple(model for model in (*DECODERS, *MIXTURES) if model.key not in _LATENT)


class Heads(NamedTuple):
    """The heads of a model, or of a tensor-parallel shard: key-value heads, queries for each, their width."""

    model: Model
    key: str
    tp: int
    heads: int
    group: int
    dim: int


class Sparse(NamedTuple):
    """Block-sparse attention as a method runs it: heads and those that share keys, blocks, lists, and runs.

    A run is of some queries (a chunk of the prompt) against some tokens.
    """

    model: Model
    key: str
    heads: int
    group: int
    dim: int
    size: int
    listed: int
    runs: tuple[tuple[int, int], ...]


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    every = [heads for model in MODELS for heads in _shards(model)]
    heads = apart(every, lambda h: (h.heads, h.group, h.dim))
    latent = [
        Heads(model, model.key, tp, 1, model.heads // tp, model.rank + model.rope)
        for model in LATENTS
        for tp in (1, 2, 4, 8)
    ]
    yield from listed("paged_scores", cache.paged_batch_scores, _paged((*heads, *latent)))
    yield from listed("paged_context", cache.paged_context, _paged(heads))
    yield from listed("kv4_scores", cache.kv4_scores, _served(heads, "4-bit keys", 0.6, {"dtype": "float16"}))
    grouped = [h for h in heads if h.dim >= 64]
    yield from listed(
        "kivi_scores",
        cache.kivi_scores,
        (
            *_served(grouped, "2-bit keys by channel", 0.5, {"bits": 2}),
            *_served([h for h in grouped if h.group == 1], "4-bit keys by channel", 0.75, {"bits": 4}, "-4bit"),
        ),
    )
    yield from listed("kv8_context", cache.kv8_context, _served(heads, "int8 values", 1.1, {"dtype": "bfloat16"}))
    keys = apart(every, lambda h: (h.heads, h.dim))
    yield from listed("kv_quantize", cache.kv_quantize, _quantized(keys))
    yield from listed("rotary_quantize", cache.rotary_quantize, _rotary())
    yield from listed("beam_scores", cache.beam_scores, _beams())
    yield from listed("selected_scores", cache.selected_scores, _selected())
    yield from listed("index_scores", cache.index_scores, _indexed())
    yield from listed("block_sparse_scores", cache.block_sparse_scores, _sparse())
    yield from listed("block_sparse_context", cache.block_sparse_context, _sparse())
    yield from listed("window_scores", slices.window_scores, _windows())


def _shards(model: Decoder) -> Iterator[Heads]:
    for tp in (1, 2, 4, 8):
        if model.heads % tp == 0 and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0):
            kv_heads = max(1, model.kv_heads // tp)
            yield Heads(model, model.key, tp, kv_heads, model.heads // tp // kv_heads, model.head)


def _words(one: Heads) -> str:
    queries = "1 query" if one.group == 1 else f"{one.group} queries each"
    shard = f", 1 of {one.tp} tensor-parallel shards" if one.tp > 1 else ""
    return f"{one.heads} key-value head{'s' if one.heads > 1 else ''} with {queries}{shard}"


def _sequences(batch: int, tokens: int) -> str:
    return f"{batch} sequence{'s' if batch > 1 else ''} of {tokens} tokens"


def _paged(heads: Iterable[Heads]) -> Iterator[Entry]:
    # vLLM's pages hold 16 tokens, those of FlashInfer and FlashMLA 64.
    kinds = (("int8", "float16", 16), (FLOAT8, "bfloat16", 64))
    for one, (batch, tokens), (cached, dtype, page) in product(heads, SERVED, kinds):
        shape = {"batch": batch, "tokens": tokens, "page": page, "heads": one.heads, "group": one.group, "dim": one.dim}
        yield Entry(
            one.model,
            f"{one.key}-{SHORT.get(cached, cached)}",
            f"tp{one.tp}-b{batch}-c{tokens}",
            f"{_words(one)}, {_sequences(batch, tokens)} in {cached} pages of {page}",
            batch * tokens * one.heads * (one.dim + 4 * one.group + 4),
            batch * tokens * one.heads * one.group * one.dim * 3,
            {**shape, "cached": cached, "dtype": dtype},
        )


def _served(
    heads: Iterable[Heads], what: str, width: float, more: dict[str, Any], variant: str = ""
) -> Iterator[Entry]:
    for one, (batch, tokens) in product(heads, SERVED):
        shape = {"batch": batch, "tokens": tokens, "heads": one.heads, "group": one.group, "dim": one.dim}
        yield Entry(
            one.model,
            f"{one.key}{variant}",
            f"tp{one.tp}-b{batch}-c{tokens}",
            f"{_words(one)}, {_sequences(batch, tokens)}, {what}",
            batch * tokens * one.heads * (one.dim * width + 4 * one.group + 8),
            batch * tokens * one.heads * one.group * one.dim * 6,
            {**shape, **more},
        )


def _quantized(heads: Iterable[Heads]) -> Iterator[Entry]:
    for one, tokens, (group, source) in product(heads, NEW, ((0, "bfloat16"), (32, "float16"))):
        if group == 0 or one.dim % group == 0:
            what = f"groups of {group}" if group else "whole heads"
            yield Entry(
                one.model,
                one.key,
                f"tp{one.tp}-m{tokens}-g{group or one.dim}",
                f"keys of {one.heads} heads of {one.dim}, {tokens} new tokens, to 4 bits in {what}",
                tokens * one.heads * one.dim * 4,
                tokens * one.heads * one.dim * 8,
                {"tokens": tokens, "heads": one.heads, "dim": one.dim, "group": group or one.dim, "source": source},
            )


_PARTLY: Final = {
    **{f"pythia-{size}": (0.25, False) for size in ("160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")},
    "gpt-neox-20b": (0.25, False),
    "stablelm-2-1.6b": (0.25, False),
    "stablelm-3b": (0.25, False),
    "phi-1.5": (0.5, False),
    "phi-2": (0.4, False),
    "gpt-j-6b": (0.25, True),
    "glm-4-9b": (0.5, True),
    "glm-4.5": (0.5, False),
    "glm-4.5-air": (0.5, False),
    "nemotron-mini-4b": (0.5, False),
    "nemotron-4-15b": (0.5, False),
    "minimax-text-01": (0.5, False),
    "qwen3-next-80b-a3b": (0.25, False),
    "command-r": (1.0, True),
    "command-r-plus": (1.0, True),
}
"""Models that rotate a part of each head, and those whose pairs are neighbours."""


def _turned(model: Decoder) -> tuple[int, int]:
    """How many elements of a head are rotated; and 2 where pairs are neighbours, else 1."""
    share, neighbours = _PARTLY.get(model.key, (1.0, False))
    return int(model.head * share), 1 + neighbours


def _rotary() -> Iterator[Entry]:
    other = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "mpt-7b", "mpt-30b", "jamba-v0.1", "baichuan2-13b"}
    turning = [m for m in MODELS if m.key not in other and not m.key.startswith(("opt", "bloom", "switch", "nllb"))]
    found = apart(turning, lambda m: (m.kv_heads, m.head, *_turned(m)))
    for model, tokens, dtype in product(found, NEW, ("float16", "bfloat16")):
        turned, pairs = _turned(model)
        shape = {"heads": model.kv_heads, "dim": model.head, "turned": turned, "positions": model.context}
        yield Entry(
            model,
            model.key,
            f"m{tokens}-{dtype}",
            f"keys of {tokens} new tokens, {model.kv_heads} heads, {turned} of {model.head} elements rotated, to int8",
            tokens * model.kv_heads * model.head * 3 + model.context * turned * 2,
            tokens * model.kv_heads * model.head * 12,
            {"tokens": tokens, **shape, "interleaved": pairs == 2, "dtype": dtype},
        )


def _beams() -> Iterator[Entry]:
    speakers = [m for m in ENCODERS if m.key.startswith(("t5", "flan", "bart", "whisper"))]
    for model in apart(speakers, lambda m: (m.heads, m.head)):
        for sequences, beams, tokens in product((1, 8, 32), (4, 8), (64, 224, 448)):
            yield Entry(
                model,
                model.key,
                f"s{sequences}-w{beams}-c{tokens}",
                f"beam search with {beams} beams over {_sequences(sequences, tokens)}, {model.heads} heads",
                sequences * beams * tokens * model.heads * (model.head * 2 + 4),
                sequences * beams * tokens * model.heads * model.head * 2,
                {
                    **{"sequences": sequences, "beams": beams, "tokens": tokens},
                    **{"heads": model.heads, "dim": model.head, "dtype": "float16"},
                },
            )


_DEEPSEEK: Final = Model("DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-V3.2-Exp", "MIT")


def _selected() -> Iterator[Entry]:
    """2048 tokens of a latent cache for each query (DeepSeek-V3.2), fewer in its training's short contexts."""
    for heads, queries, selected, cached in product((128, 32, 16), (1, 8, 64), (512, 2048), ("bfloat16", FLOAT8)):
        yield Entry(
            _DEEPSEEK,
            "deepseek-v3.2",
            f"h{heads}-q{queries}-s{selected}-{SHORT.get(cached, cached)}",
            f"{queries} queries of {heads} heads against {selected} selected tokens of 32768, {cached} cache",
            32768 * 576 * WIDTH[cached] + queries * heads * selected * 4,
            queries * heads * selected * 576 * 2,
            {
                **{"queries": queries, "heads": heads, "selected": selected},
                **{"tokens": 32768, "dim": 576, "cached": cached},
            },
        )


def _indexed() -> Iterator[Entry]:
    for queries, tokens, heads in product((1, 4, 16, 64), (2048, 8192, 32768, 131072), (64, 16)):
        # The scores of all heads stand between the two sums.
        size = queries * heads * tokens * 4
        yield Entry(
            _DEEPSEEK,
            "deepseek-v3.2",
            f"h{heads}-q{queries}-c{tokens}",
            f"indexer of {heads} heads, {queries} queries against {tokens} tokens",
            size,
            queries * heads * tokens * 260,
            {"queries": queries, "heads": heads, "tokens": tokens, "dim": 128},
        )


def _method(name: str, source: str, licence: str, key: str, *shape: Any) -> Sparse:
    return Sparse(Model(name, source, licence), key, *shape)


_SQUARE: Final = ((1024, 1024), (4096, 4096))
_CHUNKS: Final = ((1024, 32768), (4096, 16384))
"""A chunk of a long prompt against all that stands before it."""
SPARSE: Final = (
    # A window of 3 blocks, 3 random ones, the first and the last.
    _method("BigBird-base", "google/bigbird-roberta-base", "Apache-2.0", "bigbird-base", 12, 1, 64, 64, 8, _SQUARE),
    _method("BigBird-large", "google/bigbird-roberta-large", "Apache-2.0", "bigbird-large", 16, 1, 64, 64, 8, _SQUARE),
    # Heads of one of 8 tensor-parallel shards, lists cut to the blocks that carry most of the weight.
    _method("MInference, Llama-3-8B", "microsoft/MInference", "MIT", "minference", 4, 4, 128, 64, 32, _CHUNKS),
    _method("MInference, Yi-9B", "microsoft/MInference", "MIT", "minference-yi", 8, 8, 128, 64, 64, _CHUNKS[:1]),
    _method("SeerAttention, Llama-3.1-8B", "microsoft/SeerAttention", "MIT", "seer", 8, 4, 128, 64, 16, _CHUNKS),
    _method("XAttention, Llama-3.1-8B", "mit-han-lab/x-attention", "MIT", "xattention", 4, 4, 128, 128, 16, _CHUNKS),
    _method(
        "Video sparse attention, Wan2.1-1.3B",
        "hao-ai-lab/FastVideo",
        "Apache-2.0",
        *("vsa", 12, 1, 128, 64, 32),
        _SQUARE,
    ),
    _method("Sparse Transformer", "openai/sparse_attention", "MIT", "sparse-transformer", 8, 1, 64, 32, 16, _SQUARE),
    _method(
        "DeepSpeed sparse attention", "deepspeedai/DeepSpeed", "Apache-2.0", "deepspeed", 16, 1, 64, 16, 8, _SQUARE
    ),
)


def _sparse() -> Iterator[Entry]:
    for one, dtype, (queries, tokens), share in product(SPARSE, ("float16", "bfloat16"), _SQUARE + _CHUNKS, (1, 2, 4)):
        # A rank has all heads, or a half or a quarter of them.
        if (queries, tokens) not in one.runs or one.heads % (share * one.group):
            continue
        heads = one.heads // share
        yield Entry(
            one.model,
            one.key,
            f"h{heads}-q{queries}-c{tokens}-{dtype}",
            f"{heads} heads, {queries} queries, {tokens} tokens in blocks of {one.size}, {one.listed} listed for each",
            heads * (queries * (one.listed * one.size * 4 + one.dim * 4) + tokens // one.group * one.dim * 2),
            heads * queries * one.listed * one.size * one.dim * 2,
            {
                **{"heads": heads, "group": one.group, "blocks": queries // one.size, "sources": tokens // one.size},
                **{"listed": one.listed, "size": one.size, "dim": one.dim, "dtype": dtype},
            },
        )


class Window(NamedTuple):
    """Windowed attention of a model: heads, their width, the window, dilations of its layers, whether causal."""

    model: Model
    key: str
    heads: int
    dim: int
    window: int
    dilations: tuple[int, ...]
    causal: bool
    tokens: tuple[int, ...]


def _window(name: str, source: str, key: str, *shape: Any) -> Window:
    return Window(Model(name, source, "Apache-2.0"), key, *shape)


WINDOWS: Final = (
    # Longformer's pretraining dilates the windows of two heads in its upper layers.
    _window(
        "Longformer-base", "allenai/longformer-base-4096", "longformer-base", 12, 64, 512, (1,), False, (1024, 4096)
    ),
    _window(
        "Longformer dilated",
        "allenai/longformer-base-4096",
        "longformer-dilated",
        2,
        64,
        512,
        (2, 4),
        False,
        (4096, 16384),
    ),
    _window("Longformer-large", "allenai/longformer-large-4096", "longformer-large", 16, 64, 512, (1,), False, (2048,)),
    _window("LED-base", "allenai/led-base-16384", "led-base", 12, 64, 1024, (1,), False, (1024, 4096)),
    _window("LongT5-base", "google/long-t5-local-base", "longt5-base", 12, 64, 255, (1,), False, (4096, 16384)),
    _window("LongT5-large", "google/long-t5-local-large", "longt5-large", 16, 64, 255, (1,), False, (4096,)),
    _window(
        "ModernBERT-base", "answerdotai/ModernBERT-base", "modernbert-base", 12, 64, 129, (1,), False, (512, 2048, 8192)
    ),
    _window(
        "ModernBERT-large", "answerdotai/ModernBERT-large", "modernbert-large", 16, 64, 129, (1,), False, (1024, 8192)
    ),
    _window("gpt-oss-20b", "openai/gpt-oss-20b", "gpt-oss-20b", 8, 64, 128, (1,), True, (1024, 4096, 16384)),
)


def _windows() -> Iterator[Entry]:
    for one, dtype, batch in product(WINDOWS, ("float16", "float32"), (1, 4)):
        for dilation, tokens in product(one.dilations, one.tokens):
            heads = batch * one.heads
            yield Entry(
                one.model,
                one.key,
                f"b{batch}-d{dilation}-c{tokens}-{dtype}",
                f"{heads} heads, {tokens} tokens, a window of {one.window} keys, {dilation} apart",
                heads * tokens * (one.window * 4 + one.dim * 8),
                heads * tokens * one.window * one.dim * 2,
                {
                    **{"heads": heads, "tokens": tokens, "window": one.window, "dilation": dilation},
                    **{"dim": one.dim, "causal": one.causal, "dtype": dtype},
                },
            )
