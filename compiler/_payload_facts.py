"""Facts of a payload: of the whole, of each edit, and of the module that it yields.

The same for the schedule that is taught (`out.…`) and, refining, for graph A (`in.prior.…`).
"""

import dataclasses
import math
import re
from typing import Any, Final

from littledragon.compiler._facts import Facts, Row, segment, times
from littledragon.compiler.deeds import annotation, deeds, sampled, values
from littledragon.compiler.steps import Block, Loop, Step, edits, observe
from littledragon.compiler.traces import expand
from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Graph

_POSTPROC: Final = "postproc"
"""Stands for the id of an edit in the paths of what derived post-processing does: `out.postproc.deeds`."""
_AT_A_BLOCK: Final = {
    "ComputeAt": "compute_at",
    "ReverseComputeAt": "reverse_compute_at",
    "ComputeInline": "inline",
    "ReverseComputeInline": "inline",
    "CacheRead": "cache_read",
    "CacheWrite": "cache_write",
    "SetScope": "set_scope",
    "DecomposeReduction": "decompose",
    "Blockize": "blockize",
    "Tensorize": "tensorize",
    "RFactor": "rfactor",
    "ReIndex": "reindex",
    "StorageAlign": "storage_align",
    "TransformLayout": "layout",
    "TransformBlockLayout": "layout",
}


def of_payload(facts: Facts, prefix: str, whose: str, module: str, target: dict[str, Any], text: str) -> None:
    """Facts of one payload: the whole, each edit, and the module that it yields."""
    from littledragon.compiler.features import features

    trace, graph = _whole(module, target, text)
    steps, scheduled = observe(module, trace, graph)
    _of_whole(facts, prefix, whose, graph)
    known = values(graph.edits)
    for edit, group in edits(steps):
        facts.add(
            f"{prefix}.{edit}.steps",
            len(group),
            f"{_called(edit)} of {whose} has {len(group)} instructions",
            f"len({edit})",
        )
        done, asked = deeds((step.instruction for step in group), known)
        for what, found in (("deeds", sorted(done)), ("asks", sorted(asked))):
            if found:
                text = f"{_called(edit)} of {whose} {'does' if what == 'deeds' else 'asks for'}: {', '.join(found)}"
                facts.add(f"{prefix}.{edit}.{what}", found, text, "kinds of its instructions")
        for step in group:
            _of_step(facts, f"{prefix}.{edit}", whose, step, known)
    _of_scheduled(facts, prefix, whose, features(scheduled))


def _whole(module: str, target: dict[str, Any], text: str) -> tuple[str, Graph]:
    """The whole trace of a payload, and its graph; derived post-processing is one more edit there, `postproc`."""
    decoded = tsel.decode(text)
    graph, postproc = decoded.graph, decoded.graph.postproc
    if postproc is None:
        return decoded.trace, graph
    trace = expand(module, decoded.trace, target, postproc)
    own = sum(len(edit.instructions) for edit in graph.edits)
    instructions = [i for edit in tsel.lift(trace).edits for i in edit.instructions]
    last = Edit(_POSTPROC, "postproc", "", tuple(instructions[own:]))
    return trace, dataclasses.replace(graph, edits=(*graph.edits, last), postproc=None)


def _called(edit: str) -> str:
    return "post-processing" if edit == _POSTPROC else f"edit {edit}"


def _of_whole(facts: Facts, prefix: str, whose: str, graph: Graph) -> None:
    instructions = [i for edit in graph.edits for i in edit.instructions]
    kinds = [i.kind for i in instructions]
    after = len(kinds) - kinds.index("EnterPostproc") - 1 if "EnterPostproc" in kinds else 0
    done, _ = deeds(instructions, values(graph.edits))
    listed = sorted(done)
    own = sum(edit.id != _POSTPROC for edit in graph.edits)
    facts.add(f"{prefix}.edits", own, f"{whose} has {own} edits", "len(E)")
    facts.add(
        f"{prefix}.instructions", len(kinds), f"{whose} has {len(kinds)} instructions", "instructions of all edits"
    )
    facts.add(
        f"{prefix}.postproc_instructions",
        after,
        f"{whose} has {after} instructions of post-processing",
        "after EnterPostproc",
    )
    named = ", ".join(listed) or "nothing"
    facts.add(f"{prefix}.deeds", listed, f"{whose} does: {named}", "kinds of its instructions")


def _of_step(facts: Facts, path: str, whose: str, step: Step, known: dict[str, Any]) -> None:
    """Facts of one instruction, where it has something to tell."""
    kind, edit, called = step.instruction.kind, step.edit, _called(step.edit)
    loops, blocks = step.loops(), step.blocks()
    if kind == "Split" and loops:
        _of_split(facts, path, whose, step)
    elif kind == "Fuse" and len(loops) > 1:
        names = [loop.name for loop in loops]
        facts.add(f"{path}.fuse.loops", names, f"{called} fuses {', '.join(names)}", "inputs of Fuse")
        extents = [loop.extent for loop in loops if loop.extent is not None]
        if len(extents) == len(loops):
            text, total = f"the fused loops have extents {_listed(extents)}", math.prod(extents)
            facts.add(f"{path}.fuse.extents", extents, text, "inputs of Fuse")
            facts.add(
                f"{path}.fuse.extent", total, f"the fused loop has extent {total}", f"{edit} Fuse: {times(extents)}"
            )
    elif kind in ("Parallel", "Vectorize", "Unroll") and loops:
        _of_loop(facts, f"{path}.{kind.lower()}", f"{called}: {kind} of", loops[0])
    elif kind == "Bind" and loops:
        tag = str(step.inputs[-1] if isinstance(step.inputs[-1], str) else step.instruction.attrs[0])
        facts.add(f"{path}.bind.thread", tag, f"{called} binds a loop to {tag}", "inputs of Bind")
        _of_loop(facts, f"{path}.bind", f"{called}: {tag} runs over", loops[0])
    elif kind == "Reorder" and loops:
        names = [loop.name for loop in loops]
        facts.add(f"{path}.reorder.loops", names, f"{called} orders the loops {', '.join(names)}", "inputs of Reorder")
    elif kind == "Annotate":
        _of_annotation(facts, path, step, known)
    elif kind == "SampleCategorical":
        for value in sampled(step.instruction):
            if isinstance(value, int):
                facts.add(f"{path}.choice", value, f"{called} chooses {value}", f"decision {step.instruction.decision}")
    elif kind in _AT_A_BLOCK:
        at = f"{path}.{_at_a_block(step, known)}"
        for block in blocks[:1]:
            facts.add(f"{at}.block", block.name, f"{called}: {kind} of block {block.name}", f"inputs of {kind}")
        for loop in loops[:1]:
            facts.add(f"{at}.loop", loop.name, f"{called}: {kind} at loop {loop.name}", f"inputs of {kind}")
        scope = step.instruction.attrs[-1] if step.instruction.attrs else None
        if kind in ("CacheRead", "CacheWrite", "SetScope") and isinstance(scope, str):
            facts.add(f"{at}.scope", scope, f"{called} uses the storage scope {scope}", f"attributes of {kind}")


def _at_a_block(step: Step, known: dict[str, Any]) -> str:
    """The segment of a path for an instruction at a block; a sampled location may say to inline, or to leave it."""
    kind, inputs = step.instruction.kind, step.instruction.inputs
    if kind in ("ComputeAt", "ReverseComputeAt") and inputs[1] in known:
        return "inline" if known[inputs[1]] == "inline" else "stay"
    return _AT_A_BLOCK[kind]


def _of_split(facts: Facts, path: str, whose: str, step: Step) -> None:
    loop = step.loops()[0]
    given = [value if isinstance(value, int) else None for value in step.inputs[1:]]
    at = f"{path}.split.{segment(loop.name)}"
    facts.add(f"{path}.split.loop", loop.name, f"{_called(step.edit)} splits loop {loop.name}", "inputs of Split")
    facts.add(f"{at}.name", loop.name, f"{_called(step.edit)} takes loop {loop.name}", "inputs of Split")
    facts.add(f"{at}.block", loop.block, f"loop {loop.name} is a loop of block {loop.block}", "the loop at Split")
    if loop.extent is None:
        return
    facts.add(
        f"{at}.extent", loop.extent, f"loop {loop.name} has extent {loop.extent} when it is split", "the loop at Split"
    )
    fixed = math.prod(f for f in given if f is not None)
    factors = [f if f is not None else -(-loop.extent // max(fixed, 1)) for f in given]
    how = f"{step.edit} factors: {times(factors)}"
    words = f"{whose} splits loop {loop.name} of block {loop.block} into {' x '.join(map(str, factors))}"
    facts.add(f"{at}.factors", factors, words, how)
    facts.add(
        f"{at}.innermost",
        factors[-1],
        f"the innermost part of {loop.name} has extent {factors[-1]}",
        f"{step.edit}: last of {factors}",
    )
    facts.add(
        f"{at}.outermost",
        factors[0],
        f"the outermost part of {loop.name} has extent {factors[0]}",
        f"{step.edit}: first of {factors}",
    )


def _of_loop(facts: Facts, path: str, words: str, loop: Loop) -> None:
    facts.add(f"{path}.loop", loop.name, f"{words} loop {loop.name}", "inputs of the instruction")
    if loop.extent is not None:
        facts.add(
            f"{path}.extent", loop.extent, f"loop {loop.name} has extent {loop.extent}", "the loop when it is taken"
        )


def _of_annotation(facts: Facts, path: str, step: Step, known: dict[str, Any]) -> None:
    key, value = annotation(step.instruction, known)
    target = step.inputs[0]
    name = target.name if isinstance(target, (Loop, Block)) else "?"
    if isinstance(value, str):
        value = value.strip('"')
    given = step.instruction.inputs[1] if len(step.instruction.inputs) > 1 else None
    unknown = isinstance(given, str) and given not in known and re.fullmatch(r"[blv]\d+", given)
    if isinstance(value, (int, str)) and not isinstance(value, bool) and not unknown:
        text = f"{_called(step.edit)} annotates {name} with {key} = {value}"
        facts.add(f"{path}.annotation.{segment(key)}", value, text, "inputs of Annotate")


def _of_scheduled(facts: Facts, prefix: str, whose: str, found: Row) -> None:
    """What the scheduled module holds: its parallel, vectorised and unrolled loops, its threads, its buffers."""
    words = {"parallel": "parallel", "vectorized": "vectorised", "unrolled": "unrolled"}
    for kind, word in words.items():
        loops = [loop for loop in found["loops"] if loop["kind"] == kind and loop["extent"] is not None]
        facts.add(
            f"{prefix}.{kind}.loops",
            len(loops),
            f"{whose} ends with {len(loops)} {word} loops",
            f"loops of kind {kind}",
        )
        if loops:
            extents = [loop["extent"] for loop in loops]
            facts.add(
                f"{prefix}.{kind}.extents",
                extents,
                f"the {word} loops of {whose} have extents {_listed(extents)}",
                f"loops of kind {kind}",
            )
            widest = max(extents)
            facts.add(
                f"{prefix}.{kind}.widest",
                widest,
                f"the longest {word} loop of {whose} has extent {widest}",
                f"max of {extents}",
            )
    kernels = _kernels(found["loops"])
    for number, axes in enumerate(kernels, 1):
        alone = len(kernels) == 1
        _of_kernel(
            facts, prefix if alone else f"{prefix}.kernel{number}", whose, "" if alone else f" in kernel {number}", axes
        )
    steps = sorted({loop["annotations"].get("pragma_auto_unroll_max_step", 0) for loop in found["loops"]} - {0})
    if steps and isinstance(steps[-1], int):
        facts.add(
            f"{prefix}.unroll_step",
            steps[-1],
            f"{whose} unrolls bodies of up to {steps[-1]} steps",
            "pragma_auto_unroll_max_step",
        )
    own = [b for b in found["buffers"] if b["role"] == "intermediate"]
    for scope in sorted({b["scope"] for b in own}):
        count = sum(b["scope"] == scope for b in own)
        facts.add(
            f"{prefix}.buffers.{segment(scope)}",
            count,
            f"{whose} keeps {count} buffers of scope {scope}",
            "allocated buffers",
        )


def _kernels(loops: list[Row]) -> list[dict[str, int]]:
    """The extents of the thread axes of each GPU kernel: an outermost loop that is bound to threads starts one."""
    kernels: dict[int, dict[str, int]] = {}
    for loop in loops:
        if loop["thread"] and loop["extent"] is not None:
            first = next(index for index in (*loop["outer"], loop["index"]) if loops[index]["thread"])
            axes = kernels.setdefault(first, {})
            axes[loop["thread"]] = max(axes.get(loop["thread"], 0), loop["extent"])
    return list(kernels.values())


def _of_kernel(facts: Facts, path: str, whose: str, where: str, axes: dict[str, int]) -> None:
    """How many threads a kernel is launched with."""
    for tag, extent in sorted(axes.items()):
        facts.add(
            f"{path}.threads.{segment(tag)}", extent, f"{tag} has extent {extent}{where}", f"loops bound to {tag}"
        )
    for what, start, words in (
        ("grid", "blockIdx", "thread blocks"),
        ("threads_per_block", "threadIdx", "threads in each block"),
    ):
        extents = [extent for tag, extent in sorted(axes.items()) if tag.startswith(start)]
        if extents:
            total = math.prod(extents)
            facts.add(f"{path}.{what}", total, f"{whose} launches {total} {words}{where}", f"{start}: {times(extents)}")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
