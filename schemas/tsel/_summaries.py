"""One line for each edit, from its instructions alone.

What an edit does is told clause by clause; instructions that do the same to several things share one, and what
follows a copy (its place, its fetch) follows it in its clause. `_names` says what blocks and loops are called.
Numbers stand in computations (`8 * 32 * 4 = 1024`) or not at all.

A summary may stand in a label, where the verifier tests its words: a word for a deed (copy … into, fused, split,
threads) is used only by the edit that does it.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from littledragon.schemas.graph import Edit, Graph, Instruction
from littledragon.schemas.tsel._names import Names, listed, nth, word
from littledragon.schemas.tsel._primitives import PRIMITIVES

MAX_SUMMARY: Final = 300
"""Characters of a derived summary."""
_MORE: Final = "; and more"
COOPERATIVE: Final = "meta_schedule.cooperative_fetch"
TENSORIZE: Final = "meta_schedule.auto_tensorize"


def summaries(graph: Graph) -> dict[str, str]:
    """What each edit does, by its id: the writer's words where it has any, otherwise the derived ones."""
    names = Names()
    derived = {edit.id: _Teller(names, edit).tell(edit) for edit in graph.edits}
    return {edit.id: edit.summary or derived[edit.id] for edit in graph.edits}


class _Clause:
    """A clause in the making: `{}` of its pattern stands for what it is about, `[one|many]` for what agrees with it."""

    def __init__(self, pattern: str, weak: bool = False, key: str = "") -> None:
        self.pattern = pattern
        self.key = key
        self.things: list[str] = []
        self.loops: list[str] = []
        self.tails: list[str] = []
        self.weak = weak
        """Told only where the edit does nothing else."""

    def text(self, names: Names) -> str:
        things = [*self.things, *([names.several(self.loops)] if self.loops else [])]
        one = len(things) == 1 and len(self.loops) < 2
        text = _AGREES.sub(lambda match: match.group(1 if one else 2), self.pattern)
        return ", ".join([text.replace("{}", listed(things), 1), *self.tails])


_AGREES: Final = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


class _Teller:
    """Tells one edit."""

    def __init__(self, names: Names, edit: Edit) -> None:
        self.names = names
        self.clauses: list[_Clause] = []
        self.copies: dict[str, _Clause] = {}
        """Clauses that go on with what becomes of a block, by the block's name in the trace."""
        self.fused: dict[str, tuple[_Clause, Sequence[Any]]] = {}
        """Loops that this edit fused, by the name of the one that came of them."""
        self.shares: dict[str, list[str]] = {}
        """Over what post-processing shares out the fetch of a block."""
        self.after = any(i.kind == "EnterPostproc" for i in edit.instructions)
        self.consumed = {i.inputs[1:] for i in edit.instructions if i.kind == "Split" and not any(map(_odd, i.inputs))}

    def tell(self, edit: Edit) -> str:
        for instruction in edit.instructions:
            tells = _TELLS.get(instruction.kind)
            if tells is not None:
                tells(self, instruction)
            elif instruction.kind not in _SILENT:
                self.say(f"apply {instruction.kind} to {{}}", self.names.of(_at(instruction.inputs, 0)))
            self.names.learn(instruction)
        self._shared()
        strong = [clause for clause in self.clauses if not clause.weak] or self.clauses
        return _sentence([clause.text(self.names) for clause in strong] or [_looked_up(edit)])

    def _shared(self) -> None:
        """The fetches that post-processing carries out, those alike in one clause, right after the boundary."""
        alike: dict[str, _Clause] = {}
        for block, ways in self.shares.items():
            tail = listed([way for way in ways if way[:1] != "v"])
            tail = f" over {tail}" if tail else ""
            tail += " in vectors" if "vectors" in ways else ""
            alike.setdefault(tail, _Clause(f"share out the fetch of {{}}{tail}")).things.append(self.names.of(block))
        self.clauses[1:1] = alike.values()

    def say(
        self, pattern: str, thing: str = "", *, loop: Any = None, weak: bool = False, key: str | None = None
    ) -> _Clause:
        """Add to the clause of a pattern (or of a key, whatever its pattern), or begin it."""
        clause = next((c for c in self.clauses if (key or pattern) in (c.pattern, c.key) and not c.tails), None)
        if clause is None:
            clause = _Clause(pattern, weak, key or "")
            self.clauses.append(clause)
        if loop is not None:
            clause.loops.append(loop)
        elif thing and thing not in clause.things:
            clause.things.append(thing)
        return clause

    def begin(self, pattern: str, thing: str, blocks: Sequence[str]) -> None:
        """A clause of its own that goes on with what becomes of these blocks."""
        clause = _Clause(pattern)
        clause.things.append(thing)
        self.clauses.append(clause)
        self.copies.update(dict.fromkeys(blocks, clause))

    def follow(self, block: Any, tail: str) -> bool:
        """Go on with the clause of a block, if this edit has one."""
        clause = self.copies.get(block) if isinstance(block, str) else None
        if clause is not None and tail not in clause.tails:
            clause.tails.append(tail)
        return clause is not None


Tells = Callable[[_Teller, Instruction], object]


def _odd(value: Any) -> bool:
    return isinstance(value, (list, dict))


def _at(values: Sequence[Any], index: int, default: Any = "") -> Any:
    return values[index] if index < len(values) else default


def _looked_up(edit: Edit) -> str:
    found = [word(_at(i.attrs, 0)) for i in edit.instructions if i.kind == "GetSBlock"]
    return f"look up {listed(found)}" if found else "look up blocks and loops"


def _sentence(clauses: Sequence[str]) -> str:
    """As many of the clauses as there is room for."""
    text = clauses[0]
    for number, more in enumerate(clauses[1:], 2):
        room = MAX_SUMMARY - len("; .") - (0 if number == len(clauses) else len(_MORE))
        if len(text) + len(more) > room:
            text += _MORE
            break
        text += f"; {more}"
    text = text if len(text) < MAX_SUMMARY else "change blocks with long names"
    return f"{text[0].upper()}{text[1:]}."


# What each kind of instruction adds.


def _tile(teller: _Teller, step: Instruction) -> None:
    if step.outputs not in teller.consumed:
        teller.say("draw factors for {}", loop=_at(step.inputs, 0))


def _split(teller: _Teller, step: Instruction) -> None:
    loop, factors = _at(step.inputs, 0), step.inputs[1:]
    block = teller.names.owner(loop)
    tile = None if any(map(_odd, factors)) else teller.names.tiles.get(factors)
    if tile is not None:
        extent, known = tile["extent"], math.prod(tile["factors"])
        rest = [extent // known] if known and extent % known == 0 else []
        teller.say(f"split {{}} into {' * '.join(map(str, [*tile['factors'], *rest]))} = {extent}", loop=loop)
    elif block not in teller.shares and not teller.follow(block, "its loops split"):
        fixed = any(isinstance(factor, int) for factor in factors)
        teller.say(f"split {{}} by {'fixed factors' if fixed else 'a sampled factor'}", loop=loop)


def _reorder(teller: _Teller, step: Instruction) -> None:
    names, loops = teller.names, step.inputs
    block = names.owner(_at(loops, 0))
    if teller.follow(block, "its loops reordered"):
        return
    order = f" from {names.inside(loops[0])} to {names.inside(loops[-1])}" if len(loops) > 1 else ""
    teller.say(f"reorder the loops of {names.of(block)}{order}")


def _fuse(teller: _Teller, step: Instruction) -> None:
    block = teller.names.owner(_at(step.inputs, 0))
    if len(step.inputs) < 2 or block in teller.shares or teller.follow(block, "its loops fused"):
        return  # a single loop stays what it is
    clause = _Clause("fuse {}")
    clause.loops += step.inputs
    teller.clauses.append(clause)
    teller.fused.update(dict.fromkeys(step.outputs, (clause, step.inputs)))


def _bind(teller: _Teller, step: Instruction) -> None:
    names, loop, thread = teller.names, _at(step.inputs, 0), word(_at(step.attrs, 0), "threads")
    block = names.owner(loop)
    if block in teller.shares:
        teller.shares[block].append(thread)
    elif teller.follow(block, f"bound to {thread}"):
        return
    elif loop in teller.fused:
        clause, loops = teller.fused.pop(loop)
        teller.clauses.remove(clause)
        teller.say(f"fuse loops of {names.of(block)} and bind {{}}", f"{names.mine(loops)} to {thread}")
    else:
        teller.say("bind {}", f"{names.of(loop)} to {thread}")


def _run(pattern: str, tail: str) -> Tells:
    """Loops that run in another way."""

    def tells(teller: _Teller, step: Instruction) -> None:
        loop = _at(step.inputs, 0)
        block = teller.names.owner(loop)
        if block in teller.shares:
            teller.shares[block].append("vectors")
        elif not teller.follow(block, tail):
            teller.say(pattern, loop=loop)

    return tells


def _memory(step: Instruction) -> str:
    scope = word(_at(step.attrs, 0 if step.kind == "CacheIndex" else 1), "other")
    return f"{'dynamic shared' if scope == 'shared.dyn' else scope} memory"


def _cache(teller: _Teller, step: Instruction) -> None:
    under = f", under {teller.names.of(_at(step.inputs, 0))}" if step.kind in ("ReadAt", "WriteAt") else ""
    teller.begin(f"keep {{}} in {_memory(step)}{under}", teller.names.buffer(step), step.outputs)


def _scope(teller: _Teller, step: Instruction) -> None:
    if not teller.follow(_at(step.inputs, 0), f"kept in {_memory(step)}"):
        teller.say(f"keep {{}} in {_memory(step)}", teller.names.buffer(step))


def _align(teller: _Teller, step: Instruction) -> None:
    if not teller.follow(_at(step.inputs, 0), "its rows padded"):
        teller.say("pad the rows of {} in memory", teller.names.of(_at(step.inputs, 0)))


def _place(teller: _Teller, step: Instruction) -> None:
    names, block, loop = teller.names, _at(step.inputs, 0), _at(step.inputs, 1)
    drawn = names.drawn.get(loop) if isinstance(loop, str) else None
    if drawn == -1:
        teller.say("leave {} where [it is|they are]", names.of(block))
    elif drawn == -2:
        teller.say("inline {}", names.of(block))
    elif drawn is not None:
        teller.say("compute {} under [a loop that was drawn|loops that were drawn]", names.of(block))
    elif not teller.follow(block, f"computed under {names.of(loop)}"):
        teller.begin(f"compute {{}} under {names.of(loop)}", names.of(block), [block])


def _inline(teller: _Teller, step: Instruction) -> None:
    name = teller.names.of(_at(step.inputs, 0))
    if " copy " in name:
        teller.say("inline {}", name)
    elif step.kind == "ComputeInline":
        teller.say("inline {} into [its|their] consumers", name)
    else:
        teller.say("inline {} into [its producer|their producers]", name)


def _layout(teller: _Teller, step: Instruction) -> None:
    block, side = teller.names.of(_at(step.inputs, 0)), _at(step.attrs, 1)
    place = nth(_at(step.attrs, 0)) if isinstance(_at(step.attrs, 0), int) else "first"
    what = "output" if side == 1 and place == "first" else f"{place} {'output' if side == 1 else 'input'}"
    verb = {
        "ReIndex": "reindex",
        "TransformLayout": "change the [layout|layouts] of",
        "SetAxisSeparator": "set the axis separators of",
    }[step.kind]
    teller.say(f"{verb} {{}} of {block}", f"the {what}")


def _blockize(teller: _Teller, step: Instruction) -> None:
    teller.begin("make a block of {} and what is in it", teller.names.of(_at(step.inputs, 0)), step.outputs)


def _tensorize(teller: _Teller, step: Instruction) -> None:
    intrinsic = word(_at(step.attrs, 0), "an intrinsic")
    teller.say(
        f"compute {{}} with [{intrinsic}|tensor intrinsics]", teller.names.of(_at(step.inputs, 0)), key="tensorize"
    )


_ASKED: Final = {
    "meta_schedule.parallel": "parallel loops",
    "meta_schedule.vectorize": "vectorised loops",
    "meta_schedule.unroll_explicit": "unrolling",
    "meta_schedule.unroll_implicit": "unrolling",
}
_MINOR: Final = ("pragma_unroll_explicit", "warp_execution", "meta_schedule.thread_extent_", "meta_schedule.auto_tens")
"""Marks that go without saying where an edit does something else."""


def _annotate(teller: _Teller, step: Instruction) -> None:
    names, target, key = teller.names, _at(step.inputs, 0), str(_at(step.attrs, 0))
    value = names.value(_at(step.inputs, 1, None))
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
    elif key.startswith("software_pipeline_"):
        if not teller.follow(names.owner(target), "pipelined"):
            teller.say("pipeline {}", name)
    elif key.startswith("double_buffer") and not off:
        if not teller.follow(target, "double-buffered"):
            teller.say("double-buffer {}", name)
    elif key == "pragma_auto_unroll_max_step":
        teller.say("do not unroll inside {}" if off else "unroll inside {}", name)
    elif key == "meta_schedule.tiling_structure" and not off:
        teller.say(f"mark {{}} with the tiling structure {word(value, 'given')}", name)
    else:
        teller.say(f"mark {{}} with {word(key, 'a note')}", name, weak=key.startswith(_MINOR))


def _fetch(teller: _Teller, block: Any) -> None:
    """A copy whose elements the threads move together; the loops that were fused for it go without saying."""
    names, back = teller.names, block in teller.names.written
    if teller.follow(block, "written back cooperatively" if back else "fetched cooperatively"):
        return
    for loop in [loop for loop in teller.fused if names.owner(loop) == block]:
        teller.clauses.remove(teller.fused.pop(loop)[0])
    teller.say("write {} back cooperatively" if back else "fetch {} cooperatively", names.of(block))


def _unannotate(teller: _Teller, step: Instruction) -> None:
    target, key = _at(step.inputs, 0), _at(step.attrs, 0)
    if key == COOPERATIVE and teller.after and isinstance(target, str):
        teller.shares.setdefault(target, [])
    teller.say(f"remove {word(key, 'a mark')} from {{}}", teller.names.of(target), weak=True)


def _plain(pattern: str) -> Tells:
    """Kinds that only say what they are done to."""

    def tells(teller: _Teller, step: Instruction) -> None:
        teller.say(pattern, teller.names.of(_at(step.inputs, 0)))

    return tells


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
    "FuseReductionEpilogue": _plain("fold what follows a reduction, {}, into it"),
    "TransformBlockLayout": _plain("change the iteration [layout|layouts] of {}"),
    "PadEinsum": _plain("fill up the iterations of {}"),
    "DecomposePadding": _plain("write the margins of {} apart"),
    "RFactor": _plain("make partial results of the reduction over {} (rfactor)"),
    "DecomposeReduction": _plain("separate the initialisation of {} from [its update|their updates]"),
    "AnnotateBufferAccess": _plain("state what {} accesses"),
    "UnsafeSetDType": _plain("set the type of a buffer of {}"),
    "UnsafeHideBufferAccess": _plain("hide what {} accesses"),
}
_SILENT: Final = frozenset(kind for kind, row in PRIMITIVES.items() if row.edit in ("lookup", "sample")) | {
    "SampleComputeLocation"
}
