"""Stage search: rounds of MetaSchedule's search, each candidate built, checked on one input and timed.

A unit is one round of one workload; what it may learn from is named in its inputs, so a lost round is simply done
again. A candidate that fails a gate is a row, never an error.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import children, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.environment import environment
from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK, State
from littledragon.schemas.ids import content_id, digest
from littledragon.validators import device as devices
from littledragon.validators import scratch
from littledragon.validators.device import Device, GateFailed, Kernel

NAME = "search"
VERSION = 2
TABLES = ("candidates", "traces", "environments")
SLICE: Final = 8
"""A payload holds the traces of all rounds before."""

CASE: Final = 0
"""The one input case on which the search checks; verify takes all."""
HOPELESS: Final = 8
"""A candidate whose one run took so many times L0 is not timed further (*chosen*)…"""
HOPELESS_S: Final = 0.02
"""…where that run took longer than this: shorter ones cost little, and a first call of a quick kernel misleads."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """The settings that decide what is proposed, how it is timed, and what is too late."""
    return {
        "target": config.target,
        "device": config.device,
        "seed": config.seed,
        "population": config.population,
        "candidates_per_round": config.candidates_per_round,
        "repeat_ms": config.repeat_ms,
        "build_deadline_s": config.build_deadline_s,
        "run_deadline_s": config.run_deadline_s,
    }


def environment_row(config: Config) -> Row:
    """What is set where this configuration measures: the row of `environments`."""
    target = targets.target(config.target)
    settings = {
        "threads": devices.threads(target),
        "repeats": 5,
        "repeat_ms": config.repeat_ms,
        "cache_flush": False,
    }
    return environment(target, config.device, settings)


@dataclass(frozen=True)
class Chain:
    """The rounds of one workload that can be known now.

    source: hash of what the work reads of the workload beyond its id, which is blind to names and to the arguments.
    ended: every round that there will be has ended.
    """

    workload_id: str
    source: str
    units: list[Unit]
    candidates: list[Row]
    ended: bool


def plan(store: Store, config: Config) -> list[Unit]:
    """Every round known so far, and the next one of each workload, up to `config.rounds`.

    A round of an earlier run that this plan names again shows its rows once the plan is written, and the plan after
    that names the rounds that grow from them.
    """
    return [unit for chain in chains(store, config) for unit in chain.units]


WORKLOADS: Final = """
    SELECT workload_id, md5(concat_ws(chr(31), module, inputs, rules)) AS source
    FROM workloads WHERE state = 'ok' ORDER BY block_id, configuration, task
"""


def chains(store: Store, config: Config) -> list[Chain]:
    """The rounds of each workload, in order of workloads."""
    here = environment_row(config)["environment_id"]
    states = store.complete(NAME)
    named = set(store.manifest(NAME) or ())
    by_unit: dict[str, list[Row]] = defaultdict(list)
    for row in store.rows("candidates", "environment_id = $here", here=here):
        by_unit[row["unit_id"]].append(row)
    workloads = store.sql(WORKLOADS).to_pylist()
    return [_chain(row["workload_id"], row["source"], here, config, states, named, by_unit) for row in workloads]


def _chain(
    workload_id: str,
    source: str,
    here: str,
    config: Config,
    states: dict[str, State],
    named: set[str],
    by_unit: dict[str, list[Row]],
) -> Chain:
    units: list[Unit] = []
    candidates: list[Row] = []
    for number in range(config.rounds):
        history = [[row["candidate_id"], row["latency_us"]] for row in candidates]
        inputs = {
            "workload_id": workload_id,
            "source": source,
            "environment_id": here,
            "round": number,
            "history": digest(history),
        }
        units.append(Unit(NAME, VERSION, params(config), inputs))
        state = states.get(units[-1].id)
        if state is None or units[-1].id not in named:
            return Chain(workload_id, source, units, candidates, ended=False)
        candidates += by_unit[units[-1].id]
        if state != "ok":
            break
    return Chain(workload_id, source, units, candidates, ended=True)


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The workload, the environment, and trace and latency of every candidate of the rounds before."""
    ids = [unit.inputs["workload_id"] for unit in units]
    workloads = store.grouped("workloads", "workload_id", ids, "state = 'ok'")
    candidates = store.grouped("candidates", "workload_id", ids)
    of_units = [
        {
            row["candidate_id"]: row
            for row in candidates[unit.inputs["workload_id"]]
            if row["environment_id"] == unit.inputs["environment_id"] and row["round"] < unit.inputs["round"]
        }
        for unit in units
    ]
    traces = store.grouped("traces", "candidate_id", sorted({id for earlier in of_units for id in earlier}))
    environment = environment_row(config)
    return [
        {
            "workload_id": unit.inputs["workload_id"],
            "module": workload["module"],
            "specs": json.loads(workload["inputs"]),
            "rules": workload["rules"],
            "target": targets.target(config.target),
            "environment": environment,
            "round": unit.inputs["round"],
            "default_us": next((row["latency_us"] for row in earlier.values() if row["source"] == "default"), None),
            "records": [
                {"trace": trace["trace"], "latency_us": row["latency_us"]}
                for row in earlier.values()
                if row["module_hash"] is not None
                for trace in traces[row["candidate_id"]]
            ],
        }
        for unit, earlier in zip(units, of_units, strict=True)
        for workload in workloads[unit.inputs["workload_id"]][:1]
    ]


def elsewhere(planned: Row, config: Config) -> Result | None:
    """The result where this machine is not of the environment that the driver planned for: nothing is measured."""
    here = environment_row(config)
    if config.device == "simulated" or here["environment_id"] == planned["environment_id"]:
        return None
    names = [name for name in planned if name != "environment_id" and here[name] != planned[name]]
    differing = ", ".join(f"{name} is {here[name]}, not {planned[name]}" for name in names)
    detail = f"not the environment of the driver: {differing}: use workers of the driver's kind"
    return Result(state="failed", reason="environment", detail=detail)


@dataclass
class Trial:
    """A candidate on its way through the gates: its row, its trace's row, and what it was built into."""

    row: Row
    scheduled: str | None = None
    trace: Row | None = None
    kernel: Kernel | None = None
    run_s: float = 0.0

    def fail(self, gate: str, reason: str) -> None:
        """Stop at this gate."""
        self.row |= {"status": gate, "reason": reason}

    @property
    def alive(self) -> bool:
        return bool(self.row["status"] == OK)


def work(payload: Payload, config: Config) -> Result:
    """One round: propose, admit, build, check, then time with nothing else running."""
    if wrong := elsewhere(payload["environment"], config):
        return wrong
    target = payload["target"]
    device = devices.open_device(
        config.device, target, build_deadline_s=config.build_deadline_s, run_deadline_s=config.run_deadline_s
    )
    try:
        with device.shared():
            trials = _propose(payload, config)
    except ChildError as error:
        return Result(state="failed", reason=error.kind, detail=f"proposing: {error.detail}")
    found = len([trial for trial in trials if trial.row["source"] != "default"])
    with scratch.temporary("search") as folder:
        for trial in trials:
            with device.shared():
                _admit(trial, payload, config)

        def prepare(trial: Trial) -> None:
            with device.shared():
                _build_and_check(trial, payload, config, device, folder)

        with ThreadPoolExecutor(devices.BUILDERS) as pool:
            list(pool.map(prepare, trials))
        with device.exclusive():
            _time([trial for trial in trials if trial.alive], payload, config, device)
    rows = {
        "candidates": [trial.row for trial in trials],
        "traces": [trial.trace for trial in trials if trial.trace is not None],
        "environments": [payload["environment"]],
    }
    if found:
        return Result(rows)
    return Result(rows, state="rejected", reason="no_space" if payload["round"] == 0 else "exhausted")


def _propose(payload: Payload, config: Config) -> list[Trial]:
    """The default schedule (in round 0) and the new proposals."""
    proposer = children.worker("propose")
    target, module = payload["target"], payload["module"]
    trials = []
    if payload["round"] == 0:
        made = proposer.call(
            "littledragon.compiler.proposals:default",
            deadline_s=config.propose_deadline_s,
            module=module,
            target=target,
        )
        row = _row(payload, "default", None) | {"module_hash": made["module_hash"]}
        trials.append(Trial(row, made["scheduled"]))
    proposals = proposer.call(
        "littledragon.compiler.proposals:propose",
        deadline_s=config.propose_deadline_s,
        module=module,
        target=target,
        rules=payload["rules"],
        records=payload["records"],
        count=config.candidates_per_round,
        seed=config.seed,
        round=payload["round"],
        population=config.population,
    )
    for proposal in proposals:
        row = _row(payload, proposal["source"], proposal["trace"]) | {"score": proposal["score"]}
        trials.append(Trial(row, trace={"candidate_id": row["candidate_id"], "trace": proposal["trace"]}))
    return trials


def _row(payload: Payload, source: str, trace: str | None) -> Row:
    """A row of `candidates` before its first gate."""
    identity = {"workload": payload["workload_id"], "target": payload["target"], "trace": trace}
    return {
        "candidate_id": content_id("c", identity),
        "workload_id": payload["workload_id"],
        "environment_id": payload["environment"]["environment_id"],
        "source": source,
        "rules": payload["rules"],
        "round": payload["round"],
        "status": OK,
        "reason": None,
        "module_hash": None,
        "score": None,
        "latency_us": None,
        "repeats_us": None,
        "error": None,
        "build_s": None,
    }


def _admit(trial: Trial, payload: Payload, config: Config) -> None:
    """Gates parsed … encoded, for what has a trace."""
    if trial.trace is None:
        return
    try:
        admitted = admit(payload["module"], trial.trace["trace"], payload["target"], config.build_deadline_s)
    except ChildError as error:
        trial.fail("replayed", str(error))
        trial.trace = None
        return
    if admitted["failed"]:
        trial.fail(admitted["failed"], admitted["reason"])
    trial.row["module_hash"] = admitted["module_hash"]
    trial.scheduled = admitted["scheduled"]
    if admitted["failed"] == "parsed":
        trial.trace = None
    else:
        trial.trace = {
            "candidate_id": trial.row["candidate_id"],
            **{name: admitted[name] for name in ("trace", "tsel", "instructions", "postproc_instructions")},
            "postproc_rules": admitted["rules"],
        }


def admit(module: str, trace: str, target: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """What `compiler.traces:admit` says of a trace. Raises ChildError where it crashed or was late."""
    answer: dict[str, Any] = children.worker("propose").call(
        "littledragon.compiler.traces:admit", deadline_s=deadline_s, module=module, trace=trace, target=target
    )
    return answer


def _build_and_check(trial: Trial, payload: Payload, config: Config, device: Device, folder: Path) -> None:
    """Gates built, ran, correct."""
    if not trial.alive:
        return
    assert trial.scheduled is not None
    workload = devices.Workload(payload["module"], payload["specs"])
    row = trial.row
    try:
        trial.kernel, row["build_s"] = device.build(
            trial.scheduled, row["module_hash"], folder, default=row["source"] == "default"
        )
        checked = device.check(trial.kernel, workload, [CASE], config.seed)
    except GateFailed as failed:
        trial.fail(failed.gate, failed.reason)
        return
    row["error"], trial.run_s = checked.error, checked.run_s
    if not checked.correct:
        trial.fail("correct", f"error is {checked.error:.3g} times its bound")


def _time(trials: Sequence[Trial], payload: Payload, config: Config, device: Device) -> None:
    """Gate timed. The default schedule comes first: it tells which of the others are hopeless."""
    workload = devices.Workload(payload["module"], payload["specs"])
    default_us = payload["default_us"]
    for trial in trials:
        assert trial.kernel is not None
        if default_us is not None and trial.run_s > max(HOPELESS_S, HOPELESS * default_us * 1e-6):
            trial.row |= {"repeats_us": [trial.run_s * 1e6], "latency_us": trial.run_s * 1e6}
            trial.fail("timed", f"hopeless: one run took {trial.run_s * 1e6 / default_us:.3g} times L0")
            continue
        try:
            repeats = device.time(trial.kernel, workload, config.repeat_ms, trial.run_s)
        except GateFailed as failed:
            trial.fail(failed.gate, failed.reason)
            continue
        trial.row |= {"repeats_us": repeats, "latency_us": statistics.median(repeats)}
        if trial.row["source"] == "default":
            default_us = trial.row["latency_us"]
