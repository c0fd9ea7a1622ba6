"""The leakage report finds what it is for: copies, equal modules, shared cells and near twins across splits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littledragon.release import leakage


def row(id: str, split: str, extents: list[int], **changes: Any) -> dict[str, Any]:
    own = {"module": f"m{id}", "module_hash": f"h{id}", "cell": f"c{extents}", "signature": "matmul"}
    return {"workload_id": id, "split": split, "extents": extents, **own, **changes}


def test_distant_cells_do_not_leak() -> None:
    rows = leakage.report([row("a", "train", [64, 64]), row("b", "test", [64, 100]), row("c", "embargo", [64, 64])])
    assert [(r["workload_id"], r["against"], r["same_signature"]) for r in rows] == [
        ("b", "train", 1),
        ("b", "validation", 0),
    ]
    assert rows[0]["nearest_id"] == "a"
    assert rows[0]["nearest_ratio"] == pytest.approx(100 / 64)
    assert leakage.leaks(rows) == []


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
    assert sum(line[kind] for line in leakage.summary(found)) == 1


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


@given(st.lists(st.tuples(st.sampled_from(["train", "validation", "test", "embargo"]), EXTENTS), max_size=12))
def test_the_nearest_ratio_is_the_least_of_all_pairs(cells: list[tuple[str, list[int]]]) -> None:
    rows = [row(str(i), split, extents) for i, (split, extents) in enumerate(cells)]
    for found in leakage.report(rows):
        own = next(r for r in rows if r["workload_id"] == found["workload_id"])["extents"]
        ratios = [
            max(max(a / b, b / a) for a, b in zip(own, r["extents"], strict=True))
            for r in rows
            if r["split"] == found["against"]
        ]
        assert found["nearest_ratio"] == (pytest.approx(min(ratios)) if ratios else None)
