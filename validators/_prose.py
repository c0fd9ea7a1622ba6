"""Reading the prose of a label: its characters, its citations, its numbers, and the skeleton that no trick can hide in.

A text is read twice. Its *tokens* are what it says: citations, numbers (digits or words), operators, names. Its
*skeleton* is what a reader would take it for: compatibility forms folded, look-alike letters made Latin,
invisible characters and mark-up inside words removed. Claims are looked for in the skeleton.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

TokenKind = Literal["cite", "number", "operator", "compare", "open", "close", "word", "mark"]

MAX_PROSE: Final = 4000
"""Characters of one node's prose at most."""

MAX_VALUE: Final = 400
"""Characters of a value that is cited at most, as long as a task description that is a fact may be."""

ALLOWED: Final = frozenset("\n×÷−–—‘’“”→≤≥≠") | frozenset(chr(c) for c in range(0x20, 0x7F))
"""The characters that prose is written in: printable ASCII, the line break, and a few signs of the trade."""


@dataclass(frozen=True)
class Token:
    """One token. `value` is a number's value; for a citation, None: its value is that of the fact."""

    kind: TokenKind
    text: str
    start: int
    value: Fraction | None = None
    path: str = ""
    """A citation's path; its `text` is the quoted value."""


_LETTERS = {
    "а": "a", "е": "e", "о": "o", "р": "p", "с": "c", "у": "y", "х": "x", "ѕ": "s", "і": "i", "ј": "j", "һ": "h",
    "ԁ": "d", "ԛ": "q", "ԝ": "w", "к": "k", "м": "m", "т": "t", "в": "b", "н": "h", "г": "r", "ո": "n", "ս": "u",
    "α": "a", "ε": "e", "ο": "o", "ρ": "p", "τ": "t", "υ": "u", "ν": "v", "κ": "k", "ι": "i", "χ": "x", "γ": "y",
    "β": "b", "η": "n", "ω": "w", "ϲ": "c", "ı": "i", "ɡ": "g", "ɑ": "a", "ƒ": "f", "ſ": "s", "ք": "p", "օ": "o",
    "µ": "u", "μ": "u", "ӏ": "l", "ł": "l", "ø": "o", "đ": "d", "ħ": "h", "ß": "ss", "æ": "ae", "œ": "oe",
}  # fmt: skip
_SIGNS = {"∕": "/", "⁄": "/", "✕": "×", "✖": "×", "⨯": "×", "╳": "×", "∗": "*", "‐": "-", "‑": "-", "‒": "-", "−": "-"}
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn", "Mn", "Me", "Mc"}


def unfit(text: str) -> str | None:
    """What is wrong with the characters of a text, or None: the first one outside `ALLOWED`."""
    for char in text:
        if char not in ALLOWED:
            name = unicodedata.name(char, "a control character")
            return f"the character U+{ord(char):04X} ({name.lower()}) has no place in prose"
    return None


def skeleton(text: str) -> str:
    """The text as it looks: lower case, one script, nothing invisible, words freed of marks inside them."""
    plain = "".join(
        _LETTERS.get(c, _SIGNS.get(c, c))
        for c in unicodedata.normalize("NFKD", text).casefold()
        if unicodedata.category(c) not in _HIDDEN or c in "\n\t"
    )
    return re.sub(r"\s+", " ", plain)


def joined(skeleton_text: str) -> str:
    """The skeleton with the marks inside words taken out: `fas-ter` and `f*a*s*t*e*r` read as one word."""
    return re.sub(r"(?<=[a-z])[^a-z0-9\s]+(?=[a-z])", "", skeleton_text)


_CITE = re.compile(r"\[\s*((?:in|out)\.[A-Za-z0-9_.]*)\s*=")
_PARTS = re.compile(
    r"""(?P<number>\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d]\w*(?:\.\w+)*)
      | (?P<arrow>->|=>|→)
      | (?P<compare>==|!=|<=|>=|[=<>≤≥≠])
      | (?P<operator>//|\*\*|[-+*/%×÷−^])
      | (?P<open>\()
      | (?P<close>\))
      | (?P<mark>\S)""",
    re.VERBOSE,
)
_SUFFIX = re.compile(r"[xX×](?![\w])|(?:st|nd|rd|th)\b")
_OPERATOR = {"×": "*", "÷": "/", "−": "-", "^": "**"}


class BadCitation(Exception):
    """A citation that cannot be read. Its text says where."""


def tokens(text: str) -> list[Token]:
    """The tokens of a text.

    Raises:
        BadCitation: a citation has no end, or square brackets hold something that looks like one and is not.
    """
    found: list[Token] = []
    place = 0
    while place < len(text):
        if text[place] == "[":
            token, place = _citation(text, place)
            if token is not None:
                found.append(token)
            continue
        match = _PARTS.match(text, place)
        if match is None:
            place += 1
            continue
        place = match.end()
        kind = match.lastgroup or "mark"
        body = match.group()
        if kind == "number":
            suffix = _SUFFIX.match(text, place)
            value = Fraction(body.replace(",", "")) if len(body) <= 40 and "e" not in body.lower() else _exact(body)
            if suffix is not None:
                place = suffix.end()
            found.append(Token("number", text[match.start() : place], match.start(), value))
            if re.match(r"[xX](?=\d)", text[place : place + 2]):
                found.append(Token("operator", "*", place))  # 16x16
                place += 1
        elif kind == "word" and body in ("x", "X") and _between_numbers(found, text, place):
            found.append(Token("operator", "*", match.start()))
        elif kind == "operator":
            found.append(Token("operator", _OPERATOR.get(body, body), match.start()))
        elif kind == "arrow":
            found.append(Token("mark", body, match.start()))
        else:
            found.append(Token(kind, body, match.start()))  # type: ignore[arg-type]
    return list(_worded(found))


def _exact(body: str) -> Fraction | None:
    """A number with an exponent, when its size is sane; otherwise None, which nothing backs."""
    try:
        value = float(body)
    except ValueError:
        return None
    return Fraction(body) if len(body) <= 40 and abs(value) < 1e30 and (value == 0 or abs(value) > 1e-30) else None


def _between_numbers(found: list[Token], text: str, place: int) -> bool:
    before = bool(found) and found[-1].kind in ("number", "cite", "close")
    return before and re.match(r"\s*[\d(\[]", text[place:]) is not None


def _citation(text: str, place: int) -> tuple[Token | None, int]:
    """The citation that starts here, or None where the bracket is only a bracket; and the next place."""
    match = _CITE.match(text, place)
    if match is None:
        inside = text[place + 1 : place + 80].split("]", maxsplit=1)[0]
        if re.search(r"[A-Za-z_]", inside):
            raise BadCitation(f"'[{inside}]' is not a citation: write [path=value] with a path of in.… or out.…")
        return Token("mark", "[", place), place + 1
    depth = 0
    for end in range(match.end(), min(len(text), match.end() + MAX_VALUE + 1)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if depth < 0:
            return Token("cite", text[match.end() : end], place, None, match.group(1)), end + 1
    raise BadCitation(f"the citation of {match.group(1)} has no end")


_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL: dict[str, int] = {w: n for n, w in enumerate(_UNITS)} | {w: 10 * n for n, w in enumerate(_TENS, 2)}
_LARGE = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_QUANTITIES: dict[str, Fraction] = {
    **dict.fromkeys(("twice", "double", "doubles", "doubled", "doubling", "twofold", "couple", "pair"), Fraction(2)),
    **dict.fromkeys(("half", "halve", "halves", "halved", "halving"), Fraction(1, 2)),
    **dict.fromkeys(("thrice", "triple", "triples", "tripled", "tripling", "threefold", "treble"), Fraction(3)),
    **dict.fromkeys(("quadruple", "quadruples", "quadrupled", "fourfold"), Fraction(4)),
    **dict.fromkeys(("quarter", "quarters"), Fraction(1, 4)),
    **dict.fromkeys(("dozen", "dozens"), Fraction(12)),
    "tenfold": Fraction(10),
    "hundreds": Fraction(100),
    "thousands": Fraction(1000),
    "millions": Fraction(10**6),
    "thirds": Fraction(1, 3),
}


def _worded(found: list[Token]) -> Iterator[Token]:
    """The tokens with number words read: `thirty-two`, `one hundred and twenty-eight`, `twice`.

    `one` and `zero` on their own stay words: "one of the loops" is no quantity.
    """
    i = 0
    while i < len(found):
        token = found[i]
        word = token.text.lower() if token.kind == "word" else ""
        if word in _QUANTITIES and not _is_name(found, i):
            yield Token("number", token.text, token.start, _QUANTITIES[word])
            i += 1
        elif word in _SMALL or word in _LARGE:
            value, following = _spelled(found, i)
            single = following == i + 1 and word in ("one", "zero")
            yield token if single else Token("number", token.text, token.start, Fraction(value))
            i = following
        else:
            yield token
            i += 1


def _spelled(found: list[Token], i: int) -> tuple[int, int]:
    """The value of the number words that start at i, and the place after them."""
    total = group = 0
    start = end = i
    while i < len(found):
        word = found[i].text.lower()
        if found[i].kind == "word" and word in _SMALL:
            group += _SMALL[word]
        elif found[i].kind == "word" and word == "hundred":
            group = max(group, 1) * 100
        elif found[i].kind == "word" and word in _LARGE:
            total, group = total + max(group, 1) * _LARGE[word], 0
        elif i > start and found[i].text in ("-", "and") and i + 1 < len(found) and _continues(found, i):
            i += 1
            continue
        else:
            break
        i += 1
        end = i
    return total + group, end


def _continues(found: list[Token], i: int) -> bool:
    """Whether a hyphen or `and` goes on with the same number: after tens, or after hundred and above."""
    before, after = found[i - 1].text.lower(), found[i + 1].text.lower()
    if found[i].text == "-":
        return before in _TENS and 0 < _SMALL.get(after, 0) < 10
    return before in _LARGE and after in _SMALL


def _is_name(found: list[Token], i: int) -> bool:
    """Half and double are also names of types and of a technique: `half precision`, `double buffering`."""
    rest = [t.text.lower() for t in found[i + 1 : i + 3] if t.text != "-"]
    return bool(rest) and rest[0] in ("precision", "buffer", "buffers", "buffered", "buffering")


def numeric(value: Any) -> list[Fraction]:
    """The numbers that a fact's value or an instruction's input states: itself, or the members of its list."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, dict)):
        return []
    if isinstance(value, (list, tuple)):
        return [n for member in value for n in numeric(member)]
    return [Fraction(str(value)) if isinstance(value, float) else Fraction(value)]
