"""A quick CPU schedule of an unscheduled program, with every result bit for bit the same.

The original runs at half a GFLOP a second. Here each reduction runs outside its innermost spatial loop, which LLVM
then turns into vector instructions, what it reads across the grain is copied into place first, and the outermost loop
runs on all cores. The terms of each element are added in their own order still.
"""

import json
from collections.abc import Callable
from typing import Any

from littledragon.compiler import inputs, kernels
from littledragon.compiler.features import constant, kind


def brisk(module: Any) -> Any:
    """The scheduled module; blocks that do not take the schedule stay as they are. Runs where TVM is imported."""
    import tvm
    from tvm.s_tir import Schedule

    schedule = Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        before = schedule.copy()
        try:
            _rearrange(schedule, block)
        except (tvm.s_tir.ScheduleError, ValueError):
            schedule = before
    return schedule.mod


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
    tvm.compile(brisk(tvm.ir.load_json(module)), target=tvm.target.Target(target))["main"](*arguments)
    # Outputs of floats are full of NaN before.
    values = {known[place]["name"]: kernels.plain(arguments[place].numpy()) for place in kernels.outputs(known)}
    return [name for name, array in values.items() if not np.isfinite(array).all()]


def _rearrange(schedule: Any, block: Any) -> None:
    node, loops = schedule.get(block), schedule.get_loops(block)
    axes = node.iter_vars
    if len(loops) != len(axes):
        return
    reduce = [place for place, axis in enumerate(axes) if int(axis.iter_type) == 2]
    spatial = [p for p, axis in enumerate(axes) if int(axis.iter_type) == 0 and constant(axis.dom.extent) != 1]
    if not spatial:
        return
    inner = spatial[-1]
    if reduce:
        _lay_out(schedule, block, axes[inner].var)
        outside = [loop for place, loop in enumerate(loops) if place not in reduce and place != inner]
        schedule.reorder(*outside, *(loops[place] for place in reduce), loops[inner])
    if len(spatial) > 1 or not reduce:
        schedule.parallel(loops[spatial[0]])  # before the reduction is decomposed: what is left then takes no parallel
    if reduce:
        schedule.decompose_reduction(block, loops[reduce[0]])


def _lay_out(schedule: Any, block: Any, variable: Any) -> None:
    """Copy every operand that an iterator crosses, so that it runs along the copy."""
    for number, region in enumerate(schedule.get(block).reads):
        places = [d for d, part in enumerate(region.region) if kind(part.min) == "Var" and part.min.same_as(variable)]
        last = len(region.region) - 1
        if len(places) == 1 and places[0] != last:
            copy = schedule.cache_read(block, number, "global")
            order = [d for d in range(last + 1) if d != places[0]] + places
            schedule.transform_layout(copy, ("write", 0), _permutation(order))


def _permutation(order: list[int]) -> Callable[..., list[Any]]:
    return lambda *index: [index[dimension] for dimension in order]
