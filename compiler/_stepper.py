"""A trace applied one instruction at a time, each compared with the program before it is applied.

TVM dies of some illegal steps and silently repairs others; what can be told from the program is told here first.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from littledragon.schemas.gates import Gate
from littledragon.schemas.graph import Graph, Instruction

SEED: Final = 1
"""Every decision is given, so nothing is drawn; the seed makes sure of it."""
_UNROLL: Final = ("meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit")
_FETCH: Final = "meta_schedule.cooperative_fetch"


class Refused(Exception):
    """A gate refuses a trace; the text says why, in one line."""

    def __init__(self, gate: Gate, reason: str) -> None:
        super().__init__(reason)
        self.gate: Gate = gate


def line(error: Exception) -> str:
    """An error of TVM in one line: its last lines say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-3:])[:400] or type(error).__name__


def load(text: str) -> Any:
    """What a `save_json` text of this TVM holds. `tvm.ir.load_json` writes every text anew before it reads it, lest it
    be an older TVM's, and that takes longer than all else here."""
    import tvm  # noqa: F401 (its types become known)
    from tvm_ffi.serialization import from_json_graph_str

    return from_json_graph_str(text)


def schedule(module: Any) -> Any:
    """A fresh schedule of an IRModule."""
    from tvm.s_tir import Schedule

    return Schedule(module, seed=SEED, error_render_level="fast")


def import_intrinsics(trace: str) -> None:
    """Make tensor intrinsics known to TVM where a trace asks for one; it takes a second, once in a process."""
    if '"Tensorize"' in trace or "meta_schedule.auto_tensorize" in trace:
        import littledragon.compiler.intrinsics  # noqa: F401


def instructions(graph: Graph) -> Iterator[tuple[str, Instruction]]:
    """Each instruction of a graph and its place, `t3.0 Split`."""
    for edit in graph.edits:
        for step, instruction in enumerate(edit.instructions):
            yield f"{edit.id}.{step} {instruction.kind}", instruction


@dataclass
class Stepper:
    """Applies a trace to a schedule.

    TVM offers a look at every instruction only for a trace in memory, so one is built with random variables of its
    own (TVM 0.25, src/s_tir/schedule/trace.cc, ApplyToSchedule).

    loaded: the trace, as `load` gives it. graph: the same instructions in the same order.
    """

    loaded: Any
    graph: Graph
    schedule: Any
    counter: mmap.mmap | None = None
    """Shared memory of 8 bytes where `applied` is written down too, for one who outlives this process."""
    applied: int = 0
    """Instructions that were applied without an error."""
    crossed: bool = False
    """Whether it crossed the boundary to post-processing."""
    _variables: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Apply every instruction.

        Raises:
            Refused: gate `applicable`, at the instruction that cannot be applied.
        """
        from tvm.s_tir.schedule import Trace

        listed = list(instructions(self.graph))
        seen = 0

        def before(_: Any, inputs: Any, __: Any, decision: Any) -> Any:
            nonlocal seen
            self._reached(max(seen - 1, 0))
            _placed(self.schedule, listed[self.applied][1])
            self._reached(seen)
            instruction = listed[seen][1]
            _compare(self.schedule, instruction, inputs)
            self.crossed = self.crossed or instruction.kind == "EnterPostproc"
            seen += 1
            return decision

        try:
            built, decisions = self._build()
            Trace(built, decisions).apply_to_schedule(self.schedule, False, before)
            if listed:
                _placed(self.schedule, listed[-1][1])
        except Exception as error:
            place = listed[min(self.applied, len(listed) - 1)][0] if listed else "graph"
            raise Refused("applicable", f"{place}: {line(error)}") from None
        self._reached(seen)

    def _reached(self, count: int) -> None:
        self.applied = count
        if self.counter is not None:
            self.counter[:8] = count.to_bytes(8, "little")

    def _build(self) -> tuple[list[Any], dict[Any, Any]]:
        import tvm
        from tvm.s_tir.schedule import Instruction as TvmInstruction
        from tvm.s_tir.schedule import InstructionKind, LoopRV, SBlockRV

        entries, decided = self.loaded
        made: list[Any] = []
        for kind, inputs, attrs, outputs in entries:
            given = [self._input(value) for value in inputs]
            fixed = [self._attr(str(kind), i, value) for i, value in enumerate(attrs)]
            fresh = []
            for name in map(str, outputs):
                new = {"b": SBlockRV, "l": LoopRV}.get(name[0])
                self._variables[name] = new() if new else tvm.tirx.Var(name, "int32")
                fresh.append(self._variables[name])
            made.append(TvmInstruction(InstructionKind.get(str(kind)), given, fixed, fresh))
        return made, {made[int(index)]: decision for index, decision in decided}

    def _input(self, value: Any) -> Any:
        """What an input of the recorded form stands for (TVM's TranslateInputRVs)."""
        if type(value).__name__ == "Array":
            return [self._input(item) for item in value]
        if not isinstance(value, str):
            return value
        text = str(value)
        if text.startswith("{"):
            return self._map(text)
        if text.startswith('"'):
            return text[1:-1]
        return None if text == "None" else self._variables[text]

    def _attr(self, kind: str, index: int, value: Any) -> Any:
        mapped = (kind, index) in (("TransformBlockLayout", 0), ("TransformLayout", 2))
        return self._map(str(value)) if mapped and value is not None else value

    def _map(self, text: str) -> Any:
        """An index map, with the trace's own variables where it names sampled ones."""
        import tvm
        from tvm.tirx.stmt_functor import post_order_visit, substitute

        loaded = load(text)
        bound = {str(v.name) for v in loaded.initial_indices}
        found: dict[Any, Any] = {}

        def visit(node: Any) -> None:
            if type(node).__name__ == "Var" and str(node.name) not in bound:
                found[node] = self._variables[str(node.name)]

        for expression in loaded.final_indices:
            post_order_visit(expression, visit)
        final = [substitute(expression, found) for expression in loaded.final_indices]
        return tvm.tirx.IndexMap(loaded.initial_indices, final, None)


def _compare(schedule: Any, instruction: Instruction, inputs: Any) -> None:
    """An instruction against the program that it is about to be applied to."""
    if instruction.kind == "CacheRead" and inputs[1]:
        _consumed(schedule, inputs[0], inputs[1], instruction.attrs[0])
    if instruction.kind == "ReorderBlockIterVar" and schedule.get_sref(inputs[0]).parent is None:
        raise ValueError("the outermost block has no iterators to reorder, and TVM dies of it")
    if not isinstance(instruction.decision, dict):
        return
    extent = schedule.get(inputs[0]).extent
    if type(extent).__name__ != "IntImm":
        raise ValueError("a loop whose extent is not constant cannot be tiled")
    if int(extent.value) != instruction.decision["extent"]:
        raise ValueError(f"the loop's extent is {int(extent.value)}, not {instruction.decision['extent']}")


def _consumed(schedule: Any, block: Any, consumers: Any, index: int) -> None:
    """Whether one of CacheRead's consumers stands beside the block that writes the buffer: TVM dies where none does
    (0.25, src/s_tir/schedule/primitive/cache_read_write.cc, CacheLocDetector, finds no place for the copy)."""
    reads = schedule.get(block).reads
    scope = _scope(schedule.get_sref(block))
    if scope is None or not 0 <= index < len(reads):
        return  # TVM says so
    buffer = reads[index].buffer
    for consumer in consumers:
        place = schedule.get_sref(consumer)
        beside = place.same_as(scope) or scope.same_as(_scope(place))
        if beside and not _writes(schedule.get(consumer), buffer):
            return
    if any(_writes(inner, buffer) for inner in _children(scope.stmt.body)):
        raise ValueError("none of the consumers is a block beside the one that writes the buffer")


def _scope(place: Any) -> Any:
    """The block around a block, both as TVM's references to statements; None around the outermost."""
    place = place.parent
    while place is not None and type(place.stmt).__name__ != "SBlock":
        place = place.parent
    return place


def _writes(block: Any, buffer: Any) -> bool:
    return any(region.buffer.same_as(buffer) for region in block.writes)


def _children(statement: Any) -> Iterator[Any]:
    """The blocks in a statement, those inside blocks left out."""
    if type(statement).__name__ == "SBlockRealize":
        yield statement.block
    elif type(statement).__name__ == "SeqStmt":
        for child in statement.seq:
            yield from _children(child)
    elif hasattr(statement, "body"):
        yield from _children(statement.body)


def _placed(schedule: Any, instruction: Instruction) -> None:
    """Whether TVM took the sampled location that was given: it takes another one where the program has no such."""
    if instruction.kind != "SampleComputeLocation" or not schedule.trace.insts:
        return
    taken = int(schedule.trace.get_decision(schedule.trace.insts[-1]))
    if taken != instruction.decision:
        raise ValueError(f"TVM repairs the decision {instruction.decision} to {taken}")


def literals(graph: Graph) -> None:
    """Numbers that post-processing wrote down, against the decisions that they come from.

    An unroll step after the boundary is the sampled one, and the lanes of a vectorised cooperative fetch are.
    TVM may drop either (a loop that is not unrolled, a width that does not divide), so their absence is no fault.

    Raises:
        Refused: gate `applicable`.
    """
    sampled: dict[str, int] = {}
    widths: dict[str, int] = {}
    steps: list[int] = []
    lanes: dict[str, tuple[Any, int]] = {}
    after, width = False, None
    for place, instruction in instructions(graph):
        kind, inputs = instruction.kind, instruction.inputs
        key = instruction.attrs[0] if instruction.attrs else None
        after = after or kind == "EnterPostproc"
        if kind == "SampleCategorical":
            sampled[instruction.outputs[0]] = instruction.attrs[0][instruction.decision]
        elif kind == "Annotate" and not after and isinstance(inputs[1], str) and inputs[1] in sampled:
            if key == _FETCH:
                widths[inputs[0]] = sampled[inputs[1]]
            elif key in _UNROLL:
                steps.append(sampled[inputs[1]])
        elif kind == "Annotate" and key == "pragma_auto_unroll_max_step" and steps and inputs[1] not in steps:
            raise Refused("applicable", f"{place}: the unroll step {inputs[1]} is not the sampled {steps[0]}")
        elif kind == "Unannotate":
            width = widths.get(inputs[0]) if key == _FETCH else None
        elif kind == "Split" and width is not None:
            lanes[instruction.outputs[-1]] = (inputs[-1], width)
            width = None
        elif kind == "Vectorize" and inputs[0] in lanes and lanes[inputs[0]][0] != lanes[inputs[0]][1]:
            written, wanted = lanes[inputs[0]]
            raise Refused("applicable", f"{place}: {written} lanes of a cooperative fetch, {wanted} were sampled")
