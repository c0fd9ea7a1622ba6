"""Makes samples/h200, a small work directory of what was measured on an NVIDIA H200, from larger ones or from itself.

    python samples/make_h200_store.py WORKDIR… [--most N] [--without w-…,w-…]

Kept are N workloads, of each family and of held-out ones in turn: first those that were verified and have an anchor,
with all their candidates, the traces of those that were verified, verdicts and anchors; then those that were searched
and wait for `dragon verify`, with the traces that it will ask for. One whose verification failed somewhere is not
kept, unless it succeeded elsewhere. Where several work directories are given, the first one's workloads count. The rows
of a workload come from the first in which it was verified, or else from the first in which it was searched.
Units are named anew as today's stages name them, with rows as they were, where all settings but a stage's version are
the same: where a later version would judge some workloads otherwise, name these after `--without`.
`samples/h200.yaml` holds the settings:

    cp -r samples/h200 work
    dragon pairs --preset gpu --config samples/h200.yaml --workdir work     # and teach, check, publish: no GPU needed
"""

import argparse
import itertools
import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq

from littledragon.pipelines import catalog, config, search, verify, workloads
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas.ids import canonical_json, digest

SAMPLES = Path(__file__).parent
LIMIT = 2_000_000
"""Bytes of all files."""

Row = dict[str, Any]


def main(sources: list[Path], most: int, without: set[str]) -> None:
    """Read the work directories, write the sample beside its place and put it there."""
    settings = config.load("gpu", SAMPLES / "h200.yaml")
    old, place = [Store.open(source) for source in sources], SAMPLES / "h200.new"
    shutil.rmtree(place, ignore_errors=True)
    new = Store.open(place, create=True)
    environments = [_today(row) for store in old for row in store.rows("environments")]
    if differing := sorted(name for name in environments[0] if len({row[name] for row in environments}) > 1):
        sys.exit(f"{', '.join(map(str, sources))}: measured in several environments: {', '.join(differing)} differ")
    here = environments[0]["environment_id"]
    home: dict[str, Store] = {}
    for store in old:
        for stage in (search, verify):
            _require_same(store, stage, settings)
        for row in store.rows("anchors", "state = 'ok'"):
            home.setdefault(row["workload_id"], store)
    rows = old[0].rows("workloads", "state = 'ok'")
    kept = _chosen(rows, home.keys() - without, most)
    refused = {row["workload_id"] for store in old for row in store.rows("anchors", "state <> 'ok'")} - home.keys()
    for store in old:
        for work in _searched(store, settings.rounds) - refused:
            home.setdefault(work, store)
    kept |= _chosen(rows, home.keys() - without - kept, most - len(kept))

    names = {_task(row) for row in rows if row["workload_id"] in kept}
    tables = ("extractions", "placements")
    extracted, placed = ([row for row in old[0].rows(table) if _task(row) in names] for table in tables)
    while missing := _missing(new, workloads.NAME, workloads.plan(new, settings)):
        for unit in missing:
            blocks = unit.inputs.get("blocks", ())
            own = [row for row in extracted if row["block_id"] in blocks]
            found = {"placements": placed} if "reduce" in unit.inputs else {"extractions": own}
            _commit(new, unit, Result(_plain(found)), {})

    def rows_of(table: str) -> list[Row]:
        """Those of kept workloads, each of the work directory that it is taken from."""
        found = [row for store in old for row in store.rows(table) if home.get(row["workload_id"]) is store]
        return [row | {"environment_id": here} for row in found if row["workload_id"] in kept]

    candidates: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows_of("candidates"):
        candidates[row["workload_id"], row["round"]].append(row)
    verdicts, anchor_of = rows_of("verdicts"), {row["workload_id"]: row for row in rows_of("anchors")}
    chosen = {row["candidate_id"] for row in verdicts}
    for work in kept - anchor_of.keys():
        own = [row for (name, _), of in candidates.items() if name == work for row in of]
        chosen |= {id for _, id in verify.choose(own, settings.verify_best, settings.verify_parents)}
    traces = {row["candidate_id"]: row for store in reversed(old) for row in store.rows("traces")}
    traces = {name: row for name, row in traces.items() if name in chosen}

    ended = _ended(old, home, search.NAME)
    while missing := _missing(new, search.NAME, [u for c in search.chains(new, settings, here) for u in c.units]):
        for unit in missing:
            key = unit.inputs["workload_id"], unit.inputs["round"]
            own = candidates[key]
            shown = [traces[row["candidate_id"]] for row in own if row["candidate_id"] in traces]
            found = {"candidates": own, "traces": shown, "environments": environments[:1]}
            _commit(new, unit, Result(_plain(found), ended[key]["state"], ended[key]["reason"]), ended[key])

    ended = _ended(old, home, verify.NAME)
    for unit in _missing(new, verify.NAME, verify.as_measured(new, settings)):
        work = unit.inputs["workload_id"]
        if work not in anchor_of:
            continue
        own = [row for row in verdicts if row["workload_id"] == work]
        if {row["candidate_id"] for row in own} != {id for _, id in unit.inputs["chosen"]}:
            sys.exit(f"{work}: today's stage chooses other candidates to verify: name it after --without")
        found = {"verdicts": own, "anchors": [anchor_of[work]]}
        _commit(new, unit, Result(_plain(found)), ended[work, None])

    for stage in (workloads.NAME, search.NAME, verify.NAME):
        new.compact(stage, at_least=2)
    catalog.write(place)
    (place / "catalog.duckdb").unlink()  # written again by whatever stage runs next
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    if size > LIMIT:
        sys.exit(f"{place}: {size} bytes: more than {LIMIT}: give a smaller --most")
    shutil.rmtree(SAMPLES / "h200", ignore_errors=True)
    place.rename(SAMPLES / "h200")
    told = f"{len(kept)} workloads, {len(anchor_of)} of them verified, {sum(map(len, candidates.values()))} candidates"
    told += f", {len(traces)} traces, {size} bytes"
    sys.stdout.write(f"{SAMPLES / 'h200'}: {told}\n")


def _today(environment: Row) -> Row:
    """The row as it is written today: the cores of a GPU's host are no setting of what it measures."""
    settings = json.loads(environment["settings"])
    settings.pop("threads", None)
    row = environment | {"settings": canonical_json(settings)}
    defining = {name: value for name, value in row.items() if name not in ("unit_id", "environment_id")}
    return defining | {"environment_id": digest(defining)}


def _searched(store: Store, rounds: int) -> set[str]:
    """The workloads whose search has ended, whatever its units are called: all rounds have, or one was the last."""
    states: dict[str, list[str]] = defaultdict(list)
    for row in store.rows("outcomes", f"stage = '{search.NAME}'"):
        states[_round(row)[0]].append(row["state"])
    return {work for work, found in states.items() if len(found) >= rounds or "rejected" in found}


def _ended(old: list[Store], home: dict[str, Store], stage: str) -> dict[tuple[str, int | None], Row]:
    """How each unit ended, by workload and round."""
    found = {}
    for store in old:
        for row in store.rows("outcomes", f"stage = '{stage}'"):
            if home.get((key := _round(row))[0]) is store:
                found[key] = row
    return found


def _chosen(rows: list[Row], verified: set[str], most: int) -> set[str]:
    """So many of the verified workloads, of each family and of held-out ones in turn."""
    of: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: str(row["workload_id"])):
        if row["workload_id"] in verified:
            of[row["family"], row["split"] in ("validation", "test")].append(row["workload_id"])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*of.values()))
    return set([name for name in turns if name][:most])


def _missing(store: Store, stage: str, units: list[Unit]) -> list[Unit]:
    """The units of this plan, which becomes the stage's, that have no rows yet."""
    store.plan(stage, units)
    return [unit for unit in units if unit.id not in store.complete(stage)]


def _commit(store: Store, unit: Unit, result: Result, ended: Row) -> None:
    observed = {"attempt": ended.get("attempt", 1), "started_at": ended.get("started_at", "")}
    observed["wall_s"] = ended.get("wall_s", 0.0)
    store.commit(unit, result, observed | {"host": "h200"})


def _require_same(old: Store, stage: ModuleType, settings: config.Config) -> None:
    """The rows are of these settings; the manifest says so."""
    about = pq.read_schema(old.path / stage.NAME / "manifest.parquet").metadata
    theirs, ours = json.loads(about[b"params"]), stage.params(settings)
    if differing := {name: (theirs.get(name), ours[name]) for name in ours if theirs.get(name) != ours[name]}:
        sys.exit(f"{old.path}: {stage.NAME} ran with other settings than samples/h200.yaml: {differing}")


def _task(row: Row) -> tuple[str, str, str]:
    return row["block_id"], row["configuration"], row["task"]


def _round(outcome: Row) -> tuple[str, int | None]:
    inputs = json.loads(outcome["inputs"])
    return inputs["workload_id"], inputs.get("round")


def _plain(tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return {name: [{k: v for k, v in row.items() if k != "unit_id"} for row in rows] for name, rows in tables.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdirs", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=1000, help="how many workloads")
    parser.add_argument("--without", default="", help="ids of workloads to leave out, with commas between")
    given = parser.parse_args()
    main(given.workdirs, given.most, {name for name in given.without.split(",") if name})
