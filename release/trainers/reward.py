"""The staged reward of a completion: a pure function of its verdict and of its task's latencies.

The order of the stages is the paper's (section 4.4), their levels are chosen; see `Levels`. Only ratios of latencies
count, and nothing that the completion explains. Plain numbers are all that it takes: a verdict may be
`validators.service.Verdict` or the same as a dict, as `dragon serve` answers it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Mode = Literal["construct", "refine"]
Stage = Literal["fault", "unparsed", "parsed", "wellformed", "replayed", "built", "correct"]

STAGES: Final[dict[str | None, Stage]] = {
    "parsed": "unparsed",
    "wellformed": "parsed",
    "applicable": "wellformed",
    "replayed": "wellformed",
    "postprocessed": "replayed",
    "encoded": "replayed",
    "built": "replayed",
    "ran": "built",
    "correct": "built",
    "timed": "built",
    "stable": "built",
    "ok": "correct",
}
"""How far a completion came, by the first gate that refused it."""
_ENDLESS_US: Final = 1e15
"""No latency, which is finite, comes near it."""
_ROUNDING: Final = 1e-9
"""A utility so near below a multiple of q counts as that multiple."""


@dataclass(frozen=True)
class Levels:
    """What each stage is worth; all chosen. The stages must not overlap.

    parsed + dividing · f_div: it parses and is not well-formed. wellformed + applying · p: it is well-formed and stops
    after the fraction p of its instructions. replayed: it fails post-processing or the build. built: it crashes, is
    late or computes something wrong. correct + r_lat: it is right.

    construct, refine: α of each mode. most: the largest utility that counts. construct_floor, refine_floor: q is at
    least so much. coarsest: a task whose q is larger gives no row for reinforcement learning.

    Raises:
        ValueError: stages overlap, or a number is out of its range.
    """

    parsed: float = 0.05
    dividing: float = 0.10
    wellformed: float = 0.20
    applying: float = 0.15
    replayed: float = 0.40
    built: float = 0.50
    correct: float = 1.0
    construct: float = 0.30
    refine: float = 0.50
    most: float = 1.2
    construct_floor: float = 0.05
    refine_floor: float = 0.05
    coarsest: float = 0.5

    def __post_init__(self) -> None:
        ends = (self.parsed + self.dividing, self.wellformed + self.applying, self.replayed, self.built)
        begins = (self.wellformed, self.replayed, self.built, self.correct)
        numbers = vars(self).values()
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError("levels must be positive numbers")
        if not all(end < begin for end, begin in zip(ends, begins, strict=True)):
            raise ValueError("the stages of a reward must not overlap")

    def alpha(self, mode: Mode) -> float:
        """α: how much of r_lat a full utility is in this mode."""
        return self.construct if mode == "construct" else self.refine

    def floor(self, mode: Mode) -> float:
        """The smallest q in this mode."""
        return self.construct_floor if mode == "construct" else self.refine_floor


@dataclass(frozen=True)
class Reward:
    """total: the reward; None for a fault: nothing is known, and 0 would be a lie. stage: how far it came.

    f_div, p: as the stage uses them. u: the utility log(L0/L) / log(L0/a) of a right kernel; u_q: rounded down to
    multiples of q. b_main: it beats L0 by more than the margin. b_refine: it beats A by more than the margin. r_lat:
    what speed adds. What the stage does not reach is None.
    """

    total: float | None
    stage: Stage
    f_div: float | None = None
    p: float | None = None
    u: float | None = None
    u_q: float | None = None
    q: float | None = None
    b_main: bool | None = None
    b_refine: bool | None = None
    r_lat: float | None = None


def reward(
    verdict: Any,
    *,
    mode: Mode,
    default_us: float,
    anchor_us: float,
    noise_band: float,
    margin: float,
    parent_us: float | None = None,
    levels: Levels | None = None,
) -> Reward:
    """The reward of a completion.

    A text without instructions has scheduled nothing: it gets `levels.wellformed`, even where what post-processing
    makes of it is right.

    Args:
        verdict: a `validators.service.Verdict`, or a mapping with its fields.
        mode: what the prompt asked for.
        default_us, anchor_us: L0 and a of the task, microseconds.
        noise_band, margin: of the task, as shares.
        parent_us: latency of graph A, where the prompt was to refine one.
        levels: what the stages are worth; the design's where left out.

    Raises:
        ValueError: numbers that no verdict or task holds (an anchor not faster than L0 among them: see `usable`), or a
            refinement without the latency of A.
    """
    levels = levels or Levels()
    _check_task(mode, default_us, anchor_us, noise_band, margin, parent_us)
    utility(anchor_us, default_us=default_us, anchor_us=anchor_us)  # of a task without one no prompt is worth anything
    if _of(verdict, "fault") is not None:
        return Reward(None, "fault")
    gate = _of(verdict, "gate")
    if gate not in STAGES:
        raise ValueError(f"a verdict has a gate or a fault, not {gate!r}")
    f_div, p, emitted = _credit(verdict)
    stage = STAGES[gate]
    if stage not in ("unparsed", "parsed") and not emitted:
        stage = "wellformed"
    if stage == "unparsed":
        return Reward(0.0, stage)
    if stage == "parsed":
        return Reward(levels.parsed + levels.dividing * f_div, stage, f_div)
    if stage == "wellformed":
        return Reward(levels.wellformed + levels.applying * p, stage, f_div, p)
    if stage == "replayed":
        return Reward(levels.replayed, stage, f_div, p)
    if stage == "built":
        return Reward(levels.built, stage, f_div, p)
    latency_us = _positive("latency_us", _of(verdict, "latency_us"))
    q = quantum(mode, default_us=default_us, anchor_us=anchor_us, noise_band=noise_band, levels=levels)
    u = utility(latency_us, default_us=default_us, anchor_us=anchor_us)
    u_q = round_down(u, q)
    b_main = default_us / latency_us - 1 > margin
    b_refine = None if parent_us is None else parent_us / latency_us - 1 > margin
    gain = b_main if mode == "construct" else b_refine
    r_lat = levels.alpha(mode) * min(max(u_q, 0.0), levels.most) if gain else 0.0
    return Reward(levels.correct + r_lat, stage, f_div, p, u, u_q, q, b_main, b_refine, r_lat)


def utility(latency_us: float, *, default_us: float, anchor_us: float) -> float:
    """u = log(L0/L) / log(L0/a): 0 at L0, 1 at the anchor.

    Raises:
        ValueError: the anchor is not faster than L0.
    """
    if not anchor_us < default_us:
        raise ValueError(f"an anchor of {anchor_us:g} µs is not faster than L0, {default_us:g} µs")
    return math.log(default_us / latency_us) / math.log(default_us / anchor_us)


def quantum(
    mode: Mode, *, default_us: float, anchor_us: float, noise_band: float, levels: Levels | None = None
) -> float:
    """q: the step of the utility that noise lets us tell apart; infinite where the anchor is not faster than L0."""
    levels = levels or Levels()
    if not anchor_us < default_us:
        return math.inf
    return max(levels.floor(mode), math.log1p(noise_band) / math.log(default_us / anchor_us))


def round_down(u: float, q: float) -> float:
    """The largest multiple of q that is not above u."""
    return math.floor(u / q + _ROUNDING) * q


def usable(
    *,
    mode: Mode,
    default_us: float,
    anchor_us: float,
    noise_band: float,
    margin: float,
    parent_us: float | None = None,
    levels: Levels | None = None,
) -> bool:
    """Whether a prompt of this task gives a row for reinforcement learning.

    Its q must not exceed `levels.coarsest`, and the anchor must show that there is something to gain: over L0, and
    refining, over A.

    Raises:
        ValueError: as `reward`.
    """
    levels = levels or Levels()
    _check_task(mode, default_us, anchor_us, noise_band, margin, parent_us)
    base = default_us if parent_us is None else min(default_us, parent_us)
    q = quantum(mode, default_us=default_us, anchor_us=anchor_us, noise_band=noise_band, levels=levels)
    return q <= levels.coarsest and base / anchor_us - 1 > margin


def _of(verdict: Any, name: str) -> Any:
    return verdict.get(name) if isinstance(verdict, Mapping) else getattr(verdict, name)


def _credit(verdict: Any) -> tuple[float, float, int]:
    """f_div, p and the count of instructions of a verdict; p comes from the counts, whatever else the verdict says."""
    f_div, emitted, applied = (_of(verdict, name) or 0 for name in ("f_div", "emitted", "applied"))
    if not 0 <= f_div <= 1:
        raise ValueError(f"f_div is {f_div}, and must lie between 0 and 1")
    if not 0 <= applied <= emitted:
        raise ValueError(f"{applied} of {emitted} instructions cannot have been applied")
    return float(f_div), applied / emitted if emitted else 0.0, emitted


def _positive(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < _ENDLESS_US:
        raise ValueError(f"{name} is {str(value)[:40]}, which is no latency")
    return float(value)


def _check_task(
    mode: str, default_us: float, anchor_us: float, noise_band: float, margin: float, parent_us: float | None
) -> None:
    if mode not in ("construct", "refine"):
        raise ValueError(f"mode {mode!r}: choose construct or refine")
    _positive("default_us", default_us)
    _positive("anchor_us", anchor_us)
    if not 0 <= noise_band < math.inf or not 0 <= margin < math.inf:
        raise ValueError(f"a noise band of {noise_band} and a margin of {margin}: neither may be negative")
    if parent_us is not None:
        _positive("parent_us", parent_us)
    elif mode == "refine":
        raise ValueError("a refinement needs the latency of graph A, parent_us")
