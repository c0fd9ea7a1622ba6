"""The paper's own example, Y = cast_fp16(X·Wᵀ), on its whole way from a zoo block to the drawn graph.

Every step's result lies beside this file under `paper/`. `LITTLEDRAGON_GOLDEN=1 pytest` writes them anew: look at
the difference before committing it. The trace is a recorded one, since which trace a search finds depends on the
machine that it runs on.
"""

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from littledragon.compiler import children
from littledragon.pipelines.show import draw
from littledragon.release import prompts
from littledragon.schemas import tsel
from littledragon.teacher_prompts.facts_teacher import explain
from littledragon.teacher_prompts.protocol import Request, compose
from littledragon.validators.verifier import verify

HERE = Path(__file__).parent / "paper"
BLOCK = "gemm/nt_matmul_cast/llama-2-7b-tp32-b128"
TARGET = {"kind": "llvm", "num-cores": 2}


def golden(name: str, text: str) -> None:
    """The text is what the file holds."""
    path = HERE / name
    if os.environ.get("LITTLEDRAGON_GOLDEN"):
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


def lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)


def call(function: str, **arguments: Any) -> Any:
    return children.worker("golden").call(f"littledragon.compiler.{function}", deadline_s=120, **arguments)


@pytest.fixture(scope="module")
def workload() -> dict[str, Any]:
    (row,) = call("lowering:extract", zoo="demo", block_ids=[BLOCK], target=TARGET)
    assert row["state"] == "ok"
    return dict(row)


@pytest.fixture(scope="module")
def admitted(workload: dict[str, Any]) -> dict[str, Any]:
    trace = (HERE / "trace.json").read_text(encoding="utf-8").strip()
    return dict(call("traces:admit", module=workload["module"], trace=trace, target=TARGET))


@pytest.fixture(scope="module")
def facts(workload: dict[str, Any], admitted: dict[str, Any]) -> list[dict[str, Any]]:
    environment = {"target": json.dumps(TARGET), "tvm": "0.25.0.post1"}
    return list(
        call("facts:derive", workload=workload, environment=environment, mode="construct", tsel=admitted["tsel"])
    )


def test_the_program(workload: dict[str, Any]) -> None:
    golden("description.txt", workload["description"])
    golden("m0.txt", workload["script"])
    golden("features.json", prompts.readable(json.loads(workload["features"])))
    assert workload["flops"] == 2 * 128**3  # a multiplication and an addition; casts are no arithmetic
    assert workload["bytes_min"] == 3 * 128 * 128 * 2


def test_the_payload(workload: dict[str, Any], admitted: dict[str, Any]) -> None:
    assert admitted["failed"] is None
    golden("payload.xml", admitted["tsel"].rstrip("\n"))
    assert admitted["rules"] == "llvm"
    whole = call("traces:decode", module=workload["module"], text=admitted["tsel"], target=TARGET)
    assert whole == admitted["trace"]


def test_the_facts(facts: list[dict[str, Any]]) -> None:
    golden("facts.jsonl", lines(facts))


def test_the_label_and_its_drawing(admitted: dict[str, Any], facts: list[dict[str, Any]]) -> None:
    graph = tsel.decode(admitted["tsel"]).graph
    label = tsel.render(compose(graph, explain(Request("construct", graph, facts)))).text
    golden("label.xml", label.rstrip("\n"))

    found = verify(label, admitted["tsel"], admitted["trace"], facts, "construct")
    assert (found.state, found.reason) == ("ok", None)
    assert min(found.citations, found.computations, found.claims) > 0

    paper = StringIO()
    console = Console(file=paper, width=120, color_system=None, force_terminal=False)
    console.print(draw(tsel.decode(label).graph), overflow="fold")
    golden("drawing.txt", "\n".join(line.rstrip() for line in paper.getvalue().splitlines()))


def test_the_prompt_shows_the_program_and_not_the_schedule(workload: dict[str, Any], admitted: dict[str, Any]) -> None:
    task = prompts.ConstructionTask(
        description=workload["description"],
        script=workload["script"],
        features=workload["features"],
        environment=prompts.environment({"target": json.dumps(TARGET), "tvm": "0.25.0.post1"}),
    )
    text = "\n".join(message["content"] for message in prompts.construction(task))
    assert workload["script"].strip() in text
    for line in admitted["tsel"].splitlines()[1:]:
        assert line not in text or line.startswith("</")
