"""Legal decoding: which characters may follow the beginning of a text in the `line` notation.

    state = start();  state = advance(state, "<graph ");  advance(state, "x") is None;  complete(state)

What is walked to a complete state is a graph that `diagnose` lets through: the rules are those of `_xml`, `_line` and
`_lower`, character by character, in the layout and the order of nodes of a writer. Words have their arguments, names
stand before they are used and have the type that is needed, outputs are numbered on, tile factors divide what is left
of the extent, every index map is used, an edge joins nodes that are there. What depends on the program (its blocks,
their extents) is not known here.

Narrower than the language, so some texts that a reader takes are not legal here:

- nodes in a writer's order, one line each; no white space but a writer's; at most `PROSE` characters in a node's text,
  `CITE` in a citation, `MAX_SIZE` in all, and a trace of `_WEIGHT` characters, roughly;
- values of the usual types only: no tagged ones (`{"int": 5}`), no uneven probabilities, no floats, dictionaries,
  texts or names in lists; storage scopes, dtypes and keys of annotations stand bare, and an annotation's value that is
  a text in quotes begins with none of `b`, `l`, `v` and `\\`;
- arguments by name in the order of the table, kinds of edits that a writer has; in `json` notation nothing at all;
- index maps of int32 with `in`, `let` and `out`, of arithmetic operators, whose variables are not called as outputs
  are; of sampled numbers the first 1000; lists of at most 64.

Not masked, so that a text can get stuck where nothing is legal, though never end ill-formed: the limits of a whole
text, which no model's context comes near. Not looked at: whether a citation exists, and anything that prose says.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from littledragon.schemas.tsel import _json, _maps, _short
from littledragon.schemas.tsel._error import MAX_OUTPUTS, MAX_TEXT, TselError
from littledragon.schemas.tsel._line import _BARE, _CONSTANTS, _FORMS, _LONG, _SHORT, _Form, _Place
from littledragon.schemas.tsel._lower import _ENDS, _PLACED, RULES, TVM
from littledragon.schemas.tsel._primitives import ANNOTATION_RANGES, PRAGMAS, PRIMITIVES, Slot
from littledragon.schemas.tsel._render import VERSION
from littledragon.schemas.tsel._states import (
    Either,
    End,
    Later,
    Literal,
    Matching,
    Next,
    OneOf,
    Plain,
    State,
    Then,
    Whole,
    Word,
    divisors,
    quoted,
    text,
)
from littledragon.schemas.tsel._tree import NAME

__all__ = ["CITE", "MAX_SIZE", "PROSE", "Reader", "advance", "complete", "start"]

PROSE: Final = 2000
"""Characters of the text of one evidence, analysis, effect or summary, at most; those that are known have 521."""
CITE: Final = 256
MAX_SIZE: Final = MAX_TEXT // 4
"""Characters of a text, at most: none has more than 4 bytes."""
_WEIGHT: Final = 3_000_000
"""Characters of a trace, at most and roughly; one instruction more does not reach the language's own limit."""
_INSTRUCTIONS: Final = 5000
_TEXT: Final = 480
"""Characters of a text among the arguments."""
_LIST: Final = 64
_INT31: Final = (1 << 31) - 1
_OWED: Final = 999
"""The last sampled number that an index map may name: a text must come as far."""
_OPERATORS: Final = ("+", "-", "*", "//", "%", "min", "max", "/t", "%t")
_DEEP: Final = 6
_TALL: Final = 32
_NODES: Final = 200


class Reader(NamedTuple):
    """The state of a text: where it stands, and how many characters it has."""

    at: State
    size: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """What the text so far has defined."""

    stage: int = 0
    """The place of the last node's tag in `_ORDER`."""
    ids: frozenset[str] = frozenset()
    edges: frozenset[tuple[str, str]] = frozenset()
    maps: tuple[tuple[str, frozenset[int], int], ...] = ()
    """Of each map its id, the sampled numbers in it, and the length of its text in a trace."""
    values: frozenset[str] = frozenset()
    """The maps themselves, as JSON."""
    unused: frozenset[str] = frozenset()
    """Maps that no instruction has used yet."""
    owed: frozenset[int] = frozenset()
    """Outputs that must become sampled numbers, as maps name them."""
    made: str = ""
    """The letters of all outputs."""
    numbers: tuple[tuple[int, int], ...] = ()
    """Sampled numbers and their values."""
    places: frozenset[int] = frozenset()
    """Sampled locations."""
    tile: tuple[int, int] | None = None
    """Where the last instruction was a tile: its first output and how many."""
    boundary: bool = False
    instructions: int = 0
    weight: int = 0

    @property
    def full(self) -> bool:
        return self.weight > _WEIGHT or self.instructions >= _INSTRUCTIONS

    @property
    def settled(self) -> bool:
        """Whether nothing more has to come among the edits."""
        return not self.unused and all(number < len(self.made) for number in self.owed)

    def has(self, number: int, letters: str, placed: bool = False) -> bool:
        """Whether an output of that number has one of these types; `placed`: a sampled location will do."""
        return 0 <= number < len(self.made) and self.made[number] in letters and (placed or number not in self.places)

    @property
    def facts(self) -> "_Facts":
        return _Facts(
            "b" in self.made,
            self.made.count("l") > len(self.places),
            "l" in self.made,
            any(all(number < len(self.made) for number in names) for _, names, _ in self.maps),
            any(not names for _, names, _ in self.maps),
            self.boundary,
        )


class _Facts(NamedTuple):
    """What decides which instructions can stand somewhere.

    loops: there is one that is no sampled location; places: there is any. maps: there is one whose numbers are sampled;
    fixed: there is one without any.
    """

    blocks: bool
    loops: bool
    places: bool
    maps: bool
    fixed: bool
    boundary: bool


def start() -> Reader:
    """The state of an empty text."""
    head = f'<graph version="{VERSION}" notation="line" tvm="{TVM}">\n'
    return Reader(Literal(head, lambda: _nodes(_Graph())), 0)


def advance(state: Reader, text: str) -> Reader | None:
    """The state after more text; None where some character of it may not stand there."""
    at, size = state.at, state.size + len(text)
    if size > MAX_SIZE:
        return None
    for char in text:
        after = at.step(char)
        if after is None:
            return None
        at = after
    return Reader(at.now() if isinstance(at, Later) else at, size)


def complete(state: Reader) -> bool:
    """Whether the text may end here."""
    return state.at.complete


# -- nodes ------------------------------------------------------------------------------------------

_ORDER: Final = ("evidence", "analysis", "map", "trace_sequence", "postproc", "effect", "edge")
_EDITS: Final = _ORDER.index("trace_sequence")
_LETTERS: Final = {"evidence": "e", "analysis": "a", "map": "m", "trace_sequence": "t", "effect": "p"}


def _nodes(graph: _Graph) -> State:
    """Between nodes."""
    found: dict[str, Next] = {}

    def node(tag: str, then: Next) -> None:
        found[f"<{tag} "] = then

    def of_id(tag: str, then: Callable[[_Graph, str], State]) -> None:
        stage, letter = _ORDER.index(tag), _LETTERS[tag]
        if graph.stage <= stage and (stage <= _EDITS or graph.settled):
            node(tag, lambda: Literal('id="', lambda: Word(_NewId(letter, graph.ids), named)))

            def named(id: str) -> State:
                return then(replace(graph, stage=stage, ids=graph.ids | {id}), id)

    of_id(
        "evidence",
        lambda g, _: Literal('" cite="', lambda: text("attribute", CITE, '">', lambda: _prose(g, "evidence"))),
    )
    of_id("analysis", lambda g, _: Literal('">', lambda: _prose(g, "analysis")))
    of_id("map", lambda g, id: Literal('">', lambda: _map(g, id)))
    if not graph.full:
        of_id("trace_sequence", _edit)
    of_id("effect", lambda g, _: Literal('">', lambda: _prose(g, "effect")))
    if graph.settled:
        if graph.stage < _ORDER.index("postproc") and not graph.boundary:
            node(
                "postproc", lambda: Literal('rules="', lambda: Word(OneOf(RULES), lambda rules: _derived(graph, rules)))
            )
        for kind in _ENDS:
            if next(_open(graph, kind), None) is not None:
                node(kind, lambda kind=kind: Literal('from="', lambda: _edge(graph, kind)))  # type: ignore[misc]
        found["</graph>"] = End
    return Word(OneOf(found), lambda tag: found[tag]())


class _NewId(Plain):
    """An id that no node has."""

    def __init__(self, letter: str, ids: frozenset[str]) -> None:
        self.letter, self.pattern, self.ids = letter, re.compile(rf"{letter}[0-9]{{0,6}}"), ids

    def expects(self, word: str) -> str:
        return "0123456789" if word else self.letter

    def begins(self, word: str) -> bool:
        return self.pattern.fullmatch(word) is not None and (len(word) < 7 or word not in self.ids)

    def whole(self, word: str) -> bool:
        return len(word) > 1 and word not in self.ids


def _prose(graph: _Graph, tag: str) -> State:
    return text("prose", PROSE, f"</{tag}>\n", lambda: _nodes(graph))


def _derived(graph: _Graph, rules: str) -> State:
    stage = _ORDER.index("postproc")
    return Literal(f'" version="{RULES[rules]}"/>\n', lambda: _nodes(replace(graph, stage=stage)))


def _open(graph: _Graph, kind: str) -> Iterator[tuple[str, str]]:
    """The edges of a kind that are not there."""
    source, target = _ENDS[kind]
    for a in sorted(graph.ids):
        if a[0] == source:
            yield from ((a, b) for b in sorted(graph.ids) if b[0] == target and (a, b) not in graph.edges)


def _edge(graph: _Graph, kind: str) -> State:
    pairs = tuple(_open(graph, kind))

    def source(a: str) -> State:
        return Literal('" to="', lambda: Word(OneOf(b for x, b in pairs if x == a), lambda b: target(a, b)))

    def target(a: str, b: str) -> State:
        after = replace(graph, stage=_ORDER.index("edge"), edges=graph.edges | {(a, b)})
        return Literal('"/>\n', lambda: _nodes(after))

    return Word(OneOf(dict.fromkeys(a for a, _ in pairs)), source)


_KINDS: Final = tuple(dict.fromkeys(primitive.edit for primitive in PRIMITIVES.values()))


def _edit(graph: _Graph, _: str) -> State:
    """After the id of an edit."""

    def lines() -> State:
        return _line(graph, first=True)

    def inside() -> State:
        summary = Literal("<summary>", lambda: text("prose", PROSE, "</summary>\n", lines))
        return Either(summary, Literal("\n", lines))

    kind = Literal(' kind="', lambda: Word(OneOf(_KINDS), lambda _: Literal('">', inside)))
    return Literal('"', lambda: Either(kind, Literal(">", inside)))


# -- instructions -----------------------------------------------------------------------------------


class _Name(Plain):
    """The name of an output that passes a test."""

    def __init__(self, graph: _Graph, letters: str, passes: Callable[[int], bool]) -> None:
        self.graph, self.letters, self.passes = graph, letters, passes

    def expects(self, word: str) -> str:
        return "0123456789" if word else self.letters

    def begins(self, word: str) -> bool:
        if word[0] not in self.letters:
            return False
        made, digits = self.graph.made, word[1:]
        if not digits:
            return any(letter == word[0] and self.passes(number) for number, letter in enumerate(made))
        if not NAME.fullmatch(word):
            return False
        first, width = int(digits), 1
        while first * width < len(made):
            for number in range(first * width, min(len(made), (first + 1) * width)):
                if made[number] == word[0] and self.passes(number):
                    return True
            if first == 0:
                return False
            width *= 10
        return False

    def whole(self, word: str) -> bool:
        if not NAME.fullmatch(word):
            return False
        number = int(word[1:])
        return number < len(self.graph.made) and self.graph.made[number] == word[0] and self.passes(number)


def _name(graph: _Graph, letters: str, placed: bool = False) -> _Name:
    return _Name(graph, letters, lambda number: graph.has(number, letters, placed))


def _line(graph: _Graph, first: bool = False) -> State:
    """Where a line of an edit begins. first: the edit has none yet."""
    facts = graph.facts
    ways: list[State] = [] if first else [Literal("</trace_sequence>\n", lambda: _nodes(graph))]
    if not graph.full:
        forms = _menu(facts, "", 0)
        ways.append(Word(OneOf(forms), lambda word: _arguments(graph, forms[word], 0)))
        for letter in "v" if len(graph.made) in graph.owed else "blv":
            if _menu(facts, letter, 1) or _menu(facts, letter, 2):
                ways.append(_output(graph, facts, letter))
    return Either(*ways)


def _output(graph: _Graph, facts: _Facts, letter: str) -> State:
    return Literal(f"{letter}{len(graph.made)}", lambda: _outputs(graph, facts, letter))


def _outputs(graph: _Graph, facts: _Facts, letter: str) -> State:
    """After the first output: there may be a run of them, which passes no number that a map names otherwise."""
    first = len(graph.made)

    def word(count: int) -> State:
        forms = _menu(facts, letter, count)
        return Literal(" = ", lambda: Word(OneOf(forms), lambda word: _arguments(graph, forms[word], count)))

    ways = [word(1)] if _menu(facts, letter, 1) else []
    last = first + (64 if letter == "v" else MAX_OUTPUTS) - 1
    if letter != "v":
        last = min([last, *(number - 1 for number in graph.owed if number >= first)])
    if last > first and _menu(facts, letter, 2):
        run = Word(Whole(first + 1, last), lambda word_: word(int(word_) - first + 1))
        ways.append(Literal("-", lambda: run))
    return Either(*ways)


@lru_cache(4096)
def _menu(facts: _Facts, letter: str, count: int) -> dict[str, _Form]:
    """The instructions that can stand here, by their words, of those that make so many outputs of one letter."""
    return {form.word: form for form in _FORMS.values() if _makes(form, letter, count) and _possible(facts, form)}


def _makes(form: _Form, letter: str, count: int) -> bool:
    signature = form.primitive.outputs
    if signature == "" or (count == 0 and signature[-1:] == "*"):
        return count == 0
    if letter != {"B": "b", "L": "l", "E": "v"}[signature[0]]:
        return False
    if signature[-1:] == "=":  # a tile has 2 to 64 factors, a split any number
        return letter == "l" or 2 <= count <= 64
    return count > 0 and (count == 1 or signature[-1:] == "*")


def _possible(facts: _Facts, form: _Form) -> bool:
    if form.kind == "EnterPostproc":
        return not facts.boundary
    return all(_fillable(facts, form, place.slot) for place in form.needed if not place.slot.empty)


def _fillable(facts: _Facts, form: _Form, slot: Slot) -> bool:
    """Whether anything can stand as an argument."""
    loops = facts.places if form.kind in _PLACED else facts.loops
    there = {"B": facts.blocks, "L": loops, "BL": facts.blocks or loops}
    if slot.type == "map":
        return facts.maps if _takes_numbers(form) else facts.fixed
    return there.get(slot.type, True) or (slot.lists and facts.blocks)


def _takes_numbers(form: _Form) -> bool:
    """Whether the index map of an instruction may hold sampled numbers."""
    return any(place.slot.type == "map" and place.input for place in form.needed)


def _usable(graph: _Graph, form: _Form, names: frozenset[int]) -> bool:
    """Whether a map of these sampled numbers can be its argument."""
    return all(number < len(graph.made) for number in names) if _takes_numbers(form) else not names


Given = dict[str, Any]


def _arguments(graph: _Graph, form: _Form, count: int) -> State:
    """After the word of an instruction that makes `count` outputs."""
    if form.kind in ("Split", "LoopPartition"):
        return _split(graph, form, count)
    return _needed(graph, form, count, 0, {})


def _needed(graph: _Graph, form: _Form, count: int, index: int, given: Given) -> State:
    """Before an argument that has no default."""
    if index == len(form.needed):
        return _by_name(graph, form, count, 0, given)
    slot = form.needed[index].slot

    def then(value: Any) -> State:
        return _needed(graph, form, count, index + 1, {**given, slot.name: value})

    if slot.many:  # loops, each once
        return _loops(graph, slot, lambda taken: _by_name(graph, form, count, 0, {"loops": taken}), form)
    if slot.name == "partition_pos":
        return Literal(" ", lambda: Word(Whole(0, count), lambda word: then(int(word))))
    if slot.name == "innerpart_factor":
        high = 1 if given["partition_pos"] == count else _INT31
        return Literal(" ", lambda: Word(Whole(1, high), lambda word: then(int(word))))
    if slot.type == "value":
        return Literal(" ", lambda: _annotation(graph, given["key"], then))
    return Literal(" ", lambda: _value(graph, form, slot, then))


def _value(graph: _Graph, form: _Form, slot: Slot, then: Callable[[Any], State]) -> State:
    """One argument that depends on no other."""
    kind = slot.type
    if kind in ("B", "L", "BL"):
        letters, placed = {"B": "b", "L": "l", "BL": "bl"}[kind], form.kind in _PLACED
        name = Word(_name(graph, letters, placed), then)
        return Either(name, Literal("[", lambda: _blocks(graph, "]", then))) if slot.lists else name
    if slot.words:
        return Word(OneOf(slot.words), then)
    if kind == "int":
        return Word(Whole(slot.low, slot.high, zero=slot.name != "max_innermost_factor"), lambda word: then(int(word)))
    if kind == "flag":
        return Word(OneOf(("0", "1", "false", "true")), then)
    if kind == "ints":
        return Literal("[", lambda: _ints(slot.low, slot.high, (), then, slot.empty))
    if kind in ("map", "map?"):
        usable = [id for id, names, _ in graph.maps if (_usable(graph, form, names) if kind == "map" else not names)]
        return Word(OneOf(usable), then)
    return _text(slot, form, then)


def _ints(low: int, high: int, read: tuple[int, ...], then: Callable[[Any], State], empty: bool = False) -> State:
    """A list of integers, after its bracket or a comma."""

    def one(word: str) -> State:
        now = (*read, int(word))
        more = [Literal(",", lambda: _ints(low, high, now, then))] if len(now) < _LIST else []
        return Either(Literal("]", lambda: then(now)), *more)

    number = Word(Whole(low, high), one)
    return Either(number, Literal("]", lambda: then(()))) if empty else number


def _blocks(graph: _Graph, close: str, then: Callable[[Any], State], count: int = 1) -> State:
    """Blocks with commas between them, up to a bracket, or to what `then` begins with."""

    def one(_: str) -> State:
        end = Literal(close, lambda: then(count)) if close else then(count)
        return Either(Literal(",", lambda: _blocks(graph, close, then, count + 1)), end) if count < _LIST else end

    return Word(_name(graph, "b"), one)


# -- texts among the arguments ------------------------------------------------------------------------


class _Scope(Matching):
    """A storage scope: after its first point other letters may stand than before."""

    def __init__(self) -> None:
        start = r"[a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)*"
        super().__init__(re.compile(rf"{start}\.?"), re.compile(start), 64, _CONSTANTS, "scope")

    def loose(self, word: str) -> tuple[str, int]:
        of, room = super().loose(word)
        return ("scopes", room) if of and "." in word else (of, room)


_ANY_BARE: Final = Matching(_BARE, _BARE, _TEXT, _CONSTANTS, "bare")


_BOUND: Final = (*_CONSTANTS, *ANNOTATION_RANGES, *(key.replace(_LONG, _SHORT) for key in ANNOTATION_RANGES))
"""Words that make a difference as keys of annotations, beside pragmas."""


class _Key(Plain):
    """The key of an annotation: no pragma but those that are allowed."""

    def begins(self, word: str) -> bool:
        if len(word) > _TEXT or not _BARE.fullmatch(word):
            return False
        return not word.lower().startswith("pragma_") or any(pragma.startswith(word) for pragma in PRAGMAS)

    def whole(self, word: str) -> bool:
        return word not in _CONSTANTS and (not word.lower().startswith("pragma_") or word in PRAGMAS)

    def loose(self, word: str) -> tuple[str, int]:
        bound = "pragma_".startswith(word.lower()[:7]) or any(other.startswith(word) for other in _BOUND)
        return ("", 0) if bound else ("bare", _TEXT - len(word))


class _Said(Plain):
    """An annotation's value that stands bare: a text, a truth, or the name of a sampled number."""

    def __init__(self, graph: _Graph) -> None:
        self.name = _name(graph, "v")

    def begins(self, word: str) -> bool:
        return len(word) <= _TEXT and _BARE.fullmatch(word) is not None

    def whole(self, word: str) -> bool:
        return word != "null" and (not NAME.fullmatch(word) or self.name.whole(word))

    def loose(self, word: str) -> tuple[str, int]:
        bound = "null".startswith(word) or re.fullmatch(r"[blv][0-9]*", word) is not None
        return ("", 0) if bound else ("bare", _TEXT - len(word))


def _text(slot: Slot, form: _Form, then: Then) -> State:
    """A text: a thread axis, a side, a storage scope, a dtype, an annotation's key, or any, bare or as JSON."""
    if slot.name == "thread_axis":
        axes = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"]
        return Word(OneOf([*axes, "vthread", "cthread"]), then)
    if slot.name == "buf_type":
        return Word(OneOf(("read", "write")), then)
    if slot.name == "storage_scope":
        return Either(Word(_Scope(), then, ends=" \n."), Literal('""', lambda: then("")))
    if slot.name == "dtype":
        start = re.compile(r"[a-z][a-z0-9_]{0,31}")
        dtype = Matching(start, re.compile(r"[a-z][a-z0-9_]{1,31}"), 32, _CONSTANTS, "scope")
        return Word(dtype, then, ends=" \n")
    if slot.name == "key" and form.kind == "Annotate":
        return Word(_Key(), then)
    return Either(Word(_ANY_BARE, then), Literal('"', lambda: quoted(_TEXT, lambda: then('"'))))


def _annotation(graph: _Graph, key: str, then: Then) -> State:
    """An annotation's value. A text as JSON may not begin as a name does."""
    long = f"{_LONG}{key[len(_SHORT) :]}" if key.startswith(_SHORT) else key
    if long in ANNOTATION_RANGES:
        low, high = ANNOTATION_RANGES[long]
        values = dict(graph.numbers)
        fits = _Name(graph, "v", lambda number: low <= values.get(number, low - 1) <= high)
        return Either(Word(Whole(low, high), then), Word(fits, then))

    number = Word(Whole(-_INT31 - 1, _INT31), then)
    several = Literal("[", lambda: _ints(-_INT31 - 1, _INT31, (), then, empty=True))
    return Either(Word(_Said(graph), then), number, several, Literal('"', lambda: _NoName(then)))


class _NoName(State):
    """After the opening quote of a text that may not look like a name."""

    __slots__ = ("then",)

    def __init__(self, then: Then) -> None:
        self.then = then

    def step(self, char: str) -> State | None:
        return None if char in "blv\\" else quoted(_TEXT, lambda: self.then('"')).step(char)


# -- several loops, factors -----------------------------------------------------------------------------


def _loops(graph: _Graph, slot: Slot, then: Callable[[int], State], form: _Form) -> State:
    """Loops, each at most once, with runs of them; then what follows, which begins with a space or ends the line."""

    def free(number: int, taken: frozenset[int]) -> bool:
        return number not in taken and graph.has(number, "l")

    def more(taken: frozenset[int], last: int | None) -> State:
        ways: list[State] = []
        room = MAX_OUTPUTS - len(taken)
        if last is not None and room and free(last + 1, taken):
            end = last + 1
            while end - last < room and free(end + 1, taken):
                end += 1
            run = Word(Whole(last + 1, end), lambda word: more(taken | set(range(last + 1, int(word) + 1)), None))
            ways.append(Literal("-", lambda: run))
        if taken or slot.empty:
            ways.append(then(len(taken)))
        if room and any(free(number, taken) for number in range(len(graph.made))):
            field = _Name(graph, "l", lambda number: free(number, taken))
            ways.append(Literal(" ", lambda: Word(field, lambda name: more(taken | {int(name[1:])}, int(name[1:])))))
        return Either(*ways)

    return more(frozenset(), None)


def _split(graph: _Graph, form: _Form, count: int) -> State:
    """The arguments of a split or a loop partition: nothing after a tile, or a loop and its factors."""
    split = form.kind == "Split"

    def end(factors: int) -> State:
        return _by_name(graph, form, count, 0, {"loops": factors})

    def more(factors: int, opened: bool, last: int | None) -> State:
        """After a loop, or a factor; the last one was number `last`, and a run may go on from it."""
        room = (count if split else _LIST) - factors
        ways: list[State] = []
        if last is not None and room and graph.has(last + 1, "v"):
            to = last + 1
            while to - last < room and graph.has(to + 1, "v"):
                to += 1
            run = Word(Whole(last + 1, to), lambda word: more(factors + int(word) - last, opened, None))
            ways.append(Literal("-", lambda: run))
        if room == 0 if split else factors > 0:
            ways.append(end(factors))
        if room:
            name = Word(_name(graph, "v"), lambda word: more(factors + 1, opened, int(word[1:])))
            number = Word(Whole(1, _INT31), lambda _: more(factors + 1, opened, None))
            null = [] if opened else [Literal("null", lambda: more(factors + 1, True, None))]
            ways.append(Literal(" ", lambda: Either(name, number, *null)))
        return Either(*ways)

    loop = Literal(" ", lambda: Word(_name(graph, "l"), lambda _: more(0, False, None)))
    implied = split and graph.tile is not None and graph.tile[1] == count
    return Either(loop, end(count)) if implied else loop


# -- what stands by name, decisions, and the end of a line ---------------------------------------------


def _by_name(graph: _Graph, form: _Form, count: int, index: int, given: Given) -> State:
    """After an argument: another one by name, the decision, or the end of the line."""
    places = [*form.named.items()][index:]
    ways: dict[str, Next] = {}
    for offset, (name, place) in enumerate(places, index + 1):
        if _nameable(graph, place):
            ways[f" {name}="] = lambda name=name, place=place, offset=offset: _value_of(  # type: ignore[misc]
                graph, form, place, lambda value: _by_name(graph, form, count, offset, {**given, name: value})
            )
    if form.primitive.decision is None:
        ways["\n"] = lambda: _done(graph, form, count, given)
    else:
        ways[" "] = lambda: _decision(graph, form, count, given)
    return Word(OneOf(ways), lambda word: ways[word]())


def _nameable(graph: _Graph, place: _Place) -> bool:
    slot = place.slot
    if slot.type == "map?":
        return any(not names for _, names, _ in graph.maps)
    return slot.type not in ("floats", "blocks") or (slot.type == "blocks" and "b" in graph.made)


def _value_of(graph: _Graph, form: _Form, place: _Place, then: Callable[[Any], State]) -> State:
    if place.slot.type == "blocks":
        return _blocks(graph, "", then)
    return _value(graph, form, place.slot, then)


def _decision(graph: _Graph, form: _Form, count: int, given: Given) -> State:
    """After the space before a decision."""

    def end(value: Any) -> State:
        return Literal("\n", lambda: _done(graph, form, count, {**given, "decision": value}))

    if form.primitive.decision == "index":
        return Word(Whole(0, len(given["candidates"]) - 1), lambda word: end(int(word)))
    if form.primitive.decision == "location":
        return Word(Whole(-2, 1 << 10), end)
    inner = int(given.get("innerpart_factor", 1))
    position = int(given.get("partition_pos", 0))
    limit = int(given.get("max_innermost_factor", 64)) if form.kind == "SamplePerfectTile" else -1

    def factors(left: int, read: tuple[int, ...]) -> State:
        """Before a factor: those still to come multiply to `left`, and the last of all is derived."""
        here = len(read)
        most = left // inner if here < position else left
        last = here == count - 2

        def one(word: str) -> State:
            rest, now = left // int(word), (*read, int(word))
            if last:
                return Literal("]", lambda: end((*now, rest)))
            return Literal(",", lambda: factors(rest, now))

        return Word(divisors(most, -(-left // limit) if last and limit > 0 else 1), one)

    extent = Whole(1, _INT31, inner)
    return Word(extent, lambda word: Literal(" [", lambda: factors(int(word), ())))


def _done(graph: _Graph, form: _Form, count: int, given: Given) -> State:
    """Where the next line begins."""
    first, kind = len(graph.made), form.kind
    letter = {"B": "b", "L": "l", "E": "v"}.get(form.primitive.outputs[:1], "")
    weight = 120 * (count + len(form.inputs) + len(form.attrs) + 4)
    weight += 120 * sum(value if type(value) is int else len(value) for n, value in given.items() if n == "loops")
    for name, value in given.items():
        if isinstance(value, (str, tuple)) and name != "decision":
            weight += 120 * len(value) if isinstance(value, tuple) else 2 * _TEXT
    maps = {given[name] for name in ("index_map", "pad_value") if name in given}
    weight += sum(2 * length for id, _, length in graph.maps if id in maps)
    numbers, places = graph.numbers, graph.places
    if form.primitive.decision == "tile":
        numbers += tuple(zip(range(first, first + count), given["decision"], strict=True))
    elif form.primitive.decision == "index":
        numbers += ((first, given["candidates"][given["decision"]]),)
    elif form.primitive.decision == "location":
        places |= {first}
    after = replace(
        graph,
        unused=graph.unused - maps,
        made=graph.made + letter * count,
        numbers=numbers,
        places=places,
        tile=(first, count) if form.primitive.decision == "tile" else None,
        boundary=graph.boundary or kind == "EnterPostproc",
        instructions=graph.instructions + 1,
        weight=graph.weight + weight,
    )
    return _line(after)


# -- index maps -----------------------------------------------------------------------------------------

_LETTERS_OF_A_NAME: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OUTPUT: Final = re.compile(r"[blv][0-9]*")
_NAME: Final = 60
"""Characters of the name of an index variable, at most."""


class _Variable(Plain):
    """The name of an index variable that no other has, and that is no name of an output."""

    def __init__(self, taken: tuple[str, ...]) -> None:
        self.taken = taken

    def begins(self, word: str) -> bool:
        return len(word) <= _NAME and _VARIABLE.fullmatch(word) is not None

    def whole(self, word: str) -> bool:
        return word not in self.taken and not (len(word) > 1 and _OUTPUT.fullmatch(word))

    def expects(self, word: str) -> str:
        return _LETTERS_OF_A_NAME + "0123456789" if word else _LETTERS_OF_A_NAME

    def loose(self, word: str) -> tuple[str, int]:
        # Where no more letters and digits make it a name that is taken, or an output's.
        bound = not word or _OUTPUT.fullmatch(word) or any(other.startswith(word) for other in self.taken)
        return ("", 0) if bound else ("name", _NAME - len(word))


@dataclass(frozen=True, slots=True)
class _Map:
    """What a map's text so far says."""

    id: str
    text: str
    names: tuple[str, ...] = ()
    lets: tuple[tuple[int, ...], ...] = ()
    """The shared expressions that each shared expression refers to, in order."""
    tall: tuple[int, ...] = ()
    zeros: frozenset[int] = frozenset()
    reads: tuple[int, ...] = ()
    """References so far to each shared expression."""
    met: int = 0
    """How many of them the results have met: they are numbered in this order."""
    here: tuple[int, ...] = ()
    """References of the expression that is read now, and below how high it is."""
    high: int = 0
    nodes: int = 0
    sampled: frozenset[int] = frozenset()


def _map(graph: _Graph, id: str) -> State:
    """The text of a map: variables in another order, or JSON."""
    return Either(_plain_map(graph, id), Literal('{"in":["', lambda: _map_names(graph, _Map(id, '{"in":["'))))


def _plain_map(graph: _Graph, id: str) -> State:
    def names(read: tuple[str, ...]) -> State:
        def one(word: str) -> State:
            now = (*read, word)
            ways = {" - ": lambda: results(now, ())}
            if len(now) < _LIST:
                ways[" "] = lambda: names(now)
            return Word(OneOf(ways), lambda between: ways[between]())

        return Word(_Variable(read), one, ends=" ")

    def results(inputs: tuple[str, ...], read: tuple[str, ...]) -> State:
        def one(word: str) -> State:
            now = (*read, word)
            ways: list[State] = []
            if len(now) < _LIST:
                ways.append(Literal(" ", lambda: results(inputs, now)))
            value = {"in": [*inputs], "out": [*now]}
            if (after := _pooled(graph, id, value, frozenset())) is not None:
                ways.append(after)
            return Either(*ways)

        return Word(OneOf(inputs), one)

    return names(())


def _pooled(graph: _Graph, id: str, value: dict[str, Any], sampled: frozenset[int]) -> State | None:
    """What follows a map; None where it is none, or stands there already."""
    key = _json.write(dict(sorted(value.items())))
    if key in graph.values:
        return None
    try:
        _maps.check(value, "")
        length = len(_maps.write(value, TVM, "", 2))
    except TselError:
        return None
    after = replace(
        graph,
        maps=(*graph.maps, (id, sampled, length)),
        values=graph.values | {key},
        unused=graph.unused | {id},
        owed=graph.owed | sampled,
        weight=graph.weight + length,
    )
    return Literal("</map>\n", lambda: _nodes(after))


def _map_names(graph: _Graph, map: _Map) -> State:
    """After the opening quote of an index variable."""

    def one(word: str) -> State:
        names = (*map.names, word)

        def then(between: str) -> State:
            now = replace(map, text=f"{map.text}{word}{between}", names=names)
            return _AFTER_NAMES[between](graph, now)

        return Word(_SEPARATORS if len(names) < _LIST else _CLOSINGS, then)

    return Word(_Variable(map.names), one, ends='"')


def _let(graph: _Graph, map: _Map) -> State:
    """Before a shared expression: a number or an operation."""

    def one(now: _Map, zero: bool) -> State:
        number = len(map.lets)
        now = replace(
            now,
            lets=(*now.lets, now.here),
            tall=(*now.tall, now.high),
            reads=(*now.reads, 0),
            zeros=now.zeros | ({number} if zero else set()),
            here=(),
            high=0,
        )
        ways: dict[str, Next] = {}
        if number < 31 and now.nodes < _NODES // 2:
            more = f',"${number + 1}":'
            ways[more] = lambda: _let(graph, replace(now, text=now.text + more))
        ways['},"out":['] = lambda: _results(graph, replace(now, text=f'{now.text}}},"out":['))
        return Word(OneOf(ways), lambda between: ways[between]())

    return _expression(map, 0, one, shared=True)


def _results(graph: _Graph, map: _Map) -> State:
    """Before a result."""

    def one(now: _Map, _: bool) -> State:
        now = replace(now, here=(), high=0)
        ways: list[State] = []
        if now.nodes < 2 * _NODES:
            ways.append(Literal(",", lambda: _results(graph, replace(now, text=f"{now.text},"))))
        if now.met == len(now.lets) and all(count > 1 for count in now.reads):
            value = _short.read_map(f"{now.text}]}}", "")
            if (after := _pooled(graph, now.id, value, now.sampled)) is not None:
                ways.append(Literal("]}", lambda: after))
        return Either(*ways)

    return _expression(map, 0, one, results=True)


_AFTER_NAMES: Final[dict[str, Callable[[_Graph, _Map], State]]] = {
    '","': _map_names, '"],"let":{"$0":': _let, '"],"out":[': _results,
}  # fmt: skip
_SEPARATORS: Final = OneOf(_AFTER_NAMES)
_CLOSINGS: Final = OneOf([*_AFTER_NAMES][1:])


def _meets(map: _Map, number: int) -> int | None:
    """How many shared expressions are met once this one is, where they are met in their order."""

    def visit(number: int, met: int) -> int | None:
        for other in map.lets[number]:
            if other >= met:
                after = visit(other, met)
                if after is None:
                    return None
                met = after
        return met + 1 if met == number else None

    return map.met if number < map.met else visit(number, map.met)


def _expression(
    map: _Map,
    depth: int,
    then: Callable[[_Map, bool], State],
    shared: bool = False,
    results: bool = False,
    divides: bool = False,
) -> State:
    """An expression; `then` is told whether it is the number 0.

    shared: it is one of `let`, and so no variable and no other's name. results: it is one of the results, or a part.
    divides: what divides is not 0.
    """  # fmt: skip
    count = map.nodes + 1

    def number(word: str) -> State:
        now = replace(map, text=map.text + word, nodes=count)
        return then(now, word == "0")

    ways: list[State] = [Word(Whole(-_INT31 - 1, _INT31, zero=not divides), number)]
    if depth < _DEEP and map.nodes < _NODES:
        ways.append(
            Literal("[", lambda: _operation(replace(map, text=f'{map.text}["', nodes=count), depth, then, results))
        )
    if not shared:
        named = {f'"{name}"': -1 for name in map.names}
        for other in range(len(map.lets)):
            low = map.tall[other] + depth + 1 <= _TALL and not (divides and other in map.zeros)
            if low and (not results or _meets(map, other) is not None):
                named[f'"${other}"'] = other

        def name(word: str) -> State:
            now = replace(map, text=map.text + word, nodes=count)
            if (other := named[word]) >= 0:
                reads = tuple(n + (i == other) for i, n in enumerate(now.reads))
                met = (_meets(map, other) if results else None) or map.met
                high = max(now.high, map.tall[other] + depth + 1)
                now = replace(now, reads=reads, met=met, here=(*now.here, other), high=high)
            return then(now, False)

        def sampled(word: str) -> State:
            now = replace(map, text=f'{map.text}"{word}"', nodes=count, sampled=map.sampled | {int(word[1:])})
            return Literal('"', lambda: then(now, False))

        drawn = Literal('"v', lambda: Word(Whole(0, _OWED), lambda word: sampled(f"v{word}")))
        ways += [Word(OneOf(named), name), drawn]
    return Either(*ways)


def _operation(map: _Map, depth: int, then: Callable[[_Map, bool], State], results: bool) -> State:
    """After the bracket of an operation."""

    def operator(word: str) -> State:
        now = replace(map, text=f'{map.text}{word}",', high=max(map.high, depth + 1))
        return Literal('",', lambda: _expression(now, depth + 1, lambda a, _: second(word, a), results=results))

    def second(word: str, now: _Map) -> State:
        divides = word in ("//", "%", "/t", "%t")
        now = replace(now, text=f"{now.text},")
        end = lambda b, _: Literal("]", lambda: then(replace(b, text=f"{b.text}]"), False))  # noqa: E731
        return Literal(",", lambda: _expression(now, depth + 1, end, results=results, divides=divides))

    return Literal('"', lambda: Word(OneOf(_OPERATORS), operator))
