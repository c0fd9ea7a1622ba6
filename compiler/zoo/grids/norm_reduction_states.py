"""Recurrent models: Mamba and Mamba-2, RWKV, linear attention and the delta rule, decoding and in chunks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from littledragon.compiler.zoo import norm_reduction_scans as zoo
from littledragon.compiler.zoo.block import Model
from littledragon.compiler.zoo.grids.norm_reduction_listing import HALF, SIZE, Group, counted, run
from littledragon.compiler.zoo.models.language import STATE_SPACES

SEQUENCES: Final = (1, 8, 32, 128)
"""Sequences that decode together."""
PROMPTS: Final = ((1, 512), (1, 2048), (1, 8192), (8, 512), (8, 2048))
"""Sequences and tokens of one prefill or training step."""
SHARDS: Final = (1, 2, 4, 8)
"""Tensor-parallel shards, each with its share of the heads or channels."""
CHUNK: Final = 256
"""Tokens of a chunk, as Mamba-2 is published."""


@dataclass(frozen=True)
class Scan:
    """A model of the Mamba-2 kind: heads of `dim` channels with `state` numbers each, and groups that share B and C."""

    model: Model
    key: str
    heads: int
    dim: int
    state: int
    groups: int = 1


SCANS: Final = (
    Scan(Model("Mamba2-130M", "state-spaces/mamba2-130m", "Apache-2.0"), "mamba2-130m", 24, 64, 128),
    Scan(Model("Mamba2-370M", "state-spaces/mamba2-370m", "Apache-2.0"), "mamba2-370m", 32, 64, 128),
    Scan(Model("Mamba2-780M", "state-spaces/mamba2-780m", "Apache-2.0"), "mamba2-780m", 48, 64, 128),
    Scan(Model("Mamba2-1.3B", "state-spaces/mamba2-1.3b", "Apache-2.0"), "mamba2-1.3b", 64, 64, 128),
    Scan(Model("Mamba2-2.7B", "state-spaces/mamba2-2.7b", "Apache-2.0"), "mamba2-2.7b", 80, 64, 128),
    Scan(
        Model("Codestral-Mamba-7B", "mistralai/Mamba-Codestral-7B-v0.1", "Apache-2.0"),
        "codestral-mamba-7b",
        128,
        64,
        128,
        8,
    ),
    Scan(Model("Zamba2-7B", "Zyphra/Zamba2-7B", "Apache-2.0"), "zamba2-7b", 112, 64, 64, 2),
    Scan(Model("Bamba-9B", "ibm-ai-platform/Bamba-9B-v2", "Apache-2.0"), "bamba-9b", 128, 64, 128),
    Scan(
        Model("Nemotron-H-8B", "nvidia/Nemotron-H-8B-Base-8K", "NVIDIA Open Model License"),
        "nemotron-h-8b",
        128,
        64,
        128,
        8,
    ),
    Scan(Model("Falcon-H1-7B", "tiiuae/Falcon-H1-7B-Base", "Falcon-LLM License"), "falcon-h1-7b", 24, 128, 256),
    Scan(
        Model("Granite-4.0-H-Tiny", "ibm-granite/granite-4.0-h-tiny", "Apache-2.0"), "granite-4.0-h-tiny", 48, 64, 128
    ),
)


def groups() -> Iterator[Group]:
    """All of them."""
    yield from _convolutions()
    yield from _selective()
    yield from _heads()
    yield from _chunks()
    yield from _linear()


def _convolved() -> Iterator[tuple[Model, str, int, int]]:
    """Model, key, channels and taps of every causal convolution."""
    for space in STATE_SPACES:
        yield space, space.key, space.inner, space.kernel
    for scan in SCANS:
        # x, B and C go through it together.
        yield scan.model, scan.key, scan.heads * scan.dim + 2 * scan.groups * scan.state, 4
    qwen = Model("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Apache-2.0")
    yield qwen, "qwen3-next-80b-a3b", 8192, 4


def _convolutions() -> Iterator[Group]:
    for model, key, channels, taps in _convolved():
        whole, step = [], []
        for (sequences, tokens), dtype in product(PROMPTS, HALF):
            whole.append(
                run(
                    f"b{sequences}-s{tokens}-{dtype}",
                    f"causal convolution, {channels} channels, {counted(sequences, 'prompt')} of {tokens} tokens",
                    "convolution",
                    (sequences, channels, tokens, taps),
                    2 * sequences * channels * tokens * SIZE[dtype],
                    sequences=sequences,
                    channels=channels,
                    tokens=tokens,
                    taps=taps,
                    dtype=dtype,
                )
            )
        for shards, sequences, dtype in product((1, 4), SEQUENCES, HALF):
            own = channels // shards
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            step.append(
                run(
                    f"tp{shards}-b{sequences}-{dtype}",
                    f"causal convolution of one token of {counted(sequences, 'sequence')}, {own} channels{part}",
                    "convolution-step",
                    (sequences, own, taps),
                    2 * sequences * own * taps * SIZE[dtype],
                    sequences=sequences,
                    channels=own,
                    taps=taps,
                    dtype=dtype,
                )
            )
        yield Group("causal_conv", model, key, zoo.causal_conv, whole)
        yield Group("causal_conv_step", model, key, zoo.causal_conv_step, step)


def _selective() -> Iterator[Group]:
    for space in STATE_SPACES:
        runs = []
        for shards, sequences, dtype in product(SHARDS, SEQUENCES, HALF):
            own = space.inner // shards
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            runs.append(
                run(
                    f"tp{shards}-b{sequences}-{dtype}",
                    f"selective scan of one token of {counted(sequences, 'sequence')}, {own} channels{part}",
                    "selective",
                    (sequences, own, space.state),
                    8 * sequences * own * space.state,
                    sequences=sequences,
                    channels=own,
                    size=space.state,
                    dtype=dtype,
                )
            )
        yield Group("selective_step", space, space.key, zoo.selective_step, runs)


def _heads() -> Iterator[Group]:
    for scan in SCANS:
        runs = []
        for shards, sequences, dtype in product(SHARDS, SEQUENCES, HALF):
            if scan.heads % shards:
                continue
            own, groups = scan.heads // shards, max(1, scan.groups // shards)
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            runs.append(
                run(
                    f"tp{shards}-b{sequences}-{dtype}",
                    f"state update of one token of {counted(sequences, 'sequence')}, {own} heads of {scan.dim}{part}",
                    f"heads-{groups}",
                    (sequences, own, scan.dim, scan.state),
                    8 * sequences * own * scan.dim * scan.state,
                    sequences=sequences,
                    heads=own,
                    dim=scan.dim,
                    size=scan.state,
                    groups=groups,
                    dtype=dtype,
                )
            )
        yield Group("state_step", scan.model, scan.key, zoo.head_step, runs)


def _chunks() -> Iterator[Group]:
    for scan in SCANS:
        prefix, passing = [], []
        for shards, (sequences, tokens) in product(SHARDS, PROMPTS):
            chunks = tokens // CHUNK
            if scan.heads % shards:
                continue
            heads = scan.heads // shards
            part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
            of = f"{counted(sequences, 'sequence')} of {chunks} chunks, {heads} heads{part}"
            shape: dict[str, Any] = {"sequences": sequences, "chunks": chunks, "heads": heads}
            prefix += [
                run(
                    f"tp{shards}-b{sequences}-s{tokens}-{dtype}",
                    f"prefix sums of the decays inside each chunk of {CHUNK} tokens of {of}",
                    "prefix",
                    (sequences, heads, chunks, CHUNK, CHUNK),
                    sequences * heads * tokens * (4 + SIZE[dtype]),
                    **shape,
                    length=CHUNK,
                    dtype=dtype,
                )
                for dtype in HALF
            ]
            size = scan.dim * scan.state
            passing.append(
                run(
                    f"tp{shards}-b{sequences}-s{tokens}",
                    f"states passed from chunk to chunk of {of}",
                    "passing",
                    (sequences, heads, chunks, size, chunks),
                    8 * sequences * chunks * heads * size,
                    **shape,
                    size=size,
                )
            )
        yield Group("chunk_prefix", scan.model, scan.key, zoo.chunk_prefix, prefix)
        yield Group("chunk_passing", scan.model, scan.key, zoo.chunk_passing, passing)


LINEAR: Final = (
    (Model("MiniMax-Text-01", "MiniMaxAI/MiniMax-Text-01", "MiniMax Model License"), "minimax-text-01", 64, 128, 128),
    (Model("RetNet-1.3B", "microsoft/torchscale", "MIT"), "retnet-1.3b", 8, 256, 512),
    (Model("Ring-mini-linear", "inclusionAI/Ring-mini-linear-2.0", "MIT"), "ring-mini-linear", 16, 128, 128),
)
"""Linear attention with a fixed decay: heads, width of a key, width of a value."""
BONUS: Final = (
    (Model("RWKV-6-World-1.6B", "RWKV/rwkv-6-world-1b6", "Apache-2.0"), "rwkv6-1.6b", 32, 64),
    (Model("RWKV-6-World-3B", "RWKV/rwkv-6-world-3b", "Apache-2.0"), "rwkv6-3b", 40, 64),
    (Model("RWKV-6-World-7B", "RWKV/rwkv-6-world-7b", "Apache-2.0"), "rwkv6-7b", 64, 64),
)
"""RWKV-6: heads and their width."""
DELTA: Final = (
    (Model("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Apache-2.0"), "qwen3-next-80b-a3b", 32, 128, 128),
    (
        Model("Gated DeltaNet 1.3B", "NVlabs/GatedDeltaNet", "NVIDIA Source Code License"),
        "gated-deltanet-1.3b",
        6,
        256,
        512,
    ),
    (Model("DeltaNet-1.3B", "fla-hub/delta_net-1.3B-100B", "MIT"), "deltanet-1.3b", 16, 128, 128),
)
"""Delta rules: heads, width of a key, width of a value."""


def _linear() -> Iterator[Group]:
    kinds: tuple[tuple[str, Any, Any, str], ...] = (
        ("linear_attention_step", zoo.linear_step, LINEAR, "linear attention"),
        ("delta_rule_step", zoo.delta_step, DELTA, "the gated delta rule"),
    )
    for operator, build, models, words in kinds:
        for model, key, heads, dim, value in models:
            runs = [
                run(
                    f"tp{shards}-b{sequences}-{dtype}",
                    _step(words, sequences, heads // shards, shards),
                    "keys",
                    (sequences, heads // shards, value, dim),
                    8 * sequences * heads // shards * dim * value,
                    sequences=sequences,
                    heads=heads // shards,
                    dim=dim,
                    value=value,
                    dtype=dtype,
                )
                for shards, sequences, dtype in product(SHARDS, SEQUENCES, HALF)
                if heads % shards == 0
            ]
            yield Group(operator, model, key, build, runs)
    for model, key, heads, dim in BONUS:
        runs = [
            run(
                f"tp{shards}-b{sequences}-{dtype}",
                _step("RWKV-6", sequences, heads // shards, shards),
                "bonus",
                (sequences, heads // shards, dim, dim),
                8 * sequences * heads // shards * dim * dim,
                sequences=sequences,
                heads=heads // shards,
                dim=dim,
                dtype=dtype,
            )
            for shards, sequences, dtype in product(SHARDS, SEQUENCES, HALF)
        ]
        yield Group("rwkv_step", model, key, zoo.bonus_step, runs)


def _step(words: str, sequences: int, heads: int, shards: int) -> str:
    part = f", 1 of {shards} tensor-parallel shards" if shards > 1 else ""
    return f"state update of {words} for one token of {counted(sequences, 'sequence')}, {counted(heads, 'head')}{part}"
