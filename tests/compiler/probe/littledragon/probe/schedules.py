"""Calls of `compiler.traces` and of TVM whose answers are no JSON. Functions that run in a child."""

from typing import Any

from littledragon.compiler import traces
from littledragon.compiler._stepper import Refused
from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis, Edge, Graph


def processors(target: dict[str, Any]) -> list[str]:
    """The post-processors that MetaSchedule takes for a target."""
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.script import tirx as T

    from littledragon.compiler.rules import intrinsics_where_needed

    @T.prim_func
    def nothing(x: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            x[i] = T.float32(0)

    with intrinsics_where_needed(target):
        context = ms.TuneContext(
            tvm.IRModule({"main": nothing}),
            target=tvm.target.Target(target),
            space_generator="post-order-apply",
            num_threads=1,
        )
    return [type(processor).__name__ for processor in context.space_generator.postprocs]


def encode(module: str, trace: str, target: dict[str, Any], notation: tsel.Notation) -> str:
    return traces.encode(module, trace, target, notation).text


def decode(module: str, text: str, target: dict[str, Any]) -> str:
    return traces.decode(module, text, target)


def expand(module: str, text: str, target: dict[str, Any]) -> str:
    """The whole trace, or why there is none."""
    decoded = tsel.decode(text)
    assert decoded.graph.postproc is not None
    try:
        return traces.expand(module, decoded.trace, target, decoded.graph.postproc)
    except Refused as refused:
        return f"{refused.gate}: {refused}"


def derive(module: str, trace: str, target: dict[str, Any], rules: str, explained: str | None = None) -> str | None:
    """The rule set by which post-processing is derived; `first` or `last` of the edits may have an analysis."""
    graph = tsel.lift(trace)
    if explained:
        edit = graph.edits[0 if explained == "first" else -1]
        edges = (Edge("motivates", "a0", edit.id),)
        graph = Graph(graph.edits, graph.maps, analyses=(Analysis("a0", "It helps."),), edges=edges)
    found = traces.derive(module, graph, trace, target, rules)
    assert found.analyses == graph.analyses
    assert found.edges == graph.edges
    assert found.postproc is not None or found == graph
    return found.postproc.rules if found.postproc else None
