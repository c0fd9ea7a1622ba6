"""What a stage is: units of work, and a pure function from a unit to rows.

A stage is a module with these names; it knows nothing of executors, and the executor nothing of stages:

    NAME: str                                     the stage's name, as on the command line
    VERSION: int                                  raised when the same inputs would give other rows
    TABLES: tuple[str, ...]                       the tables that it writes, `outcomes` not counted
    params(config) -> dict                        the settings that its rows depend on, and no others
    plan(store, config) -> list[Unit]             every unit that can be known now; asked again after each
                                                  wave of work, until it names no unit that is not complete
    as_measured(store, config) -> list[Unit]      optional, where rows are of the machine that made them: the plan as
                                                  that machine makes it, for the stages after it, which run anywhere
    load(store, units, config) -> list[Payload]   what the work on each needs, read from the store by the driver,
                                                  for a few units at once: a query costs the same for one and for all
    SLICE: int                                    optional: for how many at most, where payloads are large
    GROWS: bool                                   optional: its plan grows with its own rows, so it is asked again while
                                                  work goes on
    SHARED: bool                                  optional: its work waits for children that one process shares, so that
                                                  on one machine many units are in flight in one process
    work(payload, config) -> Result               rows, made anywhere, without the store
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from littledragon.pipelines.config import Config
from littledragon.schemas.gates import State
from littledragon.schemas.ids import unit_id

Payload = dict[str, Any]
"""JSON values: a payload crosses process borders."""


@dataclass(frozen=True)
class Unit:
    """One unit of work: the stage, its version and parameters, and the exact inputs, all hashed into `id`."""

    stage: str
    version: int
    params: dict[str, Any]
    inputs: dict[str, Any]
    """JSON, small: ids of rows and units, not their contents."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", unit_id(self.stage, self.version, self.params, self.inputs))


def unit(stage: ModuleType, config: Config, inputs: dict[str, Any]) -> Unit:
    """A unit of this stage module under this configuration."""
    return Unit(stage.NAME, stage.VERSION, stage.params(config), inputs)


@dataclass(frozen=True)
class Result:
    """How a unit ended, and the rows of each table, without `unit_id`.

    `failed` is for what may pass when tried again; a unit that raises is recorded as failed by the executor.
    """

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    state: State = "ok"
    reason: str | None = None
    detail: str | None = None
