"""`dragon bench device`: recorded H200 candidates on the GPU that is here: verdicts, clocks and stability.

    LITTLEDRAGON_H200=h200_probe.jsonl.gz dragon bench device --sample 200

Each recorded candidate is admitted, built, checked on every input case and timed in three fresh processes, as verify
does it. Those that were recorded as wrong (an error above 0.01 against the default schedule) must be rejected, the
others must pass. Of some of them three clocks are compared: events around a loop of launches, a replayed graph (which
verify goes by), and CUPTI's kernel times.
"""

import gzip
import json
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from littledragon.compiler import children, slots, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.inputs import CASES
from littledragon.pipelines.errors import UserError
from littledragon.validators import device as devices
from littledragon.validators.device import Device, GateFailed, Kernel, Workload
from littledragon.validators.real import MODULES
from littledragon.validators.references import references
from littledragon.validators.stability import noise_band

SAMPLE: Final = 200
WRONG: Final = 0.01
"""An error above that against the default schedule was recorded for the wrong ones."""
STABLE: Final = 0.05
SMALL_US: Final = 8.0
REPEAT_MS: Final = 10.0
PROCESSES: Final = 3
CLOCKED: Final = 24
"""Kernels of which three clocks are compared."""
DEADLINE_S: Final = 300.0

Row = dict[str, Any]


@dataclass
class Recorded:
    """A candidate of the file: its workload, its trace, whether it was wrong, its recorded latency (µs)."""

    name: str
    trace: str
    wrong: bool
    recorded_us: float
    gate: str | None = None
    reason: str | None = None
    error: float | None = None
    kernel: Kernel | None = None
    run_s: float = 0.0
    medians_us: list[float] = field(default_factory=list)
    clocks: Row | None = None

    def row(self) -> Row:
        kept = ("name", "wrong", "recorded_us", "gate", "reason", "error", "medians_us", "clocks")
        return {name: getattr(self, name) for name in kept}


def measure(
    console: Console, *, sample: int = SAMPLE, seed: int = 0, jobs: int | None = None, out: Path | None = None
) -> int:
    """Run and print it; 1 where a wrong kernel passed or a right one was called wrong.

    Args:
        console: where it is printed.
        sample: right ones, at random; the wrong ones are always all there.
        seed: of the sample.
        jobs: CPU slots; one a core if not given.
        out: a file for everything that was found, as JSON.

    Raises:
        UserError: no recorded candidates, or no GPU.
    """
    modules, chosen = _recorded(sample, seed)
    slots.use(jobs)
    try:
        device = devices.open_device("real", targets.target("cuda"), devices.Deadlines(build_s=90.0))
    except targets.DeviceMissing as error:
        raise UserError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="dragon-bench-") as scratch, ThreadPoolExecutor(64) as pool:
        names = sorted({one.name for one in chosen})
        specs = dict(zip(names, pool.map(lambda name: _specs(device, modules[name]), names), strict=True))
        workloads = {name: Workload(modules[name], specs[name]) for name in names}
        for name in names:
            pool.submit(device.get_ready, workloads[name], range(len(CASES)), 0)
        list(pool.map(lambda one: _judge(one, workloads[one.name], device, Path(scratch)), chosen))
        alive = [one for one in chosen if one.gate is None]
        for name in names:
            _time([one for one in alive if one.name == name], workloads[name], device)
        _clock(alive, workloads, device)
        _print(console, chosen, device)
    if out is not None:
        out.write_text(json.dumps([one.row() for one in chosen], indent=0), encoding="utf-8")
    missed = [one for one in chosen if one.wrong and one.gate is None]
    blamed = [one for one in chosen if not one.wrong and one.gate == "correct"]
    return 1 if missed or blamed else 0


def _recorded(sample: int, seed: int) -> tuple[dict[str, str], list[Recorded]]:
    file = Path(os.environ.get("LITTLEDRAGON_H200", ""))
    modules: dict[str, str] = {}
    found: list[Recorded] = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["kind"] == "workload":
                    modules[row["name"]] = row["module"]
                elif row["trace"] and row["runs"]:
                    runs = [run for run in row["runs"] if run and run[0] and run[1] is not None]
                    medians = [statistics.median(run[0]) for run in runs]
                    if medians:
                        wrong = max(run[1] for run in runs) > WRONG
                        found.append(Recorded(row["name"], row["trace"], wrong, statistics.median(medians)))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"bench device: LITTLEDRAGON_H200 must name the file of recorded candidates: {error}") from None
    right = [one for one in found if not one.wrong]
    return modules, [one for one in found if one.wrong] + random.Random(seed).sample(right, min(sample, len(right)))


def _specs(device: Device, module: str) -> list[Row]:
    specs: list[Row] = device.on_slot("littledragon.compiler.inputs:specs_of", DEADLINE_S, module=module)
    return specs


def _judge(one: Recorded, workload: Workload, device: Device, scratch: Path) -> None:
    made = device.make(workload, Path(tempfile.mkdtemp(dir=scratch)), trace=one.trace)
    try:
        if made.kernel is None:
            assert made.failed is not None
            raise made.failed
        checked = device.check(made.kernel, workload, range(len(CASES)), 0)
        one.error, one.run_s, one.kernel = checked.error, checked.run_s, made.kernel
        checked.judge()
    except GateFailed as failed:
        one.gate, one.reason = failed.gate, failed.reason


def _time(some: Sequence[Recorded], workload: Workload, device: Device) -> None:
    timed = [(one.kernel, one.run_s) for one in some if one.kernel is not None]
    for process in range(PROCESSES if timed else 0):
        for one, answer in zip(some, device.time_fresh(timed, workload, REPEAT_MS, process, 0), strict=True):
            if isinstance(answer, GateFailed):
                one.gate, one.reason = answer.gate, answer.reason
            else:
                one.medians_us.append(statistics.median(answer))


def _clock(alive: Sequence[Recorded], workloads: dict[str, Workload], device: Device) -> None:
    """Three clocks, on kernels spread evenly over latency, each in a child of its own."""
    timed = sorted((one for one in alive if len(one.medians_us) == PROCESSES), key=lambda one: one.medians_us[0])
    for one in timed[:: max(1, len(timed) // CLOCKED)]:
        workload, child = workloads[one.name], children.Child(MODULES)
        call = lambda function, **given: device.on_slot(function, DEADLINE_S, **given)  # noqa: E731
        try:
            with references().of(workload, [0], 0, targets.target("llvm"), call) as reference:
                assert one.kernel is not None
                one.clocks = child.call(
                    "littledragon.compiler.kernels:clocks",
                    deadline_s=60,
                    library=one.kernel.path,
                    specs=workload.specs,
                    arrays=reference.arguments[0],
                    repeat_ms=REPEAT_MS,
                )
        except ChildError as error:
            one.clocks = {"error": str(error)}
        finally:
            child.close()


def _print(console: Console, chosen: Sequence[Recorded], device: Device) -> None:
    wrong, right = [one for one in chosen if one.wrong], [one for one in chosen if not one.wrong]
    gates: dict[str, int] = {}
    for one in chosen:
        key = f"{'wrong' if one.wrong else 'right'}: {one.gate or 'passed'}"
        gates[key] = gates.get(key, 0) + 1
    console.print(f"{len(wrong)} recorded as wrong, {len(right)} as right: {gates}")
    for one in chosen:
        if (one.wrong and one.gate != "correct") or (not one.wrong and one.gate is not None):
            console.print(f"  {one.name}: {one.gate or 'passed'}: {one.reason} (error {one.error})", markup=False)
    table = Table("fresh processes", "kernels", "stable", "median band", "p90", "most")
    complete = [one for one in chosen if len(one.medians_us) == PROCESSES]
    small = [one for one in complete if statistics.median(one.medians_us) < SMALL_US]
    large = [one for one in complete if statistics.median(one.medians_us) >= SMALL_US]
    for name, some in ((f"below {SMALL_US:g} µs", small), ("longer", large)):
        bands = sorted(noise_band(one.medians_us) for one in some)
        if bands:
            stable = sum(band <= STABLE for band in bands) / len(bands)
            ninth = bands[min(len(bands) - 1, int(0.9 * len(bands)))]
            cells = (f"{stable:.1%}", f"{statistics.median(bands):.2%}", f"{ninth:.2%}", f"{bands[-1]:.1%}")
            table.add_row(name, str(len(bands)), *cells)
    console.print(table)
    clocks = Table("kernel", "loop µs", "graph µs", "CUPTI µs", "graph - CUPTI", "graph / loop")
    for one in chosen:
        if one.clocks is not None and "error" not in one.clocks:
            loop, graph, cupti = (one.clocks[name] for name in ("loop", "graph", "cupti"))
            over = "" if cupti is None else f"{graph - cupti:.2f}"
            own = "" if cupti is None else f"{cupti:.2f}"
            clocks.add_row(one.name, f"{loop:.2f}", f"{graph:.2f}", own, over, f"{graph / loop:.3f}")
        elif one.clocks is not None:
            console.print(f"  {one.name}: {one.clocks['error']}", markup=False)
    console.print(clocks)
    console.print(f"observed: {device.observe()}")
