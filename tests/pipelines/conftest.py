"""A work directory that holds the shared rows, as the stages would have written them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import STAGES, Store
from littledragon.schemas.tables import BY_NAME

OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}
Tables = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def fill() -> Callable[[Path, Tables], Store]:
    """`fill(path, tables)`: a store with a unit in each stage; again, with other rows, a later plan of it."""

    def make(path: Path, tables: Tables) -> Store:
        store = Store.open(path, create=True)
        for stage in STAGES:
            rows = {name: tables[name] for name in tables if BY_NAME[name].stage == stage}
            if rows:
                units = [Unit(stage, 1, {}, {"rows": repr(rows)})]
                store.commit(units[0], Result(rows), OBSERVED)
                if stage == "search":  # every unit of search writes the row of its environment
                    units.append(Unit(stage, 1, {}, {"another": repr(rows)}))
                    store.commit(units[1], Result({"environments": rows["environments"]}), OBSERVED)
                store.plan(stage, units)
        return store

    return make
