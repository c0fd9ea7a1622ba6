"""A quick CPU schedule of an unscheduled program, with every result bit for bit the same.

The original runs at half a GFLOP a second. Here a reduction runs over a small tile of its outputs at once, which LLVM
holds in vector registers; operands that lie across the grain, or in a type narrower than they are used in, are copied
into place first; and tiles are shared among all cores. The terms of each element are added in their own order still,
and to widen a number changes nothing.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from littledragon.compiler import float8, inputs, kernels
from littledragon.compiler.features import children, constant, kind

WIDTHS: Final = (16, 24, 32, 8, 12, 20, 28, 14, 10)
"""Elements of a tile along the vectors, best first."""
ROWS: Final = (4, 6, 5, 3, 7, 2)
"""Vectors of a tile, best first."""
WIDER: Final = {
    "float16": "float32",
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
    "int8": "int32",
    "uint8": "int32",
}


def brisk(module: Any) -> Any:
    """The scheduled module; blocks that do not take the schedule stay as they are. Runs where TVM is imported."""
    import tvm
    from tvm.s_tir import Schedule

    schedule = Schedule(module)
    attempts: tuple[Callable[[Any, Any, set[str]], int | None], ...] = (_rows, _tile, _rearrange)
    widened: set[str] = set()
    undone = []
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        before = schedule.copy()
        for attempt in attempts:
            names: set[str] = set()
            try:
                first = attempt(schedule, block, names)
            except (tvm.s_tir.ScheduleError, RuntimeError, ValueError):
                schedule = before
                before = schedule.copy()
            else:
                widened |= names
                if first is not None:
                    undone.append((block, first))
                break
    for block, first in undone:  # only now: a block whose operand has two writers takes no copy of it
        schedule.decompose_reduction(block, schedule.get_loops(block)[first])
    return _without_detours(schedule.mod, widened)


def run(module: str, specs: str, target: dict[str, Any], seed: int) -> list[str]:
    """Compile a program in this order and run it on its inputs of case 0. Runs in a child.

    Args:
        module: M0, as `save_json`.
        specs: how to make each argument, as JSON; see `compiler/inputs.py`.
        target: an llvm target.

    Returns:
        The names of the outputs that hold a NaN or an infinity, or keep an element as it was before.
    """
    import numpy as np
    import tvm

    known = json.loads(specs)
    arguments = [tvm.runtime.tensor(array) for array in inputs.make(known, 0, seed)]
    program = float8.exact(brisk(tvm.ir.load_json(module)))
    tvm.compile(program, target=tvm.target.Target(target))["main"](*arguments)
    # Outputs of floats are full of NaN before.
    values = {known[place]["name"]: kernels.plain(arguments[place].numpy()) for place in kernels.outputs(known)}
    return [name for name, array in values.items() if not np.isfinite(array).all()]


def _axes(schedule: Any, block: Any) -> tuple[Any, list[Any], list[int], list[int]]:
    """A block, its loops, and the places of its reduction axes and of its spatial ones that are longer than 1."""
    node, loops = schedule.get(block), schedule.get_loops(block)
    if len(loops) != len(node.iter_vars):
        raise ValueError("loops and axes do not match")
    kinds = [int(axis.iter_type) for axis in node.iter_vars]
    extents = [constant(axis.dom.extent) for axis in node.iter_vars]
    reduce = [place for place, one in enumerate(kinds) if one == 2]
    return node, loops, reduce, [place for place, one in enumerate(kinds) if one == 0 and extents[place] != 1]


def _rows(schedule: Any, block: Any, _widened: set[str]) -> int | None:
    """Sums of rows that are read once each are only shared among cores: a copy would cost more than it gains.

    Gives the place of the outermost reduction loop. Raises ValueError where an operand is read more than once, or lies
    along the outputs.
    """
    node, loops, reduce, spatial = _axes(schedule, block)
    if not (reduce and spatial):
        raise ValueError("no reduction of rows")
    variables = [node.iter_vars[place].var for place in spatial]
    crossing = [region for region in node.reads if all(_uses(region, variable) for variable in variables)]
    last = {node.iter_vars[place].var for place in reduce}
    if not any(any(v in last for v in _variables(region.region[-1].min)) for region in crossing):
        raise ValueError("operands lie along the outputs, or are read again")
    outside = [loop for place, loop in enumerate(loops) if place not in reduce]
    schedule.reorder(*outside, *(loops[place] for place in reduce))
    schedule.parallel(schedule.fuse(*outside) if len(outside) > 1 else outside[0])
    return 1


def _tile(schedule: Any, block: Any, widened: set[str]) -> None:
    """Sum a tile of outputs at once, in registers. Raises ValueError where there is nothing to tile."""
    node, _, reduce, spatial = _axes(schedule, block)
    if not (reduce and spatial) or len(node.writes) != 1:
        raise ValueError("no reduction of a matrix")
    inner = next((p for p in reversed(spatial) if _divides(node.iter_vars[p], WIDTHS)), None)
    if inner is None:
        _pad(schedule, block)
        _tile(schedule, block, widened)
        return
    variable = node.iter_vars[inner].var
    width = _divisor(node.iter_vars[inner], WIDTHS)
    second = _second(node, [p for p in spatial if p != inner], variable)
    for number, region in enumerate(node.reads):
        place = _place(region, variable)
        narrow = str(region.buffer.dtype) in WIDER
        if place is not None:
            copy = schedule.cache_read(block, number, "global")
            schedule.transform_layout(copy, ("write", 0), _panels(place, len(region.region), width))
        elif narrow:
            copy = schedule.cache_read(block, number, "global")
        else:
            continue
        if narrow:
            schedule.unsafe_set_dtype(copy, 0, WIDER[str(region.buffer.dtype)])
            widened.add(str(schedule.get(copy).writes[0].buffer.name))
        _share(schedule, copy)
    result = schedule.cache_write(block, 0, "local")
    loops = schedule.get_loops(block)
    outside = [loop for place, loop in enumerate(loops) if place not in (*reduce, inner, second)]
    across, along = schedule.split(loops[inner], [None, width])
    tile = [along]
    if second is not None:
        rows = _divisor(node.iter_vars[second], ROWS)
        down, row = schedule.split(loops[second], [None, rows])
        outside, tile = [*outside, across, down], [row, along]
    else:
        outside = [*outside, across]
    schedule.reorder(*outside, *(loops[place] for place in reduce), *tile)
    every = schedule.fuse(*outside) if len(outside) > 1 else outside[0]
    schedule.reverse_compute_at(result, every)
    schedule.parallel(every)
    for part in (block, result):
        if len(tile) > 1:
            schedule.unroll(schedule.get_loops(part)[-2])
        schedule.vectorize(schedule.get_loops(part)[-1])
    schedule.decompose_reduction(block, schedule.get_loops(block)[1])


def _rearrange(schedule: Any, block: Any, _widened: set[str]) -> int | None:
    """Move the innermost spatial loop under the reduction, the outermost to all cores.

    Gives the place of the outermost reduction loop, None where there is none.
    """
    node, loops, reduce, spatial = _axes(schedule, block)
    if not spatial:
        raise ValueError("one element")
    inner = spatial[-1]
    if reduce:
        _lay_out(schedule, block, node.iter_vars[inner].var)
        outside = [loop for place, loop in enumerate(loops) if place not in reduce and place != inner]
        schedule.reorder(*outside, *(loops[place] for place in reduce), loops[inner])
    if len(spatial) > 1 or not reduce:
        schedule.parallel(loops[spatial[0]])
    return len(loops) - 1 - len(reduce) if reduce else None


def _lay_out(schedule: Any, block: Any, variable: Any) -> None:
    """Copy every operand that an iterator crosses, so that it runs along the copy."""
    for number, region in enumerate(schedule.get(block).reads):
        places = [d for d, part in enumerate(region.region) if kind(part.min) == "Var" and part.min.same_as(variable)]
        last = len(region.region) - 1
        if len(places) == 1 and places[0] != last:
            copy = schedule.cache_read(block, number, "global")
            order = [d for d in range(last + 1) if d != places[0]] + places
            schedule.transform_layout(copy, ("write", 0), _permutation(order))
            _share(schedule, copy)


def _share(schedule: Any, copy: Any) -> None:
    """The outermost loop of a copy that is longer than 1 runs on all cores."""
    _, loops, _, spatial = _axes(schedule, copy)
    if spatial:
        schedule.parallel(loops[spatial[0]])


def _divides(axis: Any, wanted: tuple[int, ...]) -> bool:
    extent = constant(axis.dom.extent)
    return extent is not None and any(extent % one == 0 for one in wanted)


def _divisor(axis: Any, wanted: tuple[int, ...]) -> int:
    extent = constant(axis.dom.extent)
    return next(one for one in wanted if extent is not None and extent % one == 0)


def _pad(schedule: Any, block: Any) -> None:
    """Zeros around the operands of a matrix product, so that tiles fit. Raises ValueError where that gains nothing."""
    node, _, _, spatial = _axes(schedule, block)
    longest = max(spatial, key=lambda place: constant(node.iter_vars[place].dom.extent) or 0)
    if (constant(node.iter_vars[longest].dom.extent) or 0) < WIDTHS[0]:
        raise ValueError("too small for a tile")
    if any(str(region.buffer.dtype).startswith("float8") for region in node.reads):
        raise ValueError("TVM lowers no choice between 8-bit floats")
    padding = [1] * len(node.iter_vars)
    padding[longest] = WIDTHS[0]
    schedule.pad_einsum(block, padding)
    for copy in (*schedule.get_producers(block), *schedule.get_consumers(block)):
        _share(schedule, copy)


def _second(node: Any, places: list[int], inner: Any) -> int | None:
    """The axis whose tile reads the same vectors again: the last that no operand shares with the inner one."""
    fitting = [p for p in places if _divides(node.iter_vars[p], ROWS)]
    along = [region for region in node.reads if any(_moves(part.min, inner) for part in region.region)]
    free = [p for p in fitting if not any(_uses(region, node.iter_vars[p].var) for region in along)]
    return free[-1] if free else None


def _moves(expression: Any, variable: Any) -> bool:
    """Whether an index changes with every step of the variable; under a division it does not."""
    if kind(expression) == "Var":
        return bool(expression.same_as(variable))
    return kind(expression) in ("Add", "Sub", "Mul") and any(_moves(e, variable) for e in children(expression))


def _uses(region: Any, variable: Any) -> bool:
    return any(one.same_as(variable) for part in region.region for one in _variables(part.min))


def _variables(expression: Any) -> Iterator[Any]:
    if kind(expression) == "Var":
        yield expression
    for child in children(expression):
        yield from _variables(child)


def _place(region: Any, variable: Any) -> int | None:
    """The only dimension of an operand that the variable indexes, where it does so alone."""
    found = [d for d, part in enumerate(region.region) if any(v.same_as(variable) for v in _variables(part.min))]
    return found[0] if len(found) == 1 and kind(region.region[found[0]].min) == "Var" else None


def _panels(place: int, dimensions: int, width: int) -> Callable[..., list[Any]]:
    """Panels of `width` along one dimension, each with everything else in it, one vector after the other."""
    others = [d for d in range(dimensions) if d != place]
    return lambda *index: [index[place] // width, *(index[d] for d in others), index[place] % width]


def _permutation(order: list[int]) -> Callable[..., list[Any]]:
    return lambda *index: [index[dimension] for dimension in order]


def _without_detours(module: Any, widened: set[str]) -> Any:
    """Reads of a widened copy as they are, not by way of the type that its values came from and fit in."""
    import tvm

    def direct(node: Any) -> Any:
        inside = node.value
        if kind(inside) != "Cast" or kind(inside.value) != "BufferLoad":
            return None
        load = inside.value
        if str(load.buffer.name) in widened and load.dtype == node.dtype:
            return load
        return None

    if not widened:
        return module
    main = module["main"]
    body = tvm.tirx.stmt_functor.ir_transform(main.body, None, direct, ["tirx.Cast"])
    return tvm.IRModule({"main": main.with_body(body)})
