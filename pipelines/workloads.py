"""Stage workloads: every zoo block is lowered to tasks; then one reduce merges duplicates and sets cell and split.

A unit is one block; once all blocks have ended, one more unit reads their rows. What is not worth tuning, or
could not be lowered, stays as a rejected row with its reason.
"""

from itertools import chain, zip_longest
from typing import Any, Final

from littledragon.compiler import children, targets
from littledragon.compiler.zoo import BLOCKS, FAMILIES, Block
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.release import splits

NAME = "workloads"
VERSION = 1
TABLES = ("extractions", "workloads")

DEADLINE_S: Final = 120.0
"""For lowering one block, the child's start and import of TVM included."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """The target alone: `families` and `limit` choose units, they do not change one."""
    return {"target": config.target}


def plan(store: Store, config: Config) -> list[Unit]:
    """One unit a block; and, once all of them have ended, the reduce over those that did not fail, by the sealed list.

    Raises:
        UserError: a family that the zoo does not have.
    """
    blocks = [_unit(config, {"block_id": block.id}) for block in chosen(config)]
    ended = store.complete(NAME)
    if not all(unit.id in ended for unit in blocks):
        return blocks
    done = sorted(unit.id for unit in blocks if ended[unit.id] != "failed")
    return [*blocks, _unit(config, {"reduce": done, "sealed": splits.version()})]


def chosen(config: Config) -> list[Block]:
    """The blocks that the configuration asks for: one of each family in turn, in the zoo's order, up to the limit.

    Raises:
        UserError: a family that the zoo does not have.
    """
    unknown = sorted(set(config.families) - set(FAMILIES))
    if unknown:
        raise UserError(f"families: unknown '{unknown[0]}': choose among {', '.join(FAMILIES)}")
    families = [name for name in FAMILIES if not config.families or name in config.families]
    turns = zip_longest(*([block for block in BLOCKS if block.family == name] for name in families))
    return [block for block in chain.from_iterable(turns) if block is not None][: config.limit]


def load(store: Store, unit: Unit, config: Config) -> Payload:
    """The block's id and the target; or the rows that the reduce merges."""
    if "block_id" in unit.inputs:
        return {"block_id": unit.inputs["block_id"], "target": targets.target(config.target)}
    wanted = set(unit.inputs["reduce"])
    rows = [row for row in store.rows("extractions") if row["unit_id"] in wanted]
    return {"rows": [{name: row[name] for name in row if name != "unit_id"} for row in rows]}


def work(payload: Payload, config: Config) -> Result:
    """Lower one block in a child process, or merge what all blocks gave.

    Raises:
        ChildError: the child crashed or passed its deadline.
    """
    if "rows" in payload:
        return Result({"workloads": merge(payload["rows"], splits.load_sealed())})
    rows = children.worker("lower").call(
        "littledragon.compiler.lowering:extract",
        deadline_s=DEADLINE_S,
        block_id=payload["block_id"],
        target=payload["target"],
    )
    if all(row["task"] is None for row in rows):
        return Result({"extractions": rows}, "rejected", rows[0]["reason"], rows[0]["detail"])
    return Result({"extractions": rows})


def merge(rows: list[Row], sealed: splits.Sealed) -> list[Row]:
    """Rows of `workloads`: of structurally equal modules the smallest (block, task) stays, with its cell and split."""
    first: dict[str, Row] = {}
    merged = []
    for row in sorted(rows, key=lambda row: (row["block_id"], row["task"] or "")):
        new = {**row, "cell": None, "split": None}
        if row["state"] == "ok":
            same = first.setdefault(row["module_hash"], row)
            if same is not row:
                detail = f"equal to {same['workload_id']}, task {same['task']} of {same['block_id']}"
                new |= {"workload_id": None, "state": "rejected", "reason": "duplicate", "detail": detail}
            else:
                new["cell"] = splits.cell(row["signature"], row["extents"])
                new["split"] = splits.split(row["signature"], row["extents"], sealed)
        merged.append(new)
    return merged


def _unit(config: Config, inputs: dict[str, Any]) -> Unit:
    return Unit(NAME, VERSION, params(config), inputs)
