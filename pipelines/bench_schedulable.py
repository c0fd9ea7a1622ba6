"""`dragon bench schedulable`: whether the predicted rule sets do find candidates, on a random sample of workloads.

Each sampled workload of a work directory is proved in a child process: the design space of its rule set, random
members of it, post-processing. A prediction is right where at least two different candidates are found. Rows that were
refused as unschedulable are proved too: there the prediction is right where no rule set of the target finds two.
"""

import json
import queue
import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from littledragon.compiler import children, rules, targets
from littledragon.compiler.schedulable import LEAST
from littledragon.compiler.zoo import FAMILIES
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.progress import Progress
from littledragon.pipelines.store import Store

SAMPLE: Final = 300
SEED: Final = 0
JOBS: Final = 2
LEAST_RIGHT: Final = 0.97
REFUSED: Final = 5
"""Rows of a family that were refused as unschedulable, and are proved all the same."""
PROVE_S: Final = 60.0
"""For the draws of one workload."""
DEADLINE_S: Final = 600.0
"""For one workload: the child's start, TVM's intrinsics, and a draw that does not end included."""

Row = dict[str, Any]


def measure(
    console: Console,
    *,
    workdir: Path,
    sample: int = SAMPLE,
    jobs: int = JOBS,
    seed: int = SEED,
    out: Path | None = None,
) -> int:
    """Prove a sample and print what came of it; the exit code, 1 where fewer than 97% of the predictions are right.

    Args:
        console: where it is printed.
        workdir: a work directory in which the stage workloads has ended.
        sample: workloads, the same number of each family.
        jobs: child processes.
        seed: of the sample, and of the draws.
        out: a file for all results as JSON, if given.

    Raises:
        UserError: there is no workload there, or `out` cannot be written.
    """
    rows = _sampled(Store.open(workdir), sample, seed)
    kept = [row for row in rows if row["state"] == "ok"]
    if not kept:
        raise UserError(f"{workdir}: no workloads to prove: run `dragon workloads --workdir {workdir}` first")
    results = []
    with Progress("bench schedulable") as progress:
        progress.plan(len(rows), [])
        for result in _proved(rows, rules.kind_of(kept[0]["rules"]), jobs, seed):
            results.append(result)
            progress.ended("ok" if result["right"] else "rejected")
    _print(console, results)
    right = sum(result["right"] for result in results if result["kept"])
    console.print(f"{right} of {len(kept)} predictions of a rule set are right, {100 * right / len(kept):.1f}%")
    if len(kept) < len(results):
        refused = [result for result in results if not result["kept"]]
        console.print(f"{sum(r['right'] for r in refused)} of {len(refused)} refusals are right")
    if out is not None:
        figures = {"sample": sample, "seed": seed, "right": right, "proved": len(kept), "results": results}
        try:
            out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    return 0 if right >= LEAST_RIGHT * len(kept) else 1


def _sampled(store: Store, sample: int, seed: int) -> list[Row]:
    """The rows that are proved, with their modules: each family's share of the sample, and a few refused rows."""
    ids = store.sql(
        "SELECT family, block_id, configuration, task, state = 'ok' AS kept FROM workloads "
        "WHERE state = 'ok' OR (reason = 'unschedulable' AND module IS NOT NULL) "
        "ORDER BY block_id, configuration, task"
    ).to_pylist()
    chosen: list[Row] = []
    for family in FAMILIES:
        for kept, most in ((True, sample // len(FAMILIES)), (False, REFUSED)):
            of_family = [row for row in ids if row["family"] == family and row["kept"] == kept]
            chance = random.Random(f"{seed}:{family}:{kept}")
            chosen += chance.sample(of_family, min(most, len(of_family)))
    keys = [[row["block_id"], row["configuration"], row["task"]] for row in chosen]
    return store.rows("workloads", "[block_id, configuration, task] IN (SELECT unnest($keys))", keys=keys)


def _proved(rows: list[Row], kind: str, jobs: int, seed: int) -> Iterator[Row]:
    """What came of each row, in the order of the rows."""
    free: queue.SimpleQueue[children.Child] = queue.SimpleQueue()
    every = [children.Child() for _ in range(jobs)]
    for child in every:
        free.put(child)

    def prove(row: Row) -> Row:
        child = free.get()
        try:
            return _result(row, [_ask(child, row, name, seed) for name in _sets(row, kind)])
        finally:
            free.put(child)

    pool = ThreadPoolExecutor(jobs)
    try:
        yield from pool.map(prove, rows)
    finally:
        pool.shutdown(cancel_futures=True)
        for child in every:
            child.close()


def _sets(row: Row, kind: str) -> list[str]:
    """The rule sets that a row is proved with: its own; where it was refused, all of this kind of target."""
    if row["state"] == "ok":
        return [row["rules"]]
    own = str(rules.rules_of(targets.target(kind)))
    return [own, rules.LOCAL] if kind == "cuda" else [own]


def _ask(child: children.Child, row: Row, name: str, seed: int) -> Row:
    try:
        answer: Row = child.call(
            "littledragon.compiler.schedulable:prove",
            deadline_s=DEADLINE_S,
            module=row["module"],
            target=targets.target(rules.kind_of(name)),
            rules=name,
            seed=seed,
            prove_s=PROVE_S,
        )
    except children.ChildError as error:
        return {"rules": name, "found": 0, "spaces": 0, "draws": 0, "seconds": None, "reason": str(error)}
    return answer


def _result(row: Row, proofs: list[Row]) -> Row:
    """A row's identity with its best proof, and whether its prediction is right."""
    best = max(proofs, key=lambda proof: int(proof["found"]))
    names = ("workload_id", "family", "operator", "block_id", "configuration", "task", "module_hash")
    kept = row["state"] == "ok"
    return {**{name: row[name] for name in names}, "kept": kept, **best, "right": (best["found"] >= LEAST) == kept}


def _print(console: Console, results: list[Row]) -> None:
    """The table by family and rule set, then each wrong prediction."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for result in results:
        groups[result["family"], result["rules"] if result["kept"] else "unschedulable"].append(result)
    table = Table("family", "predicted", "right", "of", "draws, mean", "s, mean", title="Predictions")
    for (family, predicted), group in sorted(groups.items()):
        seconds = [result["seconds"] for result in group if result["seconds"] is not None]
        table.add_row(
            family,
            predicted,
            str(sum(result["right"] for result in group)),
            str(len(group)),
            f"{sum(result['draws'] for result in group) / len(group):.1f}",
            f"{sum(seconds) / len(seconds):.2f}" if seconds else "",
        )
    console.print(table)
    for result in results:
        if not result["right"]:
            name = result["workload_id"] or result["module_hash"]
            why = result["reason"] or f"{result['found']} candidates by {result['rules']}, though it was refused"
            line = f"wrong: {name} ({result['operator']}, {result['block_id']} {result['configuration']}): {why}"
            console.print(line, markup=False, soft_wrap=True)
