"""Partial credit: how far a text of a CUDA schedule comes, from no graph at all to a module that can be built."""

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.rules import postproc_of
from littledragon.schemas import tsel
from littledragon.schemas.graph import Graph
from littledragon.validators.device import Deadlines
from littledragon.validators.service import Service, Task, Verdict

SAMPLE = Path(__file__).parents[2] / "samples" / "h200_traces.jsonl.gz"
CUDA = targets.target("cuda")


@pytest.fixture(scope="module")
def given() -> tuple[Task, Graph]:
    """A task, and a graph for it whose post-processing is derived."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    row = next(r for r in rows if r["kind"] == "candidate" and r["name"].startswith("gemm_f32"))
    module = next(r["module"] for r in rows if r["kind"] == "workload" and r["name"] == row["name"])
    graph = tsel.lift(row["trace"])
    edits = tuple(edit for edit in graph.edits if edit.kind != "postproc")
    task = Task("gemm", module, [], CUDA, 100.0, 10.0, 0.01, 0.05)
    return task, dataclasses.replace(graph, edits=edits, postproc=postproc_of("cuda"))


@pytest.fixture(scope="module")
def service(given: tuple[Task, Graph]) -> Iterator[Service]:
    broken = dataclasses.replace(given[0], task_id="broken", module="no module")
    with Service([given[0], broken], "simulated", deadlines=Deadlines(build_s=90)) as one:
        yield one
    children.close_all()


def with_tile(graph: Graph, number: int, scale: int) -> Graph:
    """One tile's extent and first factor `scale` times as large."""
    edits, tiles = [], 0
    for edit in graph.edits:
        kept = []
        for i in edit.instructions:
            decision = i.decision
            if i.kind == "SamplePerfectTile":
                if tiles == number:
                    extent, (first, *rest) = decision["extent"], decision["factors"]
                    decision = {"extent": scale * extent, "factors": [scale * first, *rest]}
                tiles += 1
            kept.append(i._replace(decision=decision))
        edits.append(dataclasses.replace(edit, instructions=tuple(kept)))
    assert tiles > number
    return dataclasses.replace(graph, edits=tuple(edits))


def of(service: Service, graph: Graph, notation: str = "line") -> Verdict:
    return service.evaluate("gemm", tsel.render(graph, notation).text)  # type: ignore[arg-type]


def test_a_text_that_passes(given: tuple[Task, Graph], service: Service) -> None:
    _, graph = given
    for notation in tsel.NOTATIONS:
        found = of(service, graph, notation)
        assert (found.gate, found.reason, found.f_div, found.p) == ("ok", None, 1.0, 1.0)
        assert found.emitted == sum(len(edit.instructions) for edit in graph.edits)
    assert service.counts()["measured"] == 1  # two spellings of one schedule


@pytest.mark.parametrize("text", ["", "no graph", "<graph/>", "\ud800"])
def test_no_graph(text: str, service: Service) -> None:
    found = service.evaluate("gemm", text)
    assert (found.gate, found.f_div, found.emitted) == ("parsed", 0.0, 0)


def test_tiles_that_do_not_divide(given: tuple[Task, Graph], service: Service) -> None:
    """Without TVM: the text is not well-formed, and tells how many of its tiles divide."""
    _, graph = given
    text = tsel.render(with_tile(graph, 0, 1009)).text
    extent = next(i.decision["extent"] for e in graph.edits for i in e.instructions if i.kind == "SamplePerfectTile")
    tiles = sum(i.kind == "SamplePerfectTile" for edit in graph.edits for i in edit.instructions)
    made = service.counts()["made"]
    found = service.evaluate("gemm", text.replace(f" {1009 * extent} ", f" {extent + 1} ", 1))
    assert found.gate == "wellformed"
    assert found.reason is not None
    assert "do not divide" in found.reason
    assert found.f_div == pytest.approx((tiles - 1) / tiles)
    assert (found.p, found.emitted, service.counts()["made"]) == (0, 0, made)


def test_a_later_mistake_earns_more(given: tuple[Task, Graph], service: Service) -> None:
    found = [of(service, with_tile(given[1], number, 3)) for number in (0, 1, 2)]
    assert [f.gate for f in found] == ["applicable"] * 3
    assert [f.f_div for f in found] == [1.0] * 3
    assert 0 < found[0].p < found[1].p < found[2].p < 1
    assert all("the loop's extent is" in str(f.reason) for f in found)


def test_what_post_processing_refuses(given: tuple[Task, Graph], service: Service) -> None:
    for postproc in (None, postproc_of("llvm")):
        found = of(service, dataclasses.replace(given[1], postproc=postproc))
        assert (found.gate, found.p) == ("postprocessed", 1.0)


def test_the_default_schedule_of_a_gpu_needs_no_text(service: Service) -> None:
    """No trace spells it: it is dlight's, not MetaSchedule's."""
    assert service.default("gemm").gate == "ok"


def test_a_child_that_is_late(given: tuple[Task, Graph]) -> None:
    task, graph = given
    with Service([task], "simulated", deadlines=Deadlines(build_s=0.001)) as service:
        found = of(service, graph)
    assert found.gate == "applicable"
    assert found.applied < found.emitted == sum(len(edit.instructions) for edit in graph.edits)
    assert "no answer" in str(found.reason)


def test_a_module_that_is_none_is_no_verdict(given: tuple[Task, Graph], service: Service) -> None:
    found = service.evaluate("broken", tsel.render(given[1]).text)
    assert (found.gate, found.fault is None) == (None, False)
