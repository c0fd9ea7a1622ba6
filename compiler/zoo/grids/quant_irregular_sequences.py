"""Masked and shifted operators of sequence models: chunks of linear attention, dropout of training, token shift."""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from littledragon.compiler.zoo import quant_irregular_slices as slices
from littledragon.compiler.zoo.block import Block, Model
from littledragon.compiler.zoo.grids.quant_irregular_listing import WIDTH, Entry, apart, listed
from littledragon.compiler.zoo.models.language import DECODERS, ENCODERS, Decoder, Encoder

_MIT, _APACHE = "MIT", "Apache-2.0"


class Chunks(NamedTuple):
    """Linear attention in chunks: heads, width of keys (the state), width of values, size of a chunk, and its decay."""

    model: Model
    key: str
    heads: int
    state: int
    dim: int
    size: int
    decay: str


CHUNKS: Final = (
    *(
        Chunks(
            Model(f"Mamba2-{size}", f"state-spaces/mamba2-{size.lower()}", _APACHE),
            f"mamba2-{size.lower()}",
            heads,
            128,
            64,
            256,
            "data",
        )
        for size, heads in (("130M", 24), ("370M", 32), ("780M", 48), ("1.3B", 64), ("2.7B", 80))
    ),
    Chunks(
        Model("Codestral-Mamba-7B", "mistralai/Mamba-Codestral-7B-v0.1", _APACHE),
        "codestral",
        128,
        128,
        64,
        256,
        "data",
    ),
    Chunks(
        Model("Nemotron-H-8B", "nvidia/Nemotron-H-8B-Base-8K", "NVIDIA Open Model License"),
        "nemotron-h",
        128,
        128,
        64,
        128,
        "data",
    ),
    Chunks(
        Model("Falcon-H1-1.5B", "tiiuae/Falcon-H1-1.5B-Base", "Falcon-LLM License"),
        "falcon-h1",
        48,
        256,
        64,
        256,
        "data",
    ),
    Chunks(Model("Zamba2-1.2B", "Zyphra/Zamba2-1.2B", _APACHE), "zamba2", 64, 128, 64, 256, "data"),
    Chunks(
        Model("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", _APACHE), "qwen3-next", 32, 128, 128, 64, "data"
    ),
    Chunks(
        Model("Kimi-Linear-48B-A3B", "moonshotai/Kimi-Linear-48B-A3B-Instruct", _MIT),
        "kimi-linear",
        32,
        128,
        128,
        64,
        "data",
    ),
    Chunks(Model("GLA-1.3B", "fla-hub/gla-1.3B-100B", _MIT), "gla-1.3b", 4, 256, 512, 64, "data"),
    Chunks(Model("RetNet-2.7B", "microsoft/torchscale", _MIT), "retnet-2.7b", 10, 256, 512, 512, "fixed"),
    Chunks(Model("RetNet-1.3B", "fla-hub/retnet-1.3B-100B", _MIT), "retnet-1.3b", 8, 256, 512, 128, "fixed"),
    Chunks(
        Model("MiniMax-Text-01", "MiniMaxAI/MiniMax-Text-01", "MiniMax Model License"),
        "minimax-text-01",
        64,
        128,
        128,
        256,
        "fixed",
    ),
    Chunks(
        Model("TransNormerLLM-7B", "OpenNLPLab/TransNormerLLM-7B", _APACHE), "transnormer", 32, 128, 128, 128, "fixed"
    ),
)


RWKV: Final = tuple(
    (
        Model(f"RWKV-{version}-{size}", f"BlinkDL/rwkv-{version[0]}-world", _APACHE),
        f"rwkv-{version}-{size.lower()}",
        hidden,
    )
    for version, size, hidden in (
        *(("4", "169M", 768), ("4", "430M", 1024), ("6", "1.6B", 2048), ("6", "3B", 2560), ("6", "7B", 4096)),
        ("4", "14B", 5120),
    )
)


def blocks() -> Iterator[Block]:
    """Operator by operator."""
    yield from listed("chunk_scores", slices.chunk_scores, _chunks("scores"))
    yield from listed("chunk_context", slices.chunk_context, _chunks("context"))
    yield from listed("chunk_state", slices.chunk_state, _chunks("state"))
    yield from listed("dropout_norm", slices.dropout_norm, _dropped())
    yield from listed("dropout_context", slices.dropout_context, _dropped_context())
    yield from listed("shift_matmul", slices.shift_matmul, _shifted())


def _chunks(kind: str) -> Iterator[Entry]:
    for one, tokens, share, dtype in product(CHUNKS, (1024, 4096, 16384), (1, 4), ("bfloat16", "float32")):
        if one.heads % share:
            continue
        chunks, heads = tokens // one.size, one.heads // share
        rows = tokens * heads
        shard = f", 1 of {share} shards" if share > 1 else ""
        shape = {"chunks": chunks, "heads": heads, "size": one.size}
        more = {
            "scores": {"dim": one.state, "decay": one.decay, "dtype": dtype},
            "context": {"dim": one.dim, "dtype": dtype},
            "state": {"dim": one.dim, "state": one.state, "dtype": dtype},
        }[kind]
        widths = {
            "scores": (2 * one.state + one.size, one.size * one.state),
            "context": (2 * one.dim + one.size, one.size * one.dim),
            "state": (one.dim + one.state + one.dim * one.state * 2 // one.size, one.dim * one.state),
        }[kind]
        yield Entry(
            one.model,
            one.key,
            f"m{tokens}-h{heads}-{dtype}",
            f"{heads} heads{shard}, {tokens} tokens in chunks of {one.size}, {dtype}",
            rows * (widths[0] * WIDTH[dtype] + 4),
            rows * widths[1] * 3,
            {**shape, **more},
        )


def _dropped() -> Iterator[Entry]:
    models: tuple[Encoder | Decoder, ...] = (*ENCODERS, *DECODERS)
    trained = [m for m in models if m.key.startswith(("bert", "roberta", "t5", "bart", "gpt2", "opt", "vit"))]
    for model, rows, dtype in product(
        apart(trained, lambda m: (m.hidden,)), (256, 1024, 4096, 16384), ("float16", "bfloat16", "float32")
    ):
        yield Entry(
            model,
            model.key,
            f"m{rows}-{dtype}",
            f"residual of {rows} tokens after dropout, normalised, {dtype}",
            rows * model.hidden * (3 * WIDTH[dtype] + 1),
            rows * model.hidden * 10,
            {"rows": rows, "hidden": model.hidden, "dtype": dtype},
        )


def _dropped_context() -> Iterator[Entry]:
    trained = [m for m in ENCODERS if m.key.startswith(("bert", "t5", "bart", "vit", "deberta", "clip"))]
    for model, batch, tokens, dtype in product(
        apart(trained, lambda m: (m.heads, m.head), 1.1), (1, 8, 32), (128, 512), ("float16", "bfloat16")
    ):
        yield Entry(
            model,
            model.key,
            f"b{batch}-s{tokens}-{dtype}",
            f"context of {model.heads} heads, {batch} inputs of {tokens} tokens, probabilities dropped out",
            batch * model.heads * tokens * (tokens * 3 + model.head * 4),
            batch * model.heads * tokens**2 * model.head * 2,
            {"heads": batch * model.heads, "queries": tokens, "tokens": tokens, "dim": model.head, "dtype": dtype},
        )


def _shifted() -> Iterator[Entry]:
    for (model, key, hidden), tokens, dtype in product(RWKV, (2, 16, 128, 1024), ("float16", "bfloat16")):
        for name, words, n in (("key", "keys", hidden), ("inner", "inner states", hidden * 7 // 2)):
            yield Entry(
                model,
                key,
                f"{name}-m{tokens}-{dtype}",
                f"{words} of {tokens} tokens, each mixed with the one before",
                (n * hidden + tokens * (n + hidden)) * 2,
                tokens * n * hidden * 2,
                {"tokens": tokens, "hidden": hidden, "n": n, "dtype": dtype},
            )
