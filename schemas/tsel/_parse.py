"""A label's text, read into a graph. The text is hostile: it comes from a model or from a file of strangers.

Refused before anything is built: more than the size limit, a document type, an entity, a processing instruction,
a comment, a CDATA section, nesting deeper than the format has, a node or an attribute that it does not know.
"""

from typing import Any, Final
from xml.parsers import expat

from littledragon.schemas.graph import Analysis, Edge, Edit, Effect, Evidence, Graph, Instruction, Postproc
from littledragon.schemas.tsel import _fragments, _json, _line, _maps, _short
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, MAX_LEAVES, MAX_TEXT, TselError, illegal, malformed
from littledragon.schemas.tsel._lower import TVM
from littledragon.schemas.tsel._render import NOTATIONS, VERSION

_ATTRIBUTES: Final = {
    "graph": {"version", "notation", "tvm"},
    "evidence": {"id", "cite"},
    "analysis": {"id"},
    "map": {"id"},
    "trace_sequence": {"id", "kind"},
    "summary": set(),
    "postproc": {"rules", "version"},
    "effect": {"id"},
    "supports": {"from", "to"},
    "motivates": {"from", "to"},
    "predicts": {"from", "to"},
}
_OPTIONAL: Final = {"trace_sequence": {"kind"}}
_PARENT: Final = {"graph": "", "summary": "trace_sequence"}
"""What a node stands in; all others stand in the graph."""
_EMPTY: Final = ("supports", "motivates", "predicts", "postproc")


def parse(text: str | bytes) -> Graph:
    """The graph that a text spells. Its rules are not checked here but in `_lower`.

    Raises:
        TselError: gate `parsed` where the text is not such a graph; gate `wellformed`, rule `grammar`, `json` or
            `version`, where a node's content is not what it must be.
    """
    if isinstance(text, str):
        if not _json.sound(text):
            raise malformed("encoding", "text", "not UTF-8")
        text = text.encode()
    if not isinstance(text, bytes):
        raise malformed("type", "text", "a text is expected")
    if len(text) > MAX_TEXT:
        raise malformed("size", "text", f"longer than {MAX_TEXT} bytes")
    try:
        text.decode()
    except UnicodeDecodeError:
        raise malformed("encoding", "text", "not UTF-8") from None
    reader = _Reader()
    reader.read(text)
    return reader.graph()


class _Reader:
    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.path: list[str] = []
        self.attributes: dict[str, str] = {}
        """Of the node that is open and stands in the graph."""
        self.text: list[str] = []
        self.summary: str | None = None
        self.line = 1
        self.tvm = ""
        self.notation = ""
        self.postproc: Postproc | None = None
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

    def read(self, text: bytes) -> None:
        parser = self.parser
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.text.append
        parser.XmlDeclHandler = self.refuse
        parser.StartDoctypeDeclHandler = self.refuse
        parser.EntityDeclHandler = self.refuse
        parser.ProcessingInstructionHandler = self.refuse
        parser.CommentHandler = self.refuse
        parser.StartCdataSectionHandler = self.refuse
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise malformed("xml", f"line {error.lineno}", expat.ErrorString(error.code)) from None

    def graph(self) -> Graph:
        maps = self.maps
        if self.notation == "json":
            maps = {name: _maps.rename(value, self.coordinate) for name, value in maps.items()}
        return Graph(
            edits=tuple(self.edits),
            maps=maps,
            postproc=self.postproc,
            evidence=tuple(self.evidence),
            analyses=tuple(self.analyses),
            effects=tuple(self.effects),
            edges=tuple(self.edges),
            tvm=self.tvm,
        )

    @property
    def place(self) -> str:
        return f"line {self.parser.CurrentLineNumber}"

    def refuse(self, *_: Any) -> None:
        message = "declarations, document types, entities, instructions, comments and CDATA are refused"
        raise malformed("xml", self.place, message)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self.path[-1] if self.path else ""
        if name not in _ATTRIBUTES or parent != _PARENT.get(name, "graph"):
            raise malformed("node", self.place, f"<{name[:40]}> may not stand here")
        if (
            attributes.keys() != _ATTRIBUTES[name]
            and attributes.keys() | _OPTIONAL.get(name, set()) != _ATTRIBUTES[name]
        ):
            raise malformed("attribute", self.place, f"<{name}> has the attributes {sorted(_ATTRIBUTES[name])}")
        if name == "graph":
            self.head(attributes)
        elif name == "summary":
            if self.summary is not None:
                raise malformed("node", self.place, "a second <summary>")
            self.blank()
        else:
            self.blank()
            self.attributes, self.line = attributes, self.parser.CurrentLineNumber
        self.path.append(name)

    def head(self, attributes: dict[str, str]) -> None:
        if attributes["version"] != VERSION:
            message = (
                f"version {attributes['version'][:20]} is not {VERSION}: convert it with the littledragon that wrote it"
            )
            raise illegal("version", self.place, message)
        if attributes["tvm"] != TVM:
            raise illegal(
                "version", self.place, f"tvm is {attributes['tvm'][:20]}, expected {TVM}: encode the trace anew"
            )
        if attributes["notation"] not in NOTATIONS:
            raise illegal("version", self.place, f"notation is one of {', '.join(NOTATIONS)}")
        self.tvm, self.notation = attributes["tvm"], attributes["notation"]

    def coordinate(self, reference: str) -> str:
        """The name that a map's coordinates stand for."""
        name = self.names.get(reference)
        if name is None:
            raise illegal("map", "graph", f"a map refers to {reference[:40]}, which no edit makes")
        return name

    def blank(self) -> None:
        """Between nodes stands white space only."""
        if "".join(self.text).strip(" \t\r\n"):
            raise malformed("text", self.place, "text outside a node")
        self.text.clear()

    def end(self, name: str) -> None:
        self.path.pop()
        if name == "graph":
            self.blank()
            return
        text = "".join(self.text)
        self.text.clear()
        if name == "summary":
            self.summary, self.line = text, self.parser.CurrentLineNumber
            return
        at = self.attributes
        if name == "evidence":
            self.evidence.append(Evidence(at["id"], at["cite"], text))
        elif name == "analysis":
            self.analyses.append(Analysis(at["id"], text))
        elif name == "effect":
            self.effects.append(Effect(at["id"], text))
        elif name == "map":
            if at["id"] in self.maps:
                raise illegal("id", self.place, f"map {at['id'][:40]} stands twice")
            self.maps[at["id"]] = _short.read_map(text, f"{self.place}, {at['id'][:40]}")
        elif name == "trace_sequence":
            self.edit(at, text)
        else:
            if text.strip():
                raise malformed("text", self.place, f"<{name}> is empty")
            if name == "postproc":
                self.rules(at)
            else:
                self.edges.append(Edge(name, at["from"], at["to"]))  # type: ignore[arg-type]

    def rules(self, at: dict[str, str]) -> None:
        if self.postproc is not None:
            raise malformed("node", self.place, "a second <postproc>")
        version = at["version"]
        if not version.isascii() or not version.isdigit() or len(version) > 6 or str(int(version)) != version:
            raise illegal("rules", self.place, "the version of a rule set is a number")
        self.postproc = Postproc(at["rules"], int(version))

    def edit(self, at: dict[str, str], text: str) -> None:
        instructions: list[Instruction] = []
        name = at["id"][:40]
        for offset, line in enumerate(text.split("\n")):
            if not line or line.isspace():
                continue
            try:
                if self.notation == "line":
                    instruction = _line.read(line, self.before)
                else:
                    instruction = self.fragment(line, name, len(instructions))
            except TselError as error:
                place = f"line {self.line + offset}, {name}.{len(instructions)}"
                raise illegal(error.rule, place, error.message) from None
            instructions.append(instruction)
            self.before = instruction
            self.count += 1
            self.leaves += len(instruction.inputs) + len(instruction.outputs)
            if self.count > MAX_INSTRUCTIONS or self.leaves > MAX_LEAVES:
                message = f"more than {MAX_INSTRUCTIONS} instructions, or {MAX_LEAVES} inputs and outputs"
                raise illegal("size", self.place, message)
        kind = at.get("kind") or _short.kind(instructions)
        self.edits.append(Edit(at["id"], kind, self.summary or "", tuple(instructions)))
        self.summary = None

    def fragment(self, line: str, edit: str, step: int) -> Instruction:
        value = _json.read(line, "", "wellformed")
        instruction = _fragments.read(value, self.before, self.names, edit, self.made)
        for output, name in enumerate(instruction.outputs):
            self.names[f"{edit}.{step}.{output}"] = name
        self.made += len(instruction.outputs)
        return instruction
