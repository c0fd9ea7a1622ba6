"""Table 1's figures: against tables computed by hand, and what holds for any outputs."""

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from littledragon.release import evaluation
from littledragon.release.evaluation import Estimate, Evaluation, Group, Output, compare, output_of, summarise
from littledragon.schemas.gates import GATES


def verdict(latency_us: float | None = None, gate: str | None = None, **values: Any) -> dict[str, Any]:
    """Of a correct kernel, of a text that a gate refused, or (neither) of a fault."""
    found = {"gate": gate or (None if latency_us is None else "ok"), "latency_us": latency_us, "emitted": 9}
    return found | {"fault": None if found["gate"] else "the disk is full"} | values


def output(task: str, number: int, judged: dict[str, Any], **values: Any) -> Output:
    """L0 is 100 µs, a is 5 µs, A is 20 µs."""
    known: dict[str, Any] = {
        "example_id": f"x-{task}", "task_id": task, "mode": "construct", "family": "gemm", "number": number,
        "verdict": judged, "default_us": 100.0, "anchor_us": 5.0, "margin": 0.05, "noise_band": 0.02,
    }  # fmt: skip
    if values.get("mode") == "refine":
        known["parent_us"] = 20.0
    return Output(**known | values)


BY_HAND = [
    output("a", 0, verdict(10.0)),
    output("a", 1, verdict(50.0)),
    output("a", 2, verdict(51.0)),
    output("a", 3, verdict(None)),
    output("b", 0, verdict(40.0)),
    output("b", 1, verdict(101.0)),
    output("b", 2, verdict(gate="built")),
    output("c", 0, verdict(gate="parsed", emitted=0), family="moe"),
    output("c", 1, verdict(100.0, emitted=0), family="moe"),
    output("c", 2, verdict(9.9), family="moe"),
]


def test_construction_by_hand() -> None:
    group = summarise(BY_HAND).group("construct")
    assert (group.tasks, group.prompts, group.outputs, group.faults, group.empty) == (3, 3, 9, 1, 1)
    assert group.failures == {"parsed": 1, "built": 1}
    assert group.correct.value == pytest.approx(7 / 9)
    assert {p: share.value for p, share in group.fast.items()} == pytest.approx({"1": 6 / 9, "2": 4 / 9, "10": 2 / 9})
    assert group.over_default.value == pytest.approx(math.sqrt(10 * 2.5))
    assert group.over_anchor.value == pytest.approx(math.sqrt(5 / 10 * 5 / 40))
    assert (group.over_default.of, group.correct.of) == (2, 9)
    assert group.or_kept.value == pytest.approx((10 * 2.5 * 1) ** (1 / 3))
    assert (group.improves, group.doubles, group.over_parent) == (None, None, None)
    assert (group.to_kernel_s.value, group.reproduced.value) == (None, None)


def test_families_are_groups_of_their_own() -> None:
    found = summarise(BY_HAND)
    assert [(group.mode, group.family) for group in found.groups] == [
        ("construct", "all"), ("construct", "gemm"), ("construct", "moe"),
    ]  # fmt: skip
    assert found.group("construct", "gemm").correct.value == pytest.approx(5 / 6)
    assert found.group("construct", "moe").correct == Estimate(2 / 3, None, None, 3)  # one task has no interval
    with pytest.raises(KeyError):
        found.group("refine")


def test_refinement_by_hand() -> None:
    """A takes 20 µs: beyond it by the margin is below 19.05 µs, and twice as fast is at most 10 µs."""
    rows = [
        output(task, number, verdict(latency), mode="refine")
        for task, latencies in {"a": (10.0, 19.0, 19.1), "b": (30.0, 5.0, 10.1)}.items()
        for number, latency in enumerate(latencies)
    ]
    group = summarise([*rows, output("b", 3, verdict(gate="correct"), mode="refine")]).group("refine")
    assert group.correct.value == pytest.approx(6 / 7)
    assert group.improves is not None
    assert group.doubles is not None
    assert group.over_parent is not None
    assert group.improves.value == pytest.approx(4 / 7)
    assert group.doubles.value == pytest.approx(2 / 7)
    assert group.over_parent.value == pytest.approx(math.sqrt(2 * 20 / 30))
    assert group.or_kept.value == pytest.approx(math.sqrt(2 * 20 / 30))
    assert group.fast == {}


def test_time_to_kernel_is_all_steps_of_correct_first_outputs() -> None:
    steps = {"read": 0.5, "make": 3.0, "build": 2.0, "check": 1.0, "wait": 0.25}

    def took(task: str, generation_s: float | None, number: int = 0, **values: Any) -> Output:
        return output(task, number, verdict(10.0, seconds=steps) | values, generation_s=generation_s)

    assert took("a", 2.0).seconds == pytest.approx(6.75)
    assert took("a", None).seconds is None
    rows = [took("a", 2.0), took("b", 4.0), took("c", 8.0), took("d", None), took("a", 99.0, 1)]
    rows.append(took("e", 0.0, gate="built"))
    group = summarise(rows).group("construct")
    assert group.to_kernel_s.value == pytest.approx(8.75)
    assert group.to_kernel_s.of == 3
    even = summarise([*rows, took("f", 6.0)]).group("construct")
    assert even.to_kernel_s.value == pytest.approx(9.75)


def test_the_latency_of_the_reference_is_met_within_five_percent_or_two_noise_bands() -> None:
    rows = [
        output(str(number), 0, verdict(latency), reference_us=10.0, noise_band=noise)
        for number, (latency, noise) in enumerate([(10.4, 0.0), (10.6, 0.0), (10.6, 0.04), (9.4, 0.02)])
    ]
    assert summarise(rows).group("construct").reproduced.value == 0.5


def test_the_interval_knows_that_outputs_of_a_task_hang_together() -> None:
    """Eight equal outputs of a task tell no more than one; the bootstrap of a mean of halves has a known width."""
    tasks = 100
    rows = [
        output(f"{task:03}", number, verdict(1.0 if task % 2 else None, gate=None if task % 2 else "built"))
        for task in range(tasks)
        for number in range(8)
    ]
    few = summarise([row for row in rows if row.number == 0]).group("construct").correct
    many = summarise(rows).group("construct").correct
    assert (few.low, few.high) == (many.low, many.high)
    assert few.low is not None
    assert few.high is not None
    assert few.high - few.low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / tasks), rel=0.1)


def test_agreement_of_all_is_no_certainty() -> None:
    """The exact binomial bound: 0.025 ** (1/10) is 0.6915."""
    right = summarise([output(str(task), 0, verdict(1.0)) for task in range(10)]).group("construct").correct
    assert (right.value, right.low, right.high) == (1.0, pytest.approx(0.6915, abs=1e-4), 1.0)
    wrong = summarise([output(str(task), 0, verdict(gate="ran")) for task in range(10)]).group("construct").correct
    assert (wrong.value, wrong.low, wrong.high) == (0.0, 0.0, pytest.approx(0.3085, abs=1e-4))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": "guess"}, "choose construct or refine"),
        ({"number": -1}, "numbered from 0"),
        ({"number": True}, "numbered from 0"),
        ({"default_us": 0.0}, "default_us"),
        ({"anchor_us": math.nan}, "anchor_us"),
        ({"noise_band": -0.1}, "noise_band"),
        ({"generation_s": math.inf}, "generation_s"),
        ({"mode": "refine", "parent_us": None}, "latency of graph A"),
        ({"verdict": {"gate": "guessed"}}, "neither a gate nor a fault"),
        ({"verdict": {"gate": "ok", "latency_us": None}}, "has no latency"),
        ({"verdict": {"gate": "ok", "latency_us": "9"}}, "has no latency"),
    ],
)
def test_what_is_no_output_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(output("a", 0, verdict(1.0)), **values)


def test_an_output_has_one_verdict() -> None:
    with pytest.raises(ValueError, match="have the number 0"):
        summarise([output("a", 0, verdict(1.0)), output("a", 0, verdict(2.0))])


def test_rows_of_a_file() -> None:
    row = {"example_id": "x", "task_id": "w", "mode": "construct", "family": "gemm", "number": 0,
           "verdict": verdict(2.0), "default_us": 4.0, "anchor_us": 1.0, "margin": 0.05, "noise_band": 0.0}  # fmt: skip
    assert output_of(row | {"text_sha256": "0"}).latency_us == 2.0
    wrong: list[dict[str, Any]] = [{"family": 1}, {"verdict": []}, {"verdict": verdict(2.0, seconds=[])}]
    for change in wrong:
        with pytest.raises(ValueError, match=r"(is|are) no "):
            output_of(row | change)
    with pytest.raises(ValueError, match="family is missing"):
        output_of({name: row[name] for name in row if name != "family"})


# -- for any outputs --------------------------------------------------------------------------------

VERDICTS = st.one_of(
    st.builds(verdict, st.floats(0.1, 1000)),
    st.builds(lambda gate: verdict(gate=gate), st.sampled_from(GATES)),
)


@st.composite
def outputs(draw: st.DrawFn) -> list[Output]:
    mode = draw(st.sampled_from(evaluation.MODES))
    rows = []
    for task in range(draw(st.integers(1, 6))):
        family = draw(st.sampled_from(("gemm", "moe")))
        for prompt in range(draw(st.integers(1, 2))):
            for number in range(draw(st.integers(1, 4))):
                judged = draw(VERDICTS) | {"seconds": {"read": draw(st.floats(0, 10))}}
                values = {"family": family, "example_id": f"x-{task}-{prompt}", "generation_s": 1.0}
                rows.append(output(f"w-{task}", number, judged, mode=mode, reference_us=20.0, **values))
    return rows


def summary(rows: list[Output]) -> Evaluation:
    return summarise(rows, resamples=50)


def estimates(group: Group) -> dict[str, Estimate]:
    found = {name: value for name, value in vars(group).items() if isinstance(value, Estimate)}
    return found | {f"fast_{p}": share for p, share in group.fast.items()}


SHARES = ("correct", "improves", "doubles", "reproduced", "fast_1", "fast_2", "fast_10")


@settings(max_examples=40, deadline=None)
@given(outputs())
def test_an_interval_holds_its_estimate(rows: list[Output]) -> None:
    for group in summary(rows).groups:
        for name, estimate in estimates(group).items():
            assert (estimate.value is None) == (estimate.of == 0)
            if estimate.low is not None and estimate.high is not None:
                assert estimate.value is not None
                assert estimate.low <= estimate.value <= estimate.high
                assert name not in SHARES or 0 <= estimate.low <= estimate.high <= 1
    json.loads(evaluation.dumps(summary(rows)))


@settings(max_examples=40, deadline=None)
@given(outputs(), st.randoms())
def test_the_order_of_rows_changes_nothing_and_that_of_outputs_only_what_is_of_the_first(
    rows: list[Output], random: Any
) -> None:
    before = summary(rows)
    shuffled = random.sample(rows, len(rows))
    assert summary(shuffled) == before
    numbers: dict[str, list[int]] = {}
    for row in rows:
        numbers.setdefault(row.example_id, []).append(row.number)
    for of_one in numbers.values():
        random.shuffle(of_one)
    swapped = [replace(row, number=numbers[row.example_id].pop()) for row in rows]
    for one, other in zip(before.groups, summary(swapped).groups, strict=True):
        assert {name: estimates(one).get(name) for name in SHARES} == {
            name: estimates(other).get(name) for name in SHARES
        }
        assert (one.failures, one.outputs) == (other.failures, other.outputs)


@settings(max_examples=40, deadline=None)
@given(outputs(), st.integers(1, 3))
def test_faults_change_no_figure(rows: list[Output], count: int) -> None:
    """Also those of a prompt that has nothing else."""
    faults = [replace(row, number=100 + n, verdict=verdict()) for row in rows if row.number == 0 for n in range(count)]
    lost = replace(rows[0], example_id="x-lost", task_id="w-lost", number=0, verdict=verdict())
    for one, other in zip(summary(rows).groups, summary([*rows, *faults, lost]).groups, strict=True):
        assert estimates(one) == estimates(other)
        assert one.failures == other.failures
        assert other.faults >= count


# -- whose are faster -------------------------------------------------------------------------------


def first(task: str, judged: dict[str, Any], **values: Any) -> Output:
    return output(task, 0, judged, **values)


def test_whose_first_outputs_are_faster_by_hand() -> None:
    """The noise band is 2%; further outputs play no part."""
    a = {"1": 10.0, "2": 10.0, "3": 10.0, "4": 10.0, "5": 10.0, "6": None, "8": None, "9": None}
    b = {"1": 10.3, "2": 20.0, "3": 10.1, "4": 10.0, "5": 8.0, "6": 1.0, "7": 5.0, "8": None, "9": 1.0}
    ours = [first(task, verdict(us, gate=None if us else "built")) for task, us in a.items() if task != "9"]
    ours += [first("9", verdict()), output("5", 1, verdict(1.0))]
    theirs = [first(task, verdict(us, gate=None if us else "ran")) for task, us in b.items()]
    found = compare(ours, theirs)[0]
    assert (found.faster, found.slower, found.undecided, found.ties, found.both) == (2, 1, 1, 1, 5)
    assert (found.only_a, found.only_b, found.neither, found.faults, found.unshared) == (0, 1, 1, 1, 1)
    assert (found.tasks_faster, found.tasks_slower, found.p_value) == (2, 1, 1.0)
    assert found.ratio == pytest.approx((1.03 * 2 * 1.01 * 1 * 0.8) ** 0.2)
    other = compare(theirs, ours)[0]
    assert (other.faster, other.slower, other.only_a) == (1, 2, 1)


def test_the_sign_test_is_over_tasks() -> None:
    """Three prompts of one task are one trial: two of them decide it."""
    ours = [first("w", verdict(us), example_id=f"x-{n}") for n, us in enumerate((1.0, 1.0, 9.0))]
    theirs = [first("w", verdict(2.0), example_id=f"x-{n}") for n in range(3)]
    found = compare(ours, theirs)[0]
    assert (found.faster, found.slower, found.tasks_faster, found.tasks_slower) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("wins", "losses", "expected"), [(0, 0, None), (1, 0, 1.0), (5, 0, 0.0625), (8, 2, 0.109375), (3, 3, 1.0)]
)
def test_sign_test(wins: int, losses: int, expected: float | None) -> None:
    assert evaluation.sign_test(wins, losses) == evaluation.sign_test(losses, wins) == expected


def test_the_papers_own_comparison() -> None:
    """88 of 102 construction tasks."""
    p = evaluation.sign_test(88, 14)
    assert p is not None
    assert p < 1e-13


@pytest.mark.parametrize("change", [{"environment_id": "f"}, {"device": "real"}, {"task_id": "other"}])
def test_latencies_of_two_environments_are_never_compared(change: dict[str, str]) -> None:
    one = first("w", verdict(1.0), environment_id="e", device="simulated")
    with pytest.raises(ValueError, match="not comparable"):
        compare([one], [replace(one, **change)])


def test_tables_and_json_say_the_same() -> None:
    rows = [replace(row, reference_us=10.0, generation_s=1.0) for row in BY_HAND]
    rows += [output("r", n, verdict(us), mode="refine") for n, us in enumerate((5.0, 30.0))]
    found = summarise(rows)
    console = Console(record=True, width=200, file=io.StringIO())
    for table in (*evaluation.tables(found), *evaluation.comparison_tables(compare(rows, rows))):
        console.print(table)
    said = console.export_text()
    for words in ("Construction, per output", "77.8 [", "fast_10", "beyond A", "2× over A", "not built", "0 of 2"):
        assert words in said
    assert [title for title, _ in evaluation.columns("refine", [found.group("refine")])] == [
        "per output, % [95%]", "first outputs, geometric means [95%]",
    ]  # fmt: skip
    plain = json.loads(evaluation.dumps(found))
    assert plain["groups"][0]["fast"]["10"]["value"] == pytest.approx(2 / 9)
    assert json.loads(evaluation.dumps(compare(rows, rows)))[0]["ties"] == 2
