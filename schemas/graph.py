"""The optimization graph G = (V, E, P) of the paper (section 3, Figure 2), free of its notation.

Nodes are evidence, analysis, edit (`trace_sequence`) and effect; edges `supports`, `motivates` and
`predicts` join them. Only the order of the edits and of the instructions in them executes.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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


class Instruction(NamedTuple):
    """One step of the trace. A named tuple, since a text has hundreds and reading one must cost microseconds.

    inputs: names of earlier outputs, JSON numbers, strings, booleans, null, lists of these, `{"map": "m0"}`. A string
        that is not a name but looks like one is `{"str": "l3"}`.
    attrs: JSON values in TVM's order; maps as `{"map": "m0"}`.
    outputs: their names as the trace has them: a letter for the type, b(lock), l(oop) or v (a sampled number), and
        the number of outputs before it in the whole trace.
    decision: None where the kind samples nothing; for a tile `{"extent": e, "factors": [f1, …, f(n-1)]}`.
    """

    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[str, ...]
    decision: Any = None

    @property
    def signature(self) -> str:
        """The types of its outputs, a letter each: B(lock), L(oop), E(xpression)."""
        return "".join({"b": "B", "l": "L", "v": "E"}.get(name[:1], "?") for name in self.outputs)


@dataclass(frozen=True)
class Edit:
    """A semantic step: an ordered fragment of the trace. `kind` is for readers (tile, bind, cache, …).

    summary: a writer's own words; empty for the summary that `tsel.summaries` derives from the instructions.
    """

    id: str
    kind: str
    summary: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Postproc:
    """Post-processing that is derived: what these rules' post-processors add to the edits, the boundary first.

    rules: a rule set of MetaSchedule (llvm, cuda, cuda-tensorcore, …). version: ours, of what that set does.
    """

    rules: str
    version: int


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
    """A whole graph. `maps` is the pool of index maps, each once, by id (m0, m1, …).

    postproc: None where the edits hold the whole trace, the boundary and what follows it included.
    """

    edits: tuple[Edit, ...]
    maps: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    effects: tuple[Effect, ...] = ()
    edges: tuple[Edge, ...] = ()
    postproc: Postproc | None = None
    tvm: str = "0.25.0.post1"


@dataclass(frozen=True)
class Encoded:
    """A rendered graph and its spans."""

    text: str
    spans: tuple[Span, ...]
