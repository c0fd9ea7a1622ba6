"""The leakage report finds what it is for: copies, equal modules, shared cells and near twins across splits."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.release import leakage, splits


def row(id: str, split: str, extents: list[int], **changes: Any) -> dict[str, Any]:
    own = {"module": f"m{id}", "module_hash": f"h{id}", "cell": f"c{extents}", "signature": "matmul", "family": "gemm"}
    return {"workload_id": id, "split": split, "extents": extents, **own, **changes}


def ratio(a: Sequence[int], b: Sequence[int]) -> float:
    return max(max(x / y, y / x) for x, y in zip(a, b, strict=True))


def test_distant_cells_do_not_leak() -> None:
    rows = leakage.report([row("a", "train", [64, 64]), row("b", "test", [64, 100]), row("c", "embargo", [64, 64])])
    assert [(r["workload_id"], r["against"], r["same_signature"]) for r in rows] == [
        ("b", "train", 1),
        ("b", "validation", 0),
    ]
    assert rows[0]["nearest_id"] == "a"
    assert rows[0]["nearest_ratio"] == 100 / 64
    assert leakage.leaks(rows) == []
    assert all(set(found) == set(leakage.COLUMNS) for found in rows)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"module": "ma"}, "exact"),
        ({"module_hash": "ha"}, "structural"),
        ({"cell": "c[64, 64]"}, "same_cell"),
    ],
)
def test_copies_are_found_however_far_the_extents(changes: dict[str, Any], kind: str) -> None:
    found = leakage.report([row("a", "train", [64, 64]), row("b", "test", [512, 512], **changes)])
    assert found[0][kind] == 1
    assert len(leakage.leaks(found)) == 1
    lines = {(line["family"], line["split"], line["against"]): line for line in leakage.summary(found)}
    assert {place for place, line in lines.items() if line[kind]} == {(f, "test", "train") for f in ("all", "gemm")}


def test_the_same_id_is_the_same_workload_whatever_its_hash() -> None:
    (found, _) = leakage.report(
        [row("a", "train", [64, 64]), row("a", "test", [512, 512], module_hash="hb", module="mb")]
    )
    assert (found["exact"], found["structural"]) == (0, 1)
    (found, _) = leakage.report([row("a", "train", [64, 64]), row("a", "test", [512, 512], module="mb")])
    assert (found["exact"], found["structural"]) == (0, 1)


@pytest.mark.parametrize(("extent", "near"), [(96, True), (97, False), (43, True), (42, False)])
def test_a_factor_of_one_and_a_half_in_every_extent_is_too_near(extent: int, near: bool) -> None:
    found = leakage.report([row("a", "validation", [64, 64]), row("b", "test", [extent, 64])])
    assert bool(leakage.leaks(found)) == near


def test_other_signatures_and_ranks_are_not_compared() -> None:
    others = [row("a", "train", [64, 64], signature="conv"), row("b", "train", [64]), row("c", "test", [64, 64])]
    (against_train, _) = leakage.report(others)
    assert against_train["same_signature"] == 0
    assert against_train["nearest_ratio"] is None


EXTENTS = st.lists(st.integers(1, 4096), min_size=2, max_size=2)
SPLITS = st.sampled_from(["train", "validation", "test", "embargo"])


@pytest.mark.parametrize("at_once", [1, 7, leakage.PAIRS_AT_ONCE])
@given(cells=st.lists(st.tuples(SPLITS, EXTENTS), max_size=12))
def test_the_nearest_ratio_is_the_least_of_all_pairs(at_once: int, cells: list[tuple[str, list[int]]]) -> None:
    rows = [row(str(i), split, extents) for i, (split, extents) in enumerate(cells)]
    by_id = {r["workload_id"]: r for r in rows}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakage, "PAIRS_AT_ONCE", at_once)
        report = leakage.report(rows)
    assert len(report) == 2 * sum(r["split"] == "test" for r in rows) + sum(r["split"] == "validation" for r in rows)
    for found in report:
        own = by_id[found["workload_id"]]["extents"]
        ratios = [ratio(own, r["extents"]) for r in rows if r["split"] == found["against"]]
        assert found["nearest_ratio"] == (min(ratios) if ratios else None)
        if ratios:
            assert ratio(own, by_id[found["nearest_id"]]["extents"]) == found["nearest_ratio"]
            assert by_id[found["nearest_id"]]["split"] == found["against"]


@given(st.lists(st.tuples(SPLITS, EXTENTS), max_size=12), st.randoms(use_true_random=False))
def test_a_report_ignores_order(cells: list[tuple[str, list[int]]], random: Random) -> None:
    rows = [row(str(i), split, extents) for i, (split, extents) in enumerate(cells)]
    report = leakage.report(rows)
    random.shuffle(rows)
    assert leakage.report(rows) == report


def test_a_histogram_counts_each_edge_to_the_lower_bin() -> None:
    ratios = [1.0, 1.2, 1.5, 1.6, 2.0, 4.0, 4.5, 8.0, 9.0, None]
    found = leakage.spread(ratios)
    assert {name: found[name] for name in leakage.BINS} == {
        "1": 1, "to 1.5": 2, "to 2": 2, "to 4": 1, "to 8": 2, "above 8": 1, "alone": 1
    }  # fmt: skip
    assert (found["least_ratio"], found["median_ratio"]) == (1.0, 2.0)
    assert found["p10_ratio"] == pytest.approx(1.16)
    assert found["p90_ratio"] == pytest.approx(8.2)
    empty = leakage.spread([None])
    assert (empty["least_ratio"], empty["p90_ratio"], empty["alone"], empty["1"]) == (None, None, 1, 0)


def test_a_summary_has_every_pair_of_every_family() -> None:
    rows = [
        row("a", "train", [64, 64]),
        row("b", "test", [64, 100]),
        row("c", "test", [64, 1000], family="moe"),
        row("d", "test", [9], family="moe"),
        row("e", "validation", [64, 150]),
    ]
    lines = {(line["family"], line["split"], line["against"]): line for line in leakage.summary(leakage.report(rows))}
    assert list(lines) == [(family, *pair) for family in ("all", "gemm", "moe") for pair in leakage.PAIRS]
    everything, moe = lines["all", "test", "train"], lines["moe", "test", "train"]
    assert (everything["workloads"], everything["to 2"], everything["above 8"], everything["alone"]) == (3, 1, 1, 1)
    assert (moe["workloads"], moe["to 2"], moe["above 8"], moe["alone"]) == (2, 0, 1, 1)
    assert lines["gemm", "test", "validation"]["near"] == lines["gemm", "test", "validation"]["to 1.5"] == 1
    assert lines["moe", "validation", "train"]["workloads"] == 0


def test_twins_by_hand() -> None:
    cells = [
        ("gemm", "S", (100, 8), 2),
        ("moe", "S", (130, 8), 1),
        ("moe", "S", (100, 8), 3),
        ("moe", "S", (100, 80), 1),
        ("moe", "S", (100,), 1),
    ]
    everything, gemm, moe = leakage.twins(cells)
    assert (everything["family"], everything["workloads"], everything["cells"]) == ("all", 8, 4)
    assert (everything["to 1.5"], everything["above 8"], everything["alone"]) == (2, 1, 1)
    assert (gemm["family"], gemm["workloads"], gemm["cells"], gemm["least_ratio"]) == ("gemm", 2, 1, 1.3)
    assert (moe["workloads"], moe["cells"], moe["to 1.5"], moe["1"]) == (6, 4, 2, 0)


def test_a_ladder_of_shapes_is_seen() -> None:
    (ladder, _) = leakage.twins(("gemm", "S", (128 + step, 64), 1) for step in range(40))
    (spaced, _) = leakage.twins(("gemm", "S", (4**step, 64), 1) for step in range(12))
    assert (ladder["to 1.5"], spaced["to 1.5"], spaced["to 4"]) == (40, 0, 12)


@pytest.mark.parametrize("at_once", [1, 7, leakage.PAIRS_AT_ONCE])
@given(shapes=st.sets(EXTENTS.map(tuple), max_size=12))
def test_a_twin_is_the_nearest_other_cell(at_once: int, shapes: set[tuple[int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leakage, "PAIRS_AT_ONCE", at_once)
        found = leakage.twins(("gemm", "S", shape, 1) for shape in shapes)
    ratios = [min((ratio(a, b) for b in shapes if b != a), default=None) for a in shapes]
    if shapes:
        assert {name: found[0][name] for name in found[0] if name not in ("family", "workloads", "cells")} == (
            leakage.spread(ratios)
        )


def test_a_sealed_zoo_does_not_leak() -> None:
    zoo = [
        (f, "SS", (2**i * j, 3 * 2**k), 2) for f in ("gemm", "moe") for i in range(9) for j in (3, 4) for k in range(9)
    ]
    sealed = splits.seal(zoo)
    rows = [
        row(f"{number}", splits.split(s, e, sealed), list(e), family=f, cell=splits.cell(s, e), signature=s)
        for number, (f, s, e, _) in enumerate(zoo)
    ]
    assert {"train", "validation", "test"} <= {r["split"] for r in rows}
    report = leakage.report(rows)
    assert report and leakage.leaks(report) == []
    moved = next(r for r in rows if r["split"] == "test")
    assert leakage.leaks(leakage.report([*rows, {**moved, "workload_id": "new", "split": "train"}]))
