"""The nodes of a text, read into a graph. The rules of the language are not checked here but in `_lower`."""

import re
from typing import Any, Final

from littledragon.schemas.graph import Analysis, Edge, Edit, Effect, Evidence, Graph, Instruction, Postproc
from littledragon.schemas.tsel import _fragments, _json, _line, _maps, _short
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, MAX_LEAVES, TselError, illegal, malformed
from littledragon.schemas.tsel._lower import TVM
from littledragon.schemas.tsel._render import NOTATIONS, VERSION
from littledragon.schemas.tsel._xml import Document, Node

EDIT_ID: Final = re.compile(r"t[0-9]{1,6}")


def parse(document: Document) -> Graph:
    """The graph that the nodes of a text spell.

    Raises:
        TselError: gate `wellformed`, where a node's content is not what it must be; gate `parsed`: two `<postproc>`.
    """
    notation = _head(document.attributes)
    reader = _Reader(notation)
    for node in document.nodes:
        reader.add(node)
    maps = reader.maps
    if notation == "json":
        maps = {name: _maps.rename(value, reader.coordinate) for name, value in maps.items()}
    return Graph(
        edits=tuple(reader.edits),
        maps=maps,
        evidence=tuple(reader.evidence),
        analyses=tuple(reader.analyses),
        effects=tuple(reader.effects),
        edges=tuple(reader.edges),
        postproc=reader.postproc,
        tvm=document.attributes["tvm"],
    )


def _head(attributes: dict[str, str]) -> str:
    """The notation of a text of this version and this TVM."""
    version, tvm, notation = attributes["version"], attributes["tvm"], attributes["notation"]
    if version != VERSION:
        raise illegal("version", "graph", f"version is {version[:20]}, expected {VERSION}: encode the trace anew")
    if tvm != TVM:
        raise illegal("version", "graph", f"tvm is {tvm[:20]}, expected {TVM}: encode the trace anew with that TVM")
    if notation not in NOTATIONS:
        raise illegal("version", "graph", f"notation is {notation[:20]}, expected {' or '.join(NOTATIONS)}")
    return notation


class _Reader:
    """What the nodes so far have given."""

    def __init__(self, notation: str) -> None:
        self.notation = notation
        self.before: Instruction | None = None
        self.names: dict[str, str] = {}
        """Of all outputs so far, by coordinates; only `json` needs them."""
        self.made = self.count = self.leaves = 0
        self.maps: dict[str, Any] = {}
        self.evidence: list[Evidence] = []
        self.analyses: list[Analysis] = []
        self.edits: list[Edit] = []
        self.effects: list[Effect] = []
        self.edges: list[Edge] = []
        self.postproc: Postproc | None = None

    def add(self, node: Node) -> None:
        at, text = node.attributes, node.text
        if node.tag == "trace_sequence":
            self.edits.append(self.edit(node))
        elif node.tag == "map":
            if at["id"] in self.maps:
                raise illegal("id", f"line {node.line}", f"map {at['id'][:40]} stands twice")
            self.maps[at["id"]] = _short.read_map(text, f"line {node.line}, {at['id'][:40]}")
        elif node.tag == "evidence":
            self.evidence.append(Evidence(at["id"], at["cite"], text))
        elif node.tag == "analysis":
            self.analyses.append(Analysis(at["id"], text))
        elif node.tag == "effect":
            self.effects.append(Effect(at["id"], text))
        elif node.tag == "postproc":
            if self.postproc is not None:
                raise malformed("node", f"line {node.line}", "a second <postproc>")
            self.postproc = Postproc(at["rules"], _version(at["version"], node.line))
        else:
            self.edges.append(Edge(node.tag, at["from"], at["to"]))  # type: ignore[arg-type]

    def edit(self, node: Node) -> Edit:
        name = node.attributes["id"]
        if not EDIT_ID.fullmatch(name):
            raise illegal("id", f"line {node.line}", f"{name[:40]} is no id of an edit: t and a number")
        instructions: list[Instruction] = []
        for offset, line in enumerate(node.text.split("\n")):
            if not line or line.isspace():
                continue
            try:
                instruction = self.instruction(line, name, len(instructions))
            except TselError as error:
                place = f"line {node.line + offset}, {name[:40]}.{len(instructions)}"
                raise illegal(error.rule, place, error.message) from None
            instructions.append(instruction)
            self.before = instruction
            self.count += 1
            self.leaves += len(instruction.inputs) + len(instruction.outputs)
            if self.count > MAX_INSTRUCTIONS or self.leaves > MAX_LEAVES:
                message = f"more than {MAX_INSTRUCTIONS} instructions, or {MAX_LEAVES} inputs and outputs"
                raise illegal("size", f"line {node.line + offset}", message)
        kind = node.attributes["kind"] if "kind" in node.attributes else _short.kind(instructions)
        return Edit(name, kind, node.summary, tuple(instructions))

    def instruction(self, line: str, edit: str, step: int) -> Instruction:
        if self.notation == "line":
            return _line.read(line, self.before)
        value = _json.read(line, "", "wellformed")
        instruction = _fragments.read(value, self.before, self.names, edit, self.made)
        for output, name in enumerate(instruction.outputs):
            self.names[f"{edit}.{step}.{output}"] = name
        self.made += len(instruction.outputs)
        return instruction

    def coordinate(self, reference: str) -> str:
        """The name that a map's coordinates stand for."""
        name = self.names.get(reference)
        if name is None:
            raise illegal("map", "graph", f"a map refers to {reference[:40]}, which no edit makes")
        return name


def _version(text: str, line: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6 or str(int(text)) != text:
        raise illegal("rules", f"line {line}", "the version of a rule set is a number")
    return int(text)
