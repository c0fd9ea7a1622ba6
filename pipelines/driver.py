"""The driver: asks a stage for its plan, has what is not done worked on, and commits each answer as it comes.

Running again is resuming: a unit that has ended stays ended. A stage whose plan grows with its own rows (the
next round of a search) is asked again until nothing in the plan is left to do.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from littledragon.pipelines import catalog, stages
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Answer, Executor, failed
from littledragon.pipelines.lease import Lease, acquire_all
from littledragon.pipelines.progress import Progress, busy
from littledragon.pipelines.shards import RowError
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import SMALL_FILES, Store

SLICE = 64
"""Payloads of so many units are loaded at once, where a stage does not name another number as its own SLICE."""
FEW_FILES = 32
"""So many files of one unit are compacted at the end of a stage: the next one reads them over and over."""


def run(store: Store, names: Sequence[str], config: Config, executor: Executor, *, retry_failed: bool = False) -> None:
    """Run these stages, in this order, holding the leases of all of them from the start.

    Raises:
        UserError: another driver holds one, a setting that a stage needs is missing, real measurements would be
            replaced by invented ones, a stage before them was never run or is out of date, or what `run_stage` says.
    """
    for name in names:
        stages.stage(name).params(config)  # says now, not after hours, which setting is missing
    if config.device == "simulated" and store.rows("environments", "device = 'real'"):
        raise UserError(
            f"{store.path}: its measurements are real, and --device simulated invents them: give another --workdir"
        )
    before = stages.NAMES[: stages.NAMES.index(names[0])]
    missing = [name for name in before if store.manifest(name) is None]
    if missing:
        raise UserError(f"{store.path}: stage {names[0]} needs {missing[0]} first: run `dragon {missing[0]}`")
    for name in before:
        with busy(f"{names[0]}: looking whether {name} is up to date"):
            require_current(store, stages.stage(name), config)
    with acquire_all(store.path, names) as leases:
        for name in names:
            run_stage(store, stages.stage(name), config, executor, leases[name], retry_failed=retry_failed)


def require_current(store: Store, stage: ModuleType, config: Config) -> None:
    """A stage builds on what those before it left, so that has to be what they would do now, finished or not.

    Raises:
        UserError: the stage was run with other settings, or what it read is not the same any more.
    """
    if set(store.manifest(stage.NAME) or ()) - {unit.id for unit in stage.plan(store, config)}:
        raise UserError(
            f"{store.path}: stage {stage.NAME} was run with other settings, or before a stage that it reads was run "
            f"again: give the options that it was run with, or run `dragon {stage.NAME}` first"
        )


def run_stage(
    store: Store, stage: ModuleType, config: Config, executor: Executor, lease: Lease, *, retry_failed: bool = False
) -> None:
    """Do everything that the stage's plan names and that is not done; failed units again only if asked to.

    Raises:
        UserError: the disk refused, a file is damaged, or the lease was lost. What was done is kept.
    """
    tried: set[str] = set()
    with Progress(stage.NAME) as progress:
        while True:
            with busy(f"{stage.NAME}: planning"):
                units = list({unit.id: unit for unit in stage.plan(store, config)}.values())
            lease.check()
            new = store.manifest(stage.NAME) != [unit.id for unit in units]
            if new:
                store.plan(stage.NAME, units)
            ended = store.outcomes(stage.NAME)
            again = {id for id, outcome in ended.items() if outcome.state == "failed" and retry_failed} - tried
            pending = [unit for unit in units if unit.id not in ended or unit.id in again]
            waiting = {unit.id for unit in pending}
            progress.plan(len(units), [ended[unit.id].state for unit in units if unit.id not in waiting])
            if not pending and not new:
                break  # a new plan shows rows of earlier runs, from which the stage may plan more
            for unit, answer in _answers(store, stage, config, executor, pending):
                lease.check()
                attempt = ended[unit.id].attempt + 1 if unit.id in ended else 1
                progress.ended(_commit(store, unit, answer, attempt))
                tried.add(unit.id)
                if len(tried) % SMALL_FILES == 0:
                    store.compact(stage.NAME, at_least=SMALL_FILES)
        store.compact(stage.NAME, at_least=FEW_FILES)
        if hasattr(stage, "finish"):
            lease.check()
            progress.say("finishing")
            stage.finish(store, config)
    catalog.write(store.path)


def _answers(
    store: Store, stage: ModuleType, config: Config, executor: Executor, pending: Sequence[Unit]
) -> Iterator[tuple[Unit, Answer]]:
    """Load payloads, a slice at a time, just before they are wanted, and give the answers as they come."""
    by_id = {unit.id: unit for unit in pending}
    unloadable: list[Answer] = []

    def items() -> Iterator[tuple[str, Payload]]:
        slice_of = getattr(stage, "SLICE", SLICE)
        for start in range(0, len(pending), slice_of):
            yield from _loaded(store, stage, config, pending[start : start + slice_of], unloadable)

    for answer in executor.run(stage.__name__, config, items()):
        yield by_id[answer.id], answer
    for answer in unloadable:
        yield by_id[answer.id], answer


def _loaded(
    store: Store, stage: ModuleType, config: Config, units: Sequence[Unit], unloadable: list[Answer]
) -> Iterator[tuple[str, Payload]]:
    """The payloads of these units: of all at once, or where that fails, of one after the other, to see which fails."""
    try:
        payloads = stage.load(store, units, config)
        if len(payloads) != len(units):
            raise LookupError(f"{len(payloads)} payloads for {len(units)} units")
    except UserError:
        raise
    except Exception as error:
        if len(units) == 1:
            unloadable.append(failed(units[0].id, error))
            return
        for unit in units:
            yield from _loaded(store, stage, config, [unit], unloadable)
    else:
        yield from zip((unit.id for unit in units), payloads, strict=True)


def _commit(store: Store, unit: Unit, answer: Answer, attempt: int) -> str:
    observed: dict[str, Any] = {
        "attempt": attempt,
        "started_at": answer.started_at,
        "wall_s": answer.wall_s,
        "host": answer.host,
    }
    try:
        store.commit(unit, answer.result, observed)
    except RowError as error:
        broken = Result(state="failed", reason="raised", detail=f"RowError: {error}")
        store.commit(unit, broken, observed)
        return broken.state
    return answer.result.state
