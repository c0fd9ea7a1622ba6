"""Routing of the published mixtures: scores, choices, tables of rows, losses."""

from collections.abc import Iterator
from functools import partial

from littledragon.compiler.zoo import moe, moe_routing, moe_training
from littledragon.compiler.zoo.block import Case
from littledragon.compiler.zoo.grids.moe_axes import BYTES, HALF, LONG, PREFILL, TOKENS, case, tokens_of, worth
from littledragon.compiler.zoo.models.language import Mixture

CORRECTED = ("deepseek-v3", "kimi-k2", "glm-4.5", "glm-4.5-air", "dots.llm1")
"""Their experts are chosen by sigmoid plus a correction, as DeepSeek-V3 began."""
SIGMOID = ("llama-4-scout", "llama-4-maverick")
GROUPS = {"deepseek-v2": (8, 1), "deepseek-v3": (8, 2)}
"""Groups that experts are chosen in, and how many of a group's experts its score is from."""
TOP_SOFTMAX = (
    "mixtral-8x7b",
    "mixtral-8x22b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "granite-3.0-1b-a400m",
    "granite-3.0-3b-a800m",
)
"""Their weights are a softmax over the chosen experts alone."""
UNSCALED = ("qwen1.5-moe-a2.7b", "qwen2-57b-a14b", "olmoe-1b-7b", "deepseek-moe-16b", "deepseek-v2-lite", "deepseek-v2")
"""Their weights are the chosen experts' probabilities as they are."""
CAPACITY = 1.25
"""Room of an expert over its even share of the tokens, as Switch trains."""


def _logits(model: Mixture) -> Iterator[Case]:
    score = "bias" if model.bias == "all" and model.gated else "none"
    for tokens in TOKENS:
        for dtype in (*HALF, "float32"):
            if worth(tokens * model.hidden * BYTES[dtype], iterations=tokens * model.experts * model.hidden):
                about = f"router over {model.experts} experts, {tokens_of(tokens)}"
                shape = {"tokens": tokens, "experts": model.experts, "hidden": model.hidden}
                yield case(f"m{tokens}", about, **shape, dtype=dtype, score=score)


def _sigmoid(model: Mixture) -> Iterator[Case]:
    score = "corrected" if model.key in CORRECTED else "sigmoid" if model.key in SIGMOID else None
    for tokens in TOKENS if score else ():
        for dtype in (*HALF, "float32"):
            about = f"router over {model.experts} experts with its sigmoid, {tokens_of(tokens)}"
            shape = {"tokens": tokens, "experts": model.experts, "hidden": model.hidden}
            yield case(f"m{tokens}", about, **shape, dtype=dtype, score=score)


def _scores(
    model: Mixture, *, what: str, dtypes: tuple[str, ...], passes: int, tokens: tuple[int, ...]
) -> Iterator[Case]:
    """A matrix of tokens and experts, which is gone through `passes` times."""
    for count in tokens:
        for dtype in dtypes:
            if worth(0, iterations=count * model.experts * passes):
                about = f"{what} {model.experts} experts, {tokens_of(count)}"
                yield case(f"m{count}", about, tokens=count, experts=model.experts, dtype=dtype)


def _top_expert(model: Mixture) -> Iterator[Case]:
    if model.top == 1:
        yield from _scores(model, what="the best of", dtypes=("float32",), passes=1, tokens=(128, *LONG))


def _group_scores(model: Mixture) -> Iterator[Case]:
    if model.key not in GROUPS:
        return
    groups, best = GROUPS[model.key]
    for tokens in (32, 128, *LONG):
        for dtype in ("bfloat16", "float32"):
            about = f"scores of {groups} groups of experts, {tokens_of(tokens)}"
            shape = {"tokens": tokens, "groups": groups, "size": model.experts // groups, "best": best}
            yield case(f"m{tokens}", about, **shape, dtype=dtype)


def _rank(model: Mixture) -> Iterator[Case]:
    for tokens in TOKENS:
        if model.top > 1 and worth(0, iterations=tokens * model.experts**2):
            about = f"choice of {model.top} of {model.experts} experts, {tokens_of(tokens)}"
            shape = {"tokens": tokens, "experts": model.experts, "top": model.top}
            yield case(f"m{tokens}", about, **shape, dtype="float32")


def _weights(model: Mixture) -> Iterator[Case]:
    if model.top == 1 or model.key in UNSCALED:
        return
    scores = "softmax" if model.key in TOP_SOFTMAX else "share"
    for tokens in LONG:
        if worth(0, iterations=tokens * model.top * (4 if scores == "softmax" else 2)):
            about = f"weights of {model.top} of {model.experts} experts, {tokens_of(tokens)}"
            shape = {"tokens": tokens, "experts": model.experts, "top": model.top}
            yield case(f"m{tokens}", about, **shape, scores=scores, dtype="float32")


def _counts(model: Mixture) -> Iterator[Case]:
    for tokens in (*TOKENS[1:], 32768):
        slots = tokens * model.top
        for spread in (1, 8):
            experts = model.experts // spread
            if model.experts % spread == 0 and experts > 1 and worth(0, iterations=slots * experts):
                about = f"rows of each of {experts} of {model.experts} experts, {tokens_of(tokens)}"
                yield case(f"ep{spread}-m{tokens}", about, slots=slots, experts=experts, chunks=1)
        if tokens in LONG:
            about = f"rows of each of {model.experts} experts by parts of 256, {tokens_of(tokens)}"
            yield case(f"parts-m{tokens}", about, slots=slots, experts=model.experts, chunks=slots // 256)


def _tiles(model: Mixture) -> Iterator[Case]:
    """Tiles as vLLM has them: of 16 rows for few tokens, of 64 and 128 for many; at most one of each expert's is not
    full."""
    for tokens, tile in ((128, 16), (2048, 64), (8192, 128), (32768, 128)):
        slots = tokens * model.top
        tiles = slots // tile + min(model.experts, slots)
        if worth(0, iterations=tiles * model.experts):
            about = f"experts of {tiles} tiles of {tile} rows, {tokens_of(tokens)}"
            yield case(f"m{tokens}", about, tiles=tiles, experts=model.experts, tile=tile)


def _queue(model: Mixture) -> Iterator[Case]:
    for tokens in (128, *PREFILL[:2]):
        capacity = capacity_of(model, tokens, CAPACITY)
        if worth(0, iterations=tokens * tokens * model.experts):
            about = f"places in the queues of {model.experts} experts, {tokens_of(tokens)}"
            yield case(f"m{tokens}", about, tokens=tokens, experts=model.experts, capacity=capacity)


def capacity_of(model: Mixture, tokens: int, factor: float) -> int:
    """Rows that an expert takes at most."""
    return max(1, round(tokens * model.top * factor / model.experts))


_FLOATS = ("bfloat16", "float32")
OPERATORS = (
    ("router_logits", moe.router, _logits),
    ("router_sigmoid", moe.router, _sigmoid),
    (
        "router_softmax",
        moe_routing.router_softmax,
        partial(_scores, what="softmax over", dtypes=_FLOATS, passes=4, tokens=(32, 128, *LONG)),
    ),
    ("top_expert", moe_routing.top_expert, _top_expert),
    ("group_scores", moe_routing.group_scores, _group_scores),
    ("expert_rank", moe_routing.expert_rank, _rank),
    ("topk_weights", moe_routing.topk_weights, _weights),
    ("expert_counts", moe_routing.expert_counts, _counts),
    ("tile_experts", moe_routing.tile_experts, _tiles),
    ("queue_place", moe_routing.queue_place, _queue),
    (
        "balance_loss",
        moe_routing.balance_loss,
        partial(_scores, what="load-balancing loss of", dtypes=_FLOATS, passes=1, tokens=LONG),
    ),
    (
        "router_z_loss",
        moe_routing.router_z_loss,
        partial(_scores, what="z-loss of the router over", dtypes=_FLOATS, passes=2, tokens=LONG),
    ),
    (
        "router_grad",
        moe_training.router_grad,
        partial(_scores, what="gradient of the softmax over", dtypes=_FLOATS, passes=2, tokens=LONG),
    ),
)
