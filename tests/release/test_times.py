"""Time to kernel, against figures worked out by hand."""

import json
from typing import Any

import pytest

from littledragon.release import times
from littledragon.release.evaluation import Output
from littledragon.release.times import Trajectory, Trial


def output(task: str, latency_us: float | None, seconds: float | None = 2.0, **changes: Any) -> Output:
    """L0 is 100 µs; half a second of the time is judging."""
    gate = "ok" if latency_us is not None else "built"
    verdict = {"gate": gate, "latency_us": latency_us, "seconds": {"make": 0.3, "check": 0.2}}
    values: dict[str, Any] = {
        "example_id": f"x-{task}", "task_id": task, "mode": "construct", "family": "gemm", "number": 0,
        "verdict": verdict, "default_us": 100.0, "anchor_us": 10.0, "margin": 0.05, "noise_band": 0.01,
        "generation_s": None if seconds is None else seconds - 0.5,
    }  # fmt: skip
    return Output(**values | changes)


def search(task: str, *trials: tuple[float, float | None], ended_s: float | None = None) -> Trajectory:
    return Trajectory(task, tuple(Trial(n, at, us) for n, (at, us) in enumerate(trials, 1)), ended_s)


GEMM = search("a", (10, 50.0), (8, None), (20, 20.0), (30, 25.0), (60, 10.0))
SHORT = search("b", (10, 80.0), (15, None), ended_s=18.0)
CUT = search("c", (10, 5.0))


def test_a_pair_by_hand() -> None:
    found = times.times([output("a", 25.0)], {"a": GEMM}, 4)
    (pair,) = found.pairs
    assert (pair.seconds, pair.latency_us, pair.whole_s, pair.ratio) == (2.0, 25.0, 30, 15.0)
    assert (pair.reached_s, pair.reached_ratio, pair.at_least) == (20, 10.0, False)
    assert (pair.over_default, pair.search_over_default) == (4.0, 5.0)


def test_trials_end_out_of_order() -> None:
    """The second was judged before the first: two trials took as long as the first; the first as fast is by time."""
    assert GEMM.whole_s(2) == 10
    assert [trial.number for trial in GEMM.first(2)] == [1, 2]
    late_first = search("a", (50, 20.0), (5, 20.0))
    (pair,) = times.times([output("a", 20.0)], {"a": late_first}, 2).pairs
    assert (pair.whole_s, pair.reached_s) == (50, 5)


def test_a_search_that_never_is_as_fast_gives_a_lower_bound() -> None:
    found = times.times([output("a", 15.0)], {"a": GEMM}, 4)
    (pair,) = found.pairs
    assert (pair.reached_s, pair.reached_ratio, pair.at_least) == (None, 15.0, True)
    assert found.group("construct").never == 1
    assert times.times([output("a", 15.0)], {"a": GEMM}, 5).pairs[0].reached_s == 60


def test_what_noise_does_not_tell_apart_is_as_fast() -> None:
    """The output has 25 µs, with a noise band of 1%: a trial of 25.2 µs is as fast, one of 25.3 µs is not."""
    for us, reached_s in ((25.2, 10), (25.3, None)):
        (pair,) = times.times([output("a", 25.0)], {"a": search("a", (10, us))}, 1).pairs
        assert (pair.reached_s, pair.at_least) == (reached_s, reached_s is None)


def test_of_a_batch_that_goes_on_nothing_is_known() -> None:
    batches = search("a", *[(10, 50.0)] * 3, *[(20, 20.0)] * 4)
    assert [(len(batches.first(n)), batches.whole_s(n)) for n in (3, 5, 7, 8)] == [(3, 10), (3, 10), (7, 20), (7, None)]
    (pair,) = times.times([output("a", 20.0)], {"a": batches}, 5).pairs
    assert (pair.whole_s, pair.reached_s) == (10, None)


def test_an_interval_over_lower_bounds_has_no_upper_end() -> None:
    searches = {task: search(task, (at, us)) for task, at, us in (("a", 4.0, 10.0), ("b", 8.0, 50.0), ("c", 9.0, 9.0))}
    outputs = [output(task, 20.0) for task in searches]
    group = times.times(outputs, searches, 1).group("construct")
    assert group.never == 1
    assert times.reached(group) == f"≥ {group.reached_ratio.value:.3g} [{group.reached_ratio.low:.3g}, …)"
    fast = times.times(outputs[::2], searches, 1).group("construct")
    assert fast.never == 0
    assert times.reached(fast).endswith(f", {fast.reached_ratio.high:.3g}]")
    alone = times.times(outputs[1:2], searches, 1).group("construct")
    assert times.reached(alone) == f"≥ {alone.reached_ratio.value:.3g}"


def test_a_search_that_found_no_more_is_whole_and_one_that_was_cut_short_is_not() -> None:
    assert (SHORT.whole_s(2), SHORT.whole_s(3), CUT.whole_s(1), CUT.whole_s(2)) == (15, 18.0, 10, None)
    found = times.times([output("b", 40.0), output("c", 40.0), output("d", 40.0)], {"b": SHORT, "c": CUT}, 8)
    group = found.group("construct")
    assert (group.pairs, group.unsearched, group.never) == (1, 2, 1)
    assert found.pairs[0].whole_s == 18.0


def test_a_search_with_nothing_correct_has_no_speed_up() -> None:
    found = times.times([output("a", 40.0)], {"a": search("a", ended_s=4.0)}, 8)
    assert (found.pairs[0].whole_s, found.pairs[0].search_over_default) == (4.0, None)
    assert found.group("construct").search_over_default.value is None


def test_medians_by_family_and_what_is_left_out() -> None:
    searches = {t: search(t, (at, 10.0)) for t, at in (("a", 4.0), ("b", 8.0), ("c", 40.0), ("r", 6.0))}
    outputs = [
        output("a", 20.0), output("b", 20.0, family="moe"), output("c", 20.0, 4.0), output("a", None, example_id="x-1"),
        output("a", 20.0, number=1), output("b", 20.0, None, example_id="x-2"),
        output("b", 20.0, example_id="x-3", verdict={"gate": None, "fault": "the disk is full"}),
        output("r", 20.0, mode="refine", parent_us=50.0),
    ]  # fmt: skip
    found = times.times(outputs, searches, 1)
    group = found.group("construct")
    assert (group.tasks, group.pairs, group.incorrect, group.faults, group.untimed) == (3, 3, 1, 1, 1)
    assert (group.ratio.value, group.seconds.value, group.whole_s.value) == (4.0, 2.0, 8.0)  # of 2, 4, 10
    assert group.ratio.low is not None
    assert group.ratio.high is not None
    assert 2 <= group.ratio.low <= 4 <= group.ratio.high <= 10
    assert found.group("construct", "gemm").ratio.value == 6.0  # between 2 and 10
    assert (found.group("construct", "moe").ratio.value, found.group("construct", "moe").ratio.low) == (4.0, None)
    assert found.group("refine").ratio.value == 3.0
    assert json.loads(times.dumps([found]))[0]["groups"][0]["pairs"] == 3


def test_rows_of_a_trials_file() -> None:
    """The last row of a trial counts, and none beyond the end."""
    rows = [
        {"task_id": "a", "trial": 2, "elapsed_s": 3.0, "latency_us": None},
        {"task_id": "a", "trial": 1, "elapsed_s": 2, "latency_us": 5.0},
        {"task_id": "a", "trial": 1, "elapsed_s": 4, "latency_us": 6.0},
        {"task_id": "a", "trial": 3, "elapsed_s": 9.0, "latency_us": 1.0},
        {"task_id": "a", "trial": 3, "elapsed_s": 7.0, "latency_us": None, "end": "exhausted"},
    ]
    assert times.trajectories_of(rows) == {"a": search("a", (4.0, 6.0), (3.0, None), ended_s=7.0)}


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": 1}, {"trial": 0}, {"trial": True}, {"elapsed_s": -1}, {"elapsed_s": float("nan")},
        {"elapsed_s": None}, {"latency_us": 0}, {"latency_us": "5"}, {"latency_us": float("inf")},
    ],
)  # fmt: skip
def test_a_row_that_is_no_trial_is_refused(change: dict[str, Any]) -> None:
    row = {"task_id": "a", "trial": 1, "elapsed_s": 1.0, "latency_us": 5.0}
    times.trajectories_of([row])
    with pytest.raises(ValueError, match="trial"):
        times.trajectories_of([row | change])


def test_tables() -> None:
    from rich.console import Console

    found = times.times([output("a", 15.0)], {"a": GEMM}, 4, "search")
    console = Console(width=200, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as said:
        for table in [times.task_table(found), *times.tables(found)]:
            console.print(table)
    text = said.get()
    assert "against search of 4 trials" in text
    each, groups = text.split("time to kernel")
    assert "≥ 15" in groups
    assert [line.split()[-5:] for line in each.splitlines() if line.split()[:1] == ["a"]] == [
        ["never", "≥", "15", "6.67", "5.00"]
    ]
