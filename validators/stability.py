"""Noise: how far the same kernel's latency lies apart in three fresh processes (paper, section 4.2)."""

import statistics
from collections.abc import Sequence

LAUNCH_BOUND = 1.5
"""A default schedule within this many times an empty kernel measures launches, not itself."""


def noise_band(medians: Sequence[float]) -> float:
    """(max - min) / median of one kernel's medians, each of a process of its own.

    Raises:
        ValueError: no medians, or one that is not positive.
    """
    if not medians or min(medians) <= 0:
        raise ValueError(f"medians must be positive latencies, not {list(medians)}")
    return (max(medians) - min(medians)) / statistics.median(medians)


def margin(floor: float, band: float) -> float:
    """The gain below which two latencies of a workload count as equal: max(floor, 2 * noise band)."""
    return max(floor, 2 * band)


def launch_bound(default_us: float, empty_us: float) -> bool:
    """Whether the default schedule's latency is within 1.5 times that of an empty kernel."""
    return default_us <= LAUNCH_BOUND * empty_us
