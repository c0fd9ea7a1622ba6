"""TSEL, the typed schedule edit language, version `tsel/1`: traces of TVM's schedules as graphs of edits, and back.

    lift(trace)   -> Graph            a trace's edits, each with a summary
    render(graph) -> Encoded          the label text and its weight spans
    encode(trace) -> Encoded          render(lift(trace))
    decode(text)  -> Decoded          the graph of a text, all rules checked, and its trace
    canonical(trace) -> str           equal trees give equal text

A trace is `tvm.ir.save_json(trace.as_json())`. Nothing here imports TVM. Every input that is refused raises
`TselError`, whatever it is. docs/tsel.md describes the format.
"""

from littledragon.schemas.graph import Decoded, Encoded, Graph
from littledragon.schemas.tsel import _lift, _lower, _parse, _render, _tree
from littledragon.schemas.tsel._error import MAX_TEXT, MAX_TRACE, TselError
from littledragon.schemas.tsel._lower import TVM
from littledragon.schemas.tsel._render import VERSION

__all__ = [
    "MAX_TEXT",
    "TVM",
    "VERSION",
    "TselError",
    "canonical",
    "decode",
    "encode",
    "kinds",
    "lift",
    "render",
    "spell",
]


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
    """The graph of a trace: edits with deterministic summaries, and index maps.

    Raises:
        TselError: gate `parsed` or `wellformed`.
    """
    return _lift.lift(*_tree.parse(trace))


def render(graph: Graph) -> Encoded:
    """The text of a graph and the spans that tile it.

    Raises:
        TselError: gate `wellformed`: a text that XML cannot hold, or a graph that is too large.
    """
    return _render.render(graph)


def encode(trace: str) -> Encoded:
    """The text of a trace, without explanation.

    Raises:
        TselError: gate `parsed` or `wellformed`.
    """
    return render(lift(trace))


def spell(graph: Graph) -> str:
    """The canonical trace that a graph's edits spell.

    Raises:
        TselError: gate `wellformed`: the first rule that the graph breaks.
    """
    trace = _tree.write(_lower.lower(graph), graph.tvm)
    if len(trace) > MAX_TRACE:
        raise TselError("wellformed", "size", "graph", f"its trace is longer than {MAX_TRACE} characters")
    return trace


def decode(text: str | bytes) -> Decoded:
    """The graph that a text spells, every rule of the language checked, and its trace in canonical form.

    Raises:
        TselError: gate `parsed` or `wellformed`; nothing else, whatever the text.
    """
    graph = _parse.parse(text)
    return Decoded(graph, spell(graph))
