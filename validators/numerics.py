"""Whether a kernel's output is the right one: its error over a bound that knows how the program rounds.

The bound of one element is what honest roundings can add up to: of the output itself, of intermediates that are
stored in a narrow type, and of a sum of n terms in any order, which grows with n and is relative to the
output's scale. The last part never exceeds a twentieth of that scale, so that zeros never pass.

Where the reference proves that rounding cannot hide anything (`compiler/exactness.py`: small whole numbers, on which
every order gives the same sum), it says with each element how far that may move, mostly not at all. Then nothing is
allowed besides: one term too few is seen among any number of terms. `docs/numerics.md` is the contract.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from littledragon.compiler.float8 import FORMATS
from littledragon.compiler.reference import ROUNDOFF, drift

Array = npt.NDArray[Any]

NEAREST: Final = ROUNDOFF | {"bfloat16": 2.0**-9}
"""Largest relative error of rounding to the nearest."""
SMALLEST: Final = {
    "float32": 2.0**-126,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-126,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
"""What any result may be off by: the step between subnormal numbers, or all of them where kernels flush them to 0."""
EXACT: Final = ("value", "slack")
"""Fields of an expected output whose every element is known: what is stored, and how far two legitimate kernels may be
apart before they store it."""
BETWEEN: Final = ("low", "high")
"""Fields of an expected output of whole numbers that were rounded: the ends of where each may lie."""
MOST_MOVED: Final = 0.1
"""At most this share of the larger elements of a 16- or 8-bit output may differ from the reference's, see `_moved`."""
DIGITS: Final = ("low", "high", "width")
"""The same of words of digits of so many bits: each digit lies between its own ends."""
LARGE: Final = 1 / 16
"""Elements count as larger from this part of the scale: those that are left of a cancellation are all error."""
FLIPS: Final = 0.01
"""Share of discrete outputs that may be off by one unit, where they are rounded floats."""
CHUNK: Final = 1 << 18
"""Elements that are compared at once: a few megabytes, whatever the size of the output."""


@dataclass(frozen=True)
class Rounding:
    """Where a program rounds; see `compiler.reference.rounding`.

    reduction: terms of the longest reduction. accumulation, stored: coarsest float type of an accumulator and of an
    intermediate buffer, None where there is none. discrete: floats are turned into integers. coarse: a function is
    called whose quick form is rough.
    """

    reduction: int = 1
    accumulation: str | None = None
    stored: str | None = None
    discrete: bool = False
    coarse: bool = False

    @staticmethod
    def of(found: dict[str, Any]) -> "Rounding":
        """From the answer of `compiler.reference.reference`."""
        return Rounding(found["reduction"], found["accumulation"], found["stored"], found["discrete"], found["coarse"])


def compare(actual: Array, expected: Array, dtype: str, rounding: Rounding) -> float:
    """The largest error over its bound: the output is correct when it is at most 1.

    Args:
        actual, expected: of equal shape; floats in any type that holds their values, `expected` also with the fields
            `EXACT`, `BETWEEN` or `DIGITS`.
        dtype: the type of the output in the program, such as bfloat16.
        rounding: of the whole program.

    Returns:
        0 for equality; infinity for another shape or kind of number, and where either side holds NaN or infinity.
    """
    if actual.shape != expected.shape:
        return math.inf
    if not actual.size:
        return 0.0
    one, other = np.ascontiguousarray(actual).reshape(-1), np.ascontiguousarray(expected).reshape(-1)
    if dtype not in ROUNDOFF:
        return _compare_discrete(one, other, rounding)
    exact = other.dtype.names == EXACT
    if one.dtype.kind != "f" or not (exact or other.dtype.kind == "f"):
        return math.inf
    return _compare_exact(one, other, dtype) if exact else _compare_floats(one, other, dtype, rounding)


def _compare_floats(actual: Array, expected: Array, dtype: str, rounding: Rounding) -> float:
    scale = max(float(np.abs(_wider(part)).max()) for part in _chunks(expected))
    if not math.isfinite(scale):
        return math.inf
    relative, steady = _drift(dtype, rounding) / 2, _steady(dtype, rounding)
    slope, floor = 2.1 * ROUNDOFF[dtype] + relative, SMALLEST.get(dtype, 0.0) + relative * scale
    worst, moved = 0.0, 0
    for one, other in zip(_chunks(actual), _chunks(expected), strict=True):
        if _equal(one, other):
            continue
        wide = other.astype(np.float64)
        error = np.abs(one - wide)
        if not math.isfinite(error.max()):
            return math.inf
        np.abs(wide, out=wide)
        if steady:
            moved += int(np.count_nonzero(error[wide >= LARGE * scale]))
        wide *= slope
        wide += floor
        worst = max(worst, _largest_ratio(error, wide))
    if not moved:
        return worst
    large = sum(int(np.count_nonzero(np.abs(_wider(part)) >= LARGE * scale)) for part in _chunks(expected))
    return max(worst, _moved(moved, large, dtype, rounding))


def _compare_exact(actual: Array, expected: Array, dtype: str) -> float:
    """Without slack the stored values are equal; with it, both are also rounded once more."""
    worst = 0.0
    for one, other in zip(_chunks(actual), _chunks(expected), strict=True):
        value, slack = other["value"].astype(np.float64), other["slack"].astype(np.float64)
        error = np.abs(one - value)
        if not math.isfinite(error.max()):
            return math.inf
        rounded = slack + 2.1 * NEAREST[dtype] * (np.abs(value) + slack) + SMALLEST.get(dtype, 0.0)
        worst = max(worst, _largest_ratio(error, np.where(slack > 0, rounded, 0.0)))
    return worst


def _drift(dtype: str, rounding: Rounding) -> float:
    """The bound that is relative to the output's scale."""
    if dtype == "float64":
        return 1e-12
    return drift(rounding.reduction, rounding.accumulation, rounding.stored, rounding.coarse)


def _steady(dtype: str, rounding: Rounding) -> bool:
    """Whether a 16-bit or 8-bit output is all that is narrow in a program."""
    internal = {rounding.accumulation, rounding.stored} - {None}
    return dtype in ("float16", "bfloat16", *FORMATS) and not internal - {"float32", "float64"} and not rounding.coarse


def _moved(moved: int, size: int, dtype: str, rounding: Rounding) -> float:
    """How many of the larger elements of a steady output differ at all, over how many may.

    What happens inside moves a result across the border between two neighbours in as many places as it is small
    against their distance. A sum one term too short, or results that are cut, not rounded, are within the bound of each
    element, but move more of them.

    What is quantised to 8 bits comes from a type of few more: quotients are ties in many places, and a quick division
    moves all of them (2% were seen). There it is always the largest share.
    """
    share = MOST_MOVED if dtype in FORMATS else min(MOST_MOVED, _drift(dtype, rounding) / ROUNDOFF[dtype])
    return moved / (share * size + 3 * math.sqrt(share * size) + 3)


def _fits(actual: Array, ends: Array) -> bool:
    """Whether every number, or every digit of it, lies between its ends."""
    low, high = ends["low"], ends["high"]
    if ends.dtype.names == BETWEEN:
        return bool(((low <= actual) & (actual <= high)).all())
    width = int(ends["width"][0])
    mask = actual.dtype.type((1 << width) - 1)
    for place in range(0, 8 * actual.dtype.itemsize, width):
        one, least, most = (number >> actual.dtype.type(place) & mask for number in (actual, low, high))
        if not ((least <= one) & (one <= most)).all():
            return False
    return True


def _largest_ratio(error: Array, bound: Array) -> float:
    """Largest error over its bound; a bound of zero allows nothing but equality."""
    np.maximum(bound, 1e-300, out=bound)
    with np.errstate(over="ignore"):  # of a number and one that should be zero
        np.divide(error, bound, out=bound)
    return float(bound.max())


def _equal(one: Array, other: Array) -> bool:
    """Bit for bit; NaN and infinity of the expected side were refused before."""
    return one.dtype == other.dtype and np.array_equal(one.view(np.uint8), other.view(np.uint8))


def _wider(part: Array) -> Array:
    """float16 is slow to calculate with."""
    return part.astype(np.float32) if part.dtype == np.float16 else part


def _chunks(flat: Array) -> list[Array]:
    return [flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK)]


def _compare_discrete(actual: Array, expected: Array, rounding: Rounding) -> float:
    """Integers and booleans are equal or within their ends; one unit off in few places where floats feed them."""
    if expected.dtype.names in (BETWEEN, DIGITS):
        if actual.dtype != expected.dtype["low"]:
            return math.inf
        pairs = zip(_chunks(actual), _chunks(expected), strict=True)
        return 0.0 if all(_fits(one, ends) for one, ends in pairs) else math.inf
    if actual.dtype != expected.dtype or actual.dtype.kind not in "biu":
        return math.inf
    off = np.flatnonzero(actual != expected)
    if not off.size:
        return 0.0
    if not rounding.discrete or actual.dtype.kind == "b":
        return math.inf
    distance, share = 0.0, off.size / max(1.0, FLIPS * actual.size)
    for places in _chunks(off):
        apart = np.abs(actual[places].astype(np.float64) - expected[places].astype(np.float64))
        distance = max(distance, float(apart.max()))
    return max(distance, share)
