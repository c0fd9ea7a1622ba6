"""TSEL, the typed schedule edit language, version `tsel/1`: traces of TVM's schedules as graphs of edits, and back.

    lift(trace)             -> Graph      a trace's edits
    render(graph, notation) -> Encoded    the label text and its weight spans
    encode(trace, notation) -> Encoded    render(lift(trace), notation)
    decode(text)            -> Decoded    the graph of a text, all rules checked, and its trace
    convert(text, notation) -> str        the same graph in the other notation
    summaries(graph)        -> dict       one line for each edit
    diagnose(text)          -> Diagnosis  how far any text comes, for partial credit
    canonical(trace)        -> str        equal trees give equal text

A trace is `tvm.ir.save_json(trace.as_json())`. Nothing here imports TVM. Every input that is refused raises
`TselError`, whatever it is. docs/tsel.md describes the format.
"""

import functools
from dataclasses import dataclass

from littledragon.schemas.graph import Encoded, Graph, Instruction
from littledragon.schemas.tsel import _lift, _line, _lower, _parse, _render, _tree, _xml
from littledragon.schemas.tsel._diagnose import Diagnosis, diagnose
from littledragon.schemas.tsel._error import MAX_TEXT, MAX_TRACE, TselError
from littledragon.schemas.tsel._lower import RULES, TVM
from littledragon.schemas.tsel._render import NOTATIONS, VERSION, Notation
from littledragon.schemas.tsel._summaries import summaries

__all__ = [
    "MAX_TEXT",
    "NOTATIONS",
    "RULES",
    "TVM",
    "VERSION",
    "Decoded",
    "Diagnosis",
    "Notation",
    "TselError",
    "canonical",
    "convert",
    "decode",
    "diagnose",
    "encode",
    "instruction_line",
    "kinds",
    "lift",
    "render",
    "spell",
    "summaries",
]


@dataclass(frozen=True)
class Decoded:
    """A well-formed graph and the tree of the trace that its edits spell (schemas/tsel/_tree.py)."""

    graph: Graph
    tree: _tree.Leaf

    @functools.cached_property
    def trace(self) -> str:
        """The trace as canonical `save_json` text; where post-processing is derived, what comes before it.

        Raises:
            TselError: gate `wellformed`, rule `size`.
        """
        return _written(self.graph, self.tree)


def _written(graph: Graph, tree: _tree.Leaf) -> str:
    trace = _tree.write(tree, graph.tvm)
    if len(trace) > MAX_TRACE:
        raise TselError("wellformed", "size", "graph", f"its trace is longer than {MAX_TRACE} characters")
    return trace


def canonical(trace: str) -> str:
    """The one `save_json` text of a trace's tree, without sharing; `tvm.ir.load_json` reads it.

    Raises:
        TselError: gate `parsed`.
    """
    tree, version = _tree.parse(trace)
    return _tree.write(tree, version)


def kinds(trace: str) -> list[str]:
    """The kinds of a trace's instructions, in order.

    Raises:
        TselError: gate `parsed`.
    """
    return _lift.kinds(_tree.parse(trace)[0])


def lift(trace: str) -> Graph:
    """The graph of a trace: edits and index maps.

    Raises:
        TselError: gate `parsed` or `wellformed`.
    """
    tree, version = _tree.parse(trace)
    graph = _lift.lift(tree, version)
    _lift.same(tree, _lower.lower(graph))
    return graph


def render(graph: Graph, notation: Notation = "line") -> Encoded:
    """The text of a graph and the spans that tile it. A summary that is the derived one is left out.

    Raises:
        TselError: gate `wellformed`: a text that XML cannot hold, or a graph that is too large or breaks a rule.
    """
    return _render.render(graph, notation)


def encode(trace: str, notation: Notation = "line") -> Encoded:
    """The text of a trace, without explanation, proved: it is decoded again, and must give the very same tree.

    Raises:
        TselError: gate `parsed` or `wellformed`.
    """
    tree, version = _tree.parse(trace)
    encoded = render(_lift.lift(tree, version), notation)
    _lift.same(tree, decode(encoded.text).tree)
    return encoded


def spell(graph: Graph) -> str:
    """The canonical trace that a graph's edits spell.

    Raises:
        TselError: gate `wellformed`: the first rule that the graph breaks.
    """
    return _written(graph, _lower.lower(graph))


def decode(text: str | bytes) -> Decoded:
    """The graph that a text in either notation spells, every rule of the language checked, and its trace.

    Raises:
        TselError: gate `parsed` or `wellformed`; nothing else, whatever the text.
    """
    graph = _parse.parse(_xml.read(text))
    return Decoded(graph, _lower.lower(graph))


def convert(text: str | bytes, notation: Notation) -> str:
    """The same graph in another notation, in its canonical spelling.

    Raises:
        TselError: gate `parsed` or `wellformed`.
    """
    return render(decode(text).graph, notation).text


def instruction_line(instruction: Instruction) -> str:
    """One well-formed instruction as a line of the `line` notation, nothing implied."""
    return " ".join(filter(None, _line.write(instruction, None)))
