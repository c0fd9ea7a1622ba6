"""A driver is killed at random moments and started again: nothing that was finished is done twice, nothing is lost."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from littledragon.pipelines.store import Store
from littledragon.schemas.tables import BY_NAME

UNITS = 24


def tables(workdir: Path) -> dict[str, list[dict[str, object]]]:
    """Every row that the toy stage left, without what differs from run to run."""
    store = Store.open(workdir)
    found = {}
    for name in ("extractions", "outcomes"):
        observed = {column.name for column in BY_NAME[name].columns if column.observed}
        found[name] = [{k: v for k, v in row.items() if k not in observed} for row in store.rows(name)]
    return found


@pytest.mark.parametrize(
    ("executor", "kills"),
    [
        ("serial", 4),
        ("local", 1),
        pytest.param("serial", 8, marks=pytest.mark.slow),
        pytest.param("local", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_is_as_if_never_killed(toy, other_toy, executor, kills):
    chance = random.Random(7)
    finished: dict[str, int] = {}  # unit -> how often it had been begun when it was first seen finished
    for kill in range(kills):
        process = toy.start(executor)
        if toy.wait_for(len(toy.worked()) + 2 + chance.randrange(4), process):
            while kill == 0 and not any(toy.workdir.glob("workloads/??/*.parquet")) and process.poll() is None:
                time.sleep(0.005)  # on a busy machine what was begun first may end late
            time.sleep(chance.uniform(0, 0.06))
            family = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            psutil.wait_procs(family, timeout=10)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, f"kill {kill} came too late to test anything"
        for id in Store.open(toy.workdir).complete("workloads"):
            finished.setdefault(id, toy.worked().count(id))
    code, said = toy.run(executor)
    assert code == 0, said
    assert finished, "every kill came before anything was finished"
    assert {id: toy.worked().count(id) for id in finished} == finished, "finished work was done again"
    assert other_toy.run("serial")[0] == 0
    assert tables(toy.workdir) == tables(other_toy.workdir)
    assert len(tables(toy.workdir)["outcomes"]) == UNITS
    assert len(other_toy.worked()) == UNITS
    assert len(toy.worked()) <= UNITS + kills * 4, "more was redone than a window"


def test_finished_work_is_never_redone_by_later_runs(toy):
    assert toy.run(ms=1)[0] == 0
    assert toy.run(ms=1)[0] == 0
    assert len(toy.worked()) == UNITS


def test_workers_die_with_a_killed_driver(toy):
    process = toy.start("local", ms=60_000)
    assert toy.wait_for(2, process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_an_interrupt_stops_cleanly_and_the_lease_is_given_back(toy, executor):
    process = toy.start(executor, ms=200)
    assert toy.wait_for(3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the driver and to its workers
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not (toy.workdir / "workloads" / "lease.json").exists()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


@pytest.mark.slow
def test_a_worker_that_dies_fails_its_unit_alone(toy):
    code, said = toy.run("local", seed=666, ms=5)
    assert code == 0, said
    ended = Store.open(toy.workdir).rows("outcomes")
    assert len(ended) == UNITS
    crashed = [row for row in ended if row["reason"] == "crashed"]
    assert sorted(row["inputs"] for row in crashed) == [
        '{"number":7,"of":12,"wave":1}',
        '{"number":7,"wave":0}',
    ]
    tries = [toy.worked().count(row["unit_id"]) for row in crashed]
    assert tries == [2, 2], "a unit whose worker dies is begun once more, then given up"
