"""Partial credit: how far a text comes, from no graph at all to a module that can be built."""

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.credit import Credit, credit
from littledragon.compiler.rules import postproc_of
from littledragon.schemas import tsel
from littledragon.schemas.graph import Graph

SAMPLE = Path(__file__).parents[2] / "samples" / "h200_traces.jsonl.gz"
CUDA = targets.target("cuda")


@pytest.fixture(scope="module")
def child() -> Iterator[children.Child]:
    child = children.Child()
    yield child
    child.close()


@pytest.fixture(scope="module")
def given() -> tuple[str, Graph]:
    """A module, and a graph for it whose post-processing is derived."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    row = next(r for r in rows if r["kind"] == "candidate" and r["name"].startswith("gemm_f32"))
    module = next(r["module"] for r in rows if r["kind"] == "workload" and r["name"] == row["name"])
    graph = tsel.lift(row["trace"])
    edits = tuple(edit for edit in graph.edits if edit.kind != "postproc")
    return module, dataclasses.replace(graph, edits=edits, postproc=postproc_of("cuda"))


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


def of(text: str | bytes, module: str, child: children.Child | None, deadline_s: float = 90) -> Credit:
    return credit(text, module, CUDA, deadline_s=deadline_s, child=child)


def test_a_text_that_passes(given: tuple[str, Graph], child: children.Child) -> None:
    module, graph = given
    for notation in tsel.NOTATIONS:
        found = of(tsel.render(graph, notation).text, module, child)
        assert (found.failed, found.reason, found.f_div, found.p) == (None, None, 1.0, 1.0)
        assert found.emitted == sum(len(edit.instructions) for edit in graph.edits)
        assert found.answer is not None
        assert "blockIdx.x" in found.answer["scheduled"]
    assert of(tsel.render(graph).text.encode(), module, child) == of(tsel.render(graph).text, module, child)


@pytest.mark.parametrize("text", ["", "no graph", "<graph/>", b"\xff\xfe", "\ud800"])
def test_no_graph(text: str | bytes) -> None:
    assert of(text, "unused", None) == Credit("parsed", of(text, "unused", None).reason, 0.0)


def test_tiles_that_do_not_divide(given: tuple[str, Graph]) -> None:
    """Without TVM: the text is not well-formed, and tells how many of its tiles divide."""
    module, graph = given
    text = tsel.render(with_tile(graph, 0, 1009)).text
    extent = next(i.decision["extent"] for e in graph.edits for i in e.instructions if i.kind == "SamplePerfectTile")
    tiles = sum(i.kind == "SamplePerfectTile" for edit in graph.edits for i in edit.instructions)
    found = of(text.replace(f" {1009 * extent} ", f" {extent + 1} ", 1), module, None)
    assert found.failed == "wellformed"
    assert found.reason is not None
    assert "do not divide" in found.reason
    assert found.f_div == pytest.approx((tiles - 1) / tiles)
    assert (found.p, found.emitted, found.answer) == (0, 0, None)


def test_a_later_mistake_earns_more(given: tuple[str, Graph], child: children.Child) -> None:
    module, graph = given
    found = [of(tsel.render(with_tile(graph, number, 3)).text, module, child) for number in (0, 1, 2)]
    assert [f.failed for f in found] == ["applicable"] * 3
    assert [f.f_div for f in found] == [1.0] * 3
    assert 0 < found[0].p < found[1].p < found[2].p < 1
    assert all("the loop's extent is" in str(f.reason) for f in found)


def test_what_post_processing_refuses(given: tuple[str, Graph], child: children.Child) -> None:
    module, graph = given
    for postproc in (None, postproc_of("llvm")):
        found = of(tsel.render(dataclasses.replace(graph, postproc=postproc)).text, module, child)
        assert (found.failed, found.p) == ("postprocessed", 1.0)


def test_a_child_that_is_late(given: tuple[str, Graph]) -> None:
    module, graph = given
    found = of(tsel.render(graph).text, module, None, deadline_s=0.05)
    assert (found.failed, found.applied) == ("applicable", 0)
    assert found.emitted == sum(len(edit.instructions) for edit in graph.edits)
    assert "no answer" in str(found.reason)


def test_progress_outlives_the_child(given: tuple[str, Graph], child: children.Child, tmp_path: Path) -> None:
    module, graph = given
    progress = tmp_path / "progress"
    progress.write_bytes(bytes(8))
    text = tsel.render(with_tile(graph, 2, 3)).text
    arguments: dict[str, Any] = {"module": module, "text": text, "target": CUDA, "progress": str(progress)}
    answer = child.call("littledragon.compiler.traces:apply", deadline_s=90, **arguments)
    assert int.from_bytes(progress.read_bytes(), "little") == answer["applied"] > 0


def test_a_module_that_is_none_is_no_verdict(given: tuple[str, Graph], child: children.Child) -> None:
    with pytest.raises(children.ChildError, match="raised"):
        of(tsel.render(given[1]).text, "no module", child)
