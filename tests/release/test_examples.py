"""Published rows: ids, spans that tile, and none of what the student may not see in any prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from littledragon.release import examples
from littledragon.schemas import tsel
from littledragon.schemas.ids import content_id

SCHEDULED = Path(__file__).parents[1] / "golden" / "release" / "scheduled_fast.txt"
Tables = dict[str, list[dict[str, Any]]]


def inputs(tables: Tables, mode: str, number: int = 0) -> dict[str, Any]:
    """The arguments of `build` for the workload's selection of this mode."""
    workload = tables["workloads"][number]
    chosen = next(s for s in tables["selections"] if s["workload_id"] == workload["workload_id"] and s["mode"] == mode)
    verdicts = {v["candidate_id"]: v for v in tables["verdicts"]}
    traces = {t["candidate_id"]: t["tsel"] for t in tables["traces"]}
    label = next(row for row in tables["labels"] if row["selection_id"] == chosen["selection_id"])
    return {
        "workload": workload,
        "environment": "llvm",
        "selection": chosen,
        "label": label,
        "check": next(row for row in tables["checks"] if row["label_id"] == label["label_id"]),
        "anchor": next(a for a in tables["anchors"] if a["workload_id"] == workload["workload_id"]),
        "verdict": verdicts[chosen["candidate_id"]],
        "parent_verdict": verdicts.get(chosen["parent_id"]),
        "parent_tsel": traces.get(chosen["parent_id"]),
    }


@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_a_row_holds_the_claim_and_the_label(tables: Tables, mode: str) -> None:
    given = inputs(tables, mode)
    row = examples.build(**given)
    assert row["completion"] == given["label"]["graph"]
    assert row["completion"].startswith('<graph version="tsel/1" notation="line"')
    assert row["completion_json"].startswith('<graph version="tsel/1" notation="json"')
    assert tsel.decode(row["completion_json"]).graph == tsel.decode(row["completion"]).graph
    assert row["example_id"] == content_id("x", {"messages": row["messages"], "completion": row["completion"]})
    assert (row["state"], row["split"], row["reason"]) == ("ok", "train", None)
    assert (row["latency_us"], row["default_us"], row["anchor_us"]) == (10.0, 100.0, 10.0)
    assert row["parent_us"] == (30.0 if mode == "refine" else None)
    assert (row["gain_band"] is not None) == (mode == "refine")


def test_spans_tile_and_weigh_the_right_text(tables: Tables) -> None:
    row = examples.build(**inputs(tables, "construct"))
    pieces: dict[str, list[str]] = {"explanation": [], "decision": [], "structure": []}
    for span in row["spans"]:
        pieces[span["kind"]].append(row["completion"][span["start"] : span["end"]])
    assert "".join(row["completion"][s["start"] : s["end"]] for s in row["spans"]) == row["completion"]
    assert pieces["explanation"][0].startswith('<evidence id="e1"')
    assert any(piece.startswith("<effect") for piece in pieces["explanation"])
    assert pieces["decision"][:4] == ["[2,4,8]", "[2,1,1]", "[2]", "3"]
    assert not any("<evidence" in piece or "<analysis" in piece for piece in pieces["structure"])


def test_an_embargoed_workload_is_rejected(tables: Tables) -> None:
    row = examples.build(**inputs(tables, "refine", 2))
    assert (row["state"], row["reason"], row["split"]) == ("rejected", "embargo", "embargo")


def test_a_graph_that_is_not_in_canonical_form_is_refused(tables: Tables) -> None:
    given = inputs(tables, "construct")
    text = given["label"]["graph"]
    for other in (text.replace("\n<trace", "\n\n<trace"), tsel.convert(text, "json")):
        given["label"]["graph"] = other
        assert tsel.decode(other).graph == tsel.decode(text).graph
        with pytest.raises(ValueError, match="renders to another text"):
            examples.build(**given)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("check", {"state": "rejected"}),
        ("label", {"state": "rejected"}),
        ("label", {"selection_id": "s-0"}),
        ("check", {"label_id": "l-0"}),
        ("workload", {"workload_id": "w-0"}),
        ("anchor", {"environment_id": "other"}),
        ("verdict", {"candidate_id": "c-0"}),
        ("parent_verdict", {"candidate_id": "c-0"}),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(tables: Tables, row: str, change: dict[str, Any]) -> None:
    given = inputs(tables, "refine")
    given[row] = {**given[row], **change}
    with pytest.raises(ValueError, match="not true that"):
        examples.build(**given)


def test_a_parent_without_a_trace_is_refused(tables: Tables) -> None:
    with pytest.raises(ValueError, match="the parent has a payload"):
        examples.build(**{**inputs(tables, "refine"), "parent_tsel": None})


SEEN = {
    "workload": {"description", "script", "features"},
    "selection": {"gain_band", "mode", "state"},
    "label": {"state", "graph"},
    "check": {"state"},
}
"""Columns that may reach the prompt, and those that only steer."""


@pytest.mark.parametrize("mode", ["construct", "refine"])
def test_no_planted_leak_reaches_a_prompt(tables: Tables, mode: str) -> None:
    """Every column of every row that goes in, but those of x, holds something that must not come out in the prompt."""
    given = inputs(tables, mode)
    canaries: list[str] = []

    def canary(value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, (int, float)):
            canaries.append(str(7_770_000 + len(canaries)))
            return type(value)(canaries[-1])
        if isinstance(value, list):
            return [canary(item) for item in value]
        canaries.append(f"leak{len(canaries):04}")
        return f"{value} {canaries[-1]}"

    keys = {"workload_id", "environment_id", "candidate_id", "selection_id", "label_id", "parent_id", "split"}
    for name, row in given.items():
        if isinstance(row, dict):
            for column, value in row.items():
                if column not in keys | SEEN.get(name, set()):
                    row[column] = canary(value)
            row["scheduled"], row["target_trace"] = canary(SCHEDULED.read_text()), canary("trace")
    assert len(canaries) > 40
    row = examples.build(**given)
    prompt = json.dumps(row["messages"])
    assert [word for word in canaries if word in prompt] == []
    assert given["label"]["graph"] not in "".join(message["content"] for message in row["messages"])


def test_neither_target_nor_scheduled_program_is_in_a_refinement_prompt(tables: Tables) -> None:
    given = inputs(tables, "refine")
    text = "\n".join(m["content"] for m in examples.build(**given)["messages"])
    target = tsel.decode(given["label"]["graph"]).graph
    prior = tsel.decode(given["parent_tsel"]).graph
    differing = [e for e, other in zip(target.edits, prior.edits, strict=False) if e.instructions != other.instructions]
    assert differing
    for line in SCHEDULED.read_text().splitlines():
        if "_0, " in line or "_1 in" in line or "T.parallel" in line:
            assert line.strip() not in text
    shown = tsel.decode(given["parent_tsel"]).graph
    assert shown.evidence == shown.analyses == shown.effects == shown.edges == ()
