"""From a zoo block to tuning tasks: export, legalise, fuse, extract, normalise, and judge what is worth tuning.

All cases of a block are lowered in one Relax module, which costs half of what one module each would.
"""

import contextlib
import dataclasses
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from littledragon.compiler import features as tir
from littledragon.compiler import identity, inputs, schedulable, signature
from littledragon.compiler.describe import describe
from littledragon.compiler.zoo import Block, Case, Program, Zoo, block_of
from littledragon.compiler.zoo.block import relax_module
from littledragon.schemas.ids import canonical_json
from littledragon.schemas.tables import EXTRACTIONS

Row = dict[str, Any]

LEAST_ITERATIONS: Final = 4096
MOST_BYTES: Final = 256 << 20
MOST_FLOPS: Final = 300e9
MOST_IN_CELL: Final = 6
"""So many workloads of one cell are kept."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
KEPT_ATTRIBUTES: Final = ("global_symbol", "tirx.noalias", "s_tir")


def extract(zoo: Zoo, block_ids: list[str], target: dict[str, Any], only: str | None = None) -> list[Row]:
    """The tasks of these zoo blocks as rows of `extractions` (without `unit_id`), by block, case and task.

    Of all their cases, or `only` those of this name. A case that cannot be lowered, or has no task, gives one
    rejected row. Runs in a child.

    Raises:
        KeyError: there is no such block.
    """
    _collect_rarely()
    found = []
    for block_id in block_ids:
        source = block_of(zoo, block_id)
        cases = tuple(case for case in source.cases if only in (None, case.name))
        found += rows(dataclasses.replace(source, cases=cases), target)
    return found


@cache
def _collect_rarely() -> None:
    """Leave what is there, the zoo and TVM, out of garbage collection, which takes an eighth of the time else."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def rows(source: Block, target: dict[str, Any]) -> list[Row]:
    """The rows of one block, by case and task."""
    found: list[Row] = []
    programs: list[tuple[Case, Program]] = []
    for case in source.cases:
        try:
            programs.append((case, source.build(**case.shape)))
        except Exception as error:
            found.append(refused(source, case, error))
    found += _lowered(source, programs, target)
    return sorted(found, key=lambda row: (row["configuration"], row["task"] or ""))


def _lowered(source: Block, programs: list[tuple[Case, Program]], target: dict[str, Any]) -> list[Row]:
    """Rows of these cases: of all at once, or where that fails, of one after the other, to see which is at fault."""
    if not programs:
        return []
    try:
        tasks = extract_tasks(relax_module(program for _, program in programs), target)
    except Exception as error:  # TVM raises whatever its passes raise: the block is at fault, not the run
        if len(programs) == 1:
            return [refused(source, programs[0][0], error)]
        return [row for one in programs for row in _lowered(source, [one], target)]
    found: list[Row] = []
    for number, (case, _) in enumerate(programs):
        found += task_rows(source, case, tasks[f"case_{number}"], target)
    return found


def task_rows(source: Block, case: Case, tasks: "Tasks", target: dict[str, Any]) -> list[Row]:
    """Rows of `extractions` of one function's tasks; one rejected row where there is none."""
    if not tasks.modules and not tasks.calls:
        return [_row(source, case, state="rejected", reason="no_task", detail="extraction left nothing to tune")]
    found = [_task_row(source, case, name, module, target) for name, module in tasks.modules.items()]
    return found + [_library_row(source, case, call) for call in tasks.calls]


def modules(program: Program, target: dict[str, Any]) -> dict[str, Any]:
    """The normalised modules of one program's tasks, by name. Runs where TVM is imported."""
    tasks = extract_tasks(relax_module([program]), target)["case_0"]
    return {name: normalise(function)[0] for name, function in tasks.modules.items()}


@dataclass(frozen=True)
class Tasks:
    """What one Relax function calls: modules to tune by name, and operators that were left to a library."""

    modules: dict[str, Any]
    calls: tuple[str, ...]


def extract_tasks(module: Any, target: dict[str, Any]) -> dict[str, Tasks]:
    """The tasks of every function of a Relax module, by the function's name.

    What MetaSchedule's own `extract_tasks` finds (a test compares them), but by function: that one merges equal tasks
    of different functions and does not tell which it left out.
    """
    import tvm
    from tvm import relax

    legalize = tvm.transform.Sequential(
        [
            relax.transform.FuseTransposeMatmul(),  # X·Wᵀ would fall in two tasks without it
            relax.transform.LegalizeOps(),
        ]
    )
    fuse = tvm.transform.Sequential(
        [
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    with tvm.target.Target(target):
        legal = legalize(module)
        lowered = fuse(legal)
    plain = _unnumbered({str(name.name_hint) for name in legal.functions})
    functions = {str(name.name_hint): function for name, function in lowered.functions.items()}
    found = {}
    for name, function in functions.items():
        if tir.kind(function) == "Function":
            called = list(_calls(function))
            modules = _named([(hint, functions[hint]) for hint, tunable in called if tunable], plain)
            calls = [hint for hint, tunable in called if not tunable]
            found[name] = Tasks(modules, tuple(dict.fromkeys(calls)))
    return found


def _calls(function: Any) -> Iterator[tuple[str, bool]]:
    """What a Relax function calls, in order: (PrimFunc, True), or (operator, False) where it is not lowered to one."""
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if tir.kind(value) != "Call" or str(getattr(value.op, "name", "")) in _PLUMBING:
                continue
            if str(getattr(value.op, "name", "")) == "relax.call_tir":
                yield str(value.args[0].name_hint), True
            else:
                yield _library(value), False


_PLUMBING: Final = frozenset({"relax.shape_of", "relax.memory.view", "relax.null_value"})


def _library(call: Any) -> str:
    """The name of what a call that is no `call_tir` asks for."""
    name = str(getattr(call.op, "name", None) or getattr(call.op, "global_symbol", None) or "a call")
    first = call.args[0] if len(call.args) else None
    return str(getattr(first, "global_symbol", name)) if name.startswith("relax.call_") else name


def _unnumbered(hints: set[str]) -> dict[str, str]:
    """Name → the name that it would have alone: a larger module tells `matmul`, `matmul1`, `matmul2` apart."""
    return {hint: bare if (bare := hint.rstrip("0123456789")) in hints else hint for hint in hints}


def _named(functions: list[tuple[str, Any]], plain: dict[str, str]) -> dict[str, Any]:
    """Functions by a name that does not depend on what else is in the module; of equal names the later get a number."""
    found: dict[str, Any] = {}
    for hint, function in dict(functions).items():
        first, number = _alone(hint, plain), 0
        name = first
        while name in found:
            number += 1
            name = f"{first}_{number}"
        found[name] = function
    return found


def _alone(hint: str, plain: dict[str, str]) -> str:
    """The name alone of a function, or of one that FuseOps named `fused_` and the names of its parts."""
    if hint in plain or not hint.startswith("fused_"):
        return plain.get(hint, hint)
    rest, parts = hint.removeprefix("fused_"), ["fused"]
    while rest:
        fitting = [name for name in plain if rest == name or rest.startswith(f"{name}_")]
        if not fitting:
            parts.append(rest.rstrip("0123456789"))
            break
        part = max(fitting, key=len)
        parts.append(plain[part])
        rest = rest[len(part) + 1 :]
    return "_".join(part for part in parts if part)


def normalise(function: Any) -> tuple[Any, tir.Reading]:
    """The IRModule of one function, `main`, and its F: without hints of the passes, its indices int32 where they can
    be, its names those that it prints with.

    Where two things in sight of each other have one name, printing and parsing makes them differ, so that script and
    features speak of the same; a module that does not survive that is kept as it is.
    """
    import tvm
    from tvm_ffi import structural_equal

    for name in list(function.attrs.keys()):
        if str(name) not in KEPT_ATTRIBUTES:
            function = function.without_attr(str(name))
    plain = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    if not any(str(buffer.dtype) == "int64" for buffer in function.buffer_map.values()):
        with contextlib.suppress(Exception):  # it holds 64-bit data inside: wide indices are no mistake
            plain = tvm.tirx.transform.ForceNarrowIndexToInt32()(plain)
    seen = tir.read(plain)
    if seen.distinct or not _printable(seen.facts):
        return plain, seen
    parsed = tvm.script.from_source(plain.script())
    return (parsed, tir.read(parsed)) if structural_equal(parsed, plain) else (plain, seen)


def _printable(facts: dict[str, Any]) -> bool:
    """Whether all names are plain words: parsing evaluates what it reads, so nothing else may stand in a name."""
    things = (
        *facts["buffers"],
        *facts["loops"],
        *facts["blocks"],
        *(a for b in facts["blocks"] for a in b["iterators"]),
    )
    return all(_NAME.fullmatch(thing["name"]) for thing in things)


def _task_row(source: Block, case: Case, task: str, function: Any, target: dict[str, Any]) -> Row:
    """The row of one task."""
    import tvm
    from tvm_ffi import structural_hash

    try:
        module, seen = normalise(function)
    except ValueError as error:  # a shape that is not constant
        return refused(source, case, error) | {"task": task}
    facts = seen.facts
    if not facts["blocks"]:
        return _row(source, case, task=task, state="rejected", reason="no_task", detail="a function without a block")
    reason, detail = "trivial", triviality(facts)
    rules: str | None = None
    if detail is None:
        predicted = schedulable.predict(facts, target)
        reason, rules, detail = "unschedulable", predicted.rules, predicted.reason
    kinds, extents = signature.cell(facts, seen.nodes)
    row = _row(
        source,
        case,
        state="rejected" if rules is None else "ok",
        reason=reason if rules is None else None,
        detail=detail,
        task=task,
        rules=rules,
        dtype=next(b["dtype"] for b in facts["buffers"] if b["role"] != "intermediate"),
        flops=float(facts["flops"]),
        bytes_min=facts["bytes"],
        signature=kinds,
        extents=extents,
    )
    if reason == "trivial":
        return row
    return row | {
        "workload_id": None if rules is None else identity.workload_id(module),
        "description": describe(source, case, facts),
        "module": str(tvm.ir.save_json(module)),
        "script": str(module.script()),
        "module_hash": f"{structural_hash(module) & (1 << 64) - 1:016x}",
        "features": canonical_json(facts),
        "inputs": canonical_json(inputs.specs(module, facts)),
    }


def _library_row(source: Block, case: Case, call: str) -> Row:
    return _row(source, case, task=call, state="rejected", reason="no_task", detail=f"{call} is left to a library")


def refused(source: Block, case: Case, error: Exception) -> Row:
    """The rejected row of a case that could not be lowered."""
    said = str(error).strip().splitlines()
    detail = f"{type(error).__name__}: {said[-1] if said else ''}"
    return _row(source, case, state="rejected", reason="lowering_failed", detail=detail[:500])


def _row(source: Block, case: Case, **values: Any) -> Row:
    row: Row = dict.fromkeys(column.name for column in EXTRACTIONS.columns)
    row |= {"family": source.family, "operator": source.operator, "block_id": source.id, "configuration": case.name}
    row |= {"model": source.model.name, "source": source.model.source, "licence": source.model.licence}
    return row | values


def triviality(facts: dict[str, Any]) -> str | None:
    """Why a module is not worth tuning, or None: the static rules, applied to F(M0)."""
    indirect = any(read["indirect"] for block in facts["blocks"] for read in block["reads"])
    iterations = sum(block["iterations"] for block in facts["blocks"])
    if facts["flops"] == 0 and not indirect:
        return "copies, casts or moves elements only"
    if not (facts["reductions"] or indirect or len(facts["blocks"]) > 1):
        return "one element-wise block without reduction or indirect access"
    if iterations < LEAST_ITERATIONS:
        return f"{iterations} iterations, fewer than {LEAST_ITERATIONS}"
    if facts["bytes"] > MOST_BYTES:
        return f"{facts['bytes']} bytes, more than {MOST_BYTES}"
    if facts["flops"] > MOST_FLOPS:
        return f"{facts['flops']} operations, more than {MOST_FLOPS:.0f}"
    return None
