"""Published language models: the numbers of their configuration files, as the named repositories hold them.

A row of the tables beside this file is what a workload's shape follows from: widths, heads, experts, vocabulary.
"""

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from littledragon.compiler.zoo.block import Model

T = TypeVar("T", bound=Model)
Activation = Literal["silu", "gelu", "relu", "relu2"]


@dataclass(frozen=True)
class Decoder(Model):
    """A decoder-only transformer. All sizes count elements; `head` is the width of one head."""

    key: str
    """Its name in block ids."""
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    """Width of the (dense) feed-forward network; 0 where every layer is a mixture."""
    vocab: int
    activation: Activation = "silu"
    gated: bool = True
    """Whether the feed-forward network has a gate beside its up projection."""
    norm: Literal["rms", "layer"] = "rms"
    bias: Literal["none", "qkv", "all"] = "none"
    """Which projections add a bias."""
    window: int = 0
    """Width of sliding-window attention in tokens; 0: none."""
    context: int = 4096
    """Positions that it was trained on, cut to 32768."""
    qk_norm: bool = False


@dataclass(frozen=True)
class Mixture(Decoder):
    """A decoder whose feed-forward networks are mixtures of experts."""

    experts: int = 0
    top: int = 0
    """Experts that a token goes to."""
    expert_inner: int = 0
    shared_inner: int = 0
    """Width of the shared expert; 0: none."""


@dataclass(frozen=True)
class Latent(Model):
    """Multi-head latent attention, as DeepSeek-V2 has it: keys and values from a compressed cache of `rank`."""

    key: str
    hidden: int
    heads: int
    q_rank: int
    """Width of the compressed queries; 0: not compressed."""
    rank: int
    rope: int
    nope: int
    value: int
    """`rope`, `nope` and `value`: width of one head's rotary keys, other keys, and values."""
    context: int = 4096


@dataclass(frozen=True)
class Encoder(Model):
    """An encoder, an encoder-decoder, or a vision transformer seen as one: `tokens` are those of one input."""

    key: str
    hidden: int
    heads: int
    head: int
    inner: int
    vocab: int
    """0 where it embeds no words."""
    tokens: int
    activation: Activation = "gelu"


@dataclass(frozen=True)
class StateSpace(Model):
    """A Mamba model: `inner` channels with `state` numbers each, a causal convolution over `kernel` steps."""

    key: str
    hidden: int
    inner: int
    state: int
    kernel: int
    dt_rank: int


def table(name: str, record: type[T]) -> tuple[T, ...]:
    """The rows of `<name>.csv` beside this file, one record each, in the order of the file.

    Raises:
        ValueError: a cell is not of its field's type.
    """
    kinds = {field.name: field.type for field in fields(record)}
    with (Path(__file__).parent / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(
            record(**{key: _cell(kinds[key], text) for key, text in row.items()}) for row in csv.DictReader(lines)
        )


def _cell(kind: object, text: str) -> Any:
    if kind is bool:
        return {"yes": True, "no": False}[text]
    return int(text) if kind is int else text


DECODERS: Final = table("decoders", Decoder)
"""Dense decoders."""
MIXTURES: Final = table("mixtures", Mixture)
"""Decoders with experts; the DeepSeek-V2 kin attend by `LATENTS`."""
LATENTS: Final = table("latents", Latent)
"""Models with latent attention."""
ENCODERS: Final = table("encoders", Encoder)
"""Encoders of text, speech and images, and diffusion transformers."""
STATE_SPACES: Final = table("state_spaces", StateSpace)
"""State-space models."""
