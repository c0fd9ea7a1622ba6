"""Draws from design spaces, with what `compiler.limits` and TVM's post-processors say of each. Runs in a child."""

from typing import Any


def drawn(module: str, target: dict[str, Any], rules: str, count: int) -> dict[str, int]:
    """Of so many draws as TVM makes them: `allowed` by the bounds, `legal`, `both`; and `bounded` design spaces."""
    import tvm
    from tvm.s_tir import Schedule, Trace

    from littledragon.compiler import proposals
    from littledragon.compiler.evolution import Search

    mod = tvm.ir.load_json(module)
    context = proposals.tune_context(mod, target, rules, 1)
    search = Search(context, context.generate_design_space(), target, 1)
    found = {"allowed": 0, "legal": 0, "both": 0, "bounded": sum(bool(s.limits.blocks) for s in search.spaces)}
    for number in range(count):
        space = search.spaces[number % len(search.spaces)]
        schedule = Schedule(mod, seed=number + 1)
        Trace(space.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        allowed = space.allows(schedule.trace)
        schedule.enter_postproc()
        legal = all(processor.apply(schedule) for processor in context.space_generator.postprocs)
        found["allowed"] += allowed
        found["legal"] += legal
        found["both"] += allowed and legal
    return found


def tiles(extent: int, parts: int, most: int, count: int, seed: int) -> list[list[int]]:
    """So many tiles."""
    import numpy as np

    from littledragon.compiler.evolution import tile

    random = np.random.default_rng(seed)
    return [tile(random, extent, parts, most) for _ in range(count)]


def drawn_by_search(module: str, target: dict[str, Any], rules: str, count: int) -> int:
    """How many of so many members that the search draws are legal."""
    import itertools

    import tvm

    from littledragon.compiler import proposals
    from littledragon.compiler.evolution import Search

    context = proposals.tune_context(tvm.ir.load_json(module), target, rules, 1)
    search = Search(context, context.generate_design_space(), target, 1)
    return sum(member is not None for member in itertools.islice(search.drawn(), count))
