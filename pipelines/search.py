"""Stage search: rounds of MetaSchedule's search, each candidate built, checked on one input and timed.

A unit is one round of one workload; what it may learn from is named in its inputs, so a lost round is simply done
again. A candidate that fails a gate is a row, never an error.
"""

import json
import reprlib
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import slots, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.environment import environment
from littledragon.pipelines import metaschedule
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK, State
from littledragon.schemas.ids import content_id, digest
from littledragon.validators import device as devices
from littledragon.validators import scratch
from littledragon.validators.device import Device, GateFailed

NAME = "search"
VERSION = 7
GROWS = True
SHARED = True
TABLES = ("candidates", "traces", "environments")
SLICE: Final = 8
"""A payload holds the traces of all rounds before."""

CASE: Final = 0
"""The one input case on which the search checks; verify takes all."""
MOST_AT_ONCE: Final = 16
"""Candidates of one round that are under way at once: many rounds are."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """The settings that decide what is proposed, how it is timed, and what is too late."""
    return {
        "target": config.target,
        "device": config.device,
        "seed": config.seed,
        "population": config.population,
        "warm_up": config.warm_up,
        "candidates_per_round": config.candidates_per_round,
        "repeat_ms": config.search_repeat_ms,
        "build_deadline_s": config.build_deadline_s,
        "run_deadline_s": config.run_deadline_s,
        "reference_deadline_s": config.reference_deadline_s,
    }


def environment_row(config: Config) -> Row:
    """What is set where this configuration measures: the row of `environments`."""
    return environment(targets.target(config.target), config.device, _settings(config))


def _settings(config: Config) -> Row:
    settings: Row = {"repeats": 5, "repeat_ms": config.repeat_ms, "cache_flush": False}
    if config.target == "cuda":  # whose kernels are the same on a host of more cores
        return settings | {"fast_math": True, "timer": "cuda graph"}
    return settings | {"threads": devices.threads(targets.target(config.target))}


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


def as_measured(store: Store, config: Config) -> list[Unit]:
    """The plan of the machine that the rows are from: what comes after measuring runs anywhere.

    Raises:
        UserError: see `measured_in`.
    """
    return [unit for chain in chains(store, config, measured_in(store, config)) for unit in chain.units]


def measured_in(store: Store, config: Config) -> str:
    """The environment of the current plan's rounds. It may be of another machine, and of nothing else.

    Raises:
        UserError: no round has ended, they ended under other software or settings than these, or the rows of their
            environment are none of ours.
    """
    here = environment(targets.target(config.target), config.device, _settings(config), elsewhere=True)
    found = store.sql(f"SELECT DISTINCT environment_id, {', '.join(here)} FROM environments").to_pylist()
    if not found:
        raise UserError(f"{store.path}: nothing of the current plan of search has been measured: run `dragon search`")
    for row in found:
        id = row.pop("environment_id")
        if len(found) > 1 or digest(row) != id:
            raise UserError(f"{store.path}: {len(found)} environments, or not what was written: restore it from a copy")
        for name in row.keys() - {"processor", "driver"}:
            # How many threads a CPU measures with is its own matter.
            theirs, ours = (_without_threads(one[name]) if name == "settings" else one[name] for one in (row, here))
            if theirs != ours:
                raise UserError(
                    f"{store.path}: it was measured with {name} {_short(theirs)}, and here that is {_short(ours)}: "
                    "install the same, or give the options that it was run with"
                )
    return str(id)


def _without_threads(settings: str) -> Row:
    try:
        known = json.loads(settings)
    except (ValueError, RecursionError):
        known = None
    return {name: value for name, value in known.items() if name != "threads"} if isinstance(known, dict) else {}


def _short(value: Any) -> str:
    return ascii(reprlib.repr(value))[1:-1] if isinstance(value, str) else str(value)[:300]


WORKLOADS: Final = """
    SELECT workload_id, source FROM (
        SELECT workload_id, md5(concat_ws(chr(31), module, inputs, rules)) AS source, block_id, configuration, task,
            split IN ('validation', 'test') AS held,
            row_number() OVER (PARTITION BY family ORDER BY md5(workload_id)) AS turn,
            row_number() OVER (PARTITION BY family, held ORDER BY md5(workload_id)) AS turn_of_held
        FROM workloads WHERE state = 'ok'
    ) QUALIFY $most IS NULL OR row_number() OVER (ORDER BY turn, md5(workload_id)) <= $most
        OR held AND row_number() OVER (PARTITION BY held ORDER BY turn_of_held, md5(workload_id)) <= $held_out
    ORDER BY block_id, configuration, task
"""


def chains(store: Store, config: Config, here: str | None = None) -> list[Chain]:
    """The rounds of each workload, in order of workloads. here: the environment's id; this machine's if not given."""
    here = here or environment_row(config)["environment_id"]
    states = store.complete(NAME)
    named = set(store.manifest(NAME) or ())
    by_unit: dict[str, list[Row]] = defaultdict(list)
    for row in store.rows("candidates", "environment_id = $here", here=here):
        by_unit[row["unit_id"]].append(row)
    workloads = store.sql(WORKLOADS, most=config.workloads, held_out=config.held_out).to_pylist()
    given = metaschedule.imported(store, [row["workload_id"] for row in workloads], config.target)
    return [
        _chain(
            row["workload_id"], row["source"], given.get(row["workload_id"], []), here, config, states, named, by_unit
        )
        for row in workloads
    ]


def _chain(
    workload_id: str,
    source: str,
    given: list[str],
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
        if number == 0 and given:
            inputs["imported"] = digest(given)
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
    importing = [unit.inputs["workload_id"] for unit in units if "imported" in unit.inputs]
    given = metaschedule.imported(store, importing, config.target)
    return [
        {
            "workload_id": unit.inputs["workload_id"],
            "imported": given[unit.inputs["workload_id"]] if "imported" in unit.inputs else [],
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
    """A candidate on its way through the gates: its row, and its trace's row once it parses."""

    row: Row
    proposed: str | None = None
    """The trace as it was proposed; the default schedule has none."""
    trace: Row | None = None

    def fail(self, failed: GateFailed) -> None:
        """Stop at this gate."""
        self.row |= {"status": failed.gate, "reason": failed.reason}


def work(payload: Payload, config: Config) -> Result:
    """One round: propose; then each candidate by itself is admitted and built on a CPU slot, checked and timed.

    Nothing waits for the slowest of a round: the device takes what is built, and the slots go on with other rounds.
    """
    if wrong := elsewhere(payload["environment"], config):
        return wrong
    device = devices.open_device(config.device, payload["target"], deadlines(config))
    workload = devices.Workload(payload["module"], payload["specs"])
    known_us: Future[float | None] = Future()
    trials: list[Trial] = []
    width = min(MOST_AT_ONCE, slots.of(payload["target"]["kind"]).count + 2)
    with (
        scratch.temporary("search") as folder,
        device.hold(workload, config.seed),
        ThreadPoolExecutor(width) as pool,
    ):

        def begin(trial: Trial) -> "Future[None]":
            trials.append(trial)
            return pool.submit(_measure, trial, known_us, workload, config, device, folder)

        pool.submit(device.get_ready, workload, [CASE], config.seed)
        if payload["round"] == 0:
            begun = [begin(Trial(_row(payload, "default", None)))]
            begun[0].add_done_callback(lambda _: known_us.set_result(trials[0].row["latency_us"]))
        else:
            begun = []
            known_us.set_result(payload["default_us"])
        begun += [begin(Trial(_row(payload, "imported", trace), trace)) for trace in payload["imported"]]
        try:
            proposals = _propose(payload, config, device)
        except ChildError as error:
            return Result(state="failed", reason=error.kind, detail=f"proposing: {error.detail}")
        for proposal in proposals:
            row = _row(payload, proposal["source"], proposal["trace"]) | {"score": proposal["score"]}
            begun.append(begin(Trial(row, proposal["trace"])))
        for future in begun:
            future.result()
    rows = {
        "candidates": [trial.row for trial in trials],
        "traces": [trial.trace for trial in trials if trial.trace is not None],
        "environments": [payload["environment"]],
    }
    if proposals or payload["imported"]:
        return Result(rows)
    return Result(rows, state="rejected", reason="no_space" if payload["round"] == 0 else "exhausted")


def deadlines(config: Config) -> devices.Deadlines:
    """How long building and running may take."""
    return devices.Deadlines(config.build_deadline_s, config.run_deadline_s, config.reference_deadline_s)


def _propose(payload: Payload, config: Config, device: Device) -> list[Row]:
    """The new proposals."""
    folder = scratch.own(f"features-{payload['workload_id']}")
    found: list[Row] = device.on_slot(
        "littledragon.compiler.proposals:propose",
        config.propose_deadline_s,
        urgent=False,
        module=payload["module"],
        target=payload["target"],
        rules=payload["rules"],
        records=payload["records"] + [{"trace": trace, "latency_us": None} for trace in payload["imported"]],
        count=config.candidates_per_round,
        seed=config.seed,
        round=payload["round"],
        population=config.population,
        warm_up=config.warm_up,
        folder=str(folder),
    )
    if payload["round"] + 1 == config.rounds:  # nothing will ask for them again
        shutil.rmtree(folder, ignore_errors=True)
    return found


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
        "headers": None,
    }


def _measure(
    trial: Trial,
    known_us: "Future[float | None]",
    workload: devices.Workload,
    config: Config,
    device: Device,
    folder: Path,
) -> None:
    """Every gate of one candidate. The default schedule's latency tells which of the others are hopeless."""
    row = trial.row
    own = Path(tempfile.mkdtemp(dir=folder))  # a file that some process has loaded is never written again
    made = device.make(workload, own, trace=trial.proposed)
    row |= {"build_s": made.build_s, "headers": made.headers}
    if made.admitted is not None:
        row["module_hash"] = made.admitted["module_hash"]
        if trial.proposed is not None and made.admitted["failed"] != "parsed":
            trial.trace = trace_row(row["candidate_id"], made.admitted)
    if made.kernel is None:
        assert made.failed is not None
        return trial.fail(made.failed)
    default_us = known_us.result() if row["source"] != "default" else None
    hopeless_s = None if default_us is None else devices.hopeless_s(default_us)
    try:
        checked = device.check(
            made.kernel, workload, [CASE], config.seed, repeat_ms=config.search_repeat_ms, hopeless_s=hopeless_s
        )
        row["error"] = checked.error
        checked.judge()
    except GateFailed as failed:
        return trial.fail(failed)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    repeats = checked.repeats_us
    if repeats is None:
        assert default_us is not None
        repeats = [checked.run_s * 1e6]
        reason = f"hopeless: one run took {repeats[0] / default_us:.3g} times L0"
        trial.fail(GateFailed("timed", reason))
    row |= {"repeats_us": repeats, "latency_us": statistics.median(repeats)}
    return None


def trace_row(candidate_id: str, admitted: Row) -> Row:
    """The row of `traces` of a candidate, from what admission said."""
    return {
        "candidate_id": candidate_id,
        **{name: admitted[name] for name in ("trace", "tsel", "instructions", "postproc_instructions")},
        "postproc_rules": admitted["rules"],
    }
