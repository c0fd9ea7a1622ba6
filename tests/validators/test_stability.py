"""Noise bands, margins, launch-bound kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.validators.stability import launch_bound, margin, noise_band

LATENCIES = st.lists(st.floats(0.1, 1e6), min_size=3, max_size=3)


def test_band_is_the_spread_over_the_median() -> None:
    assert noise_band([100.0, 104.0, 98.0]) == pytest.approx(0.06)
    assert noise_band([5.0, 5.0, 5.0]) == 0


@given(LATENCIES, st.floats(0.01, 100))
def test_band_knows_neither_order_nor_unit(medians: list[float], factor: float) -> None:
    band = noise_band(medians)
    assert band >= 0
    assert noise_band(medians[::-1]) == band
    assert noise_band([factor * latency for latency in medians]) == pytest.approx(band, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("medians", [[], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0]])
def test_band_of_nothing_is_refused(medians: list[float]) -> None:
    with pytest.raises(ValueError, match="positive latencies"):
        noise_band(medians)


def test_margin_is_twice_the_band_above_its_floor() -> None:
    assert margin(0.05, 0.01) == 0.05
    assert margin(0.05, 0.04) == pytest.approx(0.08)


def test_launch_bound_is_within_half_again_of_an_empty_kernel() -> None:
    assert launch_bound(3.0, 2.0)
    assert not launch_bound(3.1, 2.0)
