"""Stage workloads: which units are planned, what a real block gives, and how equal tasks are merged."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler.zoo import FAMILIES, Block, blocks
from littledragon.compiler.zoo.block import MOST_CASES
from littledragon.pipelines import driver, workloads
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Serial
from littledragon.pipelines.stage import Result
from littledragon.pipelines.store import Store
from littledragon.release import splits

OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}
SEALED = splits.Sealed(frozenset({("SR", (64, 64))}), frozenset(), frozenset())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "work", create=True)


def row(block_id: str, task: str = "main", **values: Any) -> dict[str, Any]:
    new = {"block_id": block_id, "configuration": "cut", "task": task, "workload_id": "w-0000000000000000"}
    return {**new, "signature": "SR", "extents": [8, 8], **values}


def chosen(config: Config) -> list[Block]:
    return [block for group in workloads.chosen(config) for block in group]


def test_a_group_of_the_papers_zoo_is_what_one_model_has_of_a_family() -> None:
    groups = workloads.chosen(Config(zoo="paper"))
    assert sorted(b.id for group in groups for b in group) == sorted(b.id for b in blocks("paper"))
    for group in groups:
        assert len({(block.family, block.model.source) for block in group}) == 1
        assert sum(len(block.cases) for block in group) <= MOST_CASES
    few = workloads.chosen(Config(zoo="paper", limit=40))
    assert 6 <= sum(map(len, few)) <= 40
    assert all(group in groups for group in few)


def test_blocks_are_taken_in_turn_from_the_families() -> None:
    assert {b.id for b in chosen(Config())} == {b.id for b in blocks("demo")}
    assert [b.family for b in chosen(Config(limit=8))] == [*FAMILIES, *FAMILIES[:2]]
    twelve = Counter(b.family for b in chosen(Config(limit=12)))
    assert set(twelve.values()) == {2}
    two = chosen(Config(families=("moe", "gemm"), limit=3))
    assert [b.family for b in two] == ["gemm", "moe", "gemm"]
    with pytest.raises(UserError, match=r"unknown 'audio': choose among attention, "):
        workloads.chosen(Config(families=("audio",)))


def test_choosing_blocks_leaves_their_units_alone(store: Store) -> None:
    every = {unit.id for unit in workloads.plan(store, Config())}
    few = {unit.id for unit in workloads.plan(store, Config(families=("moe",), limit=2, seed=9))}
    assert len(few) == 2 and few < every
    assert not every & {unit.id for unit in workloads.plan(store, Config(target="cuda"))}


def test_the_reduce_waits_for_every_block_and_leaves_failed_ones_out(store: Store) -> None:
    config = Config(families=("gemm",), limit=3)
    units = workloads.plan(store, config)
    assert len(units) == 3
    for unit, state in zip(units[:2], ("ok", "failed"), strict=True):
        store.commit(unit, Result(state=state), OBSERVED)  # type: ignore[arg-type]
    assert len(workloads.plan(store, config)) == 3
    store.commit(units[2], Result(state="rejected", reason="no_task"), OBSERVED)
    *blocks, reduce = workloads.plan(store, config)
    assert blocks == units
    assert reduce.inputs == {"reduce": sorted([units[0].id, units[2].id]), "sealed": splits.version()}
    store.commit(units[1], Result(), {**OBSERVED, "attempt": 2})
    assert workloads.plan(store, config)[-1].inputs["reduce"] == sorted(unit.id for unit in units)


def test_of_equal_tasks_the_smallest_block_id_stays() -> None:
    rows = [row("b/2"), row("b/1", "z"), row("b/1", "a"), row("b/3", workload_id="other", extents=[64, 64])]
    merged = {(r["block_id"], r["task"]): r for r in workloads.merge(rows, SEALED)}
    kept = merged["b/1", "a"]
    assert (kept["state"], kept["split"], kept["cell"]) == ("ok", "train", splits.cell("SR", [8, 8]))
    for key in (("b/1", "z"), ("b/2", "main")):
        twin = merged[key]
        assert (twin["state"], twin["reason"]) == ("rejected", "duplicate")
        assert twin["detail"] == "w-0000000000000000 is task a of b/1, cut"
        assert twin["cell"] is None and twin["split"] is None
    assert merged["b/3", "main"]["split"] == "test"
    assert workloads.merge(list(reversed(rows)), SEALED) == workloads.merge(rows, SEALED)


def test_a_cell_holds_six_workloads_duplicates_not_counted() -> None:
    rows = [row("b/0", str(number), workload_id=f"w-{number}") for number in range(8)]
    rows += [row("b/1", workload_id="w-0"), row("b/1", "wide", workload_id="w-9", extents=[8, 9])]
    merged = workloads.merge(rows, SEALED)
    assert Counter(r["reason"] for r in merged) == {None: 7, "cell_full": 2, "duplicate": 1}
    assert [r["task"] for r in merged if r["reason"] == "cell_full"] == ["6", "7"]


def test_a_real_run(store: Store) -> None:
    """Two blocks lowered in a child, merged, read back; a second run does nothing; a third block adds to it."""
    config = Config(families=("attention", "gemm"), limit=2)
    driver.run(store, ["workloads"], config, Serial())
    rows = store.rows("workloads")
    assert Counter(r["family"] for r in rows if r["state"] == "ok") == {"attention": 1, "gemm": 1}
    assert len(store.rows("extractions")) == 2
    assert all(r["split"] in ("train", "validation", "test") and r["cell"] for r in rows)
    assert store.sql("select distinct state from outcomes").to_pylist() == [{"state": "ok"}]
    files = {path: path.stat().st_mtime_ns for path in store.files("workloads")}
    driver.run(store, ["workloads"], config, Serial())
    assert {path: path.stat().st_mtime_ns for path in store.files("workloads")} == files
    driver.run(store, ["workloads"], replace(config, limit=3), Serial())
    assert len(store.rows("workloads")) == 3
    assert len(store.files("workloads")) == len(files) + 2
