"""The staged reward: a pure function of a verdict and of ratios of latencies."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from littledragon.release.trainers.reward import STAGES, Levels, Reward, quantum, reward, round_down, usable, utility
from littledragon.schemas.gates import GATES, OK
from littledragon.validators.service import Verdict

ORDER = ("unparsed", "parsed", "wellformed", "replayed", "built", "correct")
TASK = {"default_us": 100.0, "anchor_us": 10.0, "noise_band": 0.01, "margin": 0.05}

gates = st.sampled_from([*GATES, OK])
shares = st.floats(0, 1)
latencies = st.floats(1e-2, 1e6)
modes = st.sampled_from(["construct", "refine"])


@st.composite
def verdicts(draw: st.DrawFn) -> dict[str, Any]:
    """A verdict as it comes over HTTP."""
    gate, emitted = draw(gates), draw(st.integers(1, 500))
    return {
        "gate": gate,
        "fault": None,
        "f_div": draw(shares),
        "emitted": emitted,
        "applied": draw(st.integers(0, emitted)),
        "latency_us": draw(latencies) if gate == OK else None,
    }


@st.composite
def tasks(draw: st.DrawFn) -> dict[str, Any]:
    """The numbers of a task that is usable, with a prior graph."""
    default_us, band = draw(st.floats(1, 1e5)), draw(st.floats(0, 0.05))
    task = {
        "mode": draw(modes),
        "default_us": default_us,
        "anchor_us": default_us / draw(st.floats(1.06, 1000)),
        "noise_band": band,
        "margin": max(0.05, 2 * band),
        "parent_us": default_us * draw(st.floats(0.01, 2)),
    }
    assume(usable(**task))
    return task


def right(latency_us: float, **more: Any) -> Reward:
    verdict = Verdict("w-1", OK, None, 1.0, 5, 5, 0.1, latency_us)
    return reward(verdict, **{"mode": "construct", **TASK, **more})


def total(found: Reward) -> float:
    assert found.total is not None
    return found.total


@given(verdicts(), verdicts(), tasks(), tasks())
def test_stages_never_overlap(one: Any, other: Any, task: Any, another: Any) -> None:
    """A later stage always earns more, whatever the credit within it, the task and the mode."""
    a, b = reward(one, **task), reward(other, **another)
    if ORDER.index(a.stage) < ORDER.index(b.stage):
        assert total(a) < total(b)
    assert 0 <= total(a) <= 1 + 0.5 * 1.2


@pytest.mark.parametrize(
    ("gate", "stage", "expected"),
    [
        ("parsed", "unparsed", 0.0),
        ("wellformed", "parsed", 0.05 + 0.10 * 0.5),
        ("applicable", "wellformed", 0.20 + 0.15 * 0.6),
        ("replayed", "wellformed", 0.20 + 0.15 * 0.6),
        ("postprocessed", "replayed", 0.40),
        ("encoded", "replayed", 0.40),
        ("built", "replayed", 0.40),
        ("ran", "built", 0.50),
        ("correct", "built", 0.50),
        ("timed", "built", 0.50),
        ("stable", "built", 0.50),
    ],
)
def test_the_level_of_each_gate(gate: Any, stage: str, expected: float) -> None:
    found = reward(Verdict("w-1", gate, "why", 0.5, 10, 6), mode="construct", **TASK)
    assert (found.stage, found.total) == (stage, pytest.approx(expected))


def test_every_gate_has_a_stage() -> None:
    assert set(STAGES) == {*GATES, OK}


@given(verdicts(), tasks())
def test_a_fault_is_none_and_never_a_number(verdict: Any, task: Any) -> None:
    assert reward(verdict | {"fault": "no disk"}, **task) == Reward(None, "fault")
    assert reward(Verdict("w-1", None, fault="no disk"), **task).total is None


@given(verdicts(), tasks(), st.text(), st.floats(allow_nan=True), st.dictionaries(st.text(), st.floats()))
def test_what_a_completion_or_a_step_says_never_matters(
    verdict: Any, task: Any, reason: str, error: float, seconds: Any
) -> None:
    said = verdict | {"reason": reason, "error": error, "seconds": seconds, "p": 1.0, "module_hash": reason, "u": 9.0}
    assert reward(said, **task) == reward(verdict, **task)


@given(verdicts(), tasks(), st.integers(-20, 20))
def test_only_ratios_of_latencies_count(verdict: Any, task: Any, octaves: int) -> None:
    scale = 2.0**octaves
    scaled = {name: value * scale if name.endswith("_us") else value for name, value in task.items()}
    if verdict["latency_us"] is not None:
        assert reward(verdict | {"latency_us": verdict["latency_us"] * scale}, **scaled) == reward(verdict, **task)
    else:
        assert reward(verdict, **scaled) == reward(verdict, **task)


@given(tasks(), st.floats(0.001, 1000))
def test_scaling_by_any_number_changes_nothing_beyond_rounding(task: Any, scale: float) -> None:
    latency = math.sqrt(task["default_us"] * task["anchor_us"])
    own = utility(latency, default_us=task["default_us"], anchor_us=task["anchor_us"])
    other = utility(latency * scale, default_us=task["default_us"] * scale, anchor_us=task["anchor_us"] * scale)
    assert other == pytest.approx(own, abs=1e-9)


@given(tasks())
def test_utility_is_nought_at_the_default_and_one_at_the_anchor(task: Any) -> None:
    ends = {name: task[name] for name in ("default_us", "anchor_us")}
    assert utility(task["default_us"], **ends) == 0
    assert utility(task["anchor_us"], **ends) == 1
    slow, fast = (right(latency, **task) for latency in (task["default_us"], task["anchor_us"]))
    assert (slow.u, slow.u_q, fast.u) == (0, 0, 1)
    q = quantum(task["mode"], noise_band=task["noise_band"], **ends)
    assert 1 - q < (fast.u_q or 0) <= 1 + 1e-9


@given(tasks(), latencies, latencies)
def test_a_faster_kernel_never_earns_less(task: Any, one: float, other: float) -> None:
    fast, slow = sorted((one, other))
    assert total(right(fast, **task)) >= total(right(slow, **task))


@given(st.floats(-5, 5), st.floats(0.05, 0.5))
def test_rounding_goes_down_to_a_multiple(u: float, q: float) -> None:
    rounded = round_down(u, q)
    assert u - q < rounded <= u + 1e-8
    assert rounded / q == pytest.approx(round(rounded / q))
    assert round_down(3 * q, q) == pytest.approx(3 * q)


def test_parts_by_hand() -> None:
    """L0 = 100, a = 10, so that u is the decimal logarithm of 100 / L."""
    found = right(10.0)
    assert (found.b_main, found.b_refine, found.q) == (True, None, 0.05)
    assert found.r_lat == pytest.approx(0.30)
    assert total(right(5.0)) == pytest.approx(1 + 0.30 * 1.2)  # u = 1.30, and 1.2 is the most
    middle = right(100 / 10**0.52)
    assert (middle.u, middle.u_q) == (pytest.approx(0.52), pytest.approx(0.50))
    assert total(middle) == pytest.approx(1.15)
    assert total(right(100 / 1.04)) == 1  # within the margin
    assert total(right(200.0)) == 1  # slower than L0
    refined = right(10.0, mode="refine", parent_us=20.0)
    assert (total(refined), refined.b_refine) == (pytest.approx(1.5), True)
    same = right(20.0, mode="refine", parent_us=20.5)
    assert (total(same), same.b_main, same.b_refine) == (1, True, False)


def test_noise_and_floors_make_q() -> None:
    ends = {"default_us": 100.0, "anchor_us": 50.0}
    assert quantum("construct", noise_band=0.0, **ends) == 0.05
    assert quantum("construct", noise_band=0.1, **ends) == pytest.approx(math.log(1.1) / math.log(2))
    levels = Levels(construct_floor=0.1, refine_floor=0.2)
    floors = [quantum(mode, noise_band=0.0, levels=levels, **ends) for mode in ("construct", "refine")]
    assert floors == [0.1, 0.2]
    assert quantum("refine", noise_band=0.0, default_us=1.0, anchor_us=1.0) == math.inf


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({}, True),
        ({"noise_band": 2.1}, True),  # at √10 - 1 q is one half
        ({"noise_band": 2.2}, False),
        ({"anchor_us": 99.0}, False),
        ({"anchor_us": 100.0}, False),
        ({"anchor_us": 120.0}, False),
        ({"mode": "refine", "parent_us": 20.0}, True),
        ({"mode": "refine", "parent_us": 10.2}, False),
    ],
)
def test_what_gives_rows_for_reinforcement_learning(change: dict[str, Any], fine: bool) -> None:
    assert usable(**{"mode": "construct", **TASK, **change}) is fine


def test_a_text_without_instructions_gets_no_more_than_its_form() -> None:
    for gate in ("applicable", "postprocessed", "built", "correct", OK):
        verdict = {"gate": gate, "fault": None, "f_div": 0, "emitted": 0, "applied": 0, "latency_us": 10.0}
        assert reward(verdict, mode="construct", **TASK).total == 0.20


@pytest.mark.parametrize(
    ("verdict", "task", "words"),
    [
        ({"gate": "guess"}, {}, "has a gate or a fault, not 'guess'"),
        ({"gate": None}, {}, "has a gate or a fault, not None"),
        ({"f_div": 1.5}, {}, "f_div is 1.5"),
        ({"f_div": math.nan}, {}, "f_div is nan"),
        ({"applied": 6}, {}, "6 of 5 instructions"),
        ({"latency_us": None}, {}, "latency_us is None"),
        ({"latency_us": 0.0}, {}, "latency_us is 0.0"),
        ({"latency_us": math.nan}, {}, "latency_us is nan"),
        ({"latency_us": True}, {}, "latency_us is True"),
        ({}, {"mode": "guess"}, "choose construct or refine"),
        ({}, {"mode": "refine"}, "needs the latency of graph A"),
        ({}, {"parent_us": -1.0}, "parent_us is -1.0"),
        ({}, {"default_us": math.inf}, "default_us is inf"),
        ({}, {"anchor_us": 100.0}, "not faster than L0"),
        ({}, {"noise_band": math.nan}, "noise band of nan"),
        ({}, {"margin": -0.1}, "margin of -0.1"),
    ],
)
def test_numbers_that_are_none(verdict: dict[str, Any], task: dict[str, Any], words: str) -> None:
    fine = {"gate": OK, "fault": None, "f_div": 1.0, "emitted": 5, "applied": 5, "latency_us": 10.0}
    with pytest.raises(ValueError, match=words) as caught:
        reward(fine | verdict, **{"mode": "construct", **TASK, **task})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"dividing": 0.15}, {"applying": 0.2}, {"replayed": 0.5}, {"built": 1.0}])
def test_levels_that_would_let_stages_overlap(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must not overlap"):
        Levels(**change)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Levels)])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_levels_that_are_no_numbers(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="positive numbers"):
        Levels(**{name: value})
