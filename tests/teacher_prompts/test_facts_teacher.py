"""The `facts` teacher against golden labels, and against facts that it has never seen."""

import json
from pathlib import Path
from typing import Any

import pytest

from littledragon.schemas import tsel
from littledragon.teacher_prompts import load
from littledragon.teacher_prompts.facts_teacher import MAX_EFFECTS, explain
from littledragon.teacher_prompts.protocol import Request, compose

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
NAMES = sorted(path.name.removesuffix(".task.json") for path in GOLDEN.glob("*.task.json"))


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def request(name: str, mode: str) -> Request:
    graph = tsel.decode(read(f"{name}.task.json")["tsel"]).graph
    return Request(mode, graph, read(f"{name}.facts.json")[mode])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_golden_labels(name: str, mode: str) -> None:
    """tests/golden/labels/make.py writes them anew."""
    asked = request(name, mode)
    label = tsel.render(compose(asked.graph, explain(asked))).text
    assert label + "\n" == (GOLDEN / f"{name}.{mode}.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_the_shape_of_an_explanation(name: str, mode: str) -> None:
    asked = request(name, mode)
    explanation = explain(asked)
    texts = {fact["path"]: fact["text"] for fact in asked.facts}
    assert 2 <= len(explanation.evidence) <= 6
    assert all(e.cite.startswith("in.") and texts[e.cite] == e.text for e in explanation.evidence)
    assert set(explanation.summaries) == {edit.id for edit in asked.graph.edits}
    assert 1 <= len(explanation.effects) <= MAX_EFFECTS
    supported = {edge.target for edge in explanation.edges if edge.kind == "supports"}
    assert supported == {analysis.id for analysis in explanation.analyses}
    assert {edge.source for edge in explanation.edges if edge.kind == "supports"} == {
        e.id for e in explanation.evidence
    }


def test_a_schedule_that_does_nothing_is_told_as_such() -> None:
    facts = [
        ("in.flops", 64, "one run does 64 arithmetic operations"),
        ("in.block.b.name", "b", "M0 has a block b"),
        ("in.block.b.iterations", 64, "block b runs 64 times"),
        ("in.block.b.reduction", 0, "block b has no reduction loop"),
        ("in.block.b.writes", ["y"], "block b writes y"),
        ("out.deeds", [], "the schedule does: nothing"),
    ]
    rows = [{"path": path, "value": json.dumps(value), "text": text} for path, value, text in facts]
    explanation = explain(Request("construct", request("matmul", "construct").graph, rows))
    assert [a.text for a in explanation.analyses] == [
        "Block b runs [in.block.b.iterations=64] times. The schedule leaves the order of its iterations as M0 has it."
    ]
    assert len(explanation.evidence) == 2


def test_templates_are_named_by_their_text() -> None:
    template = load("facts")
    assert template.version.startswith("facts@")
    assert load("openai").version != template.version
    with pytest.raises(ValueError, match="no template 'nobody'"):
        load("nobody")
