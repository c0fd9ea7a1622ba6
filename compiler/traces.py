"""Admission of traces: the gates parsed, wellformed, applicable, replayed, postprocessed and encoded.

TVM dies of some illegal traces and silently repairs others. So the language's rules are checked first, without
TVM; then the trace is applied one instruction at a time, each compared with the program before it is applied;
then TVM replays it as it would a database record, and what it recorded must be the trace that was given.

A third of a trace is what MetaSchedule's post-processors add. A text may leave that out and name the rule set
instead (`compiler/rules.py`); here it is expanded, and here a trace is found to be of that kind. All of this runs in
a child.
"""

import dataclasses
import mmap
from pathlib import Path
from typing import Any, Final

from littledragon.compiler._stepper import (
    Refused,
    Stepper,
    import_intrinsics,
    instructions,
    line,
    literals,
    load,
    schedule,
)
from littledragon.compiler.rules import kind_of, postproc_of, processors, rules_of
from littledragon.schemas import tsel
from littledragon.schemas.graph import Edit, Encoded, Graph, Postproc

Target = dict[str, Any]

_HOW: Final = 'enter_postproc and its instructions, or name a rule set: <postproc rules="…" version="…"/>'


def admit(module: str, trace: str | None, target: Target) -> dict[str, Any]:
    """Pass a trace through the gates parsed … encoded. Runs in a child: TVM may crash all the same.

    Args:
        module: M0, as `tvm.ir.save_json`.
        trace: `tvm.ir.save_json(trace.as_json())`; None for the default schedule, which has no trace.
        target: the TVM target.

    Returns:
        `failed` (the first gate that refused it, or None), `reason`, `trace` (canonical, whole), `tsel` (the
        payload's text; post-processing is derived where that is exact), `rules` (the rule set that it is derived
        by, or None), `module_hash` (structural hash of the scheduled module, hex), `scheduled` (that module as
        `save_json`), `instructions` (of the whole trace, the boundary counted), `postproc_instructions` (those after
        it), `emitted` (instructions that the text spells, or the trace where there is no text) and `applied` (how
        many of these could be applied). What was not reached is None, or 0; where a text's post-processing was not
        reached, `instructions` and `trace` are those of its own edits.
    """
    if trace is None:
        from littledragon.compiler import proposals

        return _answer(**proposals.default(module, target))
    answer = _answer()
    try:
        answer["trace"] = tsel.canonical(trace)
        answer |= _counts(tsel.kinds(trace))
        graph = tsel.lift(trace)
    except tsel.TselError as error:
        return answer | {"failed": error.gate, "reason": str(error)}
    return _admit(module, graph, target, answer, None)


def apply(module: str, text: str, target: Target, progress: str | None = None) -> dict[str, Any]:
    """Pass a label's text through the same gates; explanations in it are left out of `tsel`. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        text: a text in either notation.
        target: the TVM target.
        progress: a file of 8 bytes, where the count of applied instructions is kept as it grows, for a caller who
            wants to know how far a child came that died.
    """
    answer = _answer()
    try:
        decoded = tsel.decode(text)
        kinds = [instruction.kind for _, instruction in instructions(decoded.graph)]
        answer |= {"trace": decoded.trace, **_counts(kinds)}
    except tsel.TselError as error:
        return answer | {"failed": error.gate, "reason": str(error)}
    own = decoded.graph
    graph = Graph(own.edits, own.maps, postproc=own.postproc, tvm=own.tvm)
    if progress is None:
        return _admit(module, graph, target, answer, None)
    with Path(progress).open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
        return _admit(module, graph, target, answer, counter)


def encode(module: str, trace: str, target: Target, notation: tsel.Notation = "line") -> Encoded:
    """The text of a trace that was admitted; post-processing is derived where that is exact. Runs in a child.

    Raises:
        TselError: the trace is refused by the language. Refused: it does not apply to the module.
    """
    graph, rules = tsel.lift(trace), rules_of(target)
    return tsel.render(graph if rules is None else derive(module, graph, trace, target, rules), notation)


def decode(module: str, text: str, target: Target) -> str:
    """The whole canonical trace that a text spells, derived post-processing expanded. Runs in a child.

    Raises:
        TselError: the text is refused by the language. Refused: it does not apply, or a post-processor refuses it.
    """
    decoded = tsel.decode(text)
    postproc = decoded.graph.postproc
    return decoded.trace if postproc is None else expand(module, decoded.trace, target, postproc)


def expand(module: str, trace: str, target: Target, postproc: Postproc) -> str:
    """The whole canonical trace of a prefix: what the rule set's post-processors add to it. Runs in a child.

    Args:
        module: M0, as `tvm.ir.save_json`.
        trace: the instructions before the boundary, as `save_json` text.
        target: the TVM target.
        postproc: the rule set.

    Raises:
        Refused: gate `applicable` where the prefix does not apply, `postprocessed` where a post-processor refuses.
        TselError: the prefix is no trace of the language.
    """
    mod = load(module)
    import_intrinsics(trace)
    stepper = Stepper(load(trace), tsel.lift(trace), schedule(mod))
    stepper.run()
    return _postprocess(stepper.schedule, mod, target, postproc)


def derive(module: str, graph: Graph, trace: str, target: Target, rules: str) -> Graph:
    """The graph with derived post-processing where that is exact, otherwise the graph as it is. Runs in a child.

    It is exact where the rule set's post-processors, run on the instructions before the boundary, give this very
    trace and this very module.

    Args:
        module: M0, as `tvm.ir.save_json`.
        graph: a graph that spells the whole trace. One with edges to edits after the boundary is left as it is.
        trace: the trace, as `save_json` text.
        target: the TVM target.
        rules: name of the rule set.

    Raises:
        Refused: gate `applicable`: the trace does not apply.
    """
    mod = load(module)
    import_intrinsics(trace)
    stepper = Stepper(load(trace), graph, schedule(mod))
    stepper.run()
    return _derived(stepper, tsel.canonical(trace), mod, target, rules)


def _answer(**known: Any) -> dict[str, Any]:
    empty = ("failed", "reason", "trace", "tsel", "rules", "module_hash", "scheduled")
    counts = ("instructions", "postproc_instructions", "emitted", "applied")
    return dict.fromkeys(empty) | dict.fromkeys(counts, 0) | known


def _counts(kinds: list[str]) -> dict[str, int]:
    """Instructions of a trace, and those after the boundary."""
    after = len(kinds) - 1 - kinds.index("EnterPostproc") if "EnterPostproc" in kinds else 0
    return {"instructions": len(kinds), "postproc_instructions": after, "emitted": len(kinds)}


def _admit(
    module: str, graph: Graph, target: Target, answer: dict[str, Any], counter: mmap.mmap | None
) -> dict[str, Any]:
    """The gates that need TVM, for a graph whose trace is in the answer."""
    import tvm
    from tvm_ffi import structural_equal, structural_hash

    import_intrinsics(answer["trace"])
    mod = load(module)
    stepper = Stepper(load(answer["trace"]), graph, schedule(mod), counter)
    try:
        stepper.run()
        way = _whole if graph.postproc is None else _expanded
        payload, spelled, replayed = way(stepper, mod, target, answer)
        if payload.postproc is None or '"Tensorize"' in answer["trace"]:  # else a post-processor has seen this module
            _verify(replayed, mod, target)
        text = _encode(payload, spelled)
        if not structural_equal(stepper.schedule.mod, replayed.mod):
            raise Refused("encoded", "the decoded trace replays to another module")
    except Refused as error:
        return answer | {"failed": error.gate, "reason": str(error), "applied": stepper.applied}
    emitted = sum(len(edit.instructions) for edit in payload.edits)
    return answer | {
        "tsel": text,
        "rules": payload.postproc.rules if payload.postproc else None,
        "module_hash": f"{structural_hash(replayed.mod) & (1 << 64) - 1:016x}",
        "scheduled": str(tvm.ir.save_json(replayed.mod)),
        "emitted": emitted,
        "applied": emitted,
    }


def _whole(stepper: Stepper, mod: Any, target: Target, answer: dict[str, Any]) -> tuple[Graph, str, Any]:
    """A whole trace that was stepped through: the graph of its payload, the trace that this spells, the replay."""
    trace, rules = answer["trace"], rules_of(target)
    literals(stepper.graph)
    replayed = _replay(mod, stepper.loaded, trace)
    if not stepper.crossed:
        raise Refused("postprocessed", f"it never enters post-processing: end it with {_HOW}")
    payload = stepper.graph if rules is None else _derived(stepper, trace, mod, target, rules)
    return payload, trace if payload is stepper.graph else tsel.spell(payload), replayed


def _expanded(stepper: Stepper, mod: Any, target: Target, answer: dict[str, Any]) -> tuple[Graph, str, Any]:
    """The same for a graph whose post-processing is derived; the answer gets the whole trace."""
    prefix, postproc = answer["trace"], stepper.graph.postproc
    assert postproc is not None
    try:
        _same(stepper.schedule, prefix)
        trace = _postprocess(stepper.schedule, mod, target, postproc)
    except Refused:
        _replay(mod, stepper.loaded, prefix)  # an earlier gate may refuse it
        raise
    try:
        kinds = [instruction.kind for _, instruction in instructions(tsel.lift(trace))]
    except tsel.TselError as error:
        raise Refused("postprocessed", f"post-processing adds what is refused: {error}") from None
    answer.update({"trace": trace, **_counts(kinds), "emitted": answer["emitted"]})
    return stepper.graph, prefix, _replay(mod, load(trace), trace)


def _replay(mod: Any, loaded: Any, trace: str) -> Any:
    """The schedule that TVM makes of a trace as it would of a database record."""
    from tvm.s_tir.schedule import Trace

    replayed = schedule(mod)
    try:
        Trace.apply_json_to_schedule(loaded, replayed)
    except Exception as error:
        raise Refused("replayed", line(error)) from None
    _same(replayed, trace)
    return replayed


def _same(scheduled: Any, trace: str) -> None:
    if _record(scheduled) != trace:
        raise Refused("applicable", "TVM records another trace than the one given")


def _record(scheduled: Any) -> str:
    """The canonical trace that a schedule holds."""
    import tvm

    try:
        return tsel.canonical(str(tvm.ir.save_json(scheduled.trace.as_json())))
    except tsel.TselError as error:
        raise Refused("encoded", f"what TVM records is no trace: {error}") from None


def _postprocess(scheduled: Any, mod: Any, target: Target, postproc: Postproc) -> str:
    """Cross the boundary and run the rule set's post-processors on a schedule; the trace that this gives."""
    if kind_of(postproc.rules) != target["kind"]:
        raise Refused("postprocessed", f"the rules {postproc.rules} are not for {target['kind']} targets")
    scheduled.enter_postproc()
    for processor in processors(postproc, mod, target):
        _run(processor, scheduled)
    return _record(scheduled)


def _run(processor: Any, scheduled: Any) -> None:
    name = type(processor).__name__
    try:
        passed = bool(processor.apply(scheduled))
    except Exception as error:
        raise Refused("postprocessed", f"{name}: {line(error)}") from None
    if not passed:
        why = "too many threads, too much shared memory, or too wide vectors"
        raise Refused("postprocessed", f"{name}: {why if name == 'VerifyGPUCode' else 'the schedule is refused'}")


def _derived(stepper: Stepper, trace: str, mod: Any, target: Target, rules: str) -> Graph:
    """`derive`, after the whole trace was stepped through."""
    from tvm_ffi import structural_equal

    if not stepper.crossed:
        return stepper.graph
    graph = _prefix(stepper.graph)
    kept = {edit.id for edit in graph.edits}
    edits = {edit.id for edit in stepper.graph.edits}
    if any({edge.source, edge.target} & (edits - kept) for edge in graph.edges):
        return stepper.graph
    # On a schedule of its own: TVM's copies share statements, and post-processors rewrite them in place.
    prefix, postproc = tsel.spell(graph), postproc_of(rules)
    try:
        again = _replay(mod, load(prefix), prefix)
        if _postprocess(again, mod, target, postproc) != trace:
            return stepper.graph
    except Refused:
        return stepper.graph
    if not structural_equal(again.mod, stepper.schedule.mod):
        return stepper.graph
    return dataclasses.replace(graph, postproc=postproc)


def _prefix(graph: Graph) -> Graph:
    """The graph without the boundary and all that follows; look-ups that wait there go to the edit before."""
    edits: list[Edit] = []
    for edit in graph.edits:
        kinds = [instruction.kind for instruction in edit.instructions]
        if "EnterPostproc" not in kinds:
            edits.append(edit)
            continue
        before = edit.instructions[: kinds.index("EnterPostproc")]
        if before and edits:
            edits[-1] = dataclasses.replace(edits[-1], instructions=edits[-1].instructions + before)
        elif before:
            edits.append(Edit(edit.id, "lookup", "", before))
        break
    used = {
        value["map"]
        for edit in edits
        for instruction in edit.instructions
        for value in (*instruction.inputs, *instruction.attrs)
        if isinstance(value, dict) and "map" in value
    }
    maps = {name: value for name, value in graph.maps.items() if name in used}
    return dataclasses.replace(graph, edits=tuple(edits), maps=maps)


def _verify(scheduled: Any, mod: Any, target: Target) -> None:
    """cuda: MetaSchedule's VerifyGPUCode (threads, shared memory, vector widths) on what is to be built."""
    if target["kind"] != "cuda":
        return
    import tvm
    from tvm.s_tir import meta_schedule as ms

    verifier = ms.postproc.VerifyGPUCode()
    verifier._initialize_with_tune_context(ms.TuneContext(mod, target=tvm.target.Target(target), num_threads=1))
    _run(verifier, scheduled)


def _encode(payload: Graph, spelled: str) -> str:
    """The payload's text, which must give back what its edits spell."""
    try:
        text = tsel.render(payload).text
        decoded = tsel.decode(text)
    except tsel.TselError as error:
        raise Refused("encoded", str(error)) from None
    if decoded.trace != spelled or decoded.graph.postproc != payload.postproc:
        raise Refused("encoded", "decoding gives another trace")
    return text
