"""A model's reply is hostile: what is not exactly an explanation is refused, with words for the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.schemas import tsel
from littledragon.schemas.graph import Edge
from littledragon.teacher_prompts.protocol import Request, compose
from littledragon.teacher_prompts.reply import MAX_REPLY, MAX_TEXT, InvalidReply, parse

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
TASK = json.loads((GOLDEN / "matmul.task.json").read_text(encoding="utf-8"))
FACTS = json.loads((GOLDEN / "matmul.facts.json").read_text(encoding="utf-8"))["construct"]
GRAPH = tsel.decode(TASK["tsel"]).graph
REQUEST = Request("construct", GRAPH, FACTS)


def reply() -> dict[str, Any]:
    return {
        "evidence": [{"id": "e1", "cite": "in.flops"}],
        "analyses": [{"id": "a1", "text": "Much work.", "supported_by": ["e1"], "motivates": ["t1", "t1"]}],
        "summaries": {edit.id: f"Edit {edit.id}." for edit in GRAPH.edits},
        "effects": [{"id": "p1", "text": "Less overhead.", "predicted_by": ["t1"]}],
    }


def test_a_reply_becomes_a_graph_around_the_same_payload() -> None:
    explanation = parse(f"```json\n{json.dumps(reply())}\n```", REQUEST)
    assert explanation.evidence[0].text == next(f["text"] for f in FACTS if f["path"] == "in.flops")
    assert explanation.edges == (
        Edge("supports", "e1", "a1"),
        Edge("motivates", "a1", "t1"),
        Edge("predicts", "t1", "p1"),
    )
    label = tsel.render(compose(GRAPH, explanation)).text
    assert tsel.decode(label).trace == tsel.decode(TASK["tsel"]).trace
    assert "Edit t4." in label


def test_plain_forms_of_unicode_are_made() -> None:
    changed = reply()
    changed["effects"][0]["text"] = "A tile‑wise ﬁt\tof ４ × 4\u00a0parts"
    assert parse(json.dumps(changed), REQUEST).effects[0].text == "A tile-wise fit of 4 × 4 parts"


def edited(path: list[Any], value: Any) -> str:
    changed = reply()
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(changed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot help with that.",
        "[]",
        "null",
        "{}",
        json.dumps(reply())[:-5],
        json.dumps(reply()) + "{}",
        json.dumps({**reply(), "payload": "mine"}),
        '{"evidence": [], "evidence": []}',
        "[" * 10_000,
        '{"a":' * 200 + "1" + "}" * 200,
        " " * (MAX_REPLY + 1),
        '"' + '\\"' * 130_000,
        '"' + '\\"' * 130_000 + "\\",
        "```" + "\n" * 260_000,
        "```json" + "\n" * 130_000 + "```" + " " * 130_000 + "x",
        '{"evidence": ' + "9" * 100_000 + "}",
        '{"evidence": NaN}',
        edited(["evidence"], []),
        edited(["evidence"], [{"id": "e1", "cite": "in.flops"}] * 2),
        edited(["evidence"], [{"id": f"e{i}", "cite": "in.flops"} for i in range(100)]),
        edited(["evidence", 0, "cite"], "out.edits"),
        edited(["evidence", 0, "cite"], "in.nothing"),
        edited(["evidence", 0, "cite"], ["in.flops"]),
        edited(["evidence", 0, "id"], "x1"),
        edited(["evidence", 0, "text"], "my own words"),
        edited(["analyses", 0, "text"], ""),
        edited(["analyses", 0, "text"], "x" * (MAX_TEXT + 1)),
        edited(["analyses", 0, "text"], "hid\u200bden"),
        edited(["analyses", 0, "text"], "bell\u0007"),
        edited(["analyses", 0, "text"], "\ud800"),
        edited(["analyses", 0, "supported_by"], ["e2"]),
        edited(["analyses", 0, "supported_by"], "e1"),
        edited(["analyses", 0, "motivates"], ["t1"] * 65),
        edited(["analyses", 0, "motivates"], ["t99"]),
        edited(["effects", 0, "predicted_by"], ["a1"]),
        edited(["summaries"], {}),
        edited(["summaries"], []),
        edited(["summaries", "t99"], "An edit that is not there."),
        edited(["summaries", "t1"], {"text": "nested"}),
    ],
)
def test_what_is_no_explanation_is_refused(text: str) -> None:
    with pytest.raises(InvalidReply) as refusal:
        parse(text, REQUEST)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda s: st.lists(s, max_size=3))
)
@settings(max_examples=100, deadline=None)
def test_any_value_in_any_place_is_refused_or_read(value: Any) -> None:
    for path in (["evidence"], ["analyses", 0], ["analyses", 0, "text"], ["summaries", "t1"], ["effects", 0, "id"]):
        try:
            parse(edited(path, value), REQUEST)
        except InvalidReply:
            continue
