"""The `line` notation of one instruction, and back.

    l4-10 = loops b1
    v11-15 = tile l4 448 [1,1,1,1]          extent and all factors but the last
    l16-20 = split                          of the loop and the numbers of the tile just before
    b73 = cache_read b1 0 shared consumers=b1
    compute_at b73 l66 index=0
    v85 = categorical [1,2,3,4] 2           the decision comes last
    annotate b73 meta_schedule.cooperative_fetch v85

What it makes, a word for the kind, what it needs: inputs, then attributes; what has a default follows by name where
it differs; then an annotation's value, or the decision. Runs of three names and more are `l4-10`.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from littledragon.schemas.graph import Instruction
from littledragon.schemas.tsel import _json
from littledragon.schemas.tsel._error import MAX_OUTPUTS, illegal
from littledragon.schemas.tsel._primitives import NEEDED, PRIMITIVES, Primitive, Slot
from littledragon.schemas.tsel._short import implied_split, probabilities
from littledragon.schemas.tsel._tree import NAME

_RUN: Final = re.compile(r"([blv])(0|[1-9][0-9]{0,5})-([1-9][0-9]{0,5})")
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.$/:+-]*")
_SHORT: Final = "ms."
_LONG: Final = "meta_schedule."
_CONSTANTS: Final = ("true", "false", "null")
_MAP: Final = re.compile(r"m[0-9]{1,6}")
_TOKEN: Final = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_REFERENCES: Final = ("B", "L", "BL")


@dataclass(frozen=True)
class _Place:
    """Where a slot of a primitive stands: among the inputs or the attributes."""

    input: bool
    index: int
    slot: Slot


@dataclass(frozen=True)
class _Form:
    """How the lines of one kind read."""

    kind: str
    word: str
    primitive: Primitive
    needed: tuple[_Place, ...]
    """In order; a value comes last, and nothing that follows from the rest is among them."""
    named: dict[str, _Place]
    many: bool
    """The last input is repeated."""


def _form(kind: str, primitive: Primitive) -> _Form:
    word = primitive.word or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.replace("DType", "Dtype")).lower()
    places = [_Place(True, i, slot) for i, slot in enumerate(primitive.inputs)]
    places += [_Place(False, i, slot) for i, slot in enumerate(primitive.attrs)]
    if primitive.decision == "tile":
        places = [place for place in places if place.slot.name != "n"]
    needed = [p for p in places if p.slot.default is NEEDED and p.slot.name != "probs"]
    needed.sort(key=lambda place: place.slot.type == "value")
    named = {p.slot.name: p for p in places if p.slot.default is not NEEDED or p.slot.name == "probs"}
    many = bool(primitive.inputs) and primitive.inputs[-1].many
    return _Form(kind, word, primitive, tuple(needed), named, many)


_FORMS: Final = {kind: _form(kind, primitive) for kind, primitive in PRIMITIVES.items()}
_WORDS: Final = {form.word: form for form in _FORMS.values()}


def write(instruction: Instruction, before: Instruction | None) -> tuple[str, str]:
    """The line of a well-formed instruction and the text of its decision, which the line ends with (or "").

    `before` is the instruction before it in the trace.
    """
    kind, inputs, attrs, outputs, decision = instruction
    form = _FORMS[kind]
    parts: list[str] = []
    if outputs:
        parts += (_names(outputs), "=")
    parts.append(form.word)
    if not implied_split(instruction, before):
        for place in form.needed:
            slot = place.slot
            if slot.many:
                _many(parts, inputs[place.index :], slot)
            else:
                value = inputs[place.index] if place.input else attrs[place.index]
                parts.append(value if slot.type in _REFERENCES else _spell(slot, value))
    for name, place in form.named.items():
        value = inputs[place.index] if place.input else attrs[place.index]
        default = probabilities(attrs[0]) if name == "probs" else place.slot.default
        if value != default or type(value) is not type(default):
            if place.slot.type == "blocks":
                if value:
                    parts.append(f"{name}={','.join(value)}")
            else:
                parts.append(f"{name}={_spell(place.slot, value)}")
    if decision is None:
        return " ".join(parts), ""
    if form.primitive.decision == "tile":
        parts.append(str(decision["extent"]))
        return " ".join(parts), f"[{','.join(map(str, decision['factors']))}]"
    return " ".join(parts), str(decision)


def _names(names: tuple[str, ...]) -> str:
    """The names of outputs, which are consecutive and of one letter."""
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1][1:]}"


def _many(parts: list[str], values: tuple[Any, ...], slot: Slot) -> None:
    """Values of a repeated slot, runs of names taken together."""
    run: list[str] = []
    following = ""
    for value in values:
        if value == following:
            run.append(value)
        else:
            _flush(parts, run)
            run = []
            if type(value) is not str:
                parts.append(_spell(slot, value))
                following = ""
                continue
            run.append(value)
        following = f"{value[0]}{int(value[1:]) + 1}"
    _flush(parts, run)


def _flush(parts: list[str], run: list[str]) -> None:
    if len(run) > 2:
        parts.append(f"{run[0]}-{run[-1][1:]}")
    else:
        parts += run


def _spell(slot: Slot, value: Any) -> str:
    if type(value) is int:
        return slot.words[value] if slot.words else str(value)
    if type(value) is str:
        return _text(slot, value)
    if type(value) is dict and slot.type in ("map", "map?"):
        return str(value["map"])
    return _json.write(value)


def _text(slot: Slot, value: str) -> str:
    """A text, bare where nothing else is written so; `ms.` is short for `meta_schedule.`."""
    if slot.type != "str" and NAME.fullmatch(value):
        return value
    if not _BARE.fullmatch(value) or value in _CONSTANTS or value.startswith(_SHORT) or NAME.fullmatch(value):
        return _json.write(value)
    return f"{_SHORT}{value[len(_LONG) :]}" if value.startswith(_LONG) else value


def read(line: str, before: Instruction | None, place: str) -> Instruction:
    """The instruction of a line; its names are checked elsewhere.

    Raises:
        TselError: gate `wellformed`, rule `grammar`, `json` or `kind`.
    """
    tokens = _TOKEN.findall(line) if '"' in line else line.split()
    outputs: tuple[str, ...] = ()
    if len(tokens) > 2 and tokens[1] == "=":
        outputs = _outputs(tokens[0], place)
        del tokens[:2]
    form = _WORDS.get(tokens[0])
    if form is None:
        raise illegal("kind", place, f"no schedule primitive is called {tokens[0][:40]}")
    reader = _Reader(form, tokens, place)
    if form.kind == "Split" and len(tokens) == 1 + reader.by_name():
        return reader.split(before, outputs)
    return reader.instruction(outputs)


def _outputs(token: str, place: str) -> tuple[str, ...]:
    if NAME.fullmatch(token):
        return (token,)
    match = _RUN.fullmatch(token)
    if not match:
        raise illegal("grammar", place, f"{token[:40]} is no name such as l3, and no run of names such as l4-10")
    return tuple(_run(match, place))


def _run(match: re.Match[str], place: str) -> list[str]:
    letter, first, last = match[1], int(match[2]), int(match[3])
    if not first < last < first + MAX_OUTPUTS:
        raise illegal("grammar", place, f"{match[0]} runs backwards, or over more than {MAX_OUTPUTS} names")
    return [f"{letter}{number}" for number in range(first, last + 1)]


class _Reader:
    """The tokens of a line, taken from the front; `=` tokens by name, the decision from the end."""

    def __init__(self, form: _Form, tokens: list[str], place: str) -> None:
        self.form = form
        self.tokens = tokens
        self.place = place
        self.inputs: list[Any] = [[] if slot.default == () else slot.default for slot in form.primitive.inputs]
        self.attrs: list[Any] = [slot.default for slot in form.primitive.attrs]

    def by_name(self) -> int:
        """Takes what stands by name from the end of the line, and tells how many there are."""
        return sum("=" in token and token.split("=", 1)[0] in self.form.named for token in self.tokens[1:])

    def instruction(self, outputs: tuple[str, ...]) -> Instruction:
        form = self.form
        decision = self._decision() if form.primitive.decision else None
        self._named()
        tokens = self.tokens
        at = 1
        needed = form.needed
        for number, place in enumerate(needed):
            if place.slot.many:
                after = len(needed) - number - 1
                end = max(len(tokens) - after, at)
                self.inputs[place.index :] = self._many(place.slot, tokens[at:end])
                at = end
                continue
            if at >= len(tokens):
                raise illegal("grammar", self.place, f"{place.slot.name} is missing")
            token = tokens[at]
            value = token if place.slot.type in _REFERENCES else self._value(place.slot, token)
            (self.inputs if place.input else self.attrs)[place.index] = value
            at += 1
        if at != len(tokens):
            raise illegal("grammar", self.place, f"{tokens[at][:40]} is more than {form.word} takes")
        if form.primitive.decision == "tile":
            self.attrs[0] = len(decision["factors"]) + 1 if isinstance(decision["factors"], list) else 0
        if form.kind == "SampleCategorical" and self.attrs[1] is NEEDED:
            self.attrs[1] = probabilities(self.attrs[0])
        return Instruction(form.kind, tuple(self.inputs), tuple(self.attrs), outputs, decision)

    def split(self, before: Instruction | None, outputs: tuple[str, ...]) -> Instruction:
        """A split of the loop and by the numbers of the tile just before it."""
        if before is None or not before.kind.endswith("Tile"):
            raise illegal("grammar", self.place, "a split without inputs follows the tile whose numbers it takes")
        self._named()
        return Instruction("Split", (before.inputs[0], *before.outputs), tuple(self.attrs), outputs, None)

    def _named(self) -> None:
        tokens = self.tokens
        seen: set[str] = set()
        while len(tokens) > 1 and "=" in tokens[-1]:
            name, _, text = tokens[-1].partition("=")
            place = self.form.named.get(name)
            if place is None:
                break
            if place.slot.type == "blocks":
                value: Any = text.split(",")
            else:
                value = self._value(place.slot, text)
            if name in seen:
                raise illegal("grammar", self.place, f"{name} stands twice")
            seen.add(name)
            (self.inputs if place.input else self.attrs)[place.index] = value
            del tokens[-1]

    def _decision(self) -> Any:
        tokens = self.tokens
        if self.form.primitive.decision == "tile":
            if len(tokens) < 3:
                raise illegal("decision", self.place, "the decision is missing")
            extent, factors = tokens[-2], tokens[-1]
            decision = {"extent": self._json(extent), "factors": self._json(factors)}
            del tokens[-2:]
            return decision
        if len(tokens) < 2:
            raise illegal("decision", self.place, "the decision is missing")
        return self._json(tokens.pop())

    def _many(self, slot: Slot, tokens: list[str]) -> list[Any]:
        values: list[Any] = []
        for token in tokens:
            if NAME.fullmatch(token):
                values.append(token)
            elif match := _RUN.fullmatch(token):
                values += _run(match, self.place)
            else:
                values.append(token if slot.type == "L" else self._json(token))
            if len(values) > MAX_OUTPUTS:
                raise illegal("grammar", self.place, f"more than {MAX_OUTPUTS} {slot.name}")
        return values

    def _value(self, slot: Slot, token: str) -> Any:
        kind = slot.type
        if kind in ("str", "value") and _BARE.fullmatch(token) and token not in _CONSTANTS:
            return f"{_LONG}{token[len(_SHORT) :]}" if token.startswith(_SHORT) else token
        if kind in ("map", "map?") and _MAP.fullmatch(token):
            return {"map": token}
        if token in slot.words:
            return slot.words.index(token)
        value = self._json(token)
        if kind == "value" and isinstance(value, str) and NAME.fullmatch(value):
            raise illegal("grammar", self.place, f'a text that looks like a name is written {{"str":"{value}"}}')
        return value

    def _json(self, token: str) -> Any:
        if _NUMBER.fullmatch(token):
            return _whole(token, self.place)
        return _json.read(token, self.place, "wellformed")


def _whole(token: str, place: str) -> int:
    if token.lstrip("-")[:1] == "0" and token != "0":
        raise illegal("json", place, f"{token[:20]} is not how a number is written")
    value = int(token)
    if not -(1 << 63) <= value < 1 << 63:
        raise illegal("json", place, f"{token[:20]} does not fit in 64 bits")
    return value
