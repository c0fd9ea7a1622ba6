"""From a trace's tree to a graph of edits.

Every instruction goes into exactly one edit and keeps its place, so the edits in order are the trace. Look-ups
(GetSBlock, GetLoops, …) and sampled numbers go with the edit that uses them, which begins at the next instruction
that changes the program. A tile is a SamplePerfectTile with the Split that consumes it. All edits after the
boundary are of kind `postproc`.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from littledragon.schemas.graph import Edit, Graph, Instruction
from littledragon.schemas.tsel import _json, _maps, _values
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, MAX_OUTPUTS, MAX_TRACE, illegal, malformed
from littledragon.schemas.tsel._lower import TVM, lower
from littledragon.schemas.tsel._maps import REFERENCE
from littledragon.schemas.tsel._primitives import PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._summaries import Names, summary
from littledragon.schemas.tsel._tree import Leaf, items, write

_AHEAD: Final = ("lookup", "sample")
"""Kinds of instructions that wait for the one that uses them; SampleComputeLocation does too."""
_COOPERATIVE: Final = "meta_schedule.cooperative_fetch"

_GOES_ON: Final[dict[str, dict[str, str]]] = {
    "split": {
        "Split": "split",
        "Reorder": "split",
        "Blockize": "tensorize",
        "Bind": "bind",
        "Vectorize": "bind",
        "Parallel": "bind",
    },
    "fuse": {
        "Fuse": "fuse",
        "Split": "fuse",
        "Bind": "bind",
        "Parallel": "bind",
        "Vectorize": "bind",
        "Unroll": "bind",
    },
    "bind": {"Fuse": "bind", "Bind": "bind", "Parallel": "bind", "Vectorize": "bind", "Unroll": "bind"},
    "inline": {"ComputeInline": "inline", "ReverseComputeInline": "inline"},
    "layout": {"ReIndex": "layout", "TransformLayout": "layout", "TransformBlockLayout": "layout"},
    "cache": {"ComputeAt": "cache", "ReverseComputeAt": "cache", "Fuse": "cache", "SetScope": "cache"},
    "compute_at": {"SetScope": "compute_at"},
    "tensorize": {"Tensorize": "tensorize"},
}
"""What follows an edit's kind and still belongs to it, and the kind that the edit then has."""

_MAX_EDIT: Final = 200
"""Instructions of an edit that takes no more."""
_SAME: Final = (
    *(("cache", "ComputeAt"), ("cache", "ReverseComputeAt"), ("cache", "Fuse"), ("cache", "SetScope")),
    *(("fuse", "Split"), ("fuse", "Reorder"), ("split", "Reorder")),
)
"""What belongs to the edit only where it goes on with a block or loop of that edit."""


@dataclass(frozen=True)
class _Raw:
    """An instruction as the trace has it."""

    kind: str
    inputs: tuple[Leaf, ...]
    attrs: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    decision: Leaf | None


def lift(tree: Leaf, version: str) -> Graph:
    """The graph of a trace: edits with deterministic summaries and the pool of maps, and no explanation.

    Raises:
        TselError: gate `parsed` where the tree is no trace; gate `wellformed` where it breaks a rule or is not
            what its graph spells (a trace numbered in another way, a repeated decision).
    """
    if version != TVM:
        raise illegal("version", "trace", f"tvm_version is {version}, expected {TVM}")
    raw = _instructions(tree)
    lifter = _Lifter(version)
    edits = tuple(lifter.edit(index, kind, raw[start:end]) for index, (start, end, kind) in enumerate(_cut(raw)))
    graph = Graph(edits, lifter.maps, tvm=version)
    spelled = write(lower(graph), version)
    if len(spelled) > MAX_TRACE:
        raise illegal("size", "trace", f"longer than {MAX_TRACE} characters where nothing is shared")
    if spelled != write(tree, version):
        raise illegal("canonical", "trace", "names, decisions or types are not as TVM writes them")
    names = Names()
    summarised = (replace(edit, summary=summary(edit, names)) for edit in edits)
    return replace(graph, edits=tuple(summarised))


def _instructions(tree: Leaf) -> list[_Raw]:
    parts = items(tree, "trace")
    if len(parts) != 2:
        raise malformed("trace", "trace", "a trace is a list of instructions and a list of decisions")
    decisions: dict[int, Leaf] = {}
    for entry in items(parts[1], "decisions"):
        pair = items(entry, "decisions")
        if len(pair) != 2 or pair[0][0] not in ("IntImm:int32", "int"):
            raise malformed("trace", "decisions", "a decision is an index and a value")
        if pair[0][1] in decisions:
            raise illegal("decision", f"instruction {pair[0][1]}", "a second decision for one instruction")
        decisions[pair[0][1]] = pair[1]
    entries = items(parts[0], "instructions")
    if len(entries) > MAX_INSTRUCTIONS:
        raise illegal("size", "trace", f"more than {MAX_INSTRUCTIONS} instructions")
    raw = []
    for index, entry in enumerate(entries):
        fields = items(entry, f"instruction {index}")
        if len(fields) != 4 or fields[0][0] != "str":
            raise malformed("trace", f"instruction {index}", "an instruction has kind, inputs, attributes, outputs")
        inputs, attrs, outputs = (items(part, f"instruction {index}") for part in fields[1:])
        if any(tag != "str" for tag, _ in outputs) or len(outputs) > MAX_OUTPUTS:
            raise malformed("trace", f"instruction {index}", "outputs are names")
        names = tuple(name for _, name in outputs)
        raw.append(_Raw(fields[0][1], inputs, attrs, names, decisions.pop(index, None)))
        if fields[0][1] not in PRIMITIVES:
            raise illegal("kind", f"instruction {index}", f"no schedule primitive is called {fields[0][1][:40]}")
    if decisions:
        raise illegal("decision", "trace", "a decision for an instruction that is not there")
    return raw


def kinds(tree: Leaf) -> list[str]:
    """The kinds of a trace's instructions.

    Raises:
        TselError: gate `parsed`: the tree is no trace.
    """
    parts = items(tree, "trace")
    names = [items(entry, "instructions")[:1] for entry in items(parts[0], "instructions")] if parts else []
    if not all(name and name[0][0] == "str" for name in names):
        raise malformed("trace", "instructions", "an instruction begins with its kind")
    return [str(name[0][1]) for name in names]


def _cut(raw: list[_Raw]) -> list[tuple[int, int, str]]:
    """The edits as (start, end, kind), tiling the trace."""
    edits: list[tuple[int, int, str]] = []
    start = 0
    after = False
    for index, instruction in enumerate(raw):
        primitive = PRIMITIVES[instruction.kind]
        if primitive.edit in _AHEAD or instruction.kind == "SampleComputeLocation":
            continue
        if edits and (unused := _unused(raw[start : index + 1])):
            start += unused
            edits[-1] = (edits[-1][0], start, edits[-1][2])
        kind = _goes_on(edits[-1][2], raw[edits[-1][0] : start], raw[start : index + 1]) if edits else None
        if kind is None:
            edits.append((start, index + 1, primitive.edit))
        else:
            edits[-1] = (edits[-1][0], index + 1, kind)
        start = index + 1
    if start < len(raw):
        if edits:
            edits[-1] = (edits[-1][0], len(raw), edits[-1][2])
        else:
            edits.append((0, len(raw), "lookup"))
    marked = []
    for begin, end, kind in edits:
        after = after or raw[end - 1].kind == "EnterPostproc" or raw[begin].kind == "EnterPostproc"
        marked.append((begin, end, "postproc" if after else kind))
    return marked


def _unused(more: list[_Raw]) -> int:
    """How many look-ups at the front the last instruction does not use: they belong to the edit before."""
    wanted = set(_strings(more[-1].inputs))
    first = len(more) - 1
    for index in range(len(more) - 2, -1, -1):
        if wanted.intersection(more[index].outputs):
            wanted.update(_strings(more[index].inputs))
            first = index
    return first


def _strings(leaves: tuple[Leaf, ...]) -> list[str]:
    return [s for tag, v in leaves for s in (_strings(v) if tag == "array" else [v] if tag == "str" else [])]


def _goes_on(kind: str, edit: list[_Raw], more: list[_Raw]) -> str | None:
    """The kind of the edit with `more` added, or None where `more` begins a new one."""
    last = more[-1]
    if len(edit) > _MAX_EDIT:
        return None
    if kind == "tile":
        tile = next(i for i in edit if i.kind.startswith("Sample"))
        consumed = tuple(("str", name) for name in tile.outputs)
        return "tile" if last.kind == "Split" and last.inputs[1:] == consumed and len(more) == 1 else None
    if last.kind in ("Annotate", "Unannotate"):
        return _annotation(kind, edit, last)
    if kind == "annotate" and last.kind in ("Tensorize", "Split") and edit[-1].kind == "Unannotate":
        return "tensorize" if last.kind == "Tensorize" else "split"
    if (kind, last.kind) in _SAME:
        known = _touched(edit)
        found = [look for look in more[:-1] if known.intersection(_strings(look.inputs))]
        if not _touched([*edit, *found]).intersection(_strings(last.inputs)):
            return None
    return _GOES_ON.get(kind, {}).get(last.kind)


def _touched(edit: list[_Raw]) -> set[str]:
    """The blocks and loops that these instructions made or used."""
    names = {name for i in edit for name in (*i.outputs, *(value for tag, value in i.inputs if tag == "str"))}
    return {name for name in names if name[:1] in ("b", "l")}


def _annotation(kind: str, edit: list[_Raw], last: _Raw) -> str | None:
    key = last.attrs[0][1] if last.attrs else ""
    if not _touched(edit).intersection(_strings(last.inputs[:1])):
        return None
    if kind in ("annotate", "reduction"):
        return kind
    if kind in ("bind", "fuse") and str(key).startswith("pragma_"):
        return kind
    if kind in ("cache", "fuse") and key == _COOPERATIVE:
        return "cache"
    if kind == "tensorize" and (str(key).startswith("meta_schedule.auto_tensorize") or key == "warp_execution"):
        return kind
    return None


class _Lifter:
    """Makes edits of instructions: names to references, leaves to values, maps to the pool."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.references: dict[str, str] = {}
        self.maps: dict[str, Any] = {}
        self.texts: dict[str, str] = {}
        """The id of a map by its text in the trace, which is compact or indented."""
        self.pool: dict[str, str] = {}
        """The id of a map by its value as JSON."""

    def edit(self, index: int, kind: str, raw: list[_Raw]) -> Edit:
        name = f"t{index}"
        instructions = []
        for step, instruction in enumerate(raw):
            place = f"{name}.{step} {instruction.kind}"
            instructions.append(self._instruction(instruction, place))
            for i, output in enumerate(instruction.outputs):
                self.references[output] = f"{name}.{step}.{i}"
        return Edit(name, kind, "", tuple(instructions))

    def _instruction(self, raw: _Raw, place: str) -> Instruction:
        primitive = PRIMITIVES[raw.kind]
        slots = _slots(primitive, len(raw.inputs))
        inputs = tuple(self._input(leaf, slot, place) for leaf, slot in zip(raw.inputs, slots, strict=True))
        attrs = tuple(self._attr(leaf, primitive, i, place) for i, leaf in enumerate(raw.attrs))
        outputs = "".join({"b": "B", "l": "L", "v": "E"}.get(name[:1], "?") for name in raw.outputs)
        return Instruction(raw.kind, inputs, attrs, outputs, _decision(primitive, raw.decision, place))

    def _input(self, leaf: Leaf, slot: Slot | None, place: str) -> Any:
        tag, value = leaf
        if tag == "array":
            return [self._input(item, None, place) for item in value]
        if tag == "none":
            raise illegal("value", place, "an input that is null")
        if tag != "str":
            return _values.spell(leaf, slot is None or slot.plain)
        if value[:1] == "{" and value[-1:] == "}":
            return self._map(value, place)
        if len(value) >= 2 and value[0] == value[-1] == '"':
            literal = value[1:-1]
            return {"str": literal} if REFERENCE.fullmatch(literal) else literal
        if value == "None":
            return None
        if value not in self.references:
            raise illegal("reference", place, f"{value[:40]} is not defined before this instruction")
        return self.references[value]

    def _attr(self, leaf: Leaf, primitive: Primitive, index: int, place: str) -> Any:
        slot = primitive.attrs[index] if index < len(primitive.attrs) else None
        if slot is not None and slot.type in ("map", "map?") and leaf[0] == "str":
            return self._map(leaf[1], place)
        return _values.spell(leaf, slot is not None and slot.plain)

    def _map(self, text: str, place: str) -> dict[str, str]:
        if text not in self.texts:
            value = _maps.read(text, self.references.get, self.version, place)
            self.texts[text] = self.pool.setdefault(_json.write(value), f"m{len(self.maps)}")
            self.maps[self.texts[text]] = value
        return {"map": self.texts[text]}


def _slots(primitive: Primitive, count: int) -> list[Slot | None]:
    """The slot of each input; None where there are more inputs than slots."""
    slots: list[Slot | None] = list(primitive.inputs[:count])
    rest = primitive.inputs[-1] if primitive.inputs and primitive.inputs[-1].many else None
    return slots + [rest] * (count - len(slots))


def _decision(primitive: Primitive, leaf: Leaf | None, place: str) -> Any:
    if leaf is None:
        return None
    tag, value = leaf
    if primitive.decision == "tile" and tag == "array" and value:
        if not all(item[0] == "int" and item[1] >= 1 for item in value):
            raise illegal("tile", place, "a factor must be an integer of at least 1")
        extent = 1
        for _, factor in value:
            extent *= factor
        return {"extent": extent, "factors": [factor for _, factor in value[:-1]]}
    if tag != "int":
        raise illegal("decision", place, "a decision must be an integer or the factors of a tile")
    return value
