"""Whether a kernel's output is the right one: its error over a bound that knows how the program rounds.

The bound of one element is what honest roundings can add up to: of the output itself, of intermediates that are
stored in a narrow type, and of a sum of n terms in any order, which grows with n and is relative to the
output's scale. The last part never exceeds a twentieth of that scale, so that zeros never pass.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
"""Largest relative error of rounding to the type."""
SMALLEST: Final = {"float16": 2.0**-24, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
"""Step between subnormal numbers of the type, where results may be that small."""
FUNCTIONS: Final = 4e-6
"""Relative error of the approximations of exp, tanh and the like that compilers use in float32."""
GROWTH: Final = 0.75
"""Error of a sum of n terms as a power of n: roundings of terms of either sign cancel (0.5), those of equal terms
need not (up to 1). Sequential softmax over 8,000 terms was seen at 4.7e-5 in float32, which this bound just doubles."""
CEILING: Final = 0.05
"""The part of the bound that is relative to the scale is never larger."""
FLIPS: Final = 0.01
"""Share of discrete outputs that may be off by one unit, where they are rounded floats."""


@dataclass(frozen=True)
class Rounding:
    """Where a program rounds; see `compiler.reference.rounding`.

    reduction: terms of the longest reduction. accumulation, stored: coarsest float type of an accumulator and of an
    intermediate buffer, None where there is none. discrete: floats are turned into integers.
    """

    reduction: int = 1
    accumulation: str | None = None
    stored: str | None = None
    discrete: bool = False

    @staticmethod
    def of(found: dict[str, Any]) -> "Rounding":
        """From the answer of `compiler.reference.reference`."""
        return Rounding(found["reduction"], found["accumulation"], found["stored"], found["discrete"])


def compare(actual: npt.NDArray[Any], expected: npt.NDArray[Any], dtype: str, rounding: Rounding) -> float:
    """The largest error over its bound: the output is correct when it is at most 1.

    Args:
        actual, expected: of equal shape; floats in any type that holds their values.
        dtype: the type of the output in the program, such as bfloat16.
        rounding: of the whole program.

    Returns:
        0 for equality; infinity for another shape or kind of number, and where either side holds NaN or infinity.
    """
    if actual.shape != expected.shape:
        return math.inf
    if not actual.size:
        return 0.0
    if dtype not in ROUNDOFF:
        return _compare_discrete(actual, expected, rounding)
    if actual.dtype.kind != "f" or expected.dtype.kind != "f":
        return math.inf
    one, other = actual.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.inf
    size = np.abs(other)
    bound = (
        2.1 * ROUNDOFF[dtype] * size + SMALLEST.get(dtype, 0.0) + _relative(dtype, rounding) * (size + size.max()) / 2
    )
    error = np.abs(one - other)
    # A bound of zero (an output of zeros) allows nothing but equality.
    return float(np.max(np.where(error == 0, 0.0, error / np.maximum(bound, 1e-300))))


def _relative(dtype: str, rounding: Rounding) -> float:
    """The bound that is relative to the output's scale."""
    total = FUNCTIONS if ROUNDOFF[dtype] > ROUNDOFF["float64"] else 1e-12
    if rounding.stored in ROUNDOFF:
        total += 8 * ROUNDOFF[rounding.stored]
    if rounding.accumulation in ROUNDOFF:
        total += 2 * ROUNDOFF[rounding.accumulation] * rounding.reduction**GROWTH
    return min(total, CEILING)


def _compare_discrete(actual: npt.NDArray[Any], expected: npt.NDArray[Any], rounding: Rounding) -> float:
    """Integers and booleans are equal, or one unit off in few places where rounded floats feed them."""
    if actual.dtype != expected.dtype or actual.dtype.kind not in "biu":
        return math.inf
    off = actual != expected
    if not off.any():
        return 0.0
    if not rounding.discrete or actual.dtype.kind == "b":
        return math.inf
    distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()
    share = np.count_nonzero(off) / max(1.0, FLIPS * off.size)
    return float(max(distance, share))
