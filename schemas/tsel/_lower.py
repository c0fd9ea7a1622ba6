"""The rules of a well-formed graph, and the trace's tree that its edits spell.

One pass does both, so no rule can be forgotten on one way: a graph that came from a text and a graph that was
lifted from a trace go through the same function. What depends on the program (extents, blocks) is not known here;
compiler/traces.py compares that.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from littledragon.schemas.graph import Graph, Instruction
from littledragon.schemas.tsel import _json, _maps, _values
from littledragon.schemas.tsel._error import MAX_INSTRUCTIONS, MAX_LEAVES, MAX_OUTPUTS, MAX_TRACE, TselError, illegal
from littledragon.schemas.tsel._primitives import ANNOTATION_RANGES, NAMED, PRAGMAS, PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._slots import listed, number, tile, typed, wrong
from littledragon.schemas.tsel._tree import LETTERS, NAME, Budget, Leaf, write

TVM: Final = "0.25.0.post1"
"""The TVM whose traces `tsel/1` holds; another version's are refused."""
RULES: Final = {"llvm": 1, "cuda": 1, "cuda-tensorcore": 1}
"""The rule sets whose post-processing may be derived, and the version of what they do; see compiler/rules.py."""

_TYPES: Final = {"B": "b", "L": "l", "BL": "bl", "blocks": "b"}
"""The letters of the names that a slot takes; all other slots that take names take sampled numbers."""
_IDS: Final = {"evidence": "e", "analyses": "a", "maps": "m", "edits": "t", "effects": "p"}
_ENDS: Final = {"supports": ("e", "a"), "motivates": ("a", "t"), "predicts": ("t", "p")}
_PLACED: Final = ("ComputeAt", "ReverseComputeAt")
_DEEP: Final = 8
_MANY: Final = 10_000
_LONG: Final = 1 << 18
"""Leaves, and characters of maps, of graphs so large that the length of their traces must be looked at: a run of
names or a map is a short text for much."""
_KIND: Final = re.compile(r"[a-z][a-z_]{0,31}")
_ID: Final = re.compile(r"[eamtp][0-9]{1,6}")


def lower(graph: Graph) -> Leaf:
    """The tree of a graph's trace; where post-processing is derived, of what comes before the boundary.

    Raises:
        TselError: gate `wellformed`: the first rule that the graph breaks.
    """
    _structure(graph)
    state = _State(graph)
    for edit in graph.edits:
        for step, instruction in enumerate(edit.instructions):
            try:
                state.add(instruction)
            except TselError as error:
                raise illegal(error.rule, f"{edit.id}.{step} {instruction.kind[:40]}", error.message) from None
    allowed = 0 if graph.postproc else 1
    if state.boundaries > allowed:
        raise illegal("boundary", "trace", f"at most {allowed} EnterPostproc is expected, {state.boundaries} found")
    for name in graph.maps:
        if name not in state.used:
            raise illegal("map", name, "a map that no instruction uses")
    tree = ("array", (("array", tuple(state.instructions)), ("array", tuple(state.decisions))))
    many = len(state.instructions) > 1000 or state.budget.left < MAX_LEAVES - _MANY or state.mapped > _LONG
    if many and not _fits(tree, graph.tvm):
        raise illegal("size", "graph", f"its trace is longer than {MAX_TRACE} characters, or has too many leaves")
    return tree


def _fits(tree: Leaf, version: str) -> bool:
    """Whether a tree can be written as a trace."""
    try:
        return len(write(tree, version)) <= MAX_TRACE
    except TselError:
        return False


def _structure(graph: Graph) -> None:
    """Ids, edges, the map pool, the rules of derived post-processing and the version."""
    if graph.tvm != TVM:
        raise illegal("version", "graph", f"tvm is {graph.tvm}, expected {TVM}: encode the trace anew with that TVM")
    if graph.postproc is not None and RULES.get(graph.postproc.rules) != graph.postproc.version:
        known = ", ".join(f"{name} {version}" for name, version in RULES.items())
        raise illegal(
            "rules",
            "postproc",
            f"post-processing of {graph.postproc.rules[:40]} {graph.postproc.version} is not known, only {known}: "
            "encode the whole trace",
        )
    ids: set[str] = set()
    groups: dict[str, list[str]] = {"maps": list(graph.maps)}
    for name in ("evidence", "analyses", "edits", "effects"):
        groups[name] = [node.id for node in getattr(graph, name)]
    for name, members in groups.items():
        letter = _IDS[name]
        for member in members:
            if member[:1] != letter or not _ID.fullmatch(member):
                raise illegal("id", member[:40], f"the id of one of {name} is {letter} and a number")
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
    if sum([len(edit.instructions) for edit in graph.edits]) > MAX_INSTRUCTIONS:
        raise illegal("size", "graph", f"more than {MAX_INSTRUCTIONS} instructions")
    for edit in graph.edits:
        if not edit.instructions:
            raise illegal("edit", edit.id, "an edit without instructions")
        if not _KIND.fullmatch(edit.kind):
            raise illegal("edit", edit.id, "the kind of an edit is a word")


_BLOCK: Final = Slot("blocks", "B")
_ANY: Final = -1
_FACTORS: Final = -2
_NOTHING: Final[tuple[Leaf, ...]] = ()


@dataclass(frozen=True, slots=True)
class _Plan:
    """A row of the table of primitives as `_State` needs it: looked up once for each instruction."""

    kind: Leaf
    primitive: Primitive
    slots: tuple[Slot, ...]
    letters: tuple[str, ...]
    """Of the names that each input takes."""
    many: bool
    distinct: bool
    attrs: tuple[Slot, ...]
    letter: str
    """Of the outputs; empty where there are none."""
    count: int
    rule: "Callable[[_State, tuple[Any, ...], tuple[Any, ...]], None] | None"


class _State:
    """What the instructions so far have defined."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.defined: dict[str, Leaf] = {}
        """The leaves of outputs by name; the name's letter is the type."""
        self.used: set[str] = set()
        self.instructions: list[Leaf] = []
        self.decisions: list[Leaf] = []
        self.numbers: dict[str, int] = {}
        """What the sampled variables stand for."""
        self.places: set[str] = set()
        """Sampled locations. They may be no loop at all, and TVM dies where another primitive takes one."""
        self.boundaries = 0
        self.budget = Budget()
        self.mapped = 0
        """Characters of all index maps: a short text may use a long map many times."""

    def add(self, instruction: Instruction) -> None:
        """Checks one instruction and appends its tree."""
        kind, inputs, attrs, outputs, decision = instruction
        plan = _PLANS.get(kind)
        if plan is None:
            raise wrong("kind", f"no schedule primitive is called {kind[:40]}")
        if len(inputs) > MAX_OUTPUTS or len(attrs) > MAX_OUTPUTS or len(outputs) > MAX_OUTPUTS:
            raise wrong("size", f"more than {MAX_OUTPUTS} inputs, attributes or outputs")
        given = self._inputs(plan, inputs)
        if self.places and kind not in _PLACED and self.places.intersection([v for v in inputs if type(v) is str]):
            raise wrong("reference", f"a sampled location may only be an input of {' and '.join(_PLACED)}")
        if len(attrs) != len(plan.attrs):
            raise wrong("arity", f"{len(plan.attrs)} attributes are expected")
        fixed = tuple([self._attr(slot, value) for slot, value in zip(plan.attrs, attrs, strict=True)])
        if plan.rule is not None:
            plan.rule(self, inputs, attrs)
        if plan.primitive.decision is not None or decision is not None:
            self._decide(plan.primitive, instruction, fixed)
        made = self._outputs(plan, instruction) if outputs or plan.letter else _NOTHING
        self.budget.count(len(inputs) + len(attrs) + len(outputs) + 4)
        self.instructions.append(("array", (plan.kind, ("array", tuple(given)), ("array", fixed), ("array", made))))

    def _inputs(self, plan: _Plan, inputs: tuple[Any, ...]) -> list[Leaf]:
        slots, letters = plan.slots, plan.letters
        if len(inputs) != len(slots):
            if not plan.many or len(inputs) < len(slots) - slots[-1].empty:
                raise wrong("arity", f"{len(slots)} inputs are expected")
            more = len(inputs) - len(slots) + 1
            slots, letters = slots[:-1] + slots[-1:] * more, letters[:-1] + letters[-1:] * more
        leaves: list[Leaf] = []
        defined = self.defined
        for value, accepted, slot in zip(inputs, letters, slots, strict=True):
            if type(value) is str and value in defined and value[0] in accepted:
                leaves.append(defined[value])
            else:
                leaves.append(self._input(slot, value))
        if plan.distinct and len(set(inputs)) < len(inputs):
            raise wrong("reference", "a loop that stands twice")
        return leaves

    def _input(self, slot: Slot, value: Any) -> Leaf:
        if slot.lists and isinstance(value, tuple) and value:
            return ("array", tuple([self._reference(v, _BLOCK) for v in listed(slot, value)]))
        if slot.type in ("B", "L", "BL"):
            return self._reference(value, slot)
        if slot.type == "blocks":
            return ("array", tuple([self._reference(v, slot) for v in listed(slot, value)]))
        if slot.type == "map":
            return self._map(slot, value, indent=None)
        if slot.type == "factor":
            if value is None:
                return ("str", "None")
            if type(value) is int and slot.low <= value <= slot.high:
                return ("IntImm:int32", value)
            if type(value) is str:
                return self._reference(value, slot)
        elif slot.type == "value":
            if type(value) is int and -(1 << 31) <= value < 1 << 31:
                return ("IntImm:int32", value)
            leaf = self._given(slot, value, slot.plain, 0)
            self.budget.take(leaf)
            return leaf
        leaf = typed(slot, value)
        return ("str", f'"{leaf[1]}"') if leaf[0] == "str" else leaf

    def _given(self, slot: Slot, value: Any, plain: bool, depth: int) -> Leaf:
        """An annotation's value. Texts among inputs carry quotes in a trace, also in lists, but not in maps."""
        if type(value) is str and NAME.fullmatch(value):
            return self._reference(value, slot)
        if type(value) is list:
            if depth > _DEEP:
                raise wrong("value", f"a value nested deeper than {_DEEP}")
            return ("array", tuple([self._given(slot, item, True, depth + 1) for item in value]))
        leaf = _values.mean(value, plain, "")
        return ("str", f'"{leaf[1]}"') if leaf[0] == "str" else leaf

    def _attr(self, slot: Slot, value: Any) -> Leaf:
        kind, given = slot.type, type(value)
        if given is int and kind == "int" and not slot.plain and slot.low <= value <= slot.high:
            return ("IntImm:int32", value)
        if given is int and kind == "flag" and 0 <= value <= 1:
            return ("int" if slot.plain else "IntImm:int32", value)
        if given is str and kind == "str" and value.isascii() and slot.pattern and slot.pattern.fullmatch(value):
            return ("str", value)
        if given is bool and kind == "flag":
            return ("bool", value) if slot.plain else ("IntImm:bool", int(value))
        if kind == "map?" and value is None:
            return ("none", None)
        if kind in ("map", "map?"):
            return self._map(slot, value, indent=2)
        return typed(slot, value)

    def _reference(self, value: Any, slot: Slot) -> Leaf:
        letters = _TYPES.get(slot.type, "v")
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise wrong("reference", f"{slot.name} must be the name of an earlier output")
        if value not in self.defined:
            raise wrong("reference", f"{value} is not defined before this instruction")
        if value[0] not in letters:
            raise wrong("reference", f"{slot.name}: {value} has not the type that is needed ({letters})")
        return ("str", value)

    def _map(self, slot: Slot, value: Any, indent: int | None) -> Leaf:
        name = value.get("map") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(name, str) or name not in self.graph.maps:
            raise wrong("map", f'{slot.name} must be {{"map": "m…"}}, naming a map of the graph')
        pooled = self.graph.maps[name]
        self.used.add(name)
        if indent is not None and _maps.names(pooled):
            raise wrong("map", f"{slot.name}: a map among the attributes takes no sampled number")
        for sampled in _maps.names(pooled):
            self._reference(sampled, slot)
            if sampled[0] != "v":
                raise wrong("reference", f"{slot.name}: {sampled} is no sampled number")
        text = _maps.write(pooled, self.graph.tvm, "", indent)
        self.mapped += len(text)
        if self.mapped > MAX_TRACE:
            raise wrong("size", f"the index maps of the trace are longer than {MAX_TRACE} characters")
        return ("str", text)

    def _decide(self, primitive: Primitive, instruction: Instruction, attrs: tuple[Leaf, ...]) -> None:
        """Checks and appends a decision, and remembers the numbers that it draws."""
        decision = instruction.decision
        if primitive.decision is None:
            raise wrong("decision", "this kind takes no decision")
        if decision is None:
            raise wrong("decision", "the decision is missing")
        if primitive.decision == "tile":
            if type(instruction.attrs[0]) is not int:
                raise wrong("range", "n is a plain whole number")
            factors = tile(instruction)
            self.numbers.update(zip(instruction.outputs, factors, strict=False))
            leaf: Leaf = ("array", tuple([("int", factor) for factor in factors]))
        else:
            low, high = (0, len(attrs[0][1]) - 1) if primitive.decision == "index" else (-2, 1 << 10)
            if type(decision) is not int or not low <= decision <= high:
                raise wrong("decision", f"the decision must be an integer from {low} to {high}")
            if primitive.decision == "location":
                self.places.update(instruction.outputs)
            else:
                self.numbers.update(dict.fromkeys(instruction.outputs, attrs[0][1][decision][1]))
            leaf = ("int", decision)
        self.decisions.append(("array", (("IntImm:int32", len(self.instructions)), leaf)))

    def _outputs(self, plan: _Plan, instruction: Instruction) -> tuple[Leaf, ...]:
        outputs, letter, count = instruction.outputs, plan.letter, plan.count
        if not letter:
            raise wrong("outputs", "this kind makes nothing")
        if count == _ANY:
            count = len(outputs)
        elif count == _FACTORS:
            count = number(instruction.attrs[0]) if letter == "v" else len(instruction.inputs) - 1
        first = len(self.defined)
        expected = [f"{letter}{number}" for number in range(first, first + count)]
        if outputs != tuple(expected):
            named = ", ".join(expected[:2]) + (", …" if count > 2 else "")
            raise wrong("outputs", f"{count} outputs are expected, called {named or 'nothing'}")
        leaves = tuple([("str", name) for name in expected])
        self.defined.update(zip(expected, leaves, strict=True))
        return leaves

    def _one_open_factor(self, inputs: tuple[Any, ...], _: tuple[Any, ...]) -> None:
        if inputs[1:].count(None) > 1:
            raise wrong("factor", "at most one factor is left open")

    def _as_many_probabilities(self, _: tuple[Any, ...], attrs: tuple[Any, ...]) -> None:
        if len(attrs[0]) != len(attrs[1]):
            raise wrong("probs", "as many probabilities as candidates are expected")

    def _no_limit_of_zero(self, _: tuple[Any, ...], attrs: tuple[Any, ...]) -> None:
        if number(attrs[1]) == 0:
            raise wrong("range", "max_innermost_factor is -1 or at least 1")

    def _position_in_tile(self, _: tuple[Any, ...], attrs: tuple[Any, ...]) -> None:
        if number(attrs[1]) > number(attrs[0]):
            raise wrong("range", "partition_pos is at most n")

    def _annotation(self, inputs: tuple[Any, ...], attrs: tuple[Any, ...]) -> None:
        key, value = attrs[0], inputs[1]
        if type(key) is not str:
            raise wrong("range", "key is not of type str")
        if key.lower().startswith("pragma_") and key not in PRAGMAS:
            raise wrong("pragma", f"{key} is no pragma that a schedule may set")
        if isinstance(value, dict) and value:
            value = next(iter(value.values()))
        elif isinstance(value, str):
            value = self.numbers.get(value, value)
        if value is None:
            raise wrong("value", f"{key} has no value")
        low, high = ANNOTATION_RANGES.get(key, (0, 0))
        if key in ANNOTATION_RANGES and (type(value) is not int or not low <= value <= high):
            raise wrong("range", f"{key} is a whole number from {low} to {high}")

    def _boundary(self, _: tuple[Any, ...], __: tuple[Any, ...]) -> None:
        self.boundaries += 1


_RULES: Final = {
    "Split": _State._one_open_factor,
    "LoopPartition": _State._one_open_factor,
    "SampleCategorical": _State._as_many_probabilities,
    "SamplePerfectTile": _State._no_limit_of_zero,
    "SamplePartitionedTile": _State._position_in_tile,
    "Annotate": _State._annotation,
    "EnterPostproc": _State._boundary,
}
"""Rules that join several parts of one instruction."""


def _plan(kind: str, primitive: Primitive) -> _Plan:
    slots, signature = primitive.inputs, primitive.outputs
    many = bool(slots) and slots[-1].many
    return _Plan(
        ("str", kind),
        primitive,
        slots,
        tuple([_TYPES.get(slot.type, "v") if slot.type in NAMED else "" for slot in slots]),
        many,
        many and slots[-1].type == "L",
        primitive.attrs,
        LETTERS[signature[0]] if signature else "",
        {"*": _ANY, "=": _FACTORS}.get(signature[-1:], len(signature)),
        _RULES.get(kind),
    )


_PLANS: Final = {kind: _plan(kind, primitive) for kind, primitive in PRIMITIVES.items()}
