"""Prompts and training of published decoders: causal attention, its gradients, windows, biases, positions."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from littledragon.compiler.zoo import attention, attention_backward, attention_bias, attention_rotary
from littledragon.compiler.zoo.block import Block
from littledragon.compiler.zoo.grids.attention_listing import (
    LEARNED,
    MODELS,
    Choice,
    Entry,
    Heads,
    listed,
    near,
    own,
    sequences,
    shards,
    words,
)
from littledragon.compiler.zoo.models.language import Decoder

# Sequences, new tokens of each, and tokens up to the last of them: whole prompts, and chunks of long ones.
WHOLE: Final = ((1, 512, 512), (1, 2048, 2048), (4, 512, 512), (8, 128, 128), (32, 64, 64), (8, 1024, 1024))
CHUNKS: Final = ((1, 128, 4096), (1, 512, 2048), (1, 512, 8192), (1, 2048, 8192), (4, 256, 1024))
GROUPED: Final = (
    *((1, 256, 256), (1, 1024, 1024), (1, 256, 8192), (1, 1024, 4096), (1, 64, 16384), (1, 2048, 2048)),
    *((4, 512, 512), (8, 64, 64), (16, 256, 256), (8, 128, 2048)),
)
PACKED: Final = (512, 2048, 4096)
"""Tokens of a row that is packed with documents."""
TRAINED: Final = ((1, 1024), (1, 4096), (4, 512), (2, 2048), (16, 256), (8, 1024), (64, 128))
"""Sequences of a training step, and tokens of each."""
BIASED: Final = (
    *((1, 512, 512), (1, 2048, 2048), (1, 512, 4096), (4, 128, 1024), (8, 256, 256)),
    *((1, 1, 2048), (8, 1, 8192), (32, 1, 1024), (32, 64, 64)),
)
SINKS: Final = ((1, 512, 512), (1, 2048, 2048), (1, 512, 8192), (1, 128, 32768), (8, 128, 128), (32, 1, 2048))
NEW: Final = ((1, 128), (1, 512), (1, 2048), (8, 32), (8, 1), (64, 1))
"""Sequences and new tokens of each, after as many as fill the window."""
TOKENS: Final = (8, 32, 128, 512)
"""Tokens that are turned at once: a decoding batch, drafts, a short prompt."""
MOST_TURNED: Final = 1 << 18
"""Elements that one function turns: TVM's rules bind more than 256 blocks of 1024 threads in one way alone."""
NORMALISED: Final = (8, 128, 512, 2048, 8192)

NEIGHBOURS: Final = ("gpt-j", "glm-4-9b", "command-r", "llama-4")
"""Those that turn neighbours, as GPT-J does."""
PART: Final = {
    "pythia": 4,
    "gpt-neox": 4,
    "gpt-j": 4,
    "stablelm": 4,
    "qwen3-next": 4,
    "phi-1.5": 2,
    "glm-4": 2,
    "nemotron": 2,
    "minimax": 2,
}
"""Those that turn only a part of each head: one of so many."""
BY_HEAD: Final = ("qwen3", "gemma-3", "glm-4.5", "dots")
"""Those that normalise each head's queries and keys before they are turned."""
NOT_NORMALISED: Final = ("glm-4.5-air",)
TOGETHER: Final = ("olmo-2", "olmoe")
"""Those that normalise all heads as one vector."""
LINEAR_BIAS: Final = ("bloom", "mpt", "baichuan2-13b")
CAPPED: Final = ("gemma-2-", "grok")


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    every = [heads for model in MODELS for heads in shards(model)]
    grouped, single = (Choice(h for h in every if (h.group == 1) is one) for one in (False, True))
    yield from listed("mha_prefill", attention.eager_attention, _eager(single))
    yield from listed("gqa_prefill", attention.gqa_prefill, _grouped(grouped))
    yield from listed("document_attention", attention.document_attention, _documents(Choice(every)))
    yield from listed("attention_backward", attention_backward.attention_backward, _trained(Choice(every)))
    yield from listed("window_attention", attention_bias.window_attention, _windows())
    for form, keys, about in (
        ("alibi", LINEAR_BIAS, "with a linear bias"),
        ("soft_cap", CAPPED, "with softly capped scores"),
    ):
        yield from listed(f"{form}_scores", attention_bias.biased_scores, _biased(form, keys, about))
    yield from listed("sink_softmax", attention_bias.sink_softmax, _sinks())
    turning = [h for h in every if not h.model.key.startswith(LEARNED)]
    yield from listed("rotary", attention_rotary.rotary, _rotary(turning, TOKENS, MOST_TURNED))
    yield from listed("projected_rotary", attention_rotary.projected_rotary, _projected())
    normalising = [h for h in turning if h.model.key.startswith(BY_HEAD) and h.model.key not in NOT_NORMALISED]
    yield from listed("qk_norm_rotary", attention_rotary.qk_norm_rotary, _rotary(normalising, NORMALISED, 1 << 27))
    yield from listed("wide_norm_rotary", attention_rotary.wide_norm_rotary, _wide())


def _eager(choice: Choice) -> Iterator[Entry]:
    for number, (batch, queries, keys) in enumerate((*WHOLE, *CHUNKS)):
        for one in choice.taken(number):
            area = batch * one.kv_heads * queries * keys
            shape = {"batch": batch, "heads": one.kv_heads, "queries": queries, "keys": keys, "dim": one.dim}
            yield Entry(
                one.model,
                one.model.key,
                f"tp{one.tp}-b{batch}-q{queries}-c{keys}",
                f"causal attention of {words(one)}, {_prompt(batch, queries, keys)}",
                area * 6.1,
                area * one.dim * 2,
                {**shape, "dtype": own(one.model), "mask": "causal"},
            )


def _grouped(choice: Choice) -> Iterator[Entry]:
    for number, (batch, queries, keys) in enumerate(GROUPED):
        for one in choice.taken(number):
            area = batch * one.kv_heads * one.group * queries * keys
            yield _entry(
                one,
                f"b{batch}-q{queries}-c{keys}",
                f"causal attention of {words(one)}, {_prompt(batch, queries, keys)}",
                area * 6,
                area * one.dim * 2,
                {"batch": batch, "queries": queries, "keys": keys},
            )


def _documents(choice: Choice) -> Iterator[Entry]:
    for number, tokens in enumerate(PACKED):
        for one in choice.taken(number):
            area = one.kv_heads * one.group * tokens * tokens
            yield _entry(
                one,
                f"s{tokens}",
                f"causal attention of {words(one)}, documents packed into a row of {tokens} tokens",
                area * 6,
                area * one.dim * 2,
                {"tokens": tokens},
            )


def _trained(choice: Choice) -> Iterator[Entry]:
    for number, (batch, tokens) in enumerate(TRAINED):
        for one in choice.taken(number):
            area = batch * one.kv_heads * one.group * tokens * tokens
            yield _entry(
                one,
                f"b{batch}-s{tokens}",
                f"backward step of attention, {words(one)}, {sequences(batch, tokens)}",
                area * 8,
                area * one.dim * 2,
                {"batch": batch, "tokens": tokens},
            )


def _windows() -> Iterator[Entry]:
    for model in MODELS:
        for one in shards(model) if model.window else ():
            for batch, queries in NEW:
                keys = model.window + queries
                area = batch * one.kv_heads * one.group * queries * keys
                yield _entry(
                    one,
                    f"b{batch}-q{queries}",
                    f"{queries} new tokens after a window of {model.window}, {words(one)}, batch {batch}",
                    area * 6 + batch * one.kv_heads * keys * one.dim * 2,
                    area * one.dim * 2,
                    {"batch": batch, "queries": queries, "window": model.window},
                )


def _biased(form: str, keys_of: tuple[str, ...], about: str) -> Iterator[Entry]:
    choice = Choice(h for model in MODELS if model.key.startswith(keys_of) for h in shards(model))
    for number, (batch, queries, keys) in enumerate(BIASED):
        for one in choice.taken(number):
            heads = one.kv_heads * one.group
            area = batch * heads * queries * keys
            yield Entry(
                one.model,
                one.model.key,
                f"tp{one.tp}-b{batch}-q{queries}-c{keys}",
                f"scores of {heads} heads {about}, {_prompt(batch, queries, keys)}",
                area * 4 + batch * heads * keys * one.dim * 2,
                area * one.dim * 2,
                {
                    **{"batch": batch, "heads": heads, "queries": queries, "keys": keys, "dim": one.dim},
                    **{"dtype": own(one.model), "form": form},
                },
            )


def _sinks() -> Iterator[Entry]:
    """gpt-oss has a sink in every layer; its two sizes have the same heads."""
    model = next(model for model in MODELS if model.key == "gpt-oss-20b")
    for tp in (1, 2, 4, 8):
        for batch, queries, keys in SINKS:
            for dtype in ("bfloat16", "float32"):
                heads = model.heads // tp
                area = batch * heads * queries * keys
                yield Entry(
                    model,
                    model.key,
                    f"tp{tp}-b{batch}-q{queries}-c{keys}-{dtype}",
                    f"softmax with a sink for each of {heads} heads, {_prompt(batch, queries, keys)}",
                    area * (4 if dtype == "bfloat16" else 8),
                    area * 8,
                    {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "dtype": dtype},
                )


def _rotary(heads: Iterable[Heads], counts: tuple[int, ...], most: int) -> Iterator[Entry]:
    """Queries and keys are turned in one go, where they lie in the packed projection."""
    choices: dict[tuple[int, str], list[Heads]] = {}
    for one in heads:
        choices.setdefault(_turned(one.model), []).append(one)
    for (share, pairs), kin in choices.items():
        # Heads of queries and keys, then those of values, which are no extent of what is computed.
        packed = (one._replace(kv_heads=one.kv_heads * (one.group + 1), group=one.kv_heads) for one in kin)
        choice = Choice(packed, grouped=False)
        for number, tokens in enumerate(counts):
            for one in choice.taken(number):
                turned = _width(one.model, share)
                if tokens * one.kv_heads * one.dim > most:
                    continue
                yield Entry(
                    one.model,
                    one.model.key,
                    f"tp{one.tp}-m{tokens}",
                    f"{turned} of {one.dim} elements of queries and keys turned, {one.kv_heads} heads, {tokens} tokens",
                    tokens * (2 * one.kv_heads + one.group) * one.dim * 2,
                    tokens * one.kv_heads * one.dim * 16,
                    {
                        **{"tokens": tokens, "heads": one.kv_heads, "others": one.group, "dim": one.dim},
                        **{"turned": turned, "positions": one.model.context, "dtype": own(one.model), "pairs": pairs},
                    },
                )


def _projected() -> Iterator[Entry]:
    """Keys of each layer, where they are projected; the shard's heads, and the hidden size that all shards have."""
    taken: list[tuple[int, ...]] = []
    for model in MODELS:
        one = next(shards(model), None)
        numbers = (model.hidden, model.kv_heads, model.head)
        if one is None or model.key.startswith(LEARNED) or model.qk_norm or any(near(numbers, t) for t in taken):
            continue
        taken.append(numbers)
        share, pairs = _turned(model)
        for tokens in NORMALISED:
            yield Entry(
                model,
                model.key,
                f"tp{one.tp}-m{tokens}",
                f"keys of {one.kv_heads} heads projected and turned, {tokens} tokens",
                tokens * (model.hidden + one.kv_heads * one.dim) * 2 + one.kv_heads * one.dim * model.hidden * 2,
                tokens * one.kv_heads * one.dim * model.hidden * 2,
                {
                    **{"tokens": tokens, "hidden": model.hidden, "heads": one.kv_heads, "dim": one.dim},
                    **{"turned": _width(model, share), "positions": model.context, "dtype": own(model), "pairs": pairs},
                },
            )


def _wide() -> Iterator[Entry]:
    for model in (m for m in MODELS if m.key.startswith(TOGETHER)):
        for heads, others in ((model.heads, 2 * model.kv_heads), (model.kv_heads, model.kv_heads)):
            for tokens in NORMALISED:
                yield Entry(
                    model,
                    model.key,
                    f"h{heads}-o{others}-m{tokens}",
                    f"{heads} heads normalised as one vector and turned, {tokens} tokens",
                    tokens * (2 * heads + others) * model.head * 2,
                    tokens * heads * model.head * 16,
                    {
                        **{"tokens": tokens, "heads": heads, "others": others, "dim": model.head},
                        **{"positions": model.context, "dtype": own(model)},
                    },
                )


def _width(model: Decoder, share: int) -> int:
    """Elements of a head that are turned; 0.4 of 80 in Phi-2."""
    return 32 if model.key == "phi-2" else model.head // share


def _turned(model: Decoder) -> tuple[int, str]:
    share = next((share for key, share in PART.items() if model.key.startswith(key)), 1)
    return share, "neighbours" if model.key.startswith(NEIGHBOURS) else "halves"


def _prompt(batch: int, queries: int, keys: int) -> str:
    return sequences(batch, keys) if queries == keys else f"{queries} new of {sequences(batch, keys)}"


def _entry(one: Heads, name: str, about: str, size: float, flops: float, more: dict[str, int]) -> Entry:
    shape: dict[str, Any] = {"kv_heads": one.kv_heads, "group": one.group, "dim": one.dim, **more}
    shape["dtype"] = own(one.model)
    return Entry(one.model, one.model.key, f"tp{one.tp}-{name}", about, size, flops, shape)
