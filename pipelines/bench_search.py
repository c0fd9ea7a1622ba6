"""`dragon bench search`: the engine against MetaSchedule's own tuner, on the same workloads, trials and machine.

    dragon bench search --target llvm --workloads 2 --trials 32
    dragon bench search --target cuda --zoo paper --workloads 12 --trials 64 --stock 2

Ours is what users run: the stages search and verify of a work directory, through the driver and the local executor.
Stock is `meta_schedule.tune_tir` in a process of its own, one workload after the other, on as many of the same
workloads as `stock` says, right after ours. Best latencies are compared as this device measures both, with the same
clock: each side's best trace, checked, timed in three fresh processes. Nothing else should run on the machine.
"""

import gzip
import json
import math
import os
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from littledragon.compiler import children, targets
from littledragon.compiler.environment import gpu_handle
from littledragon.compiler.inputs import CASES
from littledragon.pipelines import driver, search
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import executor
from littledragon.pipelines.files import read_regular, replace
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK
from littledragon.validators import device as devices
from littledragon.validators import locks
from littledragon.validators.device import GateFailed

Row = dict[str, Any]

PER_ROUND: Final = 16
WARMING_S: Final = 30.0
"""The GPU's busy share is taken after so long: before, processes start."""
STOCK_DEADLINE_S: Final = 3600.0
TICK_S: Final = 0.2


def measure(
    console: Console,
    *,
    target: str = "llvm",
    device: str = "real",
    zoo: str = "demo",
    limit: int | None = None,
    workloads: int = 2,
    trials: int = 32,
    per_round: int = PER_ROUND,
    stock: int | None = None,
    jobs: int | None = None,
    seed: int = 0,
    warm_up: int = 0,
    timeout: float = 30.0,
    peers: Path | None = None,
    workdir: Path | None = None,
    out: Path | None = None,
) -> int:
    """Run both sides and print what they did; 1 where a side measured nothing.

    Args:
        console: where it is printed.
        target, device, zoo, limit: as for every stage.
        workloads: how many workloads ours searches, of each family in turn.
        trials: candidates of each, for both; rounded up to equal rounds.
        per_round: candidates of one of our rounds.
        stock: on how many of these stock runs as well; all if not given.
        jobs: CPU slots of ours; one a core if not given.
        seed: of both.
        warm_up: candidates that ours measures before it asks its cost model; stock waits for 100.
        timeout: seconds of stock's builder; its default is 30.
        peers: figures of an earlier run (`out`), whose stock runs are taken where they are of these workloads.
        workdir: a work directory with its workloads; made anew if not given.
        out: a file for all figures, as JSON.

    Raises:
        UserError: what the stages say.
    """
    recorded = _recorded(peers)
    rounds = math.ceil(trials / per_round)
    trials = rounds * math.ceil(trials / rounds)
    config = Config(
        target=target,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        zoo=zoo,  # type: ignore[arg-type]
        limit=limit,
        workloads=workloads,
        rounds=rounds,
        candidates_per_round=math.ceil(trials / rounds),
        seed=seed,
        warm_up=warm_up,
        repeat_ms=10.0,
        search_repeat_ms=4.0 if target == "cuda" else 10.0,  # as in the presets: latencies only rank
        build_deadline_s=60.0,
    )
    with tempfile.TemporaryDirectory(prefix="dragon-bench-") as scratch:
        place = workdir or Path(scratch) / "work"
        store = Store.open(place, create=True)
        with executor("local", workers=jobs) as where:
            if store.manifest("workloads") is None:
                driver.run(store, ["workloads"], config, where)
            ours = _ours(store, config, where)
        chosen = search.chains(store, config)
        figures: Row = {"ours": ours, "stock": {}, "best": [], "seed": seed, "timeout": timeout}
        theirs: dict[str, Row] = figures["stock"]
        _write(out, figures)
        for chain in chosen[: len(chosen) if stock is None else stock]:
            if chain.workload_id in recorded:
                theirs[chain.workload_id] = recorded[chain.workload_id]
                continue
            try:
                theirs[chain.workload_id] = _stock(store, chain.workload_id, config, trials, timeout)
            except children.ChildError as error:
                console.print(f"stock, {chain.workload_id}: {error}", markup=False)
            _write(out, figures)
        figures["best"] = _best(store, config, theirs, ours["search"]["seconds"] / max(1, ours["workloads"]))
    _print(console, ours, theirs, figures["best"])
    _write(out, figures)
    return 0 if ours["checked"] else 1


def _write(out: Path | None, figures: Row) -> None:
    """Write down what there is so far: the peer takes minutes for each workload."""
    if out is not None:
        text = json.dumps(figures, indent=1).encode()
        replace(out, gzip.compress(text, mtime=0) if out.suffix == ".gz" else text)


@dataclass
class Watched:
    """What was used while something ran: seconds, CPU seconds of this process and its children, GPU busy shares, and
    for how many seconds some candidate had the device."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    held_s: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)

    def busy_after(self, start: float) -> float | None:
        late = [share for at, share in self.busy if at >= start]
        return statistics.fmean(late) if late else None


@contextmanager
def watched(target: str) -> Iterator[Watched]:
    """Watch this machine while the block runs."""
    seen, ended, began = Watched(), threading.Event(), time.perf_counter()

    def look() -> None:
        while not ended.wait(TICK_S):
            share = _gpu_share()
            if share is None:
                return
            seen.busy.append((time.perf_counter() - began, share))

    thread = threading.Thread(target=look, daemon=True)
    if target == "cuda":
        thread.start()
    before, held = _cpu_s(), locks.held_s()
    try:
        yield seen
    finally:
        seen.cpu_s, seen.seconds = _cpu_s() - before, time.perf_counter() - began
        seen.held_s = locks.held_s() - held
        ended.set()


def _cpu_s() -> float:
    """CPU seconds of this process and of all of its children, those included that are alive."""
    total = children.cpu_s()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            total += sum(child.cpu_times()[:4])
    return total


def _gpu_share() -> float | None:
    """The share of the last moments in which the GPU ran a kernel; None where there is no GPU to ask."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(gpu_handle(pynvml)).gpu) / 100
    except pynvml.NVMLError:
        return None


def _ours(store: Store, config: Config, where: Any) -> Row:
    """The stages search and verify, each watched."""
    found: Row = {}
    for name in ("search", "verify"):
        with watched(config.target) as seen:
            driver.run(store, [name], config, where)
        found[name] = {
            "seconds": seen.seconds,
            "cpu_s": seen.cpu_s,
            "gpu_busy": seen.busy_after(WARMING_S),
            "held_s": seen.held_s,
        }
    status: dict[str, int] = {}
    for row in store.rows("candidates", "source <> 'default'"):
        status[row["status"]] = status.get(row["status"], 0) + 1
    verdicts = store.rows("verdicts")
    small = [row for row in verdicts if row["latency_us"] is not None and row["latency_us"] < SMALL_US]
    return found | {
        "candidates": sum(status.values()),
        # A wrong one was checked as well, and a hopeless one timed once.
        "checked": sum(status.get(gate, 0) for gate in (OK, "correct", "timed")),
        "status": status,
        "verified": len(verdicts),
        "stable": sum(row["status"] == OK for row in verdicts),
        "small": len(small),
        "small_stable": sum(row["status"] == OK for row in small),
        "workloads": len(search.chains(store, config)),
    }


SMALL_US: Final = 8.0
"""Kernels below that are launch-bound under an evaluator that calls them in a loop."""


def _recorded(file: Path | None) -> dict[str, Row]:
    """Stock runs of an earlier run of this benchmark, by workload."""
    if file is None:
        return {}
    try:
        text = read_regular(file, MOST_BYTES)
        if file.suffix == ".gz":
            text = zlib.decompressobj(wbits=31).decompress(text, MOST_BYTES)
        found: dict[str, Row] = json.loads(text)["stock"]
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise UserError(f"{file}: holds no figures of this benchmark: {error}") from None
    return found


MOST_BYTES: Final = 1 << 28


def _stock(store: Store, workload_id: str, config: Config, trials: int, timeout: float) -> Row:
    """Stock's tuner on one workload, in a process of its own."""
    (row,) = store.rows("workloads", "workload_id = $id AND state = 'ok'", id=workload_id)[:1]
    answer: Row = children.once(
        "littledragon.compiler.stock:tune",
        deadline_s=STOCK_DEADLINE_S,
        module=row["module"],
        target=targets.target(config.target),
        rules=row["rules"],
        trials=trials,
        seed=config.seed + 1,
        build_timeout_s=timeout,
    )
    # A trace is as long as a page: kept are those that may be compared, the best of all and of what there was early.
    timed = sorted((trial for trial in answer["trials"] if trial[1] is not None), key=lambda trial: float(trial[1]))
    ends = {trial[0] for trial in timed}
    kept = [trial for end in ends for trial in [trial for trial in timed if trial[0] <= end][:CHANCES]]
    answer["trials"] = [[at, us, trace if [at, us, trace] in kept else None] for at, us, trace in answer["trials"]]
    return answer


def _best(store: Store, config: Config, peers: dict[str, Row], share_s: float) -> list[Row]:
    """Of each workload that both sides searched, the latency of the best that each found, as this device times both;
    stock's also after `share_s`, which is what ours took for one workload."""
    if config.device == "simulated":
        return []
    pairs: list[Row] = []
    for workload_id, peer in peers.items():
        (row,) = store.rows("workloads", "workload_id = $id AND state = 'ok'", id=workload_id)[:1]
        where = "workload_id = $id AND status = 'ok' AND source <> 'default'"
        own = store.rows("candidates", where, id=workload_id)
        if not own:
            continue
        best = min(own, key=lambda candidate: float(candidate["latency_us"]))
        (trace,) = store.rows("traces", "candidate_id = $id", id=best["candidate_id"])
        timed = sorted((trial for trial in peer["trials"] if trial[1] is not None), key=lambda trial: float(trial[1]))
        soon = [trial for trial in timed if trial[0] <= share_s]
        sides = [[trace["trace"]], *([trial[2] for trial in some[:CHANCES]] for some in (timed, soon))]
        ours_us, stock_us, soon_us = time_all(row, sides, config)
        pairs.append({"workload_id": workload_id, "ours_us": ours_us, "stock_us": stock_us, "stock_soon_us": soon_us})
    return pairs


CHANCES: Final = 3
"""Stock never checks results: its best may be wrong, so the best of its three best that are right is taken."""


def time_all(workload: Row, sides: Sequence[Sequence[str]], config: Config) -> list[float | None]:
    """Of each side, the least latency (µs) of its traces that compute the right answer; None where none does."""
    device = devices.open_device(config.device, targets.target(config.target), search.deadlines(config))
    asked = devices.Workload(workload["module"], json.loads(workload["inputs"]))
    found: list[float | None] = []
    with tempfile.TemporaryDirectory(prefix="dragon-bench-") as scratch:
        for traces in sides:
            latencies = []
            for trace in traces:
                made = device.make(asked, Path(tempfile.mkdtemp(dir=scratch)), trace=trace)
                if made.kernel is None:
                    continue
                try:
                    checked = device.check(made.kernel, asked, range(len(CASES)), config.seed)
                    checked.judge()
                    runs = [
                        device.time_fresh(
                            [(made.kernel, checked.run_s)], asked, config.repeat_ms, process, config.seed
                        )[0]
                        for process in range(3)
                    ]
                except GateFailed:
                    continue
                latencies.append(statistics.median(statistics.median(run) for run in runs if isinstance(run, list)))
            found.append(min(latencies, default=None))
    return found


def _print(console: Console, ours: Row, peers: dict[str, Row], pairs: Sequence[Row]) -> None:
    table = Table("", "candidates", "checked", "s", "checked/s", "CPU s/checked", "device taken", "GPU busy")
    for name, stages in (("ours, search", ["search"]), ("ours, with verify", ["search", "verify"])):
        seconds, cpu_s, held_s = (sum(ours[stage][what] for stage in stages) for what in ("seconds", "cpu_s", "held_s"))
        busy = ours[stages[-1]]["gpu_busy"]
        table.add_row(*_line(name, ours["candidates"], ours["checked"], seconds, cpu_s, held_s / seconds, busy))
    for workload_id, peer in peers.items():
        timed = sum(trial[1] is not None for trial in peer["trials"])
        table.add_row(*_line(f"stock, {workload_id}", len(peer["trials"]), timed, peer["seconds"], peer["cpu_s"]))
    console.print(table)
    console.print(
        f"{ours['workloads']} workloads, {os.cpu_count()} CPUs; candidates by gate: {ours['status']}; verified "
        f"{ours['verified']}, stable {ours['stable']}; below {SMALL_US:g} µs {ours['small']}, of these stable "
        f"{ours['small_stable']}"
    )
    counts = {name: sum(trial[1] is not None for trial in peer["trials"]) for name, peer in peers.items()}
    for name in [name for name, count in counts.items() if not count]:
        peer = peers[name]
        console.print(f"stock, {name}: none of {len(peer['trials'])} candidates was timed in {peer['seconds']:.0f} s")
    compared = [(count, peers[name]) for name, count in counts.items() if count]
    if compared and ours["checked"]:
        rate, cost = ours["checked"] / ours["search"]["seconds"], ours["search"]["cpu_s"] / ours["checked"]
        faster = [rate * peer["seconds"] / count for count, peer in compared]
        console.print(_ratios("checked candidates a second, ours over stock", faster))
        cheaper = [peer["cpu_s"] / count / cost for count, peer in compared]
        console.print(_ratios("CPU seconds a checked candidate, stock over ours", cheaper))
    gains = [pair["stock_us"] / pair["ours_us"] for pair in pairs if pair["ours_us"] and pair["stock_us"]]
    if gains:
        console.print(_ratios("best latency at equal trials, stock over ours", gains))
    soon = [pair["stock_soon_us"] / pair["ours_us"] for pair in pairs if pair["ours_us"] and pair["stock_soon_us"]]
    if pairs:
        console.print(
            f"in as long as ours takes for a workload, stock had anything right on {len(soon)} of {len(pairs)}"
        )
    if soon:
        console.print(_ratios("best latency at equal time, stock over ours", soon))


def _line(name: str, candidates: int, checked: int, seconds: float, cpu_s: float, *shares: float | None) -> list[str]:
    rate, cost = checked / max(seconds, 1e-9), cpu_s / max(checked, 1)
    told = ["" if share is None else f"{share:.0%}" for share in shares]
    return [name, str(candidates), str(checked), f"{seconds:.1f}", f"{rate:.2f}", f"{cost:.2f}", *told]


def _ratios(name: str, ratios: Sequence[float]) -> str:
    middle = math.exp(statistics.fmean(math.log(max(ratio, 1e-9)) for ratio in ratios))
    return f"{name}: {middle:.2f} (geometric mean of {len(ratios)}, from {min(ratios):.2f} to {max(ratios):.2f})"
