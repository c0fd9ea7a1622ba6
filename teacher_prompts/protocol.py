"""What a teacher is asked and what it answers. The payload is never its to write (paper, section 4).

A teacher is given the graph with its payload only, and the facts; it returns an `Explanation`, and `compose`
lays that around the payload. So an imprecise teacher cannot change the schedule that is taught.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from littledragon.schemas.graph import Analysis, Edge, Effect, Evidence, Graph


@dataclass(frozen=True)
class Request:
    """One label that is wanted.

    mode: construct or refine.
    graph: the payload, without summaries.
    facts: rows of `facts`, in their order.
    """

    mode: str
    graph: Graph
    facts: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Explanation:
    """Everything of a label but its payload.

    summaries: by the edit's id; "" stands for the one that is derived from the edit (`schemas.tsel.summaries`), and an
        edit that is missing keeps what it has.
    """

    evidence: tuple[Evidence, ...]
    analyses: tuple[Analysis, ...]
    summaries: Mapping[str, str]
    effects: tuple[Effect, ...]
    edges: tuple[Edge, ...]


def compose(graph: Graph, explanation: Explanation) -> Graph:
    """The graph with the explanation around the payload of `graph`, whatever the explanation says."""
    edits = tuple(replace(edit, summary=explanation.summaries.get(edit.id, edit.summary)) for edit in graph.edits)
    return replace(
        graph,
        edits=edits,
        evidence=explanation.evidence,
        analyses=explanation.analyses,
        effects=explanation.effects,
        edges=explanation.edges,
    )
