"""Moves of rows in the published mixtures: to the experts, back, and the gates between their products."""

from collections.abc import Iterator
from functools import partial

from littledragon.compiler.zoo import moe, moe_moves, moe_training
from littledragon.compiler.zoo.block import Case
from littledragon.compiler.zoo.grids.moe_axes import BYTES, HALF, PREFILL, SHARES, TOKENS, case, tokens_of, worth
from littledragon.compiler.zoo.grids.moe_routing import CAPACITY, capacity_of
from littledragon.compiler.zoo.models.language import Mixture

FP8 = "float8_e4m3fn"
FP8_MODELS = (
    "mixtral-8x7b",
    "mixtral-8x22b",
    "phi-3.5-moe",
    "dbrx",
    "deepseek-v3",
    "kimi-k2",
    "glm-4.5",
    "glm-4.5-air",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "ernie-4.5-21b-a3b",
    "ernie-4.5-300b-a47b",
    "hunyuan-a13b",
    "llama-4-scout",
    "llama-4-maverick",
)
"""Also published, or served, in fp8."""
FULL = ("switch-base-8", "nllb-moe-54b")
"""Published in float32; the other Switch models have the first one's rows."""
DENSE = (
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v2",
    "deepseek-v3",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama-4-scout",
    "llama-4-maverick",
)
"""What MaxText also trains by products with one-hot tensors; Switch and NLLB know no other way."""
GATED_SHARED = ("qwen1.5-moe-a2.7b", "qwen2-57b-a14b", "qwen3-next-80b-a3b")
"""A sigmoid says how much of the shared expert a token takes."""
QUANTIZED = (("float16", "int8", 0), ("bfloat16", "int8", 0), ("bfloat16", FP8, 0), ("bfloat16", FP8, 128))
"""From, to and group of activations that are quantised: a scale a row, or, for fp8, one for 128 elements."""


def _dispatch(model: Mixture) -> Iterator[Case]:
    for tokens in TOKENS:
        slots = tokens * model.top
        for dtype in (*HALF, *([FP8] if model.key in FP8_MODELS else []), *(["float32"] if model.key in FULL else [])):
            if worth((tokens + slots) * model.hidden * BYTES[dtype], iterations=slots * model.hidden):
                about = f"rows sent to experts, {model.top} of each of {tokens_of(tokens)}"
                yield case(f"m{tokens}", about, tokens=tokens, slots=slots, hidden=model.hidden, dtype=dtype)


def _dispatch_capacity(model: Mixture) -> Iterator[Case]:
    for spread in (1, 8, 64):
        for rows in SHARES:
            experts, tokens = model.experts // spread, min(8192, rows * model.experts // model.top)
            size = (experts * rows + tokens) * model.hidden * 2
            if model.experts % spread or experts < 2 or not worth(size):
                continue
            for dtype in HALF:
                about = (
                    f"rows sent to {experts} of {model.experts} experts, {rows} at most to each, {tokens_of(tokens)}"
                )
                shape = {"experts": experts, "rows": rows, "tokens": tokens, "hidden": model.hidden}
                yield case(f"ep{spread}-c{rows}", about, **shape, dtype=dtype)


def _dispatch_quantize(model: Mixture) -> Iterator[Case]:
    for tokens in TOKENS:
        slots = tokens * model.top
        for dtype, to, group in QUANTIZED:
            if (group and model.hidden % group) or not worth(
                (2 * tokens + slots) * model.hidden, iterations=3 * slots * model.hidden
            ):
                continue
            about = f"rows sent to experts and quantised, {model.top} of each of {tokens_of(tokens)}"
            shape = {"tokens": tokens, "top": model.top, "hidden": model.hidden, "group": group}
            yield case(f"m{tokens}-g{group}", about, **shape, dtype=dtype, to=to)


def _back(
    model: Mixture, *, what: str, tokens: tuple[int, ...] = TOKENS, dtypes: tuple[str, ...] = HALF, least: int = 2
) -> Iterator[Case]:
    """What goes through `top` rows a token."""
    for count in tokens if model.top >= least else ():
        for dtype in dtypes:
            size = (1 + model.top) * count * model.hidden * BYTES[dtype]
            if worth(size, iterations=count * model.top * model.hidden):
                about = f"{what}, {model.top} of each of {tokens_of(count)}"
                yield case(f"m{count}", about, tokens=count, top=model.top, hidden=model.hidden, dtype=dtype)


def _combine_shared(model: Mixture) -> Iterator[Case]:
    for one in _back(model, what="experts' rows and the shared expert's added up") if model.shared_inner else ():
        if worth((2 + model.top) * one.shape["tokens"] * model.hidden * 2):
            yield case(one.name.partition("-")[0], one.about, **one.shape, gated=model.key in GATED_SHARED)


def _expert_sum(model: Mixture) -> Iterator[Case]:
    for one in _back(model, what="rows of experts added up"):
        name, dtype = one.name.split("-")
        for weighted in (False, True) if dtype == "bfloat16" else (False,):
            yield case(f"{name}-{'weighted' if weighted else 'plain'}", one.about, **one.shape, weighted=weighted)
        if model.shared_inner and worth((2 + model.top) * one.shape["tokens"] * model.hidden * 2):
            yield case(
                f"{name}-shared", f"{one.about}, and the shared expert's", **one.shape, weighted=False, shared=True
            )


def _shared_gate(model: Mixture) -> Iterator[Case]:
    for tokens in TOKENS if model.key in GATED_SHARED else ():
        for dtype in HALF:
            if worth(3 * tokens * model.hidden * 2, iterations=2 * tokens * model.hidden):
                about = f"gate of the shared expert, {tokens_of(tokens)}"
                yield case(f"m{tokens}", about, tokens=tokens, hidden=model.hidden, dtype=dtype)


def _einsum(model: Mixture) -> Iterator[Case]:
    """Groups of a sequence each. Room for 1.25 times the even share in training, twice it in evaluation."""
    first = not model.gated
    for tokens in (512, 2048) if first or model.key in DENSE else ():
        for groups in (1, 8):
            for factor in (CAPACITY, 2.0) if first else (CAPACITY,):
                rows = capacity_of(model, tokens, factor)
                places = model.experts * rows
                for dtype in ("float32", "bfloat16") if first else HALF[1:]:
                    size = groups * (tokens * places + (tokens + places) * model.hidden) * BYTES[dtype]
                    if worth(size, 2 * groups * tokens * places * model.hidden):
                        about = f"{model.experts} experts of {rows} rows, {groups} sequences of {tokens_of(tokens)}"
                        shape = {"groups": groups, "tokens": tokens, "experts": model.experts, "capacity": rows}
                        yield case(f"b{groups}-m{tokens}-c{rows}", about, **shape, hidden=model.hidden, dtype=dtype)


def _gate(model: Mixture) -> Iterator[Case]:
    gate = "clamped" if model.key.startswith("gpt-oss") else model.activation
    for tensor, inner in _widths(model, (1, 4)):
        for tokens in TOKENS:
            rows = tokens * model.top
            for dtype in HALF:
                if worth(3 * rows * inner * 2, iterations=2 * rows * inner):
                    about = f"gate of the experts{_cut(tensor)}, {model.top} rows of each of {tokens_of(tokens)}"
                    yield case(f"tp{tensor}-m{tokens}", about, rows=rows, inner=inner, dtype=dtype, gate=gate)


def _gate_masked(model: Mixture) -> Iterator[Case]:
    for spread in (1, 8, 64):
        experts = model.experts // spread
        if not model.gated or model.experts % spread or experts < 2 or model.key.startswith("gpt-oss"):
            continue
        for rows in SHARES:
            if worth(3 * experts * rows * model.expert_inner * 2):
                about = f"gate of {experts} of {model.experts} experts, {rows} rows each at most"
                shape = {"experts": experts, "rows": rows, "inner": model.expert_inner, "gate": model.activation}
                yield case(f"ep{spread}-c{rows}", about, **shape, dtype="bfloat16")


def _gate_quantize(model: Mixture) -> Iterator[Case]:
    for tensor, inner in _widths(model, (1, 4)) if not model.key.startswith("gpt-oss") else ():
        for tokens in TOKENS:
            rows = tokens * model.top
            for dtype, to, group in QUANTIZED if tensor == 1 else QUANTIZED[2:]:
                if (group and (inner % group or inner == group)) or not worth(
                    5 * rows * inner, iterations=3 * rows * inner
                ):
                    continue
                about = f"gate of the experts{_cut(tensor)}, quantised, {model.top} rows of each of {tokens_of(tokens)}"
                shape = {"rows": rows, "inner": inner, "group": group, "gate": model.activation}
                yield case(f"tp{tensor}-m{tokens}-g{group}", about, **shape, dtype=dtype, to=to)


def _gate_grad(model: Mixture) -> Iterator[Case]:
    for tensor, inner in _widths(model, (1, 4)) if model.activation == "silu" else ():
        for tokens in PREFILL:
            rows = tokens * model.top
            if worth(5 * rows * inner * 2):
                about = f"gradients of the experts' gate{_cut(tensor)}, {model.top} rows of each of {tokens_of(tokens)}"
                yield case(f"tp{tensor}-m{tokens}", about, rows=rows, inner=inner, dtype="bfloat16")


def _widths(model: Mixture, cuts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Into how many parts experts with a gate are cut, and how wide a part is."""
    for tensor in cuts if model.gated else ():
        if model.expert_inner % (16 * tensor) == 0:
            yield tensor, model.expert_inner // tensor


def _cut(tensor: int) -> str:
    return f" cut in {tensor}" if tensor > 1 else ""


OPERATORS = (
    ("dispatch", moe_moves.dispatch, _dispatch),
    ("dispatch_capacity", moe_moves.dispatch_capacity, _dispatch_capacity),
    ("dispatch_quantize", moe.dispatch_quantize, _dispatch_quantize),
    ("combine", moe.combine, partial(_back, what="weighted sum of experts' rows")),
    ("combine_shared", moe_moves.combine_shared, _combine_shared),
    ("expert_sum", moe_moves.expert_sum, _expert_sum),
    ("shared_expert_gate", moe_moves.shared_expert_gate, _shared_gate),
    ("einsum_dispatch", moe_moves.einsum_dispatch, _einsum),
    ("einsum_combine", moe_moves.einsum_combine, _einsum),
    ("silu_mul", moe.silu_mul, _gate),
    ("silu_mul_masked", moe.silu_mul_masked, _gate_masked),
    ("silu_mul_quantize", moe.silu_mul_quantize, _gate_quantize),
    ("silu_mul_grad", moe_training.silu_mul_grad, _gate_grad),
    (
        "dispatch_grad",
        moe_training.dispatch_grad,
        partial(_back, what="gradients of dispatched rows", tokens=PREFILL, dtypes=("bfloat16",)),
    ),
    (
        "combine_rows_grad",
        moe_training.combine_rows_grad,
        partial(_back, what="gradients of experts' rows", tokens=PREFILL, dtypes=("bfloat16",), least=1),
    ),
    (
        "combine_weight_grad",
        moe_training.combine_weight_grad,
        partial(_back, what="gradients of routing weights", tokens=PREFILL, dtypes=("bfloat16", "float32"), least=1),
    ),
)
