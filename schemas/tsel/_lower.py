"""The rules of a well-formed graph, and the trace's tree that its edits spell.

One pass does both, so no rule can be forgotten on one way: a graph that came from a text and a graph that was
lifted from a trace go through the same function. What depends on the program (extents, blocks) is not known here;
compiler/traces.py compares that.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from littledragon.schemas.graph import Graph, Instruction
from littledragon.schemas.tsel import _json, _maps, _values
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, MAX_OUTPUTS, MAX_TRACE, illegal
from littledragon.schemas.tsel._primitives import ANNOTATION_RANGES, PRAGMAS, PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._tree import Leaf, array

TVM: Final = "0.25.0.post1"
"""The TVM whose traces `tsel/1` holds; another version's are refused."""

_LETTERS: Final = {"B": "b", "L": "l", "E": "v"}
_IDS: Final = {"evidence": "e", "analyses": "a", "maps": "m", "edits": "t", "effects": "p"}
_ENDS: Final = {"supports": ("e", "a"), "motivates": ("a", "t"), "predicts": ("t", "p")}
_PLACED: Final = ("ComputeAt", "ReverseComputeAt")
_KIND: Final = re.compile(r"[a-z][a-z_]{0,31}")


def lower(graph: Graph) -> Leaf:
    """The tree of a graph's trace.

    Raises:
        TselError: gate `wellformed`: the first rule that the graph breaks.
    """
    _structure(graph)
    state = _State(graph)
    for edit in graph.edits:
        for step, instruction in enumerate(edit.instructions):
            state.add(f"{edit.id}.{step}", instruction)
    if state.boundaries != 1:
        raise illegal("boundary", "trace", f"one EnterPostproc is expected, {state.boundaries} found")
    for name in graph.maps:
        if name not in state.used:
            raise illegal("map", name, "a map that no instruction uses")
    return array(array(*state.instructions), array(*state.decisions))


def _structure(graph: Graph) -> None:
    """Ids, edges, the map pool and the version."""
    if graph.tvm != TVM:
        raise illegal("version", "graph", f"tvm is {graph.tvm}, expected {TVM}")
    ids: set[str] = set()
    groups: dict[str, list[str]] = {"maps": list(graph.maps)}
    for name in ("evidence", "analyses", "edits", "effects"):
        groups[name] = [node.id for node in getattr(graph, name)]
    for name, members in groups.items():
        for member in members:
            if not re.fullmatch(rf"{_IDS[name]}\d{{1,6}}", member):
                raise illegal("id", member[:40], f"the id of one of {name} is {_IDS[name]} and a number")
            if member in ids:
                raise illegal("id", member, "an id that stands twice")
            ids.add(member)
    for edge in graph.edges:
        source, target = _ENDS[edge.kind]
        if edge.source not in ids or edge.target not in ids:
            raise illegal("edge", f"{edge.source[:40]} to {edge.target[:40]}", "an edge to a node that is not there")
        if edge.source[0] != source or edge.target[0] != target:
            raise illegal("edge", f"{edge.source} to {edge.target}", f"{edge.kind} joins {source} to {target}")
    if len(set(graph.edges)) != len(graph.edges):
        raise illegal("edge", "graph", "an edge that stands twice")
    distinct: dict[str, str] = {}
    for member, value in graph.maps.items():
        _maps.check(value, member)
        if (other := distinct.setdefault(_json.write(dict(sorted(value.items()))), member)) != member:
            raise illegal("map", member, f"the same map as {other}")
    if sum(len(edit.instructions) for edit in graph.edits) > MAX_INSTRUCTIONS:
        raise illegal("size", "graph", f"more than {MAX_INSTRUCTIONS} instructions")
    for edit in graph.edits:
        if not edit.instructions:
            raise illegal("edit", edit.id, "an edit without instructions")
        if not _KIND.fullmatch(edit.kind):
            raise illegal("edit", edit.id, "the kind of an edit is a word")


@dataclass
class _State:
    """What the instructions so far have defined."""

    graph: Graph
    names: dict[str, str] = field(default_factory=dict)
    """Reference to the trace's name (`t0.1.0` to `l3`); the name's letter is its type."""
    used: set[str] = field(default_factory=set)
    instructions: list[Leaf] = field(default_factory=list)
    decisions: list[Leaf] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """What the sampled variables stand for, by reference."""
    places: set[str] = field(default_factory=set)
    """Sampled locations. They may be no loop at all, and TVM dies where another primitive takes one."""
    boundaries: int = 0
    mapped: int = 0
    """Characters of all index maps: a short text may use a long map many times."""

    def add(self, place: str, instruction: Instruction) -> None:
        """Checks one instruction and appends its tree."""
        primitive = PRIMITIVES.get(instruction.kind)
        if primitive is None:
            raise illegal("kind", place, f"no schedule primitive is called {instruction.kind[:40]}")
        if max(len(instruction.inputs), len(instruction.attrs), len(instruction.outputs)) > MAX_OUTPUTS:
            raise illegal("size", place, f"more than {MAX_OUTPUTS} inputs, attributes or outputs")
        place = f"{place} {instruction.kind}"
        inputs = self._inputs(primitive, instruction, place)
        if instruction.kind not in _PLACED and self.places.intersection(
            v for v in instruction.inputs if isinstance(v, str)
        ):
            raise illegal("reference", place, f"a sampled location may only be an input of {' and '.join(_PLACED)}")
        if len(instruction.attrs) != len(primitive.attrs):
            raise illegal("arity", place, f"{len(primitive.attrs)} attributes are expected")
        attrs = [self._attr(slot, v, place) for slot, v in zip(primitive.attrs, instruction.attrs, strict=True)]
        self._rules(instruction, place)
        decision = _decision(primitive, instruction, place)
        outputs = self._outputs(primitive, instruction, place)
        if decision is not None:
            self.decisions.append(array(("IntImm:int32", len(self.instructions)), decision))
            self._remember(primitive, place.split(" ", maxsplit=1)[0], attrs, decision)
        self.instructions.append(array(("str", instruction.kind), array(*inputs), array(*attrs), array(*outputs)))
        self.boundaries += instruction.kind == "EnterPostproc"

    def _remember(self, primitive: Primitive, reference: str, attrs: list[Leaf], decision: Leaf) -> None:
        leaves: tuple[Leaf, ...] = decision[1] if primitive.decision == "tile" else ()
        if primitive.decision == "index":
            leaves = (attrs[0][1][decision[1]],)
        self.numbers.update((f"{reference}.{i}", number) for i, (_, number) in enumerate(leaves))

    def _inputs(self, primitive: Primitive, instruction: Instruction, place: str) -> list[Leaf]:
        slots = list(primitive.inputs)
        if slots and slots[-1].many and len(instruction.inputs) >= len(slots):
            slots += [slots[-1]] * (len(instruction.inputs) - len(slots))
        if len(instruction.inputs) != len(slots):
            raise illegal("arity", place, f"{len(primitive.inputs)} inputs are expected")
        loops = [v for slot, v in zip(slots, instruction.inputs, strict=True) if slot.many and slot.type == "L"]
        if len({str(v) for v in loops}) != len(loops):
            raise illegal("reference", place, "a loop that stands twice")
        return [self._input(slot, v, place) for slot, v in zip(slots, instruction.inputs, strict=True)]

    def _input(self, slot: Slot, value: Any, place: str) -> Leaf:
        if slot.type in ("B", "L", "BL"):
            return self._reference(value, slot.type, slot, place)
        if slot.type == "blocks":
            return array(*(self._reference(v, "B", slot, place) for v in _list(slot, value, place)))
        if slot.type == "map":
            return self._map(slot, value, place, indent=None)
        if slot.type in ("factor", "value"):
            if value is None and slot.type == "factor":
                return ("str", "None")
            if isinstance(value, str) and _maps.REFERENCE.fullmatch(value):
                return self._reference(value, "E", slot, place)
            if slot.type == "value":
                if isinstance(value, list) and _refers(value):
                    raise illegal("reference", place, f"{slot.name}: a list holds no references")
                return _quoted(_values.mean(value, slot.plain, place))
        leaf = _typed(slot, value, place)
        return _quoted(leaf) if leaf[0] == "str" else leaf

    def _attr(self, slot: Slot, value: Any, place: str) -> Leaf:
        if slot.type == "map?" and value is None:
            return ("none", None)
        if slot.type in ("map", "map?"):
            return self._map(slot, value, place, indent=2)
        return _typed(slot, value, place)

    def _reference(self, value: Any, letters: str, slot: Slot, place: str) -> Leaf:
        if not isinstance(value, str) or not _maps.REFERENCE.fullmatch(value):
            raise illegal("reference", place, f"{slot.name} must be a reference such as t0.1.0")
        name = self.names.get(value)
        if name is None:
            raise illegal("reference", place, f"{value} is not defined before this instruction")
        if name[0] not in [_LETTERS[letter] for letter in letters]:
            raise illegal("reference", place, f"{slot.name}: {value} has not the type that is needed ({letters})")
        return ("str", name)

    def _map(self, slot: Slot, value: Any, place: str, indent: int | None) -> Leaf:
        name = value.get("map") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(name, str) or name not in self.graph.maps:
            raise illegal("map", place, f'{slot.name} must be {{"map": "m…"}}, naming a map of the graph')
        self.used.add(name)

        def resolve(reference: str) -> str:
            return str(self._reference(reference, "E", slot, place)[1])

        text = _maps.write(self.graph.maps[name], resolve, self.graph.tvm, place, indent)
        self.mapped += len(text)
        if self.mapped > MAX_TRACE:
            raise illegal("size", place, f"the index maps of the trace are longer than {MAX_TRACE} characters")
        return ("str", text)

    def _outputs(self, primitive: Primitive, instruction: Instruction, place: str) -> list[Leaf]:
        signature = primitive.outputs
        letter, count = signature[:1], len(signature)
        if signature.endswith("*"):
            count = len(instruction.outputs)
        elif signature.endswith("="):
            count = _number(instruction.attrs[0]) if letter == "E" else len(instruction.inputs) - 1
        if instruction.outputs != letter * count:
            raise illegal("outputs", place, f"the output signature must be {letter * min(count, 64) or 'empty'}")
        leaves: list[Leaf] = []
        reference = place.split(" ", maxsplit=1)[0]
        for i, kind in enumerate(instruction.outputs):
            name = f"{_LETTERS[kind]}{len(self.names)}"
            self.names[f"{reference}.{i}"] = name
            leaves.append(("str", name))
            if instruction.kind == "SampleComputeLocation":
                self.places.add(f"{reference}.{i}")
        return leaves

    def _rules(self, instruction: Instruction, place: str) -> None:
        """Rules that join several parts of one instruction."""
        inputs, attrs = instruction.inputs, instruction.attrs
        if instruction.kind in ("Split", "LoopPartition") and inputs[1:].count(None) > 1:
            raise illegal("factor", place, "at most one factor is left open")
        if instruction.kind == "SampleCategorical" and len(attrs[0]) != len(attrs[1]):
            raise illegal("probs", place, "as many probabilities as candidates are expected")
        if instruction.kind == "SamplePerfectTile" and _number(attrs[1]) == 0:
            raise illegal("range", place, "max_innermost_factor is -1 or at least 1")
        if instruction.kind == "SamplePartitionedTile" and _number(attrs[1]) > _number(attrs[0]):
            raise illegal("range", place, "partition_pos is at most n")
        if instruction.kind == "Annotate":
            if attrs[0].lower().startswith("pragma_") and attrs[0] not in PRAGMAS:
                raise illegal("pragma", place, f"{attrs[0]} is no pragma that a schedule may set")
            value = next(iter(inputs[1].values())) if isinstance(inputs[1], dict) and inputs[1] else inputs[1]
            if isinstance(value, str):
                value = self.numbers.get(value, value)
            low, high = ANNOTATION_RANGES.get(attrs[0], (-(1 << 31), 1 << 31))
            if value is None or (isinstance(value, (int, float)) and not low <= value <= high):
                raise illegal("range", place, f"{attrs[0]} lies from {low} to {high}")


def _number(value: Any) -> int:
    """The number of an integer slot that has been checked, whether it is plain or tagged."""
    return int(next(iter(value.values())) if isinstance(value, dict) else value)


def _list(slot: Slot, value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_OUTPUTS:
        raise illegal("type", place, f"{slot.name} must be a list of at most {MAX_OUTPUTS}")
    return value


def _refers(value: Any) -> bool:
    """Whether a string in a list looks like a reference; one that is meant as it stands is spelled out."""
    if isinstance(value, list):
        return any(_refers(item) for item in value)
    return isinstance(value, str) and _maps.REFERENCE.fullmatch(value) is not None


def _quoted(leaf: Leaf) -> Leaf:
    """Strings among inputs carry quotes in a trace; in maps they do not."""
    if leaf[0] == "str":
        return ("str", f'"{leaf[1]}"')
    return ("array", tuple(_quoted(item) for item in leaf[1])) if leaf[0] == "array" else leaf


def _typed(slot: Slot, value: Any, place: str) -> Leaf:
    """The leaf of an integer, flag, string or list, checked against its slot."""
    leaf = _values.mean(value, slot.plain, place)
    tag, inner = leaf
    if slot.type in ("ints", "floats"):
        _list(slot, value, place)
        if slot.type == "floats":
            fits = all(t.startswith(("FloatImm:", "float")) and v >= 0 for t, v in inner)
            fits = fits and 0 < math.fsum(v for _, v in inner) <= 1.001
        else:
            fits = bool(inner) and all(_integer(t) and slot.low <= v <= slot.high for t, v in inner)
    elif slot.type == "str":
        fits = tag == "str" and (slot.pattern is None or slot.pattern.fullmatch(inner) is not None)
    elif slot.type == "flag":
        fits = (_integer(tag) or tag in ("bool", "IntImm:bool")) and inner in (0, 1)
    else:
        fits = _integer(tag) and slot.low <= inner <= slot.high
    if not fits:
        detail = f" from {slot.low} to {slot.high}" if slot.type in ("int", "ints", "factor") else ""
        raise illegal("range", place, f"{slot.name}: {str(value)[:60]} is not of type {slot.type}{detail}")
    return leaf


def _integer(tag: str) -> bool:
    return tag == "int" or (tag.startswith("IntImm:") and tag != "IntImm:bool")


def _decision(primitive: Primitive, instruction: Instruction, place: str) -> Leaf | None:
    """The decision's leaf; a tile's last factor follows from its extent."""
    decision = instruction.decision
    if primitive.decision is None:
        if decision is not None:
            raise illegal("decision", place, "this kind takes no decision")
        return None
    if decision is None:
        raise illegal("decision", place, "the decision is missing")
    if primitive.decision == "tile":
        return array(*(("int", factor) for factor in tile(instruction, place)))
    high = len(instruction.attrs[0]) - 1 if primitive.decision == "index" else 1 << 10
    low = 0 if primitive.decision == "index" else -2
    if type(decision) is not int or not low <= decision <= high:
        raise illegal("decision", place, f"the decision must be an integer from {low} to {high}")
    return ("int", decision)


def tile(instruction: Instruction, place: str) -> list[int]:
    """All factors of a sampled tile, the last one derived.

    Raises:
        TselError: gate `wellformed`, rule `tile`.
    """
    decision = instruction.decision
    if not isinstance(decision, dict) or set(decision) != {"extent", "factors"}:
        raise illegal("tile", place, "a tile's decision holds extent and factors")
    extent, factors = decision["extent"], decision["factors"]
    if type(extent) is not int or not 1 <= extent < 1 << 31:
        raise illegal("tile", place, "the extent must be an integer of at least 1")
    n = _number(instruction.attrs[0])
    if not isinstance(factors, list) or len(factors) != n - 1:
        raise illegal("tile", place, f"{n - 1} factors are expected, the last of {n} follows from the extent")
    if not all(type(factor) is int and factor >= 1 for factor in factors):
        raise illegal("tile", place, "a factor must be an integer of at least 1")
    product = math.prod(factors)
    if extent % product:
        raise illegal("tile", place, f"the factors {' * '.join(map(str, factors))} do not divide the extent {extent}")
    full = [*factors, extent // product]
    if instruction.kind == "SamplePerfectTile":
        limit = _number(instruction.attrs[1])
        if limit != -1 and full[-1] > limit:
            raise illegal("tile", place, f"the last factor is {full[-1]}, at most {limit} is allowed")
    else:
        position, inner = _number(instruction.attrs[1]), _number(instruction.attrs[2])
        if math.prod(full[position:]) % inner:
            raise illegal("tile", place, f"the inner part is not a multiple of {inner}")
    return full
