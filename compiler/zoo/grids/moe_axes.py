"""The axes of the mixtures' grid: tokens, types, and the part of the experts that one device holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from littledragon.compiler.zoo.block import Case
from littledragon.compiler.zoo.models.language import Mixture

DECODE: Final = (1, 8, 32, 128)
"""Tokens of one step: one user, and batches that servers run."""
PREFILL: Final = (512, 2048, 8192)
"""Tokens of a prefill chunk, or of a micro-batch in training."""
TOKENS: Final = (*DECODE, *PREFILL)
LONG: Final = (*PREFILL, 32768)
"""For operators of a few numbers a token, also a long prompt whole."""
SHARES: Final = (8, 32, 128, 512)
"""Rows of each expert where all have equally many: of decoding in batches up to training."""
HALF: Final = ("float16", "bfloat16")
SHORT: Final = {"float8_e4m3fn": "fp8"}
"""How a type stands in a case's name where that is not its own name."""
BYTES: Final = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "float8_e4m3fn": 1.0, "int4": 0.5}

MOST_BYTES: Final = 250 << 20
MOST_FLOPS: Final = 290e9
LEAST_ITERATIONS: Final = 4096


@dataclass(frozen=True)
class Shard:
    """What one device holds of a layer's experts: `experts` of them, `inner` columns wide."""

    name: str
    about: str
    experts: int
    inner: int


def shards(model: Mixture, dtype: str, spare: float = 40e6) -> Iterator[Shard]:
    """Parts of a layer whose gate and up weights fit into a workload beside `spare` bytes: whole experts split over
    as few devices as that takes and eight times as many, and experts cut in 2, 4 and 8, as few devices again."""
    found: set[tuple[int, int]] = set()
    for tensor, more in ((1, 1), (1, 8), (2, 1), (4, 1), (8, 1)):
        inner = model.expert_inner // tensor
        if model.expert_inner % tensor or inner % 16:
            continue
        size = inner * model.hidden * BYTES[dtype] * (2 if model.gated else 1)
        spread = next((n for n in divisors(model.experts) if model.experts // n * size <= MOST_BYTES - spare), 0)
        spread *= more
        # A single expert is a plain product: other blocks have those.
        if spread and model.experts % spread == 0 and model.experts // spread > 1:
            shard = (model.experts // spread, inner)
            if shard not in found:
                found.add(shard)
                about = f"{shard[0]} of {model.experts} experts" + (f" cut in {tensor}" if tensor > 1 else "")
                yield Shard(f"ep{spread}-tp{tensor}", about, *shard)


def divisors(count: int) -> Iterator[int]:
    """Over how many devices `count` experts are spread: powers of two up to 64 that divide it."""
    yield from (n for n in (1, 2, 4, 8, 16, 32, 64) if count % n == 0)


def worth(size: float, flops: float = 0.0, iterations: float = LEAST_ITERATIONS) -> bool:
    """Whether a workload of so many bytes of arguments, operations and iterations is within what is tuned."""
    return size <= MOST_BYTES and flops <= MOST_FLOPS and iterations >= LEAST_ITERATIONS


def case(name: str, about: str, **shape: Any) -> Case:
    """A case; a type in its shape ends its name."""
    ends = [SHORT.get(shape[key], shape[key]) for key in ("dtype", "to") if key in shape]
    return Case("-".join([name, *ends]), about, shape)


def tokens_of(count: int) -> str:
    return f"{count} tokens" if count > 1 else "one token"
