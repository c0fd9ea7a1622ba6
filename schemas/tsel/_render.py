"""A graph as text, in either notation, with the spans that weight it in training."""

import re
from dataclasses import replace
from typing import Final, Literal

from littledragon.schemas.graph import Encoded, Graph, Instruction, Span, SpanKind
from littledragon.schemas.tsel import _fragments, _line, _maps, _short
from littledragon.schemas.tsel._error import MAX_TEXT, illegal
from littledragon.schemas.tsel._lower import lower
from littledragon.schemas.tsel._summaries import summaries

Notation = Literal["line", "json"]
NOTATIONS: Final[tuple[Notation, ...]] = ("line", "json")

VERSION = "tsel/1"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"}


class _Writer:
    """Text with the kind of each of its pieces."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, SpanKind]] = []
        self.plain: list[str] = []
        """The texts since the last piece, all of kind `structure`."""

    def put(self, text: str, kind: SpanKind = "structure") -> None:
        if kind == "structure":
            self.plain.append(text)
        elif text:
            self.flush()
            self.pieces.append((text, kind))

    def flush(self) -> None:
        if text := "".join(self.plain):
            self.pieces.append((text, "structure"))
        self.plain.clear()

    def encoded(self) -> Encoded:
        self.flush()
        spans: list[Span] = []
        start = 0
        for text, kind in self.pieces:
            spans.append(Span(start, start + len(text), kind))
            start += len(text)
        return Encoded("".join([text for text, _ in self.pieces]), tuple(spans))


def render(graph: Graph, notation: Notation) -> Encoded:
    """The text of a graph, and its spans: `explanation` for whole evidence, analysis and effect nodes, `decision`
    for the factors and indices of sampled decisions, `structure` for all else. They tile the text.

    Raises:
        TselError: gate `wellformed`: a text that XML cannot hold, a graph that is too large, or one whose
            instructions break a rule (those that a text needs; `lower` checks all).
    """
    out = _Writer()
    out.put(f'<graph version="{VERSION}" notation="{notation}" tvm="{_attribute(graph.tvm)}">\n')
    for evidence in graph.evidence:
        start = f'<evidence id="{_attribute(evidence.id)}" cite="{_attribute(evidence.cite)}">'
        _node(out, f"{start}{_prose(evidence.text)}</evidence>")
    for analysis in graph.analyses:
        _node(out, f'<analysis id="{_attribute(analysis.id)}">{_prose(analysis.text)}</analysis>')
    try:
        _payload(out, graph, notation)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        lower(graph)
        raise
    for effect in graph.effects:
        _node(out, f'<effect id="{_attribute(effect.id)}">{_prose(effect.text)}</effect>')
    for edge in graph.edges:
        out.put(f'<{edge.kind} from="{_attribute(edge.source)}" to="{_attribute(edge.target)}"/>\n')
    out.put("</graph>\n")
    encoded = out.encoded()
    if len(encoded.text) > MAX_TEXT or len(encoded.text.encode()) > MAX_TEXT:
        raise illegal("size", "graph", f"the text is longer than {MAX_TEXT} bytes")
    return encoded


def _node(out: _Writer, text: str) -> None:
    out.put(text, "explanation")
    out.put("\n")


def _payload(out: _Writer, graph: Graph, notation: Notation) -> None:
    """Maps, edits, and the rules of derived post-processing."""
    coordinates = _coordinates(graph) if notation == "json" else {}
    for name, value in graph.maps.items():
        shown = _maps.rename(value, coordinates.__getitem__) if coordinates else value
        out.put(f'<map id="{_attribute(name)}">{_short.write_map(shown)}</map>\n')
    own: dict[str, str] = {}
    if any(edit.summary for edit in graph.edits):
        own = summaries(replace(graph, edits=tuple(replace(edit, summary="") for edit in graph.edits)))
    before: Instruction | None = None
    for edit in graph.edits:
        told = edit.kind == _short.kind(edit.instructions)
        kind = "" if told else f' kind="{_attribute(edit.kind)}"'
        out.put(f'<trace_sequence id="{_attribute(edit.id)}"{kind}>')
        if edit.summary and edit.summary != own[edit.id]:
            out.put(f"<summary>{_prose(edit.summary)}</summary>")
        for instruction in edit.instructions:
            if notation == "line":
                text, decision = _line.write(instruction, before)
                out.put(f"\n{text}")
                if decision:
                    out.put(" ")
                    out.put(decision, "decision")
            else:
                text, decision = _fragments.write(instruction, before, coordinates, edit.id)
                out.put(f"\n{text}")
                if decision:
                    out.put(decision, "decision")
                    out.put("}}" if decision[0] == "[" else "}")
            before = instruction
        out.put("\n</trace_sequence>\n")
    if graph.postproc is not None:
        rules, version = _attribute(graph.postproc.rules), graph.postproc.version
        out.put(f'<postproc rules="{rules}" version="{version}"/>\n')


def _coordinates(graph: Graph) -> dict[str, str]:
    """The coordinates of every name: edit, step, output."""
    found: dict[str, str] = {}
    for edit in graph.edits:
        for step, instruction in enumerate(edit.instructions):
            for output, name in enumerate(instruction.outputs):
                found[name] = f"{edit.id}.{step}.{output}"
    return found


def _prose(text: str) -> str:
    """Text between tags, escaped; refused where XML has no way to write it."""
    if text.isalnum() and text.isascii():
        return text
    if _FORBIDDEN.search(text):
        raise illegal("characters", "graph", "a text holds characters that XML cannot hold")
    return re.sub("[&<>\r]", lambda m: _ESCAPES[m[0]], text)


def _attribute(text: str) -> str:
    return re.sub('["\n\t]', lambda m: _ESCAPES[m[0]], _prose(text))
