"""The tasks of a release folder, for whoever trains or evaluates on them: files from strangers, as in `published`."""

import functools
import json
import math
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import children
from littledragon.compiler.children import ChildError
from littledragon.release import published
from littledragon.release.published import Unreadable
from littledragon.validators.service import Task

Row = dict[str, Any]

COLUMNS: Final = (
    "workload_id", "environment_id", "module", "inputs", "target", "default_us", "anchor_us", "noise_band", "margin",
    "split",
)  # fmt: skip
SPLITS: Final = ("train", "validation", "test")
DEADLINE_S: Final = 120.0
PIECE: Final = 32 << 20
"""A child answers so many characters at once, about."""


def tasks_of(folder: str | Path, *, split: str | None = None, environment_id: str | None = None) -> list[Task]:
    """The tasks in a release's `tasks/*.parquet`, in the order of its files.

    Args:
        split: only these: train, validation or test.
        environment_id: where the latencies were measured; needed where the folder holds several.

    Raises:
        Unreadable: no such folder, or a file or value that no release of ours holds; several environments and no
            choice; two rows of one workload.
    """
    if split is not None and split not in SPLITS:
        raise Unreadable(f"split '{split}': choose {', '.join(SPLITS)}")
    rows: list[Row] = []
    place: list[int] | None = [0, 0]
    while place is not None:
        try:
            piece = children.once(
                "littledragon.release.tasks:read",
                deadline_s=DEADLINE_S,
                folder=str(Path(folder).absolute()),
                place=place,
                split=split,
                environment_id=environment_id,
            )
        except ChildError as error:
            said = error.detail.removeprefix("Unreadable: ") if error.kind == "raised" else str(error)
            raise Unreadable(said) from None
        rows += piece["rows"]
        place = piece["place"]
    if not rows:
        raise Unreadable(f"{folder}: tasks/ has no such rows")
    if len(environments := sorted({row["environment_id"] for row in rows})) > 1:
        raise Unreadable(f"{folder}: latencies of {len(environments)} environments: choose one of {environments[:9]}")
    if len({row["workload_id"] for row in rows}) < len(rows):
        raise Unreadable(f"{folder}: tasks/ has two rows of one workload")
    return [_task(row) for row in rows]


def _task(row: Row) -> Task:
    latencies = {name: row[name] for name in ("default_us", "anchor_us", "noise_band", "margin")}
    return Task(row["workload_id"], row["module"], json.loads(row["inputs"]), json.loads(row["target"]), **latencies)


def read(folder: str, place: list[int], split: str | None, environment_id: str | None) -> Row:
    """Rows from this file and row on, and the place where to go on. Runs in a child of bounded memory.

    Raises:
        Unreadable: see `tasks_of`.
    """
    return published.bounded(folder, functools.partial(_read, Path(folder), place, split, environment_id))


def _read(root: Path, place: list[int], split: str | None, environment_id: str | None) -> Row:
    files = published.files(root, "tasks/*.parquet")
    if not files:
        raise Unreadable(f"{root}: no tasks/*.parquet: not a release")
    rows: list[Row] = []
    size = 0
    number, first = place
    while number < len(files):
        path = files[number]
        for found in published.batches(path, COLUMNS, first):
            first += len(found)
            wanted = [row for row in found if _wanted(path, row, split, environment_id)]
            rows += wanted
            size += sum(len(row["module"]) for row in wanted)
            if size > PIECE:
                return {"rows": rows, "place": [number, first]}
        number, first = number + 1, 0
    return {"rows": rows, "place": None}


def _wanted(path: Path, row: Row, split: str | None, environment_id: str | None) -> bool:
    """Whether this row is asked for; if so, it is checked."""
    lacking = [name for name in COLUMNS if row[name] is None]
    if lacking:
        raise Unreadable(f"{path}: {', '.join(lacking)} is missing")
    if row["split"] not in SPLITS:
        raise Unreadable(f"{path}: split '{published.short(row['split'])}' is none of {', '.join(SPLITS)}")
    if split not in (None, row["split"]) or environment_id not in (None, row["environment_id"]):
        return False
    for name in ("default_us", "anchor_us"):
        if not 0 < row[name] < 1e9:
            raise Unreadable(f"{path}: {name} is {row[name]}, which is no latency")
    for name in ("noise_band", "margin"):
        if not 0 <= row[name] < 100 or math.isnan(row[name]):
            raise Unreadable(f"{path}: {name} is {row[name]}")
    published.check_target(row["target"], str(path))
    published.check_specs(row["inputs"])
    published.check_module(row["module"])
    return True
