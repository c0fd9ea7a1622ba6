"""`dragon bench search` from end to end: ours on the simulated device, and stock's tuner where the CPU is real."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from littledragon.compiler import children, targets
from littledragon.compiler.zoo import blocks
from littledragon.pipelines import bench_search, search
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store


@pytest.mark.slow
def test_ours_is_measured_on_a_work_directory_of_its_own(tmp_path: Path) -> None:
    out, console = tmp_path / "figures.json", Console(record=True, width=200)
    code = bench_search.measure(
        console, device="simulated", workloads=2, trials=4, stock=0, jobs=2, limit=6, workdir=tmp_path / "work", out=out
    )
    assert code == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    ours = figures["ours"]
    assert (ours["workloads"], ours["candidates"]) == (2, 8)
    assert 0 < ours["checked"] <= 8
    assert ours["search"]["cpu_s"] > 0
    assert sum(ours["status"].values()) == 8
    assert len(Store.open(tmp_path / "work").rows("anchors")) == 2
    assert "ours, search" in console.export_text()

    ids = [chain.workload_id for chain in search.chains(Store.open(tmp_path / "work"), Config(workloads=2))]
    recorded = {one: {"seconds": 2.0, "cpu_s": 3.0, "trials": [[1.0, 5.0, "a trace"]]} for one in ids}
    peers = tmp_path / "peers.json.gz"
    peers.write_bytes(gzip.compress(json.dumps({"stock": recorded}).encode()))
    again: dict[str, Any] = {
        "device": "simulated",
        "workloads": 2,
        "trials": 4,
        "jobs": 2,
        "limit": 6,
        "workdir": tmp_path / "work",
    }
    assert bench_search.measure(console, **again, peers=peers, out=out) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["stock"] == recorded
    assert "stock over ours" in console.export_text()
    for nothing in (b"no gzip", gzip.compress(b"[]"), gzip.compress(b'{"stock": ')[:-9]):
        peers.write_bytes(nothing)
        with pytest.raises(UserError, match=r"peers\.json\.gz: holds no figures of this benchmark"):
            bench_search.measure(console, **again, peers=peers)


@pytest.mark.slow
def test_stock_s_tuner_gives_its_trials_and_what_they_cost() -> None:
    first = next(one.id for one in blocks("demo") if one.family == "gemm")
    (row, *_) = children.once(
        "littledragon.compiler.lowering:extract",
        deadline_s=120,
        zoo="demo",
        block_ids=[first],
        target=targets.target("llvm"),
    )
    answer = children.once(
        "littledragon.compiler.stock:tune",
        deadline_s=600,
        module=row["module"],
        target=targets.target("llvm"),
        rules="llvm",
        trials=4,
        seed=1,
        build_timeout_s=120.0,
    )
    assert len(answer["trials"]) == 4
    assert answer["cpu_s"] > 0
    assert all(0 < trial[0] <= answer["seconds"] for trial in answer["trials"])
    assert all(trial[1] is None or trial[1] > 0 for trial in answer["trials"])


def test_a_stock_run_that_timed_nothing_is_said_and_is_in_no_ratio() -> None:
    console = Console(record=True, width=200)
    stage = {"seconds": 10.0, "cpu_s": 40.0, "held_s": 1.0, "gpu_busy": None}
    counts = dict.fromkeys(("workloads", "verified", "stable", "small", "small_stable"), 2)
    ours = {"search": stage, "verify": stage, "candidates": 20, "checked": 20, "status": {}, **counts}
    slow = {"seconds": 10.0, "cpu_s": 40.0, "trials": [[1.0, 5.0, "a trace"], [2.0, None, None]]}
    none = {"seconds": 216.0, "cpu_s": 900.0, "trials": [[1.0, None, None]] * 64}
    bench_search._print(console, ours, {"w-slow": slow, "w-none": none}, [])
    said = console.export_text()
    assert "stock, w-none: none of 64 candidates was timed in 216 s" in said
    assert "checked candidates a second, ours over stock: 20.00 (geometric mean of 1, from 20.00 to 20.00)" in said
    assert "CPU seconds a checked candidate, stock over ours: 20.00 (geometric mean of 1" in said
