"""Real searches of small workloads in driver processes of their own, and somebody who kills their processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from littledragon.compiler import children
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.ids import content_id
from littledragon.schemas.tables import BY_NAME
from littledragon.validators.device import Device, GateFailed, Kernel, Workload

HERE = Path(__file__).parent
PROBES = (HERE.parent / "compiler" / "probe", HERE / "probe")
"""Folders that join the package, with functions that run in children: small workloads, and faulty kernels."""
TABLES = ("candidates", "traces", "environments", "verdicts", "anchors", "outcomes")
DRIVERS = 0.15
"""Of those who are killed, so many are drivers, beside the times when there is nobody else."""
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.0, "host": "here"}

Row = dict[str, Any]


def probe_path() -> str:
    return os.pathsep.join(str(folder) for folder in PROBES)


def matches(said: str, wanted: str) -> None:
    """A pattern is found in what was said; else both are shown."""
    with pytest.raises(AssertionError, match=wanted):
        raise AssertionError(said)


def verdict(device: Device, kernel: Kernel, workload: Workload, cases: tuple[int, ...] = (0, 1)) -> str:
    """Gate and reason of a kernel, or nothing where every gate is passed."""
    try:
        device.check(kernel, workload, cases, 0, repeat_ms=1.0).judge()
    except GateFailed as failed:
        return str(failed)
    return ""


def workloads(made: list[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Rows of `workloads`, a view, made by these functions of `probe.modules`; the caller has set PYTHONPATH."""
    child, rows = children.Child(), []
    try:
        for name, arguments in made:
            program = child.call(f"littledragon.probe.modules:{name}", deadline_s=120, **arguments)
            label = f"{name} {json.dumps(arguments)}"
            row = {column.name: None for column in BY_NAME["workloads"].columns}
            row |= {"workload_id": content_id("w", label), "state": "ok", "family": "gemm", "operator": name}
            row |= {"block_id": label, "configuration": "cut", "task": "main", "model": "m", "source": "s"}
            row |= {"licence": "MIT", "rules": "llvm", "module": program["module"]}
            row |= {"module_hash": program["module_hash"], "inputs": json.dumps(program["specs"])}
            rows.append(row)
    finally:
        child.close()
    return rows


def store_of(path: Path, rows: list[Row]) -> Store:
    """A work directory in which the stage `workloads` has found these."""
    store = Store.open(path, create=True)
    kept = {table: [column.name for column in BY_NAME[table].columns] for table in ("extractions", "placements")}
    of = {table: [{name: row[name] for name in names} for row in rows] for table, names in kept.items()}
    unit = Unit("workloads", 1, {}, {})
    store.commit(unit, Result(of), OBSERVED)
    store.plan("workloads", [unit])
    return store


def tables(workdir: Path) -> dict[str, list[Row]]:
    """Every row of search and verify, without what differs from run to run."""
    store, found = Store.open(workdir), {}
    for name in TABLES:
        observed = {column.name for column in BY_NAME[name].columns if column.observed}
        found[name] = [{k: v for k, v in row.items() if k not in observed} for row in store.rows(name)]
    return found


@dataclass
class Engine:
    """Drivers of one work directory; `temporary` is their TMPDIR."""

    workdir: Path
    temporary: Path
    settings: dict[str, Any]
    stages: str = "search,verify"

    def start(self, *, retry: bool = False) -> "subprocess.Popen[str]":
        self.temporary.mkdir(exist_ok=True)
        script = [sys.executable, str(HERE / "enginedriver.py")]
        return subprocess.Popen(
            [
                *script,
                str(self.workdir),
                "local",
                self.stages,
                json.dumps(self.settings),
                *(["retry"] if retry else []),
            ],
            env={**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": probe_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def watched(self) -> tuple[list[str], list[int]]:
        """Undisturbed to its end: the threads that the driver had then, and its resident bytes, second by second."""
        process, held = self.start(), []
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            held.append(_resident(driver))
            time.sleep(1)
        return finish(process, 60), [size for size in held if size]

    def run(self, timeout: float = 600) -> list[str]:
        """Undisturbed to its end; the names of the threads that the driver had then."""
        return finish(self.start(), timeout)


def finish(process: "subprocess.Popen[str]", timeout: float) -> list[str]:
    try:
        out, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        raise
    assert process.returncode == 0, said
    threads: list[str] = json.loads(out)
    return threads


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a driver, and see its children die with it."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, "children outlived the driver"


@dataclass
class Killer:
    """Kills processes of a search at random."""

    chance: random.Random
    every_s: tuple[float, float] = (1.0, 4.0)
    killed: Counter[str] = field(default_factory=Counter)

    def torment(self, engine: Engine, until: float, patience_s: float) -> list[str]:
        """Kill and start again until this moment of the monotonic clock, then let it finish; as `Engine.run`."""
        process = engine.start()
        try:
            while time.monotonic() < until and process.poll() is None:
                time.sleep(self.chance.uniform(*self.every_s))
                if process.poll() is not None:
                    break
                victims = _victims(process.pid)
                # The driver seldom: it needs its time to start, and for what can be done in it.
                kind = "driver" if self.chance.random() < DRIVERS else self.chance.choice(sorted(victims))
                if kind == "driver":
                    end(process)
                    process = engine.start()
                else:
                    _kill(self.chance.choice(victims[kind]))
                self.killed[kind] += 1
            return finish(process, patience_s)
        finally:
            if process.poll() is None:
                end(process)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself meanwhile


def _victims(driver: int) -> dict[str, list[int]]:
    """The living processes of a driver by kind. Forked children have their nursery's command line, and are younger."""
    found: dict[str, list[int]] = {}
    nurseries: set[str] = set()
    for process in sorted(psutil.Process(driver).children(), key=_born):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "nurse" not in line:
            kind = "timing child" if "_child" in line else ""
        else:
            what = "measuring" if "kernels" in line else "slot"
            kind = f"{what} child" if line in nurseries else f"{what} nursery"
            nurseries.add(line)
        if kind:
            found.setdefault(kind, []).append(process.pid)
    return found or {"driver": [driver]}


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _born(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return 0.0


def leftovers(engine: Engine) -> tuple[list[str], list[str]]:
    """What the drivers of an engine have left behind: command lines of processes, and temporary files."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(str(engine.temporary)):
                processes.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return processes, sorted(path.name for path in engine.temporary.iterdir())
