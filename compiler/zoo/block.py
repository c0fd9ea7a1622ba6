"""What a zoo block is, and the one way in which its programs become a Relax module."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any, Literal

Family = Literal["attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision"]
FAMILIES: tuple[Family, ...] = ("attention", "gemm", "moe", "norm_reduction", "quant_irregular", "vision")

Argument = tuple[tuple[int, ...], str]
"""(shape, dtype)."""

MOST_CASES = 128
"""A block, and a unit of work, has at most so many cases."""


@dataclass(frozen=True)
class Model:
    """A published model: its name, where its configuration stands, and the licence there."""

    name: str
    source: str
    licence: str


@dataclass(frozen=True)
class Program:
    """A function of tensors, and what it takes: name → (shape, dtype) of each argument; weights are arguments too.

    `forward` gets `tvm.relax.frontend.nn.Tensor`s and returns one or a tuple of them.
    """

    forward: Callable[..., Any]
    arguments: Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Case:
    """One configuration of a block: its name, what it is in words, and what `Block.build` is called with."""

    name: str
    about: str
    shape: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Block:
    """One operator of one published model, in the configurations in which the model runs it.

    `build(**case.shape)` imports TVM and gives a program; listing blocks imports nothing.
    """

    id: str
    family: Family
    operator: str
    model: Model
    build: Callable[..., Program] = field(repr=False)
    cases: tuple[Case, ...] = field(hash=False)


def block(family: Family, operator: str, model: Model, part: str, build: Callable[..., Program], *cases: Case) -> Block:
    """The block `<family>/<operator>/<part>`; `part` names the model and, where there are several, the layer.

    Raises:
        ValueError: no case, too many of them, or two of one name.
    """
    name = f"{family}/{operator}/{part}"
    if not 0 < len(cases) <= MOST_CASES or len({case.name for case in cases}) < len(cases):
        raise ValueError(f"{name}: a block has 1 to {MOST_CASES} cases of different names, not {len(cases)}")
    return Block(name, family, operator, model, build, cases)


def export(forward: Callable[..., Any], **arguments: tuple[tuple[int, ...], str]) -> Program:
    """The program of `forward`, with (shape, dtype) of each of its parameters."""
    return Program(forward, arguments)


def named(forward: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """`forward(*tensors)` with a name for each parameter: the exporter reads them off the signature."""
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return forward


def computed(name: str, compute: Callable[..., Any], **arguments: Argument) -> Program:
    """The program that is one computation in TE: `compute` takes the arguments in order, gives one or more tensors."""

    def forward(*tensors: Any) -> Any:
        from tvm.relax.frontend.nn import op

        return op.tensor_expr_op(compute, name, list(tensors))

    return Program(named(forward, arguments), arguments)


def relax_module(programs: Iterable[Program]) -> Any:
    """A Relax module with the functions `case_0`, `case_1`, …, traced through `tvm.relax.frontend.nn`."""
    from tvm.relax.frontend import nn

    module, specs = nn.Module(), {}
    for number, program in enumerate(programs):
        setattr(module, f"case_{number}", program.forward)
        specs[f"case_{number}"] = {
            name: nn.spec.Tensor(list(shape), dtype) for name, (shape, dtype) in program.arguments.items()
        }
    return module.export_tvm(specs)[0]


def quantized(x: Any) -> Any:
    """In TE: a matrix made int8 row by row, scale = max|x| / 127 and y = round(x / scale); gives [y, scale]."""
    from tvm import te, tirx

    rows, columns = x.shape
    axis = te.reduce_axis((0, columns), name="k")
    largest = te.compute((rows,), lambda r: te.max(te.abs(x[r, axis].astype("float32")), axis=axis), name="absmax")
    scale = te.compute((rows,), lambda r: te.max(largest[r], tirx.const(1e-6, "float32")) / 127.0, name="scale")
    whole = te.compute(
        (rows, columns), lambda r, c: te.round(x[r, c].astype("float32") / scale[r]).astype("int8"), name="quantize"
    )
    return [whole, scale]


def comparable(x: Any) -> Any:
    """In TE: bfloat16 as float32, since TVM's LLVM cannot compile a reduction that carries bfloat16 with its index."""
    from tvm import topi

    return topi.cast(x, "float32") if x.dtype == "bfloat16" else x
