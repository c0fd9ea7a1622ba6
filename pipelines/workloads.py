"""Stage workloads: every zoo block is lowered to tasks; then one reduce merges duplicates and sets cell and split.

A unit is the blocks of one family and model with all their configurations, or a model that the user gives; once all
have ended, one more unit reads their rows. What is not worth tuning, or could not be lowered, stays as a rejected row
with its reason.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from littledragon.compiler import children, lowering, outside, targets
from littledragon.compiler.children import ChildError
from littledragon.compiler.zoo import FAMILIES, Block, Zoo, block_of, blocks
from littledragon.compiler.zoo.block import MOST_CASES
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import content_of
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.release import splits
from littledragon.schemas.ids import digest

NAME = "workloads"
VERSION = 2
TABLES = ("extractions", "placements")

DEADLINE_S: Final = 300.0
"""For lowering one unit, the child's start and import of TVM included."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """The target alone: `zoo`, `families` and `limit` choose units, they do not change one."""
    return {"target": config.target}


def plan(store: Store, config: Config) -> list[Unit]:
    """A unit for each part of the zoo, or each model of the user; and, once all have ended, the reduce over their rows.

    Raises:
        UserError: a family that the zoo does not have, or a model's file that is none.
    """
    units = _own(config) or [
        _unit(config, {"zoo": config.zoo, "blocks": {block.id: _grid(block) for block in part}})
        for part in chosen(config)
    ]
    ended = store.complete(NAME)
    if not all(unit.id in ended for unit in units):
        return units
    done = sorted(unit.id for unit in units if ended[unit.id] != "failed")
    return [*units, _unit(config, {"reduce": done, "sealed": splits.version()})]


def _own(config: Config) -> list[Unit]:
    """One unit for each model that the user gave, named by its content: where the file lies changes nothing."""
    files = [Path(name) for name in config.models]
    for file in files:
        if file.suffix not in outside.SUFFIXES:
            raise UserError(f"{file}: not a model: give a file that ends in {', '.join(outside.SUFFIXES)}")
        if len([other for other in files if outside.key(other) == outside.key(file)]) > 1:
            raise UserError(f"{file}: two models of this name: rename one, as rows are named by it")
    return [_unit(config, {"model": file.name, "sha256": content_of(file, outside.MOST_BYTES)}) for file in files]


def chosen(config: Config) -> list[list[Block]]:
    """The blocks that the configuration asks for, in the groups that are a unit each: a group of each family in turn,
    in the zoo's order, while no more than `limit` blocks come together; one group at least.

    A group is the same whatever else is chosen, so that choosing more later does nothing again.

    Raises:
        UserError: a family that the zoo does not have.
    """
    unknown = sorted(set(config.families) - set(FAMILIES))
    if unknown:
        raise UserError(f"families: unknown '{unknown[0]}': choose among {', '.join(FAMILIES)}")
    families = [name for name in FAMILIES if not config.families or name in config.families]
    groups = (_groups(config.zoo, name) for name in families)
    taken: list[list[Block]] = []
    for group in chain.from_iterable(zip_longest(*groups)):
        if group is not None:
            taken.append(group)
            if config.limit is not None and sum(map(len, taken)) > config.limit:
                return taken[:-1] or taken
    return taken


def _groups(zoo: Zoo, family: str) -> list[list[Block]]:
    """The family's blocks by model, at most `MOST_CASES` configurations in a group; in the demo each block alone."""
    of: dict[str, list[list[Block]]] = {}
    for block in (block for block in blocks(zoo) if block.family == family):
        groups = of.setdefault(block.id if zoo == "demo" else block.model.source, [[]])
        if groups[-1] and sum(len(b.cases) for b in (*groups[-1], block)) > MOST_CASES:
            groups.append([])
        groups[-1].append(block)
    return [group for groups in of.values() for group in groups]


@cache
def _grid(block: Block) -> str:
    """A hash of the block's configurations: a unit is what it is made of, not what that is called."""
    model = [block.operator, block.model.name, block.model.source, block.model.licence]
    return digest([model, [[case.name, case.about, dict(case.shape)] for case in block.cases]])


MERGED: Final = """
    SELECT block_id, configuration, task, workload_id, signature, extents FROM extractions
    WHERE state = 'ok' AND list_contains($units, unit_id) ORDER BY block_id, configuration, task
"""


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The blocks' ids, or a model's file, and the target; or what the reduce needs of every accepted row."""
    return [_payload(store, unit, config) for unit in units]


def _payload(store: Store, unit: Unit, config: Config) -> Payload:
    target = targets.target(config.target)
    if "blocks" in unit.inputs:
        chosen = {"zoo": unit.inputs["zoo"], "block_ids": list(unit.inputs["blocks"])}
        return {"function": "lowering:extract", "with": {**chosen, "target": target}}
    if "model" in unit.inputs:
        path = next(Path(name).absolute() for name in config.models if Path(name).name == unit.inputs["model"])
        return {"function": "outside:extract", "with": {"path": str(path), "target": target}}
    return {"accepted": store.sql(MERGED, units=unit.inputs["reduce"]).to_pylist()}


def work(payload: Payload, config: Config) -> Result:
    """Lower blocks or a model in a child process, or merge what all blocks gave.

    Raises:
        ChildError: the child crashed or passed its deadline.
    """
    if "accepted" in payload:
        return Result({"placements": merge(payload["accepted"], splits.load_sealed())})
    # A child that has imported PyTorch is twice as large.
    worker = children.worker("import" if "path" in payload["with"] else "lower")
    function = f"littledragon.compiler.{payload['function']}"
    try:
        rows = worker.call(function, deadline_s=DEADLINE_S, **payload["with"])
    except ChildError as error:
        if error.kind != "crashed" or "block_ids" not in payload["with"]:
            raise
        rows = _one_by_one(worker, function, payload["with"])
    if rows and all(row["task"] is None for row in rows):
        return Result({"extractions": rows}, "rejected", rows[0]["reason"], rows[0]["detail"])
    return Result({"extractions": rows})


def _one_by_one(worker: children.Child, function: str, arguments: dict[str, Any]) -> list[Row]:
    """The rows of a unit under which a child died: each configuration alone, and the deadly one rejected."""
    rows: list[Row] = []
    for block_id in arguments["block_ids"]:
        block = block_of(arguments["zoo"], block_id)
        for case in block.cases:
            alone = {**arguments, "block_ids": [block_id], "only": case.name}
            try:
                rows += worker.call(function, deadline_s=DEADLINE_S, **alone)
            except ChildError as error:
                if error.kind != "crashed":
                    raise
                rows.append(lowering.refused(block, case, error))
    return rows


def finish(store: Store, config: Config) -> None:
    """Say that a model of the user gave nothing; the rest is kept.

    Raises:
        UserError: one could not be read, or has no task worth tuning.
    """
    for name in config.models:
        own = f"own/{outside.key(Path(name))}"
        rows = store.rows("extractions", "block_id = $own", own=own)
        if not any(row["state"] == "ok" for row in rows):
            why = f"{rows[0]['reason']}: {rows[0]['detail']}" if rows else "`dragon status` says why"
            raise UserError(f"{name}: no workloads were made of it: {why}")


def merge(accepted: list[Row], sealed: splits.Sealed) -> list[Row]:
    """Rows of `placements`, in order of (block, configuration, task).

    Of equal workloads the first stays, and of one cell the first six; what stays gets its cell and split.
    """
    first: dict[str, Row] = {}
    full: Counter[str] = Counter()
    placed = []
    for row in sorted(accepted, key=lambda row: (row["block_id"], row["configuration"], row["task"])):
        new: Row = {name: row[name] for name in ("block_id", "configuration", "task")}
        new |= {"state": "ok", "reason": None, "detail": None, "cell": None, "split": None}
        same = first.setdefault(row["workload_id"], row)
        cell = splits.cell(row["signature"], row["extents"])
        if same is not row:
            said = f"{row['workload_id']} is task {same['task']} of {same['block_id']}, {same['configuration']}"
            new |= {"state": "rejected", "reason": "duplicate", "detail": said}
        elif full[cell] == lowering.MOST_IN_CELL:
            new |= {
                "state": "rejected",
                "reason": "cell_full",
                "detail": f"cell {cell} has its {lowering.MOST_IN_CELL}",
            }
        else:
            full[cell] += 1
            new |= {"cell": cell, "split": splits.split(row["signature"], row["extents"], sealed)}
        placed.append(new)
    return placed


def _unit(config: Config, inputs: dict[str, Any]) -> Unit:
    return Unit(NAME, VERSION, params(config), inputs)
