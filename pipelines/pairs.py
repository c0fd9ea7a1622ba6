"""Stage pairs: what is to be taught of a workload that was verified, and the facts that may be said of it.

A unit is one workload in one environment. Facts are derived in a child, since payloads are replayed for them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from littledragon.compiler import children
from littledragon.compiler.facts import request
from littledragon.pipelines import selection
from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.gates import OK
from littledragon.schemas.ids import digest
from littledragon.schemas.tables import BY_NAME

NAME: Final = "pairs"
VERSION: Final = 2
TABLES: Final = ("selections", "facts")
SLICE: Final = 8
"""A payload holds all candidates of a workload."""

FACTS_DEADLINE_S: Final = 120.0
_CANDIDATE: Final = ("candidate_id", "source", "status", "reason")
_WORKLOAD: Final = ("workload_id", "module", "features", "description", "operator")
WORKLOADS: Final = f"""
    SELECT workload_id, md5(concat_ws(chr(31), {", ".join(_WORKLOAD)})) AS source FROM workloads WHERE state = 'ok'
"""
"""What facts are derived from, as one hash: of equal modules, another may stay when more blocks are chosen."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """How many schedules and pairs are taken; the margin is of the anchors."""
    more = {} if config.construct_best == 1 else {"construct_best": config.construct_best}
    return {"refine_per_band": config.refine_per_band} | more


def plan(store: Store, config: Config) -> list[Unit]:
    """One unit for each row of `anchors`; it changes when a verdict, an anchor, a candidate or the workload does."""
    units = []
    sources = {row["workload_id"]: row["source"] for row in store.sql(WORKLOADS).to_pylist()}
    verdicts, candidates = _grouped(store.rows("verdicts")), _grouped(store.rows("candidates"))
    for anchor in store.rows("anchors"):
        key = anchor["workload_id"], anchor["environment_id"]
        inputs = {
            "workload_id": anchor["workload_id"],
            "environment_id": anchor["environment_id"],
            "source": sources.get(anchor["workload_id"]),
            "verified": digest([lasting("anchors", [anchor]), lasting("verdicts", verdicts.get(key, []))]),
            "candidates": digest([[c[name] for name in _CANDIDATE] for c in candidates.get(key, [])]),
        }
        units.append(Unit(NAME, VERSION, params(config), inputs))
    return units


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload_id"], row["environment_id"]), []).append(row)
    return found


def lasting(table: str, rows: Iterable[Row]) -> list[Row]:
    """Rows without what differs from run to run for reasons outside the inputs."""
    kept = [column.name for column in BY_NAME[table].columns if not column.observed]
    return [{name: row[name] for name in kept} for row in rows]


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The workload, its candidates, verdicts and anchor, and the payloads of those that were verified."""
    ids = [unit.inputs["workload_id"] for unit in units]
    workloads = store.grouped("workloads", "workload_id", ids, "state = 'ok'")
    environments = store.grouped("environments", "environment_id", [unit.inputs["environment_id"] for unit in units])
    of = {
        name: _grouped(row for rows in store.grouped(name, "workload_id", ids).values() for row in rows)
        for name in ("candidates", "verdicts", "anchors")
    }
    verified = sorted({row["candidate_id"] for rows in of["verdicts"].values() for row in rows})
    traces = store.grouped("traces", "candidate_id", verified, "tsel IS NOT NULL")
    payloads = []
    for unit in units:
        key = (unit.inputs["workload_id"], unit.inputs["environment_id"])
        (workload,), verdicts = workloads[key[0]], of["verdicts"].get(key, [])
        payload = {
            **unit.inputs,
            "workload": {name: workload[name] for name in _WORKLOAD},
            "environment": {"target": environments[key[1]][0]["target"]},
            "candidates": [{name: row[name] for name in _CANDIDATE} for row in of["candidates"].get(key, [])],
            "verdicts": lasting("verdicts", verdicts),
            "anchor": lasting("anchors", of["anchors"][key])[0],
            "tsel": {row["candidate_id"]: trace["tsel"] for row in verdicts for trace in traces[row["candidate_id"]]},
        }
        payloads.append(payload)
    return payloads


def work(payload: Payload, config: Config) -> Result:
    """Select, and derive the facts of each selection.

    Raises:
        ChildError: the child that derives facts died, or a payload that was admitted does not replay.
    """
    selections = selection.select(
        payload["workload_id"],
        payload["environment_id"],
        payload["candidates"],
        payload["verdicts"],
        payload["anchor"],
        payload["tsel"].keys(),
        config.refine_per_band,
        config.construct_best,
    )
    facts: list[Row] = []
    for row in selections:
        if row["state"] == OK:
            facts += _facts(row, payload)
    return Result({"selections": selections, "facts": facts})


def _facts(row: Row, payload: Payload) -> list[Row]:
    found = children.worker("facts").call(
        "littledragon.compiler.facts:derive",
        deadline_s=FACTS_DEADLINE_S,
        workload=payload["workload"],
        environment=payload["environment"],
        mode=row["mode"],
        tsel=payload["tsel"][row["candidate_id"]],
        parent_tsel=payload["tsel"][row["parent_id"]] if row["parent_id"] else None,
    )
    if row["mode"] == "refine":
        found.append(request(row["gain_band"], len(found)))
    return [{"selection_id": row["selection_id"], **fact} for fact in found]
