"""What a list of instructions does, in the words that people use for it: parallel, vectorize, tile, …

Read from the payload alone, without TVM. A deed is something that the schedule carries out; an *ask* is an
annotation by which an edit requests a deed of MetaSchedule's post-processing (it may come to nothing, so a
whole schedule is credited with the deed only where the instruction that carries it out is there too).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from littledragon.schemas.graph import Edit, Instruction

BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    "Parallel": ("parallel",),
    "Vectorize": ("vectorize",),
    "Unroll": ("unroll",),
    "Bind": ("bind", "parallel"),
    "Split": ("tile",),
    "Fuse": ("fuse_loops",),
    "Reorder": ("reorder",),
    "ReorderBlockIterVar": ("reorder",),
    "ComputeInline": ("inline",),
    "ReverseComputeInline": ("inline",),
    "ComputeAt": ("compute_at",),
    "ReverseComputeAt": ("compute_at",),
    "CacheRead": ("cache", "cache_read"),
    "CacheWrite": ("cache", "cache_write"),
    "ReIndex": ("reindex",),
    "ReadAt": ("cache", "cache_read"),
    "WriteAt": ("cache", "cache_write"),
    "RFactor": ("rfactor",),
    "DecomposeReduction": ("decompose",),
    "DecomposePadding": ("decompose_padding",),
    "PadEinsum": ("pad",),
    "Blockize": ("blockize",),
    "Tensorize": ("tensorize",),
    "StorageAlign": ("storage_align",),
    "TransformLayout": ("layout",),
    "TransformBlockLayout": ("layout",),
    "AddUnitLoop": ("unit_loop",),
    "Merge": ("fuse_loops",),
    "RollingBuffer": ("rolling_buffer",),
}
_BY_ANNOTATION: Final[tuple[tuple[str, str], ...]] = (
    ("pragma_auto_unroll_max_step", "unroll"),
    ("software_pipeline", "pipeline"),
    ("double_buffer", "double_buffer"),
    ("pragma_vectorize", "vectorize"),
)
_ASKS: Final[tuple[tuple[str, str], ...]] = (
    ("meta_schedule.parallel", "parallel"),
    ("meta_schedule.vectorize", "vectorize"),
    ("meta_schedule.unroll", "unroll"),
    ("meta_schedule.auto_tensorize", "tensorize"),
    ("meta_schedule.cooperative_fetch", "cooperative_fetch"),
    ("meta_schedule.thread_extent", "bind"),
    ("meta_schedule.tiling_structure", "tile"),
)

_MARKS: Final = {-1: "root", -2: "inline"}
"""Decisions of SampleComputeLocation that name no loop (TVM, src/s_tir/schedule/primitive/sampling.cc)."""
_SCOPES: Final = (("shared", "shared"), ("local", "local"), ("wmma", "tensorize"), ("m16n8k8", "tensorize"))


def values(edits: Iterable[Edit]) -> dict[str, Any]:
    """The value that each sampled number stands for, by its name in the trace: `v5` → 64."""
    found: dict[str, Any] = {}
    for edit in edits:
        for instruction in edit.instructions:
            found.update(zip(instruction.outputs, sampled(instruction), strict=False))
    return found


def sampled(instruction: Instruction) -> list[Any]:
    """The values of a sampling instruction's outputs, a tile's derived last factor included; otherwise empty.

    A sampled location is a loop of the program, and no value, unless it is `root` or `inline`.
    """
    decision = instruction.decision
    if instruction.kind == "SampleComputeLocation" and decision in _MARKS:
        return [_MARKS[decision]]
    if instruction.kind == "SampleCategorical" and isinstance(decision, int):
        candidates = instruction.attrs[0] if instruction.attrs else []
        return [candidates[decision]] if 0 <= decision < len(candidates) else []
    if isinstance(decision, Mapping) and "factors" in decision:
        factors = list(decision["factors"])
        rest = decision["extent"]
        for factor in factors:
            rest = rest // factor if factor else 0
        return [*factors, rest]
    return []


def deeds(instructions: Iterable[Instruction], known: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """(deeds, asks) of some instructions; `known` is `values` of the whole graph."""
    done: set[str] = set()
    asked: set[str] = set()
    for instruction in instructions:
        done.update(_own(instruction, known))
        if instruction.kind == "Annotate":
            key, value = annotation(instruction, known)
            if value in (0, False, None, ""):
                continue
            done.update(deed for prefix, deed in _BY_ANNOTATION if key.startswith(prefix))
            asked.update(deed for prefix, deed in _ASKS if key.startswith(prefix))
        for attribute in instruction.attrs:
            if isinstance(attribute, str):
                done.update(deed for prefix, deed in _SCOPES if attribute.startswith(prefix))
    return frozenset(done), frozenset(asked)


def _own(instruction: Instruction, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The deeds of an instruction's kind, but for those that come to nothing or to something else."""
    place = instruction.inputs[1] if len(instruction.inputs) > 1 else None
    if instruction.kind == "Fuse" and place is None:
        return ()  # a single loop
    if instruction.kind in ("ComputeAt", "ReverseComputeAt") and isinstance(place, str) and place in known:
        return ("inline",) if known[place] == "inline" else ()
    return BY_KIND.get(instruction.kind, ())


def annotation(instruction: Instruction, known: Mapping[str, Any]) -> tuple[str, Any]:
    """The key and the value of an Annotate instruction, a sampled value looked up."""
    key = str(instruction.attrs[0]) if instruction.attrs else ""
    value = instruction.inputs[1] if len(instruction.inputs) > 1 else None
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))  # a number whose type is spelled out
    return key, known.get(value, value) if isinstance(value, str) else value
