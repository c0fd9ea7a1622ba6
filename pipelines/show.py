"""`dragon show ID`: one record for a person's eyes. A label or example is drawn as its graph.

Everything that is printed comes from the tables, some of it from a model, so it is never read as markup and holds
no control characters.
"""

import difflib
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel
from littledragon.schemas.gates import GATES
from littledragon.schemas.graph import Edit, Graph
from littledragon.schemas.ids import ID_PATTERN

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text
    from rich.tree import Tree

Row = dict[str, Any]

HOMES: Final = {
    "w": ("workloads", "workload_id"),
    "c": ("candidates", "candidate_id"),
    "s": ("selections", "selection_id"),
    "l": ("labels", "label_id"),
    "x": ("examples", "example_id"),
}
"""Table and column of each kind of id."""

EDGES: Final = {"supports": "green", "motivates": "yellow", "predicts": "magenta"}
NODES: Final = {"evidence": "green", "analysis": "yellow", "edit": "bold cyan", "effect": "magenta"}
PLACES: Final = {-1: "stays where it is", -2: "inlined"}
"""Decisions of SampleComputeLocation that name no loop (TVM, src/s_tir/schedule/primitive/sampling.cc)."""
HEAD_LINES: Final = 40
LONG: Final = (
    "module", "script", "features", "trace", "tsel", "graph", "messages", "completion", "completion_json", "spans",
    "inputs",
)  # fmt: skip
"""Columns that are shown in a form of their own, or not at all."""


def show(store: Store, id: str, console: "Console") -> None:
    """Print what the store knows of a workload, candidate, selection, label or example.

    Raises:
        UserError: there is no such id.
    """
    row = find(store, id)
    draw = {"w": _workload, "c": _candidate, "s": _selection, "l": _label, "x": _example}[id[0]]
    for piece in draw(store, row):
        console.print(piece, overflow="fold", no_wrap=False, crop=False, soft_wrap=False)


def find(store: Store, id: str) -> Row:
    """The row that an id names.

    Raises:
        UserError: it is no id, or names nothing here; the line says which ids come close.
    """
    if not id or id[0] not in HOMES or id[1:2] != "-":
        raise UserError(f"'{clean(id)[:40]}' is no id: give w-, c-, s-, l- or x- and 16 hex digits")
    table, column = HOMES[id[0]]
    if ID_PATTERN.fullmatch(id):
        rows = store.rows(table, f"{column} = $id", id=id)
        if rows:
            return min(rows, key=lambda row: row.get("state") != "ok")
    query = f"SELECT DISTINCT {column} AS id FROM {table} WHERE {column} IS NOT NULL ORDER BY 1"
    raise UserError(_unknown(id, store.sql(query).column(0).to_pylist()))


def _unknown(id: str, known: list[str]) -> str:
    near = [other for other in known if other.startswith(id)] or difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near[:3])}?" if near else f"the table holds {len(known)}"
    if not near and known:
        hint += f", for example {known[0]}"
    return f"{clean(id)[:40]}: no such id in {HOMES[id[0]][0]}: {hint}"


def clean(value: Any) -> str:
    """Text without control characters and direction overrides; line breaks and tabs stay."""
    text = str(value)
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _text(value: Any, style: str = "") -> "Text":
    from rich.text import Text

    return Text(clean(value), style=style, overflow="fold")


def _title(words: str) -> "RenderableType":
    return _text(f"── {words}", "bold")


def _fields(row: Row, names: Iterable[str] | None = None) -> "RenderableType":
    """Names and values, those without a value left out."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name in names or [name for name in row if name != "unit_id" and name not in LONG]:
        value = row[name]
        if value is not None:
            grid.add_row(_text(name, "dim"), _text(_short(value)))
    return grid


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(item) for item in value) + "]"
    return str(value)


def _workload(store: Store, row: Row) -> Iterable["RenderableType"]:
    from rich.syntax import Syntax

    yield _title(f"workload {row['workload_id']}")
    yield _fields(row)
    if row["features"]:
        yield _title("features F(M0)")
        yield _text(_features(row["features"]))
    if row["script"]:
        lines = clean(row["script"]).splitlines()
        yield _title("M0")
        yield Syntax("\n".join(lines[:HEAD_LINES]), "python", theme="ansi_dark", word_wrap=True)
        if len(lines) > HEAD_LINES:
            yield _text(f"… {len(lines) - HEAD_LINES} more lines", "dim")
    for anchor in store.rows("anchors", "workload_id = $id", id=row["workload_id"]):
        yield _title("anchor")
        yield _fields(anchor)


def _candidate(store: Store, row: Row) -> Iterable["RenderableType"]:
    yield _title(f"candidate {row['candidate_id']}")
    yield _fields(row)
    yield _gates(row["status"])
    for verdict in store.rows("verdicts", "candidate_id = $id", id=row["candidate_id"]):
        yield _title("verdict")
        yield _fields(verdict)
    for trace in store.rows("traces", "candidate_id = $id", id=row["candidate_id"]):
        yield _title(
            f"trace: {trace['instructions']} instructions, {trace['postproc_instructions']} of them post-processing"
        )
        if trace["tsel"]:
            yield from _graph(trace["tsel"])
        else:
            yield _text(trace["trace"])


def _gates(status: str) -> "RenderableType":
    """The gates of the search in order, up to the one that the candidate failed."""
    gates = GATES[: GATES.index("stable")]
    passed = gates[: gates.index(status)] if status in gates else gates
    line = _text("gates ", "dim").append(" ".join(passed), "green")
    return line if status not in gates else line.append(f" {status}", "bold red").append(" failed")


def _selection(store: Store, row: Row) -> Iterable["RenderableType"]:
    yield _title(f"selection {row['selection_id']}")
    yield _fields(row)
    for label in store.rows("labels", "selection_id = $id", id=row["selection_id"]):
        yield _text(f"label {label['label_id']}: {label['state']} {label['reason'] or ''}")
    facts = store.rows("facts", "selection_id = $id", id=row["selection_id"])
    if facts:
        yield _title(f"{len(facts)} facts")
        yield _facts(sorted(facts, key=lambda fact: fact["position"]))


def _facts(facts: list[Row]) -> "RenderableType":
    from rich.table import Table

    table = Table("path", "value", "text", box=None, padding=(0, 1), header_style="dim")
    for fact in facts:
        table.add_row(*(_text(fact[name]) for name in ("path", "value", "text")))
    return table


def _label(store: Store, row: Row) -> Iterable["RenderableType"]:
    yield _title(f"label {row['label_id']}")
    yield _fields(row)
    for check in store.rows("checks", "label_id = $id", id=row["label_id"]):
        yield _title("check")
        yield _fields(check)
    if row["graph"]:
        yield from _graph(row["graph"])


def _example(store: Store, row: Row) -> Iterable["RenderableType"]:
    yield _title(f"example {row['example_id']}")
    yield _fields(row)
    yield from _graph(row["completion"])


def _features(text: str) -> str:
    """Loops, buffers and blocks, one a line; whatever else the text may hold, as it is."""
    try:
        found = json.loads(text)
        lines = [f"{found['flops']:,} FLOPs, {found['bytes']:,} bytes"]
        for buffer in found["buffers"]:
            lines.append(f"buffer {buffer['name']}: {buffer['dtype']} {buffer['shape']}, {buffer['role']}")
        names = [f"{loop['name']}={loop['extent']}" for loop in found["loops"]]
        for block in found["blocks"]:
            reads, writes = (", ".join(dict.fromkeys(a["buffer"] for a in block[k])) for k in ("reads", "writes"))
            axes = ", ".join(f"{axis['name']}={axis['extent']} {axis['kind']}" for axis in block["iterators"])
            loops = ", ".join(names[place] for place in block["loops"])
            lines.append(f"block {block['name']} [{axes}] in loops {loops}: {reads} → {writes}")
    except (ValueError, TypeError, KeyError, IndexError):
        return text
    return "\n".join(lines)


def _graph(text: str) -> Iterable["RenderableType"]:
    """Evidence, analysis, edits in replay order, effects; a text that does not parse is shown as it is."""
    try:
        graph = tsel.decode(text).graph
    except tsel.TselError as error:
        yield _title(f"not a well-formed graph: {error}")
        yield _text(text)
        return
    yield _title(f"graph: {len(graph.edits)} edits, {sum(len(e.instructions) for e in graph.edits)} instructions")
    yield draw(graph)


def draw(graph: Graph) -> "Tree":
    """The graph as a tree: its nodes by role, each with its typed edges; edits in the order that they are replayed."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    legend = Text.assemble("edges: ", *(piece for kind, style in EDGES.items() for piece in ((f"{kind} ", style),)))
    root = Tree(legend, guide_style="dim")
    if graph.evidence:
        branch = root.add(_text("evidence", NODES["evidence"]))
        for fact in graph.evidence:
            branch.add(_node(graph, fact.id, f"[{fact.cite}] {fact.text}"))
    if graph.analyses:
        branch = root.add(_text("analysis", NODES["analysis"]))
        for analysis in graph.analyses:
            branch.add(_node(graph, analysis.id, analysis.text))
    branch = root.add(_text("edits, in replay order", NODES["edit"]))
    summaries, numbers = tsel.summaries(graph), sampled(graph)
    for number, edit in enumerate(graph.edits, 1):
        order = f"{number}/{len(graph.edits)} "
        told = _node(graph, edit.id, f"{edit.kind}: {summaries[edit.id]}", order)
        branch.add(Group(told, _instructions(edit, numbers)))
    if graph.postproc is not None:
        rules = f"post-processing by the rules of {graph.postproc.rules}, version {graph.postproc.version}"
        branch.add(_text(f"{rules}: it follows from the edits", "dim"))
    if graph.maps:
        branch = root.add(_text("index maps", "dim"))
        for name, value in graph.maps.items():
            branch.add(_text(f"{name} {json.dumps(value, ensure_ascii=False)}", "dim"))
    if graph.effects:
        branch = root.add(_text("expected effects", NODES["effect"]))
        for effect in graph.effects:
            branch.add(_node(graph, effect.id, effect.text))
    return root


def _node(graph: Graph, id: str, words: str, order: str = "") -> "Text":
    """`t3 words`, then `← a1` and `→ p1`, each in its edge's colour."""
    line = _text("")
    line.append(clean(order), "dim").append(clean(f"{id} "), "bold").append(clean(" ".join(words.split())))
    for edge in graph.edges:
        if edge.target == id:
            line.append(clean(f"  ← {edge.source}"), EDGES[edge.kind])
        if edge.source == id:
            line.append(clean(f"  → {edge.target}"), EDGES[edge.kind])
    return line


def _instructions(edit: Edit, numbers: Mapping[str, str]) -> "RenderableType":
    """The lines of an edit: what an instruction makes, and the rest, each in a column of its own."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", overflow="fold")
    grid.add_column(overflow="fold")
    for step in edit.instructions:
        line = tsel.instruction_line(step)
        made, _, done = line.partition(" = ") if step.outputs else ("", "", line)
        word, _, rest = done.partition(" ")
        told = _text("").append(clean(word), "bold").append(clean(f" {rest}" if rest else ""))
        if step.outputs and step.outputs[0] in numbers:
            told.append(clean(f"  {numbers[step.outputs[0]]}"), "yellow")
        grid.add_row(_text(f"{made} =" if made else "", "dim"), told)
    return Padding(grid, (0, 0, 0, 2), expand=False)


def sampled(graph: Graph) -> dict[str, str]:
    """What the sampled decisions come to, by the name of the first output: `→ 8 * 1 * 2`, `→ 512`, `→ inlined`."""
    found: dict[str, str] = {}
    for step in (step for edit in graph.edits for step in edit.instructions if step.decision is not None):
        if isinstance(step.decision, dict):
            extent, factors = step.decision["extent"], step.decision["factors"]
            last = extent // math.prod(factors)
            found[step.outputs[0]] = f"→ {' * '.join(map(str, [*factors, last]))}"
        elif step.kind == "SampleCategorical":
            found[step.outputs[0]] = f"→ {step.attrs[0][step.decision]}"
        elif step.decision in PLACES:
            found[step.outputs[0]] = f"→ {PLACES[step.decision]}"
    return found
