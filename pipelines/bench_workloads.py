"""`dragon bench workloads`: what the stage costs for a whole zoo, and what a task costs against TVM's own way to it.

The first part runs `dragon workloads` in a fresh directory, in processes of its own, and watches how much memory each
of them holds. The second lowers the same random blocks by turns: all configurations of a block at once, as the stage
does, and one module each through `meta_schedule.relax_integration.extract_tasks`, printed and saved.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from littledragon.compiler import children, targets
from littledragon.compiler.zoo import Zoo, blocks
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.store import Store

JOBS: Final = 2
BLOCKS: Final = 12
"""Blocks that both sides lower…"""
TURNS: Final = 5
"""…so often."""
TICK_S: Final = 0.25
DEADLINE_S: Final = 3600.0


def measure(
    console: Console, *, zoo: Zoo = "paper", jobs: int = JOBS, seed: int = 0, workdir: Path | None = None
) -> int:
    """Run and print both parts; the exit code of the stage.

    Args:
        console: where it is printed.
        zoo: which blocks.
        jobs: processes of the local executor.
        seed: of the blocks that are lowered by both sides.
        workdir: where the run's tables are kept; nowhere if not given.

    Raises:
        UserError: the directory is there already.
    """
    with tempfile.TemporaryDirectory(prefix="dragon-bench-") as scratch:
        place = workdir or Path(scratch) / "work"
        if place.exists():
            raise UserError(f"{place}: is there already, and a run that resumes measures nothing: give another")
        code = _whole(console, zoo, jobs, place, Path(scratch) / "settings.yaml")
    _against(console, zoo, seed)
    return code


def _whole(console: Console, zoo: Zoo, jobs: int, place: Path, settings: Path) -> int:
    settings.write_text(f"zoo: {zoo}\n", encoding="utf-8")
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "workloads", "--preset", "paper"]
    command += ["--config", str(settings), "--workdir", str(place), "--executor", "local", "--workers", str(jobs)]
    start = time.monotonic()
    log = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=log, stderr=log)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        if time.monotonic() - start > DEADLINE_S:
            process.kill()
            raise UserError(f"bench workloads: not done within {DEADLINE_S:g} s")
        for pid, held in _held(process.pid).items():
            peaks[pid] = max(peaks.get(pid, 0), held)
        time.sleep(TICK_S)
    wall = time.monotonic() - start
    store = Store.open(place)
    found = store.sql("SELECT state, count(*) AS n FROM workloads GROUP BY 1").to_pylist()
    counts = {row["state"]: row["n"] for row in found}
    size = sum(path.stat().st_size for path in store.files("workloads"))
    total = sum(counts.values())
    console.print(
        f"dragon workloads, zoo {zoo}, {jobs} processes: {wall:.0f} s for {total} tasks, {counts.get('ok', 0)} of them "
        f"workloads: {1000 * wall * jobs / max(total, 1):.1f} process-ms a task\n"
        f"memory: {len(peaks)} processes, the largest {max(peaks.values(), default=0) >> 20} MiB; "
        f"tables: {size / 1e6:.0f} MB compressed",
        markup=False,
        soft_wrap=True,
    )
    return process.returncode


def _held(pid: int) -> dict[int, int]:
    """Resident bytes of a process and of all that it started, by process id."""
    found = {}
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            found[process.pid] = process.memory_info().rss
    except psutil.Error:
        pass
    return found


def _against(console: Console, zoo: Zoo, seed: int) -> None:
    target = targets.target("cuda")
    chosen = random.Random(seed).sample([block.id for block in blocks(zoo)], BLOCKS)
    child = children.Child()
    try:
        ratios, ours, theirs = [], [], []
        for turn in range(TURNS + 1):
            sides: dict[str, Any] = {}
            for name in ("ours", "peers"):
                sides[name] = child.call(
                    f"littledragon.compiler.by_task:{name}", deadline_s=600, zoo=zoo, ids=chosen, target=target
                )
            if turn:  # the first is a warm-up
                a, b = (sides[name]["seconds"] / sides[name]["tasks"] for name in ("ours", "peers"))
                ours.append(a)
                theirs.append(b)
                ratios.append(a / b)
    finally:
        child.close()
    table = Table("", "median ms a task", "least", "most")
    for words, times in (
        ("all configurations at once, with F and inputs", ours),
        ("extract_tasks, one by one", theirs),
    ):
        values = (statistics.median(times), min(times), max(times))
        table.add_row(words, *(f"{1000 * value:.2f}" for value in values))
    console.print(table)
    console.print(
        f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f} over {TURNS} turns)"
    )
