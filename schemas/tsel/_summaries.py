"""One line for each edit, from its instructions alone.

What an edit does is told clause by clause; instructions that do the same to several things share one, and what
follows a copy (its place, its fetch) follows it in its clause. `_names` says what blocks and loops are called.
Numbers stand in computations (`8 * 32 * 4 = 1024`) or not at all.

A summary may stand in a label, where the verifier tests its words: a word for a deed (copy … into, fused, split,
threads) is used only by the edit that does it.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from littledragon.schemas.graph import Graph, Instruction
from littledragon.schemas.tsel._clauses import Clause, Telling, at, hashable
from littledragon.schemas.tsel._names import Names, listed, memory, nth, word
from littledragon.schemas.tsel._primitives import PRIMITIVES

Tells = Callable[[Telling, Instruction], object]
COOPERATIVE: Final = "meta_schedule.cooperative_fetch"
TENSORIZE: Final = "meta_schedule.auto_tensorize"


def summaries(graph: Graph) -> dict[str, str]:
    """What each edit does, by its id: the writer's words where it has any, otherwise the derived ones."""
    names = Names()
    told = {}
    for edit in graph.edits:
        telling = Telling(names, edit)
        for instruction in edit.instructions:
            if instruction.kind not in _SILENT:
                _TELLS[instruction.kind](telling, instruction)
            names.learn(instruction)
        told[edit.id] = edit.summary or telling.text(edit)
    return told


# What each kind of instruction adds.


def _tile(teller: Telling, step: Instruction) -> None:
    if step.outputs not in teller.consumed:
        teller.say(f"draw {_product(step.decision)} for {{}}", loop=at(step.inputs, 0))


def _product(tile: Any) -> str:
    """`8 * 32 * 4 = 1024`"""
    factors, extent = tile["factors"], tile["extent"]
    known = math.prod(factors)
    rest = [extent // known] if known and extent % known == 0 else []
    return f"{' * '.join(map(str, [*factors, *rest]))} = {extent}"


def _split(teller: Telling, step: Instruction) -> None:
    loop, factors = at(step.inputs, 0), step.inputs[1:]
    block = teller.names.owner(loop)
    tile = teller.names.tiles.get(factors) if hashable(factors) else None
    if tile is not None:
        teller.say(f"split {{}} into {_product(tile)}", loop=loop)
    elif block not in teller.shares and not teller.follow(block, f"{_its(teller, loop)} split"):
        fixed = any(isinstance(factor, int) for factor in factors)
        how = "fixed factors" if fixed else "a sampled factor"
        teller.say(f"split {{}} by {how}", loop=loop, key=f"split {block}", weak=teller.after)


def _its(teller: Telling, loop: Any) -> str:
    return teller.names.inside(loop).replace("the ", "its ", 1)


def _reorder(teller: Telling, step: Instruction) -> None:
    names, loops = teller.names, step.inputs
    block = names.owner(at(loops, 0))
    if teller.follow(block, "its loops reordered"):
        return
    cores = {names.loops[loop].core for loop in loops if loop in names.loops}
    key = f"reorder {block}"
    if len(loops) > 1 and len(cores) == 1 and "" not in cores:
        teller.say(f"reorder the parts of the {cores.pop()} of {names.of(block)}", key=key)
    else:
        order = f" from {names.inside(loops[0])} to {names.inside(loops[-1])}" if len(loops) > 1 else ""
        teller.say(f"reorder the loops of {names.of(block)}{order}", key=key)


def _fuse(teller: Telling, step: Instruction) -> None:
    block = teller.names.owner(at(step.inputs, 0))
    if len(step.inputs) < 2 or block in teller.shares or teller.follow(block, "its loops fused"):
        return  # a single loop stays what it is
    clause = Clause("fuse {}", weak=teller.after)
    clause.loops += step.inputs
    teller.clauses.append(clause)
    teller.fused.update(dict.fromkeys(step.outputs, (clause, step.inputs)))


def _bind(teller: Telling, step: Instruction) -> None:
    names, loop, thread = teller.names, at(step.inputs, 0), word(at(step.attrs, 0), "threads")
    block = names.owner(loop)
    if block in teller.shares:
        teller.shares[block].append(thread)
    elif (clause := teller.copies.get(block)) is not None:
        done = clause.tails and clause.tails[-1].endswith((" fused", " split"))
        if done:
            clause.tails[-1] += f" and bound to {thread}"
        else:
            clause.tails.append(f"bound to {thread}")
    elif loop in teller.fused:
        clause, loops = teller.fused.pop(loop)
        teller.clauses.remove(clause)
        teller.say(f"fuse loops of {names.of(block)} and bind {{}}", f"{names.mine(loops)} to {thread}")
    elif (split := _splits(teller, loop)) is not None:
        split.tails.append(f"its {names.loops[loop].part} part bound to {thread}")
        split.weak = False
    else:
        teller.say("bind {}", f"{names.of(loop)} to {thread}")


def _splits(teller: Telling, loop: Any) -> Clause | None:
    """The clause that splits the one loop that this is a part of, if this edit does."""
    known = teller.names.loops.get(loop)
    if known is None or not known.part:
        return None
    found = [clause for clause in teller.clauses if clause.key == f"split {known.block}" and len(clause.loops) == 1]
    return found[-1] if found and teller.names.inside(found[-1].loops[0]) == f"the {known.core}" else None


def _run(how: str, tail: str) -> Tells:
    """Loops that run in another way. Of post-processing, it is enough to know which blocks they are of."""

    def tells(teller: Telling, step: Instruction) -> None:
        loop = at(step.inputs, 0)
        block = teller.names.owner(loop)
        if block in teller.shares:
            teller.shares[block].append("")
        elif teller.follow(block, tail) is not None:
            return
        elif teller.after:
            if loop in teller.fused:
                teller.clauses.remove(teller.fused.pop(loop)[0])
            teller.say(how.replace("{}", "loops of {}"), teller.names.of(block))
        else:
            teller.say(how, loop=loop)

    return tells


def _memory(step: Instruction) -> str:
    scope = at(step.attrs, 0 if step.kind == "CacheIndex" else 1)
    return "dynamic shared memory" if scope == "shared.dyn" else f"{memory(scope)} memory"


def _cache(teller: Telling, step: Instruction) -> None:
    under = f", under {teller.names.of(at(step.inputs, 0))}" if step.kind in ("ReadAt", "WriteAt") else ""
    teller.begin(f"keep {{}} in {_memory(step)}{under}", teller.names.buffer(step), step.outputs)


def _scope(teller: Telling, step: Instruction) -> None:
    if not teller.follow(at(step.inputs, 0), f"kept in {_memory(step)}"):
        teller.say(f"keep {{}} in {_memory(step)}", teller.names.buffer(step))


def _align(teller: Telling, step: Instruction) -> None:
    if not teller.follow(at(step.inputs, 0), "its rows padded"):
        teller.say("pad the rows of {} in memory", teller.names.of(at(step.inputs, 0)))


_DRAWN: Final = {
    -2: ("inlined", "inline {}"),
    -1: ("left where it is", "leave {} where [it is|they are]"),
    0: ("computed under a loop that was drawn", "compute {} under [a loop that was drawn|loops that were drawn]"),
}
"""What becomes of a block at a sampled location: its decision, or 0 for any loop."""


def _place(teller: Telling, step: Instruction) -> None:
    names, block, loop = teller.names, at(step.inputs, 0), at(step.inputs, 1)
    drawn = names.drawn.get(loop) if isinstance(loop, str) else None
    if drawn is not None:
        tail, pattern = _DRAWN.get(drawn, _DRAWN[0])
        if not teller.follow(block, tail):
            teller.say(pattern, names.of(block))
    elif not teller.follow(block, f"computed under {names.of(loop)}"):
        teller.begin(f"compute {{}} under {names.of(loop)}", names.of(block), [block])


def _inline(teller: Telling, step: Instruction) -> None:
    name = teller.names.of(at(step.inputs, 0))
    if " copy " in name:
        teller.say("inline {}", name)
    elif step.kind == "ComputeInline":
        teller.say("inline {} into [its|their] consumers", name)
    else:
        teller.say("inline {} into [its producer|their producers]", name)


def _layout(teller: Telling, step: Instruction) -> None:
    block, side = teller.names.of(at(step.inputs, 0)), at(step.attrs, 1)
    place = nth(at(step.attrs, 0)) if isinstance(at(step.attrs, 0), int) else "first"
    what = "output" if side == 1 and place == "first" else f"{place} {'output' if side == 1 else 'input'}"
    verb = {
        "ReIndex": "reindex",
        "TransformLayout": "change the [layout|layouts] of",
        "SetAxisSeparator": "set the axis separators of",
    }[step.kind]
    teller.say(f"{verb} {{}} of {block}", f"the {what}")


def _blockize(teller: Telling, step: Instruction) -> None:
    names, target = teller.names, at(step.inputs, 0)
    block = names.owner(target)
    before = {what: clause for clause in teller.clauses if (what := clause.key.removesuffix(f" {block}")) != clause.key}
    teller.clauses[:] = [clause for clause in teller.clauses if clause not in before.values()]
    loops = f"from {names.inside(target)} inwards" if target != block else ""
    clause = teller.begin(f"make a block of {{}} {loops}".rstrip(), names.of(block), step.outputs)
    done = [past for what, past in (("split", "split"), ("reorder", "reordered")) if what in before]
    if done:
        clause.tails.append(f"its loops {listed(done)} for that")


def _tensorize(teller: Telling, step: Instruction) -> None:
    intrinsic = word(at(step.attrs, 0), "an intrinsic")
    name = teller.names.of(at(step.inputs, 0))
    clause = teller.say(f"compute {{}} with [{intrinsic}|tensor intrinsics]", name, key="tensorize")
    if len(clause.things) > 2:
        known = [thing for thing in clause.things if thing != "others"]
        shortest = sorted(known, key=len)[:2]
        clause.things = [*(thing for thing in known if thing in shortest), "others"]


_ASKED: Final = {
    "meta_schedule.parallel": "parallel loops",
    "meta_schedule.vectorize": "vectorised loops",
    "meta_schedule.unroll_explicit": "unrolling",
    "meta_schedule.unroll_implicit": "unrolling",
}
_MINOR: Final = ("pragma_unroll_explicit", "warp_execution", "meta_schedule.thread_extent_", "meta_schedule.auto_tens")
"""Marks that go without saying where an edit does something else."""


def _annotate(teller: Telling, step: Instruction) -> None:
    names, target, key = teller.names, at(step.inputs, 0), str(at(step.attrs, 0))
    value = names.value(at(step.inputs, 1, None))
    name, off = names.of(target), value is None or value in (0, "")
    if key in _ASKED:
        teller.say(f"ask for {'no ' if off else ''}{{}} in {name}", _ASKED[key])
    elif key == COOPERATIVE and not off:
        _fetch(teller, target)
    elif key in (TENSORIZE, f"{TENSORIZE}_init") and not off and not teller.after:
        how = "to be computed with" if key == TENSORIZE else "initialised with"
        if not teller.follow(target, f"{how} {word(value, 'an intrinsic')}"):
            teller.say(f"mark {{}} {how} {word(value, 'an intrinsic')}", name)
    elif key == "meta_schedule.random_compute_producer":
        teller.say("have places drawn for what {} [reads|read]", name)
    elif key.startswith("software_pipeline_") and not off and target in teller.fused:
        teller.fused[target][0].pattern = "fuse and pipeline {}"
    elif key.startswith("software_pipeline_") and not off:
        if not teller.follow(names.owner(target), "pipelined"):
            teller.say("pipeline {}", name)
    elif key.startswith("double_buffer") and not off:
        if not teller.follow(target, "double-buffered"):
            teller.say("double-buffer {}", name)
    elif key == "pragma_auto_unroll_max_step":
        outermost = names.inside(target) in ("the first loop", "the joined loop" if teller.after else "")
        where = names.of(names.owner(target)) if outermost else name
        teller.say("do not unroll inside {}" if off else "unroll inside {}", where, weak=off and teller.after)
    elif key == "meta_schedule.tiling_structure" and not off:
        structure = f" {value}" if set(str(value)) <= set("SR") else ""
        teller.say(f"mark {{}} with the tiling structure{structure}", name)
    else:
        teller.say(f"mark {{}} with {word(key, 'a note')}", name, weak=key.startswith(_MINOR))


def _fetch(teller: Telling, block: Any) -> None:
    """A copy whose elements the threads move together; the loops that were fused for it go without saying."""
    names, back = teller.names, block in teller.names.written
    clause = teller.follow(block, "written back cooperatively" if back else "fetched cooperatively")
    if clause is not None:
        clause.tails = [tail for tail in clause.tails if tail != "its loops fused"]
        return
    for loop in [loop for loop in teller.fused if names.owner(loop) == block]:
        teller.clauses.remove(teller.fused.pop(loop)[0])
    teller.say("write {} back cooperatively" if back else "fetch {} cooperatively", names.of(block))


def _unannotate(teller: Telling, step: Instruction) -> None:
    target, key = at(step.inputs, 0), at(step.attrs, 0)
    if key == COOPERATIVE and teller.after and isinstance(target, str):
        teller.shares.setdefault(target, [])
    teller.say(f"remove {word(key, 'a mark')} from {{}}", teller.names.of(target), weak=True)


def _epilogue(teller: Telling, step: Instruction) -> None:
    names = teller.names
    teller.say(f"compute {{}} inside the reduction {names.of(at(step.inputs, 0))}", names.of(at(step.inputs, 1)))


def _dtype(teller: Telling, step: Instruction) -> None:
    teller.say(f"set the type of a buffer of {{}} to {word(at(step.attrs, 1), 'another')}", _first(teller, step))


def _first(teller: Telling, step: Instruction) -> str:
    return teller.names.of(at(step.inputs, 0))


def _plain(pattern: str) -> Tells:
    """Kinds that only say what they are done to."""
    return lambda teller, step: teller.say(pattern, _first(teller, step))


_TELLS: Final[dict[str, Tells]] = {
    **dict.fromkeys(("SamplePerfectTile", "SamplePartitionedTile"), _tile),
    **dict.fromkeys(("CacheRead", "CacheWrite", "CacheInplace", "CacheIndex", "ReadAt", "WriteAt"), _cache),
    **dict.fromkeys(("ReindexCacheRead", "ReindexCacheWrite"), _cache),
    **dict.fromkeys(("ReIndex", "TransformLayout", "SetAxisSeparator"), _layout),
    **dict.fromkeys(("ComputeAt", "ReverseComputeAt"), _place),
    **dict.fromkeys(("ComputeInline", "ReverseComputeInline"), _inline),
    "Split": _split,
    "Reorder": _reorder,
    "Fuse": _fuse,
    "Merge": _fuse,
    "Bind": _bind,
    "Parallel": _run("run {} in parallel", "run in parallel"),
    "Vectorize": _run("vectorise {}", "vectorised"),
    "Unroll": _run("unroll {}", "unrolled"),
    "SetScope": _scope,
    "StorageAlign": _align,
    "Blockize": _blockize,
    "Tensorize": _tensorize,
    "Annotate": _annotate,
    "Unannotate": _unannotate,
    "EnterPostproc": lambda teller, step: teller.say("enter post-processing"),
    "LoopPartition": _plain("partition {}"),
    "ReorderBlockIterVar": _plain("reorder the block variables of {}"),
    "AddUnitLoop": _plain("add a unit loop to {}"),
    "RollingBuffer": _plain("keep the output of {} in a rolling buffer"),
    "FuseReductionEpilogue": _epilogue,
    "TransformBlockLayout": _plain("change the iteration [layout|layouts] of {}"),
    "PadEinsum": _plain("fill up the iterations of {}"),
    "DecomposePadding": _plain("write the margins of {} apart"),
    "RFactor": _plain("make partial results of the reduction over {} (rfactor)"),
    "DecomposeReduction": _plain("separate the initialisation of {} from [its update|their updates]"),
    "AnnotateBufferAccess": _plain("state what {} accesses"),
    "UnsafeSetDType": _dtype,
    "UnsafeHideBufferAccess": _plain("hide what {} accesses"),
}
_SILENT: Final = frozenset(kind for kind, row in PRIMITIVES.items() if row.edit in ("lookup", "sample")) | {
    "SampleComputeLocation"
}
