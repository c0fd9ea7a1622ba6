"""Stage verify: default, best and slower candidates of a workload, measured anew by three fresh processes.

Only latencies from here enter selections and anchors. A unit is one workload with the candidates that its search
left to choose from; it builds them again, checks every input case, and times all of them in each process.
"""

import json
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import targets
from littledragon.compiler.inputs import CASES
from littledragon.pipelines import search
from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK
from littledragon.validators import device as devices
from littledragon.validators import scratch
from littledragon.validators.device import Device, GateFailed, Kernel
from littledragon.validators.stability import launch_bound, margin, noise_band

NAME = "verify"
VERSION = 4
SHARED = True
TABLES = ("verdicts", "anchors")

PROCESSES: Final = 3

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """The settings that decide what is chosen, and how it is measured and judged."""
    return {
        "target": config.target,
        "device": config.device,
        "seed": config.seed,
        "verify_best": config.verify_best,
        "verify_parents": config.verify_parents,
        "margin_floor": config.margin_floor,
        "stable_band": config.stable_band,
        "repeat_ms": config.repeat_ms,
        "build_deadline_s": config.build_deadline_s,
        "run_deadline_s": config.run_deadline_s,
        "reference_deadline_s": config.reference_deadline_s,
        "cases": len(CASES),
    }


def plan(store: Store, config: Config) -> list[Unit]:
    """One unit for each workload whose search has ended and left a default schedule."""
    return _plan(store, config, search.environment_row(config)["environment_id"])


def as_measured(store: Store, config: Config) -> list[Unit]:
    """The plan of the machine that the search's rows are from. Raises UserError: see `search.measured_in`."""
    return _plan(store, config, search.measured_in(store, config))


def _plan(store: Store, config: Config, here: str) -> list[Unit]:
    units = []
    for chain in search.chains(store, config, here):
        default = [row["candidate_id"] for row in chain.candidates if row["source"] == "default"]
        if chain.ended and default:
            chosen = [["default", default[0]], *choose(chain.candidates, config.verify_best, config.verify_parents)]
            inputs = {
                "workload_id": chain.workload_id,
                "source": chain.source,
                "environment_id": here,
                "chosen": chosen,
            }
            units.append(Unit(NAME, VERSION, params(config), inputs))
    return units


def choose(candidates: Sequence[Row], best: int, parents: int) -> list[list[str]]:
    """(role, candidate) for the fastest ones, and for slower ones spaced evenly in log latency.

    The slower ones reach up to L0, as the search measured it: a schedule that is worse than none is nobody's parent.
    """
    timed = [row for row in candidates if row["status"] == OK and row["source"] != "default"]
    timed.sort(key=lambda row: (row["latency_us"], row["candidate_id"]))
    default_us = next((row["latency_us"] for row in candidates if row["source"] == "default"), None)
    chosen = [["best", row["candidate_id"]] for row in timed[:best]]
    rest = [row for row in timed[best:] if default_us is None or row["latency_us"] <= default_us]
    if rest:
        low, high = math.log(timed[0]["latency_us"]), math.log(rest[-1]["latency_us"])
        for step in range(1, parents + 1):
            if not rest:
                break
            wanted = low + (high - low) * step / parents
            row = min(rest, key=lambda row: abs(math.log(row["latency_us"]) - wanted))
            rest.remove(row)
            chosen.append(["parent", row["candidate_id"]])
    return chosen


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The workload, and the trace of each chosen candidate (none for the default schedule)."""
    workloads = store.grouped("workloads", "workload_id", [u.inputs["workload_id"] for u in units], "state = 'ok'")
    traces = store.grouped("traces", "candidate_id", sorted({id for u in units for _, id in u.inputs["chosen"]}))
    environment = search.environment_row(config)
    return [
        {
            "workload_id": workload["workload_id"],
            "environment": environment,
            "module": workload["module"],
            "specs": json.loads(workload["inputs"]),
            "target": targets.target(config.target),
            "chosen": [
                {"role": role, "candidate_id": id, "trace": traces[id][0]["trace"] if traces[id] else None}
                for role, id in unit.inputs["chosen"]
            ],
        }
        for unit in units
        for workload in workloads[unit.inputs["workload_id"]][:1]
    ]


@dataclass
class Subject:
    """A chosen candidate: its row of `verdicts`, its kernel, what one run took, its repeats in each process."""

    row: Row
    kernel: Kernel | None = None
    run_s: float = 0.0
    repeats: list[list[float]] = field(default_factory=list)

    def fail(self, gate: str, reason: str) -> None:
        self.row |= {"status": gate, "reason": reason}

    @property
    def alive(self) -> bool:
        return bool(self.row["status"] == OK)


def work(payload: Payload, config: Config) -> Result:
    """Build and check all, time all in three fresh processes, judge."""
    if wrong := search.elsewhere(payload["environment"], config):
        return wrong
    device = devices.open_device(config.device, payload["target"], search.deadlines(config))
    workload = devices.Workload(payload["module"], payload["specs"])
    subjects = [Subject(_row(payload, chosen)) for chosen in payload["chosen"]]
    empty_us = None
    with scratch.temporary("verify") as folder, device.hold(workload, config.seed):

        def prepare(subject: Subject, chosen: dict[str, Any]) -> None:
            _build_and_check(subject, chosen["trace"], workload, config, device, folder)

        with ThreadPoolExecutor(len(subjects)) as pool:
            list(pool.map(prepare, subjects, payload["chosen"]))
        if subjects[0].alive:
            _time(subjects, workload, config, device, config.repeat_ms)
            # Something else may have run just then: the noisy ones once more, with repeats twice as long.
            _time([one for one in subjects if _noisy(one, config)], workload, config, device, 2 * config.repeat_ms)
            try:
                empty_us = device.time_empty(config.repeat_ms)
            except GateFailed as failed:
                return Result(state="failed", reason=failed.gate, detail=f"empty kernel: {failed.reason}")
        for subject in subjects:
            _judge(subject, config)
    anchor = anchor_row([subject.row for subject in subjects], empty_us, config.margin_floor)
    rows = {"verdicts": [subject.row for subject in subjects], "anchors": [anchor]}
    return Result(rows, state=anchor["state"], reason=anchor["reason"], detail=anchor["detail"])


def _row(payload: Payload, chosen: dict[str, Any]) -> Row:
    return {
        "workload_id": payload["workload_id"],
        "candidate_id": chosen["candidate_id"],
        "environment_id": payload["environment"]["environment_id"],
        "role": chosen["role"],
        "status": OK,
        "reason": None,
        "latency_us": None,
        "medians_us": None,
        "repeats_us": None,
        "noise_band": None,
        "cases": 0,
        "error": None,
        "observed": None,
    }


def _build_and_check(
    subject: Subject, trace: str | None, workload: devices.Workload, config: Config, device: Device, folder: Path
) -> None:
    """Everything up to the gate correct, on all input cases."""
    made = device.make(workload, Path(tempfile.mkdtemp(dir=folder)), trace=trace)
    if made.kernel is None:
        assert made.failed is not None
        return subject.fail(made.failed.gate, made.failed.reason)
    subject.kernel = made.kernel
    try:
        checked = device.check(made.kernel, workload, range(len(CASES)), config.seed)
        subject.run_s = checked.run_s
        subject.row |= {"cases": checked.cases, "error": checked.error}
        checked.judge()
    except GateFailed as failed:
        subject.fail(failed.gate, failed.reason)
    return None


def _time(
    subjects: Sequence[Subject], workload: devices.Workload, config: Config, device: Device, repeat_ms: float
) -> None:
    """Three fresh processes, each timing every subject that is still alive; what was measured before is replaced."""
    timed = [subject for subject in subjects if subject.alive]
    if not timed:
        return
    for subject in timed:
        subject.repeats = []
    before = device.observe()
    for process in range(PROCESSES):
        kernels = [(subject.kernel, subject.run_s) for subject in timed if subject.kernel is not None]
        answers = device.time_fresh(kernels, workload, repeat_ms, process, config.seed)
        for subject, answer in zip(timed, answers, strict=True):
            if isinstance(answer, GateFailed):
                if subject.alive:
                    subject.fail(answer.gate, answer.reason)
            else:
                subject.repeats.append(answer)
        timed = [subject for subject in timed if subject.alive]
    observed = {"before": before, "after": device.observe(), "repeat_ms": repeat_ms}
    for subject in subjects:
        if subject.repeats:
            earlier = json.loads(subject.row["observed"]) if subject.row["observed"] else []
            subject.row["observed"] = json.dumps([*earlier, observed])


def _noisy(subject: Subject, config: Config) -> bool:
    return subject.alive and noise_band(_medians(subject)) > config.stable_band


def _medians(subject: Subject) -> list[float]:
    return [statistics.median(repeats) for repeats in subject.repeats]


def _judge(subject: Subject, config: Config) -> None:
    """Gate stable."""
    if not subject.alive:
        return None
    if len(subject.repeats) < PROCESSES:
        return subject.fail("timed", "not timed, because the default schedule failed")
    medians = _medians(subject)
    band = noise_band(medians)
    subject.row |= {
        "latency_us": statistics.median(medians),
        "medians_us": medians,
        "repeats_us": subject.repeats,
        "noise_band": band,
    }
    if band > config.stable_band:
        subject.fail("stable", f"three processes differ by {band:.1%}, more than {config.stable_band:.1%}")
    return None


def anchor_row(verdicts: Sequence[Row], empty_us: float | None, floor: float) -> Row:
    """The workload's row of `anchors`, from its verdicts: the default schedule first.

    The anchor is the fastest of all that were verified; that is the default schedule itself where nothing beats it.
    The noise band is the larger of L0's and the anchor's; the margin follows from it.
    """
    default = verdicts[0]
    passed = [row for row in verdicts if row["status"] == OK]
    best = min(passed, key=lambda row: (row["latency_us"], row["candidate_id"]), default=None)
    row: Row = {
        "workload_id": default["workload_id"],
        "environment_id": default["environment_id"],
        "state": "rejected",
        "reason": None,
        "detail": None,
        "default_id": default["candidate_id"],
        "anchor_id": best and best["candidate_id"],
        "default_us": default["latency_us"],
        "anchor_us": best and best["latency_us"],
        "empty_us": empty_us,
        "noise_band": None,
        "margin": None,
    }
    if default["status"] not in (OK, "stable"):
        return row | {"reason": "default_failed", "detail": f"{default['status']}: {default['reason']}"}
    if default["status"] == "stable":
        return row | {"reason": "default_unstable", "detail": default["reason"]}
    assert empty_us is not None
    if launch_bound(default["latency_us"], empty_us):
        detail = f"L0 is {default['latency_us']:.3g} us, an empty kernel {empty_us:.3g} us"
        return row | {"reason": "launch_bound", "detail": detail}
    if best is None or passed == [default]:
        gates = Counter(verdict["status"] for verdict in verdicts[1:])
        said = "".join(f", {count} failed {gate}" for gate, count in gates.most_common())
        return row | {"reason": "no_candidates", "detail": f"none of {len(verdicts) - 1} passed{said}"}
    band = max(default["noise_band"], best["noise_band"])
    return row | {"state": "ok", "noise_band": band, "margin": margin(floor, band)}
