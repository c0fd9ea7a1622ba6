"""States of a reader that takes one character at a time, and says of each whether it may stand there.

A state is immutable: `step(char)` gives the state after a character, or None. What follows a part of the text is a
function that makes the next state, so a grammar is written as functions that call each other (schemas/tsel/legal.py).
A word ends where its next character cannot belong to it; then what follows is asked.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Protocol

Next = Callable[[], "State"]
Then = Callable[[str], "State"]

CLASSES: Final[dict[str, re.Pattern[str]]] = {
    "prose": re.compile("[\\x00-\\x08\\x0b-\\x1f<>&\ud800-\udfff\ufffe\uffff]"),
    "attribute": re.compile('[\\x00-\\x1f<>&"\ud800-\udfff\ufffe\uffff]'),
    "quoted": re.compile('[\\x00-\\x1f<>&"\\\\\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]'),
    "bare": re.compile(r"[^A-Za-z0-9_.$/:+-]"),
    "scope": re.compile(r"[^a-z0-9_]"),
    "scopes": re.compile(r"[^A-Za-z0-9_-]"),
    "name": re.compile(r"[^A-Za-z0-9_]"),
}
"""Of each class of free text the characters that it does not have. All others leave a loose state what it is."""


class State:
    """Where a reader stands. complete: the text may end here.

    loose: the class of characters of which `room` at least may follow and change nothing else; "" where there is none.
    ends: the only others that may follow them, where something else does depend on how they read (a word that comes
    again) or how many they are; "" where nothing does.
    """

    __slots__ = ()
    complete = False
    loose = ""
    room = 0
    ends = ""

    def expects(self) -> Iterable[str] | None:
        """The only characters that `step` may take; None where it must be asked."""
        return None

    def exits(self) -> Iterable[str] | None:
        """The same of a loose state, without the characters of its class."""
        return None

    def step(self, char: str) -> "State | None":
        """The state after a character; None where it may not stand here."""
        raise NotImplementedError


class End(State):
    """After a whole text, where one line feed may follow."""

    __slots__ = ("fed",)
    complete = True

    def __init__(self, fed: bool = False) -> None:
        self.fed = fed

    def step(self, char: str) -> State | None:
        return End(True) if char == "\n" and not self.fed else None


class Literal(State):
    """The rest of a fixed text."""

    __slots__ = ("at", "text", "then")

    def __init__(self, text: str, then: Next, at: int = 0) -> None:
        self.text, self.then, self.at = text, then, at

    def expects(self) -> Iterable[str]:
        return self.text[self.at]

    def step(self, char: str) -> State | None:
        if self.text[self.at] != char:
            return None
        if self.at + 1 == len(self.text):
            return Later(self.then)
        return Literal(self.text, self.then, self.at + 1)


class Later(State):
    """What follows a part of the text, made when it is needed: of most tokens one never looks past the end."""

    __slots__ = ("made", "then")

    def __init__(self, then: Next) -> None:
        self.then = then
        self.made: State | None = None

    def now(self) -> State:
        """The state itself."""
        if self.made is None:
            made = self.then()
            self.made = made.now() if isinstance(made, Later) else made
        return self.made

    def step(self, char: str) -> State | None:
        return self.now().step(char)

    def expects(self) -> Iterable[str] | None:
        return self.now().expects()

    def exits(self) -> Iterable[str] | None:
        return self.now().exits()

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return self.now().complete

    @property
    def loose(self) -> str:  # type: ignore[override]
        return self.now().loose

    @property
    def room(self) -> int:  # type: ignore[override]
        return self.now().room

    @property
    def ends(self) -> str:  # type: ignore[override]
        return self.now().ends


class Either(State):
    """One of several states. Those that take the characters are followed side by side until one is left."""

    __slots__ = ("states",)

    def __init__(self, *states: State) -> None:
        self.states = states

    def step(self, char: str) -> State | None:
        after = [found for state in self.states if (found := state.step(char)) is not None]
        return Either(*after) if len(after) > 1 else after[0] if after else None

    def expects(self) -> Iterable[str] | None:
        found: set[str] = set()
        for state in self.states:
            if (expected := state.expects()) is None:
                return None
            found.update(expected)
        return found


class Field(Protocol):
    """Which words may stand somewhere."""

    def begins(self, word: str) -> bool:
        """Whether a legal word begins so, or is this."""
        ...

    def whole(self, word: str) -> bool:
        """Whether it is a legal word."""
        ...

    def settled(self, word: str) -> bool:
        """Whether it is a legal word, and no longer one begins so."""
        ...

    def expects(self, word: str) -> Iterable[str] | None:
        """The only characters that a word may go on with after a beginning; None where that is not known."""
        ...

    def loose(self, word: str) -> tuple[str, int]:
        """The class of characters of which so many may follow whatever they are; ("", 0) where there is none."""
        ...


class Word(State):
    """A word of a field, as far as it is written. ends: as of `State`, of a word whose class lets it be loose."""

    __slots__ = ("_after", "ends", "field", "then", "word")

    def __init__(self, field: Field, then: Then, word: str = "", ends: str = "") -> None:
        self.field, self.then, self.word, self.ends = field, then, word, ends
        self._after: State | None = None

    def after(self) -> State | None:
        """What follows, where the word may end here."""
        if self._after is None and self.word and self.field.whole(self.word):
            self._after = self.then(self.word)
        return self._after

    def step(self, char: str) -> State | None:
        word = self.word + char
        if self.field.begins(word):
            if self.field.settled(word):
                return Later(lambda: self.then(word))
            return Word(self.field, self.then, word, self.ends)
        if self.ends and char not in self.ends:
            return None
        after = self.after()
        return None if after is None else after.step(char)

    def expects(self) -> Iterable[str] | None:
        more = self.field.expects(self.word)
        if more is not None and self.ends:
            return {*more, *self.ends}  # what follows is not made for it
        after = self.after()
        if more is None or after is None:
            return more
        then = after.expects()
        return None if then is None else {*more, *then}

    @property
    def loose(self) -> str:  # type: ignore[override]
        return self.field.loose(self.word)[0]

    @property
    def room(self) -> int:  # type: ignore[override]
        return self.field.loose(self.word)[1]


class Plain:
    """A field without free text, whose words end only where something else follows."""

    def settled(self, word: str) -> bool:
        return False

    def expects(self, word: str) -> Iterable[str] | None:
        return None

    def loose(self, word: str) -> tuple[str, int]:
        return "", 0


@lru_cache(4096)
def _prefixes(words: tuple[str, ...]) -> tuple[dict[str, set[str]], frozenset[str]]:
    """All beginnings of some words and what may follow them; those words that none of the others goes on from."""
    begun: dict[str, set[str]] = {}
    for word in words:
        for end, char in enumerate(word):
            begun.setdefault(word[:end], set()).add(char)
    last = frozenset(word for word in words if word not in begun)
    return begun | {word: set() for word in last}, last


class OneOf(Plain):
    """A word of a list."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self.begun, self.last = _prefixes(self.words)

    def begins(self, word: str) -> bool:
        return word in self.begun

    def whole(self, word: str) -> bool:
        return word in self.words

    def settled(self, word: str) -> bool:
        return word in self.last

    def expects(self, word: str) -> Iterable[str] | None:
        return self.begun[word]


class Whole(Plain):
    """An integer from low to high that `step` divides, as JSON writes it. zero: it may be 0."""

    def __init__(self, low: int, high: int, step: int = 1, zero: bool = True) -> None:
        self.low, self.high, self.step, self.zero = low, high, step, zero

    def expects(self, word: str) -> str:
        return "0123456789" if word else "-0123456789"

    def begins(self, word: str) -> bool:
        sign = word[:1] == "-"
        low, high = (max(1, -self.high), -self.low) if sign else (max(0, self.low), self.high)
        digits = word[sign:]
        if low > high or not digits:
            return sign and low <= high
        if not digits.isdigit() or not digits.isascii() or len(digits) > 19:
            return False
        if digits[0] == "0":
            return digits == "0" and not sign and low == 0 and self.zero
        first, width = int(digits), 1
        while first * width <= high:
            start, end = max(low, first * width), min(high, (first + 1) * width - 1)
            if start <= end and end // self.step * self.step >= start:
                return True
            width *= 10
        return False

    def whole(self, word: str) -> bool:
        if word == "-" or not self.begins(word):
            return False
        value = int(word)
        return self.low <= value <= self.high and value % self.step == 0 and (self.zero or value != 0)


@lru_cache(1024)
def _divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, in order."""
    found, left, factor = [1], number, 2
    while factor * factor <= left:
        power, here = 1, found
        while left % factor == 0:
            left //= factor
            power *= factor
            found = found + [divisor * power for divisor in here]
        factor += 1
    if left > 1:
        found = found + [divisor * left for divisor in found]
    return tuple(sorted(found))


@lru_cache(1024)
def divisors(number: int, least: int = 1) -> OneOf:
    """The divisors of a number from `least` on."""
    found = _divisors(number)
    return OneOf(map(str, found[bisect_left(found, least) :]))


class Matching(Plain):
    """A word whose beginnings match one pattern and that matches another, without some words, of one class of
    characters and at most `most` long."""

    def __init__(
        self, start: re.Pattern[str], whole: re.Pattern[str], most: int, without: Iterable[str] = (), of: str = ""
    ) -> None:
        self.start, self.pattern, self.most, self.without, self.of = start, whole, most, tuple(without), of

    def begins(self, word: str) -> bool:
        return len(word) <= self.most and self.start.fullmatch(word) is not None

    def whole(self, word: str) -> bool:
        return word not in self.without and self.pattern.fullmatch(word) is not None

    def loose(self, word: str) -> tuple[str, int]:
        # Where more characters make a difference, by ending the word or by making it one that is left out.
        bound = self.pattern.fullmatch(word) is None or any(other.startswith(word) for other in self.without)
        return ("", 0) if bound or not self.of else (self.of, self.most - len(word))


_EXITS: Final = {"prose": "<&", "attribute": '"&', "quoted": '"\\'}


class Free(State):
    """Free text of a class, so much of it. leave: the state after a character that is of another class, or None."""

    __slots__ = ("leave", "loose", "room")

    def __init__(self, loose: str, room: int, leave: Callable[[str, int], State | None]) -> None:
        self.loose, self.room, self.leave = loose, room, leave

    def step(self, char: str) -> State | None:
        if CLASSES[self.loose].match(char):
            return self.leave(char, self.room)
        return Free(self.loose, self.room - 1, self.leave) if self.room else None

    def exits(self) -> str:
        return _EXITS[self.loose]


ENTITIES: Final = {
    "prose": ("&amp;", "&lt;", "&gt;", "&#13;"),
    "attribute": ("&amp;", "&lt;", "&gt;", "&#13;", "&quot;", "&#10;", "&#9;"),
}


def text(of: str, room: int, close: str, then: Next) -> State:
    """Free text of XML, a node's or an attribute's, up to `close`."""

    def leave(char: str, left: int) -> State | None:
        if char == close[0]:
            return Literal(close, then, 1)
        if char == "&" and left:
            return Word(OneOf(ENTITIES[of]), lambda _: Free(of, left - 1, leave), "&")
        return None

    return Free(of, room, leave)


def quoted(room: int, then: Next) -> State:
    """A text as JSON writes it inside XML, after its opening quote."""

    def leave(char: str, left: int) -> State | None:
        if char == '"':
            return then()
        return Either(*escapes(left - 1)) if char == "\\" and left else None

    def escapes(left: int) -> list[State]:
        def after() -> State:
            return Free("quoted", left, leave)

        return [*(Literal(char, after) for char in '"\\/bfnrt'), Word(_CODE, lambda _: after())]

    return Free("quoted", room, leave)


_CODE: Final = Matching(re.compile(r"u(?![dD][89a-fA-F])[0-9a-fA-F]{0,4}"), re.compile(r"u[0-9a-fA-F]{4}"), 5)
"""Of an escape; not of half a surrogate pair."""
