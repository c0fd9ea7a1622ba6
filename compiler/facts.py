"""The facts that a label may cite: what the prompt shows (`in.…`), and what the payload yields (`out.…`).

Each fact has a path, a value, the words that quote it, and how it follows from its source. No fact holds a
latency, a ratio or anything else that was measured. What a schedule yields is observed while it is replayed on
M0 (`compiler/steps.py`) and read off the scheduled module.
"""

import json
import math
import re
from typing import Final

from littledragon.compiler._facts import Facts, Row, segment, times
from littledragon.compiler._payload_facts import of_payload
from littledragon.schemas.ids import canonical_json

_LIMITS: Final = (
    ("num-cores", "cores", "the target has {} cores"),
    ("arch", "arch", "the target's architecture is {}"),
    ("mcpu", "mcpu", "the target's instruction set is {}"),
    ("max_threads_per_block", "threads_per_block", "a thread block has at most {} threads"),
    ("max_shared_memory_per_block", "shared_bytes_per_block", "a thread block has at most {} bytes of shared memory"),
    ("thread_warp_size", "warp", "a warp has {} threads"),
)  # fmt: skip


def derive(workload: Row, environment: Row, mode: str, tsel: str, parent_tsel: str | None = None) -> list[Row]:
    """The facts of one selection, without its id. Runs in a child.

    Args:
        workload: the row of `workloads`.
        environment: the row of `environments`; only its target is used.
        mode: construct or refine.
        tsel: the chosen candidate's payload. It must have been admitted.
        parent_tsel: refining, the payload of graph A; likewise admitted.

    Returns:
        Rows with path, value (canonical JSON), text, derivation and position.

    Raises:
        ValueError: the mode is unknown, a parent is missing or too many, or a payload does not replay.
    """
    if mode not in ("construct", "refine") or (mode == "refine") != (parent_tsel is not None):
        raise ValueError(f"mode {mode}: refine has a parent, construct has none")
    facts = Facts()
    _of_task(facts, workload)
    _of_features(facts, json.loads(workload["features"]))
    target = json.loads(environment["target"])
    _of_target(facts, target)
    if parent_tsel is not None:
        of_payload(facts, "in.prior", "graph A", workload["module"], target, parent_tsel)
    of_payload(facts, "out", "the schedule", workload["module"], target, tsel)
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


def _of_task(facts: Facts, workload: Row) -> None:
    description = str(workload.get("description") or "")
    if description.isascii() and description.isprintable() and 0 < len(description) <= 400 and "]" not in description:
        facts.add("in.task.description", description, description, "d")


def _of_features(facts: Facts, features: Row) -> None:
    facts.add(
        "in.flops", int(features["flops"]), f"one run does {int(features['flops'])} arithmetic operations", "F.flops"
    )
    facts.add("in.bytes", int(features["bytes"]), f"inputs and outputs hold {int(features['bytes'])} bytes", "F.bytes")
    facts.add("in.blocks", len(features["blocks"]), f"M0 has {len(features['blocks'])} blocks", "len(F.blocks)")
    for index, block in enumerate(features["blocks"]):
        _of_block(facts, features, index, block)
    for index, buffer in enumerate(features["buffers"]):
        _of_buffer(facts, index, buffer)


def _of_block(facts: Facts, features: Row, index: int, block: Row) -> None:
    name, where = block["name"], f"F.blocks[{index}]"
    path = f"in.block.{segment(name)}"
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
        at = f"{path}.loop.{segment(loop['name'])}"
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
        how = f"{where}.iterators, reductions: {times(reduced)}"
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


def _of_buffer(facts: Facts, index: int, buffer: Row) -> None:
    name, where = buffer["name"], f"F.buffers[{index}]"
    path = f"in.buffer.{segment(name)}"
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
        f"{where}.shape: {times([*buffer['shape'], width])}",
    )


def _bytes(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return (int(digits.group()) + 7) // 8 if digits else 1


def _of_target(facts: Facts, target: Row) -> None:
    facts.add("in.target.kind", target["kind"], f"the target is {target['kind']}", "h.kind")
    for key, path, words in _LIMITS:
        if key in target:
            facts.add(f"in.target.{path}", target[key], words.format(target[key]), f"h.{key}")
