"""Every rule of the tables fails when it is broken, and not before."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from littledragon.release import examples
from littledragon.validators import expectations

Tables = dict[str, list[dict[str, Any]]]


def with_examples(tables: Tables) -> Tables:
    by = {row["selection_id"]: row for row in tables["selections"]}
    built = []
    for label, check in zip(tables["labels"], tables["checks"], strict=True):
        chosen = by[label["selection_id"]]
        verdicts = {v["candidate_id"]: v for v in tables["verdicts"]}
        traces = {t["candidate_id"]: t["tsel"] for t in tables["traces"]}
        parent = chosen["parent_id"]
        built.append(
            examples.build(
                workload=next(w for w in tables["workloads"] if w["workload_id"] == chosen["workload_id"]),
                environment="llvm",
                selection=chosen,
                label=label,
                check=check,
                anchor=next(a for a in tables["anchors"] if a["workload_id"] == chosen["workload_id"]),
                verdict=verdicts[chosen["candidate_id"]],
                parent_verdict=verdicts[parent] if parent else None,
                parent_tsel=traces[parent] if parent else None,
            )
        )
    return {**tables, "examples": built}


def frames(tables: Tables) -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


def check(tables: Tables) -> list[str]:
    return [str(failure) for failure in expectations.check(frames(tables))]


def test_consistent_tables_pass(tables: Tables) -> None:
    assert check(with_examples(tables)) == []


def test_a_table_without_rows_passes(tables: Tables) -> None:
    full = frames(with_examples(tables))
    for name in ("facts", "examples"):
        full[name] = full[name].iloc[:0]
    assert expectations.check(full) == []


def put(table: str, column: str, value: Any, row: int = 0) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        tables[table][row][column] = value

    return change


def twice(table: str) -> Callable[[Tables], None]:
    return lambda tables: tables[table].append(tables[table][0])


def gap(tables: Tables) -> None:
    del tables["examples"][0]["spans"][1]


BROKEN = {
    "workloads: column values to be in set: family": put("workloads", "family", "sparse"),
    "workloads: column values to be in set: split": put("workloads", "split", "dev"),
    "workloads: a cell stands in one split only": lambda t: t["workloads"][1].update(cell=t["workloads"][0]["cell"]),
    "workloads: a workload is accepted once": lambda t: t["workloads"].append({**t["workloads"][0], "task": "other"}),
    "workloads: an accepted workload has a module, a cell and a split": put("workloads", "module", None),
    "workloads: a row is rejected exactly when it has a reason": put("workloads", "reason", "trivial"),
    "workloads: column values to be in set: reason": lambda t: t["workloads"][2].update(
        state="rejected", reason="dull"
    ),
    "candidates: column values to be unique: candidate_id": twice("candidates"),
    "candidates: column values to be in set: status": put("candidates", "status", "cooked"),
    "candidates: column values to be between: latency_us": put("candidates", "latency_us", 0.0),
    "candidates: column values to be between: latency_us ": put("candidates", "latency_us", 1e10),
    "candidates: what passed all gates has a latency": put("candidates", "latency_us", None),
    "candidates: what passed all gates is correct": put("candidates", "error", 1.5),
    "candidates: never null: source": put("candidates", "source", None),
    "verdicts: compound columns to be unique": twice("verdicts"),
    "verdicts: what passed all gates has a latency": put("verdicts", "latency_us", None),
    "verdicts: what passed all gates is correct": put("verdicts", "error", 1.5),
    "verdicts: column values to be in set: role": put("verdicts", "role", "worst"),
    "verdicts: column values to be between: noise_band": put("verdicts", "noise_band", -0.1),
    "anchors: an accepted workload has L0 >= a": put("anchors", "anchor_us", 101.0),
    "anchors: column values to be between: margin": put("anchors", "margin", 0.0),
    "selections: ratio - 1 > margin": put("selections", "ratio", 1.04),
    "selections: column values to be in set: mode": put("selections", "mode", "guess"),
    "selections: refining has a parent and a gain band": put("selections", "gain_band", None, 1),
    "facts: column values to be between: position": put("facts", "position", -1),
    "labels: column values to be in set: teacher": put("labels", "teacher", "oracle"),
    "checks: column values to be unique: label_id": twice("checks"),
    "environments: column values to be in set: device": put("environments", "device", "imagined"),
    "examples: column values to be unique: example_id": twice("examples"),
    "examples: the spans tile the completion": gap,
    "examples: the spans tile the completion ": put("examples", "completion", "<graph/>"),
    "examples: the messages are a dialogue of the mode": put("examples", "messages", []),
    "examples: refining has a parent, its latency and a gain band": put("examples", "parent_us", None, 1),
    "examples: a refined schedule is faster than its parent": put("examples", "parent_us", 9.0, 1),
    "examples: an accepted row is not under embargo": put("examples", "split", "embargo"),
    "examples: its split is the workload's": put("examples", "split", "test"),
    "examples: its row of labels is there and ok": put("labels", "state", "failed"),
    "examples: its row of checks is there and ok": put("checks", "label_id", "l-0"),
    "examples: its row of workloads is there and ok": put("examples", "workload_id", "w-0"),
    "examples: its row of selections is there and ok": put("examples", "selection_id", "s-0"),
    "examples: L0 >= a": put("examples", "default_us", 1.0),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_can_fail(tables: Tables, rule: str) -> None:
    full = with_examples(tables)
    BROKEN[rule](full)
    failures = [str(f) for f in expectations.check_table(rule.split(":", maxsplit=1)[0], frames(full))]
    assert any(failure.startswith(rule.strip()) for failure in failures), failures


def test_every_derived_rule_is_broken_above(tables: Tables) -> None:
    full = frames(with_examples(tables))
    rules = {f"{name}: {rule}" for name, frame in full.items() for rule in expectations._derived(name, frame, full)}
    common = ("a row is rejected exactly when it has a reason of the list", "never null: as required")
    untested = {rule for rule in rules if not any(rule.startswith(key.strip()) for key in BROKEN)}
    assert {rule for rule in untested if not rule.endswith(common)} == set()


def test_a_missing_column_is_a_failure(tables: Tables) -> None:
    full = frames(tables)
    full["anchors"] = full["anchors"].drop(columns="default_us")
    assert [str(f) for f in expectations.check({"anchors": full["anchors"]})] == [
        "anchors: has all columns (missing default_us)"
    ]


@pytest.mark.parametrize("column", ["default_us", "empty_us"])
def test_a_rule_that_cannot_be_evaluated_is_a_failure(tables: Tables, column: str) -> None:
    full = frames(tables)
    full["anchors"][column] = ["fast", 2.0, 3.0]
    failures = [str(f) for f in expectations.check_table("anchors", full)]
    assert any("not evaluated" in failure for failure in failures), failures


@pytest.mark.parametrize(
    ("spans", "length", "fine"),
    [
        ([], 0, True),
        ([(0, 3)], 3, True),
        ([(0, 2), (2, 3)], 3, True),
        ([(0, 2)], 3, False),
        ([(0, 2), (1, 3)], 3, False),
        ([(0, 0), (0, 3)], 3, False),
        ([(0, 4)], 3, False),
    ],
)
def test_spans_tile(spans: list[tuple[int, int]], length: int, fine: bool) -> None:
    rows = [{"start": start, "end": end, "kind": "structure"} for start, end in spans]
    assert expectations.tiles(rows, length) == fine
    assert not expectations.tiles([{"start": 0, "end": 3, "kind": "other"}], 3)


def test_importing_the_rules_does_not_import_great_expectations() -> None:
    code = "import sys, littledragon.validators.expectations; print('great_expectations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
