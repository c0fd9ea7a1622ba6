"""A graph as text, in the `json` notation, with the spans that weight it in training."""

import re
from typing import Any

from littledragon.schemas.graph import Edit, Encoded, Graph, Instruction, Span, SpanKind
from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_TEXT, illegal

VERSION = "tsel/1"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"}


class _Writer:
    """Text with the kind of each of its pieces."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, SpanKind]] = []

    def put(self, text: str, kind: SpanKind = "structure") -> None:
        self.pieces.append((text, kind))

    def encoded(self) -> Encoded:
        spans: list[Span] = []
        start = 0
        for text, kind in self.pieces:
            end = start + len(text)
            if spans and spans[-1].kind == kind:
                spans[-1] = Span(spans[-1].start, end, kind)
            elif text:
                spans.append(Span(start, end, kind))
            start = end
        return Encoded("".join(text for text, _ in self.pieces), tuple(spans))


def render(graph: Graph) -> Encoded:
    """The text of a graph, and its spans: `explanation` for whole evidence, analysis and effect nodes, `decision`
    for the factors and indices of sampled decisions, `structure` for all else. They tile the text.

    Raises:
        TselError: gate `wellformed`: a text that XML cannot hold, or a graph that is too large.
    """
    out = _Writer()
    out.put(f'<graph version="{VERSION}" notation="json" tvm="{_attribute(graph.tvm)}">\n')
    for evidence in graph.evidence:
        start = f'<evidence id="{_attribute(evidence.id)}" cite="{_attribute(evidence.cite)}">'
        _node(out, f"{start}{_prose(evidence.text)}</evidence>")
    for analysis in graph.analyses:
        _node(out, f'<analysis id="{_attribute(analysis.id)}">{_prose(analysis.text)}</analysis>')
    for name, value in graph.maps.items():
        out.put(f'<map id="{_attribute(name)}">{_json.write(value)}</map>\n')
    for edit in graph.edits:
        _edit(out, edit)
    for effect in graph.effects:
        _node(out, f'<effect id="{_attribute(effect.id)}">{_prose(effect.text)}</effect>')
    for edge in graph.edges:
        out.put(f'<{edge.kind} from="{_attribute(edge.source)}" to="{_attribute(edge.target)}"/>\n')
    out.put("</graph>\n")
    encoded = out.encoded()
    if len(encoded.text.encode()) > MAX_TEXT:
        raise illegal("size", "graph", f"the text is longer than {MAX_TEXT} bytes")
    return encoded


def _node(out: _Writer, text: str) -> None:
    out.put(text, "explanation")
    out.put("\n")


def _edit(out: _Writer, edit: Edit) -> None:
    out.put(f'<trace_sequence id="{_attribute(edit.id)}" kind="{_attribute(edit.kind)}">')
    out.put(f"<summary>{_prose(edit.summary)}</summary>\n")
    for instruction in edit.instructions:
        _fragment(out, instruction)
        out.put("\n")
    out.put("</trace_sequence>\n")


def _fragment(out: _Writer, instruction: Instruction) -> None:
    """One instruction; parts that are empty are left out."""
    parts: dict[str, Any] = {"k": instruction.kind}
    if instruction.inputs:
        parts["i"] = list(instruction.inputs)
    if instruction.attrs:
        parts["a"] = list(instruction.attrs)
    if instruction.outputs:
        parts["o"] = instruction.outputs
    text = _json.write(parts)
    decision = instruction.decision
    if decision is None:
        out.put(text)
    elif isinstance(decision, dict) and set(decision) == {"extent", "factors"}:
        out.put(f'{text[:-1]},"d":{{"extent":{_json.write(decision["extent"])},"factors":')
        out.put(_json.write(decision["factors"]), "decision")
        out.put("}}")
    else:
        out.put(f'{text[:-1]},"d":')
        out.put(_json.write(decision), "decision")
        out.put("}")


def _prose(text: str) -> str:
    """Text between tags, escaped; refused where XML has no way to write it."""
    if _FORBIDDEN.search(text):
        raise illegal("characters", "graph", "a text holds characters that XML cannot hold")
    return re.sub("[&<>\r]", lambda m: _ESCAPES[m[0]], text)


def _attribute(text: str) -> str:
    return re.sub('["\n\t]', lambda m: _ESCAPES[m[0]], _prose(text))
