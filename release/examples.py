"""One published row from the rows that led to it: prompt, completion, and the spans that weigh it in training."""

from typing import Any

from littledragon.release import prompts
from littledragon.schemas import tsel
from littledragon.schemas.ids import content_id
from littledragon.schemas.tables import EXAMPLES

Row = dict[str, Any]

CONFIGS = {"construct": "construction", "refine": "refinement"}
"""The configuration of the release that holds each mode."""


def construction_task(workload: Row, environment: str) -> prompts.ConstructionTask:
    """What the student may see of a workload; `environment` is the prompt's text h."""
    return prompts.ConstructionTask(workload["description"], workload["script"], workload["features"], environment)


def refinement_task(workload: Row, environment: str, parent_tsel: str, gain_band: str) -> prompts.RefinementTask:
    """The same with graph A: its payload in the `line` notation, and its edit summaries as a numbered list.

    Raises:
        TselError: `parent_tsel` is not a well-formed graph.
    """
    graph = tsel.decode(parent_tsel).graph
    summary = "\n".join(f"{number}. {told}" for number, told in enumerate(tsel.summaries(graph).values(), 1))
    x = construction_task(workload, environment)
    return prompts.RefinementTask(
        x.description,
        x.script,
        x.features,
        x.environment,
        prior_graph=tsel.render(graph).text,
        prior_summary=summary,
        gain_band=gain_band,
    )


def build(
    *,
    workload: Row,
    environment: str,
    selection: Row,
    label: Row,
    check: Row,
    anchor: Row,
    verdict: Row,
    parent_verdict: Row | None,
    parent_tsel: str | None,
) -> Row:
    """A row of `examples`. Rows of an embargoed workload come out rejected.

    `verdict` and `parent_verdict` are those of the selection's candidate and parent in its environment;
    `parent_tsel` is the parent's payload text. The last two are None when constructing.

    Raises:
        ValueError: the label did not pass the check, rows that do not belong together, or a graph that does not
            render back to its own text in the `line` notation.
        TselError: a graph that does not parse, or is too large for the `json` notation.
    """
    _belong_together(workload, selection, label, check, anchor, verdict, parent_verdict, parent_tsel)
    completion = label["graph"]
    if parent_tsel is not None:
        band = selection["gain_band"]
        messages = prompts.refinement(refinement_task(workload, environment, parent_tsel, band))
    else:
        messages = prompts.construction(construction_task(workload, environment))
    embargo = workload["split"] == "embargo"
    row = {
        "example_id": content_id("x", {"messages": messages, "completion": completion}),
        "state": "rejected" if embargo else "ok",
        "reason": "embargo" if embargo else None,
        "detail": f"cell {workload['cell']} is within a factor of 1.5 of another split" if embargo else None,
        "mode": selection["mode"],
        "split": workload["split"],
        "family": workload["family"],
        "operator": workload["operator"],
        "workload_id": workload["workload_id"],
        "environment_id": selection["environment_id"],
        "candidate_id": selection["candidate_id"],
        "parent_id": selection["parent_id"],
        "selection_id": selection["selection_id"],
        "label_id": label["label_id"],
        "teacher": label["teacher"],
        "gain_band": selection["gain_band"],
        "messages": messages,
        "completion": completion,
        "spans": spans(completion),
        "completion_json": tsel.convert(completion, "json"),
        "latency_us": verdict["latency_us"],
        "parent_us": parent_verdict["latency_us"] if parent_verdict else None,
        "default_us": anchor["default_us"],
        "anchor_us": anchor["anchor_us"],
        "noise_band": anchor["noise_band"],
    }
    assert set(row) == {column.name for column in EXAMPLES.columns}
    return row


def spans(completion: str) -> list[Row]:
    """The spans of a graph's text in the `line` notation, which tile it.

    Raises:
        ValueError: the text is not what its graph renders to in that notation.
        TselError: the text does not parse.
    """
    encoded = tsel.render(tsel.decode(completion).graph)
    if encoded.text != completion:
        at = next((i for i, (a, b) in enumerate(zip(encoded.text, completion, strict=False)) if a != b), -1)
        raise ValueError(f"the graph renders to another text than the label holds, from character {at} on")
    end = 0
    for span in encoded.spans:
        if span.start != end or span.end <= span.start:
            raise ValueError(f"the spans do not tile the graph's text at character {end}")
        end = span.end
    if end != len(completion):
        raise ValueError(f"the spans end at character {end} of {len(completion)}")
    return [{"start": span.start, "end": span.end, "kind": span.kind} for span in encoded.spans]


def _belong_together(
    workload: Row,
    selection: Row,
    label: Row,
    check: Row,
    anchor: Row,
    verdict: Row,
    parent: Row | None,
    parent_tsel: str | None,
) -> None:
    refine = selection["mode"] == "refine"
    where = (selection["workload_id"], selection["environment_id"])
    fine = {
        "the label passed the check": check["state"] == label["state"] == "ok",
        "the check is the label's": check["label_id"] == label["label_id"],
        "the label is the selection's": label["selection_id"] == selection["selection_id"],
        "the workload is the selection's": workload["workload_id"] == selection["workload_id"],
        "the anchor is the workload's": (anchor["workload_id"], anchor["environment_id"]) == where,
        "the verdict is the candidate's": verdict["candidate_id"] == selection["candidate_id"],
        "the parent's verdict is the parent's": (parent["candidate_id"] if parent else None)
        == (selection["parent_id"] if refine else None),
        "refining, and only then, the parent has a payload": (parent_tsel is not None) == refine,
    }
    for claim, holds in fine.items():
        if not holds:
            raise ValueError(f"selection {selection['selection_id']}: not true that {claim}")
