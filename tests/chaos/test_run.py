"""`dragon run` itself, on the simulated device: killed at random and resumed, it leaves what a quiet run leaves."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from littledragon.pipelines import shards
from littledragon.pipelines.store import STAGES, Store
from littledragon.schemas.tables import TABLES

KILLS = 5


def start(workdir: Path, executor: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "run", "--workdir", str(workdir)]
    options = ["--limit", "2", "--device", "simulated", "--executor", executor]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "DRAGON_DEBUG": "1"},
    )


def finish(process: subprocess.Popen) -> None:
    _, said = process.communicate(timeout=500)
    assert process.returncode == 0, said


def tables(workdir: Path) -> dict[str, list[dict[str, object]]]:
    store = Store.open(workdir)
    found = {}
    for table in TABLES:
        observed = {column.name for column in table.columns if column.observed}
        found[table.name] = [{k: v for k, v in row.items() if k not in observed} for row in store.rows(table.name)]
    return found


def finished(workdir: Path) -> dict[str, str]:
    """Every finished unit, planned or not, in whichever file, with the moment when its work began."""
    if not (workdir / "dragon.json").exists():
        return {}
    store = Store.open(workdir)
    paths = [path for stage in STAGES for path in store.files(stage)]
    rows = [row for path in paths for row in shards.read(path, ["outcomes"]).column("outcomes").to_pylist()]
    return {row["unit_id"]: row["started_at"] for row in rows if row is not None}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict[str, object]]], float]:
    """The tables of a run that nobody disturbs, and how long it took."""
    workdir, began = tmp_path_factory.mktemp("quiet") / "work", time.monotonic()
    finish(start(workdir, "serial"))
    return tables(workdir), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "local"])
def test_a_killed_run_goes_on_where_it_was(quiet, tmp_path, executor):
    wanted, took = quiet
    assert wanted["examples"]
    chance, workdir, done = random.Random(3), tmp_path / "work", {}
    for _ in range(KILLS):
        process = start(workdir, executor)
        until = time.monotonic() + chance.uniform(0.1, 0.5) * took
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive, "children outlived the driver"
        now = finished(workdir)
        assert done.items() <= now.items(), "a finished unit was done again, or lost"
        done = now
    finish(start(workdir, executor))
    assert done
    assert done.items() <= finished(workdir).items()
    found = tables(workdir)
    for name, rows in wanted.items():
        assert found[name] == rows, name
