"""Layers of published vision, speech and diffusion networks, as torch runs them: what `make_layers` wrote down."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from littledragon.compiler.zoo.block import Model

Sizes = tuple[int, ...]
Kind = Literal["conv", "transposed", "max_pool", "avg_pool", "mean", "nearest", "linear", "cubic", "excite"]


@dataclass(frozen=True)
class Layer:
    """One layer on one input; sizes have an extent for each dimension of space: one, two or three."""

    key: str
    """The network's name in block ids."""
    model: Model
    kind: Kind
    inputs: int
    """Channels."""
    outputs: int
    """Channels; for `excite` those of the inner layer."""
    size: Sizes
    """Of what it takes."""
    kernel: Sizes
    """For a resize, the size of what it gives; empty for `mean` and `excite`."""
    stride: Sizes
    padding: Sizes
    """For `transposed`, what it adds to the size of the result stands behind it."""
    dilation: Sizes
    groups: int
    tail: tuple[str, ...]
    """What follows at once: `bias`, `norm` (a batch norm) or `time` (a vector for each of a batch), `add` (a residual),
    then an activation or `shuffle<n>`;
    `ceil` of a pooling, `corners` of a resize, `last` of a mean where channels are last."""


def layers() -> tuple[Layer, ...]:
    """Every layer, network by network.

    Raises:
        ValueError: a cell is not of its column's type.
    """
    here = Path(__file__).parent
    with (here / "networks.csv").open(encoding="utf-8", newline="") as lines:
        models = {row["key"]: Model(row["name"], row["source"], row["licence"]) for row in csv.DictReader(lines)}
    with (here / "layers.csv").open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        return tuple(_layer(row, models) for row in rows)


def _layer(row: list[str], models: dict[str, Model]) -> Layer:
    key, kind, inputs, outputs, size, kernel, stride, padding, dilation, groups, tail = row
    words = tuple(tail.split("-")) if tail else ()
    return Layer(
        key,
        models[key],
        cast(Kind, kind),
        int(inputs),
        int(outputs),
        *(_numbers(size), _numbers(kernel), _numbers(stride), _numbers(padding), _numbers(dilation)),
        int(groups),
        words,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x"))) if text else ()


LAYERS: Final = layers()
