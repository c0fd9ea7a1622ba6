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
