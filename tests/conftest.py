"""Rows that several rooms' tests share: small, consistent tables around one real workload and two real traces."""

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from littledragon.compiler import children
from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis, Edge, Effect, Evidence
from littledragon.schemas.ids import content_id, digest
from littledragon.schemas.tables import BY_NAME

# The same cases in every CI run; elsewhere hypothesis looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _children_may_start() -> None:
    """Whatever the test before has stopped: a trainer and a server stop the children of their process at their end."""
    children.go_on()


REAL = Path(__file__).parent / "golden" / "release"
ENVIRONMENT = "e0"
FACT = {"path": "in.loop.k.extent", "value": "128", "text": "reduction loop k of block NT_matmul has extent 128"}


def real(name: str) -> str:
    return (REAL / name).read_text(encoding="utf-8")


def explained(payload: str) -> str:
    """A graph around a real payload with one node of each role."""
    bare = tsel.decode(payload).graph
    first = bare.edits[0].id
    graph = replace(
        bare,
        evidence=(Evidence("e1", FACT["path"], FACT["text"]),),
        analyses=(Analysis("a1", "The reduction loop [in.loop.k.extent=128] is long enough to split."),),
        effects=(Effect("p1", "Fewer loads of the operands."),),
        edges=(Edge("supports", "e1", "a1"), Edge("motivates", "a1", first), Edge("predicts", first, "p1")),
    )
    return tsel.render(graph).text


def ok(**values: Any) -> dict[str, Any]:
    return {"state": "ok", "reason": None, "detail": None, **values}


def complete(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row with null in the nullable columns that it leaves out."""
    columns = {column.name: column for column in BY_NAME[table].columns}
    assert set(row) <= set(columns), set(row) - set(columns)
    missing = [name for name, column in columns.items() if name not in row and not column.null]
    assert not missing, (table, missing)
    return {name: row.get(name) for name in columns}


def workload(number: int, split: str, extents: list[int]) -> dict[str, Any]:
    module = json.loads(real("module.json"))
    module["copy"] = number  # another text for each; TVM never reads these copies
    text = real("module.json") if number == 0 else json.dumps(module)
    cell = digest(["matmul", extents])
    return ok(
        workload_id=content_id("w", [number]), family="gemm", operator="matmul", block_id=f"b{number}",
        configuration="cut", task="main", rules="llvm",
        description=f"Y = cast_fp16(X · W^T), number {number}", module=text, script=real("script.txt"),
        module_hash=f"h{number}", features=real("features.json"), dtype="float16", flops=4194304.0, bytes_min=98304,
        inputs=real("inputs.json"), signature="matmul", extents=extents, model="m",
        source="https://example.org", licence="MIT", cell=cell, split=split,
    )  # fmt: skip


def candidate(work: str, name: str, source: str, latency: float) -> dict[str, Any]:
    return {
        "candidate_id": content_id("c", [work, name]), "workload_id": work, "environment_id": ENVIRONMENT,
        "source": source, "rules": "llvm", "round": 0, "status": "ok", "module_hash": f"{work}{name}",
        "latency_us": latency, "repeats_us": [latency] * 5, "error": 0.1,
    }  # fmt: skip


def verdict(of: dict[str, Any], role: str) -> dict[str, Any]:
    latency = of["latency_us"]
    return {
        "workload_id": of["workload_id"], "candidate_id": of["candidate_id"], "environment_id": ENVIRONMENT,
        "role": role, "status": "ok", "latency_us": latency, "medians_us": [latency] * 3,
        "repeats_us": [[latency] * 5] * 3, "noise_band": 0.01, "cases": 4, "error": 0.1,
    }  # fmt: skip


def selection(work: str, chosen: dict[str, Any], parent: dict[str, Any] | None, ratio: float) -> dict[str, Any]:
    mode = "refine" if parent else "construct"
    return ok(
        selection_id=content_id("s", [work, mode]), workload_id=work, environment_id=ENVIRONMENT, mode=mode,
        candidate_id=chosen["candidate_id"], parent_id=parent["candidate_id"] if parent else None, ratio=ratio,
        margin=0.05, gain_band="[2, 5)" if parent else None,
    )  # fmt: skip


def build_tables() -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in BY_NAME if name not in ("outcomes", "examples", "extractions", "placements", "imports")
    }
    payload = real("payload_fast.txt")
    rows["environments"].append(
        {
            "environment_id": ENVIRONMENT,
            "target": '{"kind":"llvm","num-cores":2}',
            "device": "simulated",
            "processor": "none",
            "driver": "LLVM",
            "tvm": "0.25.0.post1",
            "tvm_ffi": "0.1.12",
            "codec": "tsel/1",
            "settings": "{}",
        }
    )
    for number, (split, extents) in enumerate(
        [("train", [128, 128, 128]), ("test", [512, 512, 512]), ("embargo", [160, 160, 160])]
    ):
        home = workload(number, split, extents)
        work = home["workload_id"]
        rows["workloads"].append(home)
        default, best, parent = (
            candidate(work, *c)
            for c in (("d", "default", 100.0), ("b", "evolutionary", 10.0), ("p", "evolutionary", 30.0))
        )
        rows["candidates"] += [default, best, parent]
        rows["traces"] += [
            {"candidate_id": c["candidate_id"], "trace": real(f"trace_{name}.json"),
             "tsel": real(f"payload_{name}.txt"), "postproc_rules": "llvm",
             "instructions": 36, "postproc_instructions": 18}
            for c, name in ((best, "fast"), (parent, "slow"))
        ]  # fmt: skip
        rows["verdicts"] += [verdict(default, "default"), verdict(best, "best"), verdict(parent, "parent")]
        rows["anchors"].append(
            ok(
                workload_id=work,
                environment_id=ENVIRONMENT,
                default_id=default["candidate_id"],
                anchor_id=best["candidate_id"],
                default_us=100.0,
                anchor_us=10.0,
                empty_us=1.0,
                noise_band=0.01,
                margin=0.05,
            )
        )
        for chosen in (selection(work, best, None, 10.0), selection(work, best, parent, 3.0)):
            label = content_id("l", [chosen["selection_id"]])
            rows["selections"].append(chosen)
            rows["facts"].append(
                {"selection_id": chosen["selection_id"], **FACT, "derivation": "read from F", "position": 0}
            )
            rows["labels"].append(
                ok(
                    label_id=label,
                    selection_id=chosen["selection_id"],
                    mode=chosen["mode"],
                    teacher="facts",
                    model="templates",
                    prompt_version="facts-1",
                    graph=explained(payload),
                    asks=0,
                    tokens_in=0,
                    tokens_out=0,
                )
            )
            rows["checks"].append(
                ok(
                    label_id=label,
                    selection_id=chosen["selection_id"],
                    citations=2,
                    computations=0,
                    claims=0,
                    verifier_version=1,
                )
            )
    return {name: [complete(name, row) for row in table] for name, table in rows.items()}


@pytest.fixture(scope="session")
def built_tables() -> dict[str, list[dict[str, Any]]]:
    return build_tables()


@pytest.fixture
def tables(built_tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table up to `checks`: three workloads (train, test, embargo), each with two labels."""
    return copy.deepcopy(built_tables)
