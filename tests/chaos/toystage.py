"""A stage without a compiler, to try the driver on: two waves, some units rejected or failed, each a little slow.

Every execution of `work` is written down, one line, in the file that the configuration's teacher_url names.
It takes the name and a table of a real stage, since the store knows no others.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store

NAME, VERSION, TABLES = "workloads", 1, ("extractions",)
WAVE = 12


def params(config: Config) -> dict[str, Any]:
    return {"seed": config.seed}


def plan(store: Store, config: Config) -> list[Unit]:
    first = [Unit(NAME, VERSION, params(config), {"wave": 0, "number": number}) for number in range(WAVE)]
    ended = store.complete(NAME)
    if not all(unit.id in ended for unit in first):
        return first
    second = [{"wave": 1, "number": number, "of": len(first)} for number in range(WAVE)]
    return first + [Unit(NAME, VERSION, params(config), inputs) for inputs in second]


def load(store: Store, units: Sequence[Unit], config: Config) -> list[dict[str, Any]]:
    return [{"id": unit.id, **unit.inputs} for unit in units]


def work(payload: dict[str, Any], config: Config) -> Result:
    _note(config, payload["id"])
    time.sleep(config.repeat_ms / 1000)
    if payload["number"] == 3:
        return Result(state="rejected", reason="no_task", detail="a third")
    if payload["number"] == 5:
        raise ValueError(f"unit {payload['number']} of wave {payload['wave']} never works")
    if payload["number"] == 7 and config.seed == 666:
        os._exit(9)
    return Result({"extractions": [extraction(payload, row) for row in range(payload["number"] + 1)]})


def extraction(payload: dict[str, Any], row: int) -> dict[str, Any]:
    from littledragon.schemas.tables import EXTRACTIONS

    values: dict[str, Any] = {column.name: None for column in EXTRACTIONS.columns}
    block = f"toy.{payload['wave']}.{payload['number']}"
    about = {
        "block_id": block,
        "configuration": "c",
        "task": f"main{row}",
        "state": "ok",
        "family": "gemm",
        "operator": "toy",
    }
    return {**values, **about, "model": "none", "source": "none", "licence": "none", "flops": row / 3}


def _note(config: Config, id: str) -> None:
    assert config.teacher_url is not None
    with Path(config.teacher_url).open("a", encoding="ascii") as stream:
        stream.write(f"{id}\n")  # one short write: lines of several processes do not mix
