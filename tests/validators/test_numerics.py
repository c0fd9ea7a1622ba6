"""The numerical gate: wrong kernels are caught, right ones with other roundings pass."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.compiler import inputs
from littledragon.validators import numerics
from littledragon.validators.numerics import Rounding, compare

Array = Any
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def spec(name: str, shape: list[int], dtype: str) -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": dtype, "role": "data", "low": None, "high": None}


def operands(k: int, dtype: str, case: int) -> tuple[Array, Array]:
    x, w = inputs.make([spec("x", [24, k], dtype), spec("w", [24, k], dtype)], case, 7)
    return x.astype(np.float64), w.astype(np.float64)


def product(x: Array, w: Array, dtype: str, order: Any = slice(None), start: Any = np.float32) -> Array:
    """X·Wᵀ summed one term after the other in `start`, then rounded to the type."""
    total = np.zeros((len(x), len(w)), start)
    for k in range(x.shape[1])[order] if isinstance(order, slice) else order:
        total = (total + np.outer(x[:, k], w[:, k]).astype(start)).astype(start)
    return total.astype(TYPES[dtype])


MUTANTS: dict[str, Callable[[Array, Array, Array, str], Array]] = {
    "zeros": lambda y, x, w, t: np.zeros_like(y),
    "stale NaN": lambda y, x, w, t: np.where(np.arange(y.size).reshape(y.shape) == 5, np.nan, y).astype(y.dtype),
    "infinity": lambda y, x, w, t: np.where(np.arange(y.size).reshape(y.shape) == 9, np.inf, y).astype(y.dtype),
    "one element off": lambda y, x, w, t: y + (np.arange(y.size).reshape(y.shape) == 3) * np.abs(y).max() / 4,
    "one element is its neighbour": lambda y, x, w, t: np.where(np.arange(y.size).reshape(y.shape) == 0, y.flat[1], y),
    "last reduction step dropped": lambda y, x, w, t: product(x[:, :-1], w[:, :-1], t),
    "first reduction step twice": lambda y, x, w, t: product(x, w, t, order=[0, *range(x.shape[1])]),
    "transposed": lambda y, x, w, t: y.T,
    "negated": lambda y, x, w, t: -y,
    "rows rolled": lambda y, x, w, t: np.roll(y, 1, axis=0),
    "last row not written": lambda y, x, w, t: np.concatenate([y[:-1], np.full_like(y[-1:], np.nan)]),
    "doubled": lambda y, x, w, t: y * 2,
    "one row dropped": lambda y, x, w, t: y[:-1],
    "half of the reduction": lambda y, x, w, t: product(x[:, ::2], w[:, ::2], t),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [16, 256])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_products_are_caught_by_some_case(mutant: str, k: int, dtype: str) -> None:
    rounding = Rounding(reduction=k, accumulation="float32", stored="float32")
    worst = 0.0
    for case in range(len(inputs.CASES)):
        x, w = operands(k, dtype, case)
        right = product(x, w, dtype)
        wrong = MUTANTS[mutant](right, x, w, dtype)
        worst = max(worst, compare(wrong.astype(np.float32), right.astype(np.float32), dtype, rounding))
    assert worst > 1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [16, 1024])
@pytest.mark.parametrize("case", range(len(inputs.CASES)))
def test_other_orders_and_exact_rounding_pass(case: int, k: int, dtype: str) -> None:
    x, w = operands(k, dtype, case)
    rounding = Rounding(reduction=k, accumulation="float32", stored="float32")
    reference = product(x, w, dtype).astype(np.float32)
    variants = {
        "backwards": product(x, w, dtype, order=slice(None, None, -1)),
        "shuffled": product(x, w, dtype, order=np.random.default_rng(0).permutation(k)),
        "exact": (x @ w.T).astype(TYPES[dtype]),
    }
    for name, variant in variants.items():
        assert compare(variant.astype(np.float32), reference, dtype, rounding) <= 1, name


@pytest.mark.parametrize("k", [64, 1024])
def test_float16_accumulation_in_any_order_passes_against_the_wide_reference(k: int) -> None:
    x, w = operands(k, "float16", 0)
    rounding = Rounding(reduction=k, accumulation="float16", stored="float16")
    wide = x @ w.T
    for order in (slice(None), slice(None, None, -1)):
        sequential = product(x, w, "float16", order, np.float16)
        assert compare(sequential, wide, "float16", rounding) <= 1
    assert compare(wide.astype(np.float16), wide, "float16", rounding) <= 1
    assert compare(np.zeros_like(sequential), wide, "float16", rounding) > 1


def test_softmax_of_zeros_fails() -> None:
    x = np.random.default_rng(0).standard_normal((8, 4096))
    right = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    rounding = Rounding(reduction=4096, accumulation="float32", stored="float32")
    for dtype, type_ in TYPES.items():
        expected = right.astype(type_).astype(np.float32)
        assert compare(np.zeros_like(expected), expected, dtype, rounding) > 1
        pairwise = (np.exp(x) / np.exp(x).astype(np.float32).sum(axis=1, keepdims=True)).astype(type_)
        assert compare(pairwise.astype(np.float32), expected, dtype, rounding) <= 1


def test_long_sums_of_like_terms_pass_in_any_order() -> None:
    terms = np.exp(inputs.make([spec("x", [4, 8000], "float32")], 2, 7)[0] - np.float32(2))
    forward, pairwise = np.zeros(4, np.float32), terms.sum(axis=1, dtype=np.float32)
    for k in range(terms.shape[1]):
        forward += terms[:, k]
    rounding = Rounding(reduction=8000, accumulation="float32", stored="float32")
    assert compare(1 / forward, 1 / pairwise, "float32", rounding) <= 1
    assert compare(1 / forward[::-1], 1 / pairwise, "float32", rounding) > 1


def test_output_of_zeros_allows_only_zeros() -> None:
    zeros = np.zeros(4, np.float32)
    assert compare(zeros, zeros, "float32", Rounding()) == 0
    assert compare(zeros + np.float32(1e-20), zeros, "float32", Rounding()) > 1


def test_nan_and_infinity_are_never_equal() -> None:
    for value in (np.nan, np.inf, -np.inf):
        array = np.array([1, value], np.float32)
        assert compare(array, array, "float32", Rounding()) == math.inf


def test_shape_and_kind_must_match() -> None:
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    assert compare(two, three, "float32", Rounding()) == math.inf
    assert compare(two, two.reshape(1, 2), "float32", Rounding()) == math.inf
    assert compare(two.astype(np.int32), two, "float32", Rounding()) == math.inf
    assert compare(two.astype(np.int32), two.astype(np.int64), "int32", Rounding()) == math.inf


def test_integers_are_exact_unless_rounded_floats_feed_them() -> None:
    right = np.arange(1000, dtype=np.int8)
    few, many, far = right.copy(), right.copy(), right.copy()
    few[5] += 1
    many[::2] += 1
    far[5] += 2
    assert compare(right, right, "int8", Rounding()) == 0
    assert compare(few, right, "int8", Rounding()) == math.inf
    rounded = Rounding(discrete=True)
    assert compare(few, right, "int8", rounded) <= 1
    assert compare(many, right, "int8", rounded) > 1  # truncation instead of rounding
    assert compare(far, right, "int8", rounded) > 1
    large = np.array([1 << 60], np.int64)
    assert compare(large + 1, large, "int64", Rounding()) == math.inf  # equal as doubles
    flags = np.array([True, False])
    assert compare(~flags, flags, "bool", rounded) == math.inf


def test_eight_bit_float_may_fall_to_a_neighbour_but_no_further() -> None:
    values = np.array([1.0, 1.125, 1.25, 240.0], np.float32)
    step = np.array([0.125, 0.125, 0.125, 16.0], np.float32)
    assert compare(values + step, values, "float8_e4m3fn", Rounding()) <= 1
    assert compare(values + 2 * step, values, "float8_e4m3fn", Rounding()) > 1


EIGHT = {"float8_e4m3fn": (448.0, 3), "float8_e5m2": (57344.0, 2)}
"""Largest number of each 8-bit float, and bits of its fraction."""


def quantised(x: Array, scale: Array, dtype: str) -> Array:
    most = np.float32(EIGHT[dtype][0])
    return np.clip(x * scale, -most, most).astype(getattr(ml_dtypes, dtype)).astype(np.float32)


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("case", range(len(inputs.CASES)))
def test_quantised_rows_may_fall_to_a_neighbour_in_few_places(case: int, dtype: str) -> None:
    """Rows of bfloat16 by their largest value: quotients are ties in many places, which a quick division moves."""
    most, rounding = np.float32(EIGHT[dtype][0]), Rounding(reduction=4096, stored="float32")
    lost = 23 - EIGHT[dtype][1]
    for seed in range(20):
        (x,) = inputs.make([spec("x", [2, 4096], "bfloat16")], case, seed)
        wide = x.astype(np.float32)
        largest = np.abs(wide).max(axis=1, keepdims=True)
        expected = quantised(wide, 1 / (largest / most), dtype)
        assert np.abs(expected).max() == most
        inverse = most / largest
        for quick in (inverse, 1 / (largest * (1 / most)), inverse * np.float32(1 + 2**-22)):
            assert compare(quantised(wide, quick, dtype), expected, dtype, rounding) <= 1
        cut = ((wide * inverse).view(np.uint32) >> lost << lost).view(np.float32)
        if case < 3:  # in the others most of the large ones are the largest
            assert compare(quantised(cut, np.float32(1), dtype), expected, dtype, rounding) > 1


@given(st.integers(1, 1 << 20), st.sampled_from(sorted(TYPES)), st.sampled_from([None, *TYPES]))
def test_no_bound_is_so_wide_that_zeros_pass(reduction: int, dtype: str, accumulation: str | None) -> None:
    rounding = Rounding(reduction, accumulation, accumulation)
    expected = np.array([1.0, -0.5, 2.0, 0.0])
    assert compare(np.zeros(4), expected, dtype, rounding) > 1
    assert compare(expected, expected, dtype, rounding) == 0


def exact(values: Array, slack: float) -> Array:
    together = np.empty(values.shape, [("value", np.float32), ("slack", np.float32)])
    together["value"], together["slack"] = values, slack
    return together


@pytest.mark.parametrize("dtype", TYPES)
def test_known_values_allow_nothing_but_their_slack(dtype: str) -> None:
    values = np.array([0.0, 1.0, -3.0, 500.0], np.float32)
    step = np.array([0, 0, 0, 2], np.float32)
    rounding = Rounding(16384, "float32", dtype)
    assert compare(values, exact(values, 0), dtype, rounding) == 0
    if dtype != "float32":
        assert compare(values + step, values, dtype, rounding) <= 1  # what the values alone allow
    assert compare(values + step, exact(values, 0), dtype, rounding) > 1
    assert compare(values + step, exact(values, 2), dtype, rounding) <= 1
    assert compare(values + 10 * step, exact(values, 2), dtype, rounding) > 1
    for wrong in (np.nan, np.inf):
        assert compare(np.where(step > 0, wrong, values), exact(values, 2), dtype, rounding) == math.inf


def test_whole_numbers_lie_between_their_ends() -> None:
    ends = np.array([(1, 1), (2, 3), (-5, -4)], [("low", np.int8), ("high", np.int8)])
    for right in ([1, 2, -5], [1, 3, -4]):
        assert compare(np.array(right, np.int8), ends, "int8", Rounding(discrete=True)) == 0
    for wrong in ([2, 2, -5], [1, 4, -5], [1, 2, -6]):
        assert compare(np.array(wrong, np.int8), ends, "int8", Rounding(discrete=True)) == math.inf
    assert compare(np.array([1, 2, -5], np.int32), ends, "int8", Rounding(discrete=True)) == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_that_are_cut_not_rounded_are_seen_in_their_number(dtype: str) -> None:
    wide = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    bits = 13 if dtype == "float16" else 16
    cut = (wide.view(np.uint32) >> bits << bits).view(np.float32)
    nearest = wide.astype(TYPES[dtype]).astype(np.float32)
    near = (wide * np.float32(1 + 2e-6)).astype(TYPES[dtype]).astype(np.float32)
    rounding = Rounding(1000, "float32", "float32")
    assert compare(cut, nearest, dtype, rounding) > 1
    assert compare(near, nearest, dtype, rounding) <= 1
    # Where intermediates are narrow too, honest results differ as much.
    assert compare(cut, nearest, dtype, Rounding(1000, "float32", dtype)) <= 1


def test_large_outputs_are_compared_piece_by_piece() -> None:
    right = np.zeros((3, numerics.CHUNK), np.float32)
    right[0, 0] = 1
    wrong = right.copy()
    wrong[2, 5] = 1
    assert compare(right, right, "float32", Rounding()) == 0
    assert compare(wrong, right, "float32", Rounding()) > 1
    wrong[2, 5] = np.nan
    assert compare(wrong, right, "float32", Rounding()) == math.inf
