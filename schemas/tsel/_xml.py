"""A label's text as the nodes of its XML, and nothing else. The text is hostile: a model's, or from a strangers' file.

Refused before anything is built: more than the size limit, a document type, an entity, a processing instruction,
a comment, a CDATA section, nesting deeper than the format has, a node or an attribute that it does not know.
"""

from dataclasses import dataclass
from typing import Any, Final
from xml.parsers import expat

from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_TEXT, malformed

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
_EMPTY: Final = ("postproc", "supports", "motivates", "predicts")


@dataclass(frozen=True)
class Node:
    """A node that stands in the graph: its text, the summary in it, and the line where its text begins."""

    tag: str
    attributes: dict[str, str]
    text: str
    summary: str
    line: int


@dataclass(frozen=True)
class Document:
    """The attributes of `<graph>` and the nodes in it, in the order of the text."""

    attributes: dict[str, str]
    nodes: tuple[Node, ...]


def read(text: str | bytes) -> Document:
    """The nodes of a text.

    Raises:
        TselError: gate `parsed`.
    """
    if isinstance(text, str):
        if len(text) <= MAX_TEXT and not _json.sound(text):
            raise malformed("encoding", "text", "not UTF-8")
        text = text[: MAX_TEXT + 1].encode("utf-8", "replace")
    if not isinstance(text, bytes):
        raise malformed("type", "text", "a text is expected")
    if len(text) > MAX_TEXT:
        raise malformed("size", "text", f"longer than {MAX_TEXT} bytes")
    if b"\0" in text or text.startswith(b"\xef\xbb\xbf"):
        raise malformed("encoding", "text", "not UTF-8, or with a byte order mark or NUL in it")
    try:
        text.decode()
    except UnicodeDecodeError:
        raise malformed("encoding", "text", "not UTF-8") from None
    return _Reader().document(text)


class _Reader:
    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.path: list[str] = []
        self.graph: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        """Of the node that is open and stands in the graph."""
        self.text: list[str] = []
        self.summary: str | None = None
        self.line = 1
        self.nodes: list[Node] = []

    def document(self, text: bytes) -> Document:
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
        return Document(self.graph, tuple(self.nodes))

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
        allowed, given = _ATTRIBUTES[name], attributes.keys()
        if given != allowed and given | _OPTIONAL.get(name, set()) != allowed:
            raise malformed("attribute", self.place, f"<{name}> has the attributes {sorted(allowed)}")
        self.blank()
        if name == "graph":
            self.graph = attributes
        elif name == "summary":
            if self.summary is not None:
                raise malformed("node", self.place, "a second <summary>")
        else:
            self.attributes, self.line = attributes, self.parser.CurrentLineNumber
        self.path.append(name)

    def blank(self) -> None:
        """Between nodes, and before a summary, stands white space only."""
        if "".join(self.text).strip(" \t\r\n"):
            raise malformed("text", self.place, "text outside a node")
        self.text.clear()

    def end(self, name: str) -> None:
        self.path.pop()
        if name == "graph" or name in _EMPTY:
            self.blank()
        text = "".join(self.text)
        self.text.clear()
        if name == "summary":
            self.summary, self.line = text, self.parser.CurrentLineNumber
        elif name != "graph":
            self.nodes.append(Node(name, self.attributes, text, self.summary or "", self.line))
            self.summary = None
