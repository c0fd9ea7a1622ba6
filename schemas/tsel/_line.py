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
from littledragon.schemas.tsel._short import implied_split, probabilities, split_inputs
from littledragon.schemas.tsel._tree import NAME

_RUN: Final = re.compile(r"([blv])(0|[1-9][0-9]{0,5})-([1-9][0-9]{0,5})")
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.$/:+-]*")
_SHORT: Final = "ms."
_LONG: Final = "meta_schedule."
_CONSTANTS: Final = ("true", "false", "null")
_MAP: Final = re.compile(r"m[0-9]{1,6}")
_TOKEN: Final = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))+')
"""A token, or one whose text is not closed: a text is never looked at twice."""
_LIST: Final = re.compile(r"\[b[0-9]+(,b[0-9]+)*\]")
_WHOLES: Final = re.compile(r"\[[1-9][0-9]{0,9}(,[1-9][0-9]{0,9})*\]")
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_REFERENCES: Final = ("B", "L", "BL")


@dataclass(frozen=True)
class _Place:
    """Where a slot of a primitive stands: among the inputs or the attributes."""

    input: bool
    index: int
    slot: Slot
    name: bool
    """It takes the name of one output."""


@dataclass(frozen=True)
class _Form:
    """How the lines of one kind read."""

    kind: str
    word: str
    primitive: Primitive
    needed: tuple[_Place, ...]
    """In order; a value comes last, and nothing that follows from the rest is among them."""
    named: dict[str, _Place]
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    """Defaults."""


def _form(kind: str, primitive: Primitive) -> _Form:
    word = primitive.word or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.replace("DType", "Dtype")).lower()
    places = [_Place(True, i, slot, slot.type in _REFERENCES) for i, slot in enumerate(primitive.inputs)]
    places += [_Place(False, i, slot, False) for i, slot in enumerate(primitive.attrs)]
    if primitive.decision == "tile":
        places = [place for place in places if place.slot.name != "n"]
    needed = [p for p in places if p.slot.default is NEEDED and p.slot.name != "probs"]
    needed.sort(key=lambda place: place.slot.type == "value")
    named = {p.slot.name: p for p in places if p.slot.default is not NEEDED or p.slot.name == "probs"}
    inputs, attrs = (tuple(slot.default for slot in slots) for slots in (primitive.inputs, primitive.attrs))
    return _Form(kind, word, primitive, tuple(needed), named, inputs, attrs)


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
                _put_many(parts, inputs[place.index :], slot)
            else:
                value = inputs[place.index] if place.input else attrs[place.index]
                parts.append(value if place.name and type(value) is str else _spell(slot, value))
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


def _put_many(parts: list[str], values: tuple[Any, ...], slot: Slot) -> None:
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
    if type(value) is tuple:
        return f"[{','.join(value)}]"
    return _json.write(value)


def _text(slot: Slot, value: str) -> str:
    """A text, bare where nothing else is written so; `ms.` is short for `meta_schedule.`."""
    if slot.type != "str" and NAME.fullmatch(value):
        return value
    if not _BARE.fullmatch(value) or value in _CONSTANTS or value.startswith(_SHORT) or NAME.fullmatch(value):
        return _json.write(value)
    return f"{_SHORT}{value[len(_LONG) :]}" if value.startswith(_LONG) else value


def kind(line: str) -> str | None:
    """The kind of primitive that a line names, whatever else is wrong with it."""
    tokens = line.split(maxsplit=3)
    word = tokens[2] if len(tokens) > 2 and tokens[1] == "=" else tokens[0] if tokens else ""
    form = _WORDS.get(word)
    return form.kind if form else None


def tile(line: str) -> tuple[Any, Any]:
    """The extent and the factors that a line ends with, whatever else is wrong with it.

    Raises:
        TselError: without a place: it ends with something else.
    """
    extent, factors = ["", "", *line.split()][-2:]
    return _json_value(extent), _json_value(factors)


def read(line: str, before: Instruction | None) -> Instruction:
    """The instruction of a line; its names are checked elsewhere. `before` is the instruction before it.

    Raises:
        TselError: without a place, gate `wellformed`, rule `grammar`, `decision`, `json` or `kind`.
    """
    tokens = _TOKEN.findall(line) if '"' in line else line.split()
    outputs: tuple[str, ...] = ()
    if len(tokens) > 2 and tokens[1] == "=":
        outputs = _outputs(tokens[0])
        del tokens[:2]
    form = _WORDS.get(tokens[0])
    if form is None:
        raise illegal("kind", "", f"no schedule primitive is called {tokens[0][:40]}")
    inputs, attrs = [*form.inputs], [*form.attrs]
    decision: Any = _decision(form, tokens) if form.primitive.decision else None
    if form.named and "=" in tokens[-1]:
        _named(form, tokens, inputs, attrs)
    if len(tokens) == 1 and form.kind == "Split":
        return Instruction("Split", split_inputs(before), tuple(attrs), outputs)
    at, count = 1, len(tokens)
    for entry in form.needed:
        if entry.slot.many:
            inputs[entry.index :] = _many(entry.slot, tokens[at:])
            at = count
        elif at >= count:
            raise illegal("grammar", "", f"{entry.slot.name} is missing")
        else:
            token = tokens[at]
            if not entry.name:
                value = _value(entry.slot, token)
            elif entry.slot.lists and _LIST.fullmatch(token):
                value = tuple(token[1:-1].split(","))
            else:
                value = token
            if entry.input:
                inputs[entry.index] = value
            else:
                attrs[entry.index] = value
            at += 1
    if at != count:
        raise illegal("grammar", "", f"{tokens[at][:40]} is more than {form.word} takes")
    if form.primitive.decision == "tile":
        attrs[0] = len(decision["factors"]) + 1
    elif form.kind == "SampleCategorical" and attrs[1] is NEEDED:
        attrs[1] = probabilities(attrs[0])
    return Instruction(form.kind, tuple(inputs), tuple(attrs), outputs, decision)


def _outputs(token: str) -> tuple[str, ...]:
    if "-" not in token:
        return (token,)
    match = _RUN.fullmatch(token)
    if not match:
        raise illegal("grammar", "", f"{token[:40]} is no name such as l3, and no run of names such as l4-10")
    return tuple(_run(match))


def _run(match: re.Match[str]) -> list[str]:
    letter, first, last = match[1], int(match[2]), int(match[3])
    if not first < last < first + MAX_OUTPUTS:
        raise illegal("grammar", "", f"{match[0]} runs backwards, or over more than {MAX_OUTPUTS} names")
    return [f"{letter}{number}" for number in range(first, last + 1)]


def _decision(form: _Form, tokens: list[str]) -> Any:
    """Takes the decision off the end."""
    if form.primitive.decision != "tile":
        if len(tokens) < 2:
            raise illegal("decision", "", "the decision is missing")
        return _json_value(tokens.pop())
    if len(tokens) < 3:
        raise illegal("decision", "", "the decision is missing")
    factors = tokens.pop()
    whole = _WHOLES.fullmatch(factors)
    listed = [int(factor) for factor in factors[1:-1].split(",")] if whole else _json_value(factors)
    if type(listed) is not list:
        raise illegal("tile", "", "a tile ends with its extent and the list of all its factors but the last")
    return {"extent": _json_value(tokens.pop()), "factors": listed}


def _named(form: _Form, tokens: list[str], inputs: list[Any], attrs: list[Any]) -> None:
    """Takes what stands by name off the end."""
    seen: set[str] = set()
    while len(tokens) > 1 and "=" in tokens[-1]:
        name, _, text = tokens[-1].partition("=")
        entry = form.named.get(name)
        if entry is None:
            return
        if name in seen:
            raise illegal("grammar", "", f"{name} stands twice")
        seen.add(name)
        value: Any = tuple(text.split(",") if text else ()) if entry.slot.type == "blocks" else _value(entry.slot, text)
        (inputs if entry.input else attrs)[entry.index] = value
        del tokens[-1]


def _many(slot: Slot, tokens: list[str]) -> list[Any]:
    values: list[Any] = []
    for token in tokens:
        if token[0] in "blv" and "-" not in token:
            values.append(token)
        elif match := _RUN.fullmatch(token):
            values += _run(match)
        else:
            values.append(token if slot.type == "L" else _json_value(token))
        if len(values) > MAX_OUTPUTS:
            raise illegal("grammar", "", f"more than {MAX_OUTPUTS} {slot.name}")
    return values


def _value(slot: Slot, token: str) -> Any:
    kind = slot.type
    if kind == "int" and token.isdigit() and token.isascii() and (token[0] != "0" or token == "0") and len(token) < 10:
        return int(token)
    if kind in ("str", "value") and token not in _CONSTANTS and _BARE.fullmatch(token):
        return f"{_LONG}{token[len(_SHORT) :]}" if token.startswith(_SHORT) else token
    if kind in ("map", "map?") and _MAP.fullmatch(token):
        return {"map": token}
    if token in slot.words:
        return slot.words.index(token)
    value = _json_value(token)
    if kind == "value" and isinstance(value, str) and NAME.fullmatch(value):
        raise illegal("grammar", "", f'a text that looks like a name is written {{"str":"{value}"}}')
    return value


def _json_value(token: str) -> Any:
    return _whole(token) if _NUMBER.fullmatch(token) else _json.read(token, "", "wellformed")


def _whole(token: str) -> int:
    if token.lstrip("-")[:1] == "0" and token != "0":
        raise illegal("json", "", f"{token[:20]} is not how a number is written")
    value = int(token)
    if not -(1 << 63) <= value < 1 << 63:
        raise illegal("json", "", f"{token[:20]} does not fit in 64 bits")
    return value
