"""The engine for long: its processes killed at random, all of them, and a search of thousands of rounds.

On the simulated device a search that was tormented leaves the tables of one that was not. On a real one latencies
differ from run to run; whatever else a candidate is, an outside kill must not decide it.
"""

import random
import shutil
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine import Engine, Killer, leftovers, probe_path, store_of, tables, workloads

GIB = 1 << 30
MADE: list[tuple[str, dict[str, Any]]] = [
    ("matmul", {"m": 32, "n": 32, "k": 32, "dtype": "float32", "accumulate": "float32"}),
    ("softmax", {"m": 16, "n": 64}),
    ("quantise", {"n": 64}),
    ("shifted", {"n": 4096, "by": 1.0}),
    ("softmax", {"m": 32, "n": 32}),
]
SMALL: dict[str, Any] = {"device": "simulated", "rounds": 3, "candidates_per_round": 4, "population": 24}
REAL: dict[str, Any] = {**SMALL, "device": "real", "rounds": 1, "repeat_ms": 1.0, "search_repeat_ms": 1.0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", probe_path())
        return workloads(MADE)


@pytest.fixture(scope="module")
def quiet(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The tables of a search that nobody disturbs."""
    folder = tmp_path_factory.mktemp("quiet")
    store_of(folder / "work", rows)
    engine = Engine(folder / "work", folder / "temporary", SMALL)
    engine.run()
    assert leftovers(engine) == ([], [])
    found = tables(engine.workdir)
    assert found["anchors"]
    assert failed(found["outcomes"]) == []
    return found


def failed(outcomes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Why units failed."""
    return [(row["reason"], row["detail"]) for row in outcomes if row["state"] == "failed"]


def torment(
    rows: list[dict[str, Any]], quiet: dict[str, list[dict[str, Any]]], folder: Path, seed: int, seconds: float
) -> Counter[str]:
    """Search after search, tormented for this long in all; each leaves what the quiet one left."""
    killer, end, number = Killer(random.Random(seed)), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        store_of(folder / f"work {number}", rows)
        engine = Engine(folder / f"work {number}", folder / "temporary", SMALL)
        killer.torment(engine, end, patience_s=600)
        found = tables(engine.workdir)
        assert failed(found["outcomes"]) == []
        for name, wanted in quiet.items():
            assert found[name] == wanted, f"{name} of search {number}, after {killer.killed}"
        assert leftovers(engine) == ([], [])
        shutil.rmtree(engine.workdir)
    return killer.killed


@pytest.mark.slow
def test_killed_at_random_a_search_leaves_what_a_quiet_one_leaves(rows, quiet, tmp_path):
    killed = torment(rows, quiet, tmp_path, 5, 45)
    assert killed.keys() >= {"driver", "slot child", "slot nursery"}


@pytest.mark.slow
def test_on_a_real_device_an_outside_kill_decides_no_candidate(rows, quiet, tmp_path):
    store_of(tmp_path / "work", rows[:3])
    engine = Engine(tmp_path / "work", tmp_path / "temporary", REAL)
    killer = Killer(random.Random(4))
    killer.torment(engine, time.monotonic() + 60, patience_s=600)
    assert sum(killer.killed.values()) > 5
    found = tables(engine.workdir)
    assert failed(found["outcomes"]) == []
    ids = {row["workload_id"] for row in rows[:3]}
    wanted = {row["candidate_id"] for row in quiet["candidates"] if row["round"] == 0 and row["workload_id"] in ids}
    assert sorted(row["candidate_id"] for row in found["candidates"]) == sorted(wanted)
    assert {row["status"] for row in found["candidates"]} <= {"ok", "timed"}
    assert {row["reason"].split(":")[0] for row in found["candidates"] if row["reason"]} <= {"hopeless"}
    assert {row["status"] for row in found["verdicts"]} <= {"ok", "stable"}, found["verdicts"]
    assert {row["workload_id"] for row in found["anchors"]} == ids
    assert leftovers(engine) == ([], [])


@pytest.mark.soak
def test_two_thousand_rounds_stay_under_a_gibibyte_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", probe_path())
    shapes = [(16 + 4 * m, 16 + 4 * n) for m in range(20) for n in range(10)]
    fixed = {"k": 32, "dtype": "float32", "accumulate": "float32"}
    store_of(tmp_path / "work", workloads([("matmul", {"m": m, "n": n, **fixed}) for m, n in shapes]))
    settings = {"device": "simulated", "rounds": 10, "candidates_per_round": 1, "population": 4}
    engine = Engine(tmp_path / "work", tmp_path / "temporary", settings)
    threads, held = engine.watched()
    outcomes = tables(engine.workdir)["outcomes"]
    assert sum(row["stage"] == "search" for row in outcomes) >= 1900  # few workloads are exhausted before
    assert failed(outcomes) == []
    assert threads == ["MainThread", "child-spawner"]
    assert leftovers(engine) == ([], [])
    grown = statistics.median(held[-60:]) - statistics.median(held[len(held) // 2 :][:60])
    print(f"resident MiB: most {max(held) >> 20}, in the second half {grown / 2**20:+.1f}", held[:: len(held) // 40])
    assert max(held) < GIB
    assert statistics.median(held[-60:]) + 18 * grown < GIB, "it would not hold at 20,000 rounds"


@pytest.mark.soak
def test_ten_minutes_of_killing(rows, quiet, tmp_path):
    killed = torment(rows, quiet, tmp_path, 6, 600)
    assert min(killed.values()) > 10
