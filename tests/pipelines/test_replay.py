"""A row is run again, from the work directory and from the published folder; hostile folders end in one line."""

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from littledragon.pipelines import publish, replay
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel

Tables = dict[str, list[dict[str, Any]]]
SIMULATED = Config(device="simulated")
REAL = Config(repeat_ms=1.0)
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}


@pytest.fixture(scope="module")
def released(
    tmp_path_factory: pytest.TempPathFactory, built_tables: Tables, fill: Callable[[Path, Tables], Store]
) -> Store:
    store = fill(tmp_path_factory.mktemp("replay") / "w", built_tables)
    units = publish.plan(store, SIMULATED)
    store.plan(publish.NAME, units)
    for unit in units:
        store.commit(unit, publish.work(publish.load(store, unit, SIMULATED), SIMULATED), OBSERVED)
    publish.finish(store, SIMULATED)
    return store


def example(store: Store, mode: str) -> dict[str, Any]:
    """The example of the one workload whose module TVM reads."""
    return store.rows("examples", "mode = $mode AND split = 'train'", mode=mode)[0]


def run(source: Path, id: str, config: Config) -> tuple[int, str]:
    console = Console(file=StringIO(), width=300, color_system=None)
    code = replay.replay(source, id, config, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_published_refinement_runs_on_the_real_device(released: Store) -> None:
    row = example(released, "refine")
    code, told = run(released.path / "release", row["example_id"], REAL)
    assert code == replay.CORRECT
    lines = told.splitlines()
    assert lines[1].startswith("  L0, the default schedule")
    assert lines[2].startswith("  A, the prior graph")
    assert lines[3].startswith(f"  L, {row['example_id']}")
    assert all("correct, error" in line and line.split()[-9] != "-" for line in lines[1:4])
    assert "environment: another one (device: simulated there, real here" in told.replace("target: ", "device: ")[
        :10000
    ] or ("environment: another one" in told)
    assert "3.000 claimed: the claim of more than 1.050" in told
    assert f"{row['example_id']}: correct here" in told
