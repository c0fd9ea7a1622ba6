"""Writes `networks.csv` and `layers.csv`: the layers of published networks, as torch runs them.

Each network of `networks/` is run once, without data, and every convolution, pooling, resizing and
squeeze-and-excitation that it does is written down with what follows it at once. A layer is left out where one of its
kind that came before is within a factor of 1.5 of it in every extent: those are near twins, and one of them tells as
much as both. To run it, in a throw-away environment:

    pip install torch==2.13.0 torchvision==0.28.0 timm==1.0.31 diffusers==0.42.1 transformers==5.24.0
    pip install segmentation-models-pytorch==0.6.0 monai==1.6.1 effdet==0.4.1 einops
    pip install --no-deps pytorchvideo==0.1.5 fvcore==0.1.5.post20221221 iopath==0.1.10
    pip install yacs portalocker tabulate termcolor parameterized
    PYTHONPATH=src python -m littledragon.compiler.zoo.models.make_layers
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from littledragon.compiler.zoo.models.networks import networks
from littledragon.compiler.zoo.models.networks.network import Network, library

NEAR: Final = 1.5
"""Layers whose extents all lie within this factor are near twins."""

_ACTIVATIONS: Final = {
    "relu": "relu",
    "hardtanh": "relu6",
    "silu": "silu",
    "hardswish": "hardswish",
    "gelu": "gelu",
    "leaky_relu": "leaky",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "hardsigmoid": "hardsigmoid",
    "elu": "elu",
    "mish": "mish",
}
_RESIZES: Final = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}

Sizes = tuple[int, ...]


@dataclass(eq=False)
class Step:
    """One operation that torch did; arguments that are tensors are the steps that made them."""

    name: str
    arguments: list[Any]
    shape: Sizes
    users: list["Step"] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A line of `layers.csv` without its network."""

    kind: str
    inputs: int
    outputs: int
    size: Sizes
    kernel: Sizes = ()
    stride: Sizes = ()
    padding: Sizes = ()
    dilation: Sizes = ()
    groups: int = 1
    tail: tuple[str, ...] = ()


def recorded(network: Network, shape: Sizes) -> list[Step]:
    """What torch does to one input of this shape, in order. No number is computed: tensors have shapes only."""
    torch, modes = library("torch"), library("torch.utils._python_dispatch")
    steps: list[Step] = []
    made: dict[int, Step] = {}
    alive: list[Any] = []  # so that no two tensors get one id

    def step(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return made.get(id(value)) or Step("", [], tuple(value.shape))
        return [step(item) for item in value] if isinstance(value, list | tuple) else value

    def dispatched(mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        results = [value for value in _listed(found) if isinstance(value, torch.Tensor)]
        if results:
            name = function._schema.name.partition("::")[2]
            one = Step(name.rstrip("_"), [step(value) for value in args], tuple(results[0].shape))
            for argument in one.arguments:
                for source in _listed(argument):
                    if isinstance(source, Step) and one not in source.users:
                        source.users.append(one)
            steps.append(one)
            alive.extend((args, found))
            made.update((id(value), one) for value in results)
            if name.endswith("_"):
                made[id(args[0])] = one
        return found

    recorder: Any = type("Recorder", (modes.TorchDispatchMode,), {"__torch_dispatch__": dispatched})
    try:
        with torch.device("meta"):
            model = network.build()
    except (NotImplementedError, RuntimeError):  # it reads numbers while it is built
        model = network.build().to("meta")
    if hasattr(model, "eval"):
        model.eval()
    with torch.device("meta"), torch.no_grad():
        argument = torch.empty(1, *shape)
        with recorder():
            model(argument)
    return steps


def rows(steps: list[Step]) -> Iterator[Row]:
    """The layers among these steps, in order."""
    for step in steps:
        given = step.arguments
        if step.name == "convolution" and len(given[0].shape) == len(given[1].shape):
            yield _convolution(step)
        elif step.name.startswith(("max_pool", "avg_pool")):
            yield _pooling(step)
        elif step.name == "mean" and len(given) > 1 and len(given[0].shape) >= 4:
            axes, shape = sorted(axis % len(given[0].shape) for axis in given[1]), given[0].shape
            if axes == list(range(2, len(shape))):
                yield Row("mean", shape[1], shape[1], shape[2:])
            elif axes == list(range(1, len(shape) - 1)):
                yield Row("mean", shape[-1], shape[-1], shape[1:-1], tail=("last",))
        elif step.name == "_adaptive_avg_pool2d":
            size, bins = given[0].shape[2:], tuple(given[1])
            if all(whole % part == 0 and whole > part for whole, part in zip(size, bins, strict=True)):
                kernel = tuple(whole // part for whole, part in zip(size, bins, strict=True))
                channels = given[0].shape[1]
                yield Row("avg_pool", channels, channels, size, kernel, kernel, (0, 0), (1, 1))
        elif "upsample_" in step.name and len(step.shape) == 4:
            method = step.name.lstrip("_").split("_")[1].removesuffix("2d")
            corners = ("corners",) if len(given) > 2 and given[2] is True else ()
            if method in _RESIZES and step.shape != given[0].shape:
                channels, tail = given[0].shape[1], (*corners, *_tail(step))
                yield Row(_RESIZES[method], channels, channels, given[0].shape[2:], step.shape[2:], tail=tail)
        elif step.name == "mul" and all(isinstance(value, Step) for value in given[:2]):
            yield from _excitation(*given[:2])


def _convolution(step: Step) -> Row:
    x, weight, bias, stride, padding, dilation, transposed, more, groups = step.arguments[:9]
    space = len(x.shape) - 2
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    around = _repeated(padding, space) + (_repeated(more, space) if transposed else ())
    return Row(
        "transposed" if transposed else "conv",
        x.shape[1],
        outputs,
        x.shape[2:],
        weight.shape[2:],
        _repeated(stride, space),
        around,
        _repeated(dilation, space),
        groups,
        (() if bias is None else ("bias",)) + _tail(step),
    )


def _pooling(step: Step) -> Row:
    given, mode = step.arguments, step.name[:8]
    space = int(step.name[8])
    shape = given[0].shape
    kernel = _repeated(given[1], space)
    stride = _repeated(given[2], space) if len(given) > 2 and given[2] else kernel
    padding = _repeated(given[3], space) if len(given) > 3 else (0,) * space
    place = 5 if mode == "max_pool" else 4
    tail = ("ceil",) if len(given) > place and given[place] else ()
    channels = shape[-space - 1]
    return Row(mode, channels, channels, shape[-space:], kernel, stride, padding, (1,) * space, 1, tail)


def _excitation(one: Step, other: Step) -> Iterator[Row]:
    """A product with the result of two layers of the means, where it is that."""
    for gate, x in ((one, other), (other, one)):
        small, large = len(gate.shape) == 4 and gate.shape[2:] == (1, 1), len(x.shape) == 4 and x.shape[2:] != (1, 1)
        if not (small and large and gate.name in ("sigmoid", "hardsigmoid")):
            continue
        expand = gate.arguments[0]
        if expand.name != "convolution" or expand.arguments[8] != 1:
            continue
        inner = expand.arguments[0]
        activation = _ACTIVATIONS.get(inner.name, "none")
        reduce = inner if activation == "none" else inner.arguments[0]
        reduce = reduce.arguments[0] if reduce.name == "native_batch_norm" else reduce
        if reduce.name == "convolution":
            tail = (activation, _ACTIVATIONS[gate.name])
            yield Row("excite", x.shape[1], reduce.shape[1], x.shape[2:], tail=tail)


def _tail(step: Step) -> tuple[str, ...]:
    """What happens to a result at once and to nothing else: a batch norm or a vector of the time, a residual, then an
    activation or a shuffle.
    """
    words: list[str] = []
    while len(step.users) == 1:
        user = step.users[0]
        if user.name == "native_batch_norm" and not words:
            words.append("norm")
        elif user.name == "add" and "add" not in words and _alike(user.arguments, step.shape):
            words.append("add")
        elif user.name == "add" and not words and _vector(user.arguments, step.shape):
            words.append("time")
        elif user.name in _ACTIVATIONS:
            return (*words, _ACTIVATIONS[user.name])
        elif user.name == "pixel_shuffle":
            return (*words, f"shuffle{user.arguments[1]}")
        else:
            break
        step = user
    return tuple(words)


def _alike(arguments: list[Any], shape: Sizes) -> bool:
    """Whether two different tensors of this shape are added."""
    pair = arguments[:2]
    return all(isinstance(value, Step) and value.shape == shape for value in pair) and pair[0] is not pair[1]


def _vector(arguments: list[Any], shape: Sizes) -> bool:
    """Whether a vector with an element for each channel is added to a tensor of this shape."""
    vector = (*shape[:2], *(1,) * (len(shape) - 2))
    shapes = [value.shape for value in arguments[:2] if isinstance(value, Step)]
    return shape != vector and sorted(shapes) == sorted((shape, vector))


def kind(row: Row) -> tuple[Any, ...]:
    """What must be equal for two layers to be compared by their extents."""
    spread = tuple(extent > 1 for extent in row.kernel)
    if row.kind == "transposed" and row.groups == 1:
        return "conv", (1,) * len(row.size), (1,) * len(row.size), spread, False, 1, 1, 0
    each = (row.outputs // row.groups, row.inputs // row.groups, 0) if row.groups > 1 else (1, 1, 0)
    shuffled = any(word.startswith("shuffle") for word in row.tail)
    return row.kind, row.stride, row.dilation, spread, shuffled, *each


def extents(row: Row) -> Sizes:
    """The extents of a layer's loops, for one image."""
    if row.kind == "conv":
        every = zip(row.size, row.kernel, row.stride, row.padding, row.dilation, strict=True)
        field = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in every)
    elif row.kind == "transposed":
        field = tuple((n - 1) * s + k for n, s, k in zip(row.size, row.stride, row.kernel, strict=True))
    else:
        field = row.size
    return row.outputs, *field, row.inputs if row.groups == 1 else 1, row.groups, *row.kernel


def near(one: Sizes, other: Sizes) -> bool:
    """Whether all extents lie within `NEAR` of each other."""
    return len(one) == len(other) and all(max(a, b) <= NEAR * min(a, b) for a, b in zip(one, other, strict=True))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _repeated(value: Any, count: int) -> Sizes:
    items = tuple(_listed(value))
    return items * count if len(items) == 1 else items


def _registered() -> None:
    """torchvision without its compiled operators, as it is beside a torch for CPUs, still wants their names."""
    for name in ("nms", "qnms"):
        library("torch").library.define(
            f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
        )


def main() -> None:
    """Write both tables beside this file."""
    _registered()
    kept: dict[tuple[Any, ...], list[Sizes]] = defaultdict(list)
    lines: list[list[Any]] = []
    found: list[Network] = []
    for network in networks():
        before = len(lines)
        for shape in network.shapes:
            for row in dict.fromkeys(rows(recorded(network, shape))):
                size = extents(row)
                if max(row.size) == 1 or any(near(size, other) for other in kept[kind(row)]):
                    continue
                kept[kind(row)].append(size)
                sizes = [
                    "x".join(map(str, value)) for value in (row.size, row.kernel, row.stride, row.padding, row.dilation)
                ]
                lines.append([network.key, row.kind, row.inputs, row.outputs, *sizes, row.groups, "-".join(row.tail)])
        if len(lines) > before:
            found.append(network)
        print(network.key, len(lines) - before, file=sys.stderr, flush=True)
    here = Path(__file__).parent
    with (here / "networks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["key", "name", "source", "licence"])
        writer.writerows([network.key, network.name, network.source, network.licence] for network in found)
    with (here / "layers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = ["size", "kernel", "stride", "padding", "dilation"]
        writer.writerow(["network", "kind", "inputs", "outputs", *names, "groups", "tail"])
        writer.writerows(lines)


if __name__ == "__main__":
    main()
