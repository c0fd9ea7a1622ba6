"""The driver: asks a stage for its plan, has what is not done worked on, and commits each answer as it comes.

Running again is resuming: a unit that has ended stays ended. A stage whose plan grows with its own rows (the
next round of a search) is asked again until nothing in the plan is left to do.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
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
from littledragon.pipelines.store import SMALL_FILES, Outcome, Store
from littledragon.schemas.gates import State

SLICE = 64
"""Payloads of so many units are loaded at once, where a stage does not name another number as its own SLICE."""
PLANNING = 0.1
"""So much of the time at most goes into asking for plans that grow while work is under way…"""
PLANNING_S = 1.0
"""…beyond the first second."""
FEW_FILES = 32
"""So many files of one unit are compacted at the end of a stage: the next one reads them over and over."""


def run(store: Store, names: Sequence[str], config: Config, executor: Executor, *, retry: str | None = None) -> None:
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
    elsewhere = not any(hasattr(stages.stage(name), "as_measured") for name in names)
    for name in before:
        with busy(f"{names[0]}: looking whether {name} is up to date"):
            require_current(store, stages.stage(name), config, elsewhere=elsewhere)
    with acquire_all(store.path, names) as leases:
        for name in names:
            run_stage(store, stages.stage(name), config, executor, leases[name], retry=retry)


def require_current(store: Store, stage: ModuleType, config: Config, *, elsewhere: bool = False) -> None:
    """A stage builds on what those before it left, so that has to be what they would do now, finished or not.

    elsewhere: what was measured may be of another machine.

    Raises:
        UserError: the stage was run with other settings, what it read is not the same any more, or nothing is left of
            what it measured.
    """
    plan = getattr(stage, "as_measured", stage.plan) if elsewhere else stage.plan
    named = set(store.manifest(stage.NAME) or ())
    if named - {unit.id for unit in plan(store, config)}:
        raise UserError(
            f"{store.path}: stage {stage.NAME} was run with other settings, or before a stage that it reads was run "
            f"again: give the options that it was run with, or run `dragon {stage.NAME}` first"
        )
    if named and hasattr(stage, "as_measured") and not named & store.complete(stage.NAME).keys():
        raise UserError(
            f"{store.path}: of {len(named)} units of stage {stage.NAME} none has ended, or their files are gone: run "
            f"`dragon {stage.NAME}` first, or restore the files"
        )


def run_stage(
    store: Store, stage: ModuleType, config: Config, executor: Executor, lease: Lease, *, retry: str | None = None
) -> None:
    """Do everything that the stage's plan names and that is not done; failed units again only if asked to.

    Raises:
        UserError: the disk refused, a file is damaged, or the lease was lost. What was done is kept.
    """
    with Progress(stage.NAME) as progress:
        work = _Work(store, stage, config, lease, progress, retry)
        while work.plan():
            for answer in chain(executor.run(stage.__name__, config, work), work.unloadable()):
                lease.check()
                unit, attempt = work.end(answer.id)
                progress.ended(*_commit(store, unit, answer, attempt))
                if len(work.tried) % SMALL_FILES == 0:
                    store.compact(stage.NAME, at_least=SMALL_FILES)
        store.compact(stage.NAME, at_least=FEW_FILES)
        if hasattr(stage, "finish"):
            lease.check()
            progress.say("finishing")
            stage.finish(store, config)
    catalog.write(store.path)


class _Work(Iterator[tuple[str, Payload]]):
    """What is left of a stage's plan: ids with payloads, loaded a slice at a time, just before an executor takes them.

    An executor that has room asks again, also after `StopIteration`. By then the plan of a stage that grows (`GROWS`)
    may name more: the next round of one search need not wait for the slowest of all the others.
    """

    def __init__(
        self, store: Store, stage: ModuleType, config: Config, lease: Lease, progress: Progress, retry: str | None
    ) -> None:
        self._store, self._stage, self._config, self._lease = store, stage, config, lease
        self._progress, self._retry = progress, retry
        self.tried: set[str] = set()
        self._given: dict[str, Unit] = {}
        self._ended: dict[str, Outcome] = {}
        self._left: deque[Unit] = deque()
        self._loaded: deque[tuple[str, Payload]] = deque()
        self._unloadable: list[Answer] = []
        self._began, self._planning_s = time.monotonic(), 0.0
        self._stale = True
        """Whether anything has ended since the plan was made."""

    def plan(self) -> bool:
        """Ask the stage for its plan; whether it names anything that is neither done nor given out."""
        began, name = time.monotonic(), self._stage.NAME
        new, self._stale = self._stale, False
        while new and not self._left:  # a new plan shows rows of earlier runs, from which the stage may plan more
            with busy(f"{name}: planning"):
                units = list({unit.id: unit for unit in self._stage.plan(self._store, self._config)}.values())
            self._lease.check()
            new = self._store.manifest(name) != [unit.id for unit in units]
            if new:
                self._store.plan(name, units)
            self._ended = self._store.outcomes(name)
            asked = {id for id, o in self._ended.items() if self._retry is not None and self._retry in _names(o)}
            again = asked - self.tried
            pending = [unit for unit in units if unit.id not in self._ended or unit.id in again]
            waiting = {unit.id for unit in pending}
            ended = [self._ended[unit.id] for unit in units if unit.id not in waiting]
            states = [(outcome.state, outcome.reason) for outcome in ended]
            self._progress.plan(len(units), states)
            self._left.extend(unit for unit in pending if unit.id not in self._given)
        self._planning_s += time.monotonic() - began
        return bool(self._left)

    def __next__(self) -> tuple[str, Payload]:
        while not self._loaded:
            if not self._left and not self._grown():
                raise StopIteration
            some = [self._left.popleft() for _ in range(min(len(self._left), getattr(self._stage, "SLICE", SLICE)))]
            self._given |= {unit.id: unit for unit in some}
            self._loaded.extend(_loaded(self._store, self._stage, self._config, some, self._unloadable))
        return self._loaded.popleft()

    def _grown(self) -> bool:
        """Whether the plan names more by now; it is not asked where asking has taken too much of the time."""
        if not (self._stale and getattr(self._stage, "GROWS", False)):
            return False
        allowed_s = PLANNING_S + PLANNING * (time.monotonic() - self._began)
        return self._planning_s <= allowed_s and self.plan()

    def end(self, id: str) -> tuple[Unit, int]:
        """A unit that was given out, which has ended, and which attempt at it this was."""
        self.tried.add(id)
        self._stale = True
        return self._given.pop(id), self._ended[id].attempt + 1 if id in self._ended else 1

    def unloadable(self) -> Iterator[Answer]:
        """The answers for units whose payloads could not be loaded."""
        while self._unloadable:
            yield self._unloadable.pop(0)


def _names(outcome: Outcome) -> tuple[str, ...]:
    """What --retry may call a unit that ended so: failed, or the reason; what is there is never done again."""
    if outcome.state == "ok":
        return ()
    return (*(["failed"] if outcome.state == "failed" else []), *([outcome.reason] if outcome.reason else []))


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


def _commit(store: Store, unit: Unit, answer: Answer, attempt: int) -> tuple[State, str | None]:
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
        return broken.state, broken.reason
    return answer.result.state, answer.result.reason
