"""Admission of traces: the gates parsed, wellformed, applicable, replayed, postprocessed and encoded.

TVM dies of some illegal traces and silently repairs others. So the language's rules are checked first, without
TVM; then the trace is applied one instruction at a time, each compared with the program before it is applied;
then TVM replays it as it would a database record, and what it recorded must be the trace that was given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from littledragon.schemas import tsel
from littledragon.schemas.gates import Gate
from littledragon.schemas.graph import Decoded, Graph, Instruction

_UNROLL: Final = ("meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit")
_FETCH: Final = "meta_schedule.cooperative_fetch"
_SEED: Final = 1
"""Every decision is given, so nothing is drawn; the seed makes sure of it."""


class _Failed(Exception):
    def __init__(self, gate: Gate, reason: str) -> None:
        super().__init__(reason)
        self.gate: Gate = gate


def admit(module: str, trace: str | None, target: dict[str, Any]) -> dict[str, Any]:
    """Pass a trace through the gates parsed … encoded. Runs in a child: TVM may crash all the same.

    Args:
        module: M0, as `tvm.ir.save_json`.
        trace: `tvm.ir.save_json(trace.as_json())`; None for the default schedule, which has no trace.
        target: the TVM target.

    Returns:
        `failed` (the first gate that refused it, or None), `reason`, `trace` (canonical), `tsel` (the payload's
        text), `module_hash` (structural hash of the scheduled module, hex), `scheduled` (that module as `save_json`),
        `instructions` (the boundary counted), `postproc_instructions` (those after it), and `applied` (how many
        instructions could be applied). What was not reached is None, or 0.
    """
    if trace is None:
        from littledragon.compiler import proposals

        return _answer(**proposals.default(module, target))
    answer = _answer()
    try:
        answer["trace"] = tsel.canonical(trace)
        answer["instructions"], answer["postproc_instructions"] = _count(answer["trace"])
        graph = tsel.lift(trace)
        text = tsel.render(graph).text
    except tsel.TselError as error:
        return answer | {"failed": error.gate, "reason": str(error)}
    return _admit(module, graph, text, target, answer)


def apply(module: str, text: str, target: dict[str, Any]) -> dict[str, Any]:
    """Pass a label's text through the same gates; explanations in it are left out of `tsel`. Runs in a child."""
    answer = _answer()
    try:
        decoded = tsel.decode(text)
        answer["trace"] = decoded.trace
        answer["instructions"], answer["postproc_instructions"] = _count(decoded.trace)
        graph = Graph(decoded.graph.edits, decoded.graph.maps, tvm=decoded.graph.tvm)
        payload = tsel.render(graph).text
    except tsel.TselError as error:
        return answer | {"failed": error.gate, "reason": str(error)}
    return _admit(module, graph, payload, target, answer)


def _answer(**known: Any) -> dict[str, Any]:
    return {
        "failed": None,
        "reason": None,
        "trace": None,
        "tsel": None,
        "module_hash": None,
        "scheduled": None,
        "instructions": 0,
        "postproc_instructions": 0,
        "applied": 0,
    } | known


def _count(trace: str) -> tuple[int, int]:
    """Instructions of a canonical trace, and those after the boundary."""
    kinds = tsel.kinds(trace)
    after = len(kinds) - 1 - kinds.index("EnterPostproc") if "EnterPostproc" in kinds else 0
    return len(kinds), after


def _admit(module: str, graph: Graph, text: str, target: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The gates that need TVM, for a graph and its text."""
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace
    from tvm_ffi import structural_hash

    trace = answer["trace"]
    if any(i.kind == "Tensorize" for _, i in _instructions(graph)):
        import tvm.s_tir.tensor_intrin
    mod = tvm.ir.load_json(module)
    stepper = _Stepper(trace, graph, Schedule(mod, seed=_SEED, error_render_level="fast"))
    try:
        stepper.run()
        answer["applied"] = stepper.applied
        _literals(graph)
        schedule = Schedule(mod, seed=_SEED, error_render_level="fast")
        try:
            Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
        except Exception as error:
            raise _Failed("replayed", _line(error)) from None
        recorded = tsel.canonical(str(tvm.ir.save_json(schedule.trace.as_json())))
        if recorded != trace:
            raise _Failed("applicable", "TVM records another trace than the one given")
        _postprocessed(schedule, mod, target)
        _encoded(text, trace, stepper.schedule.mod, schedule.mod)
    except _Failed as error:
        return answer | {"failed": error.gate, "reason": str(error), "applied": stepper.applied}
    return answer | {
        "tsel": text,
        "module_hash": f"{structural_hash(schedule.mod) & (1 << 64) - 1:016x}",
        "scheduled": str(tvm.ir.save_json(schedule.mod)),
    }


def _line(error: Exception) -> str:
    """An error of TVM in one line: its last lines say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-3:])[:400] or type(error).__name__


def _instructions(graph: Graph) -> Iterator[tuple[str, Instruction]]:
    for edit in graph.edits:
        for step, instruction in enumerate(edit.instructions):
            yield f"{edit.id}.{step} {instruction.kind}", instruction


@dataclass
class _Stepper:
    """Applies a trace one instruction at a time, each compared with the program before it is applied.

    TVM offers a look at every instruction only for a trace in memory, so one is built with random variables of its
    own (TVM 0.25, src/s_tir/schedule/trace.cc, ApplyToSchedule).
    """

    trace: str
    graph: Graph
    schedule: Any
    variables: dict[str, Any] = field(default_factory=dict)
    applied: int = 0
    """Instructions that were applied without an error."""

    def run(self) -> None:
        """Raises _Failed at the instruction that cannot be applied."""
        from tvm.s_tir.schedule import Trace

        listed = list(_instructions(self.graph))
        seen = 0

        def before(_: Any, inputs: Any, __: Any, decision: Any) -> Any:
            nonlocal seen
            self.applied = max(seen - 1, 0)
            _placed(self.schedule, listed[self.applied][1])
            self.applied = seen
            _compare(self.schedule, listed[seen][1], inputs)
            seen += 1
            return decision

        try:
            instructions, decisions = self._build()
            Trace(instructions, decisions).apply_to_schedule(self.schedule, False, before)
        except Exception as error:
            place = listed[min(self.applied, len(listed) - 1)][0]
            raise _Failed("applicable", f"{place}: {_line(error)}") from None
        self.applied = seen

    def _build(self) -> tuple[list[Any], dict[Any, Any]]:
        import tvm
        from tvm.s_tir.schedule import Instruction as TvmInstruction
        from tvm.s_tir.schedule import InstructionKind, LoopRV, SBlockRV

        entries, decided = tvm.ir.load_json(self.trace)
        instructions = []
        for kind, inputs, attrs, outputs in entries:
            given = [self._input(value) for value in inputs]
            fixed = [self._attr(str(kind), i, value) for i, value in enumerate(attrs)]
            made = []
            for name in map(str, outputs):
                new = {"b": SBlockRV, "l": LoopRV}.get(name[0])
                self.variables[name] = new() if new else tvm.tirx.Var(name, "int32")
                made.append(self.variables[name])
            instructions.append(TvmInstruction(InstructionKind.get(str(kind)), given, fixed, made))
        return instructions, {instructions[int(index)]: decision for index, decision in decided}

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
        return None if text == "None" else self.variables[text]

    def _attr(self, kind: str, index: int, value: Any) -> Any:
        mapped = (kind, index) in (("TransformBlockLayout", 0), ("TransformLayout", 2))
        return self._map(str(value)) if mapped and value is not None else value

    def _map(self, text: str) -> Any:
        """An index map, with the trace's own variables where it names sampled ones."""
        import tvm
        from tvm.tirx.stmt_functor import post_order_visit, substitute

        loaded = tvm.ir.load_json(text)
        bound = {str(v.name) for v in loaded.initial_indices}
        found: dict[Any, Any] = {}

        def visit(node: Any) -> None:
            if type(node).__name__ == "Var" and str(node.name) not in bound:
                found[node] = self.variables[str(node.name)]

        for expression in loaded.final_indices:
            post_order_visit(expression, visit)
        final = [substitute(expression, found) for expression in loaded.final_indices]
        return tvm.tirx.IndexMap(loaded.initial_indices, final, None)


def _compare(schedule: Any, instruction: Instruction, inputs: Any) -> None:
    """An instruction's decision against the program that it is about to be applied to."""
    if not isinstance(instruction.decision, dict):
        return
    extent = schedule.get(inputs[0]).extent
    if type(extent).__name__ != "IntImm":
        raise ValueError("a loop whose extent is not constant cannot be tiled")
    if int(extent.value) != instruction.decision["extent"]:
        raise ValueError(f"the loop's extent is {int(extent.value)}, not {instruction.decision['extent']}")


def _placed(schedule: Any, instruction: Instruction) -> None:
    """Whether TVM took the sampled location that was given: it takes another one where the program has no such."""
    if instruction.kind != "SampleComputeLocation" or not schedule.trace.insts:
        return
    taken = int(schedule.trace.get_decision(schedule.trace.insts[-1]))
    if taken != instruction.decision:
        raise ValueError(f"TVM repairs the decision {instruction.decision} to {taken}")


def _literals(graph: Graph) -> None:
    """Numbers that post-processing wrote down, against the decisions that they come from.

    An unroll step after the boundary is the sampled one, and the lanes of a vectorised cooperative fetch are.
    TVM may drop either (a loop that is not unrolled, a width that does not divide), so their absence is no fault.
    """
    sampled: dict[Any, int] = {}
    widths: dict[Any, int] = {}
    steps: list[int] = []
    lanes: dict[str, tuple[Any, int]] = {}
    after, width = False, None
    for place, instruction in _instructions(graph):
        kind, inputs, reference = instruction.kind, instruction.inputs, place.split(" ")[0]
        key = instruction.attrs[0] if instruction.attrs else None
        after = after or kind == "EnterPostproc"
        if kind == "SampleCategorical":
            sampled[f"{reference}.0"] = instruction.attrs[0][instruction.decision]
        elif kind == "Annotate" and not after and isinstance(inputs[1], str) and inputs[1] in sampled:
            if key == _FETCH:
                widths[inputs[0]] = sampled[inputs[1]]
            elif key in _UNROLL:
                steps.append(sampled[inputs[1]])
        elif kind == "Annotate" and key == "pragma_auto_unroll_max_step" and steps and inputs[1] not in steps:
            raise _Failed("applicable", f"{place}: the unroll step {inputs[1]} is not the sampled {steps[0]}")
        elif kind == "Unannotate":
            width = widths.get(inputs[0]) if key == _FETCH else None
        elif kind == "Split" and width is not None:
            lanes[f"{reference}.{len(instruction.outputs) - 1}"] = (inputs[-1], width)
            width = None
        elif kind == "Vectorize" and inputs[0] in lanes and lanes[inputs[0]][0] != lanes[inputs[0]][1]:
            written, wanted = lanes[inputs[0]]
            raise _Failed("applicable", f"{place}: {written} lanes of a cooperative fetch, {wanted} were sampled")


def _postprocessed(schedule: Any, mod: Any, target: dict[str, Any]) -> None:
    """cuda: MetaSchedule's VerifyGPUCode (threads, shared memory, vector widths). Elsewhere crossing the boundary,
    which `wellformed` asks for, is all there is."""
    if target["kind"] != "cuda":
        return
    import tvm
    from tvm.s_tir import meta_schedule as ms

    verify = ms.postproc.VerifyGPUCode()
    verify._initialize_with_tune_context(ms.TuneContext(mod, target=tvm.target.Target(target), num_threads=1))
    try:
        passed = bool(verify.apply(schedule))
    except Exception as error:
        raise _Failed("postprocessed", _line(error)) from None
    if not passed:
        raise _Failed("postprocessed", "VerifyGPUCode: too many threads, too much shared memory, or too wide vectors")


def _encoded(text: str, trace: str, stepped: Any, replayed: Any) -> None:
    """The payload's text gives the trace back, and what it spells builds the same module."""
    from tvm_ffi import structural_equal

    try:
        decoded: Decoded = tsel.decode(text)
    except tsel.TselError as error:
        raise _Failed("encoded", str(error)) from None
    if decoded.trace != trace:
        raise _Failed("encoded", "decoding gives another trace")
    if not structural_equal(stepped, replayed):
        raise _Failed("encoded", "the decoded trace replays to another module")
