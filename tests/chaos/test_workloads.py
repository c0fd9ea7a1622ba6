"""`dragon workloads` on a part of the paper's zoo: killed and resumed, it leaves the same compacted table."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littledragon.pipelines.store import Store
from littledragon.schemas.tables import BY_NAME

BLOCKS = "120"
KILLS = 4


def start(workdir: Path, executor: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "workloads", "--workdir", str(workdir)]
    options = ["--preset", "paper", "--limit", BLOCKS, "--executor", executor, "--workers", "2"]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen) -> None:
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said


def compacted(workdir: Path) -> list[dict[str, object]]:
    store = Store.open(workdir)
    store.compact("workloads", at_least=1)
    (only,) = store.files("workloads")
    assert only.name.startswith("compact-")
    return [{c.name: row[c.name] for c in BY_NAME["workloads"].columns} for row in store.rows("workloads")]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, object]], float]:
    """The table of a run that nobody disturbs, and how long it took."""
    workdir, began = tmp_path_factory.mktemp("quiet") / "work", time.monotonic()
    finish(start(workdir, "serial"))
    return compacted(workdir), time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "local"])
def test_the_table_is_the_same(quiet, tmp_path, executor):
    wanted, took = quiet
    assert len([row for row in wanted if row["state"] == "ok"]) > 500
    chance, workdir, killed = random.Random(5), tmp_path / "work", 0
    for _ in range(KILLS):
        process = start(workdir, executor)
        until = time.monotonic() + chance.uniform(0.2, 0.5) * took
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        killed += 1
    assert killed >= 2
    finish(start(workdir, executor))
    assert compacted(workdir) == wanted
