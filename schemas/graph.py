"""The optimization graph G = (V, E, P) of the paper (section 3, Figure 2), free of its notation.

Nodes are evidence, analysis, edit (`trace_sequence`) and effect; edges `supports`, `motivates` and
`predicts` join them. Only the order of the edits and of the instructions in them executes.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

EdgeKind = Literal["supports", "motivates", "predicts"]
SpanKind = Literal["explanation", "decision", "structure"]

Tree = Any
"""A trace as the tree of tagged leaves: the canonical form. See schemas/tsel."""


@dataclass(frozen=True)
class Evidence:
    """A quotation: `text` is word for word the text of the fact that `cite` names (`in.…` only)."""

    id: str
    cite: str
    text: str


@dataclass(frozen=True)
class Analysis:
    """Prose that relates facts to an opportunity. Numbers stand in citations `[path=value]` or computations."""

    id: str
    text: str


@dataclass(frozen=True)
class Instruction:
    """One step of the trace, its references local: `t3.0.1` is output 1 of step 0 in edit t3.

    inputs: references, JSON numbers, strings, booleans, null, lists of these, `{"map": "m0"}`.
    attrs: JSON values in TVM's order; maps as `{"map": "m0"}`.
    outputs: the signature, a letter for each output: B(lock), L(oop), E(xpression).
    decision: None where the kind samples nothing; for a tile `{"extent": e, "factors": [f1, …, f(n-1)]}`.
    """

    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: str
    decision: Any = None


@dataclass(frozen=True)
class Edit:
    """A semantic step: an ordered fragment of the trace. `kind` is for readers (tile, bind, cache, …)."""

    id: str
    kind: str
    summary: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Effect:
    """What the edits are expected to do; never a measured gain."""

    id: str
    text: str


@dataclass(frozen=True)
class Edge:
    """supports: evidence → analysis; motivates: analysis → edit; predicts: edit → effect."""

    kind: EdgeKind
    source: str
    target: str


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (exclusive) of a rendered graph. Spans tile the text."""

    start: int
    end: int
    kind: SpanKind


@dataclass(frozen=True)
class Graph:
    """A whole graph. `maps` is the pool of index maps, each once, by id (m0, m1, …)."""

    edits: tuple[Edit, ...]
    maps: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    effects: tuple[Effect, ...] = ()
    edges: tuple[Edge, ...] = ()
    tvm: str = "0.25.0.post1"


@dataclass(frozen=True)
class Encoded:
    """A rendered graph and its spans."""

    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Decoded:
    """A parsed, well-formed graph, and the trace that its payload spells, as canonical `save_json` text."""

    graph: Graph
    trace: str
