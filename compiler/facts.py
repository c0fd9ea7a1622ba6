"""The facts that a label may cite: what the prompt shows (`in.…`), and what the payload yields (`out.…`).

Each fact has a path, a value, the words that quote it, and how it follows from its source. No fact holds a
latency, a ratio or anything else that was measured. What a schedule yields is observed while it is replayed on
M0 (`compiler/steps.py`) and read off the scheduled module.
"""

import json
import math
import re
from typing import Any, Final

from littledragon.compiler.deeds import annotation, deeds, sampled, values
from littledragon.compiler.steps import Block, Loop, Step, edits, observe
from littledragon.schemas.graph import Graph
from littledragon.schemas.ids import canonical_json

Row = dict[str, Any]

MAX_FACTS: Final = 2000
_LIMITS: Final = (
    ("num-cores", "cores", "the target has {} cores"),
    ("arch", "arch", "the target's architecture is {}"),
    ("mcpu", "mcpu", "the target's instruction set is {}"),
    ("max_threads_per_block", "threads_per_block", "a thread block has at most {} threads"),
    ("max_shared_memory_per_block", "shared_bytes_per_block", "a thread block has at most {} bytes of shared memory"),
    ("thread_warp_size", "warp", "a warp has {} threads"),
)  # fmt: skip


_AT_A_BLOCK: Final = {
    "ComputeAt": "compute_at",
    "ReverseComputeAt": "compute_at",
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


class _Facts:
    """Facts in the order in which they are added; a path that is taken gets a number."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._paths: set[str] = set()

    def add(self, path: str, value: Any, text: str, derivation: str) -> None:
        base = ".".join(_segment(part) for part in path.split("."))
        path, tries = base, 1
        while path in self._paths:
            tries += 1
            path = f"{base}_{tries}"
        if len(self.rows) >= MAX_FACTS:
            return
        self._paths.add(path)
        text = "".join(c if " " <= c <= "~" else "?" for c in text)
        row = {"path": path, "value": canonical_json(value), "text": text, "derivation": derivation}
        self.rows.append({**row, "position": len(self.rows)})


def _segment(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_") or "_"


def derive(
    workload: Row, environment: Row, mode: str, tsel: str, scheduled: str | None = None, parent_tsel: str | None = None
) -> list[Row]:
    """The facts of one selection, without its id. Runs in a child.

    Args:
        workload: the row of `workloads`.
        environment: the row of `environments`; only its target is used.
        mode: construct or refine.
        tsel: the chosen candidate's payload. It must have been admitted.
        scheduled: the scheduled module as `save_json`, where it is at hand; it is replayed in any case.
        parent_tsel: refining, the payload of graph A; likewise admitted.

    Returns:
        Rows with path, value (canonical JSON), text, derivation and position.

    Raises:
        ValueError: the mode is unknown, a parent is missing or too many, or a payload does not replay.
    """
    if mode not in ("construct", "refine") or (mode == "refine") != (parent_tsel is not None):
        raise ValueError(f"mode {mode}: refine has a parent, construct has none")
    del scheduled  # the replay that observes the steps yields it
    facts = _Facts()
    _of_task(facts, workload)
    _of_features(facts, json.loads(workload["features"]))
    _of_target(facts, json.loads(environment["target"]))
    if parent_tsel is not None:
        _of_payload(facts, "in.prior", "graph A", workload["module"], parent_tsel)
    _of_payload(facts, "out", "the schedule", workload["module"], tsel)
    return facts.rows


def request(gain_band: str, position: int) -> Row:
    """The fact of a refinement prompt's request: the gain band that it asks for, which is no measurement."""
    text = f"the requested gain band is {gain_band}"
    value = canonical_json(gain_band)
    return {
        "path": "in.request.gain_band",
        "value": value,
        "text": text,
        "derivation": "the refinement prompt",
        "position": position,
    }


def _of_task(facts: _Facts, workload: Row) -> None:
    description = str(workload.get("description") or "")
    if description.isascii() and description.isprintable() and 0 < len(description) <= 400 and "]" not in description:
        facts.add("in.task.description", description, description, "d")
    facts.add("in.task.operator", workload["operator"], f"the task's operator is {workload['operator']}", "d")


def _of_features(facts: _Facts, features: Row) -> None:
    facts.add(
        "in.flops", int(features["flops"]), f"one run does {int(features['flops'])} arithmetic operations", "F.flops"
    )
    facts.add("in.bytes", int(features["bytes"]), f"inputs and outputs hold {int(features['bytes'])} bytes", "F.bytes")
    facts.add("in.blocks", len(features["blocks"]), f"M0 has {len(features['blocks'])} blocks", "len(F.blocks)")
    for index, block in enumerate(features["blocks"]):
        _of_block(facts, features, index, block)
    for index, buffer in enumerate(features["buffers"]):
        _of_buffer(facts, index, buffer)


def _of_block(facts: _Facts, features: Row, index: int, block: Row) -> None:
    name, where = block["name"], f"F.blocks[{index}]"
    path = f"in.block.{_segment(name)}"
    facts.add(f"{path}.name", name, f"M0 has a block {name}", f"{where}.name")
    facts.add(
        f"{path}.iterations",
        block["iterations"],
        f"block {name} runs {block['iterations']} times",
        f"{where}.iterations",
    )
    kinds = {axis["binding"]: axis for axis in block["iterators"]}
    for position in block["loops"]:
        loop = features["loops"][position]
        axis = kinds.get(loop["name"])
        at = f"{path}.loop.{_segment(loop['name'])}"
        if loop["extent"] is not None:
            text = f"loop {loop['name']} of block {name} has extent {loop['extent']}"
            facts.add(f"{at}.extent", loop["extent"], text, f"F.loops[{position}].extent")
        if axis is not None and axis["kind"] in ("spatial", "reduce"):
            kind = "reduction" if axis["kind"] == "reduce" else "spatial"
            article = f"loop {loop['name']} of block {name} is a {kind} loop"
            facts.add(f"{at}.kind", kind, article, f"{where}.iterators: {axis['name']}.kind")
    reduced = [axis["extent"] for axis in block["iterators"] if axis["kind"] == "reduce" and axis["extent"]]
    if reduced:
        product = math.prod(reduced)
        how = f"{where}.iterators, reductions: {_times(reduced)}"
        facts.add(f"{path}.reduction", product, f"block {name} reduces over {product} iterations for each element", how)
    else:
        facts.add(f"{path}.reduction", 0, f"block {name} has no reduction loop", f"{where}.iterators: none is reduce")
    if block["producers"]:
        listed = ", ".join(block["producers"])
        facts.add(
            f"{path}.producers", block["producers"], f"block {name} reads what {listed} computes", f"{where}.producers"
        )
    for what in ("reads", "writes"):
        buffers = list(dict.fromkeys(region["buffer"] for region in block[what]))
        if buffers:
            facts.add(f"{path}.{what}", buffers, f"block {name} {what} {', '.join(buffers)}", f"{where}.{what}")


def _of_buffer(facts: _Facts, index: int, buffer: Row) -> None:
    name, where = buffer["name"], f"F.buffers[{index}]"
    path = f"in.buffer.{_segment(name)}"
    shape = "x".join(str(extent) for extent in buffer["shape"]) or "scalar"
    facts.add(f"{path}.shape", buffer["shape"], f"buffer {name} has shape {shape}", f"{where}.shape")
    facts.add(f"{path}.dtype", buffer["dtype"], f"buffer {name} has type {buffer['dtype']}", f"{where}.dtype")
    facts.add(f"{path}.role", buffer["role"], f"buffer {name} is an {buffer['role']} buffer", f"{where}.role")
    width = _bytes(buffer["dtype"])
    count = math.prod(buffer["shape"])
    facts.add(f"{path}.element_bytes", width, f"an element of {name} has {width} bytes", f"{buffer['dtype']}: {width}")
    facts.add(
        f"{path}.bytes",
        count * width,
        f"buffer {name} has {count * width} bytes",
        f"{where}.shape: {_times([*buffer['shape'], width])}",
    )


def _bytes(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return (int(digits.group()) + 7) // 8 if digits else 1


def _times(factors: list[int]) -> str:
    if len(factors) < 2:
        return str(factors[0]) if factors else "1"
    return f"{' * '.join(map(str, factors))} = {math.prod(factors)}"


def _of_target(facts: _Facts, target: Row) -> None:
    facts.add("in.target.kind", target["kind"], f"the target is {target['kind']}", "h.kind")
    for key, path, words in _LIMITS:
        if key in target:
            facts.add(f"in.target.{path}", target[key], words.format(target[key]), f"h.{key}")


def _of_payload(facts: _Facts, prefix: str, whose: str, module: str, tsel: str) -> None:
    """Facts of one payload: the whole, each edit, and the module that it yields."""
    from littledragon.compiler.features import features
    from littledragon.schemas.tsel import decode

    decoded = decode(tsel)
    steps, scheduled = observe(module, decoded.trace, decoded.graph)
    _of_whole(facts, prefix, whose, decoded.graph)
    known = values(decoded.graph.edits)
    for edit, group in edits(steps):
        facts.add(
            f"{prefix}.{edit}.steps",
            len(group),
            f"edit {edit} of {whose} has {len(group)} instructions",
            f"len({edit})",
        )
        done, asked = deeds((step.instruction for step in group), known)
        for what, found in (("deeds", sorted(done)), ("asks", sorted(asked))):
            if found:
                text = f"edit {edit} of {whose} {'does' if what == 'deeds' else 'asks for'}: {', '.join(found)}"
                facts.add(f"{prefix}.{edit}.{what}", found, text, "kinds of its instructions")
        for step in group:
            _of_step(facts, f"{prefix}.{edit}", step, known)
    _of_scheduled(facts, prefix, whose, features(scheduled))


def _of_whole(facts: _Facts, prefix: str, whose: str, graph: Graph) -> None:
    instructions = [i for edit in graph.edits for i in edit.instructions]
    kinds = [i.kind for i in instructions]
    after = len(kinds) - kinds.index("EnterPostproc") - 1 if "EnterPostproc" in kinds else 0
    done, _ = deeds(instructions, values(graph.edits))
    listed = sorted(done)
    facts.add(f"{prefix}.edits", len(graph.edits), f"{whose} has {len(graph.edits)} edits", "len(E)")
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


def _of_step(facts: _Facts, path: str, step: Step, known: dict[str, Any]) -> None:
    """Facts of one instruction, where it has something to tell."""
    kind, edit = step.instruction.kind, step.edit
    loops, blocks = step.loops(), step.blocks()
    if kind == "Split" and loops:
        _of_split(facts, path, step)
    elif kind == "Fuse" and len(loops) > 1:
        names = [loop.name for loop in loops]
        facts.add(f"{path}.fuse.loops", names, f"edit {edit} fuses {', '.join(names)}", "inputs of Fuse")
        extents = [loop.extent for loop in loops if loop.extent is not None]
        if len(extents) == len(loops):
            text, total = f"the fused loops have extents {_listed(extents)}", math.prod(extents)
            facts.add(f"{path}.fuse.extents", extents, text, "inputs of Fuse")
            facts.add(
                f"{path}.fuse.extent", total, f"the fused loop has extent {total}", f"{edit} Fuse: {_times(extents)}"
            )
    elif kind in ("Parallel", "Vectorize", "Unroll") and loops:
        _of_loop(facts, f"{path}.{kind.lower()}", f"edit {edit}: {kind} of", loops[0])
    elif kind == "Bind" and loops:
        tag = str(step.inputs[-1] if isinstance(step.inputs[-1], str) else step.instruction.attrs[0])
        facts.add(f"{path}.bind.thread", tag, f"edit {edit} binds a loop to {tag}", "inputs of Bind")
        _of_loop(facts, f"{path}.bind", f"edit {edit}: {tag} runs over", loops[0])
    elif kind == "Reorder" and loops:
        names = [loop.name for loop in loops]
        facts.add(
            f"{path}.reorder.loops", names, f"edit {edit} orders the loops {', '.join(names)}", "inputs of Reorder"
        )
    elif kind == "Annotate":
        _of_annotation(facts, path, step, known)
    elif kind == "SampleCategorical":
        for value in sampled(step.instruction):
            if isinstance(value, int):
                facts.add(
                    f"{path}.choice", value, f"edit {edit} chooses {value}", f"decision {step.instruction.decision}"
                )
    elif kind in _AT_A_BLOCK:
        at = f"{path}.{_AT_A_BLOCK[kind]}"
        for block in blocks[:1]:
            facts.add(f"{at}.block", block.name, f"edit {edit}: {kind} of block {block.name}", f"inputs of {kind}")
        for loop in loops[:1]:
            facts.add(f"{at}.loop", loop.name, f"edit {edit}: {kind} at loop {loop.name}", f"inputs of {kind}")
        scope = step.instruction.attrs[-1] if step.instruction.attrs else None
        if kind in ("CacheRead", "CacheWrite", "SetScope") and isinstance(scope, str):
            facts.add(f"{at}.scope", scope, f"edit {edit} uses the storage scope {scope}", f"attributes of {kind}")


def _of_split(facts: _Facts, path: str, step: Step) -> None:
    loop = step.loops()[0]
    given = [value if isinstance(value, int) else None for value in step.inputs[1:]]
    at = f"{path}.split.{_segment(loop.name)}"
    facts.add(f"{path}.split.loop", loop.name, f"edit {step.edit} splits loop {loop.name}", "inputs of Split")
    facts.add(f"{at}.name", loop.name, f"edit {step.edit} takes loop {loop.name}", "inputs of Split")
    facts.add(f"{at}.block", loop.block, f"loop {loop.name} is a loop of block {loop.block}", "the loop at Split")
    if loop.extent is None:
        return
    facts.add(
        f"{at}.extent", loop.extent, f"loop {loop.name} has extent {loop.extent} when it is split", "the loop at Split"
    )
    fixed = math.prod(f for f in given if f is not None)
    factors = [f if f is not None else -(-loop.extent // max(fixed, 1)) for f in given]
    how = f"{step.edit} factors: {_times(factors)}"
    facts.add(f"{at}.factors", factors, f"loop {loop.name} is split into {' x '.join(map(str, factors))}", how)
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


def _of_loop(facts: _Facts, path: str, words: str, loop: Loop) -> None:
    facts.add(f"{path}.loop", loop.name, f"{words} loop {loop.name}", "inputs of the instruction")
    if loop.extent is not None:
        facts.add(
            f"{path}.extent", loop.extent, f"loop {loop.name} has extent {loop.extent}", "the loop when it is taken"
        )


def _of_annotation(facts: _Facts, path: str, step: Step, known: dict[str, Any]) -> None:
    key, value = annotation(step.instruction, known)
    target = step.inputs[0]
    name = target.name if isinstance(target, (Loop, Block)) else "?"
    if isinstance(value, str):
        value = value.strip('"')
    if (
        isinstance(value, (int, str))
        and not isinstance(value, bool)
        and not re.fullmatch(r"t\d+\.\d+\.\d+", str(value))
    ):
        text = f"edit {step.edit} annotates {name} with {key} = {value}"
        facts.add(f"{path}.annotation.{_segment(key)}", value, text, "inputs of Annotate")


def _of_scheduled(facts: _Facts, prefix: str, whose: str, found: Row) -> None:
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
    threads: dict[str, int] = {}
    for loop in found["loops"]:
        if loop["thread"] and loop["extent"] is not None:
            threads[loop["thread"]] = max(threads.get(loop["thread"], 0), loop["extent"])
    for tag, extent in sorted(threads.items()):
        facts.add(f"{prefix}.threads.{_segment(tag)}", extent, f"{tag} has extent {extent}", f"loops bound to {tag}")
    for what, start in (("grid", "blockIdx"), ("threads_per_block", "threadIdx")):
        extents = [extent for tag, extent in sorted(threads.items()) if tag.startswith(start)]
        if extents:
            total = math.prod(extents)
            words_ = "thread blocks" if what == "grid" else "threads in each block"
            facts.add(f"{prefix}.{what}", total, f"{whose} launches {total} {words_}", f"{start}: {_times(extents)}")
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
            f"{prefix}.buffers.{_segment(scope)}",
            count,
            f"{whose} keeps {count} buffers of scope {scope}",
            "allocated buffers",
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
