"""The static verifier: whether an explained graph says only what its sources bear out.

It needs no TVM and runs nothing: a label is judged on its text, the trace of the selected candidate, and the facts
of the selection (paper, section 4: "a static verifier checks cited sources, arithmetic derivations,
applicability statements, and their consistency with the executable actions"). The rules, which are also the
reference for whoever writes labels; each names the reason with which a label is rejected:

1.  The text is a graph of the language (`malformed`), and it spells exactly the selected candidate's payload
    (`payload_changed`), in whichever notation. It has at least one evidence, analysis and effect. A summary that is
    missing, or word for word the one that follows from its edit, is nobody's claim, and is not judged.
2.  Edges join existing nodes of the right kinds, each at most once: `supports` evidence → analysis, `motivates`
    analysis → edit, `predicts` edit → effect. Every analysis is supported, every effect predicted (`broken_edge`).
3.  Evidence cites one fact of `in.…`, what the prompt shows (`unknown_citation`), and is its text, character
    for character (`misquoted`).
4.  In prose (analysis, written summary, effect) a fact, of `in.…` or `out.…`, is cited as `[path=value]`: the path
    exists (`unknown_citation`), and the value is the fact's canonical JSON, strings without quotes (`misquoted`).
    Square brackets around words serve no other purpose.
5.  Every arithmetic statement computes exactly (`arithmetic`): numbers and numeric citations joined by
    `+ - * / // % **`, `×`, `÷` or words (`times`, `divided by`), compared by `= != < <= > >=` or words (`equals`,
    `is` after a computation, `is more than`, `is at most`, `exceeds`, `is a multiple of`, `divides`). A comparison
    sign that is no part of such a statement is refused. What a statement starts from must be known too: each
    operand is a number of some fact, a literal of the payload, or the result of an earlier statement of the node
    (`unbacked_number`).
6.  Every other number, in digits or words (`sixteen`, `twice`, `half`), equals a value cited in the same node, a
    member of a cited list, or a number of a statement there (`unbacked_number`). `one`, `zero` and ordinals in
    words are no quantities.
7.  A clause that names a deed (parallel, vectorise, unroll, tile or split, fuse, reorder, inline, cache stage,
    compute at, decompose, rfactor, tensor core, thread binding, pipeline, shared memory, layout, …) claims it; one
    that negates the word claims its absence. In analyses and effects the whole trace must bear the claim out,
    in a summary its own edit (where asking for a deed by an annotation counts as well). A clause of a refinement
    that names the prior schedule (`prior`, `graph A`, `supplied`, …) is tested on the deeds of graph A. Words that can
    only be names (`i7`, `q`, `NT_matmul`) are known to the facts or the payload; a loop that is called spatial or a
    reduction is one; of a loop of M0 that is said to be vectorised, run in parallel or bound, a part is. What follows
    `loop X` or `buffer X` in a sentence is of it: cited facts are of that loop or buffer, products that make up its
    extent are its factors, `loop X of block Y` is a loop of Y; a summary names loops, blocks and products of its own
    edit. Facts of `in.prior.…` stand in clauses that name the prior schedule, facts of `out.…` in others
    (`false_claim`). So say nothing of what the schedule does not do, or deny it.
8.  Nobody claims a measured gain: no speed-up, "faster", factor, percentage, time, rate, measurement, nor a gain
    band that is reached (`speedup_claimed`). An expectation ("should reduce loop overhead") is no such claim, nor is
    naming the requested gain band by citing it, in a sentence that says so (`request`, `ask`, `aim`).
9.  Prose is written in printable ASCII and the signs × ÷ − – — ‘ ’ “ ” → ≤ ≥ ≠, at most 4000 of them in a node
    (`malformed`). Rules 7 and 8 look through compatibility forms, look-alike letters and invisible characters before
    this one is applied.

The first objection gives the reason; the detail lists them all, for the teacher that is asked again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from littledragon.compiler.deeds import values
from littledragon.schemas.graph import Edit, Graph, Instruction
from littledragon.schemas.ids import canonical_json
from littledragon.validators import _arithmetic, _claims, _prose, _speedups, _subjects

VERSION: Final = 4
"""Raised when a label could be judged differently."""

MAX_DETAIL: Final = 2000


@dataclass(frozen=True)
class Finding:
    """The verdict: state ok or rejected, the first objection's reason, all objections, and what was compared."""

    state: str
    reason: str | None = None
    detail: str | None = None
    citations: int = 0
    computations: int = 0
    claims: int = 0


@dataclass
class _Report:
    """Objections in the order in which they were met, and counts."""

    objections: list[tuple[str, str]] = field(default_factory=list)
    citations: int = 0
    computations: int = 0
    claims: int = 0

    def object(self, reason: str, place: str, detail: str) -> None:
        self.objections.append((reason, f"{place}: {detail}"))

    def finding(self) -> Finding:
        counts = (self.citations, self.computations, self.claims)
        if not self.objections:
            return Finding("ok", None, None, *counts)
        lines = dict.fromkeys(f"{reason}: {detail}" for reason, detail in self.objections)
        return Finding("rejected", self.objections[0][0], "; ".join(lines)[:MAX_DETAIL], *counts)


@dataclass(frozen=True)
class _Source:
    """What a label may draw on."""

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    numbers: frozenset[Fraction]
    names: frozenset[str]
    kinds: Mapping[str, frozenset[str]]
    runs: Mapping[str, frozenset[str]]
    subjects: _subjects.Subjects
    refining: bool


def verify(text: str, payload: str, trace: str, facts: Sequence[Mapping[str, Any]], mode: str) -> Finding:
    """Judge one label.

    Args:
        text: the graph, in any notation of the language.
        payload: the selected candidate's payload, likewise.
        trace: the selected candidate's whole trace, as `save_json` text: what the payload says, and, where
            post-processing is derived, what that adds.
        facts: the rows of `facts` of the selection.
        mode: construct or refine.

    Raises:
        ValueError: the mode, the payload, the trace or a fact's value is not what the tables hold; the label is not
            to blame.
    """
    from littledragon.schemas import tsel

    if mode not in ("construct", "refine"):
        raise ValueError(f"unknown mode '{mode}'")
    try:
        wanted = tsel.decode(payload)
        steps = _steps(tsel.lift(trace).edits)
    except tsel.TselError as error:
        raise ValueError(f"the selected payload or trace is not sound: {error}") from None
    added = _added(_steps(wanted.graph.edits), steps, wanted.graph)
    report = _Report()
    try:
        decoded = tsel.decode(text)
    except tsel.TselError as error:
        report.object("broken_edge" if error.rule in EDGE_RULES else "malformed", "graph", str(error))
        return report.finding()
    graph = decoded.graph
    if (decoded.trace, graph.postproc) != (wanted.trace, wanted.graph.postproc):
        report.object("payload_changed", "graph", "the payload is another one than the selected candidate's")
        return report.finding()
    source = _source(graph, added, facts, mode)
    _whole(graph, report)
    _edges(graph, report)
    _evidence(graph, source, report)
    whole, by_edit = _claims.scopes(graph, added, source.values if mode == "refine" else {})
    for analysis in graph.analyses:
        _prose_node(analysis.id, analysis.text, whole, source, report)
    derived = tsel.summaries(replace(graph, edits=tuple(replace(edit, summary="") for edit in graph.edits)))
    for edit in graph.edits:
        if edit.summary not in ("", derived[edit.id]):
            _prose_node(edit.id, edit.summary, by_edit[edit.id], source, report)
    for effect in graph.effects:
        _prose_node(effect.id, effect.text, whole, source, report)
    return report.finding()


EDGE_RULES: Final = frozenset({"edge"})
"""Rules of the language that concern edges; what breaks one is a broken edge, not another kind of malformation."""


def _steps(edits: Iterable[Edit]) -> tuple[Instruction, ...]:
    return tuple(instruction for edit in edits for instruction in edit.instructions)


def _added(own: Sequence[Instruction], whole: Sequence[Instruction], payload: Graph) -> tuple[Instruction, ...]:
    """What derived post-processing adds to a payload's own instructions.

    Raises:
        ValueError: the trace is not one of the payload.
    """
    shared, rest = whole[: len(own)], tuple(whole[len(own) :])
    enters = bool(rest) and rest[0].kind == "EnterPostproc"
    if list(map(_told, shared)) != list(map(_told, own)) or (bool(rest) if payload.postproc is None else not enters):
        raise ValueError("the selected trace is not of the selected payload")
    return rest


def _told(step: Instruction) -> tuple[Any, ...]:
    """An instruction without its attributes, whose maps may have other names."""
    return step.kind, step.inputs, step.outputs, step.decision


def _source(graph: Graph, added: Sequence[Instruction], facts: Sequence[Mapping[str, Any]], mode: str) -> _Source:
    known = {str(fact["path"]): json.loads(fact["value"]) for fact in facts}
    numbers = {n for value in known.values() for n in _prose.numeric(value)}
    numbers |= {n for value in values(graph.edits).values() for n in _prose.numeric(value)}
    for instruction in (*_steps(graph.edits), *added):
        for part in (instruction.inputs, instruction.attrs):
            numbers |= {n for value in part for n in _prose.numeric(value)}
    kinds: dict[str, set[str]] = {}
    for path, value in known.items():
        parts = path.split(".")
        if path.startswith("in.") and parts[-1] == "kind" and value in ("spatial", "reduction") and len(parts) > 2:
            kinds.setdefault(parts[-2], set()).add(value)
    return _Source(
        {str(fact["path"]): str(fact["text"]) for fact in facts},
        known,
        frozenset(numbers),
        _claims.names(graph, added, facts),
        {name: frozenset(found) for name, found in kinds.items()},
        _claims.taken(known),
        _subjects.subjects(known),
        mode == "refine",
    )


def _whole(graph: Graph, report: _Report) -> None:
    for what, nodes in (("evidence", graph.evidence), ("analysis", graph.analyses), ("effect", graph.effects)):
        if not nodes:
            report.object("malformed", "graph", f"it has no {what}")
    for edit in graph.edits:
        if edit.summary and not edit.summary.strip():
            report.object("malformed", edit.id, "its summary says nothing")
    for node in _claims.explained(graph):
        if not node.text.strip():
            report.object("malformed", node.id, "the node says nothing")


def _edges(graph: Graph, report: _Report) -> None:
    """What the language does not ask of edges: that they reach every analysis and every effect."""
    reached = {(edge.kind, edge.target) for edge in graph.edges}
    for analysis in graph.analyses:
        if ("supports", analysis.id) not in reached:
            report.object("broken_edge", analysis.id, "it is not supported by evidence")
    for effect in graph.effects:
        if ("predicts", effect.id) not in reached:
            report.object("broken_edge", effect.id, "it is not predicted by an edit")


def _evidence(graph: Graph, source: _Source, report: _Report) -> None:
    for evidence in graph.evidence:
        report.citations += 1
        if not evidence.cite.startswith("in."):
            report.object("unknown_citation", evidence.id, f"evidence cites in.… only, not '{evidence.cite}'")
        elif evidence.cite not in source.texts:
            report.object("unknown_citation", evidence.id, f"there is no fact '{evidence.cite}'")
        elif evidence.text != source.texts[evidence.cite]:
            report.object("misquoted", evidence.id, f"the text of {evidence.cite} is '{source.texts[evidence.cite]}'")


def _prose_node(place: str, text: str, scope: _claims.Scope, source: _Source, report: _Report) -> None:
    """Check one node's prose. The order decides the reason where a text breaks several rules."""
    if len(text) > _prose.MAX_PROSE:
        report.object("malformed", place, f"{len(text)} characters are more than {_prose.MAX_PROSE}")
        return
    claimed = _speedups.speedup(text)
    if claimed is not None:
        report.object("speedup_claimed", place, claimed)
    try:
        tokens = _prose.tokens(text)
    except _prose.BadCitation as error:
        report.object("unknown_citation", place, str(error))
        return
    cited = _citations(place, tokens, source, report)
    bare = _without_citations(text, tokens)
    try:
        backed = cited | _computed(place, tokens, cited, source, report)
    except _arithmetic.BadArithmetic as error:
        report.object("arithmetic", place, str(error))
        return
    for count, false in (
        _claims.claims(bare, scope),
        _claims.wrong_kinds(bare, source.kinds),
        _claims.wrong_loops(bare, source.kinds, source.runs, source.refining),
    ):
        report.claims += count
        for detail in false:
            report.object("false_claim", place, detail)
    edit = place if place.startswith("t") else None
    for detail in _subjects.mistaken(tokens, source.subjects, edit, source.refining):
        report.object("false_claim", place, detail)
    for name in _claims.unknown_names(tokens, source.names):
        report.object("false_claim", place, f"neither the facts nor the payload know '{name}'")
    for token in tokens:
        if token.kind == "number" and (token.value is None or token.value not in backed):
            if token.value == Fraction(1, 2) and Fraction(2) in backed:
                continue
            report.object("unbacked_number", place, f"nothing in the node backs the number '{token.text}'")
    unfit = _prose.unfit(text)
    if unfit is not None:
        report.object("malformed", place, unfit)


def _citations(place: str, tokens: Iterable[_prose.Token], source: _Source, report: _Report) -> set[Fraction]:
    """Check the citations of a node, and give the numbers that they state."""
    numbers: set[Fraction] = set()
    for token in tokens:
        if token.kind != "cite":
            continue
        report.citations += 1
        if token.path not in source.values:
            report.object("unknown_citation", place, f"there is no fact '{token.path}'")
            continue
        value = source.values[token.path]
        if token.text != quoted(value):
            report.object("misquoted", place, f"the value of {token.path} is {quoted(value)}, not {token.text[:80]}")
            continue
        numbers.update(_prose.numeric(value))
    return numbers


def quoted(value: Any) -> str:
    """A fact's value as a citation quotes it: canonical JSON, a string without its quotes."""
    return value if isinstance(value, str) else canonical_json(value)


def _computed(
    place: str, tokens: Sequence[_prose.Token], cited: set[Fraction], source: _Source, report: _Report
) -> set[Fraction]:
    """Compute the statements of a node, and give the numbers that stand in them.

    Raises:
        BadArithmetic: one cannot be read or does not hold.
    """

    def lookup(token: _prose.Token) -> Fraction | None:
        value = source.values.get(token.path)
        numbers = _prose.numeric(value)
        return numbers[0] if len(numbers) == 1 and not isinstance(value, list) else None

    known = source.numbers | cited
    stated: set[Fraction] = set()
    for statement in _arithmetic.statements(tokens, lookup):
        report.computations += 1
        for operand in statement.operands:
            if operand not in known and operand not in stated:
                report.object(
                    "unbacked_number", place, f"'{statement.text}' starts from {operand}, which nothing yields"
                )
        stated.update((*statement.operands, *statement.results))
    return stated


def _without_citations(text: str, tokens: Iterable[_prose.Token]) -> str:
    """The prose with each citation replaced by its value where that is a name, so that sentences stay sentences."""
    out, place = [], 0
    for token in tokens:
        if token.kind == "cite":
            end = text.index("=", token.start) + 1 + len(token.text) + 1
            name = token.text if token.text.isidentifier() else "#"
            out += [text[place : token.start], name]
            place = end
    return "".join([*out, text[place:]])
