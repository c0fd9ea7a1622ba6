"""Arithmetic in prose against Python's own, on random expressions."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.validators._arithmetic import BadArithmetic, statements
from littledragon.validators._prose import Token, tokens


def nothing(_: Token) -> Fraction | None:
    return None


NUMBERS = st.integers(0, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=8,
)


def value(text: str) -> Fraction | None:
    """What Python makes of an expression, in rational numbers."""
    import re

    try:
        return Fraction(eval(re.sub(r"\d+", lambda m: f"Fraction({m.group()})", text), {"Fraction": Fraction}))
    except ZeroDivisionError:
        return None


@given(EXPRESSIONS, st.integers(-3, 3))
@settings(max_examples=400, deadline=None)
def test_it_computes_as_python_does(text: str, off: int) -> None:
    wanted = value(text)
    result = wanted + off if wanted is not None else Fraction(0)
    spelled = f"({result.numerator}) / ({result.denominator})" if result >= 0 else f"-({-result})"
    statement = f"so {text} = {spelled} holds"
    if wanted is not None and off == 0:
        assert len(statements(tokens(statement), nothing)) == 1
    else:
        with pytest.raises(BadArithmetic):
            statements(tokens(statement), nothing)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("no statement at all", 0),
        ("16-wide loops, 4 to 8 of them", 0),
        ("either/or", 0),
        ("4 -> 8", 0),
        ("(4 * 2 = 8)", 1),
        ("it is 8 (4 * 2 = 8), or 2 * 3 = 6.", 2),
        ("4 times two equals eight", 1),
        ("16x16 = 256", 1),
        ("1,024 = 4 * 256", 1),
        ("2 * 4 bytes = 8 bytes", 1),
        ("1 < 2 <= 2 < 3", 1),
        ("one hundred and twenty-eight = 2 ** 7", 1),
        ("0.5 * 4 = 2", 1),
        ("-3 + 5 = 2", 1),
        ("2 ** -1 = 1 / 2", 1),
        ("128 is more than 64", 1),
        ("128 iterations are more than 64", 1),
        ("64 is not more than 64", 1),
        ("64 is at most 64, 64 is at least 64", 2),
        ("64 exceeds the 32 of them", 1),
        ("128 is a multiple of 32", 1),
        ("128 is not a multiple of 48", 1),
        ("32 divides 128 evenly", 1),
        ("2 * 64 is equal to 128", 1),
        ("64 is more than half of them", 0),
        ("the 8 tiles, more than 4 of them wide", 0),
        ("64 is more than enough", 0),
    ],
)
def test_statements_are_found(text: str, count: int) -> None:
    assert len(statements(tokens(text), nothing)) == count


@pytest.mark.parametrize(
    "text",
    [
        *("k = 4", "4 =", "= 4", "2 * = 2", "2 ** 65 = 3", "9 ** 9 ** 9 = 1", "1 / 0 = 1", "4 × 4 = 17", "4 · 4 = 16"),
        *("128 is less than 64", "128 elements are fewer than 64", "64 exceeds 128", "64 is at least 128"),
        *("128 is at most 64", "128 is no larger than 64", "128 is a multiple of 48", "128 is divisible by 48"),
        *("48 divides 128", "128 is not a multiple of 64", "2 * 64 is equal to 127", "64 is the same as 32"),
        *("(" * 150 + "1" + ")" * 150 + " = 1", "1 + " * 300 + "1 = 301"),
    ],
)
def test_what_cannot_be_computed_is_refused(text: str) -> None:
    with pytest.raises(BadArithmetic):
        statements(tokens(text), nothing)


@given(st.integers(0, 999_999))
def test_number_words_are_read(number: int) -> None:
    """A number spelled out is the number."""
    found = [t for t in tokens(f"about {spell(number)} of them") if t.kind == "number"]
    if number > 1:
        assert [t.value for t in found] == [number]
    else:
        assert found == []


SMALL = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spell(number: int) -> str:
    if number >= 1000:
        rest = number % 1000
        return f"{spell(number // 1000)} thousand" + (f" {spell(rest)}" if rest else "")
    if number >= 100:
        rest = number % 100
        return f"{SMALL[number // 100]} hundred" + (f" and {spell(rest)}" if rest else "")
    if number >= 20:
        return TENS[number // 10 - 2] + (f"-{SMALL[number % 10]}" if number % 10 else "")
    return SMALL[number]
