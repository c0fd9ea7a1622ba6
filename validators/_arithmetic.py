"""Arithmetic in prose: finding statements such as `256 * 4 = 1024`, and computing them exactly.

Numbers are rational, so nothing is rounded. The parser is our own and small: no `eval`, bounded sizes.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from littledragon.validators._prose import Token

MAX_TOKENS: Final = 200
MAX_BITS: Final = 4096

Lookup = Callable[[Token], Fraction | None]
"""The value of a citation, or None where it is not a number."""


class BadArithmetic(Exception):
    """A statement that cannot be read or does not hold. Its text quotes it."""


@dataclass(frozen=True)
class Statement:
    """One true statement: the literals that stand in it as operands, and those that are its result."""

    text: str
    operands: tuple[Fraction, ...]
    results: tuple[Fraction, ...]


_WORD_OPERATORS: Final = {"times": "*", "plus": "+", "minus": "-", "mod": "%", "modulo": "%", "over": "/"}
_BY: Final = {"multiplied": "*", "divided": "/"}
_EQUAL_WORDS: Final = ("equals", "equal", "is", "are", "gives", "give", "giving", "makes", "make", "yields", "yield")
_FILLERS: Final = re.compile(
    r"(?:bytes?|bits?|kib|mib|elements?|iterations?|trips?|threads?|blocks?|tiles?|lanes?|rows?|columns?|values?|steps?|"
    r"loops?|points?|operations?|flops?|instructions?|factors?)"
)
"""Words for what is counted; after a number they do not part it from the sign that follows."""
_TESTS: Final[dict[str, Callable[[Fraction, Fraction], bool]]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "≠": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    "≤": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "≥": lambda a, b: a >= b,
    "multiple": lambda a, b: b != 0 and a % b == 0,
    "no multiple": lambda a, b: b == 0 or a % b != 0,
    "divides": lambda a, b: a != 0 and b % a == 0,
}
_MORE: Final = r"(?:more|greater|larger|bigger|higher|longer|wider|deeper)"
_LESS: Final = r"(?:less|smaller|fewer|lower|shorter|narrower)"
_MULTIPLE: Final = r"(?:(?:an? )?(?:exact |whole |even )?multiple of|(?:evenly |exactly )?divisible by)"
_PHRASES: Final = tuple(
    (re.compile(rf"{pattern}(?: the)?"), sign)
    for pattern, sign in (
        (r"(?:is|are|was|were) (?:exactly )?(?:equal to|the same as)", "="),
        (r"(?:is|are|was|were) not (?:equal to|the same as)", "!="),
        (rf"(?:is|are|was|were) {_MORE} than|exceeds?", ">"),
        (rf"(?:is|are|was|were) {_LESS} than", "<"),
        (rf"(?:is|are|was|were) (?:at least|(?:not|no) {_LESS} than)", ">="),
        (rf"(?:is|are|was|were) (?:at most|(?:not|no) {_MORE} than)", "<="),
        (rf"(?:is|are|was|were) {_MULTIPLE}", "multiple"),
        (rf"(?:is|are|was|were) (?:not|no) {_MULTIPLE}", "no multiple"),
        (r"divides?(?: evenly)?", "divides"),
    )
)
"""Words that compare the number before them with the number after them."""
_LONGEST_PHRASE: Final = 8


def statements(tokens: Sequence[Token], lookup: Lookup) -> list[Statement]:
    """Every arithmetic statement among the tokens, computed.

    Raises:
        BadArithmetic: a comparison sign does not stand between two expressions, or a statement is false.
    """
    found = []
    for run in _runs(_signs(tokens, lookup), lookup):
        if any(t.kind == "compare" for t in run):
            if len(run) > MAX_TOKENS:
                raise BadArithmetic(f"'{_quoted(run)}…' is too long to compute")
            found.append(_Parser(_trimmed(run), lookup).statement())
    return found


def _operand(token: Token, lookup: Lookup) -> bool:
    return token.kind == "number" or (token.kind == "cite" and lookup(token) is not None)


def _signs(tokens: Sequence[Token], lookup: Lookup) -> list[Token]:
    """The tokens with words for operators and equality made signs, and units after a number left out."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        word = token.text.lower() if token.kind == "word" else ""
        before = bool(out) and (_operand(out[-1], lookup) or out[-1].kind == "close")
        after = list(tokens[i + 1 : i + 3])
        if before and word in _WORD_OPERATORS and after and _starts(after[0], lookup):
            out.append(Token("operator", _WORD_OPERATORS[word], token.start))
        elif before and word in _BY and len(after) == 2 and after[0].text == "by" and _starts(after[1], lookup):
            out.append(Token("operator", _BY[word], token.start))
            i += 1
        elif before and word and (phrase := _phrase(tokens, i, lookup)) is not None:
            sign, words = phrase
            out.append(Token("compare", sign, token.start))
            i += words - 1
        elif before and word in _EQUAL_WORDS and after and _equates(out, word, after, lookup):
            out.append(Token("compare", "=", token.start))
            i += after[0].text == "to"
        elif before and _FILLERS.fullmatch(word) and after and _goes_on(tokens, i + 1, lookup):
            pass
        else:
            out.append(token)
        i += 1
    return out


def _goes_on(tokens: Sequence[Token], place: int, lookup: Lookup) -> bool:
    """Whether an operator or a comparison, as a sign or in words, stands here."""
    return tokens[place].kind in ("operator", "compare") or _phrase(tokens, place, lookup) is not None


def _phrase(tokens: Sequence[Token], place: int, lookup: Lookup) -> tuple[str, int] | None:
    """The comparison in words that stands here up to an operand, and of how many words it is; or None.

    An operand in words does not count: `more than half` of something is not more than 1/2.
    """
    words = list(itertools.takewhile(lambda t: t.kind == "word", tokens[place : place + _LONGEST_PHRASE]))
    rest = tokens[place + len(words) : place + len(words) + 1]
    if not words or not rest or not _starts(rest[0], lookup) or rest[0].text[:1].isalpha():
        return None
    text = " ".join(token.text.lower() for token in words)
    return next(((sign, len(words)) for pattern, sign in _PHRASES if pattern.fullmatch(text)), None)


def _starts(token: Token, lookup: Lookup) -> bool:
    return _operand(token, lookup) or token.kind == "open"


def _equates(out: list[Token], word: str, after: list[Token], lookup: Lookup) -> bool:
    """Whether `is`, `gives`, `equals` states an equality: a number follows, and something was computed before."""
    target = after[1] if after[0].text == "to" and len(after) == 2 else after[0]
    if not _starts(target, lookup) or (word == "equal" and after[0].text != "to"):
        return False
    if word in ("equals", "equal"):
        return True
    for token in reversed(out):
        if token.kind == "operator":
            return True
        if not (_operand(token, lookup) or token.kind in ("open", "close")):
            return False
    return False


def _runs(tokens: Sequence[Token], lookup: Lookup) -> list[list[Token]]:
    """The longest runs of operands, operators, comparisons and parentheses; juxtaposed operands part them."""
    runs: list[list[Token]] = [[]]
    for token in tokens:
        run = runs[-1]
        ended = bool(run) and (run[-1].kind in ("number", "cite", "close"))
        if _operand(token, lookup) or token.kind == "open":
            if ended:
                runs.append([token])
            else:
                run.append(token)
        elif token.kind in ("operator", "compare", "close"):
            run.append(token)
        else:
            runs.append([])
    return [run for run in runs if run]


def _quoted(run: Sequence[Token]) -> str:
    return " ".join(f"[{t.path}={t.text}]" if t.kind == "cite" else t.text for t in run)[:120]


def _trimmed(run: list[Token]) -> list[Token]:
    """The run without parentheses at its ends that open or close nothing in it, or that enclose the whole."""
    while run:
        opened: list[int] = []
        for i, token in enumerate(run):
            if token.kind == "open":
                opened.append(i)
            elif token.kind == "close" and opened:
                opened.pop()
            elif token.kind == "close":
                opened.append(i)
                break
        if opened and opened[-1] == len(run) - 1:
            run = run[:-1]
        elif opened and opened[0] == 0:
            run = run[1:]
        elif not opened and _enclosed(run):
            run = run[1:-1]
        elif run[-1].kind == "operator" and run[-1].text in ("-", "%"):
            run = run[:-1]  # a dash or a percent sign after the statement belongs to the prose
        else:
            break
    return run


def _enclosed(run: list[Token]) -> bool:
    if len(run) < 2 or run[0].kind != "open" or run[-1].kind != "close":
        return False
    depth = 0
    for i, token in enumerate(run):
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        if depth == 0:
            return i == len(run) - 1
    return False


@dataclass
class _Parser:
    """Recursive descent: comparison < sum < product < sign < power. Each method consumes what it reads."""

    run: list[Token]
    lookup: Lookup
    place: int = 0
    literals: list[Fraction] = field(default_factory=list)
    operators: int = 0

    def statement(self) -> Statement:
        text = _quoted(self.run)
        try:
            return self._chain(text)
        except (ZeroDivisionError, OverflowError):
            raise BadArithmetic(f"'{text}' divides by zero or leaves all bounds") from None
        except _Unreadable:
            raise BadArithmetic(f"'{text}' is not an arithmetic statement that can be computed") from None

    def _chain(self, text: str) -> Statement:
        left = self._sum()
        sides = [(self.literals, self.operators)]
        while self.place < len(self.run):
            sign = self.run[self.place]
            if sign.kind != "compare":
                raise _Unreadable
            self.place += 1
            self.literals, self.operators = [], 0
            right = self._sum()
            if not _TESTS[sign.text](left, right):
                raise BadArithmetic(f"'{text}' is not true: {left} {sign.text} {right} does not hold")
            sides.append((self.literals, self.operators))
            left = right
        if len(sides) < 2:
            raise _Unreadable
        computed = any(operators for _, operators in sides) and any(t.text == "=" for t in self.run)
        operands = [n for literals, operators in sides if operators or not computed for n in literals]
        results = [n for literals, operators in sides if computed and not operators for n in literals]
        return Statement(text, tuple(operands), tuple(results))

    def _peek(self, *signs: str) -> str | None:
        if self.place < len(self.run) and self.run[self.place].kind == "operator":
            return self.run[self.place].text if self.run[self.place].text in signs else None
        return None

    def _sum(self) -> Fraction:
        value = self._product()
        while (sign := self._peek("+", "-")) is not None:
            self.place += 1
            self.operators += 1
            right = self._product()
            value = _bounded(value + right if sign == "+" else value - right)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while (sign := self._peek("*", "/", "//", "%")) is not None:
            self.place += 1
            self.operators += 1
            right = self._signed()
            if sign == "*":
                value = value * right
            elif sign == "/":
                value = value / right
            else:
                value = Fraction(value // right) if sign == "//" else value % right
            value = _bounded(value)
        return value

    def _signed(self) -> Fraction:
        if self._peek("-") is not None:
            self.place += 1
            return -self._signed()
        base = self._atom()
        if self._peek("**") is None:
            return base
        self.place += 1
        self.operators += 1
        power = self._signed()
        if power.denominator != 1 or abs(power) > 64 or base.numerator.bit_length() * abs(power) > MAX_BITS:
            raise OverflowError
        return _bounded(Fraction(base ** int(power)))

    def _atom(self) -> Fraction:
        if self.place >= len(self.run):
            raise _Unreadable
        token = self.run[self.place]
        self.place += 1
        if token.kind == "number" and token.value is not None:
            self.literals.append(token.value)
            return token.value
        if token.kind == "cite":
            value = self.lookup(token)
            if value is not None:
                return value
        if token.kind == "open":
            value = self._sum()
            if self.place < len(self.run) and self.run[self.place].kind == "close":
                self.place += 1
                return value
        raise _Unreadable


class _Unreadable(Exception):
    """The run is not a chain of comparisons between expressions."""


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise OverflowError
    return value
