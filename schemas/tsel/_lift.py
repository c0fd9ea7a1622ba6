"""From a trace's tree to a graph of edits: every instruction in exactly one edit, in its place."""

from typing import Any

from littledragon.schemas.graph import Edit, Graph, Instruction
from littledragon.schemas.tsel import _json, _maps, _values
from littledragon.schemas.tsel._cut import cut
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, illegal, malformed
from littledragon.schemas.tsel._lower import TVM
from littledragon.schemas.tsel._primitives import PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._tree import NAME, Budget, Leaf, items

_MAP_SLOTS = ("map", "map?")


def lift(tree: Leaf, version: str) -> Graph:
    """The graph of a trace: edits, their summaries left to be derived, and the pool of maps, and no explanation.

    Only what the graph cannot hold is refused here. Whether the trace keeps the rules, and is what the graph spells,
    tells `lower(graph) == tree`: the caller compares.

    Raises:
        TselError: gate `parsed` where the tree is no trace; gate `wellformed` where the graph cannot hold it.
    """
    if version != TVM:
        message = f"tvm_version is {version}, expected {TVM}: search anew, or replay it with the TVM that wrote it"
        raise illegal("version", "trace", message)
    lifter = _Lifter(version)
    instructions = lifter.instructions(tree)
    edits = [
        Edit(f"t{index}", kind, "", tuple(instructions[start:end]))
        for index, (start, end, kind) in enumerate(cut(instructions))
    ]
    return Graph(tuple(edits), lifter.maps, tvm=version)


def same(tree: Leaf, spelled: Leaf) -> None:
    """Whether a trace is what its graph spells.

    Raises:
        TselError: gate `wellformed`, rule `canonical`.
    """
    if tree != spelled:
        raise illegal("canonical", "trace", "names, decisions or types are not as TVM writes them")


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


def _decisions(leaf: Leaf) -> dict[int, Leaf]:
    decisions: dict[int, Leaf] = {}
    for entry in items(leaf, "decisions"):
        pair = items(entry, "decisions")
        if len(pair) != 2 or pair[0][0] not in ("IntImm:int32", "int"):
            raise malformed("trace", "decisions", "a decision is an index and a value")
        if pair[0][1] in decisions:
            raise illegal("decision", f"instruction {pair[0][1]}", "a second decision for one instruction")
        decisions[pair[0][1]] = pair[1]
    return decisions


class _Lifter:
    """Makes instructions of a graph from those of a trace: leaves to values, maps to the pool."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.here = 0
        self.kind = ""
        self.budget = Budget()
        self.names: set[str] = set()
        self.maps: dict[str, Any] = {}
        self.texts: dict[str, dict[str, str]] = {}
        """What stands for a map, by its text in the trace, which is compact or indented."""
        self.pool: dict[str, str] = {}
        """The id of a map by its value as JSON."""

    def instructions(self, tree: Leaf) -> list[Instruction]:
        parts = items(tree, "trace")
        if len(parts) != 2:
            raise malformed("trace", "trace", "a trace is a list of instructions and a list of decisions")
        entries = items(parts[0], "instructions")
        if len(entries) > MAX_INSTRUCTIONS:
            raise illegal("size", "trace", f"more than {MAX_INSTRUCTIONS} instructions")
        decisions = _decisions(parts[1])
        made: list[Instruction] = []
        for self.here, (tag, fields) in enumerate(entries):
            if tag != "array" or len(fields) != 4:
                raise malformed("trace", self.place, "an instruction has kind, inputs, attributes, outputs")
            (string, self.kind), (a, inputs), (b, attrs), (c, outputs) = fields
            if string != "str" or not a == b == c == "array":
                raise malformed("trace", self.place, "an instruction has kind, inputs, attributes, outputs")
            primitive = PRIMITIVES.get(self.kind)
            if primitive is None:
                raise illegal("kind", self.place, f"no schedule primitive is called {self.kind[:40]}")
            made.append(self._instruction(primitive, inputs, attrs, outputs, decisions.pop(self.here, None)))
        if decisions:
            raise illegal("decision", "trace", "a decision for an instruction that is not there")
        return made

    @property
    def place(self) -> str:
        return f"instruction {self.here} {self.kind}"

    def _instruction(
        self,
        primitive: Primitive,
        inputs: tuple[Leaf, ...],
        attrs: tuple[Leaf, ...],
        outputs: tuple[Leaf, ...],
        decision: Leaf | None,
    ) -> Instruction:
        self.budget.count(len(inputs) + len(attrs) + len(outputs) + 4)
        slots = primitive.inputs
        last = slots[-1] if slots and slots[-1].many else None
        given = []
        for index, (tag, value) in enumerate(inputs):
            if tag == "str" and value in self.names:
                given.append(value)
            else:
                given.append(self._input(tag, value, slots[index] if index < len(slots) else last))
        made = tuple([value for _, value in outputs])
        self.names.update(made)
        return Instruction(
            self.kind,
            tuple(given),
            tuple([self._attr(leaf, primitive, index) for index, leaf in enumerate(attrs)]),
            made,
            None if decision is None else self._decision(primitive, decision),
        )

    def _input(self, tag: str, value: Any, slot: Slot | None) -> Any:
        """An input that is no name."""
        if tag in ("array", "dict"):
            self.budget.take((tag, value))
        if tag == "array":
            values = [self._input(kind, inner, None) for kind, inner in value]
            return tuple(values) if slot is not None and (slot.type == "blocks" or slot.lists) else values
        if tag == "none":
            if slot is None:
                return None
            raise illegal("value", self.place, "an input that is null, which TVM writes and cannot read")
        if tag != "str":
            return _values.spell((tag, value), slot is None or slot.plain)
        if len(value) >= 2 and value[0] == value[-1] == '"':
            literal = value[1:-1]
            return {"str": literal} if NAME.fullmatch(literal) else literal
        if value[:1] == "{":
            return self._map(value)
        if value == "None":
            return None
        if NAME.fullmatch(value):
            return value
        raise illegal("reference", self.place, f"{value[:40]} is no name of an output")

    def _attr(self, leaf: Leaf, primitive: Primitive, index: int) -> Any:
        tag, value = leaf
        slot = primitive.attrs[index] if index < len(primitive.attrs) else None
        if tag == "IntImm:int32" and slot is not None and not slot.plain:
            return value
        if tag == "str":
            return self._map(value) if slot is not None and slot.type in _MAP_SLOTS else value
        if tag in ("array", "dict"):
            self.budget.take(leaf)
        return _values.spell(leaf, slot is not None and slot.plain)

    def _map(self, text: str) -> dict[str, str]:
        known = self.texts.get(text)
        if known is None:
            value = _maps.read(text, self.version, self.place)
            name = self.pool.setdefault(_json.write(value), f"m{len(self.maps)}")
            self.maps[name] = value
            known = self.texts[text] = {"map": name}
        return known

    def _decision(self, primitive: Primitive, leaf: Leaf) -> Any:
        tag, value = leaf
        self.budget.take(leaf)
        if primitive.decision == "tile" and tag == "array" and value:
            extent = 1
            for kind, factor in value:
                if kind != "int" or factor < 1:
                    raise illegal("tile", self.place, "a factor must be an integer of at least 1")
                extent *= factor
            return {"extent": extent, "factors": [factor for _, factor in value[:-1]]}
        if tag != "int":
            raise illegal("decision", self.place, "a decision must be an integer or the factors of a tile")
        return value
