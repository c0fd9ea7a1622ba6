"""Which schedules are taught: the equations of the bands and margins, and a reason for everything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.pipelines import pairs, selection
from littledragon.pipelines.config import Config
from littledragon.schemas.gates import REASONS
from littledragon.schemas.ids import ID_PATTERN
from littledragon.schemas.tables import BY_NAME

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
Row = dict[str, Any]


def anchor(default_us: float, anchor_us: float, margin: float = 0.05, **values: Any) -> Row:
    row = {"state": "ok", "reason": None, "detail": None, "default_id": "c0", "anchor_id": "c1"}
    return {**row, "default_us": default_us, "anchor_us": anchor_us, "margin": margin, **values}


def rows(
    latencies: dict[str, float | None], margin: float = 0.05, per_band: int = 1, best: int = 1, **values: Any
) -> list[Row]:
    """The selections of a workload with these verified latencies: c0 is the default schedule, None not verified."""
    candidates = [{"candidate_id": name, "status": "ok", "reason": None} for name in latencies]
    verdicts = [
        {"candidate_id": name, "status": "ok", "reason": None, "latency_us": us}
        for name, us in latencies.items()
        if us is not None
    ]
    least = min(v["latency_us"] for v in verdicts if v["candidate_id"] != "c0")
    name = next(v["candidate_id"] for v in verdicts if v["latency_us"] == least and v["candidate_id"] != "c0")
    made = anchor(latencies["c0"] or 0.0, least, margin, anchor_id=name, **values)
    return selection.select("w", "e", candidates, verdicts, made, set(latencies) - {"c0"}, per_band, best)


def ok(found: list[Row], mode: str) -> list[tuple[str, str | None, str | None]]:
    return [
        (r["candidate_id"], r["parent_id"], r["gain_band"]) for r in found if r["mode"] == mode and r["state"] == "ok"
    ]


def reasons(found: list[Row], mode: str) -> dict[str, str]:
    return {r["candidate_id"]: r["reason"] for r in found if r["mode"] == mode and r["state"] == "rejected"}


def test_construction_takes_the_anchor() -> None:
    found = rows({"c0": 100.0, "c1": 50.0, "c2": 60.0, "c3": None})
    assert ok(found, "construct") == [("c1", None, None)]
    assert reasons(found, "construct") == {"c0": "not_best", "c2": "not_best", "c3": "not_chosen"}
    assert next(r["ratio"] for r in found if r["state"] == "ok" and r["mode"] == "construct") == 2.0


def test_construction_takes_the_next_fastest_too_where_that_is_asked_for() -> None:
    latencies = {"c0": 100.0, "c1": 50.0, "c2": 60.0, "c3": 98.0, "c4": 99.0, "c5": None}
    found = rows(latencies, best=3)
    assert ok(found, "construct") == [("c1", None, None), ("c2", None, None)]
    assert reasons(found, "construct") == {
        "c0": "not_best", "c3": "below_margin", "c4": "not_best", "c5": "not_chosen",
    }  # fmt: skip
    ratios = [r["ratio"] for r in found if r["state"] == "ok" and r["mode"] == "construct"]
    assert ratios == [2.0, pytest.approx(100 / 60)]


@pytest.mark.parametrize(
    ("default_us", "margin", "taught"), [(104.9, 0.05, False), (105.1, 0.05, True), (139.9, 0.4, False)]
)
def test_construction_needs_more_than_the_margin(default_us: float, margin: float, taught: bool) -> None:
    found = rows({"c0": default_us, "c1": 100.0}, margin)
    assert bool(ok(found, "construct")) == taught
    if not taught:
        assert reasons(found, "construct")["c1"] == "below_margin"


def test_each_band_has_its_pair() -> None:
    found = rows(
        {"c0": 999.0, "c1": 100.0, "c2": 120.0, "c3": 149.9, "c4": 150.0, "c5": 200.0, "c6": 499.0, "c7": 500.0}
    )
    assert ok(found, "refine") == [
        ("c1", "c2", "up to 1.5x"),
        ("c1", "c4", "1.5x to 2x"),
        ("c1", "c5", "2x to 5x"),
        ("c1", "c7", "5x or more"),
    ]
    assert reasons(found, "refine") == {"c0": "no_trace", "c3": "enough_pairs", "c6": "enough_pairs"}


def test_a_band_that_the_anchor_leaves_empty_is_filled_by_another() -> None:
    found = rows({"c0": 999.0, "c1": 100.0, "c2": 300.0, "c3": 400.0})
    assert ok(found, "refine") == [("c2", "c3", "up to 1.5x"), ("c1", "c2", "2x to 5x")]
    assert reasons(found, "refine") == {"c0": "no_trace"}


def test_more_pairs_in_a_band() -> None:
    found = rows({"c0": 999.0, "c1": 100.0, "c2": 110.0, "c3": 120.0, "c4": 130.0}, per_band=2)
    assert ok(found, "refine") == [("c1", "c2", "up to 1.5x"), ("c1", "c3", "up to 1.5x")]


def test_a_gap_within_the_margin_is_no_pair() -> None:
    found = rows({"c0": 999.0, "c1": 100.0, "c2": 129.9}, margin=0.3)
    assert ok(found, "refine") == []
    assert reasons(found, "refine") == {"c0": "no_trace", "c1": "below_margin", "c2": "below_margin"}


def test_the_default_schedule_may_be_a_parent_where_it_has_a_trace() -> None:
    verdicts = [
        {"candidate_id": "c0", "status": "ok", "reason": None, "latency_us": 300.0},
        {"candidate_id": "c1", "status": "ok", "reason": None, "latency_us": 100.0},
    ]
    candidates = [{"candidate_id": v["candidate_id"], "status": "ok", "reason": None} for v in verdicts]
    found = selection.select("w", "e", candidates, verdicts, anchor(300.0, 100.0), {"c0", "c1"}, 1)
    assert ok(found, "refine") == [("c1", "c0", "2x to 5x")]


def test_what_failed_says_where() -> None:
    candidates = [
        {"candidate_id": "c1", "status": "ok", "reason": None},
        {"candidate_id": "c2", "status": "correct", "reason": "error 3"},
        {"candidate_id": "c3", "status": "ok", "reason": None},
    ]
    verdicts = [
        {"candidate_id": "c1", "status": "ok", "reason": None, "latency_us": 10.0},
        {"candidate_id": "c3", "status": "stable", "reason": "noise 9%", "latency_us": 11.0},
    ]
    found = selection.select("w", "e", candidates, verdicts, anchor(100.0, 10.0), {"c1", "c2", "c3"}, 1)
    for mode in ("construct", "refine"):
        assert reasons(found, mode) | {"c1": ""} == {"c1": "", "c2": "not_timed", "c3": "not_stable"}
    aside = anchor(0.0, 0.0, state="rejected", reason="launch_bound", margin=None)
    found = selection.select("w", "e", candidates, verdicts, aside, {"c1"}, 1)
    assert reasons(found, "construct") == {"c1": "no_anchor", "c2": "not_timed", "c3": "no_anchor"}
    assert "launch_bound" in next(r["detail"] for r in found if r["reason"] == "no_anchor")


@given(
    st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=9),
    st.floats(0.05, 0.8),
    st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_every_candidate_is_accounted_for(latencies: list[float], margin: float, per_band: int) -> None:
    found = rows({f"c{i}": us for i, us in enumerate(latencies)}, margin, per_band)
    assert len({r["selection_id"] for r in found}) == len(found)
    assert all(ID_PATTERN.fullmatch(r["selection_id"]) for r in found)
    for row in found:
        assert set(row) == {column.name for column in BY_NAME["selections"].columns}
        assert (row["state"] == "ok") == (row["reason"] is None)
        assert row["reason"] is None or row["reason"] in REASONS["pairs"]
    construct = [r["candidate_id"] for r in found if r["mode"] == "construct"]
    assert sorted(construct) == sorted(f"c{i}" for i in range(len(latencies)))
    used = {name for b, a, _ in ok(found, "refine") for name in (a, b)}
    assert used | set(reasons(found, "refine")) == set(construct)
    assert not used & set(reasons(found, "refine"))
    for b, a, words in ok(found, "refine"):
        ratio = latencies[int(str(a)[1:])] / latencies[int(b[1:])]
        assert ratio - 1 > margin
        assert words == selection.band(ratio)
    per = [words for _, _, words in ok(found, "refine")]
    assert all(per.count(words) <= per_band for words in per)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("workloads", "description", "From another block."),
        ("workloads", "operator", "linear"),
        ("workloads", "features", "{}"),
        ("workloads", "module", "{}"),
        ("anchors", "margin", 0.07),
        ("verdicts", "latency_us", 99.0),
        ("candidates", "reason", "late"),
    ],
)
def test_a_unit_changes_with_what_its_rows_come_from(
    tmp_path: Path, tables: Any, fill: Any, table: str, column: str, value: Any
) -> None:
    before = {unit.id for unit in pairs.plan(fill(tmp_path / "w", tables), Config())}
    assert len(before) == 3
    tables[table][0][column] = value
    after = {unit.id for unit in pairs.plan(fill(tmp_path / "w", tables), Config())}
    assert len(before & after) == 2


def test_the_stage_derives_facts_for_what_is_taught() -> None:
    task = json.loads((GOLDEN / "matmul.task.json").read_text(encoding="utf-8"))
    payload = {
        "workload_id": "w-0",
        "environment_id": "e",
        "workload": task["workload"],
        "environment": task["environment"],
        "candidates": [{"candidate_id": c, "source": "x", "status": "ok", "reason": None} for c in ("c0", "c1", "c2")],
        "verdicts": [
            {"candidate_id": c, "status": "ok", "reason": None, "latency_us": us}
            for c, us in (("c0", 300.0), ("c1", 100.0), ("c2", 180.0))
        ],
        "anchor": anchor(300.0, 100.0),
        "tsel": {"c1": task["tsel"], "c2": task["parent_tsel"]},
    }
    result = pairs.work(payload, Config())
    taught = [row for row in result.rows["selections"] if row["state"] == "ok"]
    assert [(row["mode"], row["candidate_id"], row["parent_id"]) for row in taught] == [
        ("construct", "c1", None),
        ("refine", "c1", "c2"),
    ]
    wanted = json.loads((GOLDEN / "matmul.facts.json").read_text(encoding="utf-8"))
    for row in taught:
        facts = [f for f in result.rows["facts"] if f["selection_id"] == row["selection_id"]]
        assert [{k: v for k, v in f.items() if k != "selection_id"} for f in facts] == wanted[row["mode"]]
    assert set(result.rows["facts"][0]) == {column.name for column in BY_NAME["facts"].columns}
